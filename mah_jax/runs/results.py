"""The results of a run: results.json, codes.npz and codes/, read and written here only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import options
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.evaluation import metrics
from mah_jax.evaluation import scores
from mah_jax.methods import base
from mah_jax.runs import folder as folder_lib
from mah_jax.train import loop
from mah_jax.train import model as model_lib

SCHEMA = 1
SIDES = ('queries', 'learned', 'encoded')  # fields of scores.Codes that are codes, [rows, c]
NUMBERS = ('weights', 'outputs')  # fields that are real numbers
LENGTHS = 'code_lengths'  # in codes.npz: the bits of its codes
PROGRESS = ('step', 'round', 'code_updates')
HASHES = 'sha256'  # in results.json: of the files that it belongs to
MANIFEST = f'codes/{storage.MANIFEST}'  # it has the hashes of all files in codes/
# Types of what results.json holds, as far as a program reads it; earlier versions lack some.
TYPES = {'protocol': dict, 'seeds': list, 'classes': list, 'metrics': dict, 'timing': dict,
         'code_lengths': list, 'dataset': str, 'k': int, **dict.fromkeys(PROGRESS, int)}


class Outcome(NamedTuple):
  """The end of a run.

  codes: the codes of each seed, of each code length.
  metrics: the scores of each seed, by code length, see `score`.
  seeds: the seeds themselves.
  timing: seconds by name: `fit_seconds` of training or fitting, `seconds` of everything.
  progress: `step` and `round` that a network was trained to, and `code_updates`, how often its
    codes were solved for; empty for methods that fit features.
  model: what such a method fitted with the first seed; None for networks, which have checkpoints.
  """
  codes: Sequence[Sequence[scores.Codes]]
  metrics: Sequence[dict[str, Any]]
  seeds: Sequence[int]
  timing: dict[str, float]
  progress: dict[str, int]
  model: model_lib.Model | None = None


def score(config: config_lib.Config, data: datasets.Dataset, codes: Sequence[scores.Codes],
          code_updates: int | None) -> dict[str, Any]:
  """Scores the codes of each length, if there are labels; the keys are those of results.json."""
  if not data.is_labelled:
    return {}
  labels = data.labels[data.protocol.queries], data.labels[data.protocol.database]
  return {str(c.queries.shape[1]): scores.score(
      c, *labels, k=config.scored_rows, code_updates=code_updates) for c in codes}


def _add_outputs(config: config_lib.Config, data: datasets.Dataset, outcome: Outcome) -> Outcome:
  """An outcome whose scores have those of the ranking by outputs too, where there are scores."""
  if not data.is_labelled:
    return outcome
  labels = data.labels[data.protocol.queries], data.labels[data.protocol.database]
  return outcome._replace(metrics=[
      {c: scores.add_outputs(of_length, of_codes, *labels, k=config.scored_rows)
       for (c, of_length), of_codes in zip(of_seed.items(), codes, strict=True)}
      for of_seed, codes in zip(outcome.metrics, outcome.codes, strict=True)])


def write(folder: folder_lib.RunFolder, config: config_lib.Config, data: datasets.Dataset,
          outcome: Outcome) -> dict[str, Any]:
  """Writes codes/, codes.npz and results.json, in this order; returns the content of the last.

  Its scores are those of the outcome and those of the ranking by outputs. Its hashes tell which
  codes it belongs to, should a kill come between two of them.
  """
  split, outcome = data.protocol, _add_outputs(config, data, outcome)
  arrays = {'query_labels': data.labels[split.queries],
            'database_labels': data.labels[split.database]}
  for c, codes in zip(config.code_lengths, outcome.codes[0]):
    arrays |= {f'queries_{c}': codes.queries, f'database_{c}': codes.database}
    if codes.weights is not None:
      arrays[f'bit_weights_{c}'] = codes.weights
  names = {'queries': data.row_names(split.queries), 'database': data.row_names(split.database)}
  codes = storage.with_manifest({
      **{f'{name}.npy': storage.npy(array) for name, array in arrays.items()},
      'names.json': storage.to_json(names)}, folder_lib.CODES)
  archive = _archive(outcome)
  results = _content(config, data, outcome) | {HASHES: {
      folder.archive.name: _sha256(archive), MANIFEST: _sha256(codes[storage.MANIFEST])}}
  folder.check_codes()
  storage.write_together({folder.codes: codes, folder.archive: archive,
                          folder.results: storage.to_json(results)})
  return results


def write_packed(folder: folder_lib.RunFolder, config: config_lib.Config, data: datasets.Dataset,
                 outcome: Outcome) -> dict[str, Any]:
  """Writes codes.npz and results.json alone; returns the content of the last."""
  archive = _archive(outcome)
  results = _content(config, data, outcome) | {HASHES: {folder.archive.name: _sha256(archive)}}
  storage.write_together({folder.archive: archive, folder.results: storage.to_json(results)})
  return results


def write_scores(folder: folder_lib.RunFolder, config: config_lib.Config, data: datasets.Dataset,
                 outcome: Outcome) -> dict[str, Any]:
  """Writes results.json alone, for codes that `read_codes` has read; returns its content."""
  hashes = read(folder).get(HASHES, {}) | _hashes(folder)
  results = _content(config, data, outcome) | {HASHES: hashes}
  storage.write_json(folder.results, results)
  return results


def _archive(outcome: Outcome) -> bytes:
  """The content of codes.npz, from which `read_codes` scores a run anew."""
  lengths = np.array([codes.queries.shape[1] for codes in outcome.codes[0]])
  progress = {name: np.array(value) for name, value in outcome.progress.items()}
  return storage.npz({**_pack(outcome.codes), LENGTHS: lengths, **progress}, compressed=True)


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()


def _hashes(folder: folder_lib.RunFolder) -> dict[str, str]:
  """The hash of the archive and of the manifest of codes/, if they are there, by name."""
  return {name: _sha256((folder.path / name).read_bytes())
          for name in (folder.archive.name, MANIFEST) if (folder.path / name).exists()}


def _content(config: config_lib.Config, data: datasets.Dataset,
             outcome: Outcome) -> dict[str, Any]:
  """The content of results.json but for its hashes."""
  split, bounds = data.protocol, {}
  if data.is_labelled:
    labels = data.labels[split.queries], data.labels[split.database]
    bounds = {'chance': metrics.chance(*labels), 'ceiling': metrics.ceiling(*labels)}
  return {
      'schema': SCHEMA, 'method': config.method, 'heads': getattr(config.options, 'heads', None),
      'dataset': config.dataset,
      'protocol': {'name': split.name, 'id': split.id, 'queries': len(split.queries),
                   'database': len(split.database),
                   **({} if split.training_part is None else {'training': len(split.training)}),
                   **bounds},
      'classes': list(data.class_names), 'seed': config.seed, 'seeds': list(outcome.seeds),
      'k': config.scored_rows, **config_lib.changeable(config, options.EVALUATION),
      'code_lengths': list(config.code_lengths), **outcome.progress,
      'metrics': scores.average(outcome.metrics),
      'timing': {name: round(seconds, 3) for name, seconds in outcome.timing.items()}}


def read(folder: folder_lib.RunFolder) -> dict[str, Any]:
  """The content of results.json."""
  try:
    results = storage.read_json(folder.results)
    if (all(isinstance(results.get(name, kind()), kind) for name, kind in TYPES.items())
        and isinstance(results['protocol']['id'], str) and results['seeds']
        and all(type(seed) is int for seed in results['seeds'])
        and all(type(seconds) in (int, float) for seconds in results.get('timing', {}).values())):
      return results
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    pass
  raise errors.InputError(f'{folder.results} is missing or damaged: copy it again, or give the '
                          'command of its run again.')


def check_step(folder: folder_lib.RunFolder, step: int):
  """Refuses a checkpoint that is not of the step that the codes and scores of the run are of."""
  if folder.results.exists():
    scored = read(folder).get('step', step)
    if scored != step:
      raise errors.InputError(
          f'{folder.results} is of step {scored}, but the newest checkpoint that can be used is '
          f'of step {step}: the training command goes on from there; to use that one all the '
          'same, move results.json away.')


def flags(folder: folder_lib.RunFolder, *, evaluated: bool = False) -> dict[str, Any] | None:
  """The flags of the run, or None.

  Where only codes are left, and where `evaluated` ones are asked for, these are the flags that
  the codes were made by.
  """
  evaluated &= folder.results.exists()
  if folder.flags() is None or not (evaluated or folder.has_codes_only):
    return folder.flags()
  return evaluated_flags(folder, read(folder))


def evaluated_flags(folder: folder_lib.RunFolder, results: dict[str, Any]) -> dict[str, Any]:
  """The flags that results were made by: the run's, but for those that an evaluation changed."""
  evaluated = [name for name, field in config_lib.all_fields().items()
               if field.metadata['may_change'] == options.EVALUATION]
  return folder.flags() | {name: results[name] for name in ('code_lengths', *evaluated)
                           if name in results}


