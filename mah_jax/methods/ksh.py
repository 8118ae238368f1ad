"""KSH, "Supervised Hashing with Kernels", Liu, Wang, Ji, Jiang and Chang, 2012."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import discrete
from mah_jax import errors
from mah_jax import options as options_lib
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.methods import kernel
from mah_jax.methods import linear

RIDGE = 1e-6      # added to K'K, which is nearly singular, in units of its mean eigenvalue
STEPS = 500       # a refinement makes at most so many
DOUBLINGS = 50    # a step doubles the Lipschitz constant at most so often
TOLERANCE = 1e-2  # change of the smooth cost, per labelled row, that ends a refinement


@dataclasses.dataclass(frozen=True)
class Options(kernel.Options):
  """The options of KSH; its authors' demo has 300 anchors."""
  labelled: int = options_lib.option(2000, 'Rows whose pairs are compared.', least=1)


class State(NamedTuple):
  """The hash function.

  anchors: drawn training rows, [a, D], and the width of the kernel.
  mean: mean of the kernel over all training rows, [a].
  vectors: weights of the anchors for each bit, [a, c].
  """
  anchors: kernel.Anchors
  mean: jax.Array
  vectors: jax.Array


class Residual(NamedTuple):
  """R = c S - sum_k b_k b_k' over the bits b_k learned so far, without a matrix of all pairs.

  of_row: number of each row's label set, [l].
  sets: c S of two label sets, [g, g].
  bits: the bits of each row, 0 where they are not yet learned, [l, c].
  """
  of_row: jax.Array
  sets: jax.Array
  bits: jax.Array


def make(options: Options) -> base.ShallowMethod:
  """Makes KSH: bits b = sgn(K a), one after the other, with BB' / c near S in {-1, +1}.

  The rows whose pairs are compared are drawn among the rows that have a label.
  """

  def fit(features, labels, c, key):
    known = np.flatnonzero(labels.any(axis=1))
    if not len(known):
      raise errors.InputError(f'KSH learns from labels, but none of {len(features)} rows has '
                              'one; use a method without labels, such as --method=itq.')
    anchor_key, row_key = jax.random.split(key)
    points = kernel.draw(features, options.anchors, anchor_key)
    anchors = kernel.make(points, kernel.mean_square_distance(features, points))
    mean = kernel.mean(anchors, features)
    rows = np.sort(jax.random.permutation(row_key, known)[:options.labelled])  # [l]
    k = kernel.apply(anchors, features[rows]) - mean
    return base.Fitted(State(anchors, mean, learn(k, similarity.group_rows(labels[rows]), c)))

  return base.ShallowMethod(fit, project, State)


@jax.jit
def project(state: State, rows: jax.Array) -> jax.Array:
  """The centred kernel of rows by the weights of the anchors, [b, D] -> [b, c]."""
  k = kernel.rbf(state.anchors, rows) - state.mean  # [b, a]
  return linear.product(k, state.vectors)


def learn(k: jax.Array, groups: similarity.Groups, c: int) -> jax.Array:
  """Learns c bits one by one, each fitted to the `Residual` that the earlier ones leave.

  Args:
    k: centred kernel of the labelled rows, [l, a].
    groups: their label sets.
    c: bits.

  Returns:
    Weights of the anchors for each bit, [a, c].
  """
  chex.assert_equal(len(k), len(groups.of_row))
  related = similarity.share_label(groups.sets, groups.sets)  # [g, g], of few labelled rows
  return _learn_bits(k, whitening(k), groups.of_row, related, c=c)


def whitening(k: jax.Array) -> np.ndarray:
  """T such that the columns of K T are orthonormal, but for the ridge. [l, a] -> [a, a].

  The host computes it in float64, since K'K is beyond float32.
  """
  k = np.asarray(k, np.float64)
  gram = k.T @ k
  gram += RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
  return np.linalg.inv(np.linalg.cholesky(gram)).T


@functools.partial(jax.jit, static_argnames='c')
def _learn_bits(k, whitener, of_row, related, *, c):
  """`learn` with T [a, a] of `whitening` and with S by label sets, `related` [g, g] bool."""
  whole = Residual(of_row, jnp.where(related, c, -c).astype(k.dtype),
                   jnp.zeros((len(k), c), k.dtype))

  def add_bit(residual, i):
    start = spectral_start(k, whitener, residual)
    vector, bits = better(k, residual, start, refine(k, residual, start))
    return residual._replace(bits=residual.bits.at[:, i].set(bits)), vector

  return jax.lax.scan(add_bit, whole, jnp.arange(c))[1].T


def apply(residual: Residual, x: jax.Array) -> jax.Array:
  """R x, [l] -> [l]."""
  by_set = linear.product(residual.sets, _set_sums(residual, x))  # [g]
  return by_set[residual.of_row] - linear.product(residual.bits, linear.product(x, residual.bits))


