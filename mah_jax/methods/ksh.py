"""KSH, "Supervised Hashing with Kernels", Liu, Wang, Ji, Jiang and Chang, 2012."""

from __future__ import annotations

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import discrete
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.methods import kernel
from mah_jax.methods import scaling

RIDGE = 1e-6      # of K'K, which is nearly singular, in units of its mean eigenvalue
STEPS = 500       # of a refinement at most
DOUBLINGS = 50    # of the Lipschitz constant in one step at most
TOLERANCE = 1e-2  # change of the smooth cost, per labelled row, that ends a refinement


class State(NamedTuple):
  """What was learned.

  anchors: drawn training rows, [a, D], and the width of the kernel.
  mean: mean of the kernel over all training rows, [a].
  vectors: weights of the anchors for each bit, [a, c].
  """
  anchors: kernel.Anchors
  mean: jax.Array
  vectors: jax.Array


def make(*, anchors: int = 1000, labelled: int = 2000) -> base.ShallowMethod:
  """Makes KSH: bits b = sgn(K a), one after the other, with BB' / c near S in {-1, +1}.

  Args:
    anchors: training rows that the kernel compares with; the KSH authors' demo has 300.
    labelled: rows whose pairs are compared, drawn among those that have a label. Memory grows
      with their square.
  """

  def fit(features, labels, c, key):
    anchor_key, row_key = jax.random.split(key)
    points = kernel.draw(features, anchors, anchor_key)
    drawn = kernel.Anchors(points, kernel.mean_square_distance(features, points))
    total = sum(kernel.rbf(drawn, x).sum(axis=0) for x in scaling.blocks(features))
    mean = total / len(features)  # [a]
    known = np.flatnonzero(labels.any(axis=1))
    rows = np.sort(jax.random.permutation(row_key, known)[:labelled])  # [l]
    groups = similarity.group_rows(labels[rows])
    similar = groups.related[groups.of_row][:, groups.of_row]  # [l, l]
    vectors = learn(kernel.apply(drawn, features[rows]) - mean, similar, c)
    return State(drawn, mean, vectors)

  def encode(state, features):
    return scaling.by_blocks(lambda rows: _encode(state, rows), features)

  return base.ShallowMethod(fit, encode, learned=lambda state: None)


@jax.jit
def _encode(state: State, features: jax.Array) -> jax.Array:
  """Codes of rows, [b, D] -> [b, c] int8."""
  k = kernel.rbf(state.anchors, features) - state.mean  # [b, a]
  return discrete.sign(_product(k, state.vectors)).astype(jnp.int8)


def learn(k: jax.Array, similar: np.ndarray, c: int) -> jax.Array:
  """Finds c bits one by one, each fitting what the earlier ones left of c S.

  Args:
    k: centred kernel of the labelled rows, [l, a].
    similar: which of them are similar, [l, l] bool.
    c: bits.

  Returns:
    Weights of the anchors for each bit, [a, c].
  """
  return _learn_bits(k, whitening(k), similar, c=c)


def whitening(k: jax.Array) -> np.ndarray:
  """T such that the columns of K T are orthonormal, but for the ridge. [l, a] -> [a, a].

  In float64 on the host, since K'K is beyond float32.
  """
  k = np.asarray(k, np.float64)
  gram = k.T @ k
  gram += RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
  return np.linalg.inv(np.linalg.cholesky(gram)).T


@functools.partial(jax.jit, static_argnames='c')
def _learn_bits(k, whitener, similar, *, c):
  white = _product(k, whitener)  # [l, a]
  residual = jnp.where(similar, c, -c).astype(k.dtype)  # c S, [l, l]

  def add_bit(residual, _):
    start = spectral_start(k, whitener, white, residual)
    vector, bits = better(k, residual, start, refine(k, residual, start))
    return residual - jnp.outer(bits, bits), vector

  return jax.lax.scan(add_bit, residual, length=c)[1].T


