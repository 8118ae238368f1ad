"""ITQ: principal components, rotated towards +-1.

Y. Gong and S. Lazebnik, "Iterative Quantization: A Procrustean Approach to Learning Binary
Codes", 2011.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import discrete
from mah_jax import errors
from mah_jax.methods import base
from mah_jax.methods import scaling


class State(NamedTuple):
  """What turns a row into bits.

  mean: of the training rows, [D].
  projection: their first c principal directions, [D, c].
  rotation: R, orthogonal, [c, c].
  """
  mean: jax.Array
  projection: jax.Array
  rotation: jax.Array


def make(*, iterations: int = 50) -> base.ShallowMethod:
  """Makes ITQ: principal components, rotated so that rounding them to +-1 loses least.

  Args:
    iterations: alternations between codes and rotation.
  """

  def fit(features, labels, c, key):
    del labels  # unsupervised
    if features.shape[1] < c:
      raise errors.UsageError(f'ITQ makes at most one bit per feature: {c} bits of '
                              f'{features.shape[1]} features are too many; use shorter codes.')
    mean = scaling.center(features)
    projection = principal_directions(features, mean, c)
    start = jnp.linalg.svd(jax.random.normal(key, (c, c)))[0]
    projected = scaling.by_blocks(lambda rows: project(rows, mean, projection), features)
    return State(mean, projection, rotate(projected, start, iterations))

  def encode(state, features):
    return scaling.by_blocks(lambda rows: _encode(state, rows), features)

  return base.ShallowMethod(fit, encode, learned=lambda state: None)


def principal_directions(features: np.ndarray, mean: jax.Array, c: int) -> jax.Array:
  """Directions of largest variance, largest first, [n, D], [D] -> [D, c].

  The device multiplies; the host sums in float64 and finds the eigenvectors.
  """
  covariance = sum(np.asarray(_gram(rows, mean), np.float64)
                   for rows in scaling.blocks(features))  # [D, D]
  _, vectors = np.linalg.eigh(covariance)
  return jnp.asarray(vectors[:, ::-1][:, :c], jnp.float32)


@jax.jit
def project(features: jax.Array, mean: jax.Array, projection: jax.Array) -> jax.Array:
  """V = (X - mean) P: [b, D], [D], [D, c] -> [b, c]."""
  return jnp.matmul(features - mean, projection, precision='highest')


@jax.jit
def rotate(projected: jax.Array, start: jax.Array, iterations: int) -> jax.Array:
  """Minimises |B - VR| over codes B and rotations R, one after the other.

  Args:
    projected: V, [n, c].
    start: the first R, orthogonal, [c, c].
    iterations: how often each is set to its best.

  Returns:
    The last R, [c, c].
  """
  def step(_, rotation):
    codes = discrete.sign(jnp.matmul(projected, rotation, precision='highest'))
    return procrustes(projected, codes)

  return jax.lax.fori_loop(0, iterations, step, start)


def procrustes(source: jax.Array, target: jax.Array) -> jax.Array:
  """The orthogonal R that brings `source` R nearest to `target`: [n, c], [n, c] -> [c, c]."""
  left, _, right = jnp.linalg.svd(jnp.matmul(target.T, source, precision='highest'))
  return jnp.matmul(left, right, precision='highest').T


@jax.jit
def _gram(rows: np.ndarray, mean: jax.Array) -> jax.Array:
  """[b, D] -> [D, D]."""
  centered = rows - mean
  return jnp.matmul(centered.T, centered, precision='highest')


@jax.jit
def _encode(state: State, rows: np.ndarray) -> jax.Array:
  """[b, D] -> [b, c] int8."""
  projected = project(rows, state.mean, state.projection)
  values = jnp.matmul(projected, state.rotation, precision='highest')
  return discrete.sign(values).astype(jnp.int8)
