"""--mode=evaluate: a checkpoint or, where none was kept, the codes of a run are scored again."""

from __future__ import annotations

import contextlib
import dataclasses
import time

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax.data import datasets
from mah_jax.modes import train
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import results
from mah_jax.runs import table
from mah_jax.train import checkpoint
from mah_jax.train import dataset
from mah_jax.train import step as step_lib
from mah_jax.train import trainer as trainer_lib


def evaluate(config: config_lib.Config):
  """Scores the run in --workdir and writes its results anew."""
  folder = folder_lib.RunFolder(config.workdir)
  with console.StopRequest('Stopped; results.json is what it was.'), folder.opened():
    if folder.has_codes_only or not config.spec.trains_network:
      data = dataset.load(config)
      if not data.is_labelled:
        raise errors.InputError(f'The run in {folder.path} cannot be scored, as its images have no '
                                'labels.')
      outcome = results.read_codes(folder, config, data)
      console.pause()
      written = results.write_scores(folder, config, data, outcome)
    else:
      devices = step_lib.pick_devices(config.num_devices)
      config = dataclasses.replace(
          config, batch_size=step_lib.round_up(config.batch_size, devices))
      data = dataset.load(config)
      outcome = _encode_anew(config, data, step_lib.Devices(devices, config.batch_size), folder)
      console.pause()
      written = results.write(folder, config, data, outcome)
    table.say(written)
    console.say(f'Written to {folder.path}.')


def _encode_anew(config: config_lib.Config, data: datasets.Dataset, devices: step_lib.Devices,
                 folder: folder_lib.RunFolder) -> results.Outcome:
  """The codes that the network of the newest checkpoint gives."""
  began = time.monotonic()
  with contextlib.closing(checkpoint.Checkpoints(folder.checkpoints, devices)) as checkpoints:
    step, reports = checkpoints.newest()
    for report in reports:
      console.say(report)
    _check_step(folder, step)
    progress = trainer_lib.restore(config, data, devices, checkpoints, step)
  trainer_lib.check_codes(progress.state.codes)
  return train.network_outcome(progress, began)


def _check_step(folder: folder_lib.RunFolder, step: int):
  """Refuses to replace results by those of a checkpoint after fewer or more steps."""
  if folder.results.exists():
    scored = results.read(folder).get('step', step)
    if scored != step:
      raise errors.InputError(
          f'{folder.results} is of step {scored}, but the newest checkpoint that can be used is '
          f'of step {step}: the training command goes on from there; to score that one all the '
          'same, move results.json away.')
