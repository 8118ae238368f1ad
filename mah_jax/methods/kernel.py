"""The anchor kernel of SDH and KSH: Gaussian similarities of unit rows to a few drawn ones."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import errors
from mah_jax import options as options_lib
from mah_jax.methods import scaling

ROUNDING = 1e-6  # the squared distance of equal unit rows is at most this in float32

Array = jax.Array | np.ndarray


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of methods with an anchor kernel."""
  anchors: int = options_lib.option(1000, 'Rows that the kernel compares with.', least=1)

  def __post_init__(self):
    options_lib.check(self)


class Anchors(NamedTuple):
  """The rows that the kernel compares with.

  points: rows of length 1, [a, D] float32.
  width: the number that divides the squared distance, float32: sigma^2 in SDH, sigma in KSH.
  """
  points: jax.Array
  width: jax.Array


def draw(features: Array, count: int, key: jax.Array) -> jax.Array:
  """Different rows of features [n, D], or all when there are fewer, made unit, [a, D]."""
  n = len(features)
  rows = np.sort(jax.random.permutation(key, n)[:count])  # in order, a file is read faster
  return scaling.unit_rows(features[rows])


def make(points: jax.Array, width: float) -> Anchors:
  """Anchors with points [a, D]; refuses a width that is no more than a distance's rounding."""
  if width <= ROUNDING:
    raise errors.InputError(f'A kernel of width {float(width):.1e} tells no rows apart, as '
                            'they equal the anchors or the width is too small; use fewer '
                            '--anchors, other features or, for sdh, a larger --sigma.')
  return Anchors(points, jnp.float32(width))


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


def mean(anchors: Anchors, features: Array) -> jax.Array:
  """Mean of `rbf` over rows, a block at a time, [n, D] -> [a]."""
  total = scaling.sum_over_blocks(lambda rows: rbf(anchors, rows).sum(axis=0), features)
  return jnp.asarray(total / len(features), jnp.float32)


def mean_square_distance(features: Array, points: jax.Array) -> float:
  """Mean of |x - a|^2 over unit rows x of features [n, D] and anchors a [a, D].

  It is mean |x|^2 + mean |a|^2 - 2 (mean x).(mean a), so that no pair is looked at.
  """
  square, total = 0.0, 0.0
  for rows in scaling.blocks(features):
    x = np.asarray(scaling.unit_rows(rows), np.float64)
    square, total = square + np.sum(x**2), total + x.sum(axis=0)
  a = np.asarray(points, np.float64)
  n = len(features)
  return square / n + np.mean(np.sum(a**2, axis=1)) - 2.0 * total / n @ a.mean(axis=0)


def mean_nearest_distance(features: Array, points: jax.Array) -> jax.Array:
  """Mean over rows [n, D] of the distance to the nearest anchor of [a, D], a scalar."""
  return jnp.sqrt(scaling.by_blocks(
      lambda rows: square_distances(rows, points).min(axis=1), features)).mean()
