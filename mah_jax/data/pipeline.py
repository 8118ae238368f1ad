"""From rows to batches: which rows a round and an epoch see, and what becomes of their pixels."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import errors

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Pixels(NamedTuple):
  """What a network reads.

  size: side of the images in pixels.
  channels: 3, or 1 for grey images.
  mean, std: per channel, of pixels in 0..1, subtracted and divided by.
  """
  size: int
  channels: int
  mean: tuple[float, ...]
  std: tuple[float, ...]


class Batch(NamedTuple):
  """Rows of one step; a last short batch repeats earlier rows with valid = 0.

  position: place of each row among the sampled ones, [B] int32.
  row: number of each row, [B] int32.
  valid: 1, or 0 for a repeated row that must not count, [B] float32.
  """
  position: np.ndarray
  row: np.ndarray
  valid: np.ndarray


def sample(key: jax.Array, n: int, m: int) -> np.ndarray:
  """Omega: m of n row numbers in random order, [m] int32; m > n takes all."""
  return np.asarray(jax.random.permutation(key, n)[:m], np.int32)


def batches(rows: np.ndarray, size: int, key: jax.Array | None = None,
            groups: np.ndarray | None = None) -> Iterator[Batch]:
  """Cuts rows [m] into batches of equal size, in a random order where a key is given.

  With groups, the number of each row's group [m], every batch has about as many rows of a group
  as its share of all rows.

  The repeated rows that fill the last batch are real images, so that batch statistics see
  nothing artificial, whatever the number of devices.
  """
  order = np.arange(len(rows)) if key is None else np.asarray(
      jax.random.permutation(key, len(rows)))
  if groups is not None:
    order = order[_spread(groups[order])]
  steps = num_batches(len(rows), size)
  valid = np.arange(steps * size) < len(rows)
  order = np.resize(order, steps * size)
  for i in range(steps):
    part = slice(i * size, (i + 1) * size)
    yield Batch(order[part].astype(np.int32), rows[order[part]].astype(np.int32),
                valid[part].astype(np.float32))


def _spread(groups: np.ndarray) -> np.ndarray:
  """An order of rows in which each group comes at even distances, [m] -> [m]."""
  by_group = np.argsort(groups, kind='stable')
  counts = np.bincount(groups)
  rank = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
  return by_group[np.argsort((rank + 0.5) / np.repeat(counts, counts), kind='stable')]


def num_batches(m: int, size: int) -> int:
  """Batches that `batches` makes of m rows."""
  return -(-m // size)


def whole_side(size: int, crop: float) -> int:
  """Side of a resized image whose share `crop`, taken from its centre, has side `size`."""
  return round(size / crop)


def make_prepare(pixels: Pixels, *, crop: float, augment: str,
                 shift_pixels: int) -> Callable[[jax.Array, jax.Array | None], jax.Array]:
  """Makes the way from stored pixels to what a network reads.

  Args:
    pixels: what the network reads.
    crop: share of the resized image's side that is kept, from its centre.
    augment: 'none', 'shift' or 'flip_shift'.
    shift_pixels: largest shift, in pixels of the stored image.

  Returns:
    prepare(images [b, h, w, ch] uint8, keys [b] or None) -> [b, size, size, ch] float32. With keys,
    one per image, the images are augmented.
  """
  size, channels, mean, std = pixels
  if len(mean) != channels:
    raise errors.UsageError(f'Images with {channels} channels cannot be normalised by '
                            f'{len(mean)} means: use --normalize=dataset, or weights that were '
                            'trained on such images.')
  whole = whole_side(size, crop)
  first = (whole - size) // 2

  def prepare(images, keys):
    if keys is not None and augment != 'none':
      images = jax.vmap(augment_image)(images, keys)
    x = images.astype(jnp.float32) / 255.0
    if x.shape[1:3] != (whole, whole):
      x = jax.image.resize(x, (len(x), whole, whole, channels), 'bilinear')
    x = x[:, first:first + size, first:first + size]
    return (x - jnp.asarray(mean)) / jnp.asarray(std)

  def augment_image(image, key):  # [h, w, ch]
    shift_key, flip_key = jax.random.split(key)
    if augment == 'flip_shift':
      image = jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image)
    s = shift_pixels
    padded = jnp.pad(image, ((s, s), (s, s), (0, 0)), mode='reflect')
    y, x = jax.random.randint(shift_key, (2,), 0, 2 * s + 1)
    return jax.lax.dynamic_slice(padded, (y, x, 0), image.shape)

  return prepare
