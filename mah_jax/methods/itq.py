"""ITQ: principal components, rotated towards +-1.

Y. Gong and S. Lazebnik, "Iterative Quantization: A Procrustean Approach to Learning Binary
Codes", 2011.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mah_jax import discrete
from mah_jax import errors
from mah_jax.methods import base
from mah_jax.methods import linear
from mah_jax.methods import scaling


class State(NamedTuple):
  """The hash function: principal components of a row and their rotation.

  principal: the centring of features, by the mean of the training rows, and the first c principal
    axes of these rows.
  rotation: R, orthogonal, [c, c].
  """
  principal: linear.State
  rotation: jax.Array


def make(options: base.NoOptions, *, iterations: int = 50) -> base.ShallowMethod:
  """Makes ITQ: principal components, rotated so that rounding them to +-1 loses least.

  Args:
    options: none.
    iterations: alternations between codes and rotation.
  """
  del options

  def fit(features, labels, c, key):
    del labels  # unsupervised
    if features.shape[1] < c:
      raise errors.UsageError(f'ITQ makes at most one bit per feature: {c} bits of '
                              f'{features.shape[1]} features are too many; give shorter '
                              '--code_lengths.')
    scale = scaling.center(features)
    axes = linear.principal_axes(linear.gram(scale, features), c)
    start = jnp.linalg.svd(jax.random.normal(key, (c, c)))[0]
    principal = linear.State(scale, axes)
    projected = scaling.by_blocks(lambda rows: linear.project(principal, rows), features)
    return base.Fitted(State(principal, rotate(projected, start, iterations)))

  return base.ShallowMethod(fit, project, State)


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
    codes = discrete.sign(linear.product(projected, rotation))
    return procrustes(projected, codes)

  return jax.lax.fori_loop(0, iterations, step, start)


def procrustes(source: jax.Array, target: jax.Array) -> jax.Array:
  """The orthogonal R that brings `source` R nearest to `target`: [n, c], [n, c] -> [c, c]."""
  left, _, right = jnp.linalg.svd(linear.product(target.T, source))
  return linear.product(left, right).T


@jax.jit
def project(state: State, rows: jax.Array) -> jax.Array:
  """The rotated principal components of rows, [b, D] -> [b, c]."""
  return linear.product(linear.project(state.principal, rows), state.rotation)


SPEC = base.Spec(make, trains_network=False, supervised=False)
