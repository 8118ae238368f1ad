"""Methods on features encode new images: the same codes as in their run, by model.npz alone."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from mah_jax import flags
from mah_jax import main
from mah_jax import methods
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.runs import restoring

METHODS = {name: [] for name, spec in methods.METHODS.items() if not spec.trains_network} | {
    'sdh': ['--anchors=100'], 'ksh': ['--anchors=100', '--labelled=200']}
LENGTHS = (4, 12)


def _train(method, workdir):
  return main.main([f'--method={method}', '--dataset=digits', '--code_lengths=4,12',
                    '--num_devices=1', *METHODS[method], f'--workdir={workdir}'])


def _encode(workdir, images, *more):
  return main.main(['--mode=encode', f'--workdir={workdir}', f'--images={images}',
                    '--num_devices=1', *more])


@pytest.fixture(scope='module', params=METHODS)
def finished(request, tmp_path_factory):
  """The folder of a run of each method on the pixels of the digits."""
  workdir = tmp_path_factory.mktemp('runs') / request.param
  assert _train(request.param, workdir) == 0
  return workdir


@pytest.fixture(scope='module')
def itq(tmp_path_factory):
  """The folder of a run of one method."""
  workdir = tmp_path_factory.mktemp('runs') / 'itq'
  assert _train('itq', workdir) == 0
  return workdir


@pytest.fixture(scope='module')
def digits():
  return datasets.load('digits', '', 0)


@pytest.fixture(scope='module')
def queries(digits, tmp_path_factory):
  """The queries of the digits as PNG files, in their order."""
  folder = tmp_path_factory.mktemp('queries')
  for i, row in enumerate(digits.protocol.queries):
    Image.fromarray(digits.images[row, :, :, 0]).save(folder / f'{i:03}.png')
  return folder


def _kept(workdir, name, c):
  """Codes in codes.npz, 0/1."""
  return np.unpackbits(np.load(workdir / 'codes.npz')[f'{name}_{c}'][0], axis=1, count=c)


def test_the_images_of_a_run_get_the_codes_of_the_run(finished, digits):
  """But for outputs so near 0 that the rounding of another batch may decide their signs."""
  hasher = restoring.hasher(flags.from_arguments(
      ['--mode=encode', '--images=x', f'--workdir={finished}', '--num_devices=1']))
  for name, rows in (('queries', digits.protocol.queries), ('encoded', digits.protocol.database)):
    images = digits.images[rows]
    hashed = hasher(images)
    np.testing.assert_allclose(hashed.features, images.reshape(len(rows), -1) / 255, atol=1e-6)
    assert hashed.database_codes is hashed.codes and hashed.weights is None
    for c, codes, outputs in zip(LENGTHS, hashed.codes, hashed.outputs, strict=True):
      assert codes.dtype == np.int8 and outputs.dtype == np.float32
      np.testing.assert_array_equal(codes, np.where(outputs >= 0, 1, -1))
      clear = np.abs(outputs) > 2e-6 * np.abs(outputs).max()
      assert clear.mean() > 0.99
      np.testing.assert_array_equal((codes > 0)[clear], _kept(finished, name, c)[clear])


def test_a_model_is_plain_arrays_without_the_rows_that_it_was_fitted_to(finished):
  arrays = storage.read_npz(finished / 'model.npz')
  about = json.loads(str(arrays.pop('about')))
  assert about['weights'] == '' and about['pixels'] == {
      'size': 8, 'channels': 1, 'mean': [0.0], 'std': [1.0]}
  assert {name.rsplit('_', 1)[1] for name in arrays} == {'4', '12'}
  for array in arrays.values():
    assert array.dtype == np.float32 and 1697 not in array.shape


@pytest.mark.parametrize('more', [[], ['--mirror']], ids=['plain', 'mirror'])
def test_image_files_are_encoded_from_the_command_line(more, itq, queries, tmp_path, capsys):
  """--mirror leaves features that are pixels as they are, as it does in training."""
  assert _encode(itq, queries, f'--output={tmp_path}', *more) == 0
  assert '100 images encoded to 4,12 bits' in capsys.readouterr().out
  for c in LENGTHS:
    expected = np.load(itq / 'codes' / f'queries_{c}.npy')
    np.testing.assert_array_equal(np.load(tmp_path / f'codes_{c}.npy'),
                                  np.packbits(expected > 0, axis=1))


def _cut(path):
  path.write_bytes(path.read_bytes()[:-900])


def _flip(path):
  content = bytearray(path.read_bytes())
  last = content.rindex(b'NUMPY', 0, content.rindex(b'NUMPY'))  # but one: that is the seal
  content[last + 200] ^= 1
  path.write_bytes(content)


def _leave_out(path):
  arrays = storage.read_npz(path)
  del arrays['rotation_12']
  storage.write_npz(path, arrays)


def _pickle(path):
  np.savez(path, **dict(np.load(path)) | {'rotation_4': np.array([{}], object)})


def _one_array(path):
  with open(path, 'wb') as file:
    np.save(file, np.zeros(3))


def _unlink(path):
  path.unlink()


@pytest.mark.parametrize('damage', [_cut, _flip, _leave_out, _pickle, _one_array, _unlink])
def test_a_missing_or_damaged_model_is_one_sentence_with_the_remedy(
    damage, itq, queries, tmp_path, capsys):
  shutil.copytree(itq, tmp_path / 'run')
  damage(tmp_path / 'run' / 'model.npz')
  assert _encode(tmp_path / 'run', queries) == 1
  error = capsys.readouterr().err
  assert 'model.npz is missing or damaged: give the training command' in error
  assert error.count('\n') == 1 and not (tmp_path / 'run' / 'encoded').exists()


def test_the_training_command_again_makes_a_lost_model_anew(itq, tmp_path):
  shutil.copytree(itq, tmp_path / 'run')
  (tmp_path / 'run' / 'model.npz').unlink()
  assert _train('itq', tmp_path / 'run') == 0
  one, two = (storage.read_npz(folder / 'model.npz') for folder in (itq, tmp_path / 'run'))
  assert one.keys() == two.keys()
  for name in one.keys() - {'about'}:
    np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize('flag', ['--seed=1', '--code_lengths=4,8', '--method=lsh'])
def test_a_model_of_other_settings_is_refused_with_the_difference(flag, itq, queries, capsys):
  assert _encode(itq, queries, flag) == 2
  assert f'holds a run with other settings: {flag} (was ' in capsys.readouterr().err
