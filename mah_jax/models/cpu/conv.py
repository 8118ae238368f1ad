"""The convolution for CPUs: XLA's, or matrix products in the cases where XLA's is slow."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import layout

SMALL_OUTPUT = 2  # pixels: XLA's convolution is up to 60 times slower for outputs of this side
SMALL_PATCH = 16  # values: the gradient of XLA's convolution is slow for patches of this size


def convolve(x: jax.Array, kernel: jax.Array, strides: Sequence[int],
             padding: str | Sequence[tuple[int, int]], **options) -> jax.Array:
  """Computes lax.conv_general_dilated for the layouts of nn.Conv, in one of four ways.

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
    x, strides = x[:, ::strides[0], ::strides[1]], (1, 1)
    if x.dtype != jnp.bfloat16:
      return _product(x, kernel[0, 0])
  if plain and x.dtype == jnp.bfloat16 and tuple(strides) == (1, 1):
    return _by_offsets(x, kernel, tuple(map(tuple, pads)))
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


# XLA computes convolutions of bfloat16 numbers in float32, and so the products whose result is of
# bfloat16, and those whose left factor is transposed. All products below have none of this.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _by_offsets(x: jax.Array, kernel: jax.Array, pads: Sequence[tuple[int, int]]) -> jax.Array:
  """Multiplies with each pixel of the kernel in a product of its own, and sums in float32."""
  shifted = _shifted(x, kernel.shape[:2], pads)
  return sum(_dot(rows, pixel, 0) for rows, pixel in zip(shifted, _pixels(kernel))).astype(x.dtype)


def _by_offsets_forward(x, kernel, pads):
  return _by_offsets(x, kernel, pads), (x, kernel)


def _by_offsets_backward(pads, saved, g):
  x, kernel = saved
  k = kernel.shape[:2]
  around = [(size - 1 - low, size - 1 - high) for size, (low, high) in zip(k, pads)]
  back = zip(_shifted(g, k, around), reversed(_pixels(kernel)))
  dx = sum(_dot(rows, pixel, 1) for rows, pixel in back).astype(x.dtype)
  dw = [_kernel_gradient(rows.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1]))
        for rows in _shifted(x, k, pads)]
  return dx, jnp.stack(dw).reshape(kernel.shape).astype(kernel.dtype)


_by_offsets.defvjp(_by_offsets_forward, _by_offsets_backward)


def _kernel_gradient(x, g):
  """x' g for x [rows, i] and g [rows, o]; the smaller one is transposed."""
  if x.shape[1] < g.shape[1]:
    return _dot(_transposed(x), g, 0)
  return _transposed(_dot(_transposed(g), x, 0))


def _shifted(x, k, pads):
  """The pixels that each pixel of a kernel of k[0] x k[1] meets, a list of [b, h', w', ci]."""
  # lax.pad takes pixels away where a number is negative, which jnp.pad refuses.
  x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(*pad, 0) for pad in ((0, 0), *pads, (0, 0))])
  rows, columns = (x.shape[axis + 1] - k[axis] + 1 for axis in (0, 1))
  return [x[:, i:i + rows, j:j + columns] for i in range(k[0]) for j in range(k[1])]


def _pixels(kernel):
  return list(kernel.reshape(-1, *kernel.shape[2:]))


def _dot(x, w, axis):
  """Products of x [..., i] with w along its axis, in float32."""
  return jax.lax.dot_general(x, w, (((x.ndim - 1,), (axis,)), ((), ())),
                             preferred_element_type=jnp.float32)


def _transposed(x):
  """The transpose of x [i, o], written out; XLA would make it part of the product."""
  x = layout.with_layout_constraint(jax.lax.optimization_barrier(x).T, layout.Layout((0, 1)))
  return jax.lax.optimization_barrier(x)
