"""The run folder: settings, scores and codes of a run, each file written whole or not at all."""

from __future__ import annotations

import collections
import fcntl
import io
import json
import os
import pathlib
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mah_jax import config as config_lib
from mah_jax import errors

SCHEMA = 1
KINDS = ('learned', 'encoded', 'weighted')  # database codes, and how they are ranked
LISTED = 5  # groups of classes that share a codeword, named in one sentence


class RunFolder:
  """The files of one run below `--workdir`, as README.md lists them."""

  def __init__(self, path: str):
    self.path = pathlib.Path(os.path.expanduser(path))
    self.checkpoints = self.path / 'checkpoints'
    self._lock = None  # file descriptor

  def lock(self):
    """Keeps other runs out of the folder until `close`."""
    self._lock = os.open(self.path, os.O_RDONLY)
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise errors.InputError(f'Another run is at work in {self.path}: wait for its end, or choose '
                              'another --workdir.') from None

  def close(self):
    """Lets other runs into the folder."""
    if self._lock is not None:
      os.close(self._lock)

  def claim(self, config: config_lib.Config):
    """Makes the folder this run's until `close`; refuses one that holds anything of another."""
    saved = config_lib.saved_flags(self.path)
    if saved is not None and (any(self.checkpoints.glob('*')) or
                              (self.path / 'results.json').exists()):
      self.check_same(config, saved)
    try:
      self.checkpoints.mkdir(parents=True, exist_ok=True)
      self.lock()
    except OSError as error:
      raise errors.InputError(f'--workdir={self.path} cannot be written to '
                              f'({error.strerror}): choose another.') from error

  def write_config(self, config: config_lib.Config, about: dict[str, Any]):
    """Writes config.json, once nothing is left that could refuse the run."""
    write(self.path / 'config.json', _json({'flags': config_lib.to_json(config), **about}))

  def check_claimed(self):
    """Refuses a folder in which no run was ever begun."""
    if config_lib.saved_flags(self.path) is None:
      raise errors.InputError(f'{self.path} is not a run folder: it has no config.json.')

  def flags(self) -> dict[str, Any] | None:
    """The flags of the run, or None; where only codes are left, with those they were made by."""
    saved = config_lib.saved_flags(self.path)
    if saved is None or not self.has_codes_only:
      return saved
    results = self._results()
    return saved | {name: results[name]
                    for name in ('code_lengths', *config_lib.EVALUATION_FIELDS) if name in results}

  def check_same(self, config: config_lib.Config, saved: dict[str, Any]):
    """Refuses to go on with a run that was begun with other settings."""
    different = config_lib.differences(config, saved)
    if different:
      raise errors.UsageError(f'{self.path} holds a run with other settings: '
                              f'{"; ".join(different)}. Choose another --workdir.')

  def keep_rounds(self, rounds: int):
    """Drops the lines of metrics.jsonl after round number `rounds`; they come again."""
    path = self.path / 'metrics.jsonl'
    if path.exists():
      whole = [line for line in path.read_text().splitlines(keepends=True)
               if line.endswith('\n')]  # the last one may have been cut off
      try:
        kept = [line for line in whole if json.loads(line)['round'] <= rounds]
      except (ValueError, KeyError, TypeError):
        raise errors.InputError(f'{path} is damaged: remove it to go on with the run.') from None
      write(path, ''.join(kept).encode())

  def add_round(self, metrics: dict[str, Any]):
    """Adds a line to metrics.jsonl."""
    with open(self.path / 'metrics.jsonl', 'a') as file:
      file.write(json.dumps(metrics) + '\n')

  def write_results(self, results: dict[str, Any]):
    """Writes results.json."""
    write(self.path / 'results.json', _json({'schema': SCHEMA, **results}))

  def write_skipped(self, report: str):
    """Writes skipped.txt: the images of the dataset that cannot be used, and why."""
    write_text(self.path / 'skipped.txt', f'{report}\n')

  def write_codes(self, name: str, array: np.ndarray):
    """Writes codes/NAME.npy."""
    write(self.path / f'codes/{name}.npy', npy(array))

  def write_archive(self, arrays: dict[str, np.ndarray]):
    """Writes codes.npz."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write(self.path / 'codes.npz', buffer.getvalue())

  @property
  def has_codes_only(self) -> bool:
    """Whether codes.npz was kept of a run, but no checkpoint."""
    return (self.path / 'codes.npz').exists() and not any(self.checkpoints.glob('*'))

  def archive(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of codes.npz, and what results.json has beside scores."""
    try:
      with np.load(self.path / 'codes.npz') as arrays:
        found = dict(arrays)
    except (OSError, ValueError, LookupError, EOFError, RuntimeError, zlib.error,
            zipfile.BadZipFile) as error:
      raise errors.InputError(f'{self.path / "codes.npz"} is missing or damaged ({error}): copy it '
                              'again.') from error
    results = self._results()
    return found, {'id': results['protocol']['id'], 'seeds': results['seeds'],
                   'timing': results['timing']}

  def _results(self) -> dict[str, Any]:
    """The content of results.json."""
    path = self.path / 'results.json'
    try:
      results = json.loads(path.read_text())
      if results['protocol']['id'] and results['seeds'] and results['timing']:
        return results
    except (OSError, ValueError, LookupError, TypeError):
      pass
    raise errors.InputError(f'{path} is missing or damaged: copy it again, or give the command of '
                            'its run again.')


