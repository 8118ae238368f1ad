"""A small convolutional network for 8 to 64 pixel images that trains on a CPU."""

import functools
from collections.abc import Callable

import jax
from flax import linen as nn

from mah_jax import errors
from mah_jax.models import layers

MIN_PIXELS = 8  # three poolings by two leave one pixel
STEM_CHANNELS = 24


class Block(nn.Module):
  """Convolution, pooling by two, convolution; each half ends in batch norm and GELU.

  Attributes:
    channels: output channels of both convolutions.
    conv: makes a convolution, as nn.Conv does.
    max_pool: see `layers.Layers`.
    norm: makes a batch normalisation, given its name.
  """

  channels: int
  conv: Callable[..., nn.Module]
  max_pool: Callable[..., jax.Array]
  norm: Callable[..., nn.Module]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[b, h, w, any] -> [b, h // 2, w // 2, channels]."""
    x = self.max_pool(self.conv(self.channels, (3, 3), name='conv1')(x), 2)
    x = nn.gelu(self.norm(name='bn1')(x))
    x = self.conv(self.channels, (3, 3), name='conv2')(x)
    return nn.gelu(self.norm(name='bn2')(x))


class Compact(nn.Module):
  """A stem and three blocks, then the maximum over the image.

  Attributes:
    width: channels of the first block; the other two have four times as many.
    axis_name: mapped axis over which training synchronises batch statistics, or None.
    platform: see `layers.choose`.
  """

  width: int
  axis_name: str | None = None
  platform: str = 'cpu'

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
    layer = layers.choose(self.platform)
    conv = functools.partial(layer.Conv, use_bias=False)
    norm = functools.partial(
        layer.BatchNorm, use_running_average=not train, axis_name=self.axis_name)
    x = nn.gelu(conv(STEM_CHANNELS, (2, 2), name='stem')(images))
    for i, multiple in enumerate((1, 4, 4)):
      x = Block(multiple * self.width, conv, layer.max_pool, norm, name=f'block{i + 1}')(x)
    return x.max(axis=(1, 2))
