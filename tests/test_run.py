"""Whole runs through the command: the run folder, resuming, stopping, killing, bad input."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import cifar10_layouts
import jax
import numpy as np
import pytest
import random_weights
from flax import traverse_util

from mah_jax import codebook
from mah_jax import flags
from mah_jax import main
from mah_jax import models
from mah_jax import storage
from mah_jax.data import cifar10
from mah_jax.data import datasets
from mah_jax.evaluation import metrics
from mah_jax.modes import train
from mah_jax.runs import folder as folder_lib
from mah_jax.train import step
from mah_jax.train import trainer
from mah_jax.weights import files
from mah_jax.weights import fitting

ROOT = pathlib.Path(__file__).parents[1]
KILLS = int(os.environ.get('MAH_JAX_KILLS', 2))  # each costs a start of the program
FLAGS = ['--flagfile=launch/quickstart.cfg', '--width=4', '--batch_size=256', '--num_rounds=3',
         '--epochs_per_round=1', '--hold_codes_rounds=1', '--code_lengths=4,8',
         '--num_sampled=600', '--num_devices=1']


def _command(workdir, *more):
  return main.main([*FLAGS, f'--workdir={workdir}', *more])


def _results(workdir):
  return json.loads((workdir / 'results.json').read_text())


def _rounds(workdir):
  """Lines of metrics.jsonl without their times and speeds."""
  lines = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  return [{name: value for name, value in line.items()
           if name not in ('seconds', 'images_per_second')} for line in lines]


def _assert_same_run(one, two):
  assert _results(one)['metrics'] == _results(two)['metrics']
  assert _rounds(one) == _rounds(two)
  codes = sorted((one / 'codes').iterdir())
  assert codes
  for path in codes:
    assert path.read_bytes() == (two / 'codes' / path.name).read_bytes()


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """The run folder of an uninterrupted run."""
  workdir = tmp_path_factory.mktemp('runs') / 'whole'
  assert _command(workdir) == 0
  return workdir


def test_the_run_folder_is_complete(finished):
  settings = json.loads((finished / 'config.json').read_text())
  assert settings['flags']['code_lengths'] == [4, 8]
  assert settings['versions']['jax'] == jax.__version__
  results = _results(finished)
  assert list(results) == ['schema', 'method', 'heads', 'dataset', 'protocol', 'classes', 'seed',
                           'seeds', 'k', 'mirror', 'binarize', 'code_lengths', 'step', 'round',
                           'code_updates', 'metrics', 'timing', 'sha256']
  assert [results[name] for name in ('step', 'round', 'code_updates')] == [9, 3, 2]
  assert results['protocol']['queries'] == 100 and results['protocol']['database'] == 1697
  data = datasets.load('digits', '', 0)
  assert results['protocol']['id'] == data.protocol.id
  for c in ('4', '8'):
    assert set(results['metrics'][c]) == {'learned', 'encoded', 'codebook'}
    assert set(results['metrics'][c]['codebook']) == {'distinct', 'min_distance', 'bit_balance',
                                                      'codewords'}
  assert [line['round'] for line in _rounds(finished)] == [1, 2, 3]
  # The codes of the first round are those that training began with.
  assert ['learned' in line['metrics']['4'] for line in _rounds(finished)] == [False, True, True]
  assert 'assigned' in _rounds(finished)[0]['metrics']['4']
  names = json.loads((finished / 'codes' / 'names.json').read_text())
  assert names == {'queries': data.protocol.queries.tolist(),
                   'database': data.protocol.database.tolist()}
  assert not list(finished.rglob('*.part'))
  page = (finished / 'report.html').read_text()
  for c in ('4', '8'):
    assert f'{results["metrics"][c]["learned"]["map"]:.4f}' in page


def test_the_written_codes_give_the_written_scores(finished):
  def load(name):
    return np.load(finished / 'codes' / f'{name}.npy')
  for c in (4, 8):
    queries, database = load(f'queries_{c}'), load(f'database_{c}')
    assert queries.shape == (100, c) and database.shape == (1697, c)
    assert queries.dtype == database.dtype == np.int8
    labels = load('query_labels'), load('database_labels')
    scores = metrics.evaluate(queries, database, *labels)
    last = _rounds(finished)[-1]['metrics'][str(c)]['learned']
    assert last == scores
    outputs, = np.load(finished / 'codes.npz')[f'outputs_{c}']
    assert outputs.dtype == np.float32
    np.testing.assert_array_equal(np.where(outputs >= 0, 1, -1), queries)
    assert np.abs(outputs).max() <= 1  # of tanh
    by_outputs = metrics.evaluate_outputs(outputs, database, *labels)
    assert by_outputs['map'] != scores['map']
    assert _results(finished)['metrics'][str(c)]['learned'] == scores | {'outputs': by_outputs}
    assert 'outputs' in _results(finished)['metrics'][str(c)]['encoded']


def _assert_close_scores(one, two):
  for c, kinds in _results(one)['metrics'].items():
    for kind, scores in kinds.items():
      expected = _results(two)['metrics'][c][kind]
      assert scores.pop('codewords', None) == expected.pop('codewords', None)
      assert scores.pop('outputs', {}) == pytest.approx(expected.pop('outputs', {}), abs=1e-3)
      assert scores == pytest.approx(expected, abs=1e-3)


def test_evaluate_restores_from_shapes_and_scores_the_same(
    finished, tmp_path, capsys, monkeypatch):
  """On three devices, which cannot share the batches of the training evenly."""
  copy = tmp_path / 'copy'
  shutil.copytree(finished, copy)
  (copy / 'results.json').unlink()
  monkeypatch.delattr(codebook, 'codebook')  # which takes a minute for many classes
  monkeypatch.delattr(trainer.Trainer, 'new_state')
  evaluate = ['--mode=evaluate', f'--workdir={copy}', '--num_devices=3']
  assert main.main(evaluate) == 0
  _assert_close_scores(copy, finished)
  printed = capsys.readouterr().out
  assert 'map_database_order' in printed and 'precision@5000' in printed
  by_outputs = _results(copy)['metrics']['8']['encoded']['outputs']['map']
  assert 'Ranked by the outputs of each query in place of its code: map 0.' in printed
  assert f', {by_outputs:.4f} (8 bits encoded).' in printed
  assert main.main([*evaluate, '--k=10']) == 0
  assert 'precision@10 ' in capsys.readouterr().out
  results = _results(copy)
  scores = results['metrics']['8']['learned']
  assert 0 < scores.pop('outputs')['precision@10'] < 1
  assert results['k'] == 10 and 0 < scores['precision@10'] < 1
  queries, database, *labels = (np.load(copy / 'codes' / f'{name}.npy') for name in (
      'queries_8', 'database_8', 'query_labels', 'database_labels'))
  assert scores == metrics.evaluate(queries, database, *labels, k=10)


def test_evaluate_takes_the_nearest_codes_of_the_database(finished, tmp_path):
  copy = tmp_path / 'copy'
  shutil.copytree(finished, copy)
  evaluate = ['--mode=evaluate', f'--workdir={copy}', '--num_devices=1']
  assert main.main([*evaluate, '--binarize=nearest']) == 0
  assert _results(copy)['binarize'] == 'nearest' and _results(finished)['binarize'] == 'sign'
  for c in (4, 8):
    codes = {name: np.load(copy / 'codes' / f'{name}_{c}.npy') for name in ('queries', 'database')}
    own, words = (set(map(tuple, codes[name])) for name in ('queries', 'database'))
    assert own <= words
  shutil.copytree(copy / 'checkpoints', tmp_path / 'checkpoints')
  shutil.rmtree(copy / 'checkpoints')
  before = _results(copy)
  for flag in ([], ['--binarize=nearest']):  # codes alone, which stay what they are
    assert main.main([*evaluate, *flag]) == 0
    assert _results(copy) == before
  assert main.main([*evaluate, '--binarize=sign']) == 2
  shutil.move(tmp_path / 'checkpoints', copy)
  assert main.main(evaluate) == 0  # the flag of the run again
  _assert_close_scores(copy, finished)


def test_codes_alone_are_scored_the_same(finished, tmp_path, capsys):
  for name in ('config.json', 'results.json', 'codes.npz'):
    shutil.copy(finished / name, tmp_path)
  evaluate = ['--mode=evaluate', f'--workdir={tmp_path}', '--noreport']
  results = json.loads((tmp_path / 'results.json').read_text())
  for kinds in results['metrics'].values():  # to be found anew
    kinds['learned']['map'] = kinds['encoded']['outputs']['map'] = 0.0
  (tmp_path / 'results.json').write_text(json.dumps(results))
  assert main.main(evaluate) == 0
  assert _results(tmp_path) == _results(finished)
  assert sorted(path.name for path in tmp_path.iterdir()) == [
      'codes.npz', 'config.json', 'results.json']
  for other in ('--split_seed=1', '--mirror', '--seed=5'):
    assert main.main([*evaluate, other]) == 2
  (tmp_path / 'results.json').write_text('{}')
  assert main.main(evaluate) == 1
  shutil.copy(finished / 'results.json', tmp_path)
  content = (tmp_path / 'codes.npz').read_bytes()
  arrays = storage.read_npz(tmp_path / 'codes.npz')
  capsys.readouterr()
  for change in ({'encoded_8': arrays['encoded_8'][:, 1:]}, {'queries_4': arrays['queries_4'][1:]},
                 {'learned_4': arrays['learned_4'] > 0},
                 {'outputs_4': arrays['outputs_4'].transpose(0, 2, 1)},
                 {'outputs_8': arrays['outputs_8'] * np.nan}):
    storage.write_npz(tmp_path / 'codes.npz', arrays | change)
    assert main.main(evaluate) == 1
    assert 'lacks codes' in capsys.readouterr().err
  for change, words in (({'learned_4': ~arrays['learned_4']}, 'not those that were written'),
                        ({'step': arrays['step'] + 1}, 'not those that were written')):
    with np.load(finished / 'codes.npz') as sealed:
      np.savez(tmp_path / 'codes.npz', **(dict(sealed) | change))
    assert main.main(evaluate) == 1
    assert words in capsys.readouterr().err
  (tmp_path / 'codes.npz').write_bytes(content)
  results = _results(finished)
  for name, value in (('code_lengths', results['code_lengths'][:1]), ('step', 3)):
    (tmp_path / 'results.json').write_text(json.dumps(results | {name: value}))
    assert main.main(evaluate) == 1
    assert 'are not of the same evaluation' in capsys.readouterr().err
  of_earlier = {name: value for name, value in results.items() if name != 'sha256'}
  (tmp_path / 'results.json').write_text(json.dumps(of_earlier))
  np.savez(tmp_path / 'codes.npz', **{
      name: values for name, values in arrays.items() if name[-1].isdigit()
      and not name.startswith('outputs')})
  assert main.main(evaluate) == 0  # an archive of an earlier version
  assert 'Ranked by the outputs' not in capsys.readouterr().out
  for c, kinds in _results(finished)['metrics'].items():
    for kind, scores in kinds.items():
      scores.pop('outputs', None)
      assert _results(tmp_path)['metrics'][c][kind] == scores
  (tmp_path / 'codes.npz').write_bytes(content[:1000])
  assert main.main(evaluate) == 1
  assert 'codes.npz' in capsys.readouterr().err


def test_the_same_command_on_a_finished_run_only_evaluates(finished, capsys):
  before = _results(finished), _rounds(finished)
  assert _command(finished) == 0
  assert 'round 1/3' not in capsys.readouterr().out
  assert (_results(finished)['metrics'], _rounds(finished)) == (before[0]['metrics'], before[1])


def test_more_rounds_go_on_from_the_last(finished, tmp_path, capsys):
  assert _command(tmp_path / 'short', '--num_rounds=2') == 0
  assert _command(tmp_path / 'short') == 0
  assert 'Restored' in capsys.readouterr().out
  _assert_same_run(finished, tmp_path / 'short')


def test_a_run_goes_on_with_another_number_of_devices(finished, tmp_path):
  assert _command(tmp_path / 'run', '--num_rounds=1', '--num_devices=2') == 0
  assert _command(tmp_path / 'run', '--num_devices=1') == 0
  _assert_close_scores(tmp_path / 'run', finished)


def test_rounds_are_scored_and_saved_as_often_as_asked(finished, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(train, 'SILENT', 3600.0)  # however slow this machine is
  workdir = tmp_path / 'run'
  assert _command(workdir, '--eval_every=2', '--checkpoint_every=2') == 0
  said = re.findall(r'^round (\d)/3', capsys.readouterr().out, flags=re.M)
  assert said == ['2', '3']  # the first round is not scored
  assert [line['round'] for line in _rounds(workdir)] == [2, 3]
  steps = sorted(int(path.name) for path in (workdir / 'checkpoints').iterdir())
  assert steps == [6, 9]  # three steps a round
  assert _results(workdir)['metrics'] == _results(finished)['metrics']


def test_fewer_rounds_than_are_done_are_refused(finished, capsys):
  before = (finished / 'config.json').read_bytes()
  assert _command(finished, '--num_rounds=2') == 2
  assert 'past 3 rounds' in capsys.readouterr().err
  assert (finished / 'config.json').read_bytes() == before


def test_training_does_not_begin_anew_over_a_finished_run(finished, tmp_path, capsys):
  copy = tmp_path / 'copy'
  shutil.copytree(finished, copy, ignore=shutil.ignore_patterns('checkpoints'))
  assert _command(copy) == 1
  assert 'no checkpoint to resume' in capsys.readouterr().err
  assert _rounds(copy) == _rounds(finished)


def test_a_folder_is_one_run_s_at_a_time(finished, capsys):
  config = flags.from_arguments([*FLAGS, f'--workdir={finished}'])
  with folder_lib.RunFolder(finished).claimed(config):
    for arguments in ([], ['--mode=evaluate']):
      assert _command(finished, *arguments) == 1
      assert 'Another run is at work' in capsys.readouterr().err
  assert _command(finished) == 0


def test_images_that_stream_give_the_same_bits(finished, tmp_path):
  assert _command(tmp_path / 'run', '--resident_mb=0') == 0
  _assert_same_run(finished, tmp_path / 'run')


def _full(*args, **kwargs):
  raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes.')


@pytest.mark.parametrize('name, words', [
    ('make_feed', 'for all images, 0 MB: lower --resident_mb'),
    ('make_train_step', 'for a batch: lower --batch_size'),
])
def test_a_full_device_is_blamed_on_what_fills_it(name, words, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(step, name, _full if name == 'make_feed' else lambda *args, **options: _full)
  assert _command(tmp_path / 'run') == 1
  error = capsys.readouterr().err
  assert words in error and error.count('\n') == 1


def test_a_mistake_does_not_claim_the_folder(tmp_path, capsys):
  assert _command(tmp_path / 'run', '--feature=logits') == 2
  assert _command(tmp_path / 'run', '--num_rounds=1') == 0


def test_a_damaged_newest_checkpoint_is_reported_and_the_run_ends_the_same(
    finished, tmp_path, capsys):
  workdir = tmp_path / 'damaged'
  assert _command(workdir, '--num_rounds=2') == 0
  newest = max(int(path.name) for path in (workdir / 'checkpoints').iterdir())
  files = [path for path in (workdir / 'checkpoints' / str(newest)).rglob('*') if path.is_file()]
  largest = max(files, key=lambda path: path.stat().st_size)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 1
  largest.write_bytes(content)
  before = {path: path.read_bytes() for path in workdir.rglob('*') if path.is_file()}
  assert _command(workdir, '--num_rounds=2', '--mode=evaluate') == 1  # the one before is of round 1
  assert f'is of step {newest}, but' in capsys.readouterr().err
  assert {path: path.read_bytes() for path in workdir.rglob('*') if path.is_file()} == before
  assert _command(workdir) == 0
  assert f'Checkpoint {newest} cannot be used' in capsys.readouterr().out
  _assert_same_run(finished, workdir)


def test_a_workdir_of_another_run_is_refused_with_the_difference(finished, capsys):
  (finished / 'config.json').unlink()  # then its checkpoints say what it is
  for file_is_there in (False, True):
    assert _command(finished, '--gamma=3') == 2
    message = capsys.readouterr().err
    assert '--gamma=3.0 (was 200.0)' in message and 'another --workdir' in message
    assert (finished / 'config.json').exists() == file_is_there
    assert _command(finished) == 0


def _start(workdir):
  """The same run as a process of its own."""
  environment = os.environ | {'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu'}
  return subprocess.Popen([sys.executable, '-m', 'mah_jax.main', *FLAGS, '--num_rounds=6',
                           f'--workdir={workdir}'], cwd=ROOT, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _wait_for(process, text):
  """Reads output up to a line with `text`; returns what was read."""
  lines = []
  for line in process.stdout:
    lines.append(line)
    if text in line:
      return ''.join(lines)
  raise AssertionError(''.join(lines))


def test_killed_and_stopped_runs_end_as_the_uninterrupted_one(tmp_path):
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  process = _start(whole)
  assert process.wait(120) == 0, process.stdout.read()

  rng = random.Random(0)
  for i in range(KILLS):
    process = _start(broken)
    _wait_for(process, f'round {i % 5 + 1}/6' if i < 3 else 'Restored')
    time.sleep(rng.uniform(0, 0.3))
    process.kill()
    process.wait()

  process = _start(broken)
  _wait_for(process, 'Restored')
  process.send_signal(signal.SIGTERM)
  output = process.stdout.read()
  assert process.wait(60) == 0
  assert 'the same command goes on' in output

  process = _start(broken)
  output = process.stdout.read()
  assert process.wait(120) == 0, output
  assert 'Restored' in output
  _assert_same_run(whole, broken)


def test_a_loss_that_is_not_finite_ends_with_one_sentence(tmp_path, capsys):
  assert _command(tmp_path / 'run', '--learning_rate=1e30') == 1
  error = capsys.readouterr().err.strip()
  assert 'round 1' in error and len(error.splitlines()) == 1


@pytest.mark.parametrize('arguments, code, words', [
    (['--gama=3'], 2, 'gamma'),
    (['--code_lengths=8,4'], 2, 'ascending'),
    (['--head_weights=1,2,3'], 2, '--head_weights'),
    (['--num_devices=99'], 2, '--num_devices=99'),
    (['--num_devices=8', '--batch_size=12'], 2, 'multiple of 8'),
    (['--dataset=cifar10', '--data_dir=nowhere'], 1, 'mah_jax.data.fetch cifar10'),
    (['--dataset=cifar10', '--data_dir=~no_such_user'], 2, 'a user that this machine'),
    (['--dataset=cifar10', '--mode=evaluate', '--workdir=nowhere'], 1, 'nowhere is not a run'),
    (['--backbone=resnet50', '--width=64'], 2, '--backbone=compact'),
    (['--normalize=imagenet'], 2, '--normalize=dataset'),
    (['--feature=logits'], 2, '--feature=pooled'),
    (['--image_size=4'], 2, 'use --image_size=8 or more'),
    (['--workdir=pyproject.toml/run'], 1, '--workdir=pyproject.toml/run cannot be written to'),
])
def test_bad_input_gives_one_sentence_and_its_exit_code(
    arguments, code, words, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  assert _command(tmp_path / 'run', *arguments) == code
  captured = capsys.readouterr()
  assert words in captured.err
  assert len(captured.err.strip().splitlines()) == 1
  assert not (tmp_path / 'run').exists()


def test_a_refused_run_leaves_a_folder_that_was_there(tmp_path):
  (tmp_path / 'run').mkdir()
  assert _command(tmp_path / 'run', '--dataset=cifar10', '--data_dir=nowhere') == 1
  assert list((tmp_path / 'run').iterdir()) == []


def test_images_that_are_not_numbers_are_refused(tmp_path, capsys, monkeypatch):
  spec = datasets.SPECS['digits']

  def load(source):
    data = spec.load(source)
    images = data.images.astype(np.float32)
    images[5, 0, 0] = np.nan
    return data._replace(images=images)

  monkeypatch.setitem(datasets.SPECS, 'digits', spec._replace(load=load))
  assert _command(tmp_path / 'run') == 1
  assert 'row 5' in capsys.readouterr().err


def test_the_quickstart_reaches_its_scores(tmp_path):
  environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}  # as a user runs it
  subprocess.run([sys.executable, '-m', 'mah_jax.main', '--flagfile=launch/quickstart.cfg',
                  f'--workdir={tmp_path / "run"}'], cwd=ROOT, env=environment, check=True)
  scores = _results(tmp_path / 'run')['metrics']
  assert scores['8']['learned']['map'] >= 0.95
  assert scores['4']['learned']['map'] >= 0.90
  assert [s['codebook']['distinct'] for s in scores.values()] == [10, 10, 10]
  rounds = [json.loads(line) for line in (tmp_path / 'run/metrics.jsonl').read_text().splitlines()]
  spent = sum(2 * 1697 / line['images_per_second'] for line in rounds)  # two passes a round
  assert len(rounds) == 10 and 0 < spent < rounds[-1]['seconds'] < 3 * spent


def _write_weights(path):
  """A file of random weights for resnet50_v1, named and laid out as torchvision does."""
  module = models.make_backbone('resnet50_v1', feature='logits', width=0, axis_name=None,
                                platform='cpu')
  flat = traverse_util.flatten_dict(random_weights.variables(module, (1, 32, 32, 3)))
  layout = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}
  tensors = {fitting.torchvision_name(name): array.transpose(layout[array.ndim])
             for name, array in flat.items()}
  files.write(path, files.Weights(tensors, 'resnet50_v1', (0.5,) * 3, (0.2,) * 3, path))


def test_resnet50_runs_through_on_files_of_cifar10(tmp_path, monkeypatch, capsys):
  """launch/cifar_mah2.cfg on a tiny dataset in the official layout, one round."""
  monkeypatch.setattr(cifar10, 'ROWS_PER_FILE', 200)
  monkeypatch.setattr(cifar10_layouts, 'ROWS', 200)
  cifar10_layouts.write('binary files', tmp_path / 'data')
  weights = tmp_path / 'weights.safetensors'
  _write_weights(weights)
  arguments = ['--flagfile=launch/cifar_mah2.cfg', f'--data_dir={tmp_path / "data"}',
               f'--pretrained={weights}', '--num_rounds=1', '--epochs_per_round=1',
               '--num_sampled=64', '--image_size=32', '--num_devices=2',
               f'--workdir={tmp_path / "run"}']
  assert main.main(arguments) == 0
  results = _results(tmp_path / 'run')
  assert results['protocol']['queries'] == 1000 and results['protocol']['database'] == 200
  assert set(results['metrics']) == {'4', '6', '8'}
  assert f'resnet50_v1 starts from {weights}: all of its 265 tensors' in capsys.readouterr().out


def test_help_needs_nothing_else(capsys):
  assert main.main(['--help']) == 0
  assert '--gamma=VALUE' in capsys.readouterr().out


