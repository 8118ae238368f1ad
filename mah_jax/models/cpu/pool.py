"""The max-pooling for CPUs: nn.max_pool with stride 2 and a quick gradient."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def max_pool(x: jax.Array, size: int, padding: int = 0) -> jax.Array:
  """Takes the maximum of each window of size x size pixels; windows are 2 pixels apart.

  The gradient of an output goes to the first pixel of its window that has the maximum.

  Args:
    x: [b, h, w, c].
    size: side of a window in pixels.
    padding: pixels of minus infinity on each side of the image.

  Returns:
    [b, (h + 2 padding - size) // 2 + 1, (w + 2 padding - size) // 2 + 1, c].
  """
  return _forward(x, size, padding)[0]


def _forward(x, size, padding):
  """The maxima, and for the gradient the offset of each in its window, [b, h', w', c] int8.

  Pixels of a window have the offsets 0 to size * size - 1, row by row.
  """
  around = (padding, padding)
  padded = jnp.pad(x, ((0, 0), around, around, (0, 0)), constant_values=-jnp.inf)
  rows, columns = (side - size + 1 for side in padded.shape[1:3])
  maximum, offset = -jnp.inf, jnp.int8(0)
  for k in range(size * size):
    value = padded[:, k // size:k // size + rows:2, k % size:k % size + columns:2]
    offset = jnp.where(value > maximum, jnp.int8(k), offset)
    maximum = jnp.maximum(maximum, value)
  return maximum, (offset, x.shape)


def _backward(size, padding, saved, g):
  offset, (_, h, w, _) = saved
  rows, columns = g.shape[1:3]
  dx = 0.0
  for k in range(size * size):
    top, left = k // size - padding, k % size - padding
    dx += jax.lax.pad(jnp.where(offset == k, g, 0), jnp.zeros((), g.dtype), (
        (0, 0, 0), (top, h - top - 2 * rows + 1, 1), (left, w - left - 2 * columns + 1, 1),
        (0, 0, 0)))
  return (dx,)


max_pool.defvjp(_forward, _backward)
