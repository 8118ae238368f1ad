"""One run of a method on fixed features: extract them, fit each length and seed, score, write."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from mah_jax import config as config_lib
from mah_jax import experiment
from mah_jax import features
from mah_jax import methods
from mah_jax import outcome
from mah_jax import progress
from mah_jax import runfolder
from mah_jax.data import datasets
from mah_jax.methods import base
from mah_jax.train import step as step_lib


def run(config: config_lib.Config):
  """Fits and evaluates a shallow method, writes the run folder and prints its table."""
  with progress.StopRequest('Stopped; features that were extracted are kept, fits are not.'):
    _run(config)


def _run(config):
  devices = step_lib.Devices(step_lib.pick_devices(config.num_devices), config.batch_size)
  folder = runfolder.RunFolder(config.workdir)
  folder.claim(config, outcome.about(devices))
  data = experiment.load(config)
  vectors = features.extract(config, data, devices)
  method = methods.SHALLOW[config.method](config)
  split = data.protocol
  queries, database = vectors[split.queries], vectors[split.database]
  seeds = range(config.seed, config.seed + config.num_seeds)
  first, found, began = [], [], time.monotonic()
  with progress.bar(len(seeds) * len(config.code_lengths), config.method) as bar:
    for seed in seeds:
      scores = {}
      for c in config.code_lengths:
        codes = _fit(method, data, queries, database, c, seed)
        scores[str(c)] = outcome.scores(data, codes)
        if seed == config.seed:
          first.append(codes)
        bar.update()
      found.append(scores)
      kind = 'encoded' if first[0].learned is None else 'learned'
      maps = ' '.join(f'{s[kind]["map"]:.3f}' for s in scores.values())
      progress.say(f'seed {seed}  {kind} map {maps}')
  metrics = {c: _average([scores[c] for scores in found]) for c in found[0]}
  outcome.write(config, data, folder, first, metrics, {
      'seeds': list(seeds), 'timing': {'fit_seconds': round(time.monotonic() - began, 3)}})


def _fit(method: base.ShallowMethod, data: datasets.Dataset, queries: np.ndarray,
         database: np.ndarray, c: int, seed: int) -> outcome.Codes:
  """Codes of c bits of the queries [q, D] and the database [n, D], as arrays."""
  key = jax.random.fold_in(jax.random.key(seed), c)
  state = method.fit(database, data.labels[data.protocol.database], c, key)
  learned = method.learned(state)
  return outcome.Codes(np.asarray(method.encode(state, queries)),
                       None if learned is None else np.asarray(learned),
                       np.asarray(method.encode(state, database)))


def _average(scores: list[dict[str, Any]]) -> dict[str, Any]:
  """Means over seeds of each kind of scores, their deviations, and the first seed's codebook."""
  kinds = [kind for kind in scores[0] if kind != 'codebook']
  table = {kind: {name: [s[kind][name] for s in scores] for name in scores[0][kind]}
           for kind in kinds}
  return {**{kind: {name: float(np.mean(values)) for name, values in table[kind].items()}
             for kind in kinds},
          'deviation': {kind: {name: float(np.std(values, ddof=len(values) > 1))
                               for name, values in table[kind].items()} for kind in kinds},
          'codebook': scores[0]['codebook']}
