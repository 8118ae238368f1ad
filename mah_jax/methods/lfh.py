"""LFH, "Supervised Hashing with Latent Factor Models", Zhang, Zhang, Li and Guo, 2014."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp

from mah_jax import discrete
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.methods import linear
from mah_jax.methods import scaling

Options = linear.ColumnOptions


def make(options: Options, *, iterations: int = 50, beta: float = 30.0,
         lambda_: float = 1.0) -> base.ShallowMethod:
  """Makes LFH: similar rows get latent factors u with a large sigmoid(u_i . u_j / 2).

  Args:
    options: how many rows are sampled per iteration, against which the others are updated. The
      reference's rule, c of them, is unstable at few bits; max(64, c) is better.
    iterations: updates of all latent factors.
    beta: variance of the prior on a latent factor, times c.
    lambda_: ridge of the regression from features to latent factors, times D / n.
  """

  def fit(features, labels, c, key):
    n, size = features.shape
    columns = options.sample_size(c, n)
    groups = similarity.group_rows(labels)
    scale = scaling.standardize(features)
    gram = linear.gram(scale, features)
    principal = linear.State(scale, linear.principal_axes(gram, c))
    start = scaling.by_blocks(lambda rows: linear.project(principal, rows), features)
    latent = learn(start, groups.of_row, groups.sets, beta / c, key,
                   iterations=iterations, columns=columns)
    projection = linear.regress(scale, features, latent, lambda_ * n / size, gram)
    return base.Fitted(linear.State(scale, projection), discrete.to_codes(latent))

  return base.ShallowMethod(fit, linear.project, linear.State)


@functools.partial(jax.jit, static_argnames=('iterations', 'columns'))
def learn(latent: jax.Array, of_row: jax.Array, sets: jax.Array, beta: jax.Array,
          key: jax.Array, *, iterations: int, columns: int) -> jax.Array:
  """Updates latent factors [n, c], each time against `columns` random rows; see `step`."""

  def iterate(i, latent):
    sampled = jax.random.choice(
        jax.random.fold_in(key, i), len(latent), (columns,), replace=False)
    return step(latent, sampled, of_row, sets, beta)

  return jax.lax.fori_loop(0, iterations, iterate, latent)


@jax.jit
def step(latent: jax.Array, sampled: jax.Array, of_row: jax.Array, sets: jax.Array,
         beta: jax.Array) -> jax.Array:
  """Moves all rows but the sampled ones to the top of a quadratic below their likelihood.

  Given the sampled rows j the others are independent. With s in {0, 1} and t = u_i . u_j / 2
  row i has log-likelihood 2 sum_j [s t - log(1 + e^t)] - |u_i|^2 / (2 beta). Since
  sigmoid' <= 1/4, its Hessian is nowhere below -sum_j u_j u_j' / 8 - I / beta, so that the
  step never lowers it.

  Args:
    latent: latent factors u, [n, c].
    sampled: row numbers, [m].
    of_row: number of each row's label set, [n]; see `similarity.Groups`.
    sets: the label sets, [g, L].
    beta: variance of the prior.

  Returns:
    The new latent factors, [n, c].
  """
  n, c = latent.shape
  chex.assert_shape(of_row, (n,))
  u = latent[sampled]  # [m, c]
  similar = similarity.share_label(sets, sets[of_row[sampled]])[of_row]  # [n, m]
  chance = jax.nn.sigmoid(0.5 * linear.product(latent, u.T))  # [n, m]
  gradient = linear.product(similar - chance, u) - latent / beta  # [n, c]
  curvature = linear.product(u.T, u) / 8.0 + jnp.eye(c) / beta  # [c, c]
  moved = latent + jax.scipy.linalg.solve(curvature, gradient.T, assume_a='pos').T
  return moved.at[sampled].set(u)


SPEC = base.Spec(make, Options, trains_network=False)
