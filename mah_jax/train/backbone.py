"""The backbone that a Config describes, and the weights that it starts from."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from flax import linen as nn

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import models
from mah_jax import storage
from mah_jax.train import checkpoint
from mah_jax.train import step as step_lib
from mah_jax.weights import files
from mah_jax.weights import pretrained


def make(config: config_lib.Config, platform: str) -> nn.Module:
  """The module, for devices of a platform."""
  return models.make_backbone(config.backbone, feature=config.feature, width=config.width,
                              axis_name=step_lib.AXIS, platform=platform,
                              synchronise=config.batch_norm == 'global',
                              frozen_stages=config.frozen_stages)


def resolve(config: config_lib.Config, saved: Mapping[str, Any] | None) -> config_lib.Config:
  """Names the backbone where the Config leaves it open.

  Args:
    config: its --backbone may be empty.
    saved: the flags of the run that is resumed, if there is one; they decide.

  Returns:
    The Config with a backbone: the saved run's, else the one that the weights are of, else the
    default.
  """
  if config.backbone:
    return config
  name = (saved or {}).get('backbone', '')
  if not name and config.pretrained:
    path = storage.path(config.pretrained)
    flags = _run_flags(path)
    name = flags['backbone'] if flags else files.backbone_of(path) if path.exists() else ''
  return dataclasses.replace(config, backbone=name or models.DEFAULT)


def load(config: config_lib.Config, module: nn.Module, channels: int,
         devices: step_lib.Devices) -> pretrained.Pretrained:
  """Reads --pretrained weights for a backbone that sees images with so many channels."""
  path = storage.path(config.pretrained)
  if _run_flags(path) is None:
    return pretrained.load(config.pretrained, config.backbone, module, channels)
  return _from_run(path, config, module, channels, devices)


def find(config: config_lib.Config, channels: int, platform: str) -> str:
  """Says what the backbone starts from; weights are read for it, those of a run looked for."""
  module = make(config, platform)
  if not config.pretrained:
    return f'--pretrained is empty: {config.backbone} starts from random numbers.'
  path = storage.path(config.pretrained)
  if _run_flags(path) is None:
    return pretrained.load(config.pretrained, config.backbone, module, channels).report
  _check_run(path, config)
  if not any((path / 'checkpoints').glob('*')):
    raise errors.InputError(f'The run in {path} has no checkpoint: train it, or name other '
                            'weights.')
  return f'{config.backbone} starts from the run in {path}.'


def _run_flags(path: pathlib.Path) -> dict[str, Any] | None:
  """The flags of the run in a folder, or None where there is no run."""
  return config_lib.saved_flags(path) if (path / 'config.json').is_file() else None


def _check_run(path: pathlib.Path, config: config_lib.Config):
  """Refuses the run in a folder if its backbone is another."""
  flags = _run_flags(path)
  for name in ('backbone', 'width', 'feature'):
    if flags.get(name) != getattr(config, name):
      raise errors.InputError(f'The run in {path} has --{name}={flags.get(name)}, not '
                              f'{getattr(config, name)}: use its value, or other weights.')


def _from_run(path: pathlib.Path, config: config_lib.Config, module: nn.Module,
              channels: int, devices: step_lib.Devices) -> pretrained.Pretrained:
  """The backbone in the newest checkpoint of a run."""
  _check_run(path, config)
  with contextlib.closing(checkpoint.Checkpoints(path / 'checkpoints', devices)) as saved:
    step, reports = saved.newest()
    pixels = saved.meta(step)['pixels']
    if pixels['channels'] != channels:
      raise errors.InputError(f'The network of the run in {path} reads images with '
                              f'{pixels["channels"]} channels; these have {channels}.')
    variables = pretrained.variables_of(module, channels)
    template = {name: {'backbone': part} for name, part in variables.items()}
    restored = saved.restore_part(step, template)
  start = {name: part['backbone'] for name, part in restored.items()}
  reports.append(f'Starting from the backbone of {path} after {step} steps; the heads are new.')
  return pretrained.Pretrained(start, tuple(pixels['mean']), tuple(pixels['std']),
                               ' '.join(reports))
