"""The dataset that a Config names, loaded under a progress bar."""

from __future__ import annotations

import contextlib

import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax import methods
from mah_jax import options
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.train import processes

LINES = 8  # lines of a report on skipped images that are said
NEED_LABELS = ('query_fraction', 'split_seed', 'num_seeds')  # flags that choose what is scored


def load(config: config_lib.Config) -> datasets.Dataset:
  """Loads the dataset; says which images cannot be used and how many queries have no label."""
  with contextlib.ExitStack() as stack:
    data = datasets.load(
        config.dataset, config.data_dir, config.split_seed, protocol=config.protocol,
        query_fraction=config.query_fraction, query_list=config.query_list,
        cache_dir=storage.cache_folder('images'), spread=processes.spread,
        on_unlabelled=lambda: _check_unlabelled(config),
        on_start=lambda total: stack.enter_context(console.bar(total, 'checking images')).update)
  lines = data.report.splitlines()
  for line in lines[:LINES]:
    console.say(line)
  if len(lines) > LINES:
    console.say(f'  and {len(lines) - LINES} more, all of them in skipped.txt of the run folder.')
  queries = data.labels[data.protocol.queries]
  unlabelled = np.count_nonzero(~queries.any(axis=1))
  if unlabelled:
    console.say(f'{unlabelled:,} of the {len(queries):,} queries '
                f'{"has" if unlabelled == 1 else "have"} no label, so nothing to find: '
                f'{"it counts" if unlabelled == 1 else "they count"} 0 in every score.')
  return data


def _check_unlabelled(config: config_lib.Config):
  """Refuses a method that learns from labels, and flags that choose what is scored."""
  if config.spec.supervised:
    others = [name for name, spec in methods.METHODS.items() if not spec.supervised]
    raise errors.InputError(
        f'--method={config.method} learns from labels, but the images in {config.data_dir} have '
        f'none: add labels, or choose a --method that needs none, {" or ".join(others)}.')
  fields = options.fields(config)
  for name in NEED_LABELS:
    if getattr(config, name) != fields[name].default:
      raise errors.UsageError(f'--{name} has no effect, as the images in {config.data_dir} have '
                              'no labels: leave it out.')
