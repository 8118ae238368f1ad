"""The dataset that a Config names, loaded under a progress bar."""

from __future__ import annotations

import contextlib

import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import storage
from mah_jax.data import datasets

LINES = 8  # lines of a report on skipped images that are said


def load(config: config_lib.Config) -> datasets.Dataset:
  """Loads the dataset; says which images cannot be used and how many queries have no label."""
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
  queries = data.labels[data.protocol.queries]
  unlabelled = np.count_nonzero(~queries.any(axis=1))
  if unlabelled:
    console.say(f'{unlabelled:,} of the {len(queries):,} queries '
                f'{"has" if unlabelled == 1 else "have"} no label, so nothing to find: '
                f'{"it counts" if unlabelled == 1 else "they count"} 0 in every score.')
  return data
