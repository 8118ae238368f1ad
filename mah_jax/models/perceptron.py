"""Networks on features: fully connected layers, and their join with the backbone before them."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class Perceptron(nn.Module):
  """Fully connected layers with ReLU on standardised features.

  The mean and deviation of the features are batch statistics, which a run sets once.

  Attributes:
    hidden: units of each layer; empty: the standardised features are returned.
  """

  hidden: tuple[int, ...]

  @nn.compact
  def __call__(self, features: jax.Array, train: bool) -> jax.Array:
    """[b, D] -> [b, units of the last layer, or D]."""
    del train
    size = features.shape[-1:]
    mean = self.variable('batch_stats', 'mean', jnp.zeros, size).value
    deviation = self.variable('batch_stats', 'deviation', jnp.ones, size).value
    x = (features - mean) / deviation
    for i, units in enumerate(self.hidden):
      x = nn.relu(nn.Dense(units, kernel_init=nn.initializers.he_normal(),
                           name=f'layer{i + 1}')(x))
    return x


class Flatten(nn.Module):
  """The pixels themselves as features."""

  def __call__(self, images: jax.Array, train: bool) -> jax.Array:
    """[b, h, w, channels] -> [b, h * w * channels]."""
    del train
    return images.reshape(images.shape[0], -1)


class OnFeatures(nn.Module):
  """A network on features, and the frozen backbone before it: images to outputs.

  Attributes:
    backbone: module, (images [b, h, w, channels], train) -> features [b, D].
    network: module, (features, train) -> outputs.
    mirror: give the network the mean feature of an image and its mirror image.
  """

  backbone: nn.Module
  network: nn.Module
  mirror: bool = False

  def with_features(self, images: jax.Array, train: bool
                    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """[b, h, w, channels] -> the outputs of the network and the features that it reads, [b, D]."""
    features = self.backbone(images, False)
    if self.mirror:
      features = (features + self.backbone(images[:, :, ::-1], False)) / 2
    return self.network(features, train), features
