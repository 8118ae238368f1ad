"""The backbones of the project, run as tests/torch_models.py runs those in PyTorch."""

from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util

from mah_jax import models


def make(name: str, feature: str = 'logits', axis_name: str | None = None) -> nn.Module:
  """A backbone by its name; the compact network has the default width."""
  return models.make_backbone(name, feature=feature, width=64, axis_name=axis_name,
                              platform='cpu')


def run(name: str, variables: dict[str, Any], images: np.ndarray,
        train: bool = False) -> dict[str, np.ndarray]:
  """Pooled features, logits and, after training mode, the new running statistics."""

  @jax.jit
  def outputs(variables, images):
    logits, updates = make(name, 'logits').apply(
        variables, images, train=train, mutable=['batch_stats'])
    pooled, _ = make(name, 'pooled').apply(
        variables, images, train=train, mutable=['batch_stats'])
    statistics = updates['batch_stats'] if train else {}
    return {'pooled': pooled, 'logits': logits,
            **traverse_util.flatten_dict(statistics, sep='/')}

  return {key: np.asarray(value) for key, value in outputs(variables, images).items()}
