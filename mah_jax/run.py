"""One run as a story: data, fit, encode, evaluate, write the run folder."""

from __future__ import annotations

import contextlib
import time

import numpy as np

from mah_jax import config as config_lib
from mah_jax import deep
from mah_jax import errors
from mah_jax import experiment
from mah_jax import features
from mah_jax import methods
from mah_jax import outcome
from mah_jax import progress
from mah_jax import runfolder
from mah_jax import shallow
from mah_jax.data import datasets
from mah_jax.methods import base
from mah_jax.train import step as step_lib


def run(config: config_lib.Config):
  """Fits or restores, evaluates, writes the run folder and prints its table."""
  kept = ('results.json is what it was.' if config.mode != 'train' else
          'the same command goes on from the last checkpoint.' if config.method in methods.DEEP else
          'features that were extracted are kept, fits are not.')
  with (progress.StopRequest(f'Stopped; {kept}') as stop,
        contextlib.closing(runfolder.RunFolder(config.workdir)) as folder):
    _run(config, folder, stop)


def _run(config, folder, stop):
  training = config.mode == 'train'
  if not training:
    folder.check_claimed()
    folder.lock()
    if folder.has_codes_only or config.method in methods.SHALLOW:
      outcome.rescore(config, experiment.load(config), folder)
      return
  devices = step_lib.Devices(step_lib.pick_devices(config.num_devices), config.batch_size)
  if training:
    if folder.has_codes_only and config.method in methods.DEEP:
      raise errors.InputError(f'{folder.path} holds the codes of a run, but no checkpoint to go on '
                              'from: score them with --mode=evaluate, or choose another --workdir.')
    folder.claim(config)
  data = experiment.load(config)
  if training and data.report:
    folder.write_skipped(data.report)
  if config.method in methods.DEEP:
    method = deep.make(config, data, devices, folder, stop)
  else:
    method = shallow.make(config)
  x = (features.extract(config, data, devices) if method.reads == 'features'
       else np.arange(len(data.labels)))
  if config.method in methods.SHALLOW:  # the others write it when they know that they can go on
    folder.write_config(config, outcome.about(devices))
  seeds = range(config.seed, config.seed + config.num_seeds)
  codes, found, seconds, began = [], [], 0.0, time.monotonic()
  for seed in seeds:
    own, fit_seconds = fit_codes(method, data, x, seed)
    codes.append(own)
    found.append(outcome.by_length(data, own))
    seconds += fit_seconds
    if len(seeds) > 1:
      progress.say(f'seed {seed}{outcome.score_text(found[-1])}')
  timing = {'fit_seconds': seconds, 'seconds': time.monotonic() - began}
  outcome.write(config, data, folder, codes, found, {
      'seeds': list(seeds), 'timing': {name: round(t, 3) for name, t in timing.items()}})


def fit_codes(method: base.Method, data: datasets.Dataset, x: np.ndarray,
              seed: int) -> tuple[list[outcome.Codes], float]:
  """Codes of each length that a method gives to a dataset, and the seconds that fitting took.

  Args:
    method: to be fitted.
    data: labels and protocol.
    x: what the method reads, of all rows of the dataset, [rows, ...].
    seed: of everything random.
  """
  split = data.protocol
  state, seconds = method.fit(x[split.database], data.labels[split.database], seed)
  queries = method.encode(state, x[split.queries])
  encoded = method.encode_database(state, x[split.database])
  absent = (None,) * len(queries)
  learned = method.database_codes(state) or absent
  weights = method.bit_weights(state) or absent
  return [outcome.Codes(*own) for own in zip(queries, learned, encoded, weights)], seconds
