"""The event file of a run, read by TensorBoard itself; nothing at all without tensorboardX."""

import sys

import pytest

from mah_jax import storage
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import tensorboard


def _line(number):
  return {'round': number, 'losses': {'loss': 1 / number, 'semantic/4': 2 / number},
          'metrics': {'4': {'learned': {'map': number / 10}, 'encoded': {'map': number / 20},
                            'codebook': {'distinct': 9}}},
          'seconds': 60.0 * number, 'images_per_second': 500.0, 'learning_rate': 0.01}


def test_a_round_has_losses_scores_rate_and_speed():
  assert tensorboard.numbers(_line(2)) == {
      'loss/loss': 0.5, 'loss/semantic_4': 1.0, 'map/learned_4': 0.2, 'map/encoded_4': 0.1,
      'learning_rate': 0.01, 'images_per_second': 500.0}
  earlier = {'round': 1, 'losses': {}, 'metrics': {}}  # of a version without rate and speed
  assert tensorboard.numbers(earlier) == {}


def _scalars(path):
  """By name, the rounds and values that TensorBoard would draw, and their times."""
  from tensorboard.backend.event_processing import event_accumulator
  events = event_accumulator.EventAccumulator(str(path)).Reload()
  return {name: [(event.step, pytest.approx(event.value), event.wall_time)
                 for event in events.Scalars(name)] for name in events.Tags()['scalars']}


def test_tensorboard_reads_a_run_that_was_resumed(tmp_path):
  pytest.importorskip('tensorboardX', reason='tensorboardX, an extra, is not installed')
  pytest.importorskip('tensorboard', reason='TensorBoard, a test extra, is not installed')
  folder = folder_lib.RunFolder(str(tmp_path))
  folder.keep_rounds(0)
  folder.write_events()
  for number in (1, 2, 3):
    folder.add_round(_line(number))
  events, = tmp_path.glob('*tfevents*')
  storage.append(events, b'cut off by a kill')
  folder.keep_rounds(2)  # the third comes again
  folder.write_events()
  for number in (3, 4):
    folder.add_round(_line(number) | {'learning_rate': 0.001})
  read = _scalars(tmp_path)
  assert set(read) == set(tensorboard.numbers(_line(1)))
  assert [event[:2] for event in read['map/learned_4']] == [(i, i / 10) for i in (1, 2, 3, 4)]
  assert [event[1] for event in read['learning_rate']] == [0.01, 0.01, 0.001, 0.001]
  first, second = (event[2] for event in read['loss/loss'][:2])
  assert second - first == pytest.approx(60)


def test_without_tensorboardx_nothing_is_written_or_said(tmp_path, monkeypatch, capfd):
  monkeypatch.setitem(sys.modules, 'tensorboardX', None)
  folder = folder_lib.RunFolder(str(tmp_path))
  folder.keep_rounds(0)
  folder.write_events()
  folder.add_round(_line(1))
  assert [path.name for path in tmp_path.iterdir()] == ['metrics.jsonl']
  assert capfd.readouterr() == ('', '')
