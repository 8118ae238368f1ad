"""DPSH: its loss and slopes against plain loops, and its likelihood at the extremes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from mah_jax import losses

ETA = 5.0


def _by_loops(outputs, memory, batch, balanced):
  """The published sum over pairs of images of the batch and training rows, by their number."""
  similar, m, c = batch.similar(), len(memory), memory.shape[1]
  pairs = sum(map(sum, similar))
  weight = {True: m * m / pairs / 2, False: m * m / (m * m - pairs) / 2} if balanced else {
      True: 1.0, False: 1.0}
  total = 0.0
  for i, position in batch.counted():
    for j in range(m):
      s = similar[position][j]
      theta = sum(outputs[i, k] * memory[j, k] for k in range(c)) / 2
      total -= weight[s] * (s * theta - math.log(1 + math.exp(theta)))
    for k in range(c):
      sign = 1 if outputs[i, k] >= 0 else -1
      total += ETA * (sign - outputs[i, k]) ** 2
  return total / m / len(batch.counted())


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('pair_weights', ['equal', 'balanced'])
def test_loss_and_gradient_equal_the_double_loop(pair_weights, devices):
  """Gradients flow through the batch alone: what the memory holds, also of it, is constant."""
  rng = np.random.default_rng(0)
  batch = toy.batch(rng)
  u, memory = (rng.normal(0, 1.5, (rows, 4)).astype(np.float32) for rows in (8, 12))
  method = toy.method(batch.labels, method='dpsh', code_lengths=(4,), eta=ETA,
                      pair_weights=pair_weights)
  targets = jax.device_put(method.targets((), batch.sampled, 0))
  got, gradient = jax.jit(jax.value_and_grad(
      toy.step_loss(method, targets, batch, (memory,), devices=devices)))((u,))
  filed = batch.filed(memory, u).astype(float)

  def expected(arrays):
    return _by_loops(*arrays, filed, batch, pair_weights == 'balanced')

  assert got == pytest.approx(expected([u.astype(float)]), rel=1e-5)
  np.testing.assert_allclose(gradient, toy.slopes(expected, (u,)), rtol=1e-4, atol=1e-6)


def test_a_hand_worked_pair():
  # t = 2 and -2: log(1 + e^2) - 2 = log(1 + e^-2) = 0.126928, likewise for a dissimilar pair at -2.
  pair = (jnp.array([[2.0, 0.0]]), jnp.array([[2.0, 5.0], [-2.0, 5.0]]), jnp.array([[True, False]]))
  assert losses.pair_loss(*pair)[0] == pytest.approx(0.126928, abs=1e-6)
  # Weights 3 and 7 have the mean 5. With both pairs wrong, t = -2 and 2, each costs 2.126928.
  assert losses.pair_loss(*pair, (3.0, 7.0))[0] == pytest.approx(5 * 0.126928, abs=1e-5)
  assert losses.pair_loss(-pair[0], *pair[1:], (3.0, 7.0))[0] == pytest.approx(5 * 2.126928)


@pytest.mark.parametrize('scale', [0.0, 1e4, 1e15])
@pytest.mark.parametrize('similar', [False, True])
def test_gradients_are_finite_at_the_extremes(scale, similar):
  u = scale * jnp.array([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])
  value, gradient = jax.value_and_grad(
      lambda u: losses.pair_loss(u, u, jnp.full((3, 3), similar)).sum())(u)
  assert np.isfinite(value) and np.isfinite(gradient).all()
