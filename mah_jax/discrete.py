"""Binary codes: the sign, codebooks, and discrete coordinate descent (DCC), Eqs. 8 to 13."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import similarity as similarity_lib

RESTARTS = 16     # of the search for a codebook
BLOCK = 2**16     # rows that are solved at a time
AGREEMENTS = 2**24  # of embeddings with words, that are kept at once
MAX_TAILS = 1024  # ways to lengthen a codeword that the search looks at


def sign(x: jax.Array) -> jax.Array:
  """+1 where x >= 0, else -1: a code is never 0. Keeps shape and dtype."""
  return jnp.where(x >= 0, 1, -1).astype(x.dtype)


def nearest(embeddings: np.ndarray, words: np.ndarray) -> np.ndarray:
  """The word with the largest inner product with each embedding, the first of equals.

  [b, c] and [k, c] -> [b, c].
  """
  chex.assert_equal_shape_suffix((embeddings, words), 1)
  directions, rows = words.T.astype(np.float32), max(1, AGREEMENTS // len(words))
  choice = [np.argmax(embeddings[i:i + rows] @ directions, axis=1)
            for i in range(0, len(embeddings), rows)]
  return words[np.concatenate(choice)]


def dcc(codes: jax.Array, embeddings: jax.Array, labels: np.ndarray, sampled: np.ndarray, *,
        gamma: float, similarity: str = 'balanced', sweeps: int = 1) -> jax.Array:
  """One database update: minimises Eq. 8 over the codes, bit by bit.

  Args:
    codes: database codes, [n, c].
    embeddings: tanh outputs H of the sampled rows, [m, c].
    labels: 0/1 labels of the database, [n, L].
    sampled: row numbers Omega, [m].
    gamma: weight of the quantization term.
    similarity: 'balanced' or 'signed', see `similarity.dissimilar_value`.
    sweeps: passes over the bits.

  Returns:
    The new codes, [n, c], of the type of `codes`.
  """
  groups = similarity_lib.group_rows(labels)
  r = similarity_lib.dissimilar_value(groups, np.asarray(sampled), similarity)
  place, problem = row_problem(embeddings, sampled, groups.of_row, groups.related, r, gamma)
  return descend_rows((codes, groups.of_row, place), *problem, sweeps=sweeps)


@jax.jit
def row_problem(embeddings: jax.Array, sampled: jax.Array, set_of_row: jax.Array,
                related: jax.Array, r: jax.Array,
                gamma: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """What Eq. 8 asks of each row of B: min b'Gb - 2 b.pull, rows independent.

  The pull c S'H + gamma H on the sampled rows, that is -E/2 of Eq. 9, is the sum of what a row's
  label set asks and, for sampled rows, what their embedding asks; it is never made as a whole.

  Returns:
    place: of each row in `own_pull`, [n].
    problem: set_pull [g, c]; own_pull [m + 1, c], its last row 0; gram = H'H, [c, c].
  """
  m, c = embeddings.shape
  chex.assert_shape(sampled, (m,))
  set_pull = c * similarity_lib.set_sums(embeddings, set_of_row[sampled], related, r)
  own_pull = jnp.pad(gamma * embeddings, ((0, 1), (0, 0)))
  place = jnp.full(len(set_of_row), m, jnp.int32).at[sampled].set(jnp.arange(m, dtype=jnp.int32))
  gram = jnp.matmul(embeddings.T, embeddings, precision='highest')
  return place, (set_pull, own_pull, gram)


@functools.partial(jax.jit, static_argnames='sweeps')
def descend_rows(rows: tuple[jax.Array, ...], set_pull: jax.Array, own_pull: jax.Array,
                 gram: jax.Array, *, sweeps: int) -> jax.Array:
  """`descend` on any part of the rows of a `row_problem`, in blocks, so that memory is bounded.

  Rows are their codes [n, c], label sets [n] and places in `own_pull` [n].
  """
  codes = rows[0]
  n = len(codes)
  size = min(n, BLOCK)

  def solve(i, new):
    first = jnp.minimum(i * size, n - size)  # the last block may overlap the one before it
    b, label_set, place = (jax.lax.dynamic_slice_in_dim(x, first, size) for x in rows)
    solved = descend(b, set_pull[label_set] + own_pull[place], gram, sweeps=sweeps)
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


def codebook(num_labels: int, code_lengths: Sequence[int],
             seed: int) -> tuple[np.ndarray, ...]:
  """Well-separated codewords for each length, ([L, c], ...) int8.

  A longer codeword begins with the shorter one, so that a cascade can pass it on. Each length
  minimises sum_ab 4^-distance(a, b) by changing one codeword at a time, which first of all
  avoids equal codewords, then distance 1, and so on.
  """
  rng = np.random.default_rng(seed)
  words = np.zeros((num_labels, 0), np.int8)
  books = []
  for c in code_lengths:
    tries = [_extend(words, c, rng) for _ in range(RESTARTS)]
    words = min(tries, key=lambda pair: pair[0])[1]
    books.append(words)
  return tuple(books)


def _extend(prefix: np.ndarray, c: int, rng: np.random.Generator) -> tuple[float, np.ndarray]:
  """Adds bits to codewords [L, c0] by coordinate descent -> (energy, codewords [L, c])."""
  num_labels, c0 = prefix.shape
  added = c - c0
  if 2**added <= MAX_TAILS:
    tails = np.array(np.meshgrid(*[[-1, 1]] * added)).reshape(added, -1).T.astype(np.int8)
  else:
    tails = rng.choice(np.array([-1, 1], np.int8), (MAX_TAILS, added))
  choice = rng.integers(len(tails), size=num_labels)
  apart = 0.25 ** ((c0 - prefix.astype(int) @ prefix.T) / 2)  # [L, L]
  between = 0.25 ** ((added - tails.astype(int) @ tails.T) / 2)  # [tails, tails]
  np.fill_diagonal(apart, 0.0)
  energy, before = np.sum(apart * between[np.ix_(choice, choice)]), np.inf
  while energy < before:
    for a in range(num_labels):
      cost = between[:, choice] @ apart[a]  # [tails]
      best = np.flatnonzero(cost <= cost.min() * (1 + 1e-9))
      if choice[a] not in best:
        choice[a] = rng.choice(best)
    energy, before = np.sum(apart * between[np.ix_(choice, choice)]), energy
  return energy, np.concatenate([prefix, tails[choice]], axis=1)


def codes_from_labels(labels: np.ndarray, words: np.ndarray) -> np.ndarray:
  """Code of each row: the sign of the sum of its labels' codewords. [n, L], [L, c] -> [n, c]."""
  return np.asarray(sign(labels.astype(np.int32) @ words), np.int8)
