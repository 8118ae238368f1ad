"""The batch normalisation for CPUs: nn.BatchNorm, written so that its gradient is cheap."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class BatchNorm(nn.Module):
  """nn.BatchNorm over all axes but the last, with the same parameters and statistics.

  It computes x a + b, one product and one sum for each value, so that its gradient needs only x,
  which the layer before has stored. nn.BatchNorm stores x - mean too, one more pass through memory.

  Attributes:
    use_running_average: normalise by the running statistics, not by those of the batch.
    momentum: share of the running statistics that a training step keeps.
    epsilon: number that is added to variances.
    axis_name: mapped axis over which training synchronises batch statistics, or None.
  """

  use_running_average: bool
  momentum: float
  epsilon: float
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., c] -> [..., c]; updates the running statistics if it uses those of the batch."""
    c = x.shape[-1:]
    scale = self.param('scale', nn.initializers.ones, c)
    bias = self.param('bias', nn.initializers.zeros, c)
    running = {'mean': self.variable('batch_stats', 'mean', jnp.zeros, c),
               'var': self.variable('batch_stats', 'var', jnp.ones, c)}
    mean, var = running['mean'].value, running['var'].value
    if not self.use_running_average:
      mean, var = _moments(x.astype(jnp.promote_types(x.dtype, jnp.float32)),
                           None if self.is_initializing() else self.axis_name)
      if not self.is_initializing():
        for statistic, new in (('mean', mean), ('var', var)):
          old = running[statistic]
          old.value = self.momentum * old.value + (1 - self.momentum) * new
    a = scale * jax.lax.rsqrt(var + self.epsilon)
    return (x * a + (bias - mean * a)).astype(x.dtype)


def _moments(x, axis_name):
  """Mean and variance of x [..., c] over all devices, each [c]."""
  axes = tuple(range(x.ndim - 1))
  mean, square = x.mean(axes), (x * x).mean(axes)
  if axis_name is not None:
    mean, square = jax.lax.pmean(jnp.stack([mean, square]), axis_name)  # in one exchange
  return mean, jnp.maximum(square - mean * mean, 0)
