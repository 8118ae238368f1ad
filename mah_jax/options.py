"""Settings: frozen dataclasses whose fields have a default, a meaning and bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from mah_jax import errors

# When a field may differ from the value that a run was begun with. An evaluation may change how
# images become codes; then results.json says how.
NEVER, EVALUATION, AFTER_TRAINING, ALWAYS = 'never', 'evaluation', 'after training', 'always'

LARGEST = 2.0**128  # numbers of 32 bits are smaller
Choices = Sequence[str] | Callable[[], Sequence[str]]


def option(default: Any, doc: str, *, choices: Choices = (), least: float | None = None,
           most: float | None = None,
           may_change: str = NEVER, group: str = '', networks_only: bool = False,
           modes: Sequence[str] = ()) -> Any:
  """A field of a settings dataclass, which is also a command-line flag.

  Args:
    default: its value unless another is given; its type is the type of the flag.
    doc: what it means, as one or more sentences.
    choices: the texts that are allowed, or a function that lists them; empty: any.
    least: the smallest number that is allowed.
    most: the largest; beyond it no machine has the memory or the time.
    may_change: when a run may go on with another value: NEVER, EVALUATION, AFTER_TRAINING or
      ALWAYS.
    group: the heading under which the help shows it.
    networks_only: whether it has an effect only where a network is trained.
    modes: values of --mode in which it has an effect; empty: all.
  """
  return dataclasses.field(default=default, metadata={
      'doc': doc, 'choices': choices, 'least': least, 'most': most, 'may_change': may_change,
      'group': group,
      'networks_only': networks_only, 'modes': tuple(modes)})


def fields(settings: Any) -> dict[str, dataclasses.Field]:
  """The options of a settings dataclass, or of an instance of one, by name."""
  return {field.name: field for field in dataclasses.fields(settings)
          if 'doc' in field.metadata}


def choices(field: dataclasses.Field) -> tuple[str, ...]:
  """The texts that a field allows; empty: any."""
  allowed = field.metadata['choices']
  return tuple(allowed() if callable(allowed) else allowed)


def check(settings: Any):
  """Raises UsageError for a value that is not finite, not a choice or too small."""
  for name, field in fields(settings).items():
    value, allowed, least = getattr(settings, name), choices(field), field.metadata['least']
    if allowed and value not in allowed:
      raise errors.UsageError(f'--{name}={value} is not one of {", ".join(allowed)}.')
    numbers = value if isinstance(value, tuple) else (value,)
    if any(isinstance(x, float) and not abs(x) < LARGEST for x in numbers):
      raise errors.UsageError(f'--{name}={text(value)} must be finite, also in 32 bits.')
    if least is not None and any(x < least for x in numbers):
      raise errors.UsageError(f'--{name}={text(value)} must be at least {least}.')
    most = field.metadata['most']
    if most is not None and any(x > most for x in numbers):
      raise errors.UsageError(f'--{name}={text(value)} must be at most {most}: no machine has the '
                              'memory or the time for more.')


def fits(field: dataclasses.Field, value: Any) -> bool:
  """Whether a value, such as one from a JSON file, has the type of a field; lists are tuples."""
  default = field.default
  if isinstance(default, tuple):
    return isinstance(value, (tuple, list)) and all(_is_one(x, type(default[0])) for x in value)
  return _is_one(value, type(default))


def _is_one(value: Any, kind: type) -> bool:
  """Whether a value is of a kind; an integer is a number, a truth value is none."""
  return type(value) is kind or kind is float and type(value) is int


def is_text(value: str) -> bool:
  """Whether a text is one, and not bytes that are no text in UTF-8, as a path may be."""
  return not any('\ud800' <= x <= '\udfff' for x in value)


def listed(names: Sequence[str]) -> str:
  """Names in a sentence: 'a', 'a and b', 'a, b and c'."""
  return ' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))


def text(value: Any) -> str:
  """A value as it is written in a flag."""
  if isinstance(value, (tuple, list)):
    return ','.join(repr(x).removesuffix('.0') for x in value)
  return str(value)
