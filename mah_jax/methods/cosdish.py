"""COSDISH: "Column Sampling Based Discrete Supervised Hashing", Kang, Li, Zhou, AAAI 2016."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.methods import linear
from mah_jax.methods import scaling

TIE = 1e-5  # a vote closer to 0 than this leaves the old bit, as in the reference

Options = linear.ColumnOptions


def make(options: Options, *, iterations: int = 10, alternations: int = 3,
         ridge: float = 1.0) -> base.ShallowMethod:
  """Makes COSDISH: codes with BB' close to cS, by a few columns of S at a time.

  S is 1 for similar rows and -r for others, and sums to zero over the sampled columns.

  Args:
    options: how many rows are sampled per iteration, |Omega|; the reference samples c of them.
    iterations: samples drawn, T_sto.
    alternations: updates of the sampled rows and of all others per sample, T_alt.
    ridge: weight of |W|^2 in the regression from standardised features to codes, which encodes
      points never seen.
  """

  def fit(features, labels, c, key):
    chex.assert_equal(len(features), len(labels))
    codes = learn(labels, c, key, columns=options.sample_size(c, len(labels)),
                  iterations=iterations, alternations=alternations)
    scale = scaling.standardize(features)
    projection = linear.regress(scale, features, codes, ridge, linear.gram(scale, features))
    return base.Fitted(linear.State(scale, projection), jnp.asarray(codes))

  return base.ShallowMethod(fit, linear.project, linear.State)


def learn(labels: np.ndarray, c: int, key: jax.Array, *, columns: int, iterations: int,
          alternations: int) -> np.ndarray:
  """Codes [n, c] int8 of rows with 0/1 labels [n, L], from a random start; all in NumPy."""
  n = len(labels)
  groups = similarity.group_rows(labels)
  start_key, sample_key = jax.random.split(key)
  codes = np.asarray(jax.random.rademacher(start_key, (n, c), jnp.int8))
  for i in range(iterations):
    sampled = np.asarray(jax.random.choice(
        jax.random.fold_in(sample_key, i), n, (columns,), replace=False))
    for _ in range(alternations):
      codes = alternate(codes, sampled, groups)
  return codes


def alternate(codes: np.ndarray, sampled: np.ndarray, groups: similarity.Groups) -> np.ndarray:
  """Updates first the sampled rows, Omega, and then all others, Gamma.

  Rows with equal labels have equal rows of S, so sums over Gamma become sums over label sets.
  They are taken in float64, in which a tie is not mistaken for a vote.

  Args:
    codes: the codes so far, in {-1, +1}, [n, c] int8.
    sampled: row numbers, [m].
    groups: label sets of the n rows.

  Returns:
    The new codes, [n, c] int8.
  """
  of_row, sets = groups.of_row, groups.sets
  chex.assert_equal(len(of_row), len(codes))
  levels = similarity.levels(groups, sampled, 'balanced')
  similar = similarity.share_label(sets[of_row[sampled]], sets)
  values = (of_set[of_row[sampled], None] for of_set in levels)
  to_sets = np.where(similar, *values)  # S' of each label set, [m, g]

  rest = codes.astype(np.float64)
  rest[sampled] = 0.0  # B_Gamma
  sums = np.stack([np.bincount(of_row, bit, len(sets)) for bit in rest.T], axis=1)  # [g, c]
  chosen = solve_sampled(to_sets[:, of_row[sampled]], to_sets @ sums, rest.T @ rest)  # [m, c]

  votes = to_sets.T @ chosen  # S B_Omega of each label set, [g, c]
  signs = np.where(np.abs(votes) < TIE, 0, np.sign(votes)).astype(np.int8)[of_row]  # [n, c]
  new = np.where(signs == 0, codes, signs)
  new[sampled] = chosen
  return new


def solve_sampled(within: np.ndarray, pull: np.ndarray, gram: np.ndarray) -> np.ndarray:
  """Codes of the sampled rows, bit after bit, each fitted to the part of cS still unexplained.

  Args:
    within: S among the sampled rows, [m, m].
    pull: S_Gamma' B_Gamma, [m, c].
    gram: B_Gamma' B_Gamma, [c, c].

  Returns:
    B_Omega, [m, c] in {-1, +1}.
  """
  m, c = pull.shape
  chex.assert_shape([within, gram], [(m, m), (c, c)])
  codes = np.empty((m, c))
  for k in range(c):
    codes[:, k] = solve_bit(*bit_problem(codes[:, :k], within, pull, gram))
  return codes


def bit_problem(done: np.ndarray, within: np.ndarray, pull: np.ndarray,
                gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The next bit b of the sampled rows: min b'Qb + b'p, given the bits done [m, k].

  Q = -2 (c S_Omega - sum_j b_j b_j') without its diagonal, to which every b adds the same, and
  p = -2 (c S_Gamma - sum_j d_j b_j')' d_k with d for bits of Gamma; both sums go over j < k.
  Other arguments are those of `solve_sampled`.

  Returns:
    Q, [m, m]; p, [m].
  """
  k, c = done.shape[1], len(gram)
  quadratic = -2.0 * (c * within - done @ done.T)
  np.fill_diagonal(quadratic, 0.0)
  return quadratic, -2.0 * (c * pull[:, k] - done @ gram[:k, k])


def solve_bit(quadratic: np.ndarray, slope: np.ndarray) -> np.ndarray:
  """Nearly minimises b'Qb + b'p over b in {-1, +1}^m with floor(m / 2) bits +1.

  With b = 2x - 1 and one more x that is always 1, this is 4 x'Fx + constant, F as below, with
  H = round((m + 1) / 2) ones, half rounded up. Take points whose inner products are aI - F,
  with an a that makes this positive definite. As F has no diagonal, two points are 2a + 2F_ij
  apart (squared), and the scatter of H points, the sum of their squared distances to their
  centroid, is (H - 1) a + x'Fx / H: the programme looks for the H points of least scatter.
  Each point in turn is a centre and takes the fixed point and the H - 1 others nearest to it;
  the best of these sets has at most twice the least scatter, whatever a. Neither a nor the
  points need to be computed.

  Args:
    quadratic: Q, symmetric with zero diagonal, [m, m].
    slope: p, [m].

  Returns:
    b, [m]; where points are equally near, the first ones are taken.
  """
  m = len(slope)
  chex.assert_shape(quadratic, (m, m))
  f = np.column_stack([quadratic, slope / 4.0 - quadratic.sum(axis=1) / 2.0])  # [m, m + 1]
  # Whole numbers add up exactly, so that no rounding error breaks a tie.
  f = np.rint(f * (2.0**36 / (np.abs(f).max() or 1.0)))
  distance = f.copy()
  np.fill_diagonal(distance, -np.inf)  # a centre, one per column, is nearest to itself
  nearest = np.argsort(distance, axis=0, kind='stable')[:m // 2]
  x = np.zeros((m, m + 1))
  np.put_along_axis(x, nearest, 1.0, axis=0)
  cost = np.sum(x * (f[:, :m] @ x + 2.0 * f[:, m:]), axis=0)  # x'Fx, [m + 1]
  return 2.0 * x[:, np.argmin(cost)] - 1.0


SPEC = base.Spec(make, Options, trains_network=False)
