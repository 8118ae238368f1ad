"""DAPH: its loss against plain loops, its codes against all codes, towers that take turns."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toy
from flax import linen as nn

from mah_jax import losses
from mah_jax.train import backbone
from mah_jax.train import step

WEIGHTS = {'quantization': 7.0, 'agreement': 2.0, 'independence': 0.3, 'balance': 0.2}
NAMES = {0: ('backbone', 'heads'), 1: ('database_backbone', 'database_heads')}


def _method(labels, c=5, **changes):
  return toy.method(labels, method='daph', code_lengths=(c,), **changes)


def _signs(rng, *shape):
  return rng.choice([-1, 1], shape).astype(np.int8)


def _by_loops(u, z, codes, batch, balanced):
  """The published terms of the tower whose outputs are u, a pair, a bit and a row at a time.

  They are divided as `daph.make` says: by all m^2 pairs, but for the term of lambda.
  """
  similar, m, c = batch.similar(), len(z), z.shape[1]
  pairs = sum(map(sum, similar))
  weight = {True: m * m / pairs / 2, False: m * m / (m * m - pairs) / 2} if balanced else {
      True: 1.0, False: 1.0}
  likelihood = quantization = independence = balance = 0.0
  rows = batch.counted()
  for i, position in rows:
    for j in range(m):
      s = similar[position][j]
      theta = sum(u[i, k] * z[j, k] for k in range(c)) / 2
      likelihood -= weight[s] * (s * theta - math.log(1 + math.exp(theta)))
    for k in range(c):
      quantization += (u[i, k] - codes[position, k]) ** 2
  for k in range(c):
    balance += sum(u[i, k] / len(rows) for i, _ in rows) ** 2
    for other in range(c):
      correlation = sum(u[i, k] * u[i, other] for i, _ in rows) / len(rows)
      independence += (correlation - (k == other)) ** 2
  return ((likelihood + WEIGHTS['quantization'] * quantization) / m / len(rows)
          + WEIGHTS['independence'] * independence + WEIGHTS['balance'] * balance)


@pytest.mark.parametrize('turn', [0, 1])
@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('pair_weights', ['equal', 'balanced'])
def test_loss_and_gradient_equal_plain_loops(turn, devices, pair_weights):
  """The tower that rests gets no gradient, nor does what the memory holds of it."""
  rng = np.random.default_rng(2)
  batch, c = toy.batch(rng), 5
  outputs, memory = (tuple(np.tanh(rng.normal(size=(rows, c))).astype(np.float32)
                           for _ in NAMES) for rows in (8, 12))
  codes = _signs(rng, 12, c), _signs(rng, 12, c)
  method = _method(batch.labels, c, pair_weights=pair_weights, **WEIGHTS)
  targets = jax.device_put(method.targets(codes, batch.sampled, 6 + turn))
  got, gradients = jax.jit(jax.value_and_grad(
      toy.step_loss(method, targets, batch, memory, devices=devices)))(outputs)
  resting = batch.filed(memory[1 - turn], outputs[1 - turn]).astype(float)

  def expected(arrays):
    return _by_loops(*arrays, resting, codes[turn], batch, pair_weights == 'balanced')

  moving = outputs[turn]
  assert got == pytest.approx(expected([moving.astype(float)]), rel=1e-5)
  slope, = toy.slopes(expected, [moving])
  np.testing.assert_allclose(gradients[turn], slope, rtol=1e-4, atol=1e-6)
  assert not np.any(gradients[1 - turn])


def _gradients(labels, outputs, epoch):
  """The sum of the loss and its gradients by the outputs of both towers, on one device."""
  m, c = outputs[0].shape
  method = _method(labels, c, num_sampled=0)
  targets = method.targets(method.init_codes(), np.arange(m), epoch)

  def loss(outputs):
    seen = reference.seen(outputs, np.arange(m), jax.lax.stop_gradient(outputs))
    return method.loss(outputs, jax.device_put(targets), seen)[0].sum()

  return jax.value_and_grad(loss)(outputs)


@pytest.mark.parametrize('scale', [0.0, 1.0, 1e4])
@pytest.mark.parametrize('kind', ['one class', 'all different', 'several', 'none'])
def test_loss_and_gradients_are_finite_at_the_extremes(scale, kind):
  """Also for outputs that no tanh would give, and for equal ones."""
  labels = {'one class': np.ones((8, 1)), 'all different': np.eye(8), 'none': np.zeros((8, 3)),
            'several': np.arange(24).reshape(8, 3) % 5 % 2}[kind].astype(np.uint8)
  outputs = (jnp.full((8, 4), scale), jnp.full((8, 4), -scale))
  for epoch in range(2):
    value, gradients = _gradients(labels, outputs, epoch)
    assert np.isfinite(value) and all(np.all(np.isfinite(g)) for g in gradients)


@pytest.mark.parametrize('agreement', [0.0, 2.0, 7.0])
def test_each_update_of_codes_is_the_best_of_all_codes(agreement):
  rng = np.random.default_rng(3)
  m, c, alpha = 12, 4, WEIGHTS['quantization']
  codes = _signs(rng, m, c), _signs(rng, m, c)
  memory = tuple(np.tanh(rng.normal(size=(m, c))).astype(np.float32) for _ in range(2))
  method = _method(np.ones((m, 1), np.uint8), c, **WEIGHTS | {'agreement': agreement})
  new = method.update.solve(*jax.device_put((codes, memory)), np.arange(m),
                            lambda function, rows, rest: function(rows, *rest))
  every = np.array(list(itertools.product([-1, 1], repeat=c)))  # [2^c, c]
  # B sees the old H, the new H sees the new B.
  for got, output, other in zip(new, memory, (codes[1], new[0])):
    assert got.dtype == np.int8 and got.shape == (m, c)
    for b, u, h in zip(np.asarray(got), output, np.asarray(other)):
      costs = alpha * ((u - every) ** 2).sum(1) + agreement * ((every - h) ** 2).sum(1)
      np.testing.assert_array_equal(b, every[costs.argmin()])
  frozen = all(np.array_equal(b, codes[1]) for b in new)
  assert frozen == (agreement == alpha)


@pytest.mark.parametrize('asked, m', [(0, 30), (7, 7), (31, 30)])
def test_codes_begin_as_random_signs_of_the_training_rows(asked, m):
  labels = np.ones((30, 1), np.uint8)
  first, again, other = (
      _method(labels, num_sampled=asked, seed=seed).init_codes()
      for seed in (1, 1, 2))
  assert all(b.shape == (m, 5) and b.dtype == np.int8 for b in first)
  assert set(np.ravel(first)) == {-1, 1}
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other) and not np.array_equal(*first)


def test_a_method_without_rows_has_embeddings():
  """As --mode=encode makes it."""
  outputs = np.zeros((3, 5)), np.ones((3, 5))
  no_rows = np.zeros((0, 4), np.uint8)
  method = _method(no_rows)
  assert method.init_codes()[0].shape == (0, 5)
  assert method.query_embeddings(outputs)[0] is outputs[0]
  assert method.database_embeddings(outputs)[0] is outputs[1]
  assert method.query_embeddings is not method.database_embeddings
  method = _method(no_rows, towers='symmetric')
  assert method.query_embeddings is method.database_embeddings
  assert method.query_embeddings(outputs)[0] is outputs[1]


class _Backbone(nn.Module):
  """Little to compile, but with statistics that are shared over the devices."""

  @nn.compact
  def __call__(self, images, train):
    x = nn.Dense(8)(images.reshape(len(images), -1))
    return nn.relu(nn.BatchNorm(not train, momentum=0.9, axis_name=step.AXIS)(x))


@functools.cache
def _made(num_devices):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(backbone, 'make', lambda config, platform: _Backbone())
    return toy.make(num_devices, method='daph', code_lengths=(5,), weight_decay=0.01)


@functools.cache
def _trained(num_devices):
  """States before, between and after three epochs, metrics of their steps, times of tracing.

  An epoch has three batches, the last of which is short.
  """
  made = _made(num_devices)
  states, history, traces = [made.new_state()], [], []
  with pytest.MonkeyPatch.context() as patch:
    plain = losses.pair_loss
    patch.setattr(losses, 'pair_loss', lambda *args: traces.append(1) or plain(*args))
    for epoch in range(3):
      made.plan = dataclasses.replace(made.plan, num_rounds=epoch + 1)
      state, states[-1] = states[-1], jax.device_get(states[-1])
      pause, = toy.fit(made, state)
      states.append(pause.state)
      history += pause.history
  return jax.device_get(states), history, len(traces)


def test_imported_weights_go_to_both_towers():
  (state, *_), _, _ = _trained(1)
  start = jax.device_put({
      'params': jax.tree.map(lambda x: x + 1, state.params['backbone']),
      'batch_stats': jax.tree.map(lambda x: x + 2, state.batch_stats['backbone'])})
  begun = _made(1).new_state(start)
  new = jax.device_get(begun)
  for kind, tree in start.items():
    for name in ('backbone', 'database_backbone'):
      jax.tree.map(np.testing.assert_array_equal, getattr(new, kind)[name], tree)
  for name in ('heads', 'database_heads'):
    jax.tree.map(np.testing.assert_array_equal, new.params[name], state.params[name])
  toy.fit(_made(1), begun)  # a step uses up its state: the towers must not share arrays


def _leaves(tree, names):
  """The leaves of parameters, or of an optimizer's state, that are below one of the names."""
  return [leaf for path, leaf in jax.tree.leaves_with_path(tree)
          if any(getattr(key, 'key', None) in names for key in path)]


