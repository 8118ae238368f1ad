"""What training needs is added up before it begins, where the memory of devices is known."""

import logging
import types

import jax
import numpy as np
import pytest
import toy

from mah_jax import errors
from mah_jax.train import backbone
from mah_jax.train import memory
from mah_jax.train import step
from mah_jax.train import trainer

IMAGES = 400 * 8 * 8  # bytes of all toy images


@pytest.fixture
def small_backbone(monkeypatch):
  monkeypatch.setattr(backbone, 'make', lambda config, platform: toy.Backbone())


def _limited(monkeypatch, limit):
  monkeypatch.setattr(memory, 'limit', lambda devices: limit)


def _step_bytes(num_devices=1, **changes):
  made = toy.make(num_devices, **changes)
  return made._step_bytes(made.new_state())


def test_the_smallest_limit_counts_and_cpus_have_none():
  limits = [{'bytes_limit': 70}, {'bytes_limit': 50}, None, {}]
  devices = [types.SimpleNamespace(memory_stats=lambda known=known: known) for known in limits]
  assert memory.limit(devices) == 50
  assert memory.limit(jax.local_devices()) is None


def test_a_program_needs_what_it_reads_returns_and_keeps():
  for donated, copies in ((0, 1), ((), 2)):  # a donated argument becomes the result
    program = jax.jit(lambda x: x + 1, donate_argnums=donated).lower(
        jax.ShapeDtypeStruct((1000,), np.float32)).compile()
    assert memory.needed(program) == copies * 4000


def test_a_step_that_does_not_fit_is_refused_in_megabytes(small_backbone, monkeypatch, capsys):
  needed = _step_bytes()
  _limited(monkeypatch, needed - 1)
  made = toy.make()
  with pytest.raises(errors.InputError) as refusal:
    toy.fit(made)
  size = f'{needed / 2**20:.0f} MB'
  assert str(refusal.value) == (
      f'A step of --batch_size=64 on 1 devices needs {size} on each, which has {size}: lower '
      '--batch_size, or take --precision=bf16.')
  _limited(monkeypatch, 1)
  with pytest.raises(errors.InputError, match='0 MB: lower --batch_size.$'):
    trainer.begin(toy.settings(precision='bf16'), toy.dataset(), made.devices)


def test_images_that_do_not_fit_beside_the_step_stream(small_backbone, monkeypatch, capsys):
  needed, plain, kept = _step_bytes(), toy.fit(toy.make())[-1], []
  make_feed = step.make_feed
  monkeypatch.setattr(step, 'make_feed', lambda *args: kept.append(args) or make_feed(*args))
  for room, resident in ((IMAGES, True), (IMAGES - 1, False)):
    _limited(monkeypatch, needed + room)
    pause = toy.fit(toy.make())[-1]
    assert len(kept) == 1  # by the first of the two
    assert ('The images stream: they have 0 MB' in capsys.readouterr().out) != resident
    jax.tree.map(np.testing.assert_array_equal, pause.state.params, plain.state.params)


@pytest.mark.parametrize('num_devices', [1, 2])
def test_the_step_is_compiled_once_all_the_same(num_devices, small_backbone, monkeypatch):
  compiled = []
  handler = logging.Handler()
  handler.emit = lambda record: compiled.append(record.getMessage())
  _limited(monkeypatch, 2**40)
  made = toy.make(num_devices, num_rounds=1)
  state = made.new_state()
  next(made.feed_database([np.arange(64)]))
  logging.getLogger('jax').addHandler(handler)
  try:
    with jax.log_compiles():
      toy.fit(made, state, on_step=lambda steps: True)
  finally:
    logging.getLogger('jax').removeHandler(handler)
  assert len([text for text in compiled if text.startswith('Compiling jit(_fun)')]) == 1
