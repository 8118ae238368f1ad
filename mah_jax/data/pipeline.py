"""From rows to batches: the rows that a round and an epoch see, and the way of their pixels."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import errors
from mah_jax.data import resize


class Pixels(NamedTuple):
  """The images that a network reads.

  size: side of the images in pixels.
  channels: 3, or 1 for grey images.
  mean, std: per channel; pixels in 0..1 become (pixels - mean) / std.
  """
  size: int
  channels: int
  mean: tuple[float, ...]
  std: tuple[float, ...]


class Vectors(NamedTuple):
  """The features that a network reads in the place of pixels: `size` numbers each."""
  size: int


class Maps(NamedTuple):
  """The maps that a network reads in the place of images: each row has one of its image and one of
  its mirror image, [2, h, w, ch].

  pixels: the images that the maps are of.
  """
  pixels: Pixels


class Batch(NamedTuple):
  """The rows of one step; a last short batch repeats earlier rows with valid = 0.

  position: index of each row in the `rows` that `batches` cuts, [B] int32; in training, its
    position among the sampled rows.
  row: the row itself, [B] int32, of the kind that `batches` is given: in training a database
    row, in encoding a row of the dataset.
  valid: 1, or 0 for a repeated row that must not count, [B] float32.
  """
  position: np.ndarray
  row: np.ndarray
  valid: np.ndarray


def sample(key: jax.Array, n: int, m: int) -> np.ndarray:
  """Omega: m of the n database rows in random order, [m] int32; m > n takes all."""
  return np.asarray(jax.random.permutation(key, n)[:m], np.int32)


def batches(rows: np.ndarray, size: int, key: jax.Array | None = None,
            groups: np.ndarray | None = None) -> Iterator[Batch]:
  """Cuts rows into batches of equal size, in a random order where a key is given.

  The rows that fill the last batch repeat real images, so that batch statistics see nothing
  artificial, whatever the number of devices.

  Args:
    rows: [m]: the sampled database rows in training, rows of the dataset in encoding.
    size: rows of a batch, B.
    key: key of the random order; None: the order of `rows`.
    groups: number of each row's group, [m]; every batch then has about as many rows of a group
      as is the group's share of all rows.
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


def stack(batches: Sequence[Batch], steps: int) -> list[Batch]:
  """Joins every so many batches to one with leaves [steps, B]; the last may have fewer."""
  parts = [batches[i:i + steps] for i in range(0, len(batches), steps)]
  return [Batch(*map(np.stack, zip(*part))) for part in parts]


def _spread(groups: np.ndarray) -> np.ndarray:
  """An order in which each group comes at even distances: groups [m] -> positions [m]."""
  by_group = np.argsort(groups, kind='stable')
  counts = np.bincount(groups)
  rank = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
  return by_group[np.argsort((rank + 0.5) / np.repeat(counts, counts), kind='stable')]


def num_batches(m: int, size: int) -> int:
  """The number of batches that `batches` makes of m rows."""
  return -(-m // size)


def whole_side(size: int, crop: float) -> int:
  """The side of a resized image whose central crop, a share `crop` of it, has side `size`."""
  return round(size / crop)


# (images, keys, mirrored) -> what a network reads; see make_prepare and make_prepare_maps.
Prepare = Callable[..., jax.Array]


def make_prepare(pixels: Pixels, *, crop: float, augment: str, shift_pixels: int) -> Prepare:
  """Makes the function that turns stored pixels into the images that a network reads.

  Args:
    pixels: the images that the network reads.
    crop: share of the resized image's side that is kept, from its centre.
    augment: 'none', 'flip', 'shift' or 'flip_shift'.
    shift_pixels: largest shift, in pixels of the stored image.

  Returns:
    prepare(images [b, h, w, ch] uint8, keys [b] or None, mirrored=False) -> [b, size, size, ch]
    float32; with keys, one for each image, the images are augmented; `mirrored` asks for their
    mirror images.
  """
  size, channels, mean, std = pixels
  if len(mean) != channels:
    raise errors.UsageError(f'Images with {channels} channels cannot be normalised by '
                            f'{len(mean)} means: use --normalize=dataset, or weights that were '
                            'trained on such images.')
  whole = whole_side(size, crop)
  first = (whole - size) // 2

  def prepare(images, keys, mirrored=False):
    if keys is not None and augment != 'none':
      images = jax.vmap(augment_image)(images, keys)
    x = images.astype(jnp.float32) / 255.0
    if x.shape[1:3] != (whole, whole):
      x = resize.bilinear(x, whole)
    x = x[:, first:first + size, first:first + size]
    x = x[:, :, ::-1] if mirrored else x
    return (x - jnp.asarray(mean)) / jnp.asarray(std)

  def augment_image(image, key):  # [h, w, ch]
    shift_key, flip_key = jax.random.split(key)
    if 'flip' in augment:
      image = jnp.where(jax.random.bernoulli(flip_key), image[:, ::-1], image)
    if 'shift' not in augment:
      return image
    s = shift_pixels
    padded = jnp.pad(image, ((s, s), (s, s), (0, 0)), mode='reflect')
    y, x = jax.random.randint(shift_key, (2,), 0, 2 * s + 1)
    return jax.lax.dynamic_slice(padded, (y, x, 0), image.shape)

  return prepare


def make_prepare_maps(augment: str) -> Prepare:
  """Makes the function that chooses the maps that a network reads.

  Args:
    augment: 'none' or 'flip'.

  Returns:
    prepare(maps [b, 2, h, w, ch], keys [b] or None, mirrored=False) -> [b, h, w, ch] float32, of
    the images or their mirror images; with keys, of those that `make_prepare` would have flipped.
  """

  def prepare(maps, keys, mirrored=False):
    view = jnp.full(len(maps), int(mirrored))
    if keys is not None and augment == 'flip':
      view = jax.vmap(lambda key: jax.random.bernoulli(jax.random.split(key)[1]))(keys).astype(int)
    return maps[jnp.arange(len(maps)), view].astype(jnp.float32)

  return prepare
