"""The max-pooling for CPUs against loops, and its gradient against that of nn.max_pool."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from mah_jax.models.cpu import pool


@pytest.mark.parametrize('h, w, size, padding', [
    (7, 8, 2, 0), (8, 10, 3, 0), (7, 9, 3, 1)])
def test_values_and_gradients_are_those_of_the_maxima(h, w, size, padding):
  rng = np.random.default_rng(0)
  # No two values are equal, and all are negative, so that zeros around the image would show.
  x = -1 - rng.permutation(2 * h * w * 3).reshape(2, h, w, 3).astype(np.float32)
  rows, columns = ((side + 2 * padding - size) // 2 + 1 for side in (h, w))
  weights = rng.normal(size=(2, rows, columns, 3)).astype(np.float32)
  around = (padding, padding)

  @jax.jit
  def run(x):
    value, pull = jax.vjp(lambda x: pool.max_pool(x, size, padding), x)
    _, pull_flax = jax.vjp(lambda x: nn.max_pool(x, (size, size), (2, 2), (around, around)), x)
    return value, pull(weights), pull_flax(weights)

  value, gradient, gradient_flax = run(x)
  padded = np.pad(x, ((0, 0), around, around, (0, 0)), constant_values=-np.inf)
  expected = np.array([[padded[:, 2 * i:2 * i + size, 2 * j:2 * j + size].max(axis=(1, 2))
                        for j in range(columns)] for i in range(rows)])
  np.testing.assert_array_equal(value, expected.transpose(2, 0, 1, 3))
  np.testing.assert_allclose(gradient, gradient_flax, rtol=1e-6)


def test_the_first_of_equal_maxima_gets_the_gradient():
  x = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], np.float32)[None, :, :, None]
  gradient = jax.jit(jax.grad(lambda x: pool.max_pool(x, 3).sum()))(x)
  np.testing.assert_array_equal(gradient[0, :, :, 0], [[0, 1, 0], [0, 0, 0], [0, 0, 0]])


def test_half_precision_stays_half():
  x = jax.ShapeDtypeStruct((1, 4, 4, 1), jax.numpy.bfloat16)
  value, gradient = jax.eval_shape(jax.value_and_grad(lambda x: pool.max_pool(x, 3, 1).sum()), x)
  assert value.dtype == gradient.dtype == jax.numpy.bfloat16
