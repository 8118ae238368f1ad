"""The encoder: a network and the pixels it reads, ready to turn images into outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax.data import images as images_lib
from mah_jax.data import pipeline
from mah_jax.data import stream
from mah_jax.models import precision as precision_lib
from mah_jax.train import memory
from mah_jax.train import step as step_lib

FEATURES_PER_CALL = 4096
CHANNELS = 3  # photographs are decoded to red, green and blue


class Encoder:
  """A module (images, train) -> outputs [b, D], and the way of its images from disk to device.

  Features, or the maps of frozen stages, may take the place of images.

  prepare: what turns stored images into those that the module reads, see data/pipeline.py.
  input_shape: the shape of one image that the module can read, [h, w, ch], or of a feature, [D].
  precision: of backbones.
  forward: (variables, images) -> outputs, the program that the devices run.
  """

  def __init__(self, config: config_lib.Config, module: nn.Module,
               reads: pipeline.Pixels | pipeline.Maps | pipeline.Vectors, devices: step_lib.Devices,
               method: str | None = None):
    """Compiles nothing yet; `method` is called in the place of the module itself."""
    self._batch_size, self._resident_mb = config.batch_size, config.resident_mb
    if isinstance(reads, pipeline.Vectors):
      self.prepare = lambda features, keys, mirrored=False: features
      self.input_shape = reads
      self.precision, mirror = precision_lib.FLOAT32, False
      # Nothing in such a network looks at the batch, and many short calls would take longer.
      self._batch_size *= max(1, FEATURES_PER_CALL // self._batch_size)
    else:
      pixels = reads.pixels if isinstance(reads, pipeline.Maps) else reads
      self.prepare = (
          pipeline.make_prepare_maps(config.augment) if isinstance(reads, pipeline.Maps) else
          pipeline.make_prepare(pixels, crop=config.crop, augment=config.augment,
                                shift_pixels=config.shift_pixels))
      self.input_shape = (pixels.size, pixels.size, pixels.channels)
      self._shape = {'side': pipeline.whole_side(pixels.size, config.crop),
                     'channels': pixels.channels}
      self.precision, mirror = precision_lib.PRECISIONS[config.precision], config.mirror
    self._devices = devices
    self.forward = step_lib.make_forward(module, self.prepare, self.precision, mirror, method)
    self._encode = step_lib.make_encode(devices, self.forward)

  def stored(self, images: np.ndarray | images_lib.Encoded) -> jax.ShapeDtypeStruct:
    """Shape and type of one of these images as it comes to the devices."""
    if isinstance(images, np.ndarray):
      return jax.ShapeDtypeStruct(images.shape[1:], images.dtype)
    side = self._shape['side']
    return jax.ShapeDtypeStruct((side, side, self._shape['channels']), np.uint8)

  def feed(self, images: np.ndarray | images_lib.Encoded,
           room: int | None = None) -> step_lib.Feed:
    """Brings rows of images to the devices: all at once where they are few, else by batches.

    `room` is the number of bytes that the images may take on each device; None: it is not known.
    """
    one = self.stored(images)
    size = len(images) * math.prod(one.shape) * one.dtype.itemsize
    if size > self._resident_mb * memory.MEGABYTE:
      return self.stream(images)
    if room is not None and size > room:
      console.say(f'The images stream: they have {size / memory.MEGABYTE:.0f} MB, and the devices '
                  f'{room / memory.MEGABYTE:.0f} MB beside what training needs.')
      return self.stream(images)
    if not isinstance(images, np.ndarray):
      images = self._decode(images)
    try:
      return step_lib.make_feed(self._devices, images)
    except jax.errors.JaxRuntimeError as error:
      if not step_lib.is_out_of_memory(error):
        raise
      raise errors.InputError(
          f'The devices have too little memory for all images, {size / memory.MEGABYTE:.0f} MB: '
          'lower --resident_mb below that, so that they stream.') from error

  def small_batch(self, rows: int) -> int:
    """The size of batches for so many rows: a power of two for few, so that one takes no longer."""
    power = 1 << max(0, rows - 1).bit_length()
    return min(step_lib.round_up(power, self._devices.devices), self._batch_size)

  def _decode(self, images: images_lib.Encoded) -> np.ndarray:
    """The pixels of all images, [rows, side, side, ch] uint8."""
    batches = list(pipeline.batches(np.arange(len(images)), self._batch_size))
    shares = [self._devices.share(batch.row) for batch in batches]
    with console.bar(len(images), 'decoding images') as bar:
      parts = []
      for batch, part in zip(batches, stream.Stream(images, shares, **self._shape)):
        parts.append(self._devices.join(part)[batch.valid > 0])
        bar.update(len(parts[-1]))
    return np.concatenate(parts)

  def stream(self, images: np.ndarray | images_lib.Encoded,
             on_bad: Callable[[int, str], None] | None = None) -> step_lib.Feed:
    """Brings images to the devices batch by batch, whatever their number.

    An image that cannot be decoded is told to on_bad(row, reason) and fed as black, or raises
    errors.InputError where on_bad is None.
    """
    if isinstance(images, np.ndarray):
      return step_lib.make_streaming_feed(
          self._devices, lambda batches: (images[rows] for rows in batches))
    return step_lib.make_streaming_feed(
        self._devices,
        lambda batches: stream.Stream(images, batches, on_bad=on_bad, **self._shape))

  def outputs(self, variables: dict[str, Any], feed: step_lib.Feed, rows: np.ndarray,
              batch_size: int = 0) -> Iterator[Any]:
    """Outputs of the module for rows that `feed` brings, batch by batch, each [B, D]."""
    batches = list(pipeline.batches(rows, batch_size or self._batch_size))
    for batch, images in zip(batches, feed(batch.row for batch in batches)):
      outputs = self._encode(variables, images)
      yield jax.tree.map(lambda u, valid=batch.valid: u[valid > 0], outputs)

  def __call__(self, variables: dict[str, Any], feed: step_lib.Feed, rows: np.ndarray,
               name: str) -> Any:
    """The `outputs` of all rows at once, each [rows, D], under a progress bar of this name."""
    parts = []
    with console.bar(len(rows), name) as bar:
      for part in self.outputs(variables, feed, rows):
        parts.append(part)
        bar.update(len(jax.tree.leaves(part)[0]))
    return jax.tree.map(lambda *us: np.concatenate(us), *parts)


def input_size(config: config_lib.Config,
               images: np.ndarray | images_lib.Encoded) -> tuple[int, int]:
  """Side and channels of the images that a network reads when it is trained on these."""
  if isinstance(images, np.ndarray):
    _, h, _, channels = images.shape
    return config.image_size or h, channels
  if not config.image_size:
    raise errors.UsageError('--image_size=0 keeps the size of the images, which may differ from '
                            'one to the next: give one, such as --image_size=224.')
  return config.image_size, CHANNELS
