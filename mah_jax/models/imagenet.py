"""Parts that the networks for ImageNet share: layers, pixel statistics, checks of the input."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from mah_jax import errors
from mah_jax.models import layers

FEATURES = ('pooled', 'logits')
NUM_CLASSES = 1000  # outputs of the top layer
DROPOUT_RATE = 0.5  # AlexNet and VGG use it
# The mean and the deviation of ImageNet's pixels: torchvision's networks read
# (RGB - MEAN) / STD, where RGB is in 0..1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

# Torchvision's VGG starts with these weights; biases are zero.
Dense = functools.partial(nn.Dense, kernel_init=nn.initializers.normal(0.01))


def make_conv(platform: str) -> Callable[..., nn.Conv]:
  """Returns the nn.Conv of a platform, with the initial weights of torchvision's ResNet and VGG."""
  return functools.partial(
      layers.choose(platform).Conv,
      kernel_init=nn.initializers.variance_scaling(2.0, 'fan_out', 'normal'))


def check_input(network: str, images: jax.Array, feature: str, min_pixels: int = 1) -> None:
  """Refuses images and features that a network cannot work with.

  Args:
    network: name of the network in the messages.
    images: [b, h, w, 3].
    feature: one of `FEATURES`.
    min_pixels: least height and width from which all poolings leave a pixel.
  """
  if feature not in FEATURES:
    raise errors.UsageError(
        f'--feature={feature} is unknown; use one of {", ".join(FEATURES)}.')
  if images.ndim != 4 or images.shape[-1] != 3:
    raise errors.UsageError(
        f'{network} reads RGB images [b, h, w, 3], not the shape {images.shape}: use '
        '--backbone=compact.')
  _, h, w, _ = images.shape
  if min(h, w) < min_pixels:
    raise errors.UsageError(f'{network} cannot read images of {h} x {w} pixels; '
                            f'use --image_size={min_pixels} or more.')


def flat_grid(x: jax.Array, k: int) -> jax.Array:
  """PyTorch's adaptive average pooling and flattening: [b, h, w, ch] -> [b, ch * k * k].

  Channels come first, as in PyTorch, so that its weights fit the layer that follows.
  """
  rows, columns = (_bins(size, k).astype(x.dtype) for size in x.shape[1:3])
  return jnp.einsum('ih,bhwc,jw->bcij', rows, x, columns).reshape(x.shape[0], -1)


def _bins(size: int, k: int) -> np.ndarray:
  """Row i averages pixels floor(i size / k) to ceil((i + 1) size / k) - 1, [k, size]."""
  i, pixel = np.arange(k)[:, None], np.arange(size)
  inside = (i * size // k <= pixel) & (pixel * k < (i + 1) * size)
  return inside / inside.sum(axis=1, keepdims=True)
