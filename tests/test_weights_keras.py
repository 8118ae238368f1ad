"""The Keras ResNet-50 of the registry: the same function after the conversion."""

import json

import jax
import keras_model
import numpy as np
import pytest
import random_weights
from flax import traverse_util

from mah_jax import errors
from mah_jax.models import resnet
from mah_jax.weights import files
from mah_jax.weights import fitting
from mah_jax.weights import keras

BGR_MEAN = (103.939, 116.779, 123.68)


@pytest.fixture(scope='module', name='contents')
def small_files():
  return keras_model.files(width=4, num_classes=5)


@pytest.fixture(name='folder')
def small_folder(tmp_path, contents):
  for name, content in contents.items():
    (tmp_path / name).write_bytes(content)
  return tmp_path


def assert_same(found, expected):
  assert found.tensors.keys() == expected.tensors.keys()
  for name, array in expected.tensors.items():
    np.testing.assert_array_equal(found.tensors[name], array)


def test_the_converted_network_computes_what_keras_computes(tmp_path):
  path = tmp_path / 'model.tgz'
  keras_model.write_archive(path, keras_model.files())
  weights = files.read(path)
  pixels = np.random.default_rng(0).integers(0, 256, (2, 45, 64, 3))  # RGB
  layers, arrays = keras_model.make()
  outputs = keras_model.evaluate(layers, arrays, pixels[..., ::-1] - np.array(BGR_MEAN))

  images = (pixels / 255 - np.array(weights.mean)) / np.array(weights.std)
  network = resnet.ResNet(stage_sizes=(2, 1), stride_on_1x1=True, feature='logits')
  shapes = jax.eval_shape(lambda x: network.init(jax.random.key(0), x, train=False),
                          jax.ShapeDtypeStruct(images.shape, np.float32))
  variables, _ = fitting.fit(weights, shapes, 'resnet50_v1')
  with jax.enable_x64(True):
    variables = jax.tree.map(np.float64, variables)
    logits, blocks = jax.jit(lambda v, x: network.apply(
        v, x, train=False, capture_intermediates=True))(variables, images)
  # In float64, so that what remains is the rounding of the converted weights.
  assert random_weights.scaled_error(np.asarray(logits), outputs['fc1000']) < 1e-6
  first = blocks['intermediates']['bn1']['__call__'][0]
  assert random_weights.scaled_error(np.asarray(first), outputs['bn_conv1']) < 1e-6


def test_what_the_file_says_about_itself(folder):
  weights = files.read(folder / 'model.json')
  assert (weights.backbone, weights.path) == ('resnet50_v1', folder / 'model.json')
  assert weights.std == (0.229, 0.224, 0.225)
  np.testing.assert_allclose(255 * np.array(weights.mean), BGR_MEAN[::-1], rtol=1e-15)
  # 12 convolutions without bias, four kinds of numbers in a batch norm, two in the top.
  assert len(weights.tensors) == 12 + 4 * 12 + 2
  assert {array.dtype for array in weights.tensors.values()} == {np.dtype(np.float32)}
  assert weights.tensors['conv1.weight'].shape == (4, 3, 7, 7)
  assert weights.tensors['layer2.0.downsample.0.weight'].shape == (32, 16, 1, 1)
  assert weights.tensors['fc.weight'].shape == (5, 32)


def test_formulas_worked_by_hand(folder, contents):
  arrays = keras.load(folder / 'model.json').arrays
  tensors = files.read(folder).tensors
  description = json.loads(contents['model.json'])
  epsilon, = (layer['config']['epsilon'] for layer in layers(description)
              if layer['name'] == 'bn2b_branch2c')
  mean = arrays['bn3a_branch2b/moving_mean'][3] - arrays['res3a_branch2b/bias'][3]
  assert tensors['layer2.0.bn2.running_mean'][3] == pytest.approx(mean, rel=1e-6)
  var = arrays['bn2b_branch2c/moving_variance'][5] + epsilon - 1e-5
  assert tensors['layer1.1.bn3.running_var'][5] == pytest.approx(var, rel=1e-6)
  assert tensors['layer1.0.downsample.1.weight'][2] == arrays['bn2a_branch1/gamma'][2]
  assert tensors['layer1.1.conv2.weight'][3, 1, 0, 2] == (
      arrays['res2b_branch2b/kernel'][0, 2, 1, 3])
  # Red is the last channel in Keras and the first in our networks.
  assert tensors['conv1.weight'][2, 0, 4, 6] == pytest.approx(
      255 * 0.229 * arrays['conv1/kernel'][4, 6, 2, 2], rel=1e-6)
  assert tensors['fc.weight'][4, 9] == arrays['fc1000/kernel'][9, 4]


