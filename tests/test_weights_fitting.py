"""Weights in our networks: names and layouts against torchvision's, refusals, the report."""

import functools

import jax
import numpy as np
import pytest
from flax import traverse_util

from mah_jax import errors
from mah_jax import models
from mah_jax.weights import files
from mah_jax.weights import fitting
from mah_jax.weights import pretrained


def resnet_shapes(bottleneck, blocks):
  """Names and shapes of a torchvision ResNet, written down from its definition."""
  shapes = {}

  def unit(conv, norm, inputs, outputs, size):
    shapes[f'{conv}.weight'] = (outputs, inputs, size, size)
    for kind in ('weight', 'bias', 'running_mean', 'running_var'):
      shapes[f'{norm}.{kind}'] = (outputs,)

  unit('conv1', 'bn1', 3, 64, 7)
  inputs = 64
  for stage, count in enumerate(blocks):
    width = 64 * 2**stage
    sizes = [(width, 1), (width, 3), (4 * width, 1)] if bottleneck else [(width, 3)] * 2
    for block in range(count):
      prefix, x = f'layer{stage + 1}.{block}', inputs
      for i, (outputs, size) in enumerate(sizes, start=1):
        unit(f'{prefix}.conv{i}', f'{prefix}.bn{i}', x, outputs, size)
        x = outputs
      if block == 0 and x != inputs:
        unit(f'{prefix}.downsample.0', f'{prefix}.downsample.1', inputs, x, 1)
      inputs = x
  return shapes | {'fc.weight': (1000, inputs), 'fc.bias': (1000,)}


def plain_shapes(convolutions, linear):
  """Names and shapes of AlexNet or VGG from (layer, out, in, size) and (layer, out, in)."""
  shapes = {}
  for layer, outputs, *rest in [*convolutions, *linear]:
    part = 'features' if len(rest) == 2 else 'classifier'
    inputs, *size = rest
    shapes[f'{part}.{layer}.weight'] = (outputs, inputs, *size, *size)
    shapes[f'{part}.{layer}.bias'] = (outputs,)
  return shapes


SHAPES = {
    'resnet18': resnet_shapes(False, (2, 2, 2, 2)),
    'resnet34': resnet_shapes(False, (3, 4, 6, 3)),
    'resnet50': resnet_shapes(True, (3, 4, 6, 3)),
    'alexnet': plain_shapes(
        [(0, 64, 3, 11), (3, 192, 64, 5), (6, 384, 192, 3), (8, 256, 384, 3),
         (10, 256, 256, 3)],
        [(1, 4096, 9216), (4, 4096, 4096), (6, 1000, 4096)]),
    'vgg11': plain_shapes(
        [(0, 64, 3, 3), (3, 128, 64, 3), (6, 256, 128, 3), (8, 256, 256, 3),
         (11, 512, 256, 3), (13, 512, 512, 3), (16, 512, 512, 3), (18, 512, 512, 3)],
        [(0, 4096, 25088), (3, 4096, 4096), (6, 1000, 4096)]),
}


@functools.cache
def abstract(backbone, feature):
  """Shapes of the variables of a backbone."""
  module = models.make_backbone(backbone, feature=feature, width=8, axis_name=None,
                                platform='cpu')
  return pretrained.variables_of(module, channels=3)