def spectral_start(k: jax.Array, whitener: jax.Array, white: jax.Array,
                   residual: jax.Array) -> jax.Array:
  """The vector [a] with the largest (Ka)'R(Ka) among those with |Ka|^2 = l."""
  _, axes = jnp.linalg.eigh(_product(white.T, _product(residual, white)))  # ascending
  vector = _product(whitener, axes[:, -1])
  return vector * jnp.sqrt(len(k)) / jnp.linalg.norm(_product(k, vector))


def better(k: jax.Array, residual: jax.Array, start: jax.Array,
           refined: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The vector [a] whose bits b [l] have the larger b'Rb, and b; `start` if they are equal."""
  vectors = jnp.stack([start, refined])  # [2, a]
  bits = discrete.sign(_product(vectors, k.T))  # [2, l]
  best = jnp.argmax(jnp.sum(bits * _product(bits, residual), axis=1))
  return vectors[best], bits[best]


class _Climb(NamedTuple):
  """Nesterov's method after `count` steps; `delta` sets how far it looks ahead."""
  count: jax.Array
  vector: jax.Array
  before: jax.Array
  delta: jax.Array
  delta_before: jax.Array
  lipschitz: jax.Array
  cost: jax.Array
  change: jax.Array


def refine(k: jax.Array, residual: jax.Array, start: jax.Array) -> jax.Array:
  """Lowers the smooth cost from `start` [a] by Nesterov's accelerated gradient -> [a]."""
  chex.assert_shape([residual, start], [(len(k), len(k)), (k.shape[1],)])
  one = jnp.ones((), start.dtype)

  def goes_on(now):
    return (now.count < STEPS) & (now.change > TOLERANCE * len(k))

  def advance(now):
    probe = now.vector + (now.delta_before - 1.0) / now.delta * (now.vector - now.before)
    value, slope = cost_and_gradient(probe, k, residual)
    # Rounding alone must not double the Lipschitz constant, which never comes down again.
    rounding = 4.0 * jnp.finfo(value.dtype).eps * jnp.abs(value)

    def descend(lipschitz):
      new = probe - slope / lipschitz
      reached = cost_and_gradient(new, k, residual)[0]
      quadratic = value - slope @ slope / (2.0 * lipschitz)  # its minimum, at `new`
      return lipschitz, new, reached, reached <= quadratic + rounding

    def too_flat(trial):
      lipschitz, _, _, bounded = trial
      return ~bounded & (lipschitz < 2.0**DOUBLINGS * now.lipschitz)

    lipschitz, new, reached, bounded = jax.lax.while_loop(
        too_flat, lambda trial: descend(2.0 * trial[0]), descend(now.lipschitz))
    return _Climb(
        now.count + 1, jnp.where(bounded, new, now.vector), now.vector,
        (1.0 + jnp.sqrt(1.0 + 4.0 * now.delta**2)) / 2.0, now.delta, lipschitz, reached,
        jnp.where(bounded, jnp.abs(reached - now.cost), 0.0))

  first = _Climb(jnp.zeros((), jnp.int32), start, start, one, 0.0 * one, one,
                 cost_and_gradient(start, k, residual)[0], jnp.inf * one)
  return jax.lax.while_loop(goes_on, advance, first).vector


def cost_and_gradient(vector: jax.Array, k: jax.Array,
                      residual: jax.Array) -> tuple[jax.Array, jax.Array]:
  """-f'Rf with the smooth bits f = 2 sigmoid(Ka) - 1 [l], and its gradient in a [a]."""
  smooth = jnp.tanh(0.5 * _product(k, vector))  # [l]
  pull = _product(residual, smooth)  # [l]
  # The 2 of the quadratic form and the 1/2 of f' = (1 - f^2) / 2 cancel.
  return -smooth @ pull, -_product(pull * (1.0 - smooth**2), k)


_product = functools.partial(jnp.matmul, precision='highest')
