"""LSH: bits by random hyperplanes.

M. Charikar, "Similarity Estimation Techniques from Rounding Algorithms", 2002.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import discrete
from mah_jax.methods import base
from mah_jax.methods import scaling


class State(NamedTuple):
  """Hyperplanes through one point.

  mean: that point: the mean of the training rows, or the origin, [D].
  projection: normals of the hyperplanes, one per bit, [D, c].
  """
  mean: jax.Array
  projection: jax.Array


def make(*, center: bool = False) -> base.ShallowMethod:
  """Makes LSH: bits are the sides of random hyperplanes on which a row lies.

  Args:
    center: lay the hyperplanes through the mean of the training rows. Published baselines lay
      them through the origin; features that are never negative then lie mostly on one side.
  """

  def fit(features, labels, c, key):
    del labels  # unsupervised
    size = features.shape[1]
    mean = scaling.center(features) if center else jnp.zeros(size)
    return State(mean, jax.random.normal(key, (size, c)))

  def encode(state, features):
    return scaling.by_blocks(lambda rows: _encode(state, rows), features)

  return base.ShallowMethod(fit, encode, learned=lambda state: None)


@jax.jit
def _encode(state: State, rows: np.ndarray) -> jax.Array:
  """[b, D] -> [b, c] int8."""
  values = jnp.matmul(rows - state.mean, state.projection, precision='highest')
  return discrete.sign(values).astype(jnp.int8)
