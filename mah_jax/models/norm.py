"""Batch normalisation of all networks: nn.BatchNorm, written so that its gradient is cheap."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

MOMENTUM = 0.9  # share of the running statistics that a step keeps; PyTorch's 0.1
EPSILON = 1e-5  # added to variances


class BatchNorm(nn.Module):
  """nn.BatchNorm over all axes but the last, with its parameters and statistics.

  It is one product and one sum per value, x a + b. So only x itself, which is there anyway, is
  kept for the gradient; nn.BatchNorm keeps x - mean as well, a pass through memory more.

  Attributes:
    axis_name: mapped axis over which training synchronises batch statistics, or None.
  """

  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """[..., c] -> [..., c], by the statistics of these x in training, else by the running ones."""
    c = x.shape[-1:]
    scale = self.param('scale', nn.initializers.ones, c)
    bias = self.param('bias', nn.initializers.zeros, c)
    running = {'mean': self.variable('batch_stats', 'mean', jnp.zeros, c),
               'var': self.variable('batch_stats', 'var', jnp.ones, c)}
    mean, var = running['mean'].value, running['var'].value
    if train:
      mean, var = _moments(x.astype(jnp.promote_types(x.dtype, jnp.float32)),
                           None if self.is_initializing() else self.axis_name)
      if not self.is_initializing():
        for statistic, new in (('mean', mean), ('var', var)):
          old = running[statistic]
          old.value = MOMENTUM * old.value + (1 - MOMENTUM) * new
    a = scale * jax.lax.rsqrt(var + EPSILON)
    return (x * a + (bias - mean * a)).astype(x.dtype)


def _moments(x, axis_name):
  """Mean and variance of x [..., c] over all devices, each [c]."""
  axes = tuple(range(x.ndim - 1))
  mean, square = x.mean(axes), (x * x).mean(axes)
  if axis_name is not None:
    mean, square = jax.lax.pmean((mean, square), axis_name)
  return mean, jnp.maximum(square - mean * mean, 0)
