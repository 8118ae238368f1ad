"""What a run ends with: scores of its codes, the files of its folder, a table for a person."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import progress
from mah_jax import runfolder
from mah_jax.data import datasets
from mah_jax.evaluation import metrics
from mah_jax.train import step as step_lib

TOP_K = 5000  # of precision@k and map@k, as in the paper
SIDES = ('queries', 'learned', 'encoded')  # of Codes, each [rows, c]
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


class Codes(NamedTuple):
  """Codes of one length.

  queries: [q, c].
  learned: of the database, as training solved for them, [n, c]; None where a method has none.
  encoded: of the database, by the hash function, [n, c]; None where they were not asked for.
  weights: of the bits in a weighted ranking, [c]; None where a method has none.
  """
  queries: np.ndarray
  learned: np.ndarray | None
  encoded: np.ndarray | None
  weights: np.ndarray | None = None

  @property
  def database(self) -> np.ndarray:
    """What is searched: the learned codes where there are any."""
    return self.encoded if self.learned is None else self.learned


def scores(data: datasets.Dataset, codes: Codes) -> dict[str, Any]:
  """All metrics of learned and encoded codes, and the codebook of those that are searched."""
  split = data.protocol
  labels = data.labels[split.queries], data.labels[split.database]
  kinds = {'learned': codes.learned, 'encoded': codes.encoded}
  found = {kind: metrics.evaluate(codes.queries, b, *labels, k=TOP_K)
           for kind, b in kinds.items() if b is not None}
  if codes.weights is not None:
    found['weighted'] = metrics.evaluate(codes.queries, codes.database, *labels, k=TOP_K,
                                         weights=codes.weights)
  return found | {'codebook': metrics.codebook(codes.database, labels[1])}


def score_text(scores: dict[str, dict[str, Any]]) -> str:
  """Codewords and MAP of each length, for a line of progress."""
  codewords = ' '.join(str(s['codebook']['distinct']) for s in scores.values())
  kind = next(kind for kind in runfolder.KINDS if all(kind in s for s in scores.values()))
  maps = ' '.join(f'{s[kind]["map"]:.3f}' for s in scores.values())
  return f'  codewords {codewords}  {kind} map {maps}'


def by_length(data: datasets.Dataset, codes: Sequence[Codes]) -> dict[str, Any]:
  """The `scores` of each length, by its name in results.json."""
  return {str(own.queries.shape[1]): scores(data, own) for own in codes}


def write(config: config_lib.Config, data: datasets.Dataset, folder: runfolder.RunFolder,
          codes: Sequence[Sequence[Codes]], found: Sequence[dict[str, Any]],
          about: dict[str, Any]):
  """Writes codes and results, and prints the table.

  Args:
    config: of the run.
    data: that it was trained on.
    folder: to write to.
    codes: of each seed, of each length; codes/ has those of the first seed.
    found: of each seed, see `by_length`.
    about: further entries of results.json.
  """
  split = data.protocol
  for c, own in zip(config.code_lengths, codes[0]):
    folder.write_codes(f'queries_{c}', own.queries)
    folder.write_codes(f'database_{c}', own.database)
    if own.weights is not None:
      folder.write_codes(f'bit_weights_{c}', own.weights)
  folder.write_codes('query_labels', data.labels[split.queries])
  folder.write_codes('database_labels', data.labels[split.database])
  folder.write_archive(_pack(codes))
  _conclude(config, data, folder, found, about)


def _conclude(config, data, folder, found, about):
  """Prints the table and writes results.json; arguments are those of `write`."""
  split = data.protocol
  labels = data.labels[split.queries], data.labels[split.database]
  results = {
      'method': config.method, 'heads': config.heads if config.method == 'mah' else None,
      'dataset': config.dataset,
      'protocol': {'name': split.name, 'id': split.id, 'queries': len(split.queries),
                   'database': len(split.database),
                   'chance': metrics.chance(*labels), 'ceiling': metrics.ceiling(*labels)},
      'classes': list(data.class_names), 'seed': config.seed,
      **{name: getattr(config, name) for name in config_lib.EVALUATION_FIELDS},
      'code_lengths': list(config.code_lengths), 'metrics': _average(found), **about}
  progress.say(f'\n{runfolder.table(results, TOP_K)}')
  progress.say('A random order has map {chance:.4f}, the labels themselves {ceiling:.4f}.'.format(
      **results['protocol']))
  if len(split.database) < TOP_K:
    progress.say(f'The database has {len(split.database)} rows, fewer than {TOP_K}: '
                 f'precision@{TOP_K} is the share of relevant rows in all of it.')
  for sentence in runfolder.collisions(results):
    progress.say(sentence)
  folder.write_results(results)
  progress.say(f'Written to {folder.path}.')


def _average(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """Scores of several seeds: means and deviations, with the first seed's codebook."""
  if len(found) == 1:
    return found[0]
  return {c: _average_of_length([scores[c] for scores in found]) for c in found[0]}


