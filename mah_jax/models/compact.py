"""A small convolutional network for 8 to 64 pixel images that trains on a CPU."""

import functools

import jax
from flax import linen as nn

from mah_jax import errors
from mah_jax.models import conv as conv_lib
from mah_jax.models import norm
from mah_jax.models import pool

MIN_PIXELS = 8  # three poolings by two leave one pixel
STEM_CHANNELS = 24

_Conv = functools.partial(nn.Conv, use_bias=False, conv_general_dilated=conv_lib.convolve)


class Block(nn.Module):
  """Convolution, pooling by two, convolution; each half ends in batch norm and GELU.

  Attributes:
    channels: output channels of both convolutions.
    axis_name: see `Compact`.
  """

  channels: int
  axis_name: str | None

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """[b, h, w, any] -> [b, h // 2, w // 2, channels]."""
    conv = functools.partial(_Conv, self.channels, (3, 3))
    x = pool.max_pool(conv(name='conv1')(x), 2)
    x = nn.gelu(norm.BatchNorm(self.axis_name, name='bn1')(x, train))
    x = conv(name='conv2')(x)
    return nn.gelu(norm.BatchNorm(self.axis_name, name='bn2')(x, train))


class Compact(nn.Module):
  """A stem and three blocks, then the maximum over the image.

  Attributes:
    width: channels of the first block; the other two have four times as many.
    axis_name: mapped axis over which training synchronises batch statistics, or None.
  """

  width: int
  axis_name: str | None = None

  @nn.compact
  def __call__(self, images: jax.Array, train: bool) -> jax.Array:
    """Features of normalised images with any number of channels.

    Args:
      images: float32, [b, h, w, channels], at least 8 pixels high and wide.
      train: normalise with batch statistics and update the running ones.

    Returns:
      [b, 4 * width].
    """
    _, h, w, _ = images.shape
    if min(h, w) < MIN_PIXELS:
      raise errors.UsageError(
          f'The compact network cannot read images of {h} x {w} pixels; '
          f'use --image_size={MIN_PIXELS} or more.')
    x = _Conv(STEM_CHANNELS, (2, 2), name='stem')(images)
    x = nn.gelu(x)
    for i, multiple in enumerate((1, 4, 4)):
      x = Block(multiple * self.width, self.axis_name, name=f'block{i + 1}')(x, train)
    return x.max(axis=(1, 2))
