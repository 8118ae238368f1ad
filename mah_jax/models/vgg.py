"""VGG without batch norm as torchvision defines it (Simonyan and Zisserman 2015)."""

import functools

import jax
from flax import linen as nn

from mah_jax.models import dropout
from mah_jax.models import imagenet
from mah_jax.models import layers

MIN_PIXELS = 32  # five poolings by two leave one pixel
GRID = 7  # pixels: the fully connected layers read images of this side
STAGE_CHANNELS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
  """Stages of 3x3 convolutions and three fully connected layers, named as in torchvision.

  Its `features.0` is called `features_0`, its `classifier.3` `classifier_3`, and so on.

  Attributes:
    stage_sizes: convolutions per stage; (1, 1, 2, 2, 2) is VGG-11, (2, 2, 3, 3, 3) VGG-16.
    feature: 'pooled', the second layer of 4096, or 'logits', the 1000-way layer on it.
    axis_name: mapped axis over which the batch is spread, or None.
    platform: see `layers.choose`.
  """

  stage_sizes: tuple[int, ...]
  feature: str = 'pooled'
  axis_name: str | None = None
  platform: str = 'cpu'

  @nn.compact
  def __call__(self, images: jax.Array, train: bool) -> jax.Array:
    """Features of normalised RGB images.

    Args:
      images: float32, [b, h, w, 3], at least 32 pixels high and wide.
      train: apply dropout, which takes a random key named 'dropout'.

    Returns:
      [b, D]; D is 4096 for pooled features and 1000 for logits.
    """
    imagenet.check_input('VGG', images, self.feature, MIN_PIXELS)
    drop = functools.partial(dropout.Dropout, imagenet.DROPOUT_RATE, self.axis_name)
    conv = imagenet.make_conv(self.platform)
    max_pool = layers.choose(self.platform).max_pool
    x, layer = images, 0  # torchvision's `features` numbers ReLU and pooling as layers too
    for channels, num_convolutions in zip(STAGE_CHANNELS, self.stage_sizes, strict=True):
      for _ in range(num_convolutions):
        x = nn.relu(conv(channels, (3, 3), padding=1, name=f'features_{layer}')(x))
        layer += 2
      x = max_pool(x, 2)
      layer += 1
    x = nn.relu(imagenet.Dense(4096, name='classifier_0')(imagenet.flat_grid(x, GRID)))
    x = drop(name='classifier_2')(x, train)
    x = nn.relu(imagenet.Dense(4096, name='classifier_3')(x))
    if self.feature == 'pooled':
      return x
    x = drop(name='classifier_5')(x, train)
    return imagenet.Dense(imagenet.NUM_CLASSES, name='classifier_6')(x)