def _average_of_length(scores):
  kinds = [kind for kind in scores[0] if kind != 'codebook']
  table = {kind: {name: [s[kind][name] for s in scores] for name in scores[0][kind]}
           for kind in kinds}
  return {**{kind: {name: float(np.mean(values)) for name, values in table[kind].items()}
             for kind in kinds},
          'deviation': {kind: {name: float(np.std(values, ddof=1))
                               for name, values in table[kind].items()} for kind in kinds},
          'codebook': scores[0]['codebook']}


def rescore(config: config_lib.Config, data: datasets.Dataset, folder: runfolder.RunFolder):
  """Scores the codes that were kept of a run, writes results.json anew and prints the table."""
  folder.check_same(dataclasses.replace(config, mode='train'), folder.flags())
  arrays, before = folder.archive()
  if before.pop('id') != data.protocol.id:
    raise errors.InputError(f'The codes in {folder.path} are of other images than those in '
                            f'{config.data_dir}.')
  rows = {'queries': len(data.protocol.queries), 'learned': len(data.protocol.database),
          'encoded': len(data.protocol.database)}
  try:
    codes = [[_unpack(arrays, c, i, rows) for c in config.code_lengths]
             for i in range(len(before['seeds']))]
  except (LookupError, ValueError, TypeError):
    raise errors.InputError(f'codes.npz in {folder.path} lacks codes or is of an earlier version '
                            'of mah_jax: copy it again, or give the command of its run '
                            'again.') from None
  _conclude(config, data, folder, [by_length(data, own) for own in codes], before)


def _pack(codes: Sequence[Sequence[Codes]]) -> dict[str, np.ndarray]:
  """Everything that the scores depend on, by name and length.

  Codes are [seeds, rows, bytes], eight bits a byte; weights are [seeds, c].
  """
  arrays = {}
  for seeds in zip(*codes):  # of one length
    c = seeds[0].queries.shape[1]
    for name in SIDES:
      if getattr(seeds[0], name) is not None:
        arrays[f'{name}_{c}'] = np.stack([np.packbits(getattr(own, name) > 0, axis=1)
                                          for own in seeds])
    if seeds[0].weights is not None:
      arrays[f'weights_{c}'] = np.stack([own.weights for own in seeds])
  return arrays


def _unpack(arrays: dict[str, np.ndarray], c: int, i: int, rows: dict[str, int]) -> Codes:
  """The codes of c bits of the i-th seed; raises LookupError or ValueError where they lack."""
  sides = dict.fromkeys(SIDES)
  for name in SIDES:
    if f'{name}_{c}' in arrays:
      packed = arrays[f'{name}_{c}'][i].reshape(rows[name], -(-c // 8))
      sides[name] = np.unpackbits(packed, axis=1, count=c).astype(np.int8) * 2 - 1
  weights = arrays[f'weights_{c}'][i] if f'weights_{c}' in arrays else None
  codes = Codes(**sides, weights=weights)
  if codes.queries is None or codes.database is None:
    raise LookupError(c)
  return codes


def about(devices: step_lib.Devices) -> dict[str, Any]:
  """Versions and devices, for config.json."""
  kinds = [f'{device.platform} {device.device_kind}' for device in devices.devices]
  return {'versions': {name: importlib.metadata.version(name) for name in PACKAGES},
          'devices': kinds}
