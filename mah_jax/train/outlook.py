"""What a run is about to do, in two lines at its start, and how long it will take on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax

from mah_jax import config as config_lib
from mah_jax import options
from mah_jax.data import datasets
from mah_jax.train import loop
from mah_jax.train import memory
from mah_jax.train import step as step_lib
from mah_jax.train import trainer as trainer_lib
from mah_jax.weights import imagenet

MINUTE, HOUR = 60, 3600
LONG = HOUR             # seconds of training from which on a run is told of a shorter way
CALLS, SECONDS = 3, 10  # what the speed is measured by, at least: training steps, and their time
FORWARD = 1 / 3         # of a training step: its backward pass has two products for one forward


def of_network(trainer: trainer_lib.Trainer, state: step_lib.TrainState, workdir: str) -> str:
  """The lines about a network that is trained from `state` on."""
  config, plan = trainer.config, trainer.plan
  parameters = sum(x.size for x in jax.tree.leaves(state.params)) / 1e6
  reads = (f'{config.backbone} at {trainer.pixels.size} px' if trainer.features is None else
           f'{"features of " + config.backbone if config.pretrained else "pixels"}, '
           f'{trainer.features.values.shape[1]} numbers')
  if config.keep_maps:
    reads += f' (its first {_counted(config.frozen_stages, "stage")} passed once)'
  done = int(state.step) // plan.steps_per_round
  rounds = (f'rounds {done + 1} to {plan.num_rounds}' if done else
            _counted(plan.num_rounds, 'round'))
  text = (f'{config.method}: heads of {_bits(config)} on {reads}, {parameters:.2f} million '
          f'parameters; {rounds} of {_counted(plan.steps_per_round, "step")} of {plan.batch_size} '
          f'images; {_rows(trainer.data)}; {_devices(trainer.devices)}')
  if trainer.step_bytes is not None:
    text += (f', a step needs {trainer.step_bytes / memory.MEGABYTE:,.0f} of '
             f'{memory.limit(trainer.devices.own) / memory.MEGABYTE:,.0f} MB')
  return f'{text}.\nSettings, scores, codes and checkpoints go to {workdir}.'


def of_fit(config: config_lib.Config, data: datasets.Dataset, width: int,
           devices: step_lib.Devices, workdir: str) -> str:
  """The lines about a method that is fitted to features of `width` numbers."""
  reads = f'features of {config.backbone}' if config.pretrained else 'pixels'
  seeds = f'; {config.num_seeds} seeds' if config.num_seeds > 1 else ''
  return (f'{config.method}: codes of {_bits(config)} from {reads}, {width} numbers{seeds}; '
          f'{_rows(data)}; {_devices(devices)}.\n'
          f'Settings, scores, codes and model.npz go to {workdir}.')


def _bits(config: config_lib.Config) -> str:
  return f'{options.listed([str(c) for c in config.code_lengths])} bits'


def _rows(data: datasets.Dataset) -> str:
  split = data.protocol
  training = '' if split.training_part is None else f' ({len(split.training):,} for training)'
  return f'{len(split.database):,} database images{training}, {len(split.queries):,} queries'


def _devices(devices: step_lib.Devices) -> str:
  return f'{_counted(len(devices.devices), "device")} ({devices.devices[0].device_kind})'


def _counted(count: int, word: str) -> str:
  return f'{count} {word}' if count == 1 else f'{count} {word}s'


def seconds_left(seconds: float, first: int, step: int, num_steps: int) -> float:
  """How long the steps after `step` take, if those after `first` have taken so many seconds."""
  return seconds / max(step - first, 1) * (num_steps - step)


class Pace:
  """Measures the first steps of a run; if it will be long on a CPU, says so once, and a remedy."""

  def __init__(self, config: config_lib.Config, plan: loop.Plan, num_images: int, platform: str,
               say: Callable[[str], None]):
    """Takes how many images the dataset has, and where the run takes place."""
    self._config, self._plan, self._images, self._say = config, plan, num_images, say
    self._waits = platform == 'cpu' and config.input == 'images'
    self._calls, self._began = 0, (0, 0.0)  # the step, and when, from which on it measures

  def note(self, step: int) -> bool:
    """Notes that so many steps of the run are made; the last may be still at work.

    Returns:
      whether time can be measured by it: the first step is compiled, and is waited for; the
      second is noted when it has only begun.
    """
    now, self._calls = time.monotonic(), self._calls + 1
    if self._calls <= 2:
      self._began = step, now
      return False
    if self._waits and self._calls >= 2 + CALLS and now - self._began[1] >= SECONDS:
      self._waits = False
      self._warn(step, now)
    return True

  def _warn(self, step: int, now: float):
    first, began = self._began
    left = seconds_left(now - began, first, step, self._plan.num_steps)
    if left >= LONG:
      self._say(self._sentence(left, (step - first) * self._plan.batch_size / (now - began)))

  def _sentence(self, left: float, speed: float) -> str:
    """The remedy for training that takes so many seconds at so many images a second."""
    way = '--input=features trains on features, for which each image passes the network once'
    if self._config.pretrained:
      way += f': about {_duration(self._images / speed * FORWARD)} for all images'
    else:
      way += f'; it needs --pretrained weights ({imagenet.HINT})'
    return (f'About {_duration(left)} of training are left on this machine, at {speed:.1f} images '
            f'a second. {way}. launch/folder_features.cfg has such flags.')


def _duration(seconds: float) -> str:
  """Seconds in the unit that a person would take."""
  if seconds >= 10 * HOUR:
    return f'{seconds / HOUR:.0f} h'
  return f'{seconds / HOUR:.1f} h' if seconds >= 2 * HOUR else f'{seconds / MINUTE:.0f} min'
