"""ResNets against outputs of PyTorch, stored by benchmarks/models_torch.py."""

import math
import pathlib

import flax_models
import jax
import numpy as np
import pytest
import random_weights
from flax import traverse_util

from mah_jax.models import resnet

TOLERANCE = 1e-4  # largest difference over the standard deviation of the reference
VERSIONS = {'v1.5': False, 'v1': True}  # of ResNet-50
# The columns are blocks per stage, and width of the output over that of the block.
NETWORKS = {
    'resnet18': ((2, 2, 2, 2), 1),
    'resnet34': ((3, 4, 6, 3), 1),
    'resnet50': ((3, 4, 6, 3), 4),
    'resnet50_v1': ((3, 4, 6, 3), 4),
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


@pytest.mark.parametrize('name', NETWORKS)
def test_parts_are_named_as_in_torchvision(name):
  variables = jax.eval_shape(
      lambda x: flax_models.make(name).init(jax.random.key(0), x, train=False),
      jax.ShapeDtypeStruct((2, 64, 64, 3), np.float32))
  flat = traverse_util.flatten_dict(variables, sep='/')
  assert {path: leaf.shape for path, leaf in flat.items()} == torchvision_shapes(*NETWORKS[name])


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
  # The numbers are float64: eight values per channel in the last stage magnify rounding.
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
  model = resnet.ResNet(stage_sizes=())  # the first convolution alone
  x = np.zeros((1, 32, 32, 3), np.float32)
  kernel = jax.jit(lambda key: model.init(key, x, train=False)['params']['conv1']['kernel'])(
      jax.random.key(0))
  deviation = math.sqrt(2 / (7 * 7 * 64))
  assert kernel.std() == pytest.approx(deviation, rel=0.03)
  # Flax's usual normal, which is cut at two deviations, would have no values out there.
  assert np.mean(np.abs(kernel) > 2.5 * deviation) == pytest.approx(0.0124, abs=0.004)


@pytest.mark.parametrize('kind', [
    {'stride_on_1x1': True}, {'stride_on_1x1': False}, {'basic_blocks': True}], ids=str)
@pytest.mark.parametrize('stages', [1, 2, 3])
def test_maps_take_the_place_of_images_and_of_their_mirror_images(kind, stages):
  """The sides are odd and even on the way, so that a map of v1 must keep the right pixels."""
  module = resnet.ResNet(stage_sizes=(1, 1, 2, 1), frozen_stages=stages, **kind)
  images = random_weights.images(0, (2, 42, 42, 3))
  variables = random_weights.variables(module, images.shape)
  maps = module.apply(variables, images, method='maps')
  for view, seen in enumerate((images, images[:, :, ::-1])):
    expected = module.apply(variables, seen, train=False)
    got = module.apply(variables, maps[:, view], train=False)
    assert random_weights.scaled_error(got, expected) < TOLERANCE
  assert random_weights.scaled_error(got, module.apply(variables, images, train=False)) > 0.1
