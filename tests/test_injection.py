"""Kills, full disks and signals at many moments: files stay whole, and the same command goes on.

`benchmarks/interruptions.py` does the same at many more moments, with real kills only.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import changes
import image_files
import pytest

from mah_jax import main
from mah_jax import storage

ROOT = pathlib.Path(__file__).parents[1]
TRAIN = ['--dataset=digits', '--input=features', '--code_lengths=4,8', '--head_weights=1,1',
         '--num_rounds=2', '--epochs_per_round=1', '--batch_size=256', '--num_sampled=600',
         '--num_devices=1']
# Each command with the folder that it changes; RUN is a finished run, PHOTOS are images.
COMMANDS = {
    'train': ([*TRAIN, '--workdir=BASE/run'], 'run'),
    'train without checkpoints': (
        [*TRAIN, '--num_rounds=1', '--checkpoint_every=0', '--workdir=BASE/run'], 'run'),
    'fit': (['--dataset=digits', '--method=lsh', '--code_lengths=4', '--num_devices=1',
             '--workdir=BASE/run'], 'run'),
    'evaluate': (['--mode=evaluate', '--workdir=BASE/run', '--binarize=nearest'], 'run'),
    'encode': (['--mode=encode', '--workdir=RUN', '--images=PHOTOS', '--output=BASE/codes'],
               'codes'),
    'index': (['--mode=index', '--workdir=BASE/run', '--images=PHOTOS'], 'run'),
    'search': (['--mode=search', '--workdir=RUN', '--images=PHOTOS', '--output=BASE/hits/a.csv'],
               'hits'),
    'export': (['--mode=export', '--workdir=RUN', '--format=parquet', '--output=BASE/exported'],
               'exported'),
}
BEGINNING = ('train', 'train without checkpoints', 'fit')  # those that find nothing there


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  """A folder with a finished run, images, and earlier results of most commands."""
  base = tmp_path_factory.mktemp('world')
  image_files.class_tree(base / 'photos', {'bag': 3, 'cup': 2})
  assert main.main([*TRAIN, f'--workdir={base / "run"}']) == 0
  for name in ('encode', 'search'):
    arguments = _arguments(name, base, base)
    assert main.main([*arguments, f'--images={base / "photos" / "bag"}']) == 0
  return base


def _arguments(name, world, base):
  words = {'RUN': world / 'run', 'PHOTOS': world / 'photos', 'BASE': base}
  arguments = COMMANDS[name][0]
  for word, path in words.items():
    arguments = [argument.replace(word, str(path)) for argument in arguments]
  return arguments


def _prepare(name, world, base):
  """Makes the folder of a command what it is before the command; returns it."""
  target = COMMANDS[name][1]
  shutil.rmtree(base, ignore_errors=True)
  base.mkdir()
  if name not in BEGINNING and (world / target).exists():
    shutil.copytree(world / target, base / target)
  return base / target


def _whole(world):
  """What the run that nothing interrupted holds, without what searches have added."""
  return {name: value for name, value in changes.content(world / 'run').items()
          if not name.startswith('index/')}


def _tree(folder):
  """Everything below a folder as it lies on the disk."""
  return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
          for path in sorted(folder.rglob('*'))}


class Photographer:
  """Keeps a copy of a folder before each change, unless it is as it was at the last one.

  moments: the change, and the copy as a folder.
  """

  def __init__(self, folder, copies):
    self._folder, self._copies, self._last = folder, copies, None
    self.moments = []
    self.told = 0

  def __call__(self, what, path):
    self.told += 1
    tree = {}
    with contextlib.suppress(OSError):  # TensorStore's threads go on writing
      tree = _tree(self._folder)
    if tree != self._last:
      self._last, copy = tree, self._copies / str(len(self.moments))
      copy.mkdir(parents=True)
      with contextlib.suppress(shutil.Error):
        shutil.copytree(self._folder, copy / self._folder.name, dirs_exist_ok=True)
      self.moments.append((f'{what} {path.removeprefix(str(self._folder))}', copy))


def _parts(content):
  """What a folder holds, by its parts that change in one step."""
  parts = {}
  for name, value in content.items():
    parts.setdefault(name.split('/')[0], {})[name] = value
  return parts


def _shows_a_mixture(content):
  """Whether results.json is missing or is not of the codes beside it, as its hashes show."""
  if 'results.json' not in content:
    return True
  hashes = content['results.json'][0]['sha256']
  return any(hashlib.sha256(content.get(name, b'')).hexdigest() != value
             for name, value in hashes.items())


def _assert_old_or_new(name, found, before, after):
  """Each part is the old or the new one; no mixture can be taken for a whole."""
  if COMMANDS[name][1] != 'run':
    assert found in (before, after)
    return
  old, new, parts = _parts(before), _parts(after), _parts(found)
  kinds = set()
  for part in (old.keys() | new.keys() | parts.keys()) - {'metrics.jsonl', 'skipped.txt'}:
    assert parts.get(part) in (old.get(part), new.get(part)), part
    if old.get(part) != new.get(part):
      kinds.add(parts.get(part) == new.get(part))
  assert len(kinds - {None}) < 2 or 'index' in parts or _shows_a_mixture(found)


def _telling(name, moments):
  """All moments, or of a command that takes long every eighth before a name changes."""
  inside = [(change, copy) for change, copy in moments if not change.startswith('os.rename')
            and ('/.' in change or 'tmp/' in change)]
  skipped = set(inside) - set(inside[::8]) if name in BEGINNING else set()
  return [moment for moment in moments if moment not in skipped]


# At least so many moments; a command that made fewer changes would not be tested.
LEAST = {'train': 40, 'train without checkpoints': 20, 'fit': 18, 'evaluate': 20, 'encode': 8,
         'index': 2, 'search': 2, 'export': 6}


@pytest.mark.parametrize('name', COMMANDS)
def test_a_kill_before_any_change_leaves_the_old_or_the_new(name, world, tmp_path, capsys):
  if name == 'export':
    pytest.importorskip('pyarrow')
  base, target = tmp_path / 'base', COMMANDS[name][1]
  folder = _prepare(name, world, base)
  before = changes.content(folder)
  arguments = _arguments(name, world, base)
  take = Photographer(base, tmp_path / 'copies')
  with changes.watched(folder, folder.with_name(f'.{target}.'), on_change=take):
    assert main.main(arguments) == 0
  after = changes.content(folder)
  assert len(take.moments) >= LEAST[name] and take.told > len(take.moments)
  for _, copy in take.moments:
    _assert_old_or_new(name, changes.content(copy / 'base' / target), before, after)
  for change, copy in _telling(name, take.moments):
    shutil.rmtree(base)
    shutil.move(copy / 'base', base)
    refused = 'without checkpoints' in name and changes.content(folder) == after
    assert main.main(arguments) == refused, (change, capsys.readouterr().err)
    assert changes.content(folder) == after, change
    assert refused or not changes.left_over(base), change


def test_a_round_that_was_cut_off_in_its_line_comes_again(world, tmp_path):
  run = _prepare('evaluate', world, tmp_path / 'base')
  shutil.rmtree(run / 'index')
  shutil.rmtree(run / 'checkpoints' / '6')  # that of the last round
  lines = (run / 'metrics.jsonl').read_bytes()
  (run / 'metrics.jsonl').write_bytes(lines[:-len(lines) // 4])
  assert main.main([*TRAIN, f'--workdir={run}']) == 0
  assert changes.content(run) == _whole(world)


DIE = '''
import os, pathlib, signal, sys
import changes
from mah_jax import main
last, base, *arguments = sys.argv[1:]
made = []
def die(what, path):
  made.append(path)
  if len(made) == int(last):
    os.kill(os.getpid(), signal.SIGKILL)
with changes.watched(pathlib.Path(base), on_change=die):
  main.main(arguments)
'''


@pytest.mark.parametrize('last', [25, 60])  # in the first checkpoint, and among the results
def test_a_real_kill(last, world, tmp_path):
  run = tmp_path / 'run'
  arguments = [*TRAIN, f'--workdir={run}']
  environment = os.environ | {'PYTHONPATH': f'{ROOT}:{ROOT / "tests"}', 'JAX_PLATFORMS': 'cpu'}
  killed = subprocess.run([sys.executable, '-c', DIE, str(last), str(tmp_path), *arguments],
                          env=environment, capture_output=True, check=False)
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  assert main.main(arguments) == 0
  assert changes.content(run) == _whole(world)


class FullDisk:
  """A disk on which nothing can be written from the n-th write on; names can still change."""

  def __init__(self, last):
    self._last, self.writes = last, 0

  def __call__(self, what, path):
    if what == 'half' or what == 'os.mkdir' and not pathlib.Path(path).is_dir():
      self.writes += 1
      if self.writes >= self._last:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


@pytest.mark.parametrize('name, least', [('evaluate', 10), ('encode', 5), ('search', 1)])
def test_a_disk_that_is_full_at_any_write_changes_nothing(name, least, world, tmp_path, capsys):
  folder = _prepare(name, world, tmp_path / 'base')
  before, arguments = _tree(folder), _arguments(name, world, tmp_path / 'base')
  for last in range(1, 1000):
    disk = FullDisk(last)
    with changes.watched(folder, folder.with_name(f'.{folder.name}.'), on_change=disk):
      code = main.main(arguments)
    error = capsys.readouterr().err
    if code == 0:
      break
    assert code == 1 and 'No space left on device' in error and error.count('\n') == 1, error
    assert _tree(folder) == before and not changes.left_over(tmp_path), last
  assert last > least and _tree(folder) != before


@pytest.fixture
def small_disk(tmp_path):
  """A file system of two megabytes, and a function that gives it another size."""
  disk = tmp_path / 'disk'
  disk.mkdir()

  def mount(*options):
    return subprocess.run(['mount', '-t', 'tmpfs', '-o', ','.join(options), 'tmpfs', str(disk)],
                          capture_output=True, text=True, check=False)

  try:
    made = mount('size=2m')
  except OSError as error:
    pytest.skip(f'no file system can be mounted here: {error}')
  if made.returncode:
    pytest.skip(f'no file system can be mounted here: {made.stderr.strip()}')
  yield disk, lambda size: mount('remount', f'size={size}')
  subprocess.run(['umount', str(disk)], check=True)


def test_a_small_disk(small_disk, world, capsys):
  """Training stops with a sentence and goes on when there is room; results are never half there."""
  disk, resize = small_disk
  arguments = [*TRAIN, f'--workdir={disk / "run"}']
  (disk / 'other').write_bytes(bytes(800_000))  # room for one checkpoint, but not for two
  assert main.main(arguments) == 1
  error = capsys.readouterr().err
  assert 'No space left on device' in error and error.count('\n') == 1, error
  steps = sorted(path.name for path in (disk / 'run' / 'checkpoints').iterdir())
  assert steps == ['3'] and (disk / 'run' / 'checkpoints' / '3' / 'sha256.json').exists()
  resize('8m')
  assert main.main(arguments) == 0
  before = changes.content(disk / 'run')
  assert before == _whole(world)
  assert 'Restored' in capsys.readouterr().out
  for room in (0, 4096, 20_000, 40_000):  # results and codes take some 60 kB
    free = shutil.disk_usage(disk).free
    (disk / 'more').write_bytes(bytes(max(0, free - room)))
    evaluate = ['--mode=evaluate', f'--workdir={disk / "run"}', '--binarize=nearest']
    assert main.main(evaluate) == 1, room
    error = capsys.readouterr().err
    assert 'No space left on device' in error and error.count('\n') == 1, error
    assert changes.content(disk / 'run') == before and not changes.left_over(disk)
    (disk / 'more').unlink()
  assert main.main(evaluate) == 0
  assert changes.content(disk / 'run') != before


def test_folders_change_names_where_the_system_cannot_exchange_them(tmp_path, monkeypatch):
  """Between two of the three steps that it takes, a kill leaves nothing under the name."""
  monkeypatch.setattr(ctypes, 'CDLL', lambda *args, **kwargs: object())
  folder = tmp_path / 'base' / 'codes'
  storage.replace_folder(folder, {'a': b'old', 'b': b'old'}, 'letters')
  before = changes.content(folder)
  take = Photographer(tmp_path / 'base', tmp_path / 'copies')
  with changes.watched(tmp_path / 'base', on_change=take):
    storage.replace_folder(folder, {'a': b'new'}, 'letters')
  after = changes.content(folder)
  missing = 0
  for _, copy in take.moments:
    found = copy / 'base' / 'codes'
    missing += not found.exists()
    storage.check_replaceable(found, 'letters')  # as every command does before its work
    assert changes.content(found) in (before, after)
    storage.replace_folder(found, {'a': b'new'}, 'letters')
    assert changes.content(found) == after and not changes.left_over(copy)
  assert missing == 1 and len(take.moments) >= 8


def test_what_somebody_put_beside_the_codes_of_a_run_stays(world, tmp_path, capsys):
  run = _prepare('evaluate', world, tmp_path / 'base')
  (run / 'codes' / 'notes.txt').write_text('mine')
  before = _tree(run)
  for arguments in (_arguments('evaluate', world, tmp_path / 'base'), [*TRAIN, f'--workdir={run}']):
    assert main.main(arguments) == 1
    assert 'holds notes.txt' in capsys.readouterr().err
    assert _tree(run) == before
  (run / 'codes' / 'notes.txt').unlink()
  (run / 'codes' / storage.MANIFEST).unlink()  # as an earlier version wrote it
  shutil.rmtree(run / 'index')
  assert main.main([*TRAIN, f'--workdir={run}']) == 0
  assert changes.content(run) == _whole(world)


def test_codes_of_another_evaluation_are_refused(world, tmp_path, capsys):
  run = _prepare('evaluate', world, tmp_path / 'base')
  old = json.loads((run / 'results.json').read_text())
  assert main.main(_arguments('evaluate', world, tmp_path / 'base')) == 0
  new = json.loads((run / 'results.json').read_text())
  assert old['sha256'] != new['sha256'] and set(new['sha256']) == {
      'codes.npz', f'codes/{storage.MANIFEST}'}
  shutil.rmtree(run / 'checkpoints')  # so that the codes that are there are scored
  assert main.main(['--mode=evaluate', f'--workdir={run}']) == 0
  for name in old['sha256']:
    hashes = new['sha256'] | {name: old['sha256'][name]}
    storage.write_json(run / 'results.json', new | {'sha256': hashes})
    assert main.main(['--mode=evaluate', f'--workdir={run}']) == 1
    assert 'not of the same evaluation' in capsys.readouterr().err


def _listens(process):
  """Whether a process has a handler of SIGTERM, which Python gives it not by itself."""
  for line in pathlib.Path(f'/proc/{process.pid}/status').read_text().splitlines():
    if line.startswith('SigCgt:'):
      return bool(int(line.split()[1], 16) & 1 << signal.SIGTERM - 1)
  return False


@pytest.mark.skipif(not pathlib.Path('/proc/self/status').exists(), reason='/proc is not here')
@pytest.mark.parametrize('name, number, seconds', [
    ('train', signal.SIGTERM, 0.0), ('train', signal.SIGINT, 1.5),
    ('evaluate', signal.SIGINT, 0.0), ('evaluate', signal.SIGTERM, 1.0),
    ('encode', signal.SIGTERM, 0.3), ('encode', signal.SIGINT, 1.2)])
def test_a_signal_at_any_moment(name, number, seconds, world, tmp_path):
  """From its first line on: at 0 seconds the program still imports JAX."""
  folder = _prepare(name, world, tmp_path / 'base')
  before, arguments = changes.content(folder), _arguments(name, world, tmp_path / 'base')
  if name == 'train':
    arguments += ['--num_rounds=60']
  environment = os.environ | {'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu'}
  with subprocess.Popen([sys.executable, '-m', 'mah_jax.main', *arguments], env=environment,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
    while not _listens(process):
      assert process.poll() is None
      time.sleep(0.01)
    time.sleep(seconds)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
  if 'Written to' in out:  # a machine that was quick
    assert process.returncode == 0 and seconds
    return
  assert process.returncode == {signal.SIGTERM: 0, signal.SIGINT: 130}[number], err
  assert 'Stopping as soon as' in err and 'Stopped' in out and 'Traceback' not in err
  assert seconds or 'nothing was begun' in out
  if name != 'train':
    assert changes.content(folder) == before and not changes.left_over(folder.parent)
