"""The anchor kernel of SDH and KSH: Gaussian similarities of unit rows to a few drawn ones."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax.methods import scaling

Array = jax.Array | np.ndarray


class Anchors(NamedTuple):
  """What the kernel compares with.

  points: rows of length 1, [a, D] float32.
  width: divides the squared distance, float32: sigma^2 in SDH, sigma in KSH.
  """
  points: jax.Array
  width: jax.Array


def draw(features: Array, count: int, key: jax.Array) -> jax.Array:
  """Different rows of features [n, D], or all when there are fewer, made unit, [a, D]."""
  n = len(features)
  rows = np.sort(jax.random.permutation(key, n)[:count])  # in order, a file is read faster
  return scaling.unit_rows(features[rows])


@jax.jit
def square_distances(features: Array, points: jax.Array) -> jax.Array:
  """Squared distances of unit rows, [b, D], anchors [a, D] -> [b, a]."""
  x = scaling.unit_rows(features)
  product = jnp.matmul(x, points.T, precision='highest')
  squares = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(points**2, axis=1)
  return jnp.maximum(squares - 2.0 * product, 0.0)


@jax.jit
def rbf(anchors: Anchors, features: Array) -> jax.Array:
  """exp(-|x - a|^2 / (2 width)) of the unit rows x of features, [b, D] -> [b, a]."""
  return jnp.exp(-square_distances(features, anchors.points) / (2.0 * anchors.width))


def apply(anchors: Anchors, features: Array) -> jax.Array:
  """`rbf` of any number of rows, a block at a time, [n, D] -> [n, a]."""
  return scaling.by_blocks(lambda rows: rbf(anchors, rows), features)


def mean_square_distance(features: Array, points: jax.Array) -> jax.Array:
  """Mean of |x - a|^2 over rows [n, D] and anchors [a, D], a scalar."""
  return scaling.by_blocks(
      lambda rows: square_distances(rows, points).mean(axis=1), features).mean()


def mean_nearest_distance(features: Array, points: jax.Array) -> jax.Array:
  """Mean over rows [n, D] of the distance to the nearest anchor of [a, D], a scalar."""
  return jnp.sqrt(scaling.by_blocks(
      lambda rows: square_distances(rows, points).min(axis=1), features)).mean()
