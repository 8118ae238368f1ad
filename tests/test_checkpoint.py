"""Checkpoints: what is saved comes back, damage is seen, the one before is used."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toy

from mah_jax import errors
from mah_jax.train import backbone
from mah_jax.train import checkpoint
from mah_jax.train import step

META = {'flags': {'gamma': 1.0}, 'trained_seconds': 2.5}


def _state(fill: float, number: int) -> step.TrainState:
  """A small state with everything that a real one has."""
  rng = np.random.default_rng(number)
  params = {'dense': {'kernel': rng.normal(size=(30, 40)).astype(np.float32) * fill}}
  state = step.TrainState.create(
      apply_fn=None, params=params, tx=optax.sgd(0.1, momentum=0.9),
      batch_stats={'bn': {'mean': np.full(5, fill, np.float32)}},
      codes=(np.where(rng.random((50, 3)) < 0.5, -1, 1).astype(np.int8),),
      memory=(rng.normal(size=(20, 3)).astype(np.float32),), key=jax.random.key(number))
  devices = step.Devices(step.pick_devices(1), 8)
  return devices.replicate(state.replace(step=jnp.asarray(number)))


def _assert_equal(one, two):
  for name in checkpoint.SAVED:
    for x, y in zip(jax.tree.leaves(getattr(one, name)), jax.tree.leaves(getattr(two, name)),
                    strict=True):
      if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x, y = jax.random.key_data(x), jax.random.key_data(y)
      np.testing.assert_array_equal(x, y)


def _open(folder, num_devices=1):
  devices = step.Devices(step.pick_devices(num_devices), 8)
  return checkpoint.Checkpoints(folder, devices, max_to_keep=2)


@pytest.fixture
def saved(tmp_path):
  """A folder with the checkpoints 10 and 20."""
  checkpoints = _open(tmp_path)
  checkpoints.save(_state(1.0, 10), META)
  checkpoints.save(_state(2.0, 20), META | {'trained_seconds': 5.0})
  checkpoints.close()
  return tmp_path


def _files(folder):
  return sorted(path for path in folder.rglob('*') if path.is_file())


def _newest(folder):
  checkpoints = _open(folder)
  found = checkpoints.newest(required=False)
  checkpoints.close()
  return found


@pytest.mark.parametrize('num_devices', [1, 4])
def test_everything_comes_back_on_any_number_of_devices(saved, num_devices):
  checkpoints = _open(saved, num_devices)
  assert checkpoints.newest() == (20, [])
  assert checkpoints.meta(20) == META | {'trained_seconds': 5.0}
  state = checkpoints.restore(20, _state(0.0, 3))
  _assert_equal(state, _state(2.0, 20))
  assert len(state.params['dense']['kernel'].sharding.device_set) == num_devices
  assert isinstance(state.opt_state, tuple)
  checkpoints.close()


def test_only_the_newest_are_kept(saved):
  checkpoints = _open(saved)
  checkpoints.save(_state(3.0, 30), META)
  checkpoints.close()
  assert sorted(path.name for path in saved.iterdir() if path.is_dir()) == ['20', '30']


def test_a_flipped_byte_anywhere_is_seen(saved):
  rng = random.Random(0)
  files = _files(saved / '20')
  for path in files + rng.choices(files, k=20):
    content = path.read_bytes()
    if not content:
      continue
    place = rng.randrange(len(content))
    flipped = bytearray(content)
    flipped[place] ^= 1 << rng.randrange(8)
    path.write_bytes(flipped)
    step_found, reports = _newest(saved)
    assert step_found == 10, (path, place)
    assert len(reports) == 1 and 'Checkpoint 20 cannot be used' in reports[0]
    path.write_bytes(content)
  assert _newest(saved) == (20, [])


def test_truncated_and_missing_files_are_seen(saved):
  for path in _files(saved / '20'):
    content = path.read_bytes()
    path.unlink()
    assert _newest(saved)[0] == 10
    if content:
      path.write_bytes(content[:len(content) // 2])
      assert _newest(saved)[0] == 10
    path.write_bytes(content)


@pytest.mark.parametrize('number', [15, 20, 25])
def test_a_damaged_checkpoint_gives_way_to_the_next_one_saved(saved, number):
  (saved / '20' / checkpoint.SEAL).unlink()
  checkpoints = _open(saved)
  assert checkpoints.newest()[0] == 10
  checkpoints.save(_state(7.0, number), META)
  checkpoints.wait()
  assert checkpoints.newest() == (number, [])
  _assert_equal(checkpoints.restore(number, _state(0.0, 3)), _state(7.0, number))
  checkpoints.close()


def test_reading_only_leaves_unfinished_saves_of_others_alone(saved):
  unfinished = saved / '30.orbax-checkpoint-tmp'
  unfinished.mkdir()
  checkpoints = checkpoint.Checkpoints(saved, step.Devices(step.pick_devices(1), 8))
  assert checkpoints.newest() == (20, [])
  checkpoints.close()
  assert unfinished.exists()


def test_no_whole_checkpoint_left_is_said_and_nothing_deleted(saved):
  for number in ('10', '20'):
    path = max(_files(saved / number), key=lambda path: path.stat().st_size)
    path.write_bytes(b'')
  with pytest.raises(errors.InputError, match='remove that folder'):
    _newest(saved)
  assert (saved / '10').exists() and (saved / '20').exists()


def test_a_first_checkpoint_cut_off_while_saved_means_a_new_start(saved):
  for number in ('10', '20'):
    (saved / number / checkpoint.SEAL).unlink()
  step_found, reports = _newest(saved)
  assert step_found is None and len(reports) == 2


def test_a_stopped_run_goes_on_to_the_same_end(tmp_path, monkeypatch):
  """Stopped in the middle of an epoch, saved, restored on new objects: bit-identical."""
  monkeypatch.setattr(backbone, 'make', lambda config, platform: toy.Backbone())
  settings = {'num_rounds': 3, 'epochs_per_round': 2, 'code_update': 'epoch'}
  whole = toy.fit(toy.make(**settings))
  for stop_at in (1, 3, 8):  # in an epoch, at the end of an epoch, in the second round
    folder = tmp_path / str(stop_at)
    answers = iter([False] * (stop_at - 1) + [True])
    pause = toy.fit(toy.make(**settings), on_step=lambda steps, answers=answers: next(answers))[-1]
    assert int(pause.state.step) == stop_at
    checkpoints = _open(folder)
    checkpoints.save(pause.state, META)
    checkpoints.wait()
    made = toy.make(**settings)
    state = made.restore(checkpoints, stop_at)
    checkpoints.close()
    resumed = toy.fit(made, state, history=() if pause.finished else pause.history)
    _assert_equal(resumed[-1].state, whole[-1].state)
    assert [p.metrics for p in resumed] == [p.metrics for p in whole][-len(resumed):]
