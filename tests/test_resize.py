"""Resizing equals JAX's and Pillow's, and needs no matrix product."""

import jax
import numpy as np
import pytest
from PIL import Image

from mah_jax.data import resize

# Height, width and channels of images, and their new side.
SHAPES = [((8, 8, 1), 16), ((32, 32, 3), 256), ((7, 11, 3), 13), ((16, 16, 4), 15),
          ((50, 37, 1), 9), ((9, 40, 3), 20), ((8, 5, 2), 8), ((30, 1, 1), 1)]

_bilinear = jax.jit(resize.bilinear, static_argnums=1)


def _images(shape):
  return np.random.default_rng(0).integers(0, 256, (2, *shape)).astype(np.uint8)


@pytest.mark.parametrize('shape, side', SHAPES)
def test_it_equals_jax_and_pillow_which_rounds_bytes(shape, side):
  images = _images(shape)
  floats = images.astype(np.float32) / 255
  new = np.asarray(_bilinear(floats, side))
  expected = jax.image.resize(floats, (2, side, side, shape[2]), 'bilinear')
  np.testing.assert_allclose(new, expected, atol=1e-5)
  size, method = (side, side), Image.Resampling.BILINEAR
  for i, k in np.ndindex(2, shape[2]):
    in_floats = Image.fromarray(floats[i, ..., k]).resize(size, method)
    np.testing.assert_allclose(new[i, ..., k], in_floats, atol=1e-5)
    in_bytes = Image.fromarray(images[i, ..., k]).resize(size, method)
    # Half a step of 1/255 for each axis, and the rounding of Pillow's weights.
    np.testing.assert_allclose(new[i, ..., k], np.asarray(in_bytes) / 255, atol=1.01 / 255)


def test_it_makes_no_product():
  program = str(jax.make_jaxpr(lambda x: resize.bilinear(x, 12))(np.ones((2, 8, 20, 3))))
  assert 'gather' in program and 'dot_general' not in program and 'conv' not in program


def test_it_equals_numbers_worked_by_hand():
  row = np.array([0, 4, 8, 16], np.float32).reshape(1, 1, 4, 1)
  square = np.broadcast_to(row, (1, 4, 4, 1))
  # Twice as many: new pixels are at quarters between old ones, the outermost at the border.
  larger = _bilinear(square, 8)
  np.testing.assert_allclose(larger[0, 3, :, 0], [0, 1, 3, 5, 7, 10, 14, 16], atol=1e-6)
  # Half as many: weights 1, 3, 3, 1 over the inner pixels, 3, 3, 1 at the border.
  smaller = _bilinear(square, 2)
  np.testing.assert_allclose(smaller[0, 1, :, 0],
                             [(3 * 0 + 3 * 4 + 8) / 7, (4 + 3 * 8 + 3 * 16) / 7], atol=1e-5)


def test_weights_are_as_few_as_the_triangle_needs():
  assert [resize.taps(size, 12)[1].shape[1] for size in (5, 11, 12, 13, 18, 19)] == [
      2, 2, 2, 3, 3, 4]
  for size, side in ((5, 12), (50, 7)):
    pixels, weights = resize.taps(size, side)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert pixels.min() == 0 and pixels.max() == size - 1
