"""Packed codes, their Hamming distances, and how many rows lie at each distance."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_WORD = 64


class Merged(NamedTuple):
  """Rows reduced to what a ranking can see: few codes, few label sets, few pairs of both.

  An entry is one (code, label set) that occurs; entries ascend by code.

  codes: the distinct codes, packed, [C, w] uint64.
  label_sets: the distinct label sets, packed, [S, v] uint64.
  code_of: number of each row's code, [n].
  label_set_of: number of each row's label set, [n].
  entry_code: number of each entry's code, [E].
  entry_label_set: number of each entry's label set, [E].
  entry_count: rows merged into each entry, [E] float64, the dtype bincount weighs with.
  """
  codes: np.ndarray
  label_sets: np.ndarray
  code_of: np.ndarray
  label_set_of: np.ndarray
  entry_code: np.ndarray
  entry_label_set: np.ndarray
  entry_count: np.ndarray


def pack(bits: np.ndarray) -> np.ndarray:
  """One bit per column, set where positive: [n, c] -> [n, ceil(c / 64)] uint64."""
  n, c = bits.shape
  words = -(-c // _WORD)
  packed = np.zeros((n, words * _WORD // 8), np.uint8)
  packed[:, :-(-c // 8)] = np.packbits(bits > 0, axis=1, bitorder='little')
  return packed.view('<u8').astype(np.uint64, copy=False)


def distances(packed: np.ndarray, other: np.ndarray) -> np.ndarray:
  """Hamming distances of packed codes [n, w] to one code [w] -> [n].

  The dtype is the smallest that fits, because NumPy sorts small integers by radix.
  """
  total = np.zeros(len(packed), np.min_scalar_type(_WORD * len(other)))
  for words, word in zip(packed.T, other, strict=True):
    total += np.bitwise_count(words ^ word)
  return total


def merge(codes: np.ndarray, labels: np.ndarray) -> Merged:
  """Merges rows with equal code [n, c] and equal label set [n, L]."""
  packed_codes, packed_labels = pack(codes), pack(labels)
  code_of, label_set_of = _row_numbers(packed_codes), _row_numbers(packed_labels)
  label_sets = _representatives(packed_labels, label_set_of)
  pairs, entry_of = _numbered(code_of * len(label_sets) + label_set_of)
  entry_code, entry_label_set = np.divmod(pairs, len(label_sets))
  return Merged(
      codes=_representatives(packed_codes, code_of),
      label_sets=label_sets,
      code_of=code_of,
      label_set_of=label_set_of,
      entry_code=entry_code,
      entry_label_set=entry_label_set,
      entry_count=np.bincount(entry_of).astype(np.float64))


def entries_by_code(merged: Merged) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Each distinct code, packed [w], with the numbers of its entries."""
  starts = np.searchsorted(merged.entry_code, np.arange(1, len(merged.codes)))
  entries = np.split(np.arange(len(merged.entry_code)), starts)
  return zip(merged.codes, entries, strict=True)


def relevant_label_sets(queries: Merged, entry: int, database: Merged) -> np.ndarray:
  """Which label sets of the database share a label with a query entry, [S] bool."""
  label_set = queries.label_sets[queries.entry_label_set[entry]]
  return (database.label_sets & label_set).any(axis=1)


def distance_histograms(
    queries: Merged, database: Merged, c: int) -> tuple[np.ndarray, np.ndarray]:
  """Counts, for each query entry, the database rows at every distance.

  Memory beyond the result is a few arrays as long as the database.

  Args:
    queries: the merged queries, E entries.
    database: the merged database.
    c: number of bits.

  Returns:
    All rows and relevant rows at distance 0..c, both [E, c + 1] int64.
  """
  counts = np.empty((len(queries.entry_code), c + 1, 2), np.int64)
  for code, entries in entries_by_code(queries):
    distance = distances(database.codes, code)
    slot = 2 * distance.astype(np.intp)[database.entry_code]
    for entry in entries:
      relevant = relevant_label_sets(queries, entry, database)[database.entry_label_set]
      counts[entry] = np.bincount(
          slot + relevant, database.entry_count, 2 * (c + 1)).reshape(c + 1, 2)
  return counts.sum(axis=2), counts[:, :, 1]


def _numbered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The distinct values in ascending order, and the number of each value among them."""
  if values.max() >= max(len(values), 2 ** 16):
    return np.unique(values, return_inverse=True)
  values = values.astype(np.intp, copy=False)  # counting beats sorting on a short range
  present = np.bincount(values) > 0
  return np.flatnonzero(present), (np.cumsum(present) - 1)[values]


def _row_numbers(packed: np.ndarray) -> np.ndarray:
  """Numbers the distinct rows of [n, w] from 0 -> [n]; equal rows get equal numbers."""
  rows = np.zeros(len(packed), np.intp)
  for words in packed.T:
    distinct, numbers = _numbered(words)
    _, rows = _numbered(rows * len(distinct) + numbers)
  return rows


def _representatives(packed: np.ndarray, numbers: np.ndarray) -> np.ndarray:
  """One row of [n, w] for each number -> [numbers.max() + 1, w]."""
  chosen = np.empty(numbers.max() + 1, np.intp)
  chosen[numbers] = np.arange(len(numbers))
  return packed[chosen]
