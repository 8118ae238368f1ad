"""The max-pooling of all networks, whose gradient is quick on a CPU."""

import functools

import jax
import jax.numpy as jnp


def max_pool(x: jax.Array, size: int, padding: int = 0) -> jax.Array:
  """The maximum over each window of size x size pixels, every second one in both directions.

  nn.max_pool gives the same, but its gradient takes eight times as long on a CPU. Where a maximum
  is met more than once in its window, the gradient is shared.

  Args:
    x: [b, h, w, c].
    size: of the window.
    padding: pixels of minus infinity around the image.

  Returns:
    [b, (h + 2 padding - size) // 2 + 1, (w + 2 padding - size) // 2 + 1, c].
  """
  around = (padding, padding)
  x = jnp.pad(x, ((0, 0), around, around, (0, 0)), constant_values=-jnp.inf)
  rows, columns = (side - size + 1 for side in x.shape[1:3])
  return functools.reduce(jnp.maximum, [x[:, i:i + rows:2, j:j + columns:2]
                                        for i in range(size) for j in range(size)])
