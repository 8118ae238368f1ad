"""The head of DRSCH: linear bits, and a weight for each of them."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class WeightedBits(nn.Module):
  """A linear map of the feature, and a learned weight of each bit, 1 before training.

  Attributes:
    bits: q.
  """

  bits: int

  @nn.compact
  def __call__(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[b, D] -> x [b, q] and the weights, repeated for each image, [b, q]."""
    x = nn.Dense(self.bits, name='bits')(features)
    weights = self.param('weights', nn.initializers.ones, (self.bits,))
    return x, jnp.broadcast_to(weights, x.shape)