@pytest.mark.parametrize('kind', ['params', 'opt_state'])
def test_one_tower_moves_in_an_epoch_and_parameters_of_the_other_stay_to_the_bit(kind):
  """Neither weight decay nor momentum reach the one that rests."""
  states, _, _ = _trained(1)
  for epoch, (before, after) in enumerate(zip(states, states[1:])):
    old, new = getattr(before, kind), getattr(after, kind)
    moving, resting = (list(zip(_leaves(old, names), _leaves(new, names), strict=True))
                       for names in (NAMES[epoch % 2], NAMES[1 - epoch % 2]))
    assert len(moving) == len(resting) == 6
    assert not any(np.array_equal(x, y) for x, y in moving)
    assert all(np.array_equal(x, y) for x, y in resting)


def test_each_turn_is_compiled_once():
  assert _trained(1)[2] == 2


def test_one_device_or_four_give_the_same():
  (*_, state), history, _ = _trained(4)
  (*_, expected), expected_history, _ = _trained(1)
  for tree in ('params', 'batch_stats', 'memory'):
    for x, y in zip(jax.tree.leaves(getattr(state, tree)),
                    jax.tree.leaves(getattr(expected, tree)), strict=True):
      np.testing.assert_allclose(x, y, atol=1e-4)
  jax.tree.map(np.testing.assert_array_equal, state.codes, expected.codes)
  assert len(history) == 9
  for got, want in zip(history, expected_history, strict=True):
    assert got == pytest.approx(want, rel=1e-4)
    assert 2 * got['loss'] == pytest.approx(sum(got.values()))  # the terms add up to it