def spectral_start(k: jax.Array, whitener: jax.Array, residual: Residual) -> jax.Array:
  """The vector [a] with the largest (Ka)'R(Ka) among the vectors with |Ka|^2 = l."""
  a, c = k.shape[1], residual.bits.shape[1]
  sides = jnp.concatenate([_set_sums(residual, k).T, linear.product(k.T, residual.bits)], axis=1)
  sides = linear.product(whitener.T, sides)  # G [a, g + c], with T'K'RKT = GMG'
  core = jax.scipy.linalg.block_diag(residual.sets, -jnp.eye(c))  # M
  # The eigenvector lies in the span of G, and a small span makes the problem much smaller.
  span, sides = jnp.linalg.qr(sides) if len(core) < a else (jnp.eye(a), sides)
  _, axes = jnp.linalg.eigh(linear.product(sides, linear.product(core, sides.T)))  # ascending
  vector = linear.product(whitener, linear.product(span, axes[:, -1]))
  return vector * jnp.sqrt(len(k)) / jnp.linalg.norm(linear.product(k, vector))


def better(k: jax.Array, residual: Residual, start: jax.Array,
           refined: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The vector [a] whose bits b [l] have the larger b'Rb, and b; `start` if they are equal."""
  vectors = jnp.stack([start, refined])  # [2, a]
  bits = discrete.sign(linear.product(vectors, k.T))  # [2, l]
  best = jnp.argmax(jax.vmap(lambda b: linear.product(b, apply(residual, b)))(bits))
  return vectors[best], bits[best]


class _Climb(NamedTuple):
  """Nesterov's method after `count` steps; `delta` sets how far it looks ahead."""
  count: jax.Array
  point: jax.Array
  before: jax.Array
  delta: jax.Array
  delta_before: jax.Array
  lipschitz: jax.Array
  cost: jax.Array
  change: jax.Array


def refine(k: jax.Array, residual: Residual, start: jax.Array) -> jax.Array:
  """Lowers the smooth cost from `start` [a] by Nesterov's accelerated gradient -> [a]."""
  rows, size = k.shape
  chex.assert_shape([residual.of_row, start], [(rows,), (size,)])
  one = jnp.ones((), start.dtype)

  def point_of(vector):  # a and Ka, as steps are linear in both: K is multiplied once a step
    return jnp.concatenate([vector, linear.product(k, vector)])  # [a + l]

  def goes_on(now):
    return (now.count < STEPS) & (now.change > TOLERANCE * rows)

  def advance(now):
    probe = now.point + (now.delta_before - 1.0) / now.delta * (now.point - now.before)
    value, slope = cost_and_slope(probe[size:], residual)
    gradient = point_of(linear.product(slope, k))
    square = jnp.sum(gradient[:size] ** 2)
    # Rounding alone must not double the Lipschitz constant, which never comes down again.
    rounding = 4.0 * jnp.finfo(value.dtype).eps * jnp.abs(value)

    def descend(lipschitz):
      new = probe - gradient / lipschitz
      reached, _ = cost_and_slope(new[size:], residual)
      quadratic = value - square / (2.0 * lipschitz)  # its minimum, at `new`
      return lipschitz, new, reached, reached <= quadratic + rounding

    def too_flat(trial):
      lipschitz, _, _, bounded = trial
      return ~bounded & (lipschitz < 2.0**DOUBLINGS * now.lipschitz)

    lipschitz, new, reached, bounded = jax.lax.while_loop(
        too_flat, lambda trial: descend(2.0 * trial[0]), descend(now.lipschitz))
    return _Climb(
        now.count + 1, jnp.where(bounded, new, now.point), now.point,
        (1.0 + jnp.sqrt(1.0 + 4.0 * now.delta**2)) / 2.0, now.delta, lipschitz, reached,
        jnp.where(bounded, jnp.abs(reached - now.cost), 0.0))

  point = point_of(start)
  first = _Climb(jnp.zeros((), jnp.int32), point, point, one, 0.0 * one, one,
                 cost_and_slope(point[size:], residual)[0], jnp.inf * one)
  return jax.lax.while_loop(goes_on, advance, first).point[:size]


def cost_and_slope(values: jax.Array, residual: Residual) -> tuple[jax.Array, jax.Array]:
  """-f'Rf with the smooth bits f = 2 sigmoid(v) - 1 of values v [l], and its gradient in v."""
  smooth = jnp.tanh(0.5 * values)  # [l]
  pull = apply(residual, smooth)  # [l]
  # The 2 of the quadratic form and the 1/2 of f' = (1 - f^2) / 2 cancel.
  return -linear.product(smooth, pull), -pull * (1.0 - smooth**2)


def _set_sums(residual: Residual, x: jax.Array) -> jax.Array:
  """Sums over the rows of each label set, [l, ...] -> [g, ...]."""
  return jax.ops.segment_sum(x, residual.of_row, num_segments=len(residual.sets))


SPEC = base.Spec(make, Options, trains_network=False)
