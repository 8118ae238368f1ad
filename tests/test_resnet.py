"""ResNets against outputs of PyTorch, stored by benchmarks/models_torch.py."""

import math
import pathlib

import jax
import numpy as np
import pytest
import random_weights
from flax import traverse_util

from mah_jax import errors
from mah_jax.models import resnet

TOLERANCE = 1e-4  # largest difference over the standard deviation of the reference
VERSIONS = {'v1.5': False, 'v1': True}  # of ResNet-50
# Arguments, blocks per stage, width of the output over that of the block, parameters.
NETWORKS = {
    '18': ({'stage_sizes': (2, 2, 2, 2), 'basic_blocks': True}, (2, 2, 2, 2), 1, 11_689_512),
    '34': ({'basic_blocks': True}, (3, 4, 6, 3), 1, 21_797_672),
    '50': ({}, (3, 4, 6, 3), 4, 25_557_032),
    '50_v1': ({'stride_on_1x1': True}, (3, 4, 6, 3), 4, 25_557_032),
}


@pytest.fixture(scope='module')
def reference():
  path = pathlib.Path(__file__).parent / 'data' / 'resnet50_reference.npz'
  with np.load(path) as arrays:
    return dict(arrays)


@pytest.fixture(scope='module')
def images(reference):
  return random_weights.images(int(reference['seed']), tuple(reference['shape']))


@pytest.fixture(scope='module')
def weights(images):
  return random_weights.variables(resnet.ResNet(feature='logits'), images.shape)


def shapes_of(module, images_shape):
  """Names and shapes of all variables, and the shape of the output."""
  x = jax.ShapeDtypeStruct(images_shape, np.float32)
  output, variables = jax.eval_shape(
      lambda x: module.init_with_output(jax.random.key(0), x, train=False), x)
  flat = traverse_util.flatten_dict(variables, sep='/')
  return {name: leaf.shape for name, leaf in flat.items()}, output.shape


def torchvision_shapes(blocks_of_stages, widening):
  """Every variable of a ResNet with its top, written down from the definition."""
  shapes = {}

  def conv(name, norm, inputs, outputs, size):
    shapes[f'params/{name}/kernel'] = (size, size, inputs, outputs)
    for kind in ('params/{}/scale', 'params/{}/bias',
                 'batch_stats/{}/mean', 'batch_stats/{}/var'):
      shapes[kind.format(norm)] = (outputs,)

  conv('conv1', 'bn1', 3, 64, 7)
  inputs = 64
  for stage, (channels, blocks) in enumerate(
      zip((64, 128, 256, 512), blocks_of_stages, strict=True), start=1):
    outputs = widening * channels
    for block in range(blocks):
      layer = f'layer{stage}_{block}'
      if widening == 1:
        conv(f'{layer}/conv1', f'{layer}/bn1', inputs, channels, 3)
        conv(f'{layer}/conv2', f'{layer}/bn2', channels, channels, 3)
      else:
        conv(f'{layer}/conv1', f'{layer}/bn1', inputs, channels, 1)
        conv(f'{layer}/conv2', f'{layer}/bn2', channels, channels, 3)
        conv(f'{layer}/conv3', f'{layer}/bn3', channels, outputs, 1)
      if inputs != outputs:
        conv(f'{layer}/downsample_conv', f'{layer}/downsample_bn', inputs, outputs, 1)
      inputs = outputs
  return shapes | {'params/fc/kernel': (inputs, 1000), 'params/fc/bias': (1000,)}


def num_parameters(shapes):
  return sum(math.prod(s) for name, s in shapes.items() if name.startswith('params/'))


@pytest.mark.parametrize('settings, blocks, widening, size', NETWORKS.values(), ids=NETWORKS)
def test_names_shapes_and_size(settings, blocks, widening, size):
  with_top, logits = shapes_of(resnet.ResNet(feature='logits', **settings), (2, 64, 64, 3))
  without_top, pooled = shapes_of(
      resnet.ResNet(feature='pooled', **settings), (5, 97, 224, 3))
  width = 512 * widening
  assert with_top == torchvision_shapes(blocks, widening)
  assert with_top.keys() - without_top.keys() == {'params/fc/kernel', 'params/fc/bias'}
  assert num_parameters(with_top) == size
  assert num_parameters(without_top) == size - width * 1000 - 1000
  assert (logits, pooled) == ((2, 1000), (5, width))