def write(path: pathlib.Path, content: bytes):
  """Writes a file whole or not at all."""
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_name(f'.{path.name}.part')
  with open(part, 'wb') as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
  part.replace(path)


def write_text(path: pathlib.Path, text: str):
  """Writes a text file; a file name in it may be no valid text, and keeps its bytes."""
  write(path, text.encode(errors='surrogateescape'))


def npy(array: np.ndarray) -> bytes:
  """An array as the content of a .npy file."""
  buffer = io.BytesIO()
  np.save(buffer, array)
  return buffer.getvalue()


def _json(content: dict[str, Any]) -> bytes:
  return (json.dumps(content, indent=2) + '\n').encode()


def table(results: dict[str, Any], k: int) -> str:
  """The scores of a run for a person: one line for each length and kind of database codes."""
  head = ('bits', 'database', 'map', '(low..high)', 'map_database_order', f'precision@{k}',
          'distinct codewords')
  rows = [head]
  for c, scores in results['metrics'].items():
    for kind in KINDS:
      if kind not in scores:
        continue
      s = scores[kind]
      spread = f' +-{scores["deviation"][kind]["map"]:.4f}' if 'deviation' in scores else ''
      rows.append((c, kind, f'{s["map"]:.4f}{spread}', f'({s["map_low"]:.4f}..{s["map_high"]:.4f})',
                   f'{s["map_database_order"]:.4f}', f'{s[f"precision@{k}"]:.4f}',
                   str(scores['codebook']['distinct'])))
  return align(rows)


def collisions(results: dict[str, Any]) -> list[str]:
  """A sentence for each code length at which classes share a codeword, with their names."""
  sentences = []
  for c, scores in results['metrics'].items():
    owners = collections.defaultdict(list)
    for name, word in zip(results['classes'], scores['codebook']['codewords']):
      owners[word].append(name)
    shared = [' = '.join(names) for word, names in owners.items() if word and len(names) > 1]
    if shared:
      more = f' and {len(shared) - LISTED} more' if len(shared) > LISTED else ''
      sentences.append(f'At {c} bits, classes share a codeword: '
                       f'{"; ".join(shared[:LISTED])}{more}.')
  return sentences


def align(rows: Sequence[Sequence[str]]) -> str:
  """Right-aligned columns, two spaces apart."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join('  '.join(cell.rjust(width) for cell, width in zip(row, widths))
                   for row in rows)
