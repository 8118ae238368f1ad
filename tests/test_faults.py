"""Bad input of every kind: one sentence, its exit code, and nothing that was there is changed."""

import errno
import hashlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import zipfile

import image_files
import numpy as np
import pytest

import mah_jax
from mah_jax import codebook
from mah_jax import compiling
from mah_jax import config
from mah_jax import console
from mah_jax import discrete
from mah_jax import main
from mah_jax import report
from mah_jax import similarity
from mah_jax import storage
from mah_jax.data import fetch
from mah_jax.evaluation import metrics
from mah_jax.modes import serve
from mah_jax.paper import __main__ as paper
from mah_jax.runs import folder as folder_lib
from mah_jax.search import index as index_lib
from mah_jax.train import checkpoint
from mah_jax.train import dataset

# Flags of a run that would train at once if nothing were wrong.
RUN = ['--dataset=digits', '--backbone=compact', '--width=4', '--image_size=8', '--crop=1.0',
       '--normalize=dataset', '--num_rounds=1', '--num_sampled=64', '--num_devices=1']


def _snapshot(folder):
  """The content and kind of everything below a folder."""
  return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
          if path.is_file() else 'no file' for path in sorted(folder.rglob('*'))}


def _assert_refused(arguments, code, words, folder, capsys, program=main.main, may_make=False):
  """Runs a command that ends in one sentence; what was there stays, and only `may_make` adds."""
  before = _snapshot(folder)
  capsys.readouterr()
  assert program(arguments) == code
  captured = capsys.readouterr()
  assert words in captured.err, captured.err
  assert captured.err.startswith('mah_jax: ') and captured.err.count('\n') == 1, captured.err
  assert captured.err.rstrip().endswith(('.', '?', ')'))
  assert 'Traceback' not in captured.err + captured.out
  after = _snapshot(folder)
  assert before.items() <= after.items()
  assert may_make or after == before


@pytest.mark.parametrize('flag, words', [
    ('--learning_rate=-1', '--learning_rate=-1.0 must be above 0'),
    ('--learning_rate=fast', '--learning_rate=fast must be a number'),
    ('--batch_size=2.5', '--batch_size=2.5 must be an integer'),
    ('--batch_size=', '--batch_size= must be an integer'),
    ('--batch_size=1000000000', 'must be at most 1048576'),
    ('--image_size=100000', 'must be at most 8192'),
    ('--width=1000000', 'must be at most 4096'),
    ('--code_lengths=4,6,100000', 'must be at most 4096'),
    ('--code_lengths=4,six', 'numbers separated by commas'),
    ('--shuffle=maybe', 'must be true or false'),
    ('--dataset=cifar', 'must be one of digits, cifar10'),
    ('--gama=1', 'Did you mean: gamma'),
    ('--num_rounds=0', 'must be at least 1'),
    ('--momentum=nan', '--momentum=nan must be finite'),
    ('--data_dir=~no_such_user/x', 'a user that this machine does not have'),
    ('--workdir=~no_such_user/x', 'a user that this machine does not have'),
    ('--flagfile=launch', 'is a folder: name a file in it'),
    ('--flagfile=launch/quikstart.cfg', 'did you mean quickstart.cfg'),
    ('--flagfile=', '--flagfile needs a file'),
    ('quickstart', 'write --name=value'),
])
def test_a_wrong_flag(flag, words, tmp_path, capsys):
  _assert_refused([*RUN, f'--workdir={tmp_path / "run"}', flag], 2, words, tmp_path, capsys)


@pytest.mark.parametrize('content, words', [
    (b'--gamma=3 # three\n', 'Line 1 of FILE: a comment needs a line of its own'),
    (b'\n# a comment\n--batch_size=many\n', 'Line 3 of FILE: --batch_size=many must be an integer'),
    (b'--heads=tree\n', 'Line 1 of FILE: --heads=tree must be one of flat, cascaded'),
    (b'gamma=3\n', 'Line 1 of FILE: "gamma=3" is not a flag'),
    (b'--gama=3\n', 'Line 1 of FILE: Unknown command line flag'),
    (b'--flagfile=missing.cfg\n', 'Line 1 of FILE: flagfile "missing.cfg" does not exist'),
    (b'\xff\xfe-\x00-\x00', 'FILE is a text in UTF-16'),
    (b'\x80\x81\x82', 'FILE is no text in UTF-8'),
    (b'--gamma=\x003\n', 'FILE is no text in UTF-8'),
])
def test_a_flagfile_is_blamed_with_its_line(content, words, tmp_path, capsys):
  file = tmp_path / 'a.cfg'
  file.write_bytes(content)
  _assert_refused([*RUN, f'--workdir={tmp_path / "run"}', f'--flagfile={file}'], 2,
                  words.replace('FILE', str(file)), tmp_path, capsys)


