"""KSH: gradient, spectral start, refinement and greedy bits against slow references."""

import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mah_jax import errors
from mah_jax import similarity
from mah_jax.data import digits as digits_lib
from mah_jax.evaluation import metrics
from mah_jax.methods import ksh
from mah_jax.train import shallow


@pytest.fixture
def float64():
  with jax.enable_x64(True):
    yield


def _problem(seed, rows=40, anchors=6, c=4):
  """A kernel, centred, that tells something of the labels; label sets; c S, pair by pair."""
  rng = np.random.default_rng(seed)
  labels = np.eye(3)[rng.integers(3, size=rows)]
  if seed % 2:
    labels = rng.random((rows, 4)) < 0.4
  k = labels @ rng.normal(size=(labels.shape[1], anchors)) + rng.normal(size=(rows, anchors))
  s = np.array([[1.0 if np.any(x * y) else -1.0 for y in labels] for x in labels])
  return k - k.mean(axis=0), similarity.group_rows(labels), c * s


def _factored(groups, c=4):
  """c S as the method has it."""
  related = similarity.share_label(groups.sets, groups.sets)
  return ksh.Residual(groups.of_row, jnp.where(related, 1.0, -1.0) * c,
                      jnp.zeros((len(groups.of_row), c)))


@pytest.mark.parametrize('seed', range(2))
def test_residual_is_c_s_without_the_bits_learned(seed):
  _, groups, expected = _problem(seed)
  residual, rng = _factored(groups), np.random.default_rng(seed)
  for i in range(4):
    x = rng.normal(size=40)
    np.testing.assert_allclose(ksh.apply(residual, x), expected @ x, rtol=1e-4, atol=1e-3)
    bits = rng.choice([-1.0, 1.0], 40)
    expected = expected - np.outer(bits, bits)
    residual = residual._replace(bits=residual.bits.at[:, i].set(bits))


def test_learning_makes_no_array_of_all_labelled_pairs():
  rows, anchors = 2000, 50
  made = jax.make_jaxpr(lambda *arrays: ksh._learn_bits(*arrays, c=4))(
      jnp.zeros((rows, anchors)), jnp.zeros((anchors, anchors)), jnp.zeros(rows, jnp.int32),
      jnp.zeros((10, 10), bool))
  assert f'[{rows},{anchors}]' in str(made) and f'{rows},{rows}]' not in str(made)


def _slow_cost(a, k, residual):
  f = [2 / (1 + np.exp(-sum(x * y for x, y in zip(row, a)))) - 1 for row in k]
  return -sum(f[i] * residual[i, j] * f[j] for i in range(len(k)) for j in range(len(k)))


@pytest.mark.parametrize('seed', range(2))
def test_cost_equals_a_double_loop_and_its_gradient_is_the_automatic_one(seed, float64):
  k, groups, residual = _problem(seed)
  a = np.random.default_rng(seed).normal(size=k.shape[1])

  def cost(a):
    f = 2 / (1 + jnp.exp(-k @ a)) - 1
    return -f @ residual @ f

  value, slope = ksh.cost_and_slope(jnp.array(k @ a), _factored(groups))
  np.testing.assert_allclose(value, _slow_cost(a, k, residual), rtol=1e-10)
  np.testing.assert_allclose(slope @ k, jax.grad(cost)(a), rtol=1e-9)


def _start(k, residual):
  """The generalised eigenvector, by the unsymmetric way."""
  gram = k.T @ k
  gram = gram + 1e-6 * np.trace(gram) / len(gram) * np.eye(len(gram))
  values, vectors = np.linalg.eig(np.linalg.solve(gram, k.T @ residual @ k))
  a = np.real(vectors[:, np.argmax(np.real(values))])
  return a * np.sqrt(len(k) / np.sum((k @ a) ** 2))


@np.errstate(over='ignore')
def _slow_refine(k, residual, start, steps=500):
  """The accelerated gradient of the published script, and how many steps it took."""

  def cost(a):
    f = 2 / (1 + np.exp(-k @ a)) - 1
    return -f @ residual @ f

  def gradient(a):
    f = 2 / (1 + np.exp(-k @ a)) - 1
    return -k.T @ ((residual @ f) * (1 - f**2))

  a, costs, delta, beta = [start, start], [cost(start)], [0.0, 1.0], 1.0
  for _ in range(steps):
    v = a[-1] + (delta[-2] - 1) / delta[-1] * (a[-1] - a[-2])
    for j in range(51):
      b = 2**j * beta
      z = v - gradient(v) / b
      if cost(z) <= cost(v) + gradient(v) @ (z - v) + b * (z - v) @ (z - v) / 2:
        break
    beta = b
    a.append(z)
    costs.append(cost(z))
    delta.append((1 + np.sqrt(1 + 4 * delta[-1] ** 2)) / 2)
    if abs(costs[-1] - costs[-2]) / len(k) <= 1e-2:
      break
  return a[-1], len(costs) - 1


