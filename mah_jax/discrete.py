"""Binary codes: the sign, the nearest word, and discrete coordinate descent (DCC), Eqs. 8 to 13."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import similarity as similarity_lib

BLOCK = 2**16       # rows of the database that are solved at a time
AGREEMENTS = 2**24  # inner products of embeddings with words that are kept at once


def sign(x: jax.Array) -> jax.Array:
  """+1 where x >= 0, else -1: a code is never 0. Keeps shape and dtype."""
  return jnp.where(x >= 0, 1, -1).astype(x.dtype)


def to_codes(values: jax.Array) -> jax.Array:
  """The signs of values as codes, [b, c] -> [b, c] int8."""
  return sign(values).astype(jnp.int8)


def nearest(embeddings: np.ndarray, words: np.ndarray) -> np.ndarray:
  """The word with the largest inner product with each embedding, the first of equals.

  [b, c] and [k, c] -> [b, c].
  """
  chex.assert_equal_shape_suffix((embeddings, words), 1)
  directions, rows = words.T.astype(np.float32), max(1, AGREEMENTS // len(words))
  choice = [np.argmax(embeddings[i:i + rows] @ directions, axis=1)
            for i in range(0, len(embeddings), rows)]
  return words[np.concatenate(choice)]


def to_nearest(embeddings: jax.Array, words: jax.Array) -> jax.Array:
  """The same as `nearest` for one block of embeddings, in JAX. [b, c] and [k, c] -> [b, c]."""
  chex.assert_equal_shape_suffix((embeddings, words), 1)
  return words[jnp.argmax(embeddings @ words.T.astype(embeddings.dtype), axis=1)]


def dcc(codes: jax.Array, embeddings: jax.Array, labels: np.ndarray, sampled: np.ndarray, *,
        gamma: float, similarity: str = 'balanced', sweeps: int = 1) -> jax.Array:
  """One database update: minimises Eq. 8 over the codes, bit by bit.

  Args:
    codes: database codes, [n, c].
    embeddings: tanh outputs H of the sampled rows, [m, c].
    labels: 0/1 labels of the database, [n, L].
    sampled: row numbers Omega, [m].
    gamma: weight of the quantization term.
    similarity: 'balanced', 'signed' or 'standardized', see `similarity.levels`.
    sweeps: passes over the bits.

  Returns:
    The new codes, [n, c], of the type of `codes`.

  Raises:
    ValueError: an argument that cannot be meant.
  """
  _check_update(codes, embeddings, labels, sampled, gamma, sweeps)
  groups = similarity_lib.group_rows(labels)
  levels = similarity_lib.levels(groups, np.asarray(sampled), similarity)
  position, problem = row_problem(embeddings, sampled, groups.of_row, groups.sets, levels, gamma)
  return descend_rows((codes, groups.of_row, position), *problem, sweeps=sweeps)


def _check_update(codes, embeddings, labels, sampled, gamma, sweeps):
  """Raises ValueError for arguments of `dcc` that cannot be meant."""
  codes, embeddings, labels, sampled = map(np.asarray, (codes, embeddings, labels, sampled))
  if codes.ndim != 2 or embeddings.ndim != 2 or codes.shape[1] != embeddings.shape[1]:
    raise ValueError(f'codes have shape {codes.shape} and embeddings {embeddings.shape}; give '
                     '[n, c] and [m, c] with the same number of bits.')
  if codes.dtype == bool or not np.isin(codes, (-1, 0, 1)).all():
    raise ValueError('codes hold values other than -1 and +1 (or 0 before the first update): give '
                     'signs.')
  if labels.ndim != 2 or len(labels) != len(codes) or not np.isin(labels, (0, 1)).all():
    raise ValueError(f'labels of shape {labels.shape} do not fit {len(codes)} codes; give a row of '
                     '0 and 1 for each.')
  if sampled.shape != (len(embeddings),) or not np.issubdtype(sampled.dtype, np.integer):
    raise ValueError(f'sampled has shape {sampled.shape} and type {sampled.dtype}; give the row '
                     f'number of each of the {len(embeddings)} embeddings.')
  if len(sampled) and not 0 <= sampled.min() <= sampled.max() < len(codes):
    raise ValueError(f'sampled names row {sampled.min() if sampled.min() < 0 else sampled.max()}; '
                     f'give rows from 0 to {len(codes) - 1}.')
  if len(np.unique(sampled)) < len(sampled):
    raise ValueError('sampled names a row twice: give each once.')
  if not np.isfinite(embeddings).all():
    raise ValueError('embeddings hold NaN or infinity: give finite numbers.')
  if not (np.isfinite(gamma) and gamma >= 0):
    raise ValueError(f'gamma={gamma} must be a finite number that is not negative.')
  if isinstance(sweeps, bool) or int(sweeps) != sweeps or sweeps < 1:
    raise ValueError(f'sweeps={sweeps} must be an integer from 1 on.')


@jax.jit
def row_problem(embeddings: jax.Array, sampled: jax.Array, set_of_row: jax.Array,
                sets: jax.Array, levels: similarity_lib.Levels,
                gamma: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """The problem that Eq. 8 poses for each row b of B: min b'Gb - 2 b.pull, rows independent.

  The pull is -E/2 of Eq. 9: c S'H, and gamma H on the sampled rows. Its first part depends on a
  row's label set alone, its second on the row's position in the sample alone, so that the
  [n, c] of both together is never made.

  Args:
    embeddings: tanh outputs H of the sampled rows, [m, c].
    sampled: row numbers Omega, [m].
    set_of_row: number of each row's label set, [n]; see `similarity.Groups`.
    sets: the label sets, [g, L].
    levels: the values of S, see `similarity.levels`.
    gamma: weight of the quantization term.

  Returns:
    position: the position of each row in the sample, m for rows that are not in it, [n].
    problem: set_pull [g, c]; sampled_pull [m + 1, c], its last row 0; gram G = H'H, [c, c].
  """
  m, c = embeddings.shape
  chex.assert_shape(sampled, (m,))
  set_pull = c * similarity_lib.query_sums(embeddings, set_of_row[sampled], sets, levels)
  sampled_pull = jnp.pad(gamma * embeddings, ((0, 1), (0, 0)))
  positions = jnp.arange(m, dtype=jnp.int32)
  position = jnp.full(len(set_of_row), m, jnp.int32).at[sampled].set(positions)
  gram = jnp.matmul(embeddings.T, embeddings, precision='highest')
  return position, (set_pull, sampled_pull, gram)


@functools.partial(jax.jit, static_argnames='sweeps')
def descend_rows(rows: tuple[jax.Array, ...], set_pull: jax.Array, sampled_pull: jax.Array,
                 gram: jax.Array, *, sweeps: int) -> jax.Array:
  """`descend` on any part of the rows of a `row_problem`, in blocks, so that memory is bounded.

  Args:
    rows: the codes of these rows [n, c], the numbers of their label sets [n] and their positions
      in the sample [n].
    set_pull: [g, c].
    sampled_pull: [m + 1, c].
    gram: [c, c].
    sweeps: passes over the bits.

  Returns:
    The new codes, [n, c].
  """
  codes = rows[0]
  n = len(codes)
  size = min(n, BLOCK)

  def solve(i, new):
    first = jnp.minimum(i * size, n - size)  # the last block may overlap the one before it
    b, label_set, position = (jax.lax.dynamic_slice_in_dim(x, first, size) for x in rows)
    solved = descend(b, set_pull[label_set] + sampled_pull[position], gram, sweeps=sweeps)
    return jax.lax.dynamic_update_slice_in_dim(new, solved, first, 0)

  return jax.lax.fori_loop(0, -(-n // size), solve, jnp.zeros_like(codes))


@functools.partial(jax.jit, static_argnames='sweeps')
def descend(codes: jax.Array, pull: jax.Array, gram: jax.Array, *, sweeps: int) -> jax.Array:
  """Sets bit after bit of every row to its best value given the others, Eq. 12.

  Rows do not see each other, so any part of the rows can be solved anywhere.

  Args:
    codes: [n, c].
    pull: [n, c], see `row_problem`.
    gram: [c, c].
    sweeps: passes over the bits.

  Returns:
    The new codes, [n, c].
  """
  n, c = codes.shape
  chex.assert_shape([pull, gram], [(n, c), (c, c)])
  others = gram * (1.0 - jnp.eye(c))  # a bit does not see itself
  pull = pull.T  # [c, n]: a bit is a contiguous row, twice as fast as a column

  def update_bit(i, bits):
    k = i % c
    rest = jnp.matmul(others[k], bits, precision='highest')  # [n]
    return bits.at[k].set(sign(pull[k] - rest))

  bits = jax.lax.fori_loop(0, sweeps * c, update_bit, codes.T.astype(pull.dtype))
  return bits.T.astype(codes.dtype)
