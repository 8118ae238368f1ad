"""--precision=bf16: the network in bfloat16, everything that is kept or summed in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import toy

from mah_jax.models import precision
from mah_jax.train import backbone
from mah_jax.train import step


def _trained(monkeypatch, precision):
  seen = []

  class Backbone(toy.Backbone):
    """The toy backbone, which tells what it is given."""

    def __call__(self, images, train):
      seen.append((images.dtype, train))
      return super().__call__(images, train)

  monkeypatch.setattr(backbone, 'make', lambda config, platform: Backbone())
  made = toy.make(precision=precision, augment='none', num_sampled=64, num_rounds=1)
  pause, = toy.fit(made)
  outputs = made.database_outputs(pause.state, np.arange(64))
  return pause, outputs, seen


def test_training_and_encoding_compute_in_it_and_keep_float32(monkeypatch):
  pause, outputs, seen = _trained(monkeypatch, 'bf16')
  assert {dtype for dtype, train in seen if train} == {jnp.dtype(jnp.bfloat16)}
  assert (jnp.dtype(jnp.bfloat16), False) in seen
  kept = pause.state.params, pause.state.batch_stats, pause.state.opt_state, pause.state.memory
  assert {x.dtype for x in jax.tree.leaves(kept)} <= {np.dtype(np.float32), np.dtype(np.int32)}
  assert {u.dtype for u in outputs} == {np.dtype(np.float32)}


def test_it_agrees_with_float32_to_its_own_precision(monkeypatch):
  (half, outputs, _), (full, expected, seen) = (
      _trained(monkeypatch, precision) for precision in ('bf16', 'float32'))
  assert {dtype for dtype, _ in seen} == {jnp.dtype(jnp.float32)}
  assert half.metrics['loss'] != full.metrics['loss']
  np.testing.assert_allclose(half.metrics['loss'], full.metrics['loss'], rtol=0.02)
  for u, v in zip(outputs, expected):
    np.testing.assert_allclose(u, v, atol=0.1)


def test_heads_stay_float32(monkeypatch):
  """DRSCH orders its bits by learned weights, which bfloat16 would make equal."""
  monkeypatch.setattr(backbone, 'make', lambda config, platform: toy.Backbone())
  made = toy.make(method='drsch', precision='bf16', num_sampled=64)
  state = made.new_state()
  weights = np.linspace(0.99, 1.01, 5).astype(np.float32)
  params = state.params | {'heads': state.params['heads'] | {'weights': weights}}
  outputs = made.database_outputs(state.replace(params=params), np.arange(3))
  np.testing.assert_array_equal(outputs[1][0], weights)


def test_features_of_a_backbone_alone_are_computed_in_it():
  seen = []

  def apply(variables, x):
    seen.extend((variables['params']['conv'].dtype, x.dtype))
    return x

  found = step._apply(apply, {'params': {'conv': jnp.ones(3)}}, jnp.ones(2),
                      precision.PRECISIONS['bf16'])
  assert seen == [jnp.bfloat16] * 2 and found.dtype == jnp.float32
