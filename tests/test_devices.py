"""One device or many: the same codes, the same network, the same scores."""

import functools
import logging

import jax
import numpy as np
import optax
import pytest
import reference
import toy
from flax import linen as nn

from mah_jax import discrete
from mah_jax import errors
from mah_jax.data import pipeline
from mah_jax.models import dropout
from mah_jax.train import backbone
from mah_jax.train import step
from mah_jax.train import trainer


def _images(made, rows):
  """One batch of database images, on the devices."""
  return next(made.feed_database([rows]))


def _batch(positions, valid):
  return pipeline.Batch(positions.astype(np.int32), positions.astype(np.int32),
                        valid.astype(np.float32))


@pytest.fixture
def small_backbone(monkeypatch):
  """A backbone that compiles at once, with statistics that the devices share."""
  monkeypatch.setattr(backbone, 'make', lambda config, platform: toy.Backbone())


@functools.cache
def _trained(num_devices, is_small):
  """State after one round and the scores of its codes, on so many devices."""
  with pytest.MonkeyPatch.context() as patch:
    if is_small:
      patch.setattr(backbone, 'make', lambda config, platform: toy.Backbone())
    made = toy.make(num_devices, num_rounds=1)
  pause, = toy.fit(made)
  scores = toy.scores(made, pause.state)
  return jax.device_get(pause.state), pause.metrics, scores


@pytest.mark.parametrize('num_devices, is_small', [(2, False), (4, True), (8, True)])
def test_training_agrees_with_one_device(num_devices, is_small):
  state, metrics, scores = _trained(num_devices, is_small)
  expected, expected_metrics, expected_scores = _trained(1, is_small)
  for tree in ('params', 'batch_stats', 'memory'):
    for x, y in zip(jax.tree.leaves(getattr(state, tree)),
                    jax.tree.leaves(getattr(expected, tree)), strict=True):
      np.testing.assert_allclose(x, y, atol=1e-4)
  for x, y in zip(state.codes, expected.codes):
    np.testing.assert_array_equal(x, y)
  assert metrics == pytest.approx(expected_metrics, rel=1e-4)
  for x, y in zip(scores, expected_scores):
    assert x == pytest.approx(y, abs=1e-3)


def test_training_changed_something():
  state, _, _ = _trained(1, False)
  before = toy.make().new_state()
  moved = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), state.params,
                       jax.device_get(before.params))
  assert min(jax.tree.leaves(moved)) > 0
  assert all(np.abs(h).max() > 0 for h in state.memory)


@pytest.mark.parametrize('num_devices', [1, 2, 4, 8])
@pytest.mark.parametrize('n', [59, 64, 20_011])
def test_dcc_is_identical_on_any_number_of_devices(num_devices, n):
  codes, embeddings, labels, sampled = reference.problem(0, n=n, c=8)
  devices = step.Devices(step.pick_devices(num_devices), 8)
  method = toy.method(labels, method='adsh', code_lengths=(8,), gamma=3.0)
  new, = method.update.solve((codes,), (embeddings,), sampled, devices.over_rows)
  np.testing.assert_array_equal(
      new, discrete.dcc(codes, embeddings, labels, sampled, gamma=3.0))
  assert new.dtype == codes.dtype and new.sharding.is_fully_replicated


@pytest.mark.parametrize('num_devices', [1, 2, 4])
def test_rows_that_stream_are_those_that_are_on_the_devices(num_devices):
  """A device gets the same rows of one step and of several, by either feed."""
  images = np.arange(300, dtype=np.float32).reshape(100, 3)
  devices = step.Devices(step.pick_devices(num_devices), 8)
  rng = np.random.default_rng(0)
  batches = [rng.integers(0, 100, shape) for shape in ((8,), (3, 8), (8,))]
  streaming = step.make_streaming_feed(devices, lambda rows: (images[r] for r in rows))
  for feed in (step.make_feed(devices, images), streaming):
    fed = list(feed(iter(batches)))
    assert [x.shape[:-2] for x in fed] == [(num_devices,), (num_devices, 3), (num_devices,)]
    for x, rows in zip(fed, batches, strict=True):
      parts = np.split(rows, num_devices, axis=-1)
      np.testing.assert_array_equal(x, np.stack([images[part] for part in parts]))


def test_too_many_devices_are_refused():
  with pytest.raises(errors.UsageError, match='--num_devices=9, but this machine has 8'):
    step.pick_devices(9)


def test_a_batch_that_cannot_be_shared_is_refused():
  with pytest.raises(errors.UsageError, match='multiple of 4'):
    step.Devices(step.pick_devices(4), 30)


def test_padded_rows_change_nothing_but_batch_statistics(small_backbone):
  """A valid = 0 row has no part in loss, gradient or embeddings."""
  made = toy.make(1, augment='none')
  targets = made.devices.replicate(
      made.method.targets(made.new_state().codes, np.arange(150), 0))
  outcomes = []
  for other in (7, 9):  # the row that pads, which must not count
    batch = _batch(np.r_[np.arange(63), other], np.r_[np.ones(63), 0])
    # Same images, so that batch statistics agree; only position and validity differ.
    images = _images(made, np.arange(64))
    state, metrics = made.train_step(made.new_state(), targets, images,
                                     made.devices.shard(batch))
    outcomes.append((jax.device_get(state.params), jax.device_get(metrics),
                     np.asarray(state.memory[0])))
  for x, y in zip(jax.tree.leaves(outcomes[0]), jax.tree.leaves(outcomes[1])):
    np.testing.assert_array_equal(x, y)
  assert np.all(outcomes[0][2][63:] == 0)


