"""The backbones by name: sizes, limits, dropout, and outputs that PyTorch gave."""

import math
import pathlib

import flax_models
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_weights
from flax import linen as nn
from flax import traverse_util

from mah_jax import errors
from mah_jax import models
from mah_jax.models import dropout
from mah_jax.models import imagenet

COMPACT = (2 * 2 * 3 * 24  # stem, without bias as all its convolutions
           + 9 * (24 * 64 + 64 * 64) + 4 * 64  # two convolutions, two pairs of scale and bias
           + 9 * (64 * 256 + 256 * 256) + 4 * 256
           + 9 * (256 * 256 + 256 * 256) + 4 * 256)
# The columns are parameters (with the 1000-way top where there is one), D of the pooled feature
# and least pixels.
BACKBONES = {
    'resnet18': (11_689_512, 512, 1),
    'resnet34': (21_797_672, 512, 1),
    'resnet50': (25_557_032, 2048, 1),
    'resnet50_v1': (25_557_032, 2048, 1),
    'alexnet': (61_100_840, 4096, 63),
    'vgg11': (132_863_336, 4096, 32),
    'vgg16': (138_357_544, 4096, 32),
    'compact': (COMPACT, 256, 8),
}
TORCHVISION = [name for name in BACKBONES if name != 'compact']
# These are the kernels of the networks without batch norm; each layer has a bias too.
CLASSIFIER_VGG = {'classifier_0': (512 * 7 * 7, 4096), 'classifier_3': (4096, 4096),
                  'classifier_6': (4096, 1000)}
KERNELS = {
    'alexnet': {
        'features_0': (11, 11, 3, 64), 'features_3': (5, 5, 64, 192),
        'features_6': (3, 3, 192, 384), 'features_8': (3, 3, 384, 256),
        'features_10': (3, 3, 256, 256), 'classifier_1': (256 * 6 * 6, 4096),
        'classifier_4': (4096, 4096), 'classifier_6': (4096, 1000)},
    'vgg11': CLASSIFIER_VGG | {
        f'features_{layer}': (3, 3, inputs, outputs) for layer, inputs, outputs in (
            (0, 3, 64), (3, 64, 128), (6, 128, 256), (8, 256, 256), (11, 256, 512),
            (13, 512, 512), (16, 512, 512), (18, 512, 512))},
    'vgg16': CLASSIFIER_VGG | {
        f'features_{layer}': (3, 3, inputs, outputs) for layer, inputs, outputs in (
            (0, 3, 64), (2, 64, 64), (5, 64, 128), (7, 128, 128), (10, 128, 256),
            (12, 256, 256), (14, 256, 256), (17, 256, 512), (19, 512, 512), (21, 512, 512),
            (24, 512, 512), (26, 512, 512), (28, 512, 512))},
}
# The values list the parts of torchvision's `classifier`.
CLASSIFIERS = {'alexnet': ('drop', 'dense', 'relu', 'drop', 'dense', 'relu', 'dense'),
               'vgg11': ('dense', 'relu', 'drop', 'dense', 'relu', 'drop', 'dense')}


def shapes_of(name, feature, images_shape):
  """Shapes of the output and of all variables, by path."""
  output, variables = jax.eval_shape(
      lambda x: flax_models.make(name, feature).init_with_output(
          jax.random.key(0), x, train=False),
      jax.ShapeDtypeStruct(images_shape, np.float32))
  flat = traverse_util.flatten_dict(variables, sep='/')
  return output.shape, {path: leaf.shape for path, leaf in flat.items()}


@pytest.mark.parametrize('name', models.BACKBONES)
def test_size_and_width(name):
  num_parameters, d, pixels = BACKBONES[name]
  top = 'logits' if name in TORCHVISION else 'pooled'
  output, shapes = shapes_of(name, top, (2, 64, 64, 3))
  assert output == (2, 1000 if name in TORCHVISION else d)
  assert num_parameters == sum(
      math.prod(shape) for path, shape in shapes.items() if path.startswith('params/'))
  assert shapes_of(name, 'pooled', (3, pixels, 97, 3))[0] == (3, d)


