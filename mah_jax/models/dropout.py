"""Dropout whose masks do not depend on the number of devices."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class Dropout(nn.Module):
  """Zeros each value with probability `rate` in training and scales up the others.

  The mask of an image follows from the key 'dropout', which all devices share, and from
  the place of the image in the whole batch.

  Attributes:
    rate: probability of a zero.
    axis_name: mapped axis over which the batch is spread, or None.
  """

  rate: float
  axis_name: str | None

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """[b, D] -> [b, D]; returns x itself unless `train` is set."""
    if not train:
      return x
    b, size = x.shape
    place = jnp.arange(b)
    if self.axis_name is not None:
      place += jax.lax.axis_index(self.axis_name) * b
    keys = jax.vmap(jax.random.fold_in, (None, 0))(self.make_rng('dropout'), place)
    keep = 1.0 - self.rate
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, keep, (size,)))(keys)
    return jnp.where(kept, x / keep, 0.0)
