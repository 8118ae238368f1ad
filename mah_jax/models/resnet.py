"""ResNets as torchvision defines them (He et al. 2016), and ResNet-50 as the paper strides it."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from mah_jax.models import imagenet
from mah_jax.models import layers


def _conv(make: Callable[..., nn.Conv], channels: int, size: int, strides: int,
          name: str) -> nn.Conv:
  """A convolution without bias, padded alike on both sides; SAME would not be."""
  return make(channels, (size, size), strides, padding=size // 2, use_bias=False, name=name)


def _add_shortcut(x: jax.Array, y: jax.Array, strides: int, conv: Callable[..., nn.Module],
                  norm: Callable[..., nn.Module]) -> jax.Array:
  """ReLU of x + y; x is projected first where a block changes the shape."""
  if x.shape != y.shape:
    x = norm(name='downsample_bn')(conv(y.shape[-1], 1, strides, 'downsample_conv')(x))
  return nn.relu(x + y)


class BasicBlock(nn.Module):
  """Two 3x3 convolutions around a shortcut.

  Attributes:
    channels: channels of both convolutions.
    strides: step of the block in pixels, 1 or 2.
    conv: makes a convolution, given its channels, size, strides and name.
    norm: makes a batch normalisation, given its name.
  """

  channels: int
  strides: int
  conv: Callable[..., nn.Module]
  norm: Callable[..., nn.Module]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[b, h, w, any] -> [b, h / strides, w / strides, channels]."""
    y = self.conv(self.channels, 3, self.strides, 'conv1')(x)
    y = nn.relu(self.norm(name='bn1')(y))
    y = self.conv(self.channels, 3, 1, 'conv2')(y)
    y = self.norm(name='bn2')(y)
    return _add_shortcut(x, y, self.strides, self.conv, self.norm)


class Bottleneck(nn.Module):
  """Convolutions 1x1, 3x3 and 1x1 around a shortcut.

  Attributes:
    channels: channels of the first two convolutions; the output has four times as many.
    strides: step of the block in pixels, 1 or 2.
    conv: as in `BasicBlock`.
    norm: as in `BasicBlock`.
    stride_on_1x1: the first 1x1 convolution takes the step (v1), not the 3x3 (v1.5).
  """

  channels: int
  strides: int
  conv: Callable[..., nn.Module]
  norm: Callable[..., nn.Module]
  stride_on_1x1: bool

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[b, h, w, any] -> [b, h / strides, w / strides, 4 * channels]."""
    first, second = (self.strides, 1) if self.stride_on_1x1 else (1, self.strides)
    y = self.conv(self.channels, 1, first, 'conv1')(x)
    y = nn.relu(self.norm(name='bn1')(y))
    y = self.conv(self.channels, 3, second, 'conv2')(y)
    y = nn.relu(self.norm(name='bn2')(y))
    y = self.conv(4 * self.channels, 1, 1, 'conv3')(y)
    y = self.norm(name='bn3')(y)
    return _add_shortcut(x, y, self.strides, self.conv, self.norm)


class ResNet(nn.Module):
  """A residual network; its parts are named as in torchvision.

  Block `layer1.0` is called `layer1_0` and its `downsample.0` and `downsample.1` are
  `downsample_conv` and `downsample_bn`; everything else keeps its name.

  Attributes:
    stage_sizes: blocks per stage; (3, 4, 6, 3) is ResNet-50 or, with basic blocks, ResNet-34.
    stride_on_1x1: build v1, the network of the paper, not v1.5, which torchvision has.
    feature: 'pooled', the averaged last stage, or 'logits', the 1000-way layer on it.
    axis_name: mapped axis over which training synchronises batch statistics, or None.
    basic_blocks: the blocks are `BasicBlock`, without 1x1 convolutions, not `Bottleneck`.
    platform: see `layers.choose`.
    frozen_stages: so many stages, and the layers before them, pass no gradient.
  """

  stage_sizes: tuple[int, ...] = (3, 4, 6, 3)
  stride_on_1x1: bool = False
  feature: str = 'pooled'
  axis_name: str | None = None
  basic_blocks: bool = False
  platform: str = 'cpu'
  frozen_stages: int = 0

  def frozen_parts(self) -> set[str]:
    """The names of the parts that pass no gradient."""
    sizes = self.stage_sizes[:self.frozen_stages]
    blocks = {f'layer{i + 1}_{j}' for i, size in enumerate(sizes) for j in range(size)}
    return blocks | {'conv1', 'bn1'} if blocks else blocks

  def maps(self, images: jax.Array, train: bool = False) -> jax.Array:
    """What the frozen stages make of images and of their mirror images.

    Every one of these maps can take the place of its image in `__call__`.

    Args:
      images: float32, [b, h, w, 3].
      train: as in `__call__`.

    Returns:
      [b, 2, h', w', channels]; where the next block reads every second pixel only, there are no
      others.
    """
    both = jnp.stack([images, images[:, :, ::-1]], axis=1)
    x = self(both.reshape(-1, *images.shape[1:]), train, self.frozen_stages)
    return x.reshape(*both.shape[:2], *x.shape[1:])

  @nn.compact
  def __call__(self, images: jax.Array, train: bool, stages: int | None = None) -> jax.Array:
    """Features of normalised RGB images, or of the maps that some stages have made of them.

    Args:
      images: float32, [b, h, w, 3], or maps [b, h', w', channels], whose channels tell the stages
        that they come from.
      train: normalise with batch statistics and update the running ones.
      stages: return the map after so many stages; None: the feature.

    Returns:
      [b, D]; D is 1000 for logits; for the pooled features of four stages it is 512 with
      basic blocks and 2048 with bottlenecks.
    """
    widths = [(64 if self.basic_blocks else 256) * 2**i for i in range(len(self.stage_sizes))]
    done = widths.index(images.shape[-1]) + 1 if images.shape[-1] in widths else 0
    if not done:
      imagenet.check_input('A ResNet', images, self.feature)
    layer = layers.choose(self.platform)
    conv = functools.partial(_conv, imagenet.make_conv(self.platform))
    norm = functools.partial(
        layer.BatchNorm, use_running_average=not train, axis_name=self.axis_name)
    block = BasicBlock if self.basic_blocks else functools.partial(
        Bottleneck, stride_on_1x1=self.stride_on_1x1)
    x = images
    if not done:
      x = nn.relu(norm(name='bn1')(conv(64, 7, 2, 'conv1')(x)))
      x = layer.max_pool(x, 3, padding=1)
    for i, num_blocks in list(enumerate(self.stage_sizes))[done:stages]:
      # The max-pool has halved for the first stage, and maps of v1 are halved already.
      halves = i > 0 and not (self.stride_on_1x1 and i == done)
      for j in range(num_blocks):
        x = block(64 * 2**i, 2 if halves and j == 0 else 1, conv, norm,
                  name=f'layer{i + 1}_{j}')(x)
      if i + 1 == self.frozen_stages:
        x = jax.lax.stop_gradient(x)
    if stages is not None:
      thins = self.stride_on_1x1 and stages < len(self.stage_sizes)
      return x[:, ::2, ::2] if thins else x
    x = x.mean(axis=(1, 2))  # [b, D]
    if self.feature == 'pooled':
      return x
    return nn.Dense(imagenet.NUM_CLASSES, name='fc')(x)
