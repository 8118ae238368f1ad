"""SDH: codes from which a linear classifier reads the labels.

F. Shen, C. Shen, W. Liu and H. T. Shen, "Supervised Discrete Hashing", 2015.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import discrete
from mah_jax import errors
from mah_jax import options as options_lib
from mah_jax.methods import base
from mah_jax.methods import kernel
from mah_jax.methods import linear
from mah_jax.methods import scaling

TOLERANCE = 1e-5  # relative error of phi P, or change of P, at which the alternation ends


@dataclasses.dataclass(frozen=True)
class Options(kernel.Options):
  """The options of SDH."""
  sigma: float = options_lib.option(
      0.4, 'Width of the kernel; 0: the mean distance to the nearest anchor.', least=0)


class State(NamedTuple):
  """The hash function.

  anchors: the a anchors of the kernel map.
  projection: P, from the kernel map and a constant to bits, [a + 1, c].
  """
  anchors: kernel.Anchors
  projection: jax.Array


def make(options: Options, *, nu: float = 1e-5, lambda_w: float = 1.0, lambda_f: float = 1e-2,
         iterations: int = 5, sweeps: int = 10) -> base.ShallowMethod:
  """Makes SDH: min |Y - BW|^2 + lambda_w |W|^2 + nu |B - phi(X)P|^2 over B, W, P.

  Args:
    options: anchors and width of the kernel map phi.
    nu: how much the codes follow the hash function.
    lambda_w: ridge of the classifier W.
    lambda_f: ridge of the hash function P.
    iterations: alternations between B, W and P.
    sweeps: passes over the bits, at most, within one update of B.
  """

  def fit(features, labels, c, key):
    if options.sigma == 0 and len(features) <= options.anchors:
      raise errors.UsageError('SDH with --sigma=0 measures the distance to the nearest anchor, '
                              f'but all {len(features)} rows are anchors; use fewer --anchors, '
                              'or set --sigma.')
    draw_key, code_key = jax.random.split(key)
    points = kernel.draw(features, options.anchors, draw_key)
    width = (options.sigma or kernel.mean_nearest_distance(features, points)) ** 2
    anchors = kernel.make(points, width)
    phi = np.asarray(scaling.by_blocks(lambda rows: kernel_map(anchors, rows), features))
    start = discrete.sign(jax.random.normal(code_key, (len(phi), c)))
    codes, projection = alternate(phi, labels, np.asarray(start, np.float64))
    return base.Fitted(State(anchors, jnp.asarray(projection, jnp.float32)),
                       jnp.asarray(codes, jnp.int8))

  def alternate(phi, labels, codes):
    gram = _product(phi, phi)  # [a + 1, a + 1]
    w = regress(codes, labels, lambda_w)
    p = regress(phi, codes, lambda_f, gram)
    outputs = _outputs(phi, p)  # [n, c]
    for _ in range(iterations):
      codes = update_codes(codes, nu * outputs + labels @ w.T, w, sweeps)
      w = regress(codes, labels, lambda_w)
      before, p = p, regress(phi, codes, lambda_f, gram)
      outputs = _outputs(phi, p)
      if _small(codes - outputs, codes) or _small(p - before, before):
        break
    return codes, p

  return base.ShallowMethod(fit, project, State)


@jax.jit
def kernel_map(anchors: kernel.Anchors, features: jax.Array) -> jax.Array:
  """phi: similarities to the anchors and a constant 1, [b, D] -> [b, a + 1]."""
  return jnp.pad(kernel.rbf(anchors, features), ((0, 0), (0, 1)), constant_values=1.0)


def update_codes(codes: np.ndarray, pull: np.ndarray, w: np.ndarray,
                 sweeps: int) -> np.ndarray:
  """Sets bit after bit to its best value given the others, until none changes.

  For fixed W and P the objective is sum_i |W'b_i|^2 - 2 b_i.pull_i and a constant. It never
  rises, since each update starts from the last codes; the authors' script starts from zeros.
  A bit for which both values are equally good stays as it is.

  Args:
    codes: B, [n, c].
    pull: Q = nu phi(X)P + YW', [n, c].
    w: W, [c, L].
    sweeps: passes over the bits, at most.

  Returns:
    The new B, [n, c].
  """
  bits, pull = codes.T.copy(), pull.T.copy()  # [c, n]: a bit is a contiguous row
  others = w @ w.T  # [c, c]
  np.fill_diagonal(others, 0.0)  # a bit does not see itself
  for _ in range(sweeps):
    before = bits.copy()
    for k in range(len(bits)):
      value = pull[k] - others[k] @ bits  # [n]
      bits[k] = np.where(value == 0, bits[k], np.sign(value))
    if np.array_equal(bits, before):
      break
  return bits.T


def regress(x: np.ndarray, target: np.ndarray, weight: float,
            gram: np.ndarray | None = None) -> np.ndarray:
  """argmin_A |target - xA|^2 + weight |A|^2: [n, p], [n, r] -> [p, r].

  Sums over rows are in float64, for in float32 a weight of 1e-2 would be lost in them. `gram` is
  x'x, if it is known.
  """
  return linear.ridge(_product(x, x) if gram is None else gram, _product(x, target), weight)


def _product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """x'y in float64, a block of rows at a time, [n, p], [n, r] -> [p, r]."""
  return scaling.sum_over_blocks(
      lambda a, b: a.T.astype(np.float64) @ b.astype(np.float64), x, y)


def _outputs(phi: np.ndarray, p: np.ndarray) -> np.ndarray:
  """phi P in float64, a block of rows at a time, [n, a + 1], [a + 1, c] -> [n, c]."""
  return np.concatenate([rows @ p for rows in scaling.blocks(phi)])


def _small(difference: np.ndarray, whole: np.ndarray) -> bool:
  """Whether the norm of a difference is below TOLERANCE of the norm of the whole."""
  return np.linalg.norm(difference) < TOLERANCE * np.linalg.norm(whole)


@jax.jit
def project(state: State, rows: jax.Array) -> jax.Array:
  """phi P of rows, [b, D] -> [b, c]."""
  return linear.product(kernel_map(state.anchors, rows), state.projection)


SPEC = base.Spec(make, Options, trains_network=False)
