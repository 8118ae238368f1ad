"""Several real processes on this machine share a run: same codes, one voice, one end."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import image_files
import numpy as np
import pytest

from mah_jax import errors
from mah_jax import flags
from mah_jax import main
from mah_jax.train import processes

ROOT = pathlib.Path(__file__).parents[1]
RUN = ['--flagfile=launch/profile_best.cfg', '--dataset=digits', '--backbone=compact', '--width=4',
       '--image_size=8', '--code_lengths=4,8', '--head_weights=2,1', '--hold_codes_rounds=1',
       '--num_sampled=256', '--batch_size=32', '--num_rounds=3', '--epochs_per_round=2',
       '--learning_rate=0.02', '--lr_drop_rounds=', '--augment=shift', '--shift_pixels=1']
LIMIT = 120  # seconds after which a process counts as hanging


class Pair:
  """Two processes that were started with the same flags, each with so many devices."""

  def __init__(self, folder, arguments, *, devices=1, own=((), ()), program=('-m', 'mah_jax.main')):
    with socket.create_server(('127.0.0.1', 0)) as free:
      port = free.getsockname()[1]
    self._logs = [folder / f'process{i}.log' for i in range(2)]
    self.processes = []
    for i, log in enumerate(self._logs):
      with log.open('w') as file:
        self.processes.append(subprocess.Popen(
            [sys.executable, *program, *arguments, f'--coordinator=127.0.0.1:{port}',
             '--num_processes=2', f'--process_id={i}', *own[i]], cwd=ROOT,
            env=_environment(devices), stdout=file, stderr=subprocess.STDOUT))

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    for process in self.processes:
      process.kill()
      process.wait()

  def wait(self):
    """Waits for both; returns their exit codes."""
    return [process.wait(LIMIT) for process in self.processes]

  def said(self, i=0):
    """What a process has printed until now, without the greeting of the library between them."""
    lines = self._logs[i].read_text().splitlines(keepends=True)
    return ''.join(line for line in lines if not line.startswith('[Gloo]'))

  def wait_for(self, words, i=0):
    """Waits until a process has said something."""
    until = time.monotonic() + LIMIT
    while words not in self.said(i):
      assert time.monotonic() < until and self.processes[i].poll() is None, self.said(i)
      time.sleep(0.02)


def _environment(devices):
  return os.environ | {'XLA_FLAGS': ' '.join([
      os.environ.get('XLA_FLAGS', ''), f'--xla_force_host_platform_device_count={devices}'])}


def _alone(arguments, devices):
  """One process with so many devices."""
  done = subprocess.run([sys.executable, '-m', 'mah_jax.main', *arguments], cwd=ROOT,
                        env=_environment(devices), capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return done.stdout


def _codes(folder):
  return {path.name: np.load(path) for path in sorted((folder / 'codes').glob('*.npy'))}


def _assert_same(one, other):
  """Codes, scores, and everything that was logged but seconds."""
  for name, codes in _codes(one).items():
    np.testing.assert_array_equal(codes, _codes(other)[name], err_msg=name)
  scores = [json.loads((run / 'results.json').read_text())['metrics'] for run in (one, other)]
  assert scores[0] == scores[1]
  rounds = [re.sub(r'"seconds": [\d.]+', '', (run / 'metrics.jsonl').read_text())
            for run in (one, other)]
  assert rounds[0] == rounds[1]


@pytest.fixture(scope='module')
def two_devices(tmp_path_factory):
  """A run of one process on two devices."""
  folder = tmp_path_factory.mktemp('alone') / 'run'
  _alone([*RUN, f'--workdir={folder}'], devices=2)
  return folder


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
  """The same run of two processes with a device each, and what they said."""
  folder = tmp_path_factory.mktemp('shared')
  with Pair(folder, [*RUN, f'--workdir={folder / "run"}']) as pair:
    assert pair.wait() == [0, 0], pair.said(0) + pair.said(1)
    return folder / 'run', pair.said(0), pair.said(1)


def test_two_processes_are_one_process_with_two_devices(two_devices, shared):
  run, said, said_by_other = shared
  _assert_same(two_devices, run)
  assert said.count('round 3/3') == 1 and said.endswith(f'Written to {run}.\n')
  assert said_by_other == ''
  assert len(json.loads((run / 'config.json').read_text())['devices']) == 2


def test_an_evaluation_by_two_processes_finds_the_same(shared, tmp_path):
  run = tmp_path / 'run'
  shutil.copytree(shared[0], run)
  (run / 'results.json').unlink()
  shutil.rmtree(run / 'codes')
  with Pair(tmp_path, ['--mode=evaluate', f'--workdir={run}']) as pair:
    assert pair.wait() == [0, 0], pair.said(0) + pair.said(1)
  _assert_same(shared[0], run)


def test_two_processes_with_two_devices_agree_with_four(tmp_path):
  """Sums of four parts are rounded otherwise between processes, so outputs near 0 may differ."""
  run = [*RUN, '--num_rounds=1']
  _alone([*run, f'--workdir={tmp_path / "four"}'], devices=4)
  with Pair(tmp_path, [*run, f'--workdir={tmp_path / "run"}'], devices=2) as pair:
    assert pair.wait() == [0, 0], pair.said(0) + pair.said(1)
  one, other = _codes(tmp_path / 'four'), _codes(tmp_path / 'run')
  for name in one:
    differing = np.mean(one[name] != other[name])
    assert differing <= (0.02 if name.startswith('queries') else 0), name
  rounds = [json.loads((tmp_path / name / 'metrics.jsonl').read_text())['losses']
            for name in ('four', 'run')]
  assert rounds[0] == pytest.approx(rounds[1], rel=1e-4)


def test_a_signal_to_either_process_stops_both_and_one_process_goes_on(two_devices, tmp_path):
  run = tmp_path / 'run'
  command = [*RUN, f'--workdir={run}']
  for i, number, code in ((1, signal.SIGTERM, 0), (0, signal.SIGINT, 130)):
    with Pair(tmp_path, [*command, '--checkpoint_every=0']) as pair:
      pair.wait_for('round' if i else 'Restored')
      pair.processes[i].send_signal(number)
      assert pair.wait() == [code, code], pair.said(0) + pair.said(1)
      assert pair.said(0).count('Stopped and saved') == 1 and pair.said(1) == ''
      assert 'Stopping as soon as the work allows it' in pair.said(0)
  assert 'Restored' in _alone(command, devices=2)
  _assert_same(two_devices, run)


@pytest.mark.parametrize('killed', [0, 1])
def test_when_a_process_dies_the_other_ends_and_the_same_command_goes_on(
    killed, two_devices, tmp_path):
  run = tmp_path / 'run'
  other = 1 - killed
  with Pair(tmp_path, [*RUN, f'--workdir={run}', '--process_timeout=20']) as pair:
    pair.wait_for('round 1/3')
    pair.processes[killed].kill()
    began = time.monotonic()
    assert pair.processes[other].wait(LIMIT) == 1
    assert time.monotonic() - began < 20
    said = pair.said(other).replace('Stopping as soon', '')
    assert said.splitlines()[-1].startswith(f'mah_jax: Process {killed} of 2 is gone'), said
    assert 'Traceback' not in said and '***' not in said
  _alone([*RUN, f'--workdir={run}'], devices=2)
  _assert_same(two_devices, run)


def test_a_process_that_hangs_counts_as_dead(tmp_path):
  with Pair(tmp_path, [*RUN, f'--workdir={tmp_path / "run"}', '--num_rounds=100',
                       '--process_timeout=3']) as pair:
    pair.wait_for('round 1/')
    pair.processes[1].send_signal(signal.SIGSTOP)
    assert pair.processes[0].wait(LIMIT) == 1
    assert pair.said(0).splitlines()[-1].startswith('mah_jax: Process 1 of 2 is gone')


def _photos(folder):
  """Eleven images of which two cannot be read: one in the share of each process."""
  image_files.class_tree(folder, {'bag': 5, 'cup': 4})
  (folder / 'bag' / '1a.jpg').write_bytes(b'This is no image.\n')
  (folder / 'cup' / 'zz.png').write_bytes(b'')
  return folder


def test_each_process_encodes_its_share_of_a_folder(shared, tmp_path):
  photos = _photos(tmp_path / 'photos')
  encode = ['--mode=encode', f'--workdir={shared[0]}', f'--images={photos}']
  with Pair(tmp_path, [*encode, f'--output={tmp_path / "both"}', '--batch_size=4']) as pair:
    assert pair.wait() == [0, 0], pair.said(0) + pair.said(1)
    assert '9 images encoded to 4,8 bits, 2 skipped' in pair.said(0) and pair.said(1) == ''
  assert main.main([*encode, f'--output={tmp_path / "alone"}', '--num_devices=2']) == 0
  for path in sorted((tmp_path / 'alone').iterdir()):
    assert path.read_bytes() == (tmp_path / 'both' / path.name).read_bytes(), path.name


def test_features_are_extracted_by_all_and_fitted(shared, tmp_path):
  """Each process checks and decodes its share of the files; one has the cache, one waits."""
  fit = ['--dataset=digits', '--method=itq', '--code_lengths=4', '--image_size=8', '--crop=1.0',
         '--batch_size=32', f'--pretrained={shared[0]}', '--backbone=compact', '--width=4']
  runs = []
  for name in ('both', 'alone'):
    os.environ['XDG_CACHE_HOME'] = str(tmp_path / name)
    try:
      command = [*fit, f'--workdir={tmp_path / name / "run"}']
      if name == 'both':
        with Pair(tmp_path, command) as pair:
          assert pair.wait() == [0, 0], pair.said(0) + pair.said(1)
      else:
        assert main.main([*command, '--num_devices=2']) == 0
    finally:
      del os.environ['XDG_CACHE_HOME']
    features, = (tmp_path / name).glob('mah_jax/features/*/features.npy')
    runs.append((np.load(features), _codes(tmp_path / name / 'run')))
  np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-4, atol=1e-5)
  for name, codes in runs[0][1].items():
    assert np.mean(codes != runs[1][1][name]) < 0.01


# The experiments of the paper's Table 3 on the digits, in miniature.
PAPER = """
import pathlib, sys, test_paper
from mah_jax import flags
from mah_jax.paper import __main__ as command
from mah_jax.paper import scores
from mah_jax.train import processes
root, study = pathlib.Path(sys.argv[1]), test_paper.MINIATURE._replace(seeds=1)