def read_codes(folder: folder_lib.RunFolder, config: config_lib.Config,
               data: datasets.Dataset) -> Outcome:
  """The codes in codes.npz and what results.json says about them, scored anew, as by `write`."""
  codes, results = kept_codes(folder, config, data)
  progress = _progress(config, data, results)
  scored = [score(config, data, of_seed, progress.get('code_updates')) for of_seed in codes]
  return _add_outputs(config, data, Outcome(codes, scored, results['seeds'],
                                            results.get('timing', {}), progress))


def check_same(folder: folder_lib.RunFolder, config: config_lib.Config):
  """Refuses settings by which an image would get another code than those that were kept."""
  config_lib.check_same(config, flags(folder, evaluated=True), as_trained=True)


def kept_codes(folder: folder_lib.RunFolder, config: config_lib.Config, data: datasets.Dataset
               ) -> tuple[list[list[scores.Codes]], dict[str, Any]]:
  """The codes in codes.npz, of each seed and each length, and the content of results.json."""
  check_same(folder, config)
  try:
    arrays = storage.read_npz(folder.archive)
  except (OSError, ValueError) as error:
    raise errors.InputError(f'{folder.archive} is missing or damaged ({error}): copy it '
                            'again.') from error
  results = read(folder)
  for name in (LENGTHS, *PROGRESS):
    if name in arrays and arrays[name].tolist() != results.get(name):
      raise errors.InputError(f'{folder.results} and codes.npz beside it are not of the same '
                              f'evaluation ({name} {results.get(name)} and '
                              f'{arrays[name].tolist()}): copy both again.')
  if results['protocol']['id'] != data.protocol.id:
    raise errors.InputError(f'The codes in {folder.path} are of other images than those in '
                            f'{config.data_dir}.')
  rows = {'queries': len(data.protocol.queries), 'learned': len(data.protocol.database),
          'encoded': len(data.protocol.database)}
  try:
    codes = [[_unpack(arrays, c, i, rows) for c in config.code_lengths]
             for i in range(len(results['seeds']))]
  except (LookupError, ValueError, TypeError):
    raise errors.InputError(f'codes.npz in {folder.path} lacks codes or is of an earlier version '
                            'of mah_jax: copy it again, or give the command of its run '
                            'again.') from None
  _check_hashes(folder, results)
  return codes, results


