"""The index: exact neighbours of codes by Hamming distance, and by real outputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Index(NamedTuple):
  """Packed codes [n, ceil(c / 8)] uint8, their bits c, and second keys [n, b] int8 or None."""
  packed: np.ndarray
  bits: int
  keys: np.ndarray | None

  def __len__(self):
    return len(self.packed)


def build_packed(packed, bits, ids=None, keys=None):
  """Makes an index of packed codes."""
  del ids
  return Index(packed, bits, keys)


def _codes(index):
  return np.unpackbits(index.packed, axis=1, count=index.bits).astype(np.int64) * 2 - 1


def _rank(index, level, k, keys, allowed):
  rows = np.arange(len(index.packed)) if allowed is None else np.asarray(allowed)
  found = []
  for i, of_query in enumerate(level):
    second = np.zeros(len(rows), np.int64)
    if keys is not None and index.keys is not None:
      second = ((index.keys[rows].astype(np.int64) - keys[i].astype(np.int64)) ** 2).sum(axis=1)
    found.append(rows[np.lexsort((rows, second, of_query[rows]))][:k])
  return np.stack(found)


def search(index, codes, k, *, keys=None, allowed=None):
  """Neighbours by Hamming distance."""
  level = (index.bits - codes.astype(np.int64) @ _codes(index).T) // 2
  rows = _rank(index, level, k, keys, allowed)
  return np.take_along_axis(level, rows, 1), rows


def search_outputs(index, outputs, k, *, keys=None, allowed=None):
  """Neighbours by inner product."""
  level = np.asarray(outputs, np.float64) @ _codes(index).T / index.bits
  rows = _rank(index, -level, k, keys, allowed)
  return np.take_along_axis(level, rows, 1), rows


