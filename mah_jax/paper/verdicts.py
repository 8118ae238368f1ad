"""Verdicts on sentences of the paper, from differences that are paired by seed."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import NamedTuple

from mah_jax.evaluation import intervals

HOLDS, FAILS, OPEN = 'holds', 'does not hold', 'cannot be told here'

Differences = Mapping[str, intervals.Interval | None]


class Verdict(NamedTuple):
  """A sentence of the paper in our words, whether it holds here, and why."""
  sentence: str
  outcome: str
  reason: str

  def __str__(self) -> str:
    return f'{self.sentence} **{self.outcome.capitalize()}**: {self.reason}'


def all_above(sentence: str, differences: Differences) -> Verdict:
  """A sentence that holds when every one of these differences is above 0.

  Args:
    sentence: what the paper says.
    differences: by name; None where runs are missing, which leaves the sentence open.
  """
  known = {name: d for name, d in differences.items() if d is not None}
  if not known or len(known) < len(differences):
    return Verdict(sentence, OPEN, 'runs are missing.')
  signs = {name: sign(d) for name, d in known.items()}
  outcome = (FAILS if -1 in signs.values() else HOLDS if set(signs.values()) == {1} else OPEN)
  if len(known) == 1:
    return Verdict(sentence, outcome, f'{_show(*known.popitem())}.')
  count = collections.Counter(signs.values())
  reason = (f'of {len(known)} differences {count[1]} are above 0, {count[-1]} below and '
            f'{count[0]} undecided; the least is {_show(*_least(known))}')
  return Verdict(sentence, outcome, f'{reason}.')


def mostly_above(sentence: str, differences: Differences) -> Verdict:
  """A sentence that holds when more than half of these differences are above 0."""
  known = {name: d for name, d in differences.items() if d is not None}
  if not known or len(known) < len(differences):
    return Verdict(sentence, OPEN, 'runs are missing.')
  count = collections.Counter(map(sign, known.values()))
  outcome = (HOLDS if count[1] > len(known) / 2 else FAILS if count[-1] > len(known) / 2 else OPEN)
  return Verdict(sentence, outcome, (
      f'of {len(known)} differences {count[1]} are above 0, {count[-1]} below and {count[0]} '
      f'undecided; they run from {_show(*_least(known))} to '
      f'{_show(*max(known.items(), key=lambda item: item[1].mean))}.'))


def sign(difference: intervals.Interval) -> int:
  """1 or -1 where the interval is above or below 0, else 0."""
  return int(difference.low > 0) - int(difference.high < 0)


def _least(known: Mapping[str, intervals.Interval]) -> tuple[str, intervals.Interval]:
  return min(known.items(), key=lambda item: item[1].mean)


def _show(name: str, difference: intervals.Interval) -> str:
  return (f'{name} {difference.mean:+.3f} (95 % interval {difference.low:+.3f} to '
          f'{difference.high:+.3f}, {difference.count} seeds)')
