"""LFH: its update against double loops and against its likelihood, then the whole of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mah_jax import errors
from mah_jax import similarity
from mah_jax.data import digits
from mah_jax.evaluation import metrics
from mah_jax.methods import lfh
from mah_jax.methods import linear
from mah_jax.train import shallow


@pytest.fixture
def float64():
  with jax.enable_x64(True):
    yield


def _problem(seed, n=24, c=4, num_labels=3, size=1.0):
  """Latent factors and labels; the labels of odd seeds are sets, some of them empty."""
  rng = np.random.default_rng(seed)
  labels = np.eye(num_labels, dtype=np.uint8)[rng.integers(num_labels, size=n)]
  if seed % 2:
    labels = (rng.random((n, num_labels)) < 0.4).astype(np.uint8)
  return size * rng.normal(size=(n, c)), labels


def _step(latent, labels, sampled, beta):
  groups = similarity.group_rows(labels)
  return np.asarray(lfh.step(latent, sampled, groups.of_row, groups.sets, beta))


def _slow_step(latent, labels, sampled, beta):
  """The stochastic update as published, one pair at a time."""
  new, c = latent.copy(), latent.shape[1]
  hessian = -np.eye(c) / beta
  for j in sampled:
    hessian -= np.outer(latent[j], latent[j]) / 8
  for i in set(range(len(latent))) - set(map(int, sampled)):
    gradient = -latent[i] / beta
    for j in sampled:
      similar = float(np.any(labels[i] & labels[j]))
      gradient = gradient + (
          similar - 1 / (1 + np.exp(-latent[i] @ latent[j] / 2))) * latent[j]
    new[i] = latent[i] - gradient @ np.linalg.inv(hessian)
  return new


def _likelihood(latent, labels, beta, columns=None):
  """Log-likelihood and prior of the ordered pairs i != j; with columns, j is one of them."""
  total = -np.sum(latent**2) / (2 * beta)
  for i in range(len(latent)):
    for j in range(len(latent)):
      if i != j and (columns is None or (j in columns and i not in columns)):
        half = latent[i] @ latent[j] / 2
        weight = 1 if columns is None else 2  # the pair (j, i) is not visited
        total += weight * (np.any(labels[i] & labels[j]) * half - np.logaddexp(0, half))
  return total


@pytest.mark.parametrize('seed', range(4))
def test_step_equals_a_double_loop(seed, float64):
  latent, labels = _problem(seed)
  sampled = np.random.default_rng(seed).permutation(len(latent))[:5]
  np.testing.assert_allclose(_step(latent, labels, sampled, 7.5),
                             _slow_step(latent, labels, sampled, 7.5), rtol=1e-10)


def test_step_in_float32_is_the_same():
  latent, labels = _problem(1)
  np.testing.assert_allclose(_step(np.float32(latent), labels, np.arange(5), 7.5),
                             _slow_step(latent, labels, np.arange(5), 7.5), rtol=1e-4)


@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize('size', [0.1, 1.0, 8.0])
def test_full_update_never_lowers_the_likelihood(seed, size, float64):
  """Every row in turn, against all others."""
  latent, labels = _problem(seed, n=14, size=size)
  values = [_likelihood(latent, labels, 7.5)]
  for i in list(range(len(latent))) * 2:
    latent = _step(latent, labels, np.delete(np.arange(len(latent)), i), 7.5)
    values.append(_likelihood(latent, labels, 7.5))
  assert np.diff(values).min() >= -1e-9 * abs(values[0])
  assert values[-1] > values[0] + 1


@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize('size', [0.1, 1.0, 8.0])
def test_step_never_lowers_the_likelihood_of_the_sampled_columns(seed, size, float64):
  latent, labels = _problem(seed, size=size)
  columns = [3, 5, 17]
  new = _step(latent, labels, np.array(columns), 7.5)
  assert _likelihood(new, labels, 7.5, columns) > _likelihood(latent, labels, 7.5, columns)
  np.testing.assert_array_equal(new[columns], latent[columns])


def test_learning_is_a_step_per_iteration_with_rows_of_its_own(float64):
  latent, labels = _problem(1)
  groups = similarity.group_rows(labels)
  key, samples, expected = jax.random.key(3), [], latent
  for i in range(4):
    samples.append(np.asarray(jax.random.choice(
        jax.random.fold_in(key, i), len(latent), (6,), replace=False)))
    expected = _slow_step(expected, labels, samples[-1], 2.0)
  new = lfh.learn(latent, groups.of_row, groups.sets, 2.0, key, iterations=4, columns=6)
  np.testing.assert_allclose(new, expected, rtol=1e-8)
  assert len({tuple(sorted(rows)) for rows in samples}) == 4
  assert all(len(set(rows)) == 6 for rows in samples)


def _sizes(jaxpr):
  """Numbers of entries of all arrays that a program makes, loops included."""
  for equation in jaxpr.eqns:
    yield from (np.prod(var.aval.shape, dtype=int) for var in equation.outvars)
    for part in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, 'jaxpr')):
      if hasattr(part, 'jaxpr'):
        yield from _sizes(part.jaxpr)


def test_learning_makes_no_array_of_all_pairs_of_rows_or_of_label_sets():
  n, c, columns = 5000, 4, 7
  made = jax.make_jaxpr(lambda *arrays: lfh.learn(
      *arrays, 2.0, jax.random.key(0), iterations=3, columns=columns))(
          jnp.zeros((n, c)), jnp.zeros(n, jnp.int32), jnp.zeros((4000, 2)))
  assert n * columns == max(_sizes(made.jaxpr))


def _features(n=200, size=6, seed=0):
  rng = np.random.default_rng(seed)
  kind = rng.integers(3, size=n)
  x = np.maximum(rng.normal(size=(3, size))[kind] + 0.5 * rng.normal(size=(n, size)), 0)
  x[:, 2] *= 100.0  # scaled away
  x[:, 4] = 3.0     # constant
  return x.astype(np.float32), np.eye(3, dtype=np.uint8)[kind]


def _standard(x, train):
  deviation = train.std(axis=0, dtype=np.float64)
  return (x - train.mean(axis=0, dtype=np.float64)) / np.where(deviation == 0, 1, deviation)


def test_starts_from_principal_scores_and_regresses_them():
  """Without iterations all of fit and encode can be written down."""
  x, labels = _features()
  c, method = 3, lfh.make(lfh.Options(), iterations=0, lambda_=0.5)
  state, learned = method.fit(x, labels, c, jax.random.key(0))
  z = _standard(x, x)
  scores = z @ np.linalg.svd(z)[2][:c].T
  flips = np.sign(np.mean(np.asarray(learned) * np.sign(scores), axis=0))
  np.testing.assert_array_equal(learned, np.where(scores * flips >= 0, 1, -1))
  w = np.asarray(state.projection, np.float64)
  slope = z.T @ (z @ w - scores * flips) + 0.5 * len(x) / x.shape[1] * w
  np.testing.assert_allclose(slope, 0, atol=1e-2)
  queries, _ = _features(n=50, seed=1)
  np.testing.assert_array_equal(shallow.encode(method, state, queries)[0],
                                np.where(_standard(queries, x) @ w >= 0, 1, -1))


def test_more_bits_than_features_repeat_the_axes():
  axes = np.asarray(linear.principal_axes(np.diag([1.0, 4.0]), 3))
  np.testing.assert_array_equal(np.abs(axes), [[0, 1, 0], [1, 0, 1]])


@pytest.mark.parametrize('columns, used', [(0, 5), (64, 64)])
def test_prior_is_divided_by_the_bits_and_zero_columns_mean_c(monkeypatch, columns, used):
  asked = {}

  def learn(start, of_row, sets, beta, key, **numbers):
    asked.update(numbers, beta=beta)
    return start

  monkeypatch.setattr(lfh, 'learn', learn)
  lfh.make(lfh.Options(columns=columns)).fit(*_features(), 5, jax.random.key(0))
  assert asked == {'beta': 6.0, 'iterations': 50, 'columns': used}


def test_more_columns_than_rows_are_refused():
  with pytest.raises(errors.UsageError, match='sample 200 of 200 rows.*--columns from 1 to 199'):
    lfh.make(lfh.Options(columns=200)).fit(*_features(), 4, jax.random.key(0))


def test_digits():
  data = digits.load()
  x, labels = data.images.reshape(-1, 64).astype(np.float32) / 15, data.labels
  rows = np.random.default_rng(0).permutation(len(x))
  queries, database = rows[:100], rows[100:]
  method = lfh.make(lfh.Options(columns=64))
  state, learned = method.fit(x[database], labels[database], 8, jax.random.key(0))

  def score(codes, database_codes, rows):
    return metrics.evaluate(np.asarray(codes), np.asarray(database_codes), labels[rows],
                            labels[database])['map']

  encoded, _ = shallow.encode(method, state, x[queries])
  assert learned.dtype == encoded.dtype == np.int8
  assert score(learned[:200], learned, database[:200]) > 0.8
  assert score(encoded, learned, queries) > 0.6
  assert score(encoded, shallow.encode(method, state, x[database])[0], queries) > 0.45
