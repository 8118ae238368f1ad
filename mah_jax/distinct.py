"""Distinct rows of 0/1 labels or of codes in {-1, +1}: packed, numbered and compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

WORD = 64        # bits of a packed word
COUNTED = 2**16  # keys below it are counted even where rows are few; counting beats sorting


class Distinct(NamedTuple):
  """The distinct rows of a matrix of bits; g in all.

  packed: their bits, see `pack`, [g, w] uint64. They ascend by their first word, then by their
    second and so on; up to 64 columns this is the order of the integers whose lowest bit is the
    first column.
  of_row: number of each row's bits among the distinct ones, [n].
  row: number of a row that has them, [g].
  """
  packed: np.ndarray
  of_row: np.ndarray
  row: np.ndarray


def pack(bits: np.ndarray) -> np.ndarray:
  """One bit per column, set where positive: [n, c] -> [n, ceil(c / 64)] uint64."""
  n, c = bits.shape
  columns = -(-c // 8)
  padded = np.zeros((n, 8 * columns), bool)  # whole bytes: packing one long row is faster
  padded[:, :c] = bits > 0
  packed = np.zeros((n, -(-c // WORD) * WORD // 8), np.uint8)
  packed[:, :columns] = np.packbits(padded.ravel(), bitorder='little').reshape(n, columns)
  return packed.view('<u8').astype(np.uint64, copy=False)


def number_rows(bits: np.ndarray) -> Distinct:
  """Numbers the distinct rows of a matrix [n, c], whose bits are set where it is positive."""
  packed = pack(bits)
  of_row = np.zeros(len(packed), np.intp)
  for i, words in enumerate(packed.T):
    values, numbers = number(words)
    of_row = number(of_row * len(values) + numbers)[1] if i else numbers
  row = np.empty(of_row.max(initial=-1) + 1, np.intp)
  row[of_row] = np.arange(len(of_row))
  # Whole columns are compared, which is five times as fast where their words are neighbours.
  return Distinct(np.asfortranarray(packed[row]), of_row, row)


def number(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The distinct keys in ascending order, and the number of each key among them.

  Keys are integers from 0 on, [n].
  """
  if keys.max(initial=0) >= max(len(keys), COUNTED):
    return np.unique(keys, return_inverse=True)
  keys = keys.astype(np.intp, copy=False)
  present = np.bincount(keys) > 0
  return np.flatnonzero(present), (np.cumsum(present) - 1)[keys]


def overlapping(packed: np.ndarray, other: np.ndarray) -> np.ndarray:
  """Whether packed label sets [g, w] share a label with another set [w] -> [g] bool."""
  shared = np.zeros(len(packed), np.uint64)
  for words, word in zip(packed.T, other, strict=True):
    shared |= words & word
  return shared > 0


def count_overlapping(sets: Distinct, database: Distinct) -> np.ndarray:
  """How many rows of a database share a label with each distinct label set, [g] int64."""
  rows = np.bincount(database.of_row)  # integers, whose many small products need no threads
  counts = [rows @ overlapping(database.packed, one) for one in sets.packed]
  return np.array(counts, np.int64)