CODES = np.ones((6, 4), np.int8)
LABELS = np.eye(3, dtype=np.uint8)[np.arange(6) % 3]
UPDATE = {'codes': CODES, 'embeddings': np.zeros((2, 4), np.float32), 'labels': LABELS,
          'sampled': np.array([0, 3]), 'gamma': 1.0}


@pytest.mark.parametrize('change, words', [
    ({'codes': CODES[0]}, r'shape \(4,\)'),
    ({'codes': CODES[:, :3]}, 'same number of bits'),
    ({'codes': CODES > 0}, 'other than -1 and'),
    ({'codes': CODES * 2}, 'other than -1 and'),
    ({'embeddings': np.full((2, 4), np.nan)}, 'NaN'),
    ({'labels': LABELS[:5]}, 'do not fit 6 codes'),
    ({'labels': LABELS * 0.5}, 'of 0 and 1'),
    ({'sampled': np.array([0, 0])}, 'twice'),
    ({'sampled': np.array([0, 6])}, 'names row 6'),
    ({'sampled': np.array([-1, 2])}, 'names row -1'),
    ({'sampled': np.array([0.0, 1.0])}, 'float64'),
    ({'sampled': np.array([1])}, r'shape \(1,\)'),
    ({'gamma': float('nan')}, 'gamma=nan'),
    ({'gamma': -1.0}, 'gamma=-1.0'),
    ({'similarity': 'balancd'}, "similarity='balancd' is not one of balanced, signed"),
    ({'sweeps': 2.5}, 'sweeps=2.5'),
    ({'sweeps': 0}, 'sweeps=0'),
])
def test_an_update_of_codes_checks_its_arguments(change, words):
  with pytest.raises(ValueError, match=words):
    discrete.dcc(**UPDATE | change)


def test_weights_of_pairs_have_names():
  with pytest.raises(ValueError, match='equal, balanced'):
    similarity.pair_weights(LABELS, 'evn')


@pytest.mark.parametrize('method', [['--method=mah'], ['--method=itq']])
@pytest.mark.parametrize('name', ['results.json', 'metrics.jsonl', 'config.json', 'notes.txt',
                                  'codes/database_4.npy'])
@pytest.mark.parametrize('content', [b'{"mine": 1}', b'{', b'\x80'])
def test_a_folder_of_something_else_is_left_alone(method, name, content, tmp_path, capsys):
  run = ['--dataset=digits', f'--workdir={tmp_path}', '--num_devices=1', *method]
  (tmp_path / name).parent.mkdir(exist_ok=True)
  (tmp_path / name).write_bytes(content)
  _assert_refused(run, 1, 'not of a run', tmp_path, capsys)


def _photos(folder):
  """Two classes of four images each."""
  image_files.class_tree(folder, {'bag': 4, 'cup': 4})
  return folder


FOLDER = ['--dataset=folder', '--backbone=compact', '--width=4', '--image_size=16',
          '--num_rounds=1', '--batch_size=4', '--num_devices=1', '--query_fraction=0.25']


@pytest.mark.parametrize('make', [os.mkfifo, lambda path: path.symlink_to('/dev/zero'),
                                  lambda path: path.mkdir()], ids=['fifo', 'device', 'folder'])
