"""The multi-head structures of MAH, section 3.2, and the network they complete."""

import jax
from flax import linen as nn


class FlatHeads(nn.Module):
  """Eq. 2: every head is a linear map of the feature, independent of the others.

  Attributes:
    code_lengths: bits per head, ascending.
  """

  code_lengths: tuple[int, ...]

  @nn.compact
  def __call__(self, features: jax.Array) -> tuple[jax.Array, ...]:
    """[b, D] -> tanh embeddings ([b, c], ...) in the order of `code_lengths`."""
    return tuple(nn.tanh(nn.Dense(c, name=f'bits{c}')(features))
                 for c in self.code_lengths)


class CascadedHeads(nn.Module):
  """Eq. 3: the longest head reads the feature, each shorter one the next longer.

  The chain is linear; tanh is applied to what is returned, never between two heads.

  Attributes:
    code_lengths: bits per head, ascending.
  """

  code_lengths: tuple[int, ...]

  @nn.compact
  def __call__(self, features: jax.Array) -> tuple[jax.Array, ...]:
    """[b, D] -> tanh embeddings ([b, c], ...) in the order of `code_lengths`."""
    x, embeddings = features, []
    for c in reversed(self.code_lengths):
      x = nn.Dense(c, name=f'bits{c}')(x)  # [b, c]
      embeddings.append(nn.tanh(x))
    return tuple(reversed(embeddings))


class HashNetwork(nn.Module):
  """A backbone and the heads on its features.

  Attributes:
    backbone: module, (images [b, h, w, channels], train) -> features [b, D].
    heads: module, features [b, D] -> embeddings ([b, c], ...).
  """

  backbone: nn.Module
  heads: nn.Module

  def __call__(self, images: jax.Array, train: bool) -> tuple[jax.Array, ...]:
    """[b, h, w, channels] -> tanh embeddings ([b, c], ...), shortest code first."""
    return self.heads(self.backbone(images, train))


HEADS = {'flat': FlatHeads, 'cascaded': CascadedHeads}