@pytest.mark.parametrize('name', KERNELS)
def test_parts_are_named_as_in_torchvision(name):
  _, shapes = shapes_of(name, 'logits', (2, 64, 64, 3))
  kernels = {f'params/{part}/kernel': shape for part, shape in KERNELS[name].items()}
  biases = {f'params/{part}/bias': shape[-1:] for part, shape in KERNELS[name].items()}
  assert shapes == kernels | biases
  _, without_top = shapes_of(name, 'pooled', (2, 64, 64, 3))
  assert shapes.keys() - without_top.keys() == {
      'params/classifier_6/kernel', 'params/classifier_6/bias'}


@pytest.mark.parametrize('name', [name for name, row in BACKBONES.items() if row[2] > 1])
def test_small_images_are_refused(name):
  least = BACKBONES[name][2]
  for h, w in ((least - 1, least), (least, least - 1)):
    with pytest.raises(errors.UsageError,
                       match=f'{h} x {w} pixels; use --image_size={least} or more'):
      shapes_of(name, 'pooled', (1, h, w, 3))


@pytest.mark.parametrize('name', TORCHVISION)
def test_mistakes_are_named(name):
  with pytest.raises(errors.UsageError, match='--feature=logit is unknown.*pooled, logits'):
    shapes_of(name, 'logit', (1, 64, 64, 3))
  with pytest.raises(errors.UsageError, match=r'\(1, 64, 64, 1\).*--backbone=compact'):
    shapes_of(name, 'pooled', (1, 64, 64, 1))


@pytest.mark.parametrize('name', models.BACKBONES)
def test_a_backbone_gets_what_is_asked_for(name):
  backbone = models.make_backbone(
      name, feature='pooled', width=5, axis_name='d', platform='gpu')
  assert (backbone.axis_name, backbone.platform) == ('d', 'gpu')
  assert getattr(backbone, 'feature', 'pooled') == 'pooled'
  assert hasattr(backbone, 'width') == models.BACKBONES[name].has_width


def test_the_default_is_a_backbone():
  assert models.DEFAULT in models.BACKBONES


@pytest.mark.parametrize('h, w, k', [(1, 1, 6), (2, 3, 7), (6, 6, 6), (13, 9, 6), (7, 15, 7)])
def test_adaptive_pooling_equals_the_loops(h, w, k):
  x = random_weights.images(0, (2, h, w, 3))
  expected = np.zeros((2, 3, k, k))
  for i in range(k):
    for j in range(k):
      rows = slice(math.floor(i * h / k), math.ceil((i + 1) * h / k))
      columns = slice(math.floor(j * w / k), math.ceil((j + 1) * w / k))
      expected[:, :, i, j] = x[:, rows, columns].mean(axis=(1, 2), dtype=np.float64)
  np.testing.assert_allclose(imagenet.flat_grid(x, k), expected.reshape(2, -1), atol=1e-6)


def test_initial_weights_of_fully_connected_layers():
  params = imagenet.Dense(300).init(jax.random.key(0), np.zeros((1, 200)))['params']
  assert np.std(params['kernel']) == pytest.approx(0.01, rel=0.03)
  assert not np.any(params['bias'])


@pytest.fixture(scope='module', params=['resnet18', 'alexnet', 'vgg11'])
def drawn(request):
  """A network's name and random weights; one at a time, for they are large."""
  variables = random_weights.variables(flax_models.make(request.param), (1, 64, 64, 3))
  return request.param, jax.device_put(variables)


def test_evaluation_agrees_with_pytorch(drawn):
  name, variables = drawn
  path = pathlib.Path(__file__).parent / 'data' / 'backbones_reference.npz'
  with np.load(path) as reference:
    images = random_weights.images(int(reference['seed']), tuple(reference['shape']))
    results = flax_models.run(name, variables, images)
    logits, pooled = reference[f'{name}/logits'], reference[f'{name}/pooled']
  assert random_weights.scaled_error(results['logits'], logits) < 1e-4
  assert random_weights.scaled_error(results['pooled'][:, :pooled.shape[1]], pooled) < 1e-4
  assert random_weights.scaled_error(logits[:1], logits[1:]) > 0.1


