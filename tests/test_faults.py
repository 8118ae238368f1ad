"""Bad input of every kind: one sentence, its exit code, and nothing that was there is changed."""

import hashlib
import itertools
import os

import image_files
import numpy as np
import pytest

from mah_jax import discrete
from mah_jax import main
from mah_jax import similarity

# Flags of a run that would train at once if nothing were wrong.
RUN = ['--dataset=digits', '--backbone=compact', '--width=4', '--image_size=8', '--crop=1.0',
       '--normalize=dataset', '--num_rounds=1', '--num_sampled=64', '--num_devices=1']


def _snapshot(folder):
  """The content and kind of everything below a folder."""
  return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
          if path.is_file() else 'no file' for path in sorted(folder.rglob('*'))}


def _assert_refused(arguments, code, words, folder, capsys):
  before = _snapshot(folder)
  assert main.main(arguments) == code
  captured = capsys.readouterr()
  assert words in captured.err, captured.err
  assert captured.err.startswith('mah_jax: ') and captured.err.count('\n') == 1, captured.err
  assert captured.err.rstrip().endswith(('.', '?', ')'))
  assert 'Traceback' not in captured.err + captured.out
  assert _snapshot(folder) == before


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
  make(photos / 'bag' / '9.jpg')
  (photos / 'labels.csv').write_text(''.join(
      f'{name}/{i}.jpg,{name}\n' for name, i in itertools.product(('bag', 'cup'), range(4)))
      + 'bag/9.jpg,bag\n')
  run = [*FOLDER, f'--data_dir={photos}', f'--workdir={tmp_path / "run"}']
  assert main.main(run) == 1  # one of nine is too many to be skipped
  assert 'bag/9.jpg' in capsys.readouterr().err


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
