"""Heads, which map features to the outputs of a method, and the networks that they complete.

Equations are those of the MAH paper, section 3.2. `readers` of heads are the names of their layers
that read the features; other layers read those.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class FlatHeads(nn.Module):
  """Eq. 2: every head is a linear map of the feature, independent of the others.

  Attributes:
    code_lengths: bits per head, ascending.
  """

  code_lengths: tuple[int, ...]

  @property
  def readers(self) -> tuple[str, ...]:
    """All layers."""
    return tuple(f'bits{c}' for c in self.code_lengths)

  @nn.compact
  def __call__(self, features: jax.Array) -> tuple[jax.Array, ...]:
    """[b, D] -> tanh embeddings ([b, c], ...) in the order of `code_lengths`."""
    return tuple(nn.tanh(nn.Dense(c, name=f'bits{c}')(features))
                 for c in self.code_lengths)


class CascadedHeads(nn.Module):
  """Eq. 3: the longest head reads the feature, each shorter one the next longer.

  The chain is linear: tanh is applied to the outputs, never between two heads.

  Attributes:
    code_lengths: bits per head, ascending.
  """

  code_lengths: tuple[int, ...]

  @property
  def readers(self) -> tuple[str, ...]:
    """The longest head."""
    return (f'bits{self.code_lengths[-1]}',)

  @nn.compact
  def __call__(self, features: jax.Array) -> tuple[jax.Array, ...]:
    """[b, D] -> tanh embeddings ([b, c], ...) in the order of `code_lengths`."""
    x, embeddings = features, []
    for c in reversed(self.code_lengths):
      x = nn.Dense(c, name=f'bits{c}')(x)  # [b, c]
      embeddings.append(nn.tanh(x))
    return tuple(reversed(embeddings))


class LinearHead(nn.Module):
  """One linear map without an activation.

  Attributes:
    size: number of outputs.
  """

  size: int
  readers = ('linear',)

  @nn.compact
  def __call__(self, features: jax.Array) -> tuple[jax.Array]:
    """[b, D] -> ([b, size],)."""
    return (nn.Dense(self.size, name='linear')(features),)


class WeightedBits(nn.Module):
  """One linear map, and a learned weight for each bit, which is 1 before training.

  Attributes:
    bits: number of bits, c.
  """

  bits: int
  readers = ('bits',)

  @nn.compact
  def __call__(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[b, D] -> bits [b, c] and their weights, repeated for each image, [b, c]."""
    x = nn.Dense(self.bits, name='bits')(features)
    weights = self.param('weights', nn.initializers.ones, (self.bits,))
    return x, jnp.broadcast_to(weights, x.shape)


def fold(heads: nn.Module, params: dict[str, Any], mean: jax.Array,
         deviation: jax.Array) -> dict[str, Any]:
  """Moves the scaling of features into the heads that read them.

  Args:
    heads: the module.
    params: its parameters, for features that are scaled.
    mean, deviation: a feature x is scaled to (x - mean) / deviation, [D].

  Returns:
    Parameters with which the heads make the same of x as they made of the scaled feature.
  """
  folded = dict(params)
  for name in heads.readers:
    kernel = params[name]['kernel'] / deviation[:, None]  # [D, w]
    folded[name] = {'kernel': kernel, 'bias': params[name]['bias'] - mean @ kernel}
  return folded


class HashNetwork(nn.Module):
  """A backbone and the heads on its features.

  Attributes:
    backbone: module, (images [b, h, w, channels], train) -> features [b, D].
    heads: module, features [b, D] -> outputs ([b, w], ...).
  """

  backbone: nn.Module
  heads: nn.Module

  def __call__(self, images: jax.Array, train: bool) -> tuple[jax.Array, ...]:
    """[b, h, w, channels] -> outputs of the heads, ([b, w], ...)."""
    return self.with_features(images, train)[0]

  def with_features(self, images: jax.Array, train: bool
                    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """[b, h, w, channels] -> outputs of the heads and the features that they read, [b, D]."""
    features = self.backbone(images, train)
    return self.heads(features), features


class Towers(nn.Module):
  """Two networks for the same images: one hashes queries, the other the database.

  Attributes:
    backbone: module for queries, (images [b, h, w, channels], train) -> features [b, D].
    heads: module for queries, features [b, D] -> embeddings ([b, c],).
    database_backbone: module for the database, with the shapes of `backbone`.
    database_heads: module for the database, with the shapes of `heads`.
  """

  backbone: nn.Module
  heads: nn.Module
  database_backbone: nn.Module
  database_heads: nn.Module

  def __call__(self, images: jax.Array, train: bool) -> tuple[jax.Array, jax.Array]:
    """[b, h, w, channels] -> tanh embeddings (u, z) of the two towers, each [b, c]."""
    return self.with_features(images, train)[0]

  def with_features(self, images: jax.Array, train: bool
                    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """[b, h, w, channels] -> the same embeddings and the features of queries, [b, D]."""
    features = self.backbone(images, train)
    u, = self.heads(features)
    z, = self.database_heads(self.database_backbone(images, train))
    return (u, z), features


HEADS = {'flat': FlatHeads, 'cascaded': CascadedHeads}
