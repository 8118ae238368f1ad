"""The folder of an export: it holds the files of one export, and nothing else.

export.json names the files that an export wrote and what each contained, so that the next export
to the same folder replaces these and nothing that somebody else put there.
"""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

from mah_jax import errors
from mah_jax import storage

MANIFEST = 'export.json'
CACHE = '__pycache__'  # Python makes it when the program of an export is imported


def check(folder: pathlib.Path, format_: str) -> dict[str, list[str]]:
  """Refuses a folder that holds anything but an export of the same format.

  Returns:
    The sha256 that each file of it may have, by name.
  """
  if not folder.exists():
    return {}
  if not folder.is_dir():
    raise errors.InputError(f'--output={folder} is a file: choose a folder.')
  known = _manifest(folder)
  if known.get('format', format_) != format_:
    raise errors.InputError(f'--output={folder} holds an export to {known["format"]}: choose '
                            'another folder.')
  hashes = known.get('files', {})
  for path in sorted(folder.iterdir()):
    if path.name in (MANIFEST, CACHE, *map(_part, (MANIFEST, *hashes))):
      continue
    if path.name not in hashes:
      raise errors.InputError(f'--output={folder} holds {path.name}, which no export wrote: choose '
                              'another folder.')
    if hashlib.sha256(path.read_bytes()).hexdigest() not in hashes[path.name]:
      raise errors.InputError(f'{path} was changed since it was exported: choose another --output, '
                              'or remove it.')
  return hashes


def _part(name: str) -> str:
  """The name of a file while it is written; a program that was killed may have left it."""
  return storage.part_of(pathlib.Path(name)).name


def _manifest(folder: pathlib.Path) -> dict[str, Any]:
  """What export.json says; empty where there is none."""
  path = folder / MANIFEST
  if not path.exists():
    return {}
  try:
    known = storage.read_json(path)
    return {'format': str(known['format']),
            'files': {str(name): list(hashes) for name, hashes in known['files'].items()}}
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    raise errors.InputError(f'{path} is not the list of an export: choose another '
                            '--output.') from None


def write(folder: pathlib.Path, format_: str, about: Mapping[str, Any],
          files: Mapping[str, bytes]):
  """Writes an export in the place of the one before it.

  A program that is killed meanwhile leaves whole files, old and new ones, that the next export
  recognises.

  Args:
    folder: it is made if need be.
    format_: the format of the export.
    about: what a reader of export.json is told beside.
    files: content by name.
  """
  before = check(folder, format_)
  new = {name: [hashlib.sha256(content).hexdigest()] for name, content in files.items()}
  either = {name: before.get(name, []) + new.get(name, []) for name in before | new}
  storage.write_json(folder / MANIFEST, {'format': format_, **about, 'files': either})
  for name in before.keys() - new.keys():
    (folder / name).unlink(missing_ok=True)
    (folder / _part(name)).unlink(missing_ok=True)
  for name, content in files.items():
    storage.write(folder / name, content)
  storage.write_json(folder / MANIFEST, {'format': format_, **about, 'files': new})
