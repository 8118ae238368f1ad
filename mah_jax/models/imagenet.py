"""What the networks for ImageNet share: layers, the way into the top, checks of the input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from mah_jax import errors
from mah_jax.models import conv

FEATURES = ('pooled', 'logits')
NUM_CLASSES = 1000  # outputs of the top layer
DROPOUT_RATE = 0.5  # of AlexNet and VGG

# Initial weights as in torchvision's ResNet and VGG; biases are zero.
Conv = functools.partial(
    nn.Conv, kernel_init=nn.initializers.variance_scaling(2.0, 'fan_out', 'normal'),
    conv_general_dilated=conv.convolve)
Dense = functools.partial(nn.Dense, kernel_init=nn.initializers.normal(0.01))


def check_input(network: str, images: jax.Array, feature: str, min_pixels: int = 1) -> None:
  """Refuses what a network cannot work with.

  Args:
    network: what the messages call it.
    images: [b, h, w, 3].
    feature: one of `FEATURES`.
    min_pixels: least height and width that leave a pixel after all poolings.
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
  return jnp.einsum('ih,bhwc,jw->bcij', rows, x, columns).reshape(len(x), -1)


def _bins(size: int, k: int) -> np.ndarray:
  """Row i averages pixels floor(i size / k) to ceil((i + 1) size / k) - 1, [k, size]."""
  i, pixel = np.arange(k)[:, None], np.arange(size)
  inside = (i * size // k <= pixel) & (pixel * k < (i + 1) * size)
  return inside / inside.sum(axis=1, keepdims=True)