@pytest.mark.parametrize('num_devices', [1, 2])
def test_nothing_is_compiled_after_the_first_step_that_follows_an_update(
    num_devices, small_backbone):
  compiled, before_step = [], []  # JAX logs a record or more for each compilation
  handler = logging.Handler()
  handler.emit = compiled.append
  made = toy.make(num_devices, num_rounds=4, num_sampled=150)  # 150 rows: the last batch is short
  logging.getLogger('jax').addHandler(handler)
  try:
    with jax.log_compiles():
      toy.fit(made, on_step=lambda steps: before_step.append(len(compiled)))
  finally:
    logging.getLogger('jax').removeHandler(handler)
  first = made.plan.steps_per_round  # after the update of the codes
  assert before_step[0] > 0 and before_step[first] == before_step[-1] == len(compiled)


def test_the_work_of_a_step_does_not_grow_with_the_database(small_backbone):
  work = []
  for rows in (400, 40_000):
    made = toy.make(1, rows=rows)
    state = made.new_state()
    targets = made.devices.replicate(made.method.targets(state.codes, np.arange(150), 0))
    batch = _batch(np.arange(64), np.ones(64))
    lowered = made.train_step.lower(state, targets, _images(made, batch.row),
                                    made.devices.shard(batch))
    work.append(lowered.compile().cost_analysis()['flops'])
  assert work[0] > 1e5 and work[1] == pytest.approx(work[0], rel=0.01)


def test_the_step_is_plain_sgd_on_the_mean_loss(small_backbone):
  """One step equals a step by hand: gradient of the mean loss plus weight decay."""
  made = toy.make(2, augment='none', momentum=0.0, weight_decay=0.1, learning_rate=0.01)
  state = made.new_state()
  before = jax.device_get(state)
  targets = jax.device_get(made.method.targets(state.codes, np.arange(150), 0))
  batch = _batch(np.arange(64), np.ones(64))
  images = _images(made, batch.row)
  single = toy.make(1, augment='none')
  x = (np.asarray(images).reshape(64, 8, 8, 1) / 255 - 0.5) / 0.3

  @functools.partial(jax.pmap, axis_name=step.AXIS, devices=jax.local_devices()[:1])
  def gradient(x):
    def loss(params):
      outputs, _ = single.network.apply(
          {'params': params, 'batch_stats': before.batch_stats}, x, train=True,
          mutable=['batch_stats'])
      seen = reference.seen(outputs, np.arange(64))
      return made.method.loss(outputs, targets, seen)[0].mean()
    return jax.grad(loss)(before.params)

  grads = jax.tree.map(lambda g: g[0], gradient(x[None].astype(np.float32)))
  expected = optax.apply_updates(
      before.params, jax.tree.map(lambda g, p: -0.01 * (g + 0.1 * p), grads, before.params))
  state, _ = made.train_step(state, made.devices.replicate(targets), images,
                             made.devices.shard(batch))
  for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected)):
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_statistics_of_a_device_are_those_of_its_part_of_the_batch():
  """Running statistics are then the mean over devices of what each part alone would give."""
  made = toy.make(2, batch_norm='device', augment='none')
  batch = _batch(np.arange(64), np.ones(64))
  targets = made.devices.replicate(
      made.method.targets(made.new_state().codes, np.arange(150), 0))
  state, _ = made.train_step(made.new_state(), targets, _images(made, batch.row),
                             made.devices.shard(batch))
  alone = toy.make(1, augment='none')
  halves = []
  for rows in (np.arange(32), np.arange(32, 64)):
    before = alone.new_state()
    half, _ = alone.train_step(
        before, alone.devices.replicate(alone.method.targets(before.codes, np.arange(150), 0)),
        _images(alone, rows), alone.devices.shard(_batch(rows, np.ones(32))))
    halves.append(jax.device_get(half.batch_stats))
  expected = jax.tree.map(lambda *parts: np.mean(parts, axis=0), *halves)
  for x, y in zip(jax.tree.leaves(state.batch_stats), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert x.sharding.is_fully_replicated
  whole = toy.make(2, augment='none')
  state, _ = whole.train_step(whole.new_state(), targets, _images(whole, batch.row),
                              whole.devices.shard(batch))
  assert any(np.abs(x - y).max() > 1e-4 for x, y in zip(
      jax.tree.leaves(state.batch_stats), jax.tree.leaves(expected)))


class _Plain(nn.Module):
  """A network without batch statistics, but with dropout."""

  @nn.compact
  def __call__(self, images, train):
    x = nn.relu(nn.Dense(16)(images.reshape(len(images), -1)))
    x = dropout.Dropout(0.5, step.AXIS)(x, train)
    return tuple(nn.tanh(nn.Dense(c)(x)) for c in toy.FLAGS['code_lengths'])


def test_dropout_and_networks_without_statistics_agree_on_any_number_of_devices(monkeypatch):
  monkeypatch.setattr(trainer, 'network', lambda config, method, platform: _Plain())
  one, four = (toy.fit(toy.make(d, num_rounds=1))[-1].state for d in (1, 4))
  assert one.batch_stats == {}
  for x, y in zip(jax.tree.leaves(one.params), jax.tree.leaves(four.params)):
    np.testing.assert_allclose(x, y, atol=1e-5)
  for x, y in zip(one.codes, four.codes):
    np.testing.assert_array_equal(x, y)
