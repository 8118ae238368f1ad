"""The max-pooling against loops, and its gradient against that of nn.max_pool."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from mah_jax.models import pool

CASES = [(8, 8, 2, 0), (7, 9, 2, 0), (13, 13, 3, 0), (8, 10, 3, 0), (8, 8, 3, 1), (7, 9, 3, 1)]


@pytest.mark.parametrize('h, w, size, padding', CASES)
def test_each_value_is_the_maximum_of_its_window(h, w, size, padding):
  x = np.random.default_rng(0).normal(size=(2, h, w, 3)) - 5  # zeros around would show
  around = (padding, padding)
  padded = np.pad(x, ((0, 0), around, around, (0, 0)), constant_values=-np.inf)
  rows, columns = ((side + 2 * padding - size) // 2 + 1 for side in (h, w))
  expected = np.array([[padded[:, 2 * i:2 * i + size, 2 * j:2 * j + size].max(axis=(1, 2))
                        for j in range(columns)] for i in range(rows)])
  found = pool.max_pool(x.astype(np.float32), size, padding)
  np.testing.assert_array_equal(found, expected.transpose(2, 0, 1, 3).astype(np.float32))


@pytest.mark.parametrize('h, w, size, padding', CASES)
def test_the_gradient_goes_to_the_maximum(h, w, size, padding):
  rng = np.random.default_rng(0)
  x = rng.permutation(2 * h * w * 3).reshape(2, h, w, 3).astype(np.float32)  # no ties
  weights = rng.normal(size=pool.max_pool(x, size, padding).shape).astype(np.float32)
  around = ((padding, padding),) * 2
  expected = jax.grad(lambda x: (nn.max_pool(
      x, (size, size), (2, 2), padding=around) * weights).sum())(x)
  def ours(x):
    return (pool.max_pool(x, size, padding) * weights).sum()

  for gradient in (jax.grad(ours), jax.grad(jax.jit(ours)), jax.jit(jax.grad(ours))):
    np.testing.assert_allclose(gradient(x), expected, rtol=1e-6)


def test_the_first_of_equal_maxima_gets_the_gradient():
  x = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], np.float32)[None, :, :, None]
  found = jax.grad(lambda x: pool.max_pool(x, 3).sum())(x)
  np.testing.assert_array_equal(found[0, :, :, 0], [[0, 1, 0], [0, 0, 0], [0, 0, 0]])


def test_half_precision_stays_half():
  x = np.arange(16).reshape(1, 4, 4, 1).astype(jax.numpy.bfloat16)
  value, pull = jax.vjp(lambda x: pool.max_pool(x, 3, 1), x)
  assert value.dtype == pull(value)[0].dtype == jax.numpy.bfloat16
