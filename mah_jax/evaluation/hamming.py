"""Hamming distances of packed codes, and the ranking of a database by distance."""

from typing import NamedTuple

import numpy as np

from mah_jax import distinct

_WEIGHT_STEPS = 2 ** 20  # the integer that the largest weight becomes


class Merged(NamedTuple):
  """Rows reduced to few distinct codes and few label sets, all that a ranking can see.

  codes: the distinct codes, packed, [C, w] uint64; see `distinct.pack`.
  code_of: number of each row's code, [n].
  label_sets: the distinct label sets, packed, [S, v] uint64.
  label_set_of: number of each row's label set, [n].
  """
  codes: np.ndarray
  code_of: np.ndarray
  label_sets: np.ndarray
  label_set_of: np.ndarray


def merge(codes: np.ndarray, labels: np.ndarray) -> Merged:
  """Numbers the distinct codes [n, c] and the distinct label sets [n, L] of all rows."""
  code, label_set = distinct.number_rows(codes), distinct.number_rows(labels)
  return Merged(code.packed, code.of_row, label_set.packed, label_set.of_row)


def entries(merged: Merged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The pairs of code and label set that occur, ascending by code.

  Returns:
    The numbers of their codes, of their label sets, and how many rows they merge, all [E].
  """
  pairs, entry_of = distinct.number(
      merged.code_of * len(merged.label_sets) + merged.label_set_of)
  return *np.divmod(pairs, len(merged.label_sets)), np.bincount(entry_of)


def distances(packed: np.ndarray, other: np.ndarray) -> np.ndarray:
  """Hamming distances of packed codes [n, w] to one code [w] -> [n].

  The dtype is the smallest that fits, because NumPy sorts small integers by radix.
  """
  total = np.zeros(len(packed), np.min_scalar_type(distinct.WORD * len(other)))
  for words, word in zip(packed.T, other, strict=True):
    total += np.bitwise_count(words ^ word)
  return total


def byte_sums(weights: np.ndarray) -> np.ndarray | None:
  """The weight that each byte of differing bits adds to a weighted distance.

  Weights are rounded to integers, the largest to 2^20, so that sums are exact and ties
  mean something: distances tie when they are equal after this rounding.

  Args:
    weights: one weight per bit, not negative, [c].

  Returns:
    Sums of the rounded weights, [ceil(c / 8), 256] int64; None when all weights are equal
    and not 0, for then they rank like plain distances.
  """
  steps = np.rint(weights / (weights.max() or 1) * _WEIGHT_STEPS).astype(np.int64)
  if steps.min() == _WEIGHT_STEPS:
    return None
  steps = np.pad(steps, (0, -len(steps) % 8)).reshape(-1, 8)
  bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder='little')
  return steps @ bits.T


def levels(
    packed: np.ndarray, other: np.ndarray, c: int, sums: np.ndarray | None = None
) -> tuple[np.ndarray, int]:
  """Numbers the distances of packed codes [n, w] to one code [w] in ascending order.

  Args:
    packed: codes of c bits.
    other: the code that they are compared with.
    c: number of bits.
    sums: from `byte_sums`, for weighted distances.

  Returns:
    The level of each code, [n], and how many levels there are. The level of a plain distance
    is the distance, 0..c; weighted distances that occur are numbered from 0.
  """
  if sums is None:
    return distances(packed, other), c + 1
  differ = (packed ^ other).astype('<u8', order='C').view(np.uint8)  # [n, 8 w]
  total = sum(table[byte] for table, byte in zip(sums, differ.T))
  values, numbers = np.unique(total, return_inverse=True)
  return numbers.astype(np.min_scalar_type(len(values))), len(values)


def ranking(level: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Ranks rows by level [n]; equal levels keep the order of the rows.

  Returns:
    Row numbers in order, [n], and the number of rows up to each level, [count].
  """
  order = np.argsort(level, kind='stable')
  if 16 * count > len(level):  # a search for each level takes longer than a look at each row
    return order, np.cumsum(np.bincount(level, minlength=count))
  ends = np.searchsorted(level, np.arange(count, dtype=level.dtype), 'right', order)
  return order, ends
