"""--mode=check: what it finds, what it advises, its exit code, and that it changes nothing."""

import importlib.util

import image_files
import jax
import pytest
import random_weights
from flax import traverse_util

from mah_jax import main
from mah_jax import models
from mah_jax import storage
from mah_jax.modes import check
from mah_jax.weights import files
from mah_jax.weights import fitting


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
  """Runs, data and caches are looked for below a folder of the test."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


def _check(capsys, *arguments):
  """The exit code, the sentence on stderr, and mark and text of each part by its name."""
  capsys.readouterr()
  code = main.main(['--mode=check', *arguments])
  out, error = capsys.readouterr()
  parts, name = {}, ''
  for line in out.splitlines()[1:]:
    if line[:2] in (check.FINE, check.WRONG, check.ABSENT):
      name = line[4:check.MARGIN].strip()
      parts[name] = [line[:2], line[check.MARGIN:]]
    elif line.startswith(' ' * check.MARGIN):
      parts[name][1] += ' ' + line.strip()
  return code, error, parts


def _state(folder):
  return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
          for path in [folder, *folder.rglob('*')]}


def test_without_flags_the_quickstart_is_checked_and_nothing_is_changed(tmp_path, capsys):
  before = _state(tmp_path)
  code, error, parts = _check(capsys)
  assert (code, error) == (0, '')
  assert list(parts) == [*check.LOOKS, *check.EXTRAS]
  assert all(parts[name][0] == 'ok' for name in check.LOOKS)
  assert 'mah_jax 0.' in parts['versions'][1] and 'jax 0.' in parts['versions'][1]
  assert '8 x cpu' in parts['devices'][1] and 'GB of memory' in parts['devices'][1]
  assert parts['run folder'][1].startswith('runs/quickstart would be made; ')
  assert str(tmp_path / 'cache') in parts['caches'][1]
  assert _state(tmp_path) == before


def test_missing_data_and_weights_have_their_commands(tmp_path, capsys):
  before = _state(tmp_path)
  code, error, parts = _check(capsys, '--flagfile=launch/cifar_mah2.cfg')
  assert code == 1 and error.count('\n') == 1 and 'cannot start yet' in error
  assert [name for name in check.LOOKS if parts[name][0] == 'no'] == ['data', 'weights']
  assert 'run python -m mah_jax.data.fetch cifar10 --data_dir=data' in parts['data'][1]
  assert 'python -m mah_jax.data.fetch resnet50 gets some' in parts['weights'][1]
  assert _state(tmp_path) == before


@pytest.fixture
def photographs(tmp_path):
  """Twelve images in two classes."""
  folder = tmp_path / 'photographs'
  for k in range(12):
    path = folder / 'ab'[k % 2] / f'{k}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image_files.encode(image_files.picture(20, 30, seed=k)))
  return folder


def test_images_and_weights_that_are_there_are_named(tmp_path, capsys, photographs):
  module = models.make_backbone('resnet18', feature='pooled', width=64, axis_name=None,
                                platform='cpu')
  tensors = {
      fitting.torchvision_name(path): array.transpose(3, 2, 0, 1) if array.ndim == 4 else array
      for path, array in traverse_util.flatten_dict(
          random_weights.variables(module, (1, 32, 32, 3))).items()}
  files.write('w.safetensors', files.Weights(tensors, 'resnet18', (0.5,) * 3, (0.5,) * 3, tmp_path))
  before = _state(tmp_path)
  flags = ['--flagfile=launch/folder.cfg', f'--data_dir={photographs}']
  code, error, parts = _check(capsys, *flags, '--pretrained=w.safetensors')
  assert (code, error) == (0, '')
  assert parts['data'] == ['ok', f'12 images in 2 classes are in {photographs}.']
  assert parts['weights'][1].startswith('resnet18 starts from w.safetensors')
  assert _state(tmp_path) == before
  code, _, parts = _check(capsys, *flags, '--pretrained=w.safetensors', '--backbone=resnet34')
  assert code == 1 and parts['weights'][0] == 'no' and 'resnet18' in parts['weights'][1]


def test_photographs_without_labels_or_weights_are_refused_where_they_are_needed(
    capsys, photographs):
  unlabelled = ['--dataset=folder', f'--data_dir={photographs / "a"}']
  code, _, parts = _check(capsys, *unlabelled, '--backbone=resnet18')
  assert code == 1 and parts['data'][0] == 'no' and 'learns from labels' in parts['data'][1]
  code, _, parts = _check(capsys, *unlabelled, '--method=itq')
  assert parts['data'] == ['ok', f'6 images without labels are in {photographs / "a"}.']
  assert code == 1 and parts['weights'][0] == 'no'
  assert 'Features of photographs need --pretrained' in parts['weights'][1]


@pytest.fixture
def finished(tmp_path, capsys):
  """The folder of a run that fits pixels."""
  workdir = tmp_path / 'run'
  assert main.main(['--method=itq', '--dataset=digits', '--image_size=0', '--code_lengths=4',
                    f'--workdir={workdir}']) == 0
  return workdir


def test_a_run_folder_brings_its_flags_and_refuses_others(tmp_path, capsys, finished):
  before = _state(tmp_path)
  code, _, parts = _check(capsys, f'--workdir={finished}')
  assert code == 0 and parts['weights'] == ['ok', '--pretrained is empty: the features are the '
                                            'pixels.']
  assert parts['run folder'][1].startswith(f'{finished} holds a run that is finished')
  code, _, parts = _check(capsys, '--flagfile=launch/quickstart.cfg', f'--workdir={finished}')
  assert code == 1 and parts['run folder'][0] == 'no'
  assert '--method=mah (was itq)' in parts['run folder'][1]
  assert _state(tmp_path) == before


def test_a_line_of_a_round_that_a_kill_cut_off_keeps_no_run_from_going_on(capsys, finished):
  (finished / 'metrics.jsonl').write_text('{"rou')
  assert _check(capsys, f'--workdir={finished}')[0] == 0


def test_no_folder_is_made_for_programs(tmp_path, capsys, monkeypatch):
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
  before = jax.config.jax_compilation_cache_dir
  try:
    assert _check(capsys)[0] == 0
  finally:
    jax.config.update('jax_compilation_cache_dir', before)
  assert not (tmp_path / 'cache').exists()


def test_a_run_folder_inside_the_data_is_refused(capsys, photographs):
  code, _, parts = _check(capsys, '--flagfile=launch/folder_unlabelled.cfg',
                          f'--data_dir={photographs}', f'--workdir={photographs}/run')
  assert code == 1 and 'would become part of the dataset' in parts['run folder'][1]


def test_a_folder_at_which_a_run_is_at_work_is_refused(capsys, finished):
  with storage.lock(finished, on_busy=lambda: None):
    code, _, parts = _check(capsys, f'--workdir={finished}')
  assert code == 1 and 'Another run is at work' in parts['run folder'][1]


@pytest.mark.parametrize('arguments, part, words', [
    (['--workdir=file/run'], 'run folder', '--workdir=file/run cannot be written to'),
    (['--workdir=other'], 'run folder', 'something that is not of a run'),
    (['--num_devices=99'], 'devices', '--num_devices=99, but this machine has 8'),
    (['--batch_size=63'], 'devices', 'a multiple of 8'),
    (['--pretrained=file'], 'weights', 'file is not'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_what_keeps_a_run_from_starting_is_said(tmp_path, capsys, arguments, part, words):
  (tmp_path / 'file').write_text('no folder')
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other' / 'letter.txt').write_text('not of a run')
  code, _, parts = _check(capsys, '--flagfile=launch/quickstart.cfg', *arguments)
  assert code == 1
  assert [name for name in check.LOOKS if parts[name][0] == 'no'] == [part]
  assert words in parts[part][1]


def test_missing_extras_keep_no_run_from_starting(capsys, monkeypatch):
  find = importlib.util.find_spec
  absent = {'starlette', 'uvicorn', 'faiss'}
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name, package=None: (
      None if name in absent else find(name, package)))
  code, _, parts = _check(capsys)
  assert code == 0
  assert parts['serve'] == ['--', 'Not installed, for --mode=serve: pip install starlette uvicorn']
  assert parts['export'][0] == '--' and 'pip install faiss-cpu' in parts['export'][1]


def test_a_wrong_flag_is_a_wrong_command(capsys):
  assert main.main(['--mode=check', '--gama=3']) == 2
  assert 'Did you mean: gamma' in capsys.readouterr().err
