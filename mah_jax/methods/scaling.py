"""Scaling of features by the statistics of the training rows, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import errors

Array = jax.Array | np.ndarray

BLOCK = 4096  # rows at a time, so that there is no second copy of all features


class Scaling(NamedTuple):
  """x -> (x - mean) / deviation, column by column.

  mean: the mean of the training rows, or 0 where they are not centred, [D] float32.
  deviation: their standard deviation, 1 for a column that never changes, or 1 where they are not
    standardised, [D] float32.
  """
  mean: jax.Array
  deviation: jax.Array


def keep(features: Array) -> Scaling:
  """The scaling that changes nothing, for rows [n, D]."""
  size = features.shape[1]
  return Scaling(jnp.zeros(size), jnp.ones(size))


def center(features: Array) -> Scaling:
  """The scaling to columns of mean 0, from training rows [n, D]."""
  mean = _mean(features)
  return Scaling(jnp.asarray(mean, jnp.float32), jnp.ones(len(mean)))


def standardize(features: Array) -> Scaling:
  """The scaling to columns of mean 0 and variance 1, from training rows [n, D]."""
  mean = _mean(features)
  square = sum_over_blocks(lambda rows: np.square(rows - mean).sum(axis=0), features)
  deviation = np.sqrt(square / len(features))
  deviation[deviation == 0] = 1.0
  return Scaling(jnp.asarray(mean, jnp.float32), jnp.asarray(deviation, jnp.float32))


@jax.jit
def apply(scaling: Scaling, features: Array) -> jax.Array:
  """Scales rows, [b, D] -> [b, D]; a whole dataset is better scaled within `by_blocks`."""
  return (features - scaling.mean) / scaling.deviation


@jax.jit
def unit_rows(features: Array) -> jax.Array:
  """Rows divided by their lengths, [b, D] -> [b, D]; a row of zeros stays one."""
  length = jnp.linalg.norm(features, axis=1, keepdims=True)  # [b, 1]
  return features / jnp.where(length == 0, 1.0, length)


def blocks(features: Array) -> Iterator[np.ndarray]:
  """The rows of features [n, D] in order, at most BLOCK at a time; all must be finite.

  Where there are no rows, there is one block of none.
  """
  for start in range(0, max(1, len(features)), BLOCK):
    rows = np.asarray(features[start:start + BLOCK])
    finite = np.isfinite(rows)
    if not finite.all():
      row = start + int(np.argmin(finite.all(axis=1)))
      raise errors.InputError(
          f'Row {row} of {len(features)} has features that are infinite or no numbers; '
          'look at its image, and extract them anew.')
    yield rows


def by_blocks(function: Callable[[np.ndarray], jax.Array], features: Array) -> jax.Array:
  """Applies a function of rows [b, D] -> [b, ...] to all rows of [n, D] -> [n, ...]."""
  # Without waiting, the device would be handed copies of all blocks at once.
  return jnp.concatenate([jax.block_until_ready(function(rows)) for rows in blocks(features)])


def sum_over_blocks(function: Callable[..., Array], *arrays: Array) -> np.ndarray:
  """The sum in float64 of a function of the blocks of arrays [n, ...] that have equal rows."""
  return sum(np.asarray(function(*rows), np.float64)
             for rows in zip(*map(blocks, arrays), strict=True))


def _mean(features: Array) -> np.ndarray:
  """Column means in float64, in which the sum of many rows stays exact. [n, D] -> [D]."""
  return sum_over_blocks(lambda rows: rows.sum(axis=0, dtype=np.float64), features) / len(features)