def test_archive_folder_and_model_json_are_the_same(tmp_path, contents):
  inner = tmp_path / 'package' / 'ResNet50'
  inner.mkdir(parents=True)
  for name, content in contents.items():
    (inner / name).write_bytes(content)
  keras_model.write_archive(tmp_path / 'x.tgz', contents)
  expected = files.read(tmp_path / 'x.tgz')
  for path in (inner / 'model.json', inner, inner.parent, tmp_path):
    assert_same(files.read(path), expected)


def spec(manifest, name):
  return next(spec for spec in manifest['weights'] if spec['name'] == name)


def layers(description):
  return description['modelTopology']['model_config']['config']['layers']


def extra(manifest):
  manifest['weights'].append({'name': 'other/bias', 'shape': [0], 'dtype': 'float32'})


def edited(contents, edit):
  """model.json after a change."""
  description = json.loads(contents['model.json'])
  edit(description, description['weightsManifest'][0])
  return json.dumps(description)


@pytest.mark.parametrize('message, edit', [
    ('float32', lambda d, m: m['weights'][3].update(dtype='uint8')),
    ('float32', lambda d, m: m['weights'][3].update(quantization={'scale': 1})),
    ('bytes instead of', lambda d, m: m['weights'][3].update(shape=[1])),
    ('bytes instead of', lambda d, m: m['weights'].pop()),
    ('bytes instead of', lambda d, m: m['paths'].pop()),
    ('it lacks group1-shard9', lambda d, m: m['paths'].append('group1-shard9of9.bin')),
    ('it lacks ../model.json', lambda d, m: m['paths'].append('../model.json')),
    ('it lacks weightsManifest', lambda d, m: d.pop('weightsManifest')),
    ('it lacks modelTopology', lambda d, m: d.pop('modelTopology')),
    ('it lacks conv1/bias', lambda d, m: spec(m, 'conv1/bias').update(name='other')),
    ('it lacks fc1000/bias', lambda d, m: spec(m, 'fc1000/bias').update(name='other')),
    ('it lacks bn_conv1', lambda d, m: layers(d).pop(3)),
    ('no ResNet-50 has other',
     lambda d, m: spec(m, 'res2a_branch1/kernel').update(name='other/kernel')),
    ('no ResNet-50 has other/bias', lambda d, m: extra(m)),
    ('conv1 and bn_conv1 have different sizes',
     lambda d, m: spec(m, 'bn_conv1/gamma').update(shape=[4, 1])),
    ('TensorFlow.js', lambda d, m: m.update(weights=7)),
])
def test_other_models_are_refused(message, edit, folder, contents):
  (folder / 'model.json').write_text(edited(contents, edit))
  with pytest.raises(errors.InputError) as caught:
    files.read(folder)
  assert message in str(caught.value) and str(folder) in str(caught.value)


def test_a_missing_or_short_shard(folder):
  shard = folder / 'group1-shard2of3.bin'
  shard.write_bytes(shard.read_bytes()[:-1])
  with pytest.raises(errors.InputError, match='its shards have .* bytes instead of'):
    files.read(folder)
  shard.unlink()
  with pytest.raises(errors.InputError, match='it lacks group1-shard2of3.bin'):
    files.read(folder)


def test_an_archive_of_something_else(tmp_path):
  keras_model.write_archive(tmp_path / 'x.tgz', {})
  with pytest.raises(errors.InputError, match='it lacks model.json'):
    files.read(tmp_path / 'x.tgz')
  keras_model.write_archive(tmp_path / 'x.tgz', {'model.json': b'{}', 'a/model.json': b'{}'})
  with pytest.raises(errors.InputError, match='is there twice'):
    files.read(tmp_path / 'x.tgz')


def test_cut_or_changed_archives_give_one_kind_of_error(tmp_path, contents):
  path = tmp_path / 'x.tgz'
  keras_model.write_archive(path, contents)
  whole = path.read_bytes()
  assert len(files.read(path).tensors) == 62
  for end in np.linspace(0, len(whole) - 20, 40).astype(int):
    path.write_bytes(whole[:end])
    with pytest.raises(errors.InputError):
      files.read(path)
  rng = np.random.default_rng(1)
  for position in rng.integers(40, len(whole), 60):  # behind the time and the file name
    damaged = bytearray(whole)
    damaged[position] ^= 1 << rng.integers(8)
    path.write_bytes(damaged)
    with pytest.raises(errors.InputError) as caught:
      files.read(path)
    assert '\n' not in str(caught.value)


def test_no_part_of_the_network_is_left_out(folder):
  arrays = keras.load(folder / 'model.json').arrays
  tensors = files.read(folder).tensors
  biases = sum(array.size for name, array in arrays.items()
               if name.endswith('/bias') and name != 'fc1000/bias')
  assert sum(a.size for a in tensors.values()) == sum(
      a.size for a in arrays.values()) - biases
  names = traverse_util.unflatten_dict(dict.fromkeys(tensors, 0), sep='.')
  assert names.keys() == {'conv1', 'bn1', 'layer1', 'layer2', 'fc'}
