"""VGG without batch norm as torchvision defines it (Simonyan and Zisserman 2015)."""

import functools

import jax
from flax import linen as nn

from mah_jax.models import dropout
from mah_jax.models import imagenet
from mah_jax.models import pool

MIN_PIXELS = 32  # five poolings by two leave one pixel
GRID = 7  # side in pixels of what the fully connected layers read
STAGE_CHANNELS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
  """Stages of 3x3 convolutions and three fully connected layers, named as in torchvision.

  Its `features.0` is called `features_0`, its `classifier.3` `classifier_3`, and so on.

  Attributes:
    stage_sizes: convolutions per stage; (1, 1, 2, 2, 2) is VGG-11, (2, 2, 3, 3, 3) VGG-16.
    feature: 'pooled', the second layer of 4096, or 'logits', the 1000-way layer on it.
    axis_name: mapped axis over which the batch is spread, or None.
  """

  stage_sizes: tuple[int, ...]
  feature: str = 'pooled'
  axis_name: str | None = None

  @nn.compact
  def __call__(self, images: jax.Array, train: bool) -> jax.Array:
    """Features of normalised RGB images.

    Args:
      images: float32, [b, h, w, 3], at least 32 pixels high and wide.
      train: drop out, by a random key named 'dropout'.

    Returns:
      [b, D]; D is 4096 for pooled features and 1000 for logits.
    """
    imagenet.check_input('VGG', images, self.feature, MIN_PIXELS)
    drop = functools.partial(dropout.Dropout, imagenet.DROPOUT_RATE, self.axis_name)
    x, place = images, 0  # place in torchvision's `features`, which counts ReLU and pooling
    for channels, num_convolutions in zip(STAGE_CHANNELS, self.stage_sizes, strict=True):
      for _ in range(num_convolutions):
        x = nn.relu(imagenet.Conv(channels, (3, 3), padding=1, name=f'features_{place}')(x))
        place += 2
      x = pool.max_pool(x, 2)
      place += 1
    x = nn.relu(imagenet.Dense(4096, name='classifier_0')(imagenet.flat_grid(x, GRID)))
    x = drop(name='classifier_2')(x, train)
    x = nn.relu(imagenet.Dense(4096, name='classifier_3')(x))
    if self.feature == 'pooled':
      return x
    x = drop(name='classifier_5')(x, train)
    return imagenet.Dense(imagenet.NUM_CLASSES, name='classifier_6')(x)
