"""The factored loss against the double sum, and its gradient against that of the double sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from mah_jax import losses
from mah_jax.methods import base
from mah_jax.methods import mah


def _mah(labels, code_lengths=(5,), **options):
  """MAH for a database with 0/1 labels [n, L]."""
  return mah.make(mah.Options(**options), base.Task(labels, code_lengths, len(labels), seed=0))


def test_semantic_loss_by_hand():
  # One query u = (0.5, -1), two rows b = (1, 1) similar, (1, -1) dissimilar with S = -1, c = 2:
  # ((-0.5 - 2)^2 + (1.5 + 2)^2) / 2 = (6.25 + 12.25) / 2.
  b, s = jnp.array([[1.0, 1.0], [1.0, -1.0]]), jnp.array([1.0, -1.0])
  loss = losses.semantic_loss(jnp.array([[0.5, -1.0]]), b.T @ b / 2, (s @ b)[None] / 2,
                              jnp.array([s @ s / 2]))
  assert loss[0] == pytest.approx(9.25)


def test_quantization_loss_by_hand():
  loss = losses.quantization_loss(jnp.array([[0.5, -1.0]]), jnp.array([[1.0, 1.0]]))
  assert loss[0] == pytest.approx(0.25 + 4.0)


@pytest.mark.parametrize('multi, kind, scaled', [
    (False, 'balanced', False), (True, 'signed', False), (True, 'balanced', True),
    (True, 'standardized', True)])
def test_loss_and_gradient_equal_the_double_sum(multi, kind, scaled):
  lengths, weights, gamma = (3, 5), (2.0, 0.5), 7.0
  _, _, labels, sampled = reference.problem(3, multi=multi)
  rng = np.random.default_rng(4)
  n, m = len(labels), len(sampled)
  codes = tuple(rng.choice([-1, 1], (n, c)).astype(np.int8) for c in lengths)
  outputs = tuple(jnp.tanh(rng.normal(size=(m, c))) for c in lengths)
  s = jnp.asarray(reference.similarity(labels, sampled, kind))
  method = _mah(labels, lengths, head_weights=weights, gamma=gamma, similarity=kind,
                scale_heads=scaled)
  targets = method.targets(codes, sampled, 0)
  positions = np.arange(m)

  def factored(outputs):
    return method.loss(outputs, targets, reference.seen(outputs, positions))[0].sum()

  def direct(outputs):
    total = 0.0
    for c, weight, u, b in zip(lengths, weights, outputs, codes):
      semantic = jnp.sum((u @ b.T - c * s) ** 2)
      weight /= c**2 if scaled else 1
      total += weight * (semantic + gamma * jnp.sum((b[sampled] - u) ** 2)) / n
    return total

  (loss, gradients), (expected, slopes) = (
      jax.jit(jax.value_and_grad(function))(outputs) for function in (factored, direct))
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  for g, h in zip(gradients, slopes):
    np.testing.assert_allclose(g, h, rtol=1e-5, atol=1e-5 * float(jnp.abs(h).max()))


def test_every_head_has_a_weight_whatever_their_number():
  def weights(lengths, **options):
    return mah.head_weights(mah.Options(**options), lengths)
  assert weights((4, 6, 8)) == [6, 2, 1] and weights((4, 8)) == [6, 2]
  assert weights((4, 6, 8, 10, 12)) == [6, 2, 1, 1, 1]
  assert weights((2, 4, 8), head_weights=(3.0,)) == [3, 3, 3]
  assert weights((2, 4, 8), scale_heads=True) == [6 / 4, 2 / 16, 1 / 64]


def test_terms_add_up_to_the_loss():
  codes, _, labels, sampled = reference.problem(5)
  method = _mah(labels, head_weights=(3.0,))
  outputs = (jnp.tanh(np.random.default_rng(0).normal(size=(4, 5))),)
  total, terms = method.loss(outputs, method.targets((codes,), sampled, 0),
                             reference.seen(outputs, np.arange(4)))
  np.testing.assert_allclose(total, 3.0 * (terms['semantic/5'] + terms['quantization/5']))


@pytest.mark.parametrize('scale', [0.0, 1e4, 1e15])
@pytest.mark.parametrize('one_class, kind', [
    (False, 'balanced'), (True, 'balanced'), (True, 'standardized')])
def test_gradients_are_finite_at_the_extremes(scale, one_class, kind):
  """Saturated heads, identical images, and a database without a dissimilar row; also ADSH's."""
  codes, _, labels, sampled = reference.problem(6)
  labels = np.ones_like(labels) if one_class else labels
  method = _mah(labels, head_weights=(1.0,), similarity=kind)
  targets = method.targets((codes,), sampled, 0)

  def total(x):
    outputs = (jnp.tanh(x),)
    return method.loss(outputs, targets, reference.seen(outputs, np.arange(4)))[0].sum()

  value, gradient = jax.jit(jax.value_and_grad(total))(scale * jnp.ones((4, 5)))
  assert np.isfinite(value) and np.isfinite(gradient).all()
