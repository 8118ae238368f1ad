"""Weights files by their kind: round trips, what they say of themselves, what is refused."""

import json
import os
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from mah_jax import errors
from mah_jax import storage
from mah_jax.weights import files


@pytest.fixture(name='weights')
def some_weights(tmp_path):
  rng = np.random.default_rng(0)
  tensors = {'conv.weight': rng.normal(size=(4, 3, 2, 2)), 'bn.bias': rng.normal(size=4),
             'fc.weight': rng.normal(size=(5, 4)).T}
  return files.Weights({name: array.astype(np.float32) for name, array in tensors.items()},
                       'resnet50_v1', (0.1, 1 / 3, 0.4), (0.5, 0.6, 0.7), tmp_path / 'source')


def test_a_written_file_is_read_back(tmp_path, weights):
  path = tmp_path / 'a.safetensors'
  files.write(path, weights)
  found = files.read(str(path))
  assert found[1:] == (*weights[1:4], path)
  assert found.tensors.keys() == weights.tensors.keys()
  for name, array in weights.tensors.items():
    assert found.tensors[name].dtype == np.float32
    np.testing.assert_array_equal(found.tensors[name], array)
  assert os.listdir(tmp_path) == ['a.safetensors']
  (tmp_path / 'plain').write_text('')
  assert path.stat().st_mode == (tmp_path / 'plain').stat().st_mode


def test_the_same_weights_make_the_same_bytes(tmp_path, weights):
  contents = set()
  for i in range(8):
    files.write(tmp_path / f'{i}.safetensors', weights)
    contents.add((tmp_path / f'{i}.safetensors').read_bytes())
  assert len(contents) == 1


def test_a_file_is_written_whole_or_not_at_all(tmp_path, weights, monkeypatch):
  written = []
  monkeypatch.setattr(storage, 'write', lambda *arguments: written.append(arguments))
  files.write(tmp_path / 'a.safetensors', weights)
  (path, content), = written
  assert path == tmp_path / 'a.safetensors' and not path.exists()
  path.write_bytes(content)
  assert files.read(path).backbone == 'resnet50_v1'


def test_tilde_is_the_home_folder(tmp_path, weights, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  files.write('~/a.safetensors', weights)
  assert files.read('~/a.safetensors').path == tmp_path / 'a.safetensors'
  assert files.backbone_of('~/a.safetensors') == 'resnet50_v1'


def test_the_network_is_told_from_the_header_alone(tmp_path, weights, monkeypatch):
  path = tmp_path / 'a.safetensors'
  files.write(path, weights)
  monkeypatch.setattr(files, '_tidy', None)  # a tensor that is read comes to grief
  assert files.backbone_of(path) == 'resnet50_v1'
  content = path.read_bytes()
  path.write_bytes(content[:len(content) // 2])
  assert files.backbone_of(path) == ''
  safetensors.numpy.save_file({'a': np.zeros(2, np.float32)}, path)
  assert files.backbone_of(path) == ''


@pytest.mark.parametrize('name, backbone', [
    ('a.pth', ''), ('a.pt', ''), ('a.tgz', 'resnet50_v1'), ('model.json', 'resnet50_v1'),
    ('a.npz', ''), ('a.safetensors', '')])
def test_the_network_is_told_by_the_kind_of_file(name, backbone, tmp_path):
  assert files.backbone_of(tmp_path / name) == files.backbone_of(tmp_path) == ''  # nothing yet
  (tmp_path / name).write_bytes(b'')
  assert files.backbone_of(tmp_path / name) == backbone
  assert files.backbone_of(tmp_path) == ('resnet50_v1' if name == 'model.json' else '')


def test_safetensors_of_others(tmp_path):
  path = tmp_path / 'model.safetensors'
  tensors = {'a': np.array([1.5, -2], np.float16), 'b': np.array([0.1], np.float64),
             'c': np.array([1.5, -3], ml_dtypes.bfloat16),
             'bn1.num_batches_tracked': np.array(7)}
  safetensors.numpy.save_file(tensors, path, {'format': 'pt'})
  found = files.read(path)
  assert (found.backbone, found.mean, found.std) == (
      '', (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
  assert {name: array.tolist() for name, array in found.tensors.items()} == {
      'a': [1.5, -2], 'b': [np.float32(0.1)], 'c': [1.5, -3]}
  assert {array.dtype for array in found.tensors.values()} == {np.dtype(np.float32)}


def raw_safetensors(path, header, content):
  text = json.dumps(header).encode()
  path.write_bytes(struct.pack('<Q', len(text)) + text + content)


@pytest.mark.parametrize('about', [
    '{', '[]x', '{"backbone": 7}', '{"mean": 1}', '{"mean": [1, 2]}', '{"mean": [0.1, 0.2, "a"]}',
    '{"std": [0, 0.1, 0.2]}', '{"std": [NaN, 0.1, 0.2]}', '{"std": [0.1, 0.2, Infinity]}'])
def test_metadata_that_cannot_be(about, tmp_path):
  path = tmp_path / 'a.safetensors'
  safetensors.numpy.save_file({'a': np.zeros(2, np.float32)}, path, {'mah_jax': about})
  with pytest.raises(errors.InputError, match='a.safetensors is not a whole'):
    files.read(path)


def test_types_that_are_not_weights(tmp_path):
  path = tmp_path / 'a.safetensors'
  safetensors.numpy.save_file({'a': np.zeros(2, np.int8)}, path)
  with pytest.raises(errors.InputError, match='a in .*a.safetensors has type int8'):
    files.read(path)
  spec = {'a': {'dtype': 'F8_E4M3', 'shape': [2], 'data_offsets': [0, 2]}}
  raw_safetensors(path, spec, b'ab')
  with pytest.raises(errors.InputError, match='a.safetensors is not a whole'):
    files.read(path)


def test_numbers_beyond_float32_become_infinite_without_a_warning(tmp_path, recwarn):
  path = tmp_path / 'a.safetensors'
  safetensors.numpy.save_file({'a': np.array([1e300, 1.0])}, path)
  assert files.read(path).tensors['a'].tolist() == [np.inf, 1]
  assert not recwarn


def test_cut_and_changed_safetensors(tmp_path, weights):
  path = tmp_path / 'a.safetensors'
  files.write(path, weights)
  whole = path.read_bytes()
  for end in range(0, len(whole), 19):
    path.write_bytes(whole[:end])
    with pytest.raises(errors.InputError):
      files.read(path)
  rng = np.random.default_rng(0)
  for position in rng.integers(0, len(whole), 100):
    damaged = bytearray(whole)
    damaged[position] ^= 1 << rng.integers(8)
    path.write_bytes(damaged)
    try:
      files.read(path)  # a changed number passes
    except errors.InputError as error:
      assert '\n' not in str(error)


@pytest.mark.parametrize('name', ['a.npz', 'weights', 'a.h5', 'other.json', 'a.tar.gz'])
def test_other_kinds_of_files(name, tmp_path):
  (tmp_path / name).write_bytes(b'x')
  with pytest.raises(errors.InputError, match=rf'{name} is not a \.pth .*safetensors .*tgz'):
    files.read(tmp_path / name)


def test_a_folder_without_weights(tmp_path):
  (tmp_path / 'run.pth').mkdir()
  for folder in (tmp_path, tmp_path / 'run.pth'):
    with pytest.raises(errors.InputError, match=r'is not a \.pth .* \.safetensors '):
      files.read(folder)


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises(errors.InputError, match=r'a\.pth does not exist: name a \.pth'):
    files.read(tmp_path / 'a.pth')
