"""The backbones against PyTorch in float64, given the same random weights."""

import flax_models
import pytest
import random_weights
from flax import traverse_util

from mah_jax import models

torch = pytest.importorskip('torch')
import torch_models  # noqa: E402, it imports torch

TOLERANCE = 1e-4  # largest difference over the standard deviation of the reference
SHAPE = (2, 96, 128, 3)  # not square, so that height and width cannot be swapped unseen


def test_every_backbone_of_torchvision_has_a_reference():
  assert torch_models.NETWORKS.keys() == {
      name for name, backbone in models.BACKBONES.items() if not backbone.has_width}


@pytest.mark.parametrize('name', torch_models.NETWORKS)
def test_evaluation_agrees_with_pytorch(name):
  images = random_weights.images(0, SHAPE)
  variables = random_weights.variables(flax_models.make(name), SHAPE)
  flat = traverse_util.flatten_dict(variables, sep='/')
  expected = torch_models.run(torch_models.make(name, flat, torch.float64).eval(), images)
  results = flax_models.run(name, variables, images)
  for kind in ('pooled', 'logits'):
    assert random_weights.scaled_error(results[kind], expected[kind]) < TOLERANCE, kind
  assert random_weights.scaled_error(expected['logits'][:1], expected['logits'][1:]) > 0.1