@pytest.mark.parametrize('seed, steps', [(0, 1), (1, 3), (0, 500), (1, 500)])
def test_refinement_equals_the_published_loop(monkeypatch, seed, steps, float64):
  monkeypatch.setattr(ksh, 'STEPS', steps)
  k, groups, residual = _problem(seed)
  start = _start(k, residual)
  expected, taken = _slow_refine(k, residual, start, steps)
  refined = ksh.refine(jnp.array(k), _factored(groups), jnp.array(start))
  np.testing.assert_allclose(refined, expected, rtol=1e-7, atol=1e-9)
  assert taken == steps if steps < 500 else 3 < taken < 500  # else: it came to rest
  assert _slow_cost(refined, k, residual) < _slow_cost(start, k, residual)


def test_refinement_is_as_good_in_float32():
  """Rounding that is taken for too flat a quadratic stops it short, six times this far off."""
  k, groups, residual = _problem(10, rows=400, anchors=20, c=8)
  start = _start(k, residual)
  refined = ksh.refine(jnp.float32(k), _factored(groups, c=8), jnp.float32(start))
  values = [np.tanh(k @ a / 2) for a in (refined, _slow_refine(k, residual, start)[0])]
  costs = [f @ residual @ f for f in values]
  np.testing.assert_allclose(costs[0], costs[1], rtol=1e-4)


def test_refinement_ends_where_no_quadratic_bounds_the_cost(monkeypatch):
  monkeypatch.setattr(ksh, 'DOUBLINGS', 1)  # from 1 to 2, where more is needed
  k, groups, residual = _problem(0)
  small, start = _factored(groups), np.float32(_start(k, residual))
  small = small._replace(sets=small.sets / 100.0)
  np.testing.assert_array_equal(ksh.refine(jnp.float32(k), small, start), start)


@pytest.mark.parametrize('anchors', [6, 25])  # fewer and more than label sets and bits
@pytest.mark.parametrize('seed', range(2))
def test_spectral_start_is_the_largest_generalised_eigenvector(seed, anchors, float64):
  k, groups, residual = _problem(seed, anchors=anchors)
  bits = np.random.default_rng(seed).choice([-1.0, 1.0], (40, 4)) * [1, 1, 0, 0]
  residual = residual - bits @ bits.T
  whitener = ksh.whitening(k)
  np.testing.assert_allclose(whitener.T @ k.T @ k @ whitener, np.eye(anchors), atol=1e-3)
  a = np.asarray(ksh.spectral_start(k, whitener, _factored(groups)._replace(bits=bits)))
  expected = _start(k, residual)
  np.testing.assert_allclose(a * np.sign(a @ expected), expected, rtol=1e-6)
  np.testing.assert_allclose(np.sum((k @ a) ** 2), len(k))


def test_whitening_survives_equal_anchors():
  k = np.repeat(_problem(0)[0], 2, axis=1)
  assert np.isfinite(ksh.whitening(np.float32(k))).all()


def test_refined_vector_is_kept_only_if_its_bits_are_better():
  k = np.eye(3)
  residual = np.array([[0, 2, -1], [2, 0, -1], [-1, -1, 0]])
  good, bad = np.array([1.0, 1.0, -1.0]), np.array([1.0, -1.0, 1.0])  # b'Rb = 8 and -4
  for start, refined, best in ((good, bad, good), (bad, good, good), (good, 2 * good, good)):
    vector, bits = ksh.better(
        k, ksh.Residual(np.arange(3), residual, np.zeros((3, 1))), start, refined)
    np.testing.assert_array_equal(vector, best)
    np.testing.assert_array_equal(bits, good)


def test_bits_equal_a_slow_greedy_search(float64):
  kept = set()
  for seed, rows in ((0, 16), (0, 40), (1, 40), (2, 40)):
    k, groups, residual = _problem(seed, rows, c=5)
    for a in np.asarray(ksh.learn(k, groups, 5)).T:
      start = _start(k, residual)
      refined = _slow_refine(k, residual, start)[0]
      bits = [np.where(k @ x >= 0, 1, -1) for x in (start, refined)]
      gain = bits[1] @ residual @ bits[1] - bits[0] @ residual @ bits[0]
      kept.add(np.sign(gain))
      b, expected = np.where(k @ a >= 0, 1, -1), bits[int(gain > 0)]
      np.testing.assert_array_equal(b * b[0], expected * expected[0])  # an axis has no sign
      residual = residual - np.outer(b, b)
  assert kept == {-1, 0, 1}