def make_config(cell):
  return command.config_of(cell, 'features', [
      f'--workdir={root / "runs" / cell.name}', '--pretrained=', '--image_size=0',
      *test_paper.TINY])

sys.exit(processes.run(flags.launch(sys.argv[2:]), lambda: command.make(
    study, ['table3'], make_config, scores.Scores(root / 'runs'), root / 'out', {})))
"""


def test_the_experiments_of_the_paper_are_shared(tmp_path, monkeypatch):
  pytest.importorskip('matplotlib', reason='Matplotlib, an extra, is not installed')
  monkeypatch.setenv('PYTHONPATH', f'{ROOT}{os.pathsep}{ROOT / "tests"}')
  for finished in (0, 2):  # the second call finds all runs made
    with Pair(tmp_path, [str(tmp_path)], program=('-c', PAPER)) as pair:
      assert pair.wait() == [0, 0], pair.said(0) + pair.said(1)
      assert f'2 runs, {finished} of them finished' in pair.said(0) and pair.said(1) == ''
  assert len(list(tmp_path.rglob('results.json'))) >= 2
  assert 'Table 3' in (tmp_path / 'out' / 'README.md').read_text()


@pytest.mark.parametrize('own, code, words', [
    ((['--batch_size=many'], ['--batch_size=many']), 2, '--batch_size=many must be an integer'),
    ((['--flagfile=no.cfg'], ['--flagfile=no.cfg']), 2, 'flagfile "no.cfg" does not exist'),
    ((['--seed=1'], ['--seed=2']), 2, 'Process 1 has --seed=2, process 0 1'),
    ((['--batch_size=33'], ['--batch_size=33']), 2, 'use a multiple of 2'),
    (([], ['--workdir=FOLDER/elsewhere']), 2, 'Process 1 has --workdir='),
])
def test_a_refusal_is_one_sentence_and_one_exit_code(own, code, words, tmp_path):
  own = [[flag.replace('FOLDER', str(tmp_path)) for flag in of_process] for of_process in own]
  with Pair(tmp_path, [*RUN, f'--workdir={tmp_path / "run"}'], own=own) as pair:
    assert pair.wait() == [code, code], pair.said(0) + pair.said(1)
    assert words in pair.said(0) and pair.said(0).count('\n') == 1, pair.said(0)
    assert pair.said(1) == ''
  assert not (tmp_path / 'run').exists()


def test_a_file_that_one_process_cannot_read_ends_both(tmp_path):
  """It is decoded first when its batch is due, by the process whose share it is in."""
  photos = tmp_path / 'photos'
  image_files.class_tree(photos, {'bag': 30, 'cup': 30})
  command = ['--dataset=folder', f'--data_dir={photos}', '--backbone=compact', '--width=4',
             '--image_size=16', '--num_rounds=30', '--batch_size=8', '--query_fraction=0.25',
             '--resident_mb=0', '--code_init=codebook', f'--workdir={tmp_path / "run"}']
  with Pair(tmp_path, command) as pair:
    pair.wait_for('round 1/')
    for path in photos.rglob('*.jpg'):
      path.write_bytes(b'')
    assert pair.wait() == [1, 1], pair.said(0) + pair.said(1)
    said = pair.said(0)
    assert said.count('mah_jax: ') == 1 and 'the file is empty' in said and 'Traceback' not in said


@pytest.mark.parametrize('arguments, words', [
    (['--distributed', '--coordinator=a:1'], 'give one'),
    (['--num_processes=2'], 'need --coordinator'),
    (['--coordinator=a:1', '--num_processes=2', '--process_id=2'], 'below --num_processes=2'),
    (['--coordinator=a'], 'must be HOST:PORT'),
    (['--coordinator=:7000'], 'must be HOST:PORT'),
    (['--coordinator=a:70000'], 'must be HOST:PORT'),
])
def test_flags_of_processes_that_cannot_be_meant(arguments, words):
  with pytest.raises(errors.UsageError, match=words):
    flags.from_arguments([*RUN, *arguments])
  assert flags.launch([*RUN, *arguments]) == processes.Launch()


def test_a_launch_is_read_whatever_else_is_wrong():
  expected = processes.Launch(False, 'a:1', 3, 2, 9)
  assert flags.launch(['--gama=3', '--coordinator=a:1', '--num_processes', '3', '--process_id=2',
                       '--flagfile=no.cfg', '--process_timeout=9']) == expected
  assert flags.launch(['--distributed']).several and not flags.launch([]).several


def test_processes_that_do_not_meet_end_with_a_sentence(tmp_path):
  """JAX would abort them with a dump."""
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
    for number, code, words in ((1, 1, 'do not find each other within 1 s'),
                                (0, 2, 'choose another port')):
      done = subprocess.run(
          [sys.executable, '-c', 'import sys; from mah_jax import main; '
           'from mah_jax.train import processes; processes.MEETING = 1; '
           'sys.exit(main.main(sys.argv[1:]))', *RUN, f'--workdir={tmp_path / "run"}',
           f'--coordinator=127.0.0.1:{port}', '--num_processes=2', f'--process_id={number}'],
          cwd=ROOT, capture_output=True, text=True)
      assert done.returncode == code and done.stderr.count('\n') == 1, done.stderr
      assert words in done.stderr
  assert not (tmp_path / 'run').exists()


def test_a_process_that_no_job_started_is_refused():
  done = subprocess.run([sys.executable, '-m', 'mah_jax.main', '--distributed', *RUN], cwd=ROOT,
                        capture_output=True, text=True)
  assert done.returncode == 2 and done.stderr.count('\n') == 1
  assert 'finds no job of Slurm, Open MPI 4 or Kubernetes' in done.stderr
