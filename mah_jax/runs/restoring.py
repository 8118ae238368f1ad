"""The hasher of a run folder, as it was when the run ended or was stopped."""

from __future__ import annotations

import contextlib
import dataclasses

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax.runs import folder as folder_lib
from mah_jax.train import checkpoint
from mah_jax.train import hasher as hasher_lib
from mah_jax.train import model
from mah_jax.train import step as step_lib


def hasher(config: config_lib.Config, platform: str = '') -> hasher_lib.Hasher:
  """The hasher in --workdir, on the devices that are there; `platform` as in `step.Devices`."""
  folder = folder_lib.RunFolder(config.workdir)
  devices = step_lib.pick_devices(config.num_devices)
  config = dataclasses.replace(config, batch_size=step_lib.round_up(config.batch_size, devices))
  work = _of_network if config.spec.trains_network else _of_features
  with folder.opened(shared=True):
    return work(config, step_lib.Devices(devices, config.batch_size, platform), folder)


def _of_network(config: config_lib.Config, devices: step_lib.Devices,
                folder: folder_lib.RunFolder) -> hasher_lib.Hasher:
  with contextlib.closing(checkpoint.Checkpoints(folder.checkpoints, devices)) as checkpoints:
    step, reports = checkpoints.newest()
    for report in reports:
      console.say(report)
    return hasher_lib.of_network(config, devices, checkpoints, step)


def _of_features(config: config_lib.Config, devices: step_lib.Devices,
                 folder: folder_lib.RunFolder) -> hasher_lib.Hasher:
  return hasher_lib.of_features(config, devices, model.read(folder.model, config))