def _features(n=300, size=8, multi=False, seed=0):
  rng = np.random.default_rng(seed)
  labels = np.eye(4, dtype=np.uint8)[rng.integers(4, size=n)]
  if multi:
    labels = (rng.random((n, 4)) < 0.3).astype(np.uint8)
  centers = np.random.default_rng(9).normal(size=(4, size))
  x = np.maximum(labels @ centers + 0.3 * rng.normal(size=(n, size)), 0)
  return x.astype(np.float32), labels


@pytest.mark.parametrize('labelled, rows', [(50, 50), (2000, None)])
def test_pairs_are_those_of_a_few_rows_that_have_labels(monkeypatch, labelled, rows):
  x, labels = _features(multi=True)
  x[~labels.any(axis=1)] = 0
  seen = []

  def learn(k, groups, c):
    labels = groups.sets[groups.of_row]
    seen.append((k, similarity.share_label(labels, labels), c))
    return jnp.zeros((k.shape[1], c))

  monkeypatch.setattr(ksh, 'learn', learn)
  method = ksh.make(ksh.Options(anchors=20, labelled=labelled))
  method.fit(x, labels, 3, jax.random.key(0))
  [(k, similar, c)] = seen
  rows = rows or int(labels.any(axis=1).sum())
  assert k.shape == (rows, 20) and similar.shape == (rows, rows) and c == 3
  assert rows < len(x) and similar.diagonal().all()
  pairs = (labels.astype(int) @ labels.T > 0)[labels.any(axis=1)][:, labels.any(axis=1)]
  assert abs(similar.mean() - pairs.mean()) < (0.1 if labelled == 50 else 1e-9)


def test_rows_without_any_label_are_refused():
  x, labels = _features()
  with pytest.raises(errors.InputError, match='none of 300 rows has one'):
    ksh.make(ksh.Options()).fit(x, 0 * labels, 4, jax.random.key(0))


@pytest.fixture(scope='module')
def digits():
  """A fit to the digits, 100 of which are queries: x, labels, queries, database, method, state."""
  data = digits_lib.load()
  x, labels = data.images.reshape(-1, 64).astype(np.float32) / 15, data.labels
  rows = np.random.default_rng(0).permutation(len(x))
  queries, database = rows[:100], rows[100:]
  method = ksh.make(ksh.Options(anchors=100, labelled=300))
  state, learned = method.fit(x[database], labels[database], 8, jax.random.key(0))
  assert learned is None
  return x, labels, queries, database, method, state


def test_digits_are_found_by_their_codes(digits):
  x, labels, queries, database, method, state = digits
  codes = shallow.encode(method, state, x)[0]
  assert codes.dtype == np.int8 and set(np.unique(codes)) == {-1, 1}
  scores = metrics.evaluate(codes[queries], codes[database], labels[queries], labels[database])
  assert scores['map'] > 0.75


def test_kernel_is_centred_by_all_training_rows(digits):
  x, _, _, database, method, state = digits
  x = x[database]
  unit = x / np.linalg.norm(x, axis=1, keepdims=True)
  points = np.asarray(state.anchors.points)
  square = np.array([np.sum((unit - point) ** 2, axis=1) for point in points]).T  # [n, a]
  k = np.exp(-square / (2 * square.mean()))
  np.testing.assert_allclose(state.anchors.width, square.mean(), rtol=1e-5)
  np.testing.assert_allclose(state.mean, k.mean(axis=0), rtol=1e-4)
  values = (k - k.mean(axis=0)) @ np.asarray(state.vectors)
  clear = np.abs(values) > 1e-2 * np.abs(values).mean()
  codes = shallow.encode(method, state, x)[0]
  assert clear.mean() > 0.9
  np.testing.assert_array_equal(codes[clear], np.where(values >= 0, 1, -1)[clear])


def test_memory_does_not_grow_with_the_square_of_the_rows(digits):
  x, labels, _, database, method, _ = digits
  x, labels = (np.tile(part[database], (24, 1)) for part in (x, labels))  # 40,728 rows
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB
  method.fit(x, labels, 8, jax.random.key(0))
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # n^2 bits: 200 MB


@pytest.mark.parametrize('options', [{'anchors': 0}, {'labelled': 0}])
def test_options_out_of_range_are_refused(options):
  with pytest.raises(errors.UsageError, match='=0 must be at least 1'):
    ksh.Options(**options)
