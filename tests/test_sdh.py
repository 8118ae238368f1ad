"""SDH: each of its three steps against a slow reference, then the whole of it."""

import itertools

import jax
import numpy as np
import pytest

from mah_jax import errors
from mah_jax.methods import kernel
from mah_jax.methods import scaling
from mah_jax.methods import sdh
from mah_jax.train import shallow


def _data(n=60, size=8, num_labels=4, multi=False, seed=0):
  rng = np.random.default_rng(seed)
  labels = np.eye(num_labels, dtype=np.uint8)[rng.integers(num_labels, size=n)]
  if multi:
    labels = (rng.random((n, num_labels)) < 0.4).astype(np.uint8)
  centers = np.random.default_rng(99).normal(size=(num_labels, size))
  x = np.maximum(labels @ centers + 0.1 * rng.normal(size=(n, size)), 0)
  return x.astype(np.float32), labels


def _problem(seed, n=30, c=5, num_labels=4):
  """Codes, pull and W of one update of B."""
  rng = np.random.default_rng(seed)
  return (rng.choice([-1.0, 1.0], (n, c)), rng.normal(size=(n, c)),
          rng.normal(size=(c, num_labels)))


def _objective(codes, pull, w):
  return sum(np.sum((b @ w)**2) - 2 * np.sum(b * q) for b, q in zip(codes, pull))


def _slow_update(codes, pull, w, sweeps):
  """The update of B, one bit of one row at a time."""
  codes = np.array(codes)
  for row, q in zip(codes, pull):
    for _ in range(sweeps):
      for k in range(len(row)):
        value = q[k] - sum(row[j] * np.dot(w[j], w[k]) for j in range(len(row)) if j != k)
        row[k] = 1 if value > 0 else -1 if value < 0 else row[k]
  return codes


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('sweeps', [1, 2, 10])
def test_code_update_equals_a_double_loop(seed, sweeps):
  problem = _problem(seed, c=2 + 3 * seed)
  np.testing.assert_array_equal(sdh.update_codes(*problem, sweeps),
                                _slow_update(*problem, sweeps))


@pytest.mark.parametrize('seed', range(4))
def test_no_sweep_raises_the_objective(seed):
  codes, pull, w = _problem(seed, n=100, c=8)
  values = [_objective(codes, pull, w)]
  for _ in range(6):
    codes = sdh.update_codes(codes, pull, w, 1)
    values.append(_objective(codes, pull, w))
  assert values[1] < values[0]
  assert all(b <= a + 1e-9 * abs(a) for a, b in itertools.pairwise(values))
  np.testing.assert_array_equal(codes, sdh.update_codes(codes, pull, w, 10))  # at rest


def test_no_single_bit_could_be_better():
  codes, pull, w = _problem(5)
  new = sdh.update_codes(codes, pull, w, 100)
  best = _objective(new, pull, w)
  for i, k in np.ndindex(new.shape):
    flipped = new.copy()
    flipped[i, k] *= -1
    assert _objective(flipped, pull, w) > best


