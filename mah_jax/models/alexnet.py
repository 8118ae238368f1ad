"""AlexNet as torchvision defines it (Krizhevsky 2014, "One weird trick")."""

import functools

import jax
from flax import linen as nn

from mah_jax.models import dropout
from mah_jax.models import imagenet
from mah_jax.models import layers

MIN_PIXELS = 63  # the first convolution and three poolings leave one pixel
GRID = 6  # pixels: the fully connected layers read images of this side
# The columns are the number of the layer in torchvision's `features`, channels, size, stride,
# padding, and whether a pooling follows.
CONVOLUTIONS = (
    (0, 64, 11, 4, 2, True),
    (3, 192, 5, 1, 2, True),
    (6, 384, 3, 1, 1, False),
    (8, 256, 3, 1, 1, False),
    (10, 256, 3, 1, 1, True),
)


class AlexNet(nn.Module):
  """Five convolutions and three fully connected layers, named as in torchvision.

  Its `features.0` is called `features_0`, its `classifier.1` `classifier_1`, and so on.

  Attributes:
    feature: 'pooled', the second layer of 4096, or 'logits', the 1000-way layer on it.
    axis_name: mapped axis over which the batch is spread, or None.
    platform: see `layers.choose`.
  """

  feature: str = 'pooled'
  axis_name: str | None = None
  platform: str = 'cpu'

  @nn.compact
  def __call__(self, images: jax.Array, train: bool) -> jax.Array:
    """Features of normalised RGB images.

    Args:
      images: float32, [b, h, w, 3], at least 63 pixels high and wide.
      train: apply dropout, which takes a random key named 'dropout'.

    Returns:
      [b, D]; D is 4096 for pooled features and 1000 for logits.
    """
    imagenet.check_input('AlexNet', images, self.feature, MIN_PIXELS)
    drop = functools.partial(dropout.Dropout, imagenet.DROPOUT_RATE, self.axis_name)
    conv = imagenet.make_conv(self.platform)
    max_pool = layers.choose(self.platform).max_pool
    x = images
    for layer, channels, size, stride, padding, pooled in CONVOLUTIONS:
      x = nn.relu(conv(channels, (size, size), stride, padding=padding,
                       name=f'features_{layer}')(x))
      if pooled:
        x = max_pool(x, 3)
    x = drop(name='classifier_0')(imagenet.flat_grid(x, GRID), train)  # [b, 9216]
    x = nn.relu(imagenet.Dense(4096, name='classifier_1')(x))
    x = drop(name='classifier_3')(x, train)
    x = nn.relu(imagenet.Dense(4096, name='classifier_4')(x))
    if self.feature == 'pooled':
      return x
    return imagenet.Dense(imagenet.NUM_CLASSES, name='classifier_6')(x)
