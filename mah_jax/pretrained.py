"""What a backbone starts from: a file of weights or the network of another run."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax.train import checkpoint
from mah_jax.train import step as step_lib
from mah_jax.weights import files
from mah_jax.weights import fitting

IMAGE_SIDE = 224  # any that all backbones accept, as no weight depends on it


class Pretrained(NamedTuple):
  """Weights for a backbone.

  variables: by collection, 'params' and, where the backbone has them, 'batch_stats'.
  mean, std: how the images were normalised that the weights were trained on.
  report: what was found in the file and what became of it, for a person.
  """
  variables: dict[str, Any]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  report: str


def load(config: config_lib.Config, backbone: nn.Module, channels: int,
         devices: step_lib.Devices) -> Pretrained:
  """Reads --pretrained weights for a backbone that sees images with so many channels."""
  image = jnp.zeros((1, IMAGE_SIDE, IMAGE_SIDE, channels))
  variables = jax.eval_shape(
      functools.partial(backbone.init, train=False), jax.random.key(0), image)
  path = pathlib.Path(os.path.expanduser(config.pretrained))
  if not path.exists():
    raise errors.InputError(f'--pretrained={config.pretrained} does not exist. ImageNet weights '
                            'for --backbone=resnet50_v1 come with: python -m mah_jax.data.fetch '
                            'resnet50')
  if (path / 'config.json').is_file():
    return _from_run(path, config, variables, channels, devices)
  weights = files.read(path)
  fitted, report = fitting.fit(weights, variables, config.backbone)
  return Pretrained(fitted, weights.mean, weights.std, report)


def _from_run(path: pathlib.Path, config: config_lib.Config, variables: dict[str, Any],
              channels: int, devices: step_lib.Devices) -> Pretrained:
  """The backbone in the newest checkpoint of a run."""
  flags = config_lib.saved_flags(path)
  for name in ('backbone', 'width', 'feature'):
    if flags.get(name) != getattr(config, name):
      raise errors.InputError(f'The run in {path} has --{name}={flags.get(name)}, not '
                              f'{getattr(config, name)}: use its value, or other weights.')
  with contextlib.closing(checkpoint.Checkpoints(path / 'checkpoints')) as saved:
    step, reports = saved.newest()
    pixels = saved.meta(step)['pixels']
    if pixels['channels'] != channels:
      raise errors.InputError(f'The network of the run in {path} reads images with '
                              f'{pixels["channels"]} channels; these have {channels}.')
    template = {name: {'backbone': part} for name, part in variables.items()}
    restored = saved.restore_part(step, devices.abstract(template))
  found = {name: part['backbone'] for name, part in restored.items()}
  reports.append(f'Starting from the backbone of {path} after {step} steps; the heads are new.')
  return Pretrained(found, tuple(pixels['mean']), tuple(pixels['std']), ' '.join(reports))
