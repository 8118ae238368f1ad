"""The convolution for CPUs: XLA's, or a matrix product in the cases where XLA's is slow."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

SMALL_OUTPUT = 2  # pixels: XLA's convolution is up to 60 times slower for outputs of this side
SMALL_PATCH = 16  # values: the gradient of XLA's convolution is slow for patches of this size


def convolve(x: jax.Array, kernel: jax.Array, strides: Sequence[int],
             padding: str | Sequence[tuple[int, int]], **options) -> jax.Array:
  """Computes lax.conv_general_dilated for the layouts of nn.Conv, in one of three ways.

  Args:
    x: [b, h, w, ci].
    kernel: [k, k, ci, co].
    strides: steps of the window in pixels, down and to the right.
    padding: 'SAME', 'VALID' or (low, high) for height and width.
    **options: the layouts, dilations, groups and precision that nn.Conv passes on.

  Returns:
    [b, h', w', co].
  """
  k = kernel.shape[:2]
  pads = jax.lax.padtype_to_pads(x.shape[1:3], k, strides, padding) if isinstance(
      padding, str) else padding
  side = min((size + sum(pad) - width) // stride + 1
             for size, pad, width, stride in zip(x.shape[1:3], pads, k, strides))
  plain = kernel.shape[2] == x.shape[3] and all(
      set(options.get(name) or (1,)) == {1} for name in ('lhs_dilation', 'rhs_dilation'))
  if plain and k == (1, 1) and not any(map(any, pads)):
    return _product(x[:, ::strides[0], ::strides[1]], kernel[0, 0])
  if plain and (side <= SMALL_OUTPUT or k[0] * k[1] * x.shape[3] <= SMALL_PATCH):
    return _by_patches(x, kernel, strides, pads)
  return jax.lax.conv_general_dilated(x, kernel, strides, padding, **options)


def _by_patches(x, kernel, strides, pads):
  """Multiplies all patches, [b, h', w', k * k * ci], with the kernel in one product."""
  height, width = kernel.shape[:2]
  x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
  rows, columns = (x.shape[axis + 1] - kernel.shape[axis] + 1 for axis in (0, 1))
  patches = [x[:, i:i + rows:strides[0], j:j + columns:strides[1]]
             for i in range(height) for j in range(width)]
  return _product(jnp.concatenate(patches, axis=-1), kernel.reshape(-1, kernel.shape[-1]))


@jax.custom_vjp
def _product(x: jax.Array, w: jax.Array) -> jax.Array:
  """x @ w for x [..., i] and w [i, o]; its gradient for w transposes the smaller of x and g.

  The gradient that XLA derives transposes g, the gradient of the product, even where g is four
  times as large as x.
  """
  return x @ w


def _forward(x, w):
  return x @ w, (x, w)


def _backward(saved, g):
  x, w = saved
  i, o = w.shape
  rows, down = x.reshape(-1, i), g.reshape(-1, o)
  over_rows = (((0,), (0,)), ((), ()))
  dw = (jax.lax.dot_general(rows, down, over_rows) if i < o
        else jax.lax.dot_general(down, rows, over_rows).T)
  return g @ w.T, dw


_product.defvjp(_forward, _backward)
