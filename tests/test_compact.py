"""The compact network against loops over pixels, and its size."""

import math

import jax
import numpy as np
import pytest
import random_weights
from flax import traverse_util

from mah_jax.models import compact


def convolve(x, kernel):
  """Stride one; the odd pixel of padding, if any, is below and to the right."""
  b, h, w, _ = x.shape
  size = len(kernel)
  before = (size - 1) // 2
  padded = np.zeros((b, h + size - 1, w + size - 1, x.shape[3]))
  padded[:, before:before + h, before:before + w] = x
  y = np.zeros((b, h, w, kernel.shape[3]))
  for i in range(h):
    for j in range(w):
      patch = padded[:, i:i + size, j:j + size]
      y[:, i, j] = np.tensordot(patch, kernel, axes=3)
  return y


def pool(x):
  b, h, w, channels = x.shape
  y = np.zeros((b, h // 2, w // 2, channels))
  for i in range(h // 2):
    for j in range(w // 2):
      y[:, i, j] = x[:, 2 * i:2 * i + 2, 2 * j:2 * j + 2].max(axis=(1, 2))
  return y


def gelu(x):
  return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def normalise(x, weights, name):
  mean, var = (weights[f'batch_stats/{name}/{kind}'] for kind in ('mean', 'var'))
  scale, bias = (weights[f'params/{name}/{kind}'] for kind in ('scale', 'bias'))
  return (x - mean) / np.sqrt(var + 1e-5) * scale + bias


def slow_forward(weights, images):
  x = gelu(convolve(images, weights['params/stem/kernel']))
  for block in ('block1', 'block2', 'block3'):
    x = pool(convolve(x, weights[f'params/{block}/conv1/kernel']))
    x = gelu(normalise(x, weights, f'{block}/bn1'))
    x = convolve(x, weights[f'params/{block}/conv2/kernel'])
    x = gelu(normalise(x, weights, f'{block}/bn2'))
  return x.max(axis=(1, 2))


@pytest.mark.parametrize('shape', [(2, 8, 8, 1), (2, 17, 22, 3)])
def test_features_equal_the_loops(shape):
  model = compact.Compact(width=3)
  images = random_weights.images(0, shape)
  variables = random_weights.variables(model, shape)
  expected = slow_forward(traverse_util.flatten_dict(variables, sep='/'), images)
  features = jax.jit(lambda v, x: model.apply(v, x, train=False))(variables, images)
  assert random_weights.scaled_error(np.asarray(features), expected) < 1e-5


@pytest.mark.parametrize('pixels, channels', [(8, 1), (64, 3)])
def test_shapes_and_size(pixels, channels):
  w = 16
  model = compact.Compact(width=w)
  x = jax.ShapeDtypeStruct((5, pixels, pixels, channels), np.float32)
  features, variables = jax.eval_shape(
      lambda x: model.init_with_output(jax.random.key(0), x, train=True), x)
  assert features.shape == (5, 4 * w)
  convolutions = 4 * channels * 24 + 9 * (
      24 * w + w * w + w * 4 * w + 3 * (4 * w) * (4 * w))
  norms = 2 * 2 * (w + 4 * w + 4 * w)  # scale and bias, twice per block
  leaves = jax.tree.leaves(variables['params'])
  assert sum(leaf.size for leaf in leaves) == convolutions + norms