def make_weights(shapes, backbone='', seed=None):
  """Weights of these shapes; zeros that take no memory, or random ones."""
  rng = np.random.default_rng(seed)
  tensors = {name: np.broadcast_to(np.float32(0), shape) if seed is None
             else rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
  return files.Weights(tensors, backbone, (0.5,) * 3, (0.2,) * 3, 'folder/file.pth')


@pytest.mark.parametrize('backbone', ['resnet18', 'resnet50', 'alexnet', 'vgg11'])
def test_every_tensor_of_torchvision_has_a_variable(backbone):
  variables = abstract(backbone, 'logits')
  names = {fitting.torchvision_name(path) for path in traverse_util.flatten_dict(variables)}
  assert names == SHAPES[backbone].keys()


@pytest.fixture(scope='module', name='fitted')
def fitted_resnet18():
  weights = make_weights(SHAPES['resnet18'], seed=0)
  variables = abstract('resnet18', 'logits')
  found, report = fitting.fit(weights, variables, 'resnet18')
  return weights, variables, found, report


def test_the_structure_is_that_of_the_variables(fitted):
  _, variables, found, _ = fitted
  assert jax.tree.structure(found) == jax.tree.structure(variables)
  for ours, expected in zip(jax.tree.leaves(found), jax.tree.leaves(variables)):
    assert (ours.shape, ours.dtype) == (expected.shape, np.float32)


def test_layouts_number_by_number(fitted):
  weights, _, found, _ = fitted
  tensors, params, statistics = weights.tensors, found['params'], found['batch_stats']
  for out, inp, y, x in [(0, 1, 2, 3), (63, 2, 6, 0), (5, 0, 0, 6)]:
    assert params['conv1']['kernel'][y, x, inp, out] == (
        tensors['conv1.weight'][out, inp, y, x])
  assert params['layer2_0']['downsample_conv']['kernel'][0, 0, 7, 9] == (
      tensors['layer2.0.downsample.0.weight'][9, 7, 0, 0])
  assert params['fc']['kernel'][500, 3] == tensors['fc.weight'][3, 500]
  assert params['fc']['bias'][3] == tensors['fc.bias'][3]
  norms = {'scale': 'weight', 'bias': 'bias', 'mean': 'running_mean', 'var': 'running_var'}
  for kind, name in norms.items():
    tree = params if kind in ('scale', 'bias') else statistics
    np.testing.assert_array_equal(tree['layer3_1']['bn2'][kind],
                                  tensors[f'layer3.1.bn2.{name}'])
    np.testing.assert_array_equal(tree['layer2_0']['downsample_bn'][kind],
                                  tensors[f'layer2.0.downsample.1.{name}'])


def test_report(fitted):
  *_, report = fitted
  assert report.splitlines() == [
      'resnet18 starts from folder/file.pth: all of its 102 tensors, 11,699,112 numbers, '
      'were there.',
      'The file does not say which network it is of; its tensors fit resnet18.']


@pytest.mark.parametrize('backbone, top', [
    ('resnet18', 'fc.weight, fc.bias'), ('alexnet', 'classifier.6.weight, classifier.6.bias')])
def test_the_top_may_stay_unused(backbone, top):
  weights = make_weights(SHAPES[backbone], backbone)
  found, report = fitting.fit(weights, abstract(backbone, 'pooled'), backbone)
  assert len(jax.tree.leaves(found)) == len(SHAPES[backbone]) - 2
  first, second = report.splitlines()
  assert first.startswith(f'{backbone} starts from folder/file.pth: all of its ')
  assert second == f'{top} are not used, as the heads read what comes before.'


def test_the_file_names_another_backbone():
  weights = make_weights(SHAPES['resnet50'], 'resnet50_v1')
  with pytest.raises(errors.InputError, match='of resnet50_v1, not of resnet50: use '
                     '--backbone=resnet50_v1'):
    fitting.fit(weights, {}, 'resnet50')


def refusal(shapes, feature='pooled', backbone='resnet18', **changes):
  weights = make_weights(shapes)
  weights.tensors.update(changes)
  with pytest.raises(errors.InputError) as caught:
    fitting.fit(weights, abstract(backbone, feature), backbone)
  message = str(caught.value)
  assert message.startswith('folder/file.pth ') and '\n' not in message
  return message


def test_missing_tensors():
  shapes = dict(SHAPES['resnet18'])
  del shapes['layer1.0.conv1.weight'], shapes['bn1.running_mean']
  message = refusal(shapes)
  assert 'bn1.running_mean is missing in the file but [64] in the network' in message or (
      'layer1.0.conv1.weight is missing in the file but [64, 64, 3, 3] in the net' in message)
  assert 'and 1 other tensors differ' in message and '--backbone' in message


def test_other_shapes():
  shapes = SHAPES['resnet18'] | {'layer1.0.conv1.weight': (64, 64, 3, 1)}
  assert refusal(shapes) == (
      'folder/file.pth does not fit resnet18: layer1.0.conv1.weight is [64, 64, 3, 1] in the '
      'file but [64, 64, 3, 3] in the network, and 0 other tensors differ; use the --backbone '
      'that the file is of, or another file.')


@pytest.mark.parametrize('file, backbone', [
    ('resnet50', 'resnet18'), ('alexnet', 'resnet18'), ('vgg11', 'alexnet'),
    ('resnet18', 'compact')])
def test_weights_of_another_network(file, backbone):
  assert f'does not fit {backbone}' in refusal(SHAPES[file], backbone=backbone)


def test_layers_of_a_deeper_network_are_not_ignored():
  assert SHAPES['resnet18'].items() <= SHAPES['resnet34'].items()
  message = refusal(SHAPES['resnet34'])
  assert 'layer1.2.conv1.weight is [64, 64, 3, 3] in the file but missing in' in message


def test_a_top_of_other_classes():
  shapes = SHAPES['resnet18'] | {'fc.weight': (10, 512), 'fc.bias': (10,)}
  fitting.fit(make_weights(shapes), abstract('resnet18', 'pooled'), 'resnet18')
  assert 'use --feature=pooled' in refusal(shapes, 'logits')
  del shapes['fc.weight'], shapes['fc.bias']
  fitting.fit(make_weights(shapes), abstract('resnet18', 'pooled'), 'resnet18')
  assert 'use --feature=pooled' in refusal(shapes, 'logits')


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(value):
  bad = np.zeros(64, np.float32)
  bad[7] = value
  assert 'bn1.running_var that are not finite' in refusal(
      SHAPES['resnet18'], **{'bn1.running_var': bad})
  unused = np.full(1000, value, np.float32)
  weights = make_weights(SHAPES['resnet18'])
  weights.tensors['fc.bias'] = unused
  fitting.fit(weights, abstract('resnet18', 'pooled'), 'resnet18')
