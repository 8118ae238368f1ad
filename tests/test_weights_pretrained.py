"""Weights from a file as the start of a backbone."""

import jax
import numpy as np
import pytest
from flax import traverse_util

from mah_jax import errors
from mah_jax import models
from mah_jax.weights import files
from mah_jax.weights import fitting
from mah_jax.weights import pretrained


@pytest.fixture(scope='module', name='module')
def small_backbone():
  return models.make_backbone('compact', feature='pooled', width=4, axis_name=None,
                              platform='cpu')


@pytest.mark.parametrize('channels', [1, 3])
def test_the_variables_are_shapes_for_these_images(channels, module):
  variables = pretrained.variables_of(module, channels)
  assert variables.keys() == {'params', 'batch_stats'}
  leaves = jax.tree.leaves(variables)
  assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
  assert variables['params']['stem']['kernel'].shape[2] == channels


def test_a_file_is_read_and_fitted(module, tmp_path, monkeypatch):
  variables = pretrained.variables_of(module, 3)
  tensors = {fitting.torchvision_name(name): np.ones(fitting._to_torch(leaf.shape), np.float32)
             for name, leaf in traverse_util.flatten_dict(variables).items()}
  monkeypatch.setenv('HOME', str(tmp_path))
  path = tmp_path / 'a.safetensors'
  files.write(path, files.Weights(tensors, 'compact', (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), path))
  start = pretrained.load('~/a.safetensors', 'compact', module, 3)
  assert jax.tree.structure(start.variables) == jax.tree.structure(variables)
  assert jax.tree.map(np.shape, start.variables) == jax.tree.map(lambda x: x.shape, variables)
  assert (start.mean, start.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
  assert start.report.startswith(f'compact starts from {path}: all of its ')
  with pytest.raises(errors.InputError, match='weights of compact, not of resnet18'):
    pretrained.load(str(path), 'resnet18', module, 3)


def test_a_file_that_is_not_there_names_the_command(module):
  with pytest.raises(errors.InputError) as caught:
    pretrained.load('no/such.pth', 'compact', module, 3)
  assert str(caught.value) == ('--pretrained=no/such.pth does not exist: correct the path; python '
                               '-m mah_jax.data.fetch resnet50 gets some.')
