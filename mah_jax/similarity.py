"""Who is similar to whom, from labels: S as a function of label sets, never as an [m, n] matrix."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray
COUNTED = 2**16  # keys below it are counted, which is faster than to sort them


class Groups(NamedTuple):
  """The rows of a database by distinct label set; g sets in all.

  of_row: number of each row's label set, [n] int32.
  related: whether two sets share a label (S_ij = 1), [g, g] bool.
  degree: how many rows each set is related to, [g] int64.
  """
  of_row: np.ndarray
  related: np.ndarray
  degree: np.ndarray


def group_rows(labels: Array) -> Groups:
  """Groups rows of 0/1 labels [n, L] by equal label set."""
  labels = np.asarray(labels)
  if labels.ndim != 2:
    raise ValueError(f'labels must be [rows, labels], got shape {labels.shape}.')
  # Sixteen labels at a time become one exact integer, and a few integers one number.
  label = np.arange(labels.shape[1])
  powers = np.zeros((len(label), -(-len(label) // 16)), np.float32)
  powers[label, label // 16] = 2.0 ** (label % 16)
  words = (labels.astype(np.float32) @ powers).astype(np.uint16)  # [n, ceil(L / 16)]
  of_row = np.zeros(len(labels), np.int64)
  for word in words.T:
    of_row = _numbered(of_row * 2**16 + word)
  rows = np.empty(of_row.max(initial=-1) + 1, np.int64)
  rows[of_row] = np.arange(len(of_row))  # any row of each set
  sets = labels[rows].astype(np.float32)  # [g, L]
  related = sets @ sets.T > 0
  return Groups(of_row.astype(np.int32), related, related @ np.bincount(of_row))


def _numbered(keys: np.ndarray) -> np.ndarray:
  """The number of each key among the distinct ones in ascending order, [n] -> [n]."""
  if keys.max(initial=0) >= COUNTED:
    return np.unique(keys, return_inverse=True)[1]
  return (np.cumsum(np.bincount(keys) > 0) - 1)[keys]


def share_label(related: Array, sets: Array, other_sets: Array) -> Array:
  """Whether rows of one kind share a label with rows of another: [g, g], [b], [m] -> [b, m]."""
  return related[sets[:, None], other_sets]


def dissimilar_value(groups: Groups, sampled: np.ndarray, similarity: str) -> float:
  """The r in S_ij = -r for a dissimilar pair; S_ij = 1 for a similar one.

  Args:
    groups: the database's label sets.
    sampled: row numbers Omega, [m].
    similarity: 'signed' is the paper's text, r = 1. 'balanced' is the authors' script,
      r = similar pairs / dissimilar pairs, so that S sums to zero over the sample.

  Returns:
    r; 1 when every sampled row is similar to every database row.
  """
  pairs = len(sampled) * len(groups.of_row)
  similar = int(groups.degree[groups.of_row[sampled]].sum())
  if similarity == 'signed' or similar == pairs:
    return 1.0
  return similar / (pairs - similar)


def set_sums(values: Array, set_of_value: Array, related: Array, r: Array) -> jax.Array:
  """Sums of values weighted by S, for each label set: [m, c], [m], [g, g] -> [g, c].

  Entry g is sum_i S(g, i) values_i. With values H of the sampled rows this is S'H, with values
  B of all rows it is SB, both up to a gather by the row's label set.
  """
  sums = jax.ops.segment_sum(values, set_of_value, num_segments=len(related))  # [g, c]
  near = jnp.matmul(related.astype(values.dtype), sums, precision='highest')
  return (1.0 + r) * near - r * values.sum(axis=0)
