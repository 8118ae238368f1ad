"""The dataset that a Config names, loaded under a progress bar."""

from __future__ import annotations

import contextlib

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import storage
from mah_jax.data import datasets

LINES = 8  # lines of a report on skipped images that are said


def load(config: config_lib.Config) -> datasets.Dataset:
  """Loads the dataset and says which images cannot be used."""
  with contextlib.ExitStack() as stack:
    data = datasets.load(
        config.dataset, config.data_dir, config.split_seed, protocol=config.protocol,
        query_fraction=config.query_fraction, query_list=config.query_list,
        cache_dir=storage.cache_folder('images'),
        on_start=lambda total: stack.enter_context(console.bar(total, 'checking images')).update)
  lines = data.report.splitlines()
  for line in lines[:LINES]:
    console.say(line)
  if len(lines) > LINES:
    console.say(f'  and {len(lines) - LINES} more, all of them in skipped.txt of the run folder.')
  return data
