"""The similarity S of rows as a function of their label sets; no [m, n] matrix is ever made."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from mah_jax import distinct

Array = jax.Array | np.ndarray
SIMILARITIES = ('balanced', 'signed')
WEIGHTS = ('equal', 'balanced')
PAIRS = 2**22  # pairs of label sets that are compared at a time, 16 MB in float32


class Groups(NamedTuple):
  """The rows of a database by distinct label set; g sets in all.

  of_row: number of each row's label set, [n] int32.
  sets: the distinct label sets, 0/1, [g, L] float32.
  degree: how many rows share a label with each set (S_ij = 1), [g] int64.
  """
  of_row: np.ndarray
  sets: np.ndarray
  degree: np.ndarray


def group_rows(labels: Array) -> Groups:
  """Groups rows of 0/1 labels [n, L] by equal label set."""
  labels = np.asarray(labels)
  if labels.ndim != 2:
    raise ValueError(f'labels must be [rows, labels], got shape {labels.shape}.')
  wrong = labels[(labels != 0) & (labels != 1)]
  if wrong.size:
    raise ValueError(f'labels hold {wrong[0]}; give 0 and 1, a column for each label.')
  numbered = distinct.number_rows(labels)
  return Groups(numbered.of_row.astype(np.int32), labels[numbered.row].astype(np.float32),
                distinct.count_overlapping(numbered, numbered))


def share_label(labels: Array, others: Array) -> Array:
  """Whether rows of 0/1 labels share a label with other rows: [b, L], [m, L] -> [b, m] bool."""
  return labels.astype(np.float32) @ others.astype(np.float32).T > 0


def pair_weights(labels: np.ndarray, kind: str) -> tuple[float, float]:
  """The weights of a similar and of a dissimilar pair of rows; all m^2 pairs count.

  Args:
    labels: 0/1, of the rows, [m, L].
    kind: 'equal' gives every pair the weight 1. 'balanced' gives the similar pairs together the
      same weight as the dissimilar ones; the mean over all pairs is 1.

  Returns:
    (1, 1) for 'equal', and where all pairs are of one kind.
  """
  if kind not in WEIGHTS:
    raise ValueError(f'kind={kind!r} is not one of {", ".join(WEIGHTS)}.')
  if kind == 'equal':
    return 1.0, 1.0
  groups = group_rows(labels)
  pairs = len(labels) ** 2
  similar = int(groups.degree[groups.of_row].sum())
  if similar in (0, pairs):
    return 1.0, 1.0
  return pairs / (2 * similar), pairs / (2 * (pairs - similar))


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
  if similarity not in SIMILARITIES:
    raise ValueError(f'similarity={similarity!r} is not one of {", ".join(SIMILARITIES)}.')
  pairs = len(sampled) * len(groups.of_row)
  similar = int(groups.degree[groups.of_row[sampled]].sum())
  if similarity == 'signed' or similar == pairs:
    return 1.0
  return similar / (pairs - similar)


def set_sums(values: Array, set_of_value: Array, sets: Array, r: Array) -> jax.Array:
  """Sums of values weighted by S, for each label set: [m, c], [m], [g, L] -> [g, c].

  Entry g is sum_i S(g, i) values_i. With values H of the sampled rows this is S'H, with values
  B of all rows it is SB, both up to a gather by the row's label set. Memory is bounded: at most
  `PAIRS` pairs are compared at a time.
  """
  m, g = len(values), len(sets)
  if g * g <= PAIRS:
    near = _near_sums(sets, sets, _sums_of_sets(values, set_of_value, g))
  else:
    # A few values are compared one by one, many are first summed within their label sets.
    others, sums = ((sets[set_of_value], values) if m < g else
                    (sets, _sums_of_sets(values, set_of_value, g)))
    near = jax.lax.map(lambda one: _near_sums(one[None], others, sums)[0], sets,
                       batch_size=max(1, PAIRS // len(others)))
  return (1.0 + r) * near - r * values.sum(axis=0)


def _sums_of_sets(values, set_of_value, g):
  """The sum of the values of each label set, [m, c], [m] -> [g, c]."""
  return jax.ops.segment_sum(values, set_of_value, num_segments=g)


def _near_sums(sets, others, sums):
  """Sums over the others that share a label with each set: [b, L], [k, L], [k, c] -> [b, c]."""
  with jax.default_matmul_precision('highest'):
    return share_label(sets, others).astype(sums.dtype) @ sums
