"""DPSH: its likelihood as a double loop, safe at the extremes, and its memory of outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toy

from mah_jax import losses


def _problem(seed, m=12, c=4, multi=False):
  rng = np.random.default_rng(seed)
  labels = ((rng.random((m, 3)) < 0.4) if multi else np.eye(3)[np.arange(m) % 3]).astype(np.uint8)
  return rng.normal(0, 2, (m, c)).astype(np.float32), labels


def _method(labels, eta=50.0):
  return toy.method(labels, method='dpsh', code_lengths=(4,), eta=eta)


@pytest.mark.parametrize('multi', [False, True])
def test_loss_equals_the_double_loop(multi):
  u, labels = _problem(0, multi=multi)
  m, sampled, own = len(u), np.random.default_rng(1).permutation(len(u)), np.array([3, 7, 0])
  memory = np.random.default_rng(2).normal(size=u.shape).astype(np.float32)
  method = _method(labels, eta=5.0)
  seen = reference.seen((u[own],), own, memory=(memory,))
  got, _ = method.loss((u[own],), method.targets((), sampled, 0), seen)
  for i, position in enumerate(own):
    total = 0.0
    for j in range(m):
      similar = bool((labels[sampled[position]] & labels[sampled[j]]).any())
      t = 0.5 * float(np.dot(u[position].astype(float), memory[j].astype(float)))
      total -= (t if similar else 0.0) - np.log1p(np.exp(t))
    for x in u[position].astype(float):
      total += 5.0 * ((1.0 if x >= 0 else -1.0) - x) ** 2
    assert got[i] == pytest.approx(total / m, rel=1e-5)


def test_a_hand_worked_pair():
  # t = 2 and -2: log(1 + e^2) - 2 = log(1 + e^-2) = 0.126928, likewise for a dissimilar pair at -2.
  got = losses.pair_loss(jnp.array([[2.0, 0.0]]), jnp.array([[2.0, 5.0], [-2.0, 5.0]]),
                       jnp.array([[True, False]]))
  assert got[0] == pytest.approx(0.126928, abs=1e-6)


@pytest.mark.parametrize('scale', [0.0, 1e4, 1e15])
@pytest.mark.parametrize('similar', [False, True])
def test_gradients_are_finite_at_the_extremes(scale, similar):
  u = scale * jnp.array([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])
  value, gradient = jax.value_and_grad(
      lambda u: losses.pair_loss(u, u, jnp.full((3, 3), similar)).sum())(u)
  assert np.isfinite(value) and np.isfinite(gradient).all()


def test_gradient_goes_through_the_batch_alone():
  """d/du_i = sum_j (sigmoid(t_ij) - s_ij) u_j / 2: the other side is constant."""
  u, labels = _problem(3)
  method = _method(labels, eta=0.0)
  targets = method.targets((), np.arange(len(u)), 0)
  own = jnp.asarray(u[:5])
  seen = reference.seen((own,), np.arange(5), memory=(u,))
  gradient = jax.grad(lambda v: method.loss((v,), targets, seen)[0].sum())(own)
  similar = labels[:5].astype(int) @ labels.T.astype(int) > 0
  t = 0.5 * u[:5].astype(float) @ u.T.astype(float)
  expected = (1 / (1 + np.exp(-t)) - similar) @ u.astype(float) / 2 / len(u)
  np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
