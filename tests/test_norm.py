"""The batch normalisation for CPUs against its formulas in float64, and over devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mah_jax.models.cpu import norm

SHAPE = (6, 3, 4, 5)
BatchNorm = functools.partial(norm.BatchNorm, momentum=0.9, epsilon=1e-5)


def numbers(seed, shape=SHAPE):
  """Values whose mean is a few deviations from 0, as those of a network may be."""
  rng = np.random.default_rng(seed)
  return rng.normal(size=shape) * rng.uniform(0.5, 3, shape[-1]) + rng.normal(size=shape[-1]) * 4


def variables():
  return {'params': {'scale': numbers(1, (5,)), 'bias': numbers(2, (5,))},
          'batch_stats': {'mean': numbers(3, (5,)), 'var': numbers(4, (5,)) ** 2}}


def single(tree):
  return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)


def formula(x, weights, params, mean, var):
  """Outputs, and the gradients of sum(weights * outputs) for x, scale and bias."""
  deviation = np.sqrt(var + 1e-5)
  normal = (x - mean) / deviation
  g, axes = weights * params['scale'], (0, 1, 2)
  dx = (g - g.mean(axes) - normal * (g * normal).mean(axes)) / deviation
  return (normal * params['scale'] + params['bias'],
          {'x': dx, 'scale': (weights * normal).sum(axes), 'bias': weights.sum(axes)})


def trained(made, x, weights, axis_name=None):
  """Outputs, new statistics and gradients of a training step."""
  module = BatchNorm(False, axis_name=axis_name)

  def loss(x, params):
    y, changed = module.apply({**made, 'params': params}, x, mutable=['batch_stats'])
    return (y * weights).sum(), (y, changed['batch_stats'])

  (dx, d), (y, statistics) = jax.grad(loss, (0, 1), has_aux=True)(x, made['params'])
  return y, statistics, {'x': dx, **d}


def test_training_normalises_by_the_batch():
  made, x, weights = variables(), numbers(0), numbers(5)
  mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
  y, statistics, gradients = jax.jit(trained)(*single((made, x, weights)))
  expected, expected_gradients = formula(x, weights, made['params'], mean, var)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
  for name, gradient in expected_gradients.items():
    np.testing.assert_allclose(gradients[name], gradient, rtol=1e-4, atol=1e-3, err_msg=name)
  for name, new in (('mean', mean), ('var', var)):
    np.testing.assert_allclose(statistics[name], 0.9 * made['batch_stats'][name] + 0.1 * new,
                               rtol=1e-5)


def test_otherwise_it_normalises_by_the_running_statistics():
  made, x = variables(), numbers(0)
  y = jax.jit(BatchNorm(True).apply)(single(made), x.astype(np.float32))
  expected, _ = formula(x, np.zeros(SHAPE), made['params'], **made['batch_stats'])
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_devices_share_their_statistics():
  made, x, weights = single((variables(), numbers(0), numbers(5)))
  y, statistics, gradients = jax.jit(trained)(made, x, weights)
  parts = [a.reshape(2, 3, *SHAPE[1:]) for a in (x, weights)]
  mapped = jax.pmap(lambda x, weights: trained(made, x, weights, 'two'), 'two',
                    devices=jax.devices()[:2])
  y2, statistics2, gradients2 = mapped(*parts)
  np.testing.assert_allclose(y2.reshape(SHAPE), y, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(gradients2['x'].reshape(SHAPE), gradients['x'], rtol=1e-3, atol=1e-3)
  for name in ('mean', 'var'):
    np.testing.assert_allclose(statistics2[name], [statistics[name]] * 2, rtol=1e-5)


def test_a_new_one_neither_scales_nor_remembers():
  made = jax.jit(BatchNorm(False, axis_name='none').init)(jax.random.key(0), jnp.ones(SHAPE))
  for kind, name, value in (('params', 'scale', 1), ('params', 'bias', 0),
                            ('batch_stats', 'mean', 0), ('batch_stats', 'var', 1)):
    np.testing.assert_array_equal(made[kind][name], np.full(5, value))


@pytest.mark.parametrize('train', [False, True])
def test_bf16_goes_in_and_out_while_statistics_stay_float32(train):
  made = single(variables())
  made['params'] = jax.tree.map(lambda a: a.astype(jnp.bfloat16), made['params'])
  x = numbers(0).astype(jnp.bfloat16)
  y, changed = jax.jit(functools.partial(BatchNorm(not train).apply, mutable=['batch_stats']))(
      made, x)
  assert y.dtype == jnp.bfloat16
  exact = np.asarray(x, np.float64)
  for name, moment in (('mean', exact.mean((0, 1, 2))), ('var', exact.var((0, 1, 2)))):
    new, old = changed['batch_stats'][name], np.asarray(made['batch_stats'][name], np.float64)
    assert new.dtype == jnp.float32
    np.testing.assert_allclose(new, 0.9 * old + 0.1 * moment if train else old, rtol=1e-5)