@pytest.mark.parametrize('version', VERSIONS)
def test_evaluation_agrees_with_pytorch(version, reference, weights, images):
  @jax.jit
  def both(variables, images):
    return [resnet.ResNet(stride_on_1x1=VERSIONS[version], feature=feature).apply(
        variables, images, train=False) for feature in ('logits', 'pooled')]

  logits, pooled = map(np.asarray, both(weights, images))
  expected = reference[f'{version}/eval/logits']
  assert random_weights.scaled_error(logits, expected) < TOLERANCE
  expected = reference[f'{version}/eval/pooled']
  stored = expected.shape[1]
  assert random_weights.scaled_error(pooled[:, :stored], expected) < TOLERANCE


def test_training_agrees_with_pytorch(reference, weights, images):
  # In float64, because eight values per channel in the last stage magnify rounding.
  with jax.enable_x64(True):
    model = resnet.ResNet(feature='logits')
    inputs = jax.tree.map(lambda x: x.astype(np.float64), (weights, images))
    logits, updates = jax.jit(
        lambda v, x: model.apply(v, x, train=True, mutable=['batch_stats']))(*inputs)
  results = traverse_util.flatten_dict(updates['batch_stats'], sep='/')
  results['logits'] = logits
  prefix = 'v1.5/train/'
  names = [name.removeprefix(prefix) for name in reference if name.startswith(prefix)]
  assert len(names) == 7
  for name in names:
    ours, theirs = np.asarray(results[name]), reference[prefix + name]
    assert random_weights.scaled_error(ours, theirs) < TOLERANCE, name


def test_the_reference_tells_versions_images_and_modes_apart(reference):
  eval15, eval1 = reference['v1.5/eval/logits'], reference['v1/eval/logits']
  assert random_weights.scaled_error(eval15, eval1) > 0.1
  assert random_weights.scaled_error(eval15[0], eval15[1]) > 0.1
  assert random_weights.scaled_error(reference['v1.5/train/logits'], eval15) > 0.1


def test_initial_weights_are_kaiming_fan_out():
  model = resnet.ResNet(stage_sizes=(1,))
  x = np.zeros((1, 32, 32, 3), np.float32)
  variables = jax.jit(lambda key: model.init(key, x, train=False))(jax.random.key(0))
  flat = traverse_util.flatten_dict(variables['params'], sep='/')
  for name, shape in {'conv1': (7, 7, 3, 64), 'layer1_0/conv2': (3, 3, 64, 64),
                      'layer1_0/conv3': (1, 1, 64, 256)}.items():
    kernel = np.asarray(flat[f'{name}/kernel'])
    assert kernel.shape == shape
    deviation = math.sqrt(2 / (shape[0] * shape[1] * shape[3]))
    assert kernel.std() == pytest.approx(deviation, rel=0.03)
    # A normal cut at two deviations, the usual one in Flax, would have none out there.
    assert np.mean(np.abs(kernel) > 2.5 * deviation) == pytest.approx(0.0124, abs=0.004)


@pytest.mark.parametrize('basic_blocks', [False, True])
def test_statistics_are_those_of_all_devices(basic_blocks):
  alone = resnet.ResNet(stage_sizes=(1, 1), basic_blocks=basic_blocks)
  synchronised = alone.clone(axis_name='devices')
  images = random_weights.images(1, (4, 32, 32, 3))
  # Initialised outside the axis, as a program does before it maps its step.
  variables = random_weights.variables(synchronised, images.shape)

  @jax.jit
  def run(variables, images):
    train = {'train': True, 'mutable': ['batch_stats']}
    whole = alone.apply(variables, images, **train)
    shards = jax.vmap(lambda x: synchronised.apply(variables, x, **train),
                      axis_name='devices')(images.reshape(2, 2, 32, 32, 3))
    evaluated = [m.apply(variables, images, train=False) for m in (alone, synchronised)]
    return whole, shards, evaluated

  with jax.enable_x64(True):
    inputs = jax.tree.map(lambda x: x.astype(np.float64), (variables, images))
    (features, updates), (shards, updates_of_shards), evaluated = run(*inputs)
  np.testing.assert_allclose(shards.reshape(4, -1), features, rtol=1e-9, atol=1e-9)
  for ours, full in zip(jax.tree.leaves(updates_of_shards), jax.tree.leaves(updates),
                        strict=True):
    np.testing.assert_allclose(ours, np.stack([full, full]), rtol=1e-9, atol=1e-9)
  np.testing.assert_allclose(*evaluated, rtol=1e-9)


def test_mistakes_are_named():
  with pytest.raises(errors.UsageError, match='--feature=logit is unknown.*pooled'):
    shapes_of(resnet.ResNet(feature='logit'), (1, 32, 32, 3))
  with pytest.raises(errors.UsageError, match=r'\(1, 32, 32, 1\).*--backbone=compact'):
    shapes_of(resnet.ResNet(), (1, 32, 32, 1))