def _check_hashes(folder: folder_lib.RunFolder, results: dict[str, Any]):
  """Refuses codes that are not those of results.json, which earlier versions gave no hashes."""
  expected = results.get(HASHES, {})
  if not isinstance(expected, dict):
    raise errors.InputError(f'{folder.results} is damaged: copy it again, or give the command of '
                            'its run again.')
  for name, actual in _hashes(folder).items():
    if expected.get(name, actual) != actual:
      raise errors.InputError(f'{folder.results} and {name} beside it are not of the same '
                              'evaluation: give the command of the run again, or copy both again.')


def _progress(config: config_lib.Config, data: datasets.Dataset,
              results: dict[str, Any]) -> dict[str, int]:
  """How far the run was when its codes were kept; earlier versions kept those of the end."""
  if not config.spec.trains_network or 'step' in results:
    return {name: results[name] for name in PROGRESS if name in results}
  plan = loop.make_plan(config, len(data.protocol.training))
  updates = 0
  if isinstance(config.options, base.CodeOptions):
    updates = config.options.update(None).count(plan.num_epochs, plan.epochs_per_round)
  return {'step': plan.num_steps, 'round': plan.num_rounds, 'code_updates': updates}


def _pack(codes: Sequence[Sequence[scores.Codes]]) -> dict[str, np.ndarray]:
  """Everything that the scores depend on, by name and length.

  Codes are [seeds, rows, bytes], eight bits a byte; weights are [seeds, c], outputs [seeds, q, c].
  """
  arrays = {}
  for seeds in zip(*codes):  # the codes of one length
    c = seeds[0].queries.shape[1]
    for name in SIDES:
      if getattr(seeds[0], name) is not None:
        arrays[f'{name}_{c}'] = np.stack([np.packbits(getattr(of_seed, name) > 0, axis=1)
                                          for of_seed in seeds])
    for name in NUMBERS:
      if getattr(seeds[0], name) is not None:
        arrays[f'{name}_{c}'] = np.stack([getattr(of_seed, name) for of_seed in seeds])
  return arrays


def _unpack(arrays: dict[str, np.ndarray], c: int, i: int, rows: dict[str, int]) -> scores.Codes:
  """The codes of c bits of the i-th seed; raises LookupError or ValueError where they lack."""
  sides = dict.fromkeys(SIDES)
  for name in SIDES:
    if f'{name}_{c}' in arrays:
      packed = arrays[f'{name}_{c}'][i].reshape(rows[name], -(-c // 8))
      sides[name] = np.unpackbits(packed, axis=1, count=c).astype(np.int8) * 2 - 1
  numbers = {name: arrays[f'{name}_{c}'][i] for name in NUMBERS if f'{name}_{c}' in arrays}
  codes = scores.Codes(**sides, **numbers)
  if codes.queries is None or codes.database is None:
    raise LookupError(c)
  if codes.outputs is not None and not (  # earlier versions kept none
      codes.outputs.shape == codes.queries.shape and np.isfinite(codes.outputs).all()):
    raise ValueError(c)
  return codes
