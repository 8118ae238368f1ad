"""The anchor kernel and the scaling of features, against double loops and numbers by hand."""

import math

import jax
import numpy as np
import pytest

from mah_jax import errors
from mah_jax.methods import kernel
from mah_jax.methods import scaling


@pytest.fixture
def small_blocks(monkeypatch):
  """Blocks of 7 rows, so that a few rows make several blocks and a rest."""
  monkeypatch.setattr(scaling, 'BLOCK', 7)


def _features(n, size=5, seed=0):
  return np.maximum(np.random.default_rng(seed).normal(size=(n, size)), 0).astype(np.float32)


def _distance(x, a):
  """Distance of two rows made unit, in Python."""
  x, a = ([float(v) for v in row] for row in (x, a))
  x, a = ([v / (math.hypot(*row) or 1.0) for v in row] for row in (x, a))
  return math.dist(x, a)


def test_squared_distances_equal_a_double_loop():
  x, points = _features(9), scaling.unit_rows(_features(4, seed=1))
  expected = [[_distance(row, a)**2 for a in points] for row in x]
  np.testing.assert_allclose(kernel.square_distances(x, points), expected, atol=1e-6)


def test_a_distance_is_never_negative():
  x = np.random.default_rng(0).random((300, 64), np.float32)
  distances = kernel.square_distances(x, scaling.unit_rows(x))
  assert np.min(distances) >= 0
  assert np.max(np.diagonal(distances)) < 1e-6


def test_kernel_by_hand():
  anchors = kernel.Anchors(np.array([[0.0, 1.0], [1.0, 0.0]], np.float32), np.float32(0.5))
  x = np.array([[3.0, 0.0], [2.0, 2.0], [0.0, 0.0]], np.float32)
  near = math.exp(-(2 - math.sqrt(2)))
  expected = [[math.exp(-2), 1.0], [near, near], [math.exp(-1), math.exp(-1)]]
  np.testing.assert_allclose(kernel.rbf(anchors, x), expected, rtol=1e-5)


@pytest.mark.usefixtures('small_blocks')
@pytest.mark.parametrize('n', [7, 23])
def test_blocks_change_nothing(n):
  x = _features(n)
  anchors = kernel.Anchors(kernel.draw(x, 3, jax.random.key(0)), np.float32(0.3))
  expected = [[math.exp(-_distance(row, a)**2 / 0.6) for a in anchors.points] for row in x]
  np.testing.assert_allclose(kernel.apply(anchors, x), expected, rtol=1e-5)
  np.testing.assert_allclose(kernel.mean(anchors, x), np.mean(expected, axis=0), rtol=1e-5)


@pytest.mark.usefixtures('small_blocks')
def test_mean_distances_equal_a_double_loop():
  x, points = _features(23), scaling.unit_rows(_features(4, seed=1))
  distances = np.array([[_distance(row, a) for a in points] for row in x])
  square, nearest = (distances**2).mean(), distances.min(axis=1).mean()
  assert kernel.mean_square_distance(x, points) == pytest.approx(square, rel=1e-5)
  assert kernel.mean_nearest_distance(x, points) == pytest.approx(nearest, rel=1e-5)


def test_rows_that_are_all_alike_are_refused():
  for x in (np.zeros((9, 3), np.float32), np.full((9, 3), 0.1, np.float32)):
    points = kernel.draw(x, 4, jax.random.key(0))
    for width in (kernel.mean_square_distance(x, points),
                  kernel.mean_nearest_distance(x, points) ** 2):
      with pytest.raises(errors.InputError, match='tells no rows apart.*--anchors.*--sigma'):
        kernel.make(points, width)
  assert kernel.make(points, 1e-4).width == pytest.approx(1e-4)


@pytest.mark.usefixtures('small_blocks')
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_features_that_are_no_numbers_are_refused(value):
  x = _features(23)
  x[17, 2] = value
  with pytest.raises(errors.InputError, match='Row 17 of 23 has features'):
    list(scaling.blocks(x))


def test_anchors_are_different_rows_made_unit():
  x = 1.0 + _features(50)
  points = np.asarray(kernel.draw(x, 20, jax.random.key(0)))
  unit = x / np.sqrt(np.sum(x**2, axis=1, keepdims=True))
  rows = [int(np.argmin(np.sum((unit - point)**2, axis=1))) for point in points]
  assert len(set(rows)) == 20
  np.testing.assert_allclose(points, unit[rows], rtol=1e-6)


def test_anchors_follow_from_the_key():
  x = _features(50)
  first, again, other = (np.asarray(kernel.draw(x, 20, jax.random.key(k))) for k in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)


def test_all_rows_are_anchors_when_there_are_few():
  x = _features(6)
  np.testing.assert_allclose(kernel.draw(x, 1000, jax.random.key(0)), scaling.unit_rows(x))


@pytest.mark.usefixtures('small_blocks')
def test_standardize_uses_the_training_rows():
  x = np.array([[1, 5], [3, 5], [1, 5], [3, 5]] * 5, np.float32)
  scale = scaling.standardize(x)
  assert scale.mean.tolist() == [2, 5]
  assert scale.deviation.tolist() == [1, 1]  # the second column never changes
  assert scaling.apply(scale, np.array([[4, 7]], np.float32)).tolist() == [[2, 2]]


@pytest.mark.usefixtures('small_blocks')
def test_statistics_survive_a_large_offset():
  x = (1e4 + np.random.default_rng(0).normal(size=(5000, 3)) * [1, 2, 3]).astype(np.float32)
  scale = scaling.standardize(x)
  np.testing.assert_allclose(scale.deviation, x.astype(np.float64).std(axis=0), rtol=1e-6)
  np.testing.assert_allclose(scale.mean, x.astype(np.float64).mean(axis=0), rtol=1e-7)


@pytest.mark.usefixtures('small_blocks')
def test_centred_rows_keep_their_scale_and_kept_rows_are_unchanged():
  x = _features(23)
  centred = scaling.apply(scaling.center(x), x)
  np.testing.assert_allclose(centred, x - x.mean(axis=0), atol=1e-6)
  np.testing.assert_array_equal(scaling.center(x).mean, scaling.standardize(x).mean)
  np.testing.assert_array_equal(scaling.apply(scaling.keep(x), x), x)


def test_a_row_of_zeros_has_no_direction():
  assert scaling.unit_rows(np.array([[0, 0], [3, 4]], np.float32)).tolist() == [
      [0, 0], pytest.approx([0.6, 0.8])]


@pytest.mark.usefixtures('small_blocks')
def test_rows_keep_their_order_and_blocks_their_size():
  x = np.arange(46.0).reshape(23, 2)
  sizes = []

  def double(rows):
    sizes.append(len(rows))
    return 2 * rows

  np.testing.assert_array_equal(scaling.by_blocks(double, x), 2 * x)
  assert sizes == [7, 7, 7, 2]


@pytest.mark.usefixtures('small_blocks')
def test_sums_over_blocks_are_sums_in_float64():
  x = np.zeros((23, 1), np.float32)
  x[0], x[[7, 14, 21]] = 2.0**24, 1.0  # float32 cannot add a 1 to 2^24
  total = scaling.sum_over_blocks(lambda rows: rows.sum(axis=0), x)
  assert total.tolist() == [2.0**24 + 3]
  y = np.arange(23)[:, None]
  assert scaling.sum_over_blocks(lambda a, b: a.T @ b, x, y).tolist() == [[7 + 14 + 21]]
  with pytest.raises(ValueError):
    scaling.sum_over_blocks(lambda a, b: a.T @ b, x, y[:14])
