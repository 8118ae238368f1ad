"""Files and folders: atomic writes, locks, caches and the expansion of `~`."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import numpy as np


def path(name: str | os.PathLike) -> pathlib.Path:
  """The path that a user wrote, `~` expanded; a user that does not exist stays as written."""
  return pathlib.Path(os.path.expanduser(name))


def cache_folder(kind: str) -> pathlib.Path:
  """The folder for one kind of thing that can be computed again; XDG_CACHE_HOME moves it."""
  return path(os.environ.get('XDG_CACHE_HOME') or '~/.cache') / 'mah_jax' / kind


def write(target: pathlib.Path, content: bytes):
  """Writes a file whole or not at all; makes its folder if need be."""
  target.parent.mkdir(parents=True, exist_ok=True)
  part = part_of(target)
  try:
    part.write_bytes(content)
    install(part, target)
  finally:
    part.unlink(missing_ok=True)


def part_of(target: pathlib.Path) -> pathlib.Path:
  """The name that a file has while it is written."""
  return target.with_name(f'.{target.name}.part')


def install(part: pathlib.Path, target: pathlib.Path):
  """Gives a finished file its name in one step, once its bytes are on the disk."""
  with open(part, 'rb') as file:
    os.fsync(file.fileno())
  os.replace(part, target)


def write_text(target: pathlib.Path, text: str):
  """Writes a text file; a file name in it may be no valid text, and keeps its bytes."""
  write(target, text.encode(errors='surrogateescape'))


def write_json(target: pathlib.Path, content: Any):
  """Writes a JSON file that a person can read."""
  write(target, f'{json.dumps(content, indent=2)}\n'.encode())


def read_json(source: pathlib.Path) -> Any:
  """The content of a JSON file; raises OSError or ValueError where there is none."""
  return json.loads(source.read_bytes())


def write_npy(target: pathlib.Path, array: np.ndarray):
  """Writes an array as a .npy file."""
  buffer = io.BytesIO()
  np.save(buffer, array)
  write(target, buffer.getvalue())


@contextlib.contextmanager
def lock(folder: pathlib.Path, *, shared: bool = False,
         on_busy: Callable[[], None]) -> Iterator[None]:
  """Keeps other programs from a folder while it is entered.

  Args:
    folder: it must exist.
    shared: let those in that ask for a shared lock as well.
    on_busy: called when another program has the lock; it may raise. If it returns, this waits.
  """
  kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    try:
      fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
      on_busy()
      fcntl.flock(descriptor, kind)
    yield
  finally:
    os.close(descriptor)
