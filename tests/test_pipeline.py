"""Which rows a batch has, and what becomes of its pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mah_jax.data import pipeline


def _prepare(size, mean=(0.0,), std=(1.0,), **changes):
  pixels = pipeline.Pixels(size, len(mean), mean, std)
  settings = {'crop': 1.0, 'augment': 'none', 'shift_pixels': 1}
  return pipeline.make_prepare(pixels, **(settings | changes))


def test_sample_draws_distinct_rows():
  rows = pipeline.sample(jax.random.key(0), 50, 20)
  assert len(set(rows.tolist())) == 20
  assert rows.min() >= 0 and rows.max() < 50
  assert sorted(pipeline.sample(jax.random.key(1), 50, 80)) == list(range(50))


@pytest.mark.parametrize('key', [None, jax.random.key(3)])
@pytest.mark.parametrize('m, size', [(10, 4), (8, 4), (3, 8)])
def test_batches_cover_each_row_once_and_fill_up_with_real_rows(m, size, key):
  rows = np.arange(100, 100 + m)
  batches = list(pipeline.batches(rows, size, key))
  assert len(batches) == pipeline.num_batches(m, size)
  assert all(batch.row.shape == (size,) for batch in batches)
  row = np.concatenate([batch.row for batch in batches])
  position = np.concatenate([batch.position for batch in batches])
  valid = np.concatenate([batch.valid for batch in batches])
  np.testing.assert_array_equal(rows[position], row)
  assert sorted(row[valid > 0]) == rows.tolist()
  in_order = row[valid > 0].tolist() == rows.tolist()
  assert in_order == (key is None) or m == 3


def test_pixels_are_normalised():
  images = np.full((1, 2, 2, 2), 51, np.uint8)
  x = _prepare(2, mean=(0.2, 0.1), std=(1.0, 0.5))(images, None)
  np.testing.assert_allclose(x[0, 0, 0], [0.0, 0.2], atol=1e-6)


def test_crop_keeps_the_centre_of_the_resized_image():
  images = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1)
  x = _prepare(4, crop=0.5)(images, None)
  np.testing.assert_allclose(x[0, :, :, 0] * 255, images[0, 2:6, 2:6, 0], atol=1e-4)
  assert _prepare(224, crop=0.875)(images, None).shape == (1, 224, 224, 1)


def test_shifts_move_by_at_most_the_given_pixels_and_differ():
  image = np.zeros((9, 9, 1), np.uint8)
  image[4, 4] = 255
  keys = jax.random.split(jax.random.key(0), 64)
  x = _prepare(9, augment='shift', shift_pixels=2)(np.stack([image] * 64), keys)
  places = {divmod(int(flat.argmax()), 9) for flat in np.asarray(x).reshape(64, -1)}
  assert len(places) > 15
  assert all(2 <= i <= 6 and 2 <= j <= 6 for i, j in places)


def test_flips_mirror_half_of_the_images():
  image = np.zeros((8, 8, 1), np.uint8)
  image[:, 0] = 255
  keys = jax.random.split(jax.random.key(0), 100)
  x = _prepare(8, augment='flip_shift', shift_pixels=0)(np.stack([image] * 100), keys)
  assert 30 < np.asarray(x[:, 0, 7, 0] > 0.5).sum() < 70


def test_no_keys_means_no_change():
  images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1)).astype(np.uint8)
  x = _prepare(8, augment='flip_shift')(images, None)
  np.testing.assert_allclose(x * 255, images.astype(jnp.float32), atol=1e-4)
