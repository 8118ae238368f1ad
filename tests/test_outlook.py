"""A run says at its start what it will do, and soon how long that will take."""

import re

import pytest

from mah_jax import config
from mah_jax import main
from mah_jax.train import loop
from mah_jax.train import memory
from mah_jax.train import outlook

PLAN = loop.Plan(num_rows=1000, num_rounds=100, epochs_per_round=2, batch_size=64,
                 num_sampled=1000, shuffle=False)  # 16 steps an epoch, 3,200 in all


@pytest.fixture(name='clock')
def clock_fixture(monkeypatch):
  """A clock that stands still until it is set."""
  now = [0.0]
  monkeypatch.setattr(outlook.time, 'monotonic', lambda: now[0])
  return now


def _said(clock, times, platform='cpu', **changes):
  """The sentences that a pace says, by the step after which it says them."""
  said = {}
  pace = outlook.Pace(config.make(pretrained='weights', **changes), PLAN, 2000, platform,
                      lambda text: said.update({step: text}))
  for step, clock[0] in enumerate(times, start=1):
    pace.note(step)
  return said


def test_a_long_run_on_a_cpu_is_told_so_once_after_a_few_steps(clock):
  """A minute of compilation; the second call comes at once; then 20 s a step: 3,195 are left."""
  said = _said(clock, [60, 60, 80, 100, 120, 140, 160])
  assert list(said) == [5]  # three steps of 20 s
  # 3,195 steps x 20 s = 17.75 h; 64 / 20 = 3.2 images a second; 2,000 images / 3.2 / 3 = 208 s.
  assert said[5].startswith('About 18 h of training are left on this machine, at 3.2 images a ')
  assert 'about 3 min for all images' in said[5] and 'launch/folder_features.cfg' in said[5]


def test_steps_are_measured_for_ten_seconds_at_least(clock):
  said = _said(clock, [60, 60, *(60 + 2 * i for i in range(1, 10))])
  assert list(said) == [7]  # 60 + 10 s
  assert 'About 106 min of' in said[7]  # 3,193 steps x 2 s


@pytest.mark.parametrize('platform, changes, seconds', [
    ('gpu', {}, 20), ('cpu', {'input': 'features'}, 20), ('cpu', {}, 1)],
    ids=['no CPU', 'no images', 'no hour'])
def test_other_runs_are_told_nothing(clock, platform, changes, seconds):
  assert not _said(clock, [60, *(60 + seconds * i for i in range(30))], platform, **changes)


def test_without_weights_the_way_to_get_some_is_named(clock):
  said = []
  pace = outlook.Pace(config.make(), PLAN, 2000, 'cpu', said.append)
  for step, clock[0] in enumerate([60, 60, 80, 100, 120], start=1):
    pace.note(step)
  assert '--pretrained weights (python -m mah_jax.data.fetch resnet50' in said[0]


def test_the_time_left_counts_the_steps_that_were_timed():
  # Resumed at step 774 of 3,688, a round of 922 steps ends after 148 steps and 74 s.
  assert outlook.seconds_left(74.0, 774, 922, 3688) == 0.5 * 2766


def test_images_are_counted_without_those_that_fill_up_a_batch():
  assert [PLAN.images_after(step) for step in (0, 1, 15, 16, 17, 32)] == [
      0, 64, 960, 1000, 1064, 2000]
  assert PLAN.images_after(PLAN.num_steps) == 100 * 2 * 1000


def test_a_run_says_what_it_will_do_and_how_long_it_will_take(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(outlook, 'LONG', 0)
  monkeypatch.setattr(outlook, 'SECONDS', 0)
  flags = ['--flagfile=launch/quickstart.cfg', '--width=4', '--batch_size=256', '--num_rounds=2',
           '--epochs_per_round=1', '--hold_codes_rounds=1', '--code_lengths=4,8',
           '--head_weights=2,1', '--num_sampled=600', '--num_devices=1', f'--workdir={tmp_path}']
  assert main.main(flags) == 0
  lines = capsys.readouterr().out.splitlines()
  assert re.fullmatch(r'mah: heads of 4 and 8 bits on compact at 8 px, 0\.0\d million parameters; '
                      r'2 rounds of 3 steps of 256 images; 1,697 database images, 100 queries; '
                      r'1 device \(cpu\)\.', lines[0])
  assert lines[1] == f'Settings, scores, codes and checkpoints go to {tmp_path}.'
  assert len([line for line in lines if line.startswith('About 0 min of training')]) == 1
  # Once more with a third round, on a device that tells how much memory it has.
  monkeypatch.setattr(memory, 'limit', lambda devices: 1000 * memory.MEGABYTE)
  assert main.main([*flags, '--num_rounds=3']) == 0
  assert re.search(r'; rounds 3 to 3 of 3 steps .*\(cpu\), a step needs \d+ of 1,000 MB\.\n',
                   capsys.readouterr().out)


def test_a_fit_says_what_it_will_do(tmp_path, capsys):
  assert main.main(['--method=itq', '--dataset=digits', '--image_size=0', '--code_lengths=4',
                    f'--workdir={tmp_path}', '--num_devices=1']) == 0
  assert ('itq: codes of 4 bits from pixels, 64 numbers; 1,697 database images, 100 queries; '
          f'1 device (cpu).\nSettings, scores, codes and model.npz go to {tmp_path}.'
          ) in capsys.readouterr().out
