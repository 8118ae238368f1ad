"""Bilinear resizing by gathering and blending pixels, without matrix products."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np


def bilinear(images: jax.Array, side: int) -> jax.Array:
  """Resizes images to squares: [b, h, w, ch] float -> [b, side, side, ch].

  A new pixel is the mean of the pixels around its centre, weighted by a triangle that is two
  pixels wide, or two new pixels where the image shrinks (antialiasing). So do
  `jax.image.resize(..., 'bilinear')`, by products with whole matrices, and Pillow's BILINEAR,
  which rounds images of bytes after each of the two axes.
  """
  for axis in (2, 1):
    if images.shape[axis] != side:
      images = _blend(images, axis, side)
  return images


def taps(size: int, side: int) -> tuple[np.ndarray, np.ndarray]:
  """The pixels of an axis that new pixels are blended from, and their weights.

  Args:
    size: pixels of the axis.
    side: new pixels.

  Returns:
    Pixel numbers and weights, [side, k] each, k = ceil(2 max(size / side, 1)). Weights of a new
    pixel add up to 1; pixels beyond the border have the weight 0.
  """
  scale = size / side
  reach = max(scale, 1.0)
  centre = (np.arange(side)[:, None] + 0.5) * scale - 0.5
  pixel = np.floor(centre - reach).astype(int) + 1 + np.arange(math.ceil(2 * reach))
  weight = np.maximum(1 - np.abs(pixel - centre) / reach, 0)
  inside = np.clip(pixel, 0, size - 1)
  weight[pixel != inside] = 0
  return inside, (weight / weight.sum(axis=1, keepdims=True)).astype(np.float32)


def _blend(images: jax.Array, axis: int, side: int) -> jax.Array:
  """Resizes one axis."""
  pixels, weights = taps(images.shape[axis], side)
  shape = [1] * images.ndim
  shape[axis] = side
  return sum(jnp.take(images, pixel, axis, mode='clip') * weight.reshape(shape)
             for pixel, weight in zip(pixels.T, weights.T))