def test_a_bit_without_preference_stays():
  codes = np.array([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
  pull = np.array([[0.0, 0.0], [0.0, -2.0], [3.0, 0.0]])
  new = sdh.update_codes(codes, pull, np.eye(2), 10)  # bits do not see each other
  assert new.tolist() == [[1, -1], [-1, -1], [1, 1]]
  assert codes.tolist() == [[1, -1], [-1, 1], [1, 1]]


@pytest.mark.parametrize('weight', [1.0, 1e-2])
def test_regression_has_no_gradient(monkeypatch, weight):
  monkeypatch.setattr(scaling, 'BLOCK', 7)
  rng = np.random.default_rng(0)
  x, target = rng.normal(size=(40, 6)).astype(np.float32), rng.choice([-1, 1], (40, 3))
  a = sdh.regress(x, target, weight)
  gradient = 2 * x.T.astype(np.float64) @ (x @ a - target) + 2 * weight * a
  np.testing.assert_allclose(gradient, 0, atol=1e-10)
  np.testing.assert_allclose(
      sdh.regress(x, target, weight, x.T.astype(np.float64) @ x), a, rtol=1e-10)


def test_regression_keeps_a_small_weight_among_large_sums():
  # Both columns are all but equal: the weight alone parts 1 evenly between them.
  x = np.full((50_000, 2), 30.0, np.float32)
  np.testing.assert_allclose(sdh.regress(x, np.full((50_000, 1), 30.0), 1e-2), 0.5, rtol=1e-4)


def test_kernel_map_ends_with_a_constant():
  x, _ = _data()
  anchors = kernel.Anchors(kernel.draw(x, 5, jax.random.key(0)), np.float32(0.16))
  phi = np.asarray(sdh.kernel_map(anchors, x))
  assert phi.shape == (60, 6)
  np.testing.assert_array_equal(phi[:, -1], 1)
  np.testing.assert_allclose(phi[:, :-1], kernel.rbf(anchors, x), rtol=1e-6)


def _slow_phi(x, points, sigma):
  unit = x / np.maximum(np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True), 1e-30)
  return np.array([[np.exp(-np.sum((u - a)**2) / (2 * sigma**2)) for a in points] + [1.0]
                   for u in unit])


def _slow_ridge(x, target, weight):
  return np.linalg.inv(x.T @ x + weight * np.eye(x.shape[1])) @ x.T @ target


@pytest.mark.parametrize('multi', [False, True])
def test_the_whole_fit_equals_its_formulas(multi):
  x, labels = _data(multi=multi)
  queries, _ = _data(multi=multi, seed=1)
  key, c = jax.random.key(3), 6
  method = sdh.make(sdh.Options(anchors=20, sigma=0.5), nu=1e-2, lambda_w=2.0, lambda_f=0.1,
                    iterations=3, sweeps=4)
  state, learned = method.fit(x, labels, c, key)

  points = np.asarray(state.anchors.points, np.float64)
  phi, y = _slow_phi(x, points, 0.5), labels.astype(np.float64)
  noise = jax.random.normal(jax.random.split(key)[1], (60, c))
  b = np.where(np.asarray(noise) >= 0, 1.0, -1.0)
  w, p = _slow_ridge(b, y, 2.0), _slow_ridge(phi, b, 0.1)
  for _ in range(3):
    b = _slow_update(b, 1e-2 * phi @ p + y @ w.T, w, 4)
    w, p = _slow_ridge(b, y, 2.0), _slow_ridge(phi, b, 0.1)

  assert learned.dtype == np.int8
  np.testing.assert_array_equal(learned, b)
  np.testing.assert_allclose(state.projection, p, rtol=1e-3, atol=1e-3)
  for rows in (x, queries):
    np.testing.assert_array_equal(shallow.encode(method, state, rows)[0],
                                  np.where(_slow_phi(rows, points, 0.5) @ p >= 0, 1, -1))


def test_classes_have_codes_of_their_own_that_queries_find():
  x, labels = _data(n=200)
  queries, query_labels = _data(n=50, seed=1)
  method = sdh.make(sdh.Options(anchors=40))
  state, learned = method.fit(x, labels, 8, jax.random.key(0))
  learned = [tuple(code) for code in learned.tolist()]
  book = dict(zip(learned, labels.argmax(axis=1)))  # a few codes for all rows
  assert len(book) <= 6
  assert [book[code] for code in learned] == labels.argmax(axis=1).tolist()
  classes = [book.get(tuple(code)) for code in shallow.encode(method, state, queries)[0].tolist()]
  assert np.mean(classes == query_labels.argmax(axis=1)) > 0.95


def _count_updates(monkeypatch, options, **numbers):
  calls = []
  update = sdh.update_codes
  monkeypatch.setattr(sdh, 'update_codes', lambda *args: calls.append(1) or update(*args))
  sdh.make(options, iterations=500, **numbers).fit(*_data(), 4, jax.random.key(0))
  return len(calls)


def test_the_alternation_ends_when_nothing_changes(monkeypatch):
  assert 1 < _count_updates(monkeypatch, sdh.Options(anchors=20)) < 100


def test_the_alternation_ends_when_the_function_gives_the_codes(monkeypatch):
  options = sdh.Options(anchors=60, sigma=0.02)
  assert _count_updates(monkeypatch, options, lambda_f=1e-9) == 1


def test_sigma_zero_is_the_mean_distance_to_the_nearest_anchor():
  x, labels = _data()
  state, default = (sdh.make(options, iterations=0).fit(x, labels, 4, jax.random.key(0)).state
                    for options in (sdh.Options(anchors=10, sigma=0), sdh.Options(anchors=10)))
  points = np.asarray(state.anchors.points)
  unit = np.asarray(scaling.unit_rows(x))
  nearest = np.mean([min(np.linalg.norm(u - a) for a in points) for u in unit])
  assert state.anchors.width == pytest.approx(nearest**2, rel=1e-3)
  assert default.anchors.width == pytest.approx(0.4**2)


def test_sigma_zero_needs_rows_that_are_no_anchors():
  with pytest.raises(errors.UsageError, match='--sigma=0 .* all 60 rows are anchors.*--anchors'):
    sdh.make(sdh.Options(anchors=60, sigma=0)).fit(*_data(), 4, jax.random.key(0))


@pytest.mark.parametrize('options, message', [
    ({'anchors': 0}, '--anchors=0 must be at least 1'),
    ({'sigma': -0.1}, '--sigma=-0.1 must be at least 0'),
    ({'sigma': float('nan')}, '--sigma=nan must be finite')])
def test_options_out_of_range_are_refused(options, message):
  with pytest.raises(errors.UsageError, match=message):
    sdh.Options(**options)
