"""The rows of a batch, and the way of its pixels to a network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mah_jax.data import pipeline


def _prepare(size, mean=(0.0,), std=(1.0,), **changes):
  pixels = pipeline.Pixels(size, len(mean), mean, std)
  settings = {'crop': 1.0, 'augment': 'none', 'shift_pixels': 1}
  return jax.jit(pipeline.make_prepare(pixels, **(settings | changes)), static_argnames='mirrored')


def test_sample_draws_distinct_rows():
  rows = pipeline.sample(jax.random.key(0), 50, 20)
  assert len(set(rows.tolist())) == 20
  assert rows.min() >= 0 and rows.max() < 50
  assert sorted(pipeline.sample(jax.random.key(1), 50, 80)) == list(range(50))


@pytest.mark.parametrize('m, size, shuffled', [
    (10, 4, False), (8, 4, False), (3, 8, False), (10, 4, True)])
def test_batches_cover_each_row_once_and_fill_up_with_real_rows(m, size, shuffled):
  rows = np.arange(100, 100 + m)
  batches = list(pipeline.batches(rows, size, jax.random.key(3) if shuffled else None))
  assert len(batches) == pipeline.num_batches(m, size)
  assert all(batch.row.shape == (size,) for batch in batches)
  row = np.concatenate([batch.row for batch in batches])
  position = np.concatenate([batch.position for batch in batches])
  valid = np.concatenate([batch.valid for batch in batches])
  np.testing.assert_array_equal(rows[position], row)
  assert sorted(row[valid > 0]) == rows.tolist()
  assert (row[valid > 0].tolist() == rows.tolist()) == (not shuffled)


def test_every_batch_has_its_share_of_each_group():
  groups = np.array([0] * 8 + [1] * 4)
  rows = np.arange(12) + 50
  for batch in pipeline.batches(rows, 3, groups=groups):
    assert groups[batch.position].tolist().count(1) == 1
    np.testing.assert_array_equal(rows[batch.position], batch.row)


def test_pixels_are_normalised():
  images = np.full((1, 2, 2, 2), 51, np.uint8)
  x = _prepare(2, mean=(0.2, 0.1), std=(1.0, 0.5))(images, None)
  np.testing.assert_allclose(x[0, 0, 0], [0.0, 0.2], atol=1e-6)


def test_crop_keeps_the_centre_of_the_resized_image():
  images = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1)
  x = _prepare(4, crop=0.5)(images, None)
  np.testing.assert_allclose(x[0, :, :, 0] * 255, images[0, 2:6, 2:6, 0], atol=1e-4)
  assert _prepare(224, crop=0.875)(images, None).shape == (1, 224, 224, 1)


@pytest.mark.parametrize('augment, shifts, flips', [
    ('shift', True, False), ('flip_shift', True, True), ('flip', False, True)])
def test_images_are_shifted_by_at_most_the_given_pixels_and_flipped_or_not(augment, shifts, flips):
  image = np.zeros((11, 11, 1), np.uint8)
  image[5, 2] = 255
  keys = jax.random.split(jax.random.key(0), 100)
  x = _prepare(11, augment=augment)(np.stack([image] * 100), keys)
  bright = [divmod(int(flat.argmax()), 11) for flat in np.asarray(x).reshape(100, -1)]
  shifted = {(i, j) for i in (4, 5, 6) for j in (1, 2, 3)} if shifts else {(5, 2)}
  flipped = {(i, 10 - j) for i, j in shifted}
  assert set(bright) == shifted | (flipped if flips else set())
  assert not flips or 30 < sum(point in flipped for point in bright) < 70


def test_no_keys_means_no_change():
  images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1)).astype(np.uint8)
  x = _prepare(8, augment='flip_shift')(images, None)
  np.testing.assert_allclose(x * 255, images.astype(jnp.float32), atol=1e-4)


def test_maps_are_those_of_the_images_that_would_be_flipped():
  images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1)).astype(np.uint8)
  keys = jax.random.split(jax.random.key(3), 40)
  read = _prepare(8, augment='flip')
  maps = np.stack([read(images, None), read(images, None, mirrored=True)], axis=1)
  choose = pipeline.make_prepare_maps('flip')
  np.testing.assert_array_equal(choose(maps, keys), read(images, keys))
  np.testing.assert_array_equal(choose(maps, None), maps[:, 0])
  np.testing.assert_array_equal(choose(maps, None, mirrored=True), maps[:, 1])
  np.testing.assert_array_equal(maps[:, 1], maps[:, 0, :, ::-1])
  np.testing.assert_array_equal(pipeline.make_prepare_maps('none')(maps, keys), maps[:, 0])