@pytest.mark.parametrize('drawn', CLASSIFIERS, indirect=True)
def test_dropout_is_where_torchvision_has_it(drawn):
  name, variables = drawn

  @jax.jit
  def run(variables, images):
    keys = {'dropout': jax.random.key(1)}
    pooled = flax_models.make(name, 'pooled').apply(variables, images, train=True, rngs=keys)
    _, captured = flax_models.make(name).apply(
        variables, images, train=True, rngs=keys, capture_intermediates=True)
    return pooled, captured['intermediates']

  pooled, captured = run(variables, random_weights.images(0, (2, 64, 64, 3)))
  outputs = {part: np.asarray(value['__call__'][0]) for part, value in captured.items()
             if part.startswith('classifier_')}
  x = outputs['classifier_0']
  for i, kind in list(enumerate(CLASSIFIERS[name]))[1:]:
    if kind == 'relu':
      x = np.maximum(x, 0)
    elif kind == 'dense':
      weights = variables['params'][f'classifier_{i}']
      x = x @ np.asarray(weights['kernel']) + np.asarray(weights['bias'])
      np.testing.assert_allclose(outputs[f'classifier_{i}'], x, rtol=1e-4, atol=1e-4 * x.std())
    else:
      kept = outputs[f'classifier_{i}'] != 0
      assert kept[x > 0].mean() == pytest.approx(0.5, abs=0.05)
      x = np.where(kept, 2 * x, 0)
      np.testing.assert_allclose(outputs[f'classifier_{i}'], x, rtol=1e-4, atol=1e-4 * x.std())
  second = max(i for i in range(5) if CLASSIFIERS[name][i] == 'dense')
  np.testing.assert_allclose(pooled, np.maximum(outputs[f'classifier_{second}'], 0), rtol=1e-5)


@pytest.mark.parametrize('name', CLASSIFIERS)
def test_every_dropout_knows_the_axis_of_the_devices(name):
  module, called = flax_models.make(name, axis_name='devices'), []
  images = jax.ShapeDtypeStruct((2, 64, 64, 3), np.float32)
  variables = jax.eval_shape(lambda x: module.init(jax.random.key(0), x, train=False), images)

  def note(call, args, kwargs, context):
    called.append(context.module)
    return call(*args, **kwargs)

  with nn.intercept_methods(note):
    jax.eval_shape(jax.vmap(lambda variables, x: module.apply(
        variables, x, train=True, rngs={'dropout': jax.random.key(1)}),
        (None, 0), axis_name='devices'),
        variables, jax.ShapeDtypeStruct((3, *images.shape), np.float32))
  dropouts = [made for made in called if isinstance(made, dropout.Dropout)]
  assert [(made.rate, made.axis_name) for made in dropouts] == [(0.5, 'devices')] * 2


class TwoDropouts(nn.Module):
  """Two layers, one after the other, that read the same values."""

  rate: float
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x, train):
    return [dropout.Dropout(self.rate, self.axis_name)(x, train) for _ in range(2)]


def test_dropout_keeps_the_rate_and_the_mean():
  x, rate = jnp.ones((8, 5000)), 0.25
  def drop(seed):
    keys = {'dropout': jax.random.key(seed)}
    return np.stack(TwoDropouts(rate).apply({}, x, train=True, rngs=keys))
  y = drop(0)
  assert set(np.unique(y)) == {0.0, np.float32(1 / (1 - rate))}
  assert np.mean(y == 0, axis=2) == pytest.approx(rate, abs=0.03)  # per layer and image
  assert y.mean() == pytest.approx(1.0, abs=0.01)
  masks = np.concatenate([y, drop(1)]).reshape(-1, 5000)
  assert len(np.unique(masks, axis=0)) == 2 * 2 * 8  # keys, layers, images
  np.testing.assert_array_equal(y, drop(0))


def test_dropout_does_nothing_in_evaluation():
  x = random_weights.images(0, (3, 50))
  for y in TwoDropouts(0.5).apply({}, x, train=False):
    np.testing.assert_array_equal(y, x)


def test_dropout_is_the_same_on_any_number_of_devices():
  d = 4
  x = random_weights.images(0, (8, 300))
  keys = {'dropout': jax.random.key(3)}
  expected = TwoDropouts(0.5).apply({}, x, train=True, rngs=keys)
  mapped = jax.pmap(
      lambda x: TwoDropouts(0.5, 'devices').apply({}, x, train=True, rngs=keys),
      axis_name='devices', devices=jax.devices()[:d])
  for y, whole in zip(mapped(x.reshape(d, 8 // d, 300)), expected, strict=True):
    np.testing.assert_array_equal(y.reshape(8, 300), whole)