def test_only_regular_files_are_read_as_images(make, tmp_path, capsys, monkeypatch):
  """A pipe would be waited for, a device read without end."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  photos = _photos(tmp_path / 'photos')
  for i in (8, 9):
    make(photos / 'bag' / f'{i}.jpg')
  (photos / 'labels.csv').write_text(''.join(
      f'{name}/{i}.jpg,{name}\n' for name, i in itertools.product(('bag', 'cup'), range(4)))
      + 'bag/8.jpg,bag\nbag/9.jpg,bag\n')
  run = [*FOLDER, f'--data_dir={photos}', f'--workdir={tmp_path / "run"}']
  assert main.main(run) == 1  # two of ten are too many to be skipped
  error = capsys.readouterr().err
  assert 'bag/8.jpg' in error and 'bag/9.jpg' in error


@pytest.mark.parametrize('line, words', [
    ('bag/../bag/0.jpg,bag', "repeats 'bag/0.jpg' of line 1"),
    ('./bag//0.jpg,bag', "repeats 'bag/0.jpg' of line 1"),
    ('../elsewhere.jpg,bag', 'outside of the folder'),
    ('/etc/hostname.jpg,bag', 'outside of the folder'),
])
def test_a_file_is_listed_once_and_lies_below_its_folder(line, words, tmp_path, capsys):
  photos = _photos(tmp_path / 'photos')
  (photos / 'labels.csv').write_text(f'bag/0.jpg,bag\ncup/0.jpg,cup\n{line}\n')
  _assert_refused([*FOLDER, f'--data_dir={photos}', f'--workdir={tmp_path / "run"}'], 1, words,
                  photos, capsys)


def test_a_list_of_labels_that_is_no_file(tmp_path, capsys):
  photos = _photos(tmp_path / 'photos')
  (photos / 'list.csv').symlink_to('/dev/zero')
  assert main.main([*FOLDER, f'--data_dir={photos / "list.csv"}',
                    f'--workdir={tmp_path / "run"}']) == 1
  assert capsys.readouterr().err.count('\n') == 1


# A damaged run.


@pytest.fixture(scope='module')
def kept(tmp_path_factory):
  """A folder with photographs and the run of a network on them, searched once; never changed."""
  folder = tmp_path_factory.mktemp('kept')
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(folder / 'cache'))
    photos = _photos(folder / 'photos')
    assert main.main([*FOLDER, '--code_lengths=4,6', '--head_weights=1,1', '--num_rounds=2',
                      f'--data_dir={photos}', f'--workdir={folder / "run"}']) == 0
    assert main.main(['--mode=search', f'--workdir={folder / "run"}', '--num_devices=1',
                      f'--images={photos / "bag"}']) == 0
    yield folder


@pytest.fixture
def box(kept, tmp_path):
  """A copy of the run in a folder of its own."""
  shutil.copytree(kept / 'run', tmp_path / 'run')
  return tmp_path


def _write(name, content):
  """Damage: a file has another content."""

  def damage(box):
    (box / name).parent.mkdir(parents=True, exist_ok=True)
    (box / name).write_bytes(content if isinstance(content, bytes) else content.encode())

  return damage


def _change(name, **values):
  """Damage: a JSON file has other values; `a.b` is b inside of a."""

  def damage(box):
    content = json.loads((box / name).read_text())
    for place, value in values.items():
      inside = content
      *outer, last = place.split('__')
      for part in outer:
        inside = inside[part]
      inside[last] = value
    (box / name).write_text(json.dumps(content))

  return damage


def _remove(*names):
  """Damage: files or folders are gone."""

  def damage(box):
    for name in names:
      shutil.rmtree(box / name) if (box / name).is_dir() else (box / name).unlink()

  return damage


def _replace(name, make):
  """Damage: something else stands in the place of a file."""

  def damage(box):
    (box / name).unlink(missing_ok=True)
    make(box / name)

  return damage


def _both(*damages):
  def damage(box):
    for one in damages:
      one(box)

  return damage


def _claim_rows(name, array):
  """Damage: an array of an archive claims to have 10^13 rows."""

  def damage(box):
    with zipfile.ZipFile(box / name) as archive:
      parts = {part: archive.read(part) for part in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {'descr': '|u1', 'fortran_order': False, 'shape': (10**13, 1)})
    parts[f'{array}.npy'] = header.getvalue() + b'few'
    with zipfile.ZipFile(box / name, 'w') as archive:
      for part, content in parts.items():
        archive.writestr(part, content)

  return damage


def _unseal(name, **arrays):
  """Damage: an archive with other arrays and without its seal."""

  def damage(box):
    content = storage.read_npz(box / name) | arrays
    with open(box / name, 'wb') as file:
      np.savez(file, **content)

  return damage


BRACKETS = '[' * 100_000
EVALUATE = ['--mode=evaluate', '--workdir=BOX/run', '--num_devices=1']
TRAIN = [*FOLDER, '--code_lengths=4,6', '--head_weights=1,1', '--num_rounds=2',
         '--data_dir=KEPT/photos', '--workdir=BOX/run']
IMAGES = '--images=KEPT/photos/bag'
SEARCH = ['--mode=search', '--workdir=BOX/run', '--num_devices=1', IMAGES]
INDEX = ['--mode=index', '--workdir=BOX/run', '--num_devices=1']
ENCODE = ['--mode=encode', '--workdir=BOX/run', '--num_devices=1', IMAGES]
EXPORT = ['--mode=export', '--workdir=BOX/run', '--num_devices=1', '--format=pgvector']
# Extra packages, without which a command says so and nothing else.
NEEDS = {'--mode=serve': 'starlette', '--format=stablehlo': 'flatbuffers'}
SERVE = ['--mode=serve', '--workdir=BOX/run', '--num_devices=1', '--port=0']
SEAL = 'run/checkpoints/12/sha256.json'
NEWEST = 'run/checkpoints/12/meta/metadata'
OTHER_STEP = 'is of step 12, but the newest checkpoint that can be used is of step 6'
CODES_ONLY = _remove('run/checkpoints')


def _nothing(box):
  pass


# Each row names the damage, the command, the exit code and a piece of the sentence.
DAMAGED_RUNS = [
    *[(_write('run/config.json', content), command, 1, 'config.json is damaged')
      for content in (BRACKETS, 'null', '{"flags": 3}') for command in (EVALUATE, SEARCH)],
    (_write('run/config.json', BRACKETS), TRAIN, 1, 'config.json is damaged'),
    *[(_write('run/results.json', content), EVALUATE, 1, 'results.json is missing or damaged')
      for content in (BRACKETS, '[]', '3', b'\xff\xfe', '')],
    (_change('run/config.json', flags__method=[1]), EVALUATE, 1, 'damaged (its method)'),
    (_change('run/config.json', flags__batch_size='many'), TRAIN, 1, 'damaged (its batch_size)'),
    (_change('run/config.json', flags__code_lengths='4,6'), ENCODE, 1, 'damaged (its code_lengths'),
    (_change('run/config.json', flags__mirror='maybe'), EXPORT, 1, 'damaged (its mirror)'),
    (_change('run/config.json', flags__width=10**9), EVALUATE, 1, 'or results.json of the'),
    (_change('run/config.json', flags__method='magic'), SEARCH, 1, 'The config.json or results.js'),
    (_change('run/config.json', flags__new_flag=1), EVALUATE, 1, 'that this version does not'),
    (_change('run/results.json', seeds='ab'), EVALUATE, 1, 'results.json is missing or damaged'),
    (_change('run/results.json', step='x'), SERVE, 1, 'results.json is missing or damaged'),
    (_both(CODES_ONLY, _change('run/results.json', timing=[])), EVALUATE, 1, 'missing or damaged'),
    (_both(CODES_ONLY, _change('run/results.json', code_lengths=[4])), EVALUATE, 1,
     'The config.json or results.json'),
    (_both(CODES_ONLY, _claim_rows('run/codes.npz', 'learned_4')), EVALUATE, 1, 'is missing'),
    (_both(CODES_ONLY, _write('run/codes.npz', np.zeros(1, object).dumps())), EVALUATE, 1,
     'it is no archive of arrays, or was cut off'),
    *[(_write('run/metrics.jsonl', content), TRAIN, 1, 'metrics.jsonl is damaged: remove it')
      for content in (b'\xff\n', '[]\n', f'{BRACKETS}\n', '{"round": "x"}\n')],
    (_replace('run/metrics.jsonl', os.mkfifo), TRAIN, 1, 'it is no regular file'),
    (_replace('run/config.json', os.mkfifo), EVALUATE, 1, 'it is no regular file'),
    (_replace('run/results.json', os.mkfifo), EVALUATE, 1, 'results.json is missing or damaged'),
    *[(_write(SEAL, content), EVALUATE, 1, OTHER_STEP)
      for content in ('[]', 'null', '"x"', BRACKETS)],
    (_replace(SEAL, os.mkfifo), EVALUATE, 1, OTHER_STEP),
    # An earlier network than that of the codes must not be asked for them.
    *[(_write(NEWEST, '{}'), command, 1, OTHER_STEP)
      for command in (ENCODE, SEARCH, [*INDEX, '--images=BOX/new'], SERVE,
                      [*EXPORT[:-1], '--format=stablehlo'])],
    (_write('run/checkpoints/7/mine.txt', 'x'), TRAIN, 1, 'mine.txt is not of a checkpoint'),
    (_write('run/index/index.npz', b'PK'), SEARCH, 1, 'index.npz is damaged'),
    (_replace('run/index/index.npz', os.mkfifo), SEARCH, 1, 'it is no regular file'),
    (_claim_rows('run/index/index.npz', 'codes/learned_4'), SEARCH, 1, 'index.npz is damaged'),
    (_unseal('run/index/index.npz', folder_of=np.zeros(3)), SEARCH, 1, 'not those that were writ'),
    (_remove('run/codes.npz'), SEARCH, 1, 'has no codes to search yet'),
    (_both(_remove('run/index'), _replace('run/codes.npz', os.mkfifo)), SEARCH, 1, 'no regular fi'),
    # An index of codes that were made by other settings.
    (_remove('run/index'), [*SEARCH, '--mirror'], 2, '--mirror=True (was False)'),
    (_both(_remove('run/index'), _change('run/results.json', mirror=True)), [*SERVE, '--nomirror'],
     2, '--mirror=False (was True)'),
    # Outputs that would replace what is not theirs.
    (_write('mine.csv', 'name,price'), [*SEARCH, '--output=BOX/mine.csv'], 1, 'not of an earlier'),
    (_write('mine.png', 'PNG'), [*SEARCH, '--sheet=BOX/mine.png'], 1, 'not of an earlier result'),
    (_write('x', ''), [*SEARCH, '--output=BOX/x/y.csv'], 1, 'x is no folder): choose another name'),
    (_nothing, [*SEARCH, '--output=BOX/run/metrics.jsonl'], 2, 'keeps its own files'),
    (_nothing, [*SEARCH, '--sheet=BOX/run/config.json'], 2, 'must end in .png'),
    (_nothing, [*SEARCH, '--output=KEPT/photos/labels.csv'], 2, 'part of the dataset'),
    (_nothing, [*ENCODE, '--output=KEPT/photos/codes'], 2, 'part of the dataset'),
    (_nothing, [*EXPORT, '--output=KEPT/photos/codes'], 2, 'part of the dataset'),
    (_both(_remove('run/checkpoints'), lambda box: (box / 'run/checkpoints').mkdir()),
     [*ENCODE, '--output=BOX/run/checkpoints'], 2, 'keeps its own files'),
    (_write('o/__pycache__/mine.txt', 'x'), [*EXPORT, '--output=BOX/o'], 1, 'holds __pycache__'),
    (_write('o/written.json', BRACKETS), [*EXPORT, '--output=BOX/o'], 1, 'written.json is damaged'),
    (_write('o/mine.txt', 'x'), [*EXPORT, '--output=BOX/o'], 1, 'holds mine.txt'),
    # Images and labels.
    (_nothing, [*SEARCH[:-1], '--images=BOX/nope'], 1, 'cannot be listed'),
    (_write('x.jpg', 'junk'), [*SEARCH[:-1], '--images=BOX/x.jpg'], 1, 'None of the images'),
    (_write('new/labels.csv', '0.jpg,bag'), [*INDEX, '--images=BOX/new'], 1, 'names 0.jpg, which'),
    (_replace('new/labels.csv', os.mkfifo), [*INDEX, '--images=BOX/new'], 1, 'no regular file'),
    (_nothing, [*SEARCH, '--code_length=5'], 2, 'has no codes of 5 bits'),
    (_nothing, [*SERVE, '--host=0.0.0.0'], 2, 'no host that a browser can ask for'),
    (_nothing, [*SERVE, '--k=5000'], 2, 'give at most 1000'),
]


@pytest.mark.parametrize('damage, command, code, words', DAMAGED_RUNS)
def test_a_damaged_run(damage, command, code, words, box, kept, capsys, monkeypatch):
  warm_up = serve._warm_up
  monkeypatch.setattr(serve, '_warm_up', lambda searcher: (warm_up(searcher), pytest.fail('Open.')))
  (box / 'new').mkdir()
  image_files.class_tree(box / 'other', {'a': 1})
  shutil.copy(box / 'other/a/0.jpg', box / 'new/1.jpg')
  damage(box)
  photos = _snapshot(kept / 'photos')
  arguments = [text.replace('BOX', str(box)).replace('KEPT', str(kept)) for text in command]
  for flag, package in NEEDS.items():
    if flag in arguments:
      pytest.importorskip(package, reason=f'{package} is not installed')
  _assert_refused(arguments, code, words, box, capsys)
  assert _snapshot(kept / 'photos') == photos


@pytest.mark.parametrize('damage, arguments, code, words', [
    (_write('run/config.json', BRACKETS), [], 1, 'config.json is damaged'),
    (_write('run/results.json', BRACKETS), [], 1, 'results.json is missing or damaged'),
    (_write('run/metrics.jsonl', BRACKETS + '\n'), [], 1, 'metrics.jsonl is damaged'),
    (_write('run/metrics.jsonl', b'\x80\n'), [], 1, 'metrics.jsonl is damaged'),
    (_write('run/metrics.jsonl', '{"round": 1, "metrics": {"4": {}}}\n'), [], 1, 'is damaged'),
    (_change('run/results.json', metrics__4=3), [], 1, 'results.json is damaged'),
    (_change('run/results.json', metrics__x={}), [], 1, 'results.json is damaged'),
    (_change('run/results.json', metrics__4__learned__map='x'), [], 1, 'results.json is damaged'),
    (_change('run/results.json', protocol__chance='x'), [], 1, 'results.json is damaged'),
    (_change('run/results.json', protocol__id=[3]), [], 1, 'results.json is missing or damaged'),
    (_change('run/results.json', timing__fit_seconds='x'), [], 1, 'missing or damaged'),
    (_change('run/config.json', flags__method='magic'), [], 1, '--method=magic, which this'),
    (_write('mine.html', 'mine'), ['--html=BOX/mine.html'], 1, 'not of an earlier result'),
    (_nothing, ['--html=BOX/run'], 1, 'choose another name'),
    (_nothing, ['BOX/a\0b'], 2, 'holds a zero byte'),
    (_nothing, ['BOX/nope'], 1, 'not the folder of a finished run'),
    (_nothing, ['BOX/run'], 2, 'the same seeds'),
])
def test_a_report_on_a_damaged_run(damage, arguments, code, words, box, capsys):
  damage(box)
  _assert_refused([text.replace('BOX', str(box)) for text in ['BOX/run', *arguments]], code, words,
                  box, capsys, report.main)


@pytest.mark.parametrize('program, arguments, code, words', [
    (fetch.main, ['cifar10', '--data_dir=a\0b'], 2, 'holds a zero byte'),
    (fetch.main, ['cifar10', '--data_dir=BOX/photos/bag/0.jpg'], 1, 'cannot be read or written'),
    (fetch.main, ['nuswide', '--data_dir=BOX/photos'], 1, 'unpack the official files there'),
    (paper.main, ['--only=table9'], 2, 'there is no table9'),
    (paper.main, ['--seeds=0'], 2, '--seeds=0 must be at least 1'),
    (paper.main, ['--data_dir=a\0b'], 2, 'holds a zero byte'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/photos'], 2, 'part of'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/photos/a/b'], 2, 'part of'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX'], 2, 'part of the dataset'),
    (main.main, [*FOLDER, '--data_dir=BOX/link', '--workdir=BOX/photos/run'], 2, 'part of'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/link/run'], 2, 'part of'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/a\0b'], 2, 'a zero byte'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/\udcff'], 2, 'no text in UTF-8'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/r', '--gamma=1e300'], 2, '32'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/r', '--num_rounds=9999999'], 2,
     'at most 1000000'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/r', '--augment=shift',
                 '--shift_pixels=16'], 2, 'must be below --image_size=16'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/r', '--pretrained=BOX/pipe.pth'],
     1, 'is no file, but a pipe or a device'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/photos/bag/0.jpg/r'], 2, 'part'),
    (main.main, [*FOLDER, '--data_dir=BOX/photos', '--workdir=BOX/pipe.pth/r'], 1, 'cannot'),
])
def test_folders_and_files_that_cannot_be_meant(program, arguments, code, words, tmp_path, capsys):
  _photos(tmp_path / 'photos')
  (tmp_path / 'link').symlink_to('photos')
  os.mkfifo(tmp_path / 'pipe.pth')
  _assert_refused([text.replace('BOX', str(tmp_path)) for text in arguments], code, words, tmp_path,
                  capsys, program, may_make=True)
  assert not (tmp_path / 'photos/checkpoints').exists()


def test_a_run_may_lie_beside_files_that_a_list_names(tmp_path):
  """A folder there does not become part of the dataset."""
  photos = _photos(tmp_path / 'photos')
  (photos / 'labels.csv').write_text('bag/0.jpg,bag')
  for name, data_dir in (('folder', photos), ('folder', photos / 'labels.csv'), ('digits', photos)):
    dataset.check_apart(config.make(dataset=name, data_dir=str(data_dir)), 'workdir',
                        photos / 'run')
  (photos / 'labels.csv').unlink()
  with pytest.raises(ValueError, match='part of the dataset'):
    dataset.check_apart(config.make(dataset='folder', data_dir=str(photos)), 'workdir',
                        photos / 'run')


@pytest.mark.parametrize('raised, code, words', [
    (OSError(errno.ENOSPC, 'No space left on device', 'a.npz'), 1, 'make room on the disk'),
    (OSError(errno.ENOSPC, 'No space left on device'), 1, 'A file or the output cannot be'),
    (PermissionError(errno.EACCES, 'Permission denied', 'a'), 1, 'correct its permissions'),
    (OSError(errno.ENAMETOOLONG, 'File name too long', 'a' * 300), 1, 'choose a shorter name'),
    (OSError('no number'), 1, 'no number'),
    (FileNotFoundError(errno.ENOENT, 'No such file', 'a\n\x1b[2Jb'), 1, 'a ?[2Jb cannot be read'),
    (MemoryError(), 1, 'too little memory'),
    (RuntimeError("can't start new thread"), 1, 'too few threads'),
])
def test_what_the_system_raises_becomes_a_sentence(raised, code, words, tmp_path, capsys):
  def work():
    raise raised
  _assert_refused(work, code, words, tmp_path, capsys, console.exit_code)


def test_a_defect_is_not_hidden():
  with pytest.raises(ZeroDivisionError):
    console.exit_code(lambda: 1 / 0)
  with pytest.raises(RuntimeError, match='ours'):
    console.exit_code(lambda: (_ for _ in ()).throw(RuntimeError('ours')))


def _delete(folder, line):
  shutil.rmtree(folder.path)


@pytest.mark.parametrize('target, name, value, words', [
    (checkpoint.shutil, 'disk_usage', lambda path: shutil._ntuple_diskusage(9, 9, 0),
     'A checkpoint cannot be saved in'),
    (folder_lib.RunFolder, 'add_round', _delete, 'A checkpoint cannot be saved in'),
])
def test_a_training_that_cannot_save(target, name, value, words, kept, tmp_path, capsys,
                                     monkeypatch):
  """The disk is full, or somebody deletes the folder."""
  monkeypatch.setattr(target, name, value)
  arguments = [text.replace('BOX', str(tmp_path)).replace('KEPT', str(kept)) for text in TRAIN]
  _assert_refused(arguments, 1, words, tmp_path, capsys, may_make=True)


@pytest.mark.parametrize('flags', ['nonsense', '--xla_nonsense=1',
                                   '--xla_force_host_platform_device_count=two'])
def test_flags_that_xla_does_not_know(flags, tmp_path, capsys, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', flags)
  _assert_refused([*RUN, f'--workdir={tmp_path / "run"}'], 2, f'XLA_FLAGS={flags}', tmp_path,
                  capsys)


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path, capsys, monkeypatch):
  (tmp_path / 'file').touch()
  monkeypatch.setenv(compiling.CACHE, str(tmp_path / 'file/x'))
  monkeypatch.setattr(compiling.jax.config, 'update', lambda name, value: None)
  compiling.prepare()
  assert 'Compiled programs cannot be kept in' in capsys.readouterr().out


@pytest.mark.parametrize('shell, code, words', [
    ('JAX_PLATFORMS=cuda PYTHON -m mah_jax.main --dataset=digits --workdir=BOX/run', 1,
     'unset JAX_PLATFORMS'),
    ('set -o pipefail; PYTHON -m mah_jax.main --help | true', 1, 'read the output has ended'),
    ('PYTHON -m mah_jax.main --help >/dev/full', 1, 'A file or the output'),
    ('PYTHON -m mah_jax.main --gama=1 >&-', 2, 'Did you mean: gamma'),
])
def test_in_a_shell(shell, code, words, tmp_path):
  command = shell.replace('PYTHON', sys.executable).replace('BOX', str(tmp_path))
  ended = subprocess.run(['bash', '-c', command], capture_output=True, text=True,
                         cwd=folder_lib.__file__.partition('/mah_jax/')[0])
  assert ended.returncode == code, ended.stderr
  assert words in ended.stderr and ended.stderr.count('\n') == 1, ended.stderr
  assert not list(tmp_path.iterdir())


# Calls from Python.


@pytest.fixture(scope='module')
def searcher(kept):
  """The run that was kept, opened from Python."""
  return mah_jax.load(kept / 'run', num_devices=1)


PIXELS = np.zeros((8, 8, 3), np.uint8)


@pytest.mark.parametrize('call, words', [
    (lambda run: run.search(PIXELS, k=2.5), 'k is 2.5; give a whole number'),
    (lambda run: run.search(PIXELS, k=0), 'k is 0'),
    (lambda run: run.search(PIXELS, k=True), 'k is True'),
    (lambda run: run.search(PIXELS, ranking='cosine'), "ranking='cosine' is not one of"),
    (lambda run: run.search(PIXELS, database='assigned'), 'has no assigned codes'),
    (lambda run: run.search(PIXELS, allowed=[1.5]), 'allowed are float64'),
    (lambda run: run.search(PIXELS, length=5), 'no codes of 5 bits: choose one of 4,6'),
    (lambda run: run.encode(PIXELS, length='4'), 'no codes of 4 bits'),
    (lambda run: run.encode(None), 'NoneType is no image'),
    (lambda run: run.encode(3), 'int is no image'),
    (lambda run: run.encode([]), 'give at least one'),
    (lambda run: run.encode([PIXELS, 3]), 'int is no image'),
    (lambda run: run.encode(iter([PIXELS])), 'no list of them'),
    (lambda run: run.encode(b'junk'), 'image 0 cannot be decoded'),
    (lambda run: run.encode('nope.jpg'), 'No such file or directory'),
    (lambda run: run.encode('/dev/zero'), 'no regular file'),
    (lambda run: run.encode('a\0b'), 'a zero byte'),
    (lambda run: run.encode(PIXELS / 255), 'float64 .* is no image'),
    (lambda run: run.encode(np.stack([PIXELS / 255] * 2)), 'float64 .* is no image'),
    (lambda run: run.encode(PIXELS > 0), 'bool .* is no image'),
    (lambda run: run.encode(PIXELS[0, 0]), r'uint8 \(3,\) is no image'),
    (lambda run: run.encode(PIXELS[:0]), r'uint8 \(0, 8, 3\) is no image'),
    (lambda run: run.encode(PIXELS[None, None]), 'is no image'),
    (lambda run: run.encode(np.zeros((2, 8, 8, 5), np.uint8)), 'is no image'),
    (lambda run: run.image(-1), 'There is no row -1; give a number from 0 to 5'),
    (lambda run: run.code(6), 'There is no row 6'),
    (lambda run: run.picture(1.5, 8), 'There is no row 1.5'),
    (lambda run: mah_jax.load(3), 'folder=3 is no path'),
    (lambda run: mah_jax.load('no such run'), 'is not a run folder'),
    (lambda run: mah_jax.load(run.folder.path, batch_size='x'), '--batch_size=x must be an'),
    (lambda run: mah_jax.load(run.folder.path, bits=4), "Unknown command line flag 'bits'"),
])
def test_a_searcher_checks_its_arguments(call, words, searcher):
  with pytest.raises(ValueError, match=words):
    call(searcher)


NUMBERED = index_lib.build(CODES)


@pytest.mark.parametrize('call, words', [
    (lambda: index_lib.build(CODES[0]), r'int8 \(4,\)'),
    (lambda: index_lib.build(CODES > 0), 'bool'),
    (lambda: index_lib.build(CODES * 2), 'the value 2'),
    (lambda: index_lib.build(np.ones((2, 300), np.int8)), 'give 1 to 256'),
    (lambda: index_lib.build(CODES, ids=[1] * 6), 'the id 1'),
    (lambda: index_lib.build(CODES, keys=np.zeros((6, 2))), 'keys are float64'),
    (lambda: index_lib.search(NUMBERED, CODES[:, :3], 2), 'have 3 bits'),
    (lambda: index_lib.search(NUMBERED, CODES, 2.5), 'k is 2.5'),
    (lambda: index_lib.within(NUMBERED, CODES, -1), 'radius is -1'),
    (lambda: index_lib.search_outputs(NUMBERED, np.full((1, 4), np.nan), 2), 'value nan'),
    (lambda: index_lib.add(NUMBERED, CODES, ids=[7]), 'built without ids'),
    (lambda: index_lib.remove(NUMBERED, [9]), 'no row with the id 9'),
    (lambda: index_lib.load('/dev/null'), 'no index of mah_jax'),
    (lambda: metrics.evaluate(CODES, CODES, LABELS, LABELS, k=2.5), 'k is 2.5'),
    (lambda: metrics.evaluate(CODES, CODES, LABELS, LABELS, k=0), 'k is 0'),
    (lambda: metrics.evaluate(CODES > 0, CODES, LABELS, LABELS), 'query codes hold values other'),
    (lambda: metrics.evaluate(CODES, CODES, LABELS[:2], LABELS), '6 query codes came with 2 rows'),
    (lambda: metrics.evaluate(CODES, CODES, LABELS * 0.5, LABELS), 'query labels hold values'),
    (lambda: metrics.evaluate(CODES[:, :2], CODES, LABELS, LABELS), 'both need the same number'),
    (lambda: similarity.group_rows(LABELS * 0.5), 'labels hold 0.5'),
    (lambda: similarity.group_rows(LABELS[0]), r'got shape \(3,\)'),
    (lambda: codebook.codebook(0, (4,), 0), 'num_labels=0'),
    (lambda: codebook.codebook(3, (6, 4), 0), r'code_lengths=\(6, 4\)'),
    (lambda: codebook.codes_from_labels(LABELS, CODES), 'a codeword for each label'),
])
def test_functions_check_their_arguments(call, words):
  with pytest.raises(ValueError, match=words):
    call()


def test_queries_are_encoded_as_the_database_was(box):
  """The evaluation whose codes were kept has mirrored images, though the training has not."""
  assert not mah_jax.load(box / 'run').config.mirror
  _change('run/results.json', mirror=True)(box)
  assert mah_jax.load(box / 'run').config.mirror


def test_two_commands_that_add_images_lose_none(box):
  """The second to write has read an index without the images of the first: it is refused."""
  images = [image_files.picture(16, 16, seed) for seed in range(2)]
  first, second = (mah_jax.load(box / 'run', num_devices=1) for _ in range(2))
  hashed = first.hash(images)
  first.add(box, ['a.jpg', 'b.jpg'], hashed)
  with pytest.raises(ValueError, match='was changed by another command meanwhile'):
    second.add(box, ['c.jpg', 'd.jpg'], hashed)
  assert mah_jax.load(box / 'run').database.names[-2:] == ['a.jpg', 'b.jpg']


def test_images_of_the_database_are_not_added_again(box, kept, capsys):
  arguments = [*INDEX, '--images=KEPT/photos']
  assert main.main([text.replace('BOX', str(box)).replace('KEPT', str(kept))
                    for text in arguments]) == 0
  assert '6 images are in the index already' in capsys.readouterr().out
  names = mah_jax.load(box / 'run').database.names
  assert len(set(names)) == len(names) == 8
