"""Linear hash functions: principal axes and ridge regression of scaled rows."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import errors
from mah_jax import options as options_lib
from mah_jax.methods import scaling

product = functools.partial(jnp.matmul, precision='highest')


@dataclasses.dataclass(frozen=True)
class ColumnOptions:
  """The options of methods that sample a few columns of S in each iteration."""
  columns: int = options_lib.option(
      0, 'Rows sampled per iteration; 0: as many as bits, as published. For lfh 64 is better at '
      'few bits.', least=0)

  def __post_init__(self):
    options_lib.check(self)

  def sample_size(self, c: int, n: int) -> int:
    """How many of n rows are sampled for codes of c bits."""
    size = self.columns or c
    if size >= n:
      raise errors.UsageError(f'An iteration cannot sample {size} of {n} rows: give --columns '
                              f'from 1 to {n - 1}.')
    return size


class State(NamedTuple):
  """A linear hash function.

  scale: the scaling of features, by the statistics of the training rows.
  projection: W, from scaled features to bits before the sign, [D, c].
  """
  scale: scaling.Scaling
  projection: jax.Array


def gram(scale: scaling.Scaling, features: np.ndarray) -> np.ndarray:
  """X'X of scaled rows X: [n, D] -> [D, D], blocks multiplied in float32, summed in float64."""
  return scaling.sum_over_blocks(functools.partial(_gram, scale), features)


def principal_axes(gram: np.ndarray, c: int) -> jax.Array:
  """Eigenvectors of X'X [D, D], largest first, [D, c]; they begin again where c > D."""
  _, vectors = np.linalg.eigh(gram)
  return jnp.asarray(vectors[:, -1 - np.arange(c) % len(gram)], jnp.float32)


def ridge(gram: np.ndarray, pull: np.ndarray, weight: float) -> np.ndarray:
  """argmin_W |T - XW|^2 + weight |W|^2 from X'X [p, p] and X'T [p, r] -> [p, r], in float64."""
  return np.linalg.solve(gram + weight * np.eye(len(gram)), pull)


def regress(scale: scaling.Scaling, features: np.ndarray, targets: np.ndarray, weight: float,
            gram: np.ndarray) -> jax.Array:
  """The `ridge` regression from scaled features to targets.

  Args:
    scale: the scaling of features.
    features: rows before they are scaled, [n, D].
    targets: T, [n, c].
    weight: weight of |W|^2 against the squared errors.
    gram: X'X of the scaled rows, see `gram`.

  Returns:
    W, [D, c] float32.
  """
  pull = scaling.sum_over_blocks(functools.partial(_pull, scale), features, targets)
  return jnp.asarray(ridge(gram, pull, weight), jnp.float32)


@jax.jit
def project(state: State, rows: jax.Array) -> jax.Array:
  """XW of scaled rows X, [b, D] -> [b, c]."""
  return product(scaling.apply(state.scale, rows), state.projection)


@jax.jit
def _gram(scale, rows):
  """X'X of one block, [b, D] -> [D, D]."""
  x = scaling.apply(scale, rows)
  return product(x.T, x)


@jax.jit
def _pull(scale, rows, targets):
  """X'T of one block, [b, D], [b, c] -> [D, c]."""
  x = scaling.apply(scale, rows)
  return product(x.T, targets.astype(x.dtype))
