"""The convolution for CPUs against loops, and against XLA's with its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mah_jax.models.cpu import conv

LAYOUT = ('NHWC', 'HWIO', 'NHWC')
NONE, EVEN = ((0, 0), (0, 0)), ((1, 1), (1, 1))
# The columns are height, width, channels in and out, kernel side, stride and padding. The keys
# name the way that `convolve` takes.
CASES = {
    'patches': [
        (2, 2, 24, 6, 3, 1, 'SAME'),
        (1, 1, 24, 6, 3, 1, EVEN),
        (4, 4, 24, 6, 3, 2, EVEN),
        (3, 3, 24, 6, 3, 2, 'SAME'),
        (5, 5, 24, 6, 4, 1, 'VALID'),
        (9, 9, 3, 6, 2, 1, 'SAME'),  # a small patch, padded on one side only
        (9, 9, 1, 6, 3, 2, 'SAME'),
    ],
    'product': [
        (9, 7, 5, 6, 1, 1, 'SAME'),
        (2, 2, 40, 6, 1, 1, NONE),
        (9, 8, 5, 6, 1, 2, NONE),
        (8, 9, 5, 6, 1, 2, 'SAME'),
    ],
    'native': [
        (9, 9, 24, 6, 3, 1, 'SAME'),
        (9, 8, 32, 32, 3, 2, EVEN),
        (15, 14, 3, 8, 7, 2, ((3, 3), (3, 3))),
        (7, 9, 16, 64, 3, 1, EVEN),
        (9, 9, 24, 6, 1, 1, EVEN),
    ],
}
# The numbers of these cases are compared; they differ in padding, stride and shape of the product.
COMPARED = [*CASES['patches'][1:3], *CASES['patches'][4:], *CASES['product'][1:3],
            CASES['native'][1]]


def arrays(h, w, ci, co, k):
  rng = np.random.default_rng(0)
  return rng.normal(size=(3, h, w, ci)), rng.normal(size=(k, k, ci, co))


def slow(x, kernel, stride, pads):
  """The convolution, output pixel by output pixel."""
  x = np.pad(x, ((0, 0), *pads, (0, 0)))
  k = len(kernel)
  rows, columns = ((size - k) // stride + 1 for size in x.shape[1:3])
  return np.stack([np.stack([
      np.tensordot(x[:, i * stride:i * stride + k, j * stride:j * stride + k], kernel, 3)
      for j in range(columns)], axis=1) for i in range(rows)], axis=1)


def values(convolve, x, kernel, stride, padding):
  """The output and the gradients of a sum in which every output pixel weighs differently."""
  def loss(x, kernel):
    y = convolve(x, kernel, (stride, stride), padding, dimension_numbers=LAYOUT)
    return (y ** 2).sum(), y
  (_, y), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(x, kernel)
  return y, *gradients


@pytest.mark.parametrize('case', COMPARED)
def test_it_is_the_convolution_of_xla(case):
  h, w, ci, co, k, stride, padding = case
  x, kernel = (a.astype(np.float32) for a in arrays(h, w, ci, co, k))
  ours, theirs = jax.jit(lambda x, kernel: [
      values(convolve, x, kernel, stride, padding)
      for convolve in (conv.convolve, jax.lax.conv_general_dilated)])(x, kernel)
  for a, b in zip(ours, theirs, strict=True):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    np.testing.assert_allclose(a, b, atol=2e-6 * float(np.abs(b).max()))


@pytest.mark.parametrize('way', CASES)
def test_each_way_is_taken_where_it_is_meant(way, monkeypatch):
  taken, by_patches = [], conv._by_patches
  monkeypatch.setattr(conv, '_by_patches', lambda *args: taken.append(1) or by_patches(*args))
  for h, w, ci, co, k, stride, padding in CASES[way]:
    taken.clear()
    trace = str(jax.make_jaxpr(lambda x, kernel, stride=stride, padding=padding: conv.convolve(
        x, kernel, (stride, stride), padding, dimension_numbers=LAYOUT))(
            *arrays(h, w, ci, co, k)))
    assert bool(taken) == (way == 'patches')
    assert ('conv_general_dilated' in trace) == (way == 'native')


@pytest.mark.parametrize('way', ['patches', 'product'])
def test_it_is_the_loop_in_float64(way):
  h, w, ci, co, k, stride, padding = CASES[way][-1]
  x, kernel = arrays(h, w, ci, co, k)
  pads = jax.lax.padtype_to_pads((h, w), (k, k), (stride, stride), padding)
  expected = slow(x, kernel, stride, pads)
  direction = np.random.default_rng(1).normal(size=kernel.shape)
  with jax.enable_x64(True):
    y, _, by_kernel = jax.jit(lambda x, kernel: values(
        conv.convolve, x, kernel, stride, padding))(x, kernel)
  np.testing.assert_allclose(y, expected, atol=1e-12 * np.abs(expected).max())
  # The loss is quadratic, so that its slope along a direction is a product of two outputs.
  slope = 2 * (expected * slow(x, direction, stride, pads)).sum()
  assert (np.asarray(by_kernel) * direction).sum() == pytest.approx(slope, rel=1e-10)


@pytest.mark.parametrize('case', [
    CASES['native'][0], CASES['native'][3], CASES['native'][4], CASES['patches'][4],
    *CASES['product'][1:3], (7, 9, 16, 24, 2, 1, 'SAME')])
def test_in_bfloat16_it_is_the_convolution_of_the_same_numbers_rounded_once(case):
  """Sums in bfloat16, or of parts that were rounded, would be off by more than one rounding."""
  h, w, ci, co, k, stride, padding = case
  x, kernel = (a.astype(jnp.bfloat16) for a in arrays(h, w, ci, co, k))

  def both_ways(convolve, x, kernel, g):
    y, back = jax.vjp(lambda x, kernel: convolve(
        x, kernel, (stride, stride), padding, dimension_numbers=LAYOUT), x, kernel)
    return y, *back(g)

  shape = jax.eval_shape(lambda x, kernel: conv.convolve(x, kernel, (stride, stride), padding), x,
                         kernel).shape
  g = np.random.default_rng(1).normal(size=shape).astype(jnp.bfloat16)
  ours = jax.jit(lambda *args: both_ways(conv.convolve, *args))(x, kernel, g)
  theirs = jax.jit(lambda *args: both_ways(jax.lax.conv_general_dilated, *args))(
      *(a.astype(np.float32) for a in (x, kernel, g)))
  for a, b in zip(ours, theirs, strict=True):
    assert (a.shape, a.dtype) == (b.shape, jnp.bfloat16)
    np.testing.assert_allclose(a.astype(np.float32), b, rtol=2**-8, atol=1e-5 * np.abs(b).max())
  trace = str(jax.make_jaxpr(lambda *args: both_ways(conv.convolve, *args))(x, kernel, g))
  assert 'conv_general_dilated' not in trace
  assert trace.count('dot_general') == trace.count('preferred_element_type=float32') == 3 * k * k
