"""PyTorch files: those that PyTorch wrote, and those that somebody meddled with."""

import pathlib
import pickle
import struct
import zipfile

import numpy as np
import pth_layouts as layouts
import pytest

from mah_jax import errors
from mah_jax.weights import files

DATA = pathlib.Path(__file__).parent / 'data'
SIX = np.arange(6, dtype='<f4') / 4 - 1
NUMBERS = {'0': SIX.tobytes()}
TENSOR = layouts.tensor(layouts.storage())
each_format = pytest.mark.parametrize('write', layouts.FORMATS.values(), ids=layouts.FORMATS)


@pytest.mark.parametrize('name', ['weights_zip.pth', 'weights_legacy.pth'])
def test_files_written_by_pytorch(name):
  base = np.arange(60, dtype=np.float32) / 8
  expected = {
      'weight': np.ones(3), 'bias': np.zeros(3), 'running_mean': np.zeros(3),
      'running_var': np.ones(3),
      'plain': base.reshape(3, 4, 5),
      'transposed': base.reshape(3, 4, 5).transpose(2, 0, 1),
      'window': base[[7, 10, 13, 16]],
      'rest': base[[[21, 22], [26, 27], [31, 32], [36, 37]]],
      'half': base[:6] - 2, 'bfloat16': base[:6] - 2,
      'double': (base[:6] - 2).reshape(2, 3),
      'parameter': base[:4], 'scalar': np.array(2.5), 'empty': np.zeros((0, 3)),
  }
  weights = files.read(DATA / name)
  assert list(weights.tensors) == list(expected)  # without num_batches_tracked
  for key, array in weights.tensors.items():
    assert array.dtype == np.float32 and array.flags.c_contiguous
    np.testing.assert_array_equal(array, expected[key], key)
  assert weights.mean == (0.485, 0.456, 0.406) and weights.std == (0.229, 0.224, 0.225)
  assert (weights.backbone, weights.path) == ('', DATA / name)


@each_format
def test_hand_made_files(write, tmp_path):
  found = layouts.read(tmp_path, write(layouts.mapping({'a': TENSOR}), NUMBERS))
  np.testing.assert_array_equal(found['a'], SIX.reshape(2, 3))


@each_format
@pytest.mark.parametrize('wrap', [
    lambda entries: layouts.mapping({'state_dict': entries, 'epoch': layouts.plain(3)}),
    lambda entries: layouts.mapping({'epoch': layouts.plain(3), 'model': entries})])
def test_wrapped_and_parallel_state_dicts(write, wrap, tmp_path):
  entries = layouts.mapping({'module.a': TENSOR, 'module.b.num_batches_tracked': TENSOR})
  assert list(layouts.read(tmp_path, write(wrap(entries), NUMBERS))) == ['a']


def test_the_prefix_stays_unless_all_have_it(tmp_path):
  entries = layouts.mapping({'module.a': TENSOR, 'b': TENSOR})
  assert list(layouts.read(tmp_path, layouts.zip_file(entries, NUMBERS))) == ['module.a', 'b']


@each_format
def test_parameters_of_early_versions(write, tmp_path):
  first = layouts.call('torch._utils', '_rebuild_tensor', layouts.storage(), layouts.plain(0),
                       layouts.plain((6,)), layouts.plain((1,)))
  state = layouts.sequence(layouts.plain(True), layouts.plain(False),
                           layouts.call('collections', 'OrderedDict')) + b'b'
  parameter = layouts.call('torch.nn.parameter', 'Parameter', first) + state
  found = layouts.read(tmp_path, write(layouts.mapping({'a': parameter}), NUMBERS))
  np.testing.assert_array_equal(found['a'], SIX)


def test_big_endian(tmp_path):
  big = {'0': SIX.astype('>f4').tobytes()}
  content = layouts.zip_file(layouts.mapping({'a': TENSOR}), big, order='big')
  found = layouts.read(tmp_path, content)
  np.testing.assert_array_equal(found['a'], SIX.reshape(2, 3))


def test_newer_pickle_protocol(tmp_path):
  # Protocol 4 names things by strings on the stack and counts its memo.
  looked_up = b'\x8c\x05torch\x94\x8c\x0cFloatStorage\x94\x93'
  opcodes = layouts.mapping({'a': TENSOR.replace(layouts.named('torch', 'FloatStorage'),
                                                 looked_up)})
  assert looked_up in opcodes
  np.testing.assert_array_equal(
      layouts.read(tmp_path, layouts.zip_file(opcodes, NUMBERS))['a'], SIX.reshape(2, 3))


def test_quantised_weights_are_refused(tmp_path):
  opcodes = layouts.mapping({'a': layouts.tensor(layouts.storage(kind='Char'))})
  assert 'a in ' in layouts.refusal(tmp_path, layouts.zip_file(opcodes, {'0': bytes(6)}))


@pytest.mark.parametrize('opcodes', [
    layouts.plain(3), layouts.plain([]), layouts.plain({}), TENSOR,
    layouts.mapping({'a': layouts.plain('text')}), layouts.plain({1: 2}),
    layouts.mapping({'a': TENSOR, 'b': layouts.plain(None)})])
def test_other_pickles(opcodes, tmp_path):
  message = layouts.refusal(tmp_path, layouts.zip_file(opcodes, NUMBERS))
  assert 'something else than a table of tensors' in message


@pytest.mark.parametrize('content', [
    b'', b'PK\x03\x04', b'<!DOCTYPE html>', b'version https://git-lfs\n', bytes(3000),
    pickle.dumps({'a': 1}), layouts.pickled(layouts.plain(layouts.MAGIC))])
def test_other_files(content, tmp_path):
  layouts.refusal(tmp_path, content)


def test_the_legacy_format_is_known_by_its_first_number(tmp_path):
  content = layouts.legacy_file(layouts.mapping({'a': TENSOR}), NUMBERS,
                                magic=layouts.plain(layouts.MAGIC + 1))
  assert 'starts in another way' in layouts.refusal(tmp_path, content)


def test_legacy_storages_say_their_size_twice(tmp_path):
  content = layouts.legacy_file(layouts.mapping({'a': TENSOR}), NUMBERS)
  size = struct.pack('<q', 6)
  assert content.count(size) == 1
  message = layouts.refusal(tmp_path, content.replace(size, struct.pack('<q', 7)))
  assert 'storage 0 has another size' in message


def test_compressed_archives_are_not_unpacked(tmp_path):
  content = layouts.zip_file(layouts.mapping({'a': TENSOR}), {'0': bytes(10**6)},
                             compression=zipfile.ZIP_DEFLATED)
  assert 'its members are compressed' in layouts.refusal(tmp_path, content)


@pytest.mark.parametrize('name', ['weights_zip.pth', 'weights_legacy.pth'])
def test_cut_files_give_one_kind_of_error(name, tmp_path):
  whole = (DATA / name).read_bytes()
  layouts.read(tmp_path, whole)
  for end in np.linspace(0, len(whole) - 1, 60).astype(int):
    layouts.refusal(tmp_path, whole[:end])


@pytest.mark.parametrize('name', ['weights_zip.pth', 'weights_legacy.pth'])
def test_changed_files_give_one_kind_of_error(name, tmp_path):
  whole = (DATA / name).read_bytes()
  rng = np.random.default_rng(0)
  refused = 0
  for position in rng.integers(0, len(whole), 150):
    damaged = bytearray(whole)
    damaged[position] ^= 1 << rng.integers(8)
    try:
      layouts.read(tmp_path, damaged)  # a changed number or an unused byte can pass
    except errors.InputError as error:
      refused += '\n' not in str(error)
  assert refused > 40
