"""The similarity S of rows as a function of their label sets; no [m, n] matrix is ever made."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import distinct

Array = jax.Array | np.ndarray
SIMILARITIES = ('balanced', 'signed', 'standardized')
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


class Levels(NamedTuple):
  """The two values of S for a query i, by the query's label set.

  similar: S_ij where i and j share a label, [g].
  dissimilar: S_ij where they do not, [g].
  """
  similar: Array
  dissimilar: Array


def levels(groups: Groups, sampled: np.ndarray, similarity: str) -> Levels:
  """The values of S for the sampled rows as queries.

  Args:
    groups: the database's label sets.
    sampled: row numbers Omega, [m].
    similarity: 'signed' is the paper's text, 1 and -1. 'balanced' is the authors' script, 1 and
      -r with r = similar pairs / dissimilar pairs, so that S sums to zero over the sample; r = 1
      where all pairs are similar. 'standardized' gives each query values with mean 0 and mean
      square 1 over the database, and 0 to a query that is similar to all rows or to none.

  Returns:
    Levels of all g label sets, float64.
  """
  if similarity not in SIMILARITIES:
    raise ValueError(f'similarity={similarity!r} is not one of {", ".join(SIMILARITIES)}.')
  n, ones = len(groups.of_row), np.ones(len(groups.sets))
  if similarity == 'standardized':
    share = groups.degree / n  # p: (1 - p) and -p have mean 0 and mean square p (1 - p)
    tells = (share > 0) & (share < 1)
    similar = np.sqrt(1 / np.where(tells, share, 0.5) - 1)
    return Levels(np.where(tells, similar, 0.0), np.where(tells, -1 / similar, 0.0))
  pairs = len(sampled) * n
  near = int(groups.degree[groups.of_row[sampled]].sum())
  r = 1.0 if similarity == 'signed' or near == pairs else near / (pairs - near)
  return Levels(ones, -r * ones)


def database_sums(codes: Array, set_of_row: Array, sets: Array, levels: Levels) -> jax.Array:
  """SB of a query with each label set: sum_j S(g, j) b_j. [n, c], [n], [g, L] -> [g, c]."""
  similar, dissimilar = (jnp.asarray(values, jnp.float32)[:, None] for values in levels)
  near = near_sums(codes, set_of_row, sets)
  return (similar - dissimilar) * near + dissimilar * codes.sum(axis=0)


def query_sums(embeddings: Array, set_of_query: Array, sets: Array, levels: Levels) -> jax.Array:
  """S'H of a database row with each label set: sum_i S_ig h_i. [m, c], [m], [g, L] -> [g, c]."""
  similar, dissimilar = (
      jnp.asarray(values, jnp.float32)[set_of_query, None] for values in levels)
  near = near_sums((similar - dissimilar) * embeddings, set_of_query, sets)
  return near + (dissimilar * embeddings).sum(axis=0)


def near_sums(values: Array, set_of_value: Array, sets: Array) -> jax.Array:
  """The sum of the values that share a label with each label set: [m, c], [m], [g, L] -> [g, c].

  Memory is bounded: at most `PAIRS` pairs are compared at a time.
  """
  m, g = len(values), len(sets)
  if g * g <= PAIRS:
    return _near_sums(sets, sets, _sums_of_sets(values, set_of_value, g))
  # A few values are compared one by one, many are first summed within their label sets.
  others, sums = ((sets[set_of_value], values) if m < g else
                  (sets, _sums_of_sets(values, set_of_value, g)))
  return jax.lax.map(lambda one: _near_sums(one[None], others, sums)[0], sets,
                     batch_size=max(1, PAIRS // len(others)))


def _sums_of_sets(values, set_of_value, g):
  """The sum of the values of each label set, [m, c], [m] -> [g, c]."""
  return jax.ops.segment_sum(values, set_of_value, num_segments=g)


def _near_sums(sets, others, sums):
  """Sums over the others that share a label with each set: [b, L], [k, L], [k, c] -> [b, c]."""
  with jax.default_matmul_precision('highest'):
    return share_label(sets, others).astype(sums.dtype) @ sums
