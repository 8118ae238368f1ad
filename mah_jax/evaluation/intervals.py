"""Intervals for means over seeds, by Student's t distribution."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import special

CONFIDENCE = 0.95


class Interval(NamedTuple):
  """The mean of a sample, and the half width of the interval that holds the true mean.

  mean: the mean.
  half: half the width of the interval at CONFIDENCE; infinite for a single number.
  count: how many numbers there were.
  """
  mean: float
  half: float
  count: int

  @property
  def low(self) -> float:
    """The lower end."""
    return self.mean - self.half

  @property
  def high(self) -> float:
    """The upper end."""
    return self.mean + self.half


def of(values: Sequence[float]) -> Interval:
  """The interval of the mean of independent numbers."""
  values = np.asarray(values, np.float64)
  count = len(values)
  if count < 2:
    return Interval(float(values.mean()), float('inf'), count)
  t = special.stdtrit(count - 1, (1 + CONFIDENCE) / 2)
  return Interval(float(values.mean()), float(t * values.std(ddof=1) / np.sqrt(count)), count)


def paired(first: Mapping[Any, float], second: Mapping[Any, float],
           factor: float = 1.0) -> Interval | None:
  """The interval of first - factor * second, over the seeds that both have; None without any.

  Args:
    first: a number by seed.
    second: another.
    factor: what the second is multiplied by, to ask whether the first is so many times larger.
  """
  seeds = sorted(first.keys() & second.keys())
  return of([first[seed] - factor * second[seed] for seed in seeds]) if seeds else None
