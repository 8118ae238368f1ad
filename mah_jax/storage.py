"""Files and folders: atomic writes, locks, caches and the expansion of `~`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np

from mah_jax import errors

HERE, EXCHANGE = -100, 2  # arguments of renameat2: AT_FDCWD, RENAME_EXCHANGE


def path(name: str | os.PathLike) -> pathlib.Path:
  """The path that a user wrote, `~` expanded."""
  expanded = os.path.expanduser(name)
  if expanded.startswith('~'):
    raise errors.UsageError(f'{name} begins with the name of a user that this machine does not '
                            f'have: write ./{name} for a folder of that name.')
  if '\0' in expanded:
    raise errors.UsageError(f'{name!r} holds a zero byte, which no path can.')
  return pathlib.Path(expanded)


def cache_folder(kind: str) -> pathlib.Path:
  """The folder for one kind of thing that can be computed again; XDG_CACHE_HOME moves it."""
  return path(os.environ.get('XDG_CACHE_HOME') or '~/.cache') / 'mah_jax' / kind


def follow():
  """Leaves writing and locking to another process, which this one follows."""
  global _follows
  _follows = True


_follows = False


def write(target: pathlib.Path, content: bytes):
  """Writes a file whole or not at all; makes its folder if need be."""
  if _follows:
    return
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


SEAL = 'seal'              # the array of a .npz file that has the hash of the others
MANIFEST = 'written.json'  # in a folder that was written as a whole: the sha256 of its files


def check_replaceable(target: pathlib.Path, kind: str):
  """Refuses a folder that `replace_folder` must not replace: it holds what that did not write."""
  if not target.exists() and not target.is_symlink():
    return
  if not target.is_dir() or target.is_symlink():
    raise errors.InputError(f'{target} is no folder: choose another.')
  manifest = target / MANIFEST
  known, written = kind, {}
  if manifest.exists():
    try:
      content = read_json(manifest)
      known, written = content['kind'], dict(content['files'])
    except (OSError, ValueError, LookupError, TypeError):
      raise errors.InputError(f'{manifest} is damaged: choose another folder.') from None
  if known != kind:
    raise errors.InputError(f'{target} holds {known}: choose another folder.')
  for path in sorted(target.iterdir()):
    if path.name in (MANIFEST, '__pycache__'):  # Python makes the latter
      continue
    if path.name not in written:
      raise errors.InputError(f'{target} holds {path.name}, which is not of an earlier result: '
                              'choose another folder.')
    if hashlib.sha256(path.read_bytes()).hexdigest() != written[path.name]:
      raise errors.InputError(f'{path} was changed since it was written: choose another folder, or '
                              'remove it.')


def replace_folder(target: pathlib.Path, files: Mapping[str, bytes], kind: str):
  """Makes a folder hold just these files, in one step: until then what it held is there, whole.

  Args:
    target: the folder; it is made if need be.
    files: content by name.
    kind: what they are, in words; a folder of another kind is refused.
  """
  if _follows:
    return
  check_replaceable(target, kind)
  target.parent.mkdir(parents=True, exist_ok=True)
  part = part_of(target)
  shutil.rmtree(part, ignore_errors=True)  # of a command that was cut off
  try:
    part.mkdir()
    for name, content in files.items():
      write(part / name, content)
    write_json(part / MANIFEST, {'kind': kind, 'files': {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()}})
    if target.exists():
      _exchange(part, target)
    else:
      os.rename(part, target)
  finally:
    shutil.rmtree(part, ignore_errors=True)


def _exchange(one: pathlib.Path, other: pathlib.Path):
  """Gives each of two folders the name of the other; in one step where the system can."""
  library = ctypes.CDLL(None, use_errno=True)
  names = os.fsencode(one), os.fsencode(other)
  if hasattr(library, 'renameat2'):  # Linux
    failed = library.renameat2(HERE, names[0], HERE, names[1], EXCHANGE)
  elif hasattr(library, 'renamex_np'):  # macOS
    failed = library.renamex_np(*names, EXCHANGE)
  else:
    failed = True
  if failed:  # some file systems cannot
    aside = one.with_name(f'{one.name}.old')
    os.rename(other, aside)
    os.rename(one, other)
    os.rename(aside, one)


def append(target: pathlib.Path, line: str):
  """Adds a line to a text file."""
  if _follows:
    return
  with open(target, 'a') as file:
    file.write(f'{line}\n')


def write_text(target: pathlib.Path, text: str):
  """Writes a text file; a file name in it may be no valid text, and keeps its bytes."""
  write(target, text.encode(errors='surrogateescape'))


def write_json(target: pathlib.Path, content: Any):
  """Writes a JSON file that a person can read."""
  write(target, f'{json.dumps(content, indent=2)}\n'.encode())


def read_file(source: pathlib.Path) -> bytes:
  """The content of a regular file; raises OSError for anything else, such as a pipe or a device."""
  descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
  with open(descriptor, 'rb') as file:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
      raise OSError(errno.EINVAL, 'it is no regular file', str(source))
    return file.read()


def read_json(source: pathlib.Path) -> Any:
  """The content of a JSON file; raises OSError or ValueError where there is none."""
  return json.loads(source.read_bytes())


def write_npy(target: pathlib.Path, array: np.ndarray):
  """Writes an array as a .npy file."""
  write(target, npy(array))


def npy(array: np.ndarray) -> bytes:
  """An array as the content of a .npy file."""
  buffer = io.BytesIO()
  np.save(buffer, array)
  return buffer.getvalue()


def json_lines(values: Iterable[Any]) -> bytes:
  """Values as the content of a file of JSON, one a line, whatever characters they hold."""
  return ''.join(f'{json.dumps(value)}\n' for value in values).encode()


class Rows:
  """A file of an array [rows, width] float32 that is filled from its first row to its last.

  Until it is whole it is another file, beside a note of how many rows are there.

  done: how many rows are there already; filling that was cut off goes on from them.
  """

  def __init__(self, target: pathlib.Path, shape: tuple[int, int], note_every: int):
    """Takes the name of the file, and after how many rows the note is written anew."""
    self._target, self._shape, self._every = target, shape, note_every
    self._part, self._note = target.with_name('part.npy'), target.with_name('rows.json')
    self.done = self._noted = (
        read_json(self._note) if self._note.exists() and self._part.exists() else 0)
    self._array = None

  def add(self, values: np.ndarray):
    """Adds rows [.., width]."""
    if not _follows:
      if self._array is None:
        self._array = np.lib.format.open_memmap(
            self._part, 'r+' if self.done else 'w+', np.float32, self._shape)
      self._array[self.done:self.done + len(values)] = values
    self.done += len(values)
    if self.done - self._noted >= self._every and not _follows:
      self._array.flush()  # before the note, which must never promise more than there is
      write_json(self._note, self.done)
      self._noted = self.done

  def finish(self):
    """Gives the file its name, once all rows are there."""
    if self._array is not None:
      self._array.flush()
    install(self._part, self._target)
    self._note.unlink(missing_ok=True)


def write_npz(target: pathlib.Path, arrays: Mapping[str, np.ndarray], *, compressed: bool = False):
  """Writes arrays by name as one .npz file, sealed by their hash."""
  buffer = io.BytesIO()
  save = np.savez_compressed if compressed else np.savez
  save(buffer, **arrays, **{SEAL: np.frombuffer(_digest(arrays), np.uint8)})
  write(target, buffer.getvalue())


def read_npz(source: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a .npz file by name, which must be those that were sealed, if they were.

  Raises OSError or ValueError where there are none or others.
  """
  try:
    with np.load(source, allow_pickle=False) as file:
      arrays = dict(file)
  except OSError:
    raise
  # Damaged files make NumPy, zipfile and zlib raise almost anything.
  except Exception as error:
    raise ValueError('it is no archive of arrays, or was cut off') from error
  seal = arrays.pop(SEAL, None)
  if seal is not None and seal.tobytes() != _digest(arrays):
    raise ValueError('its arrays are not those that were written')
  return arrays


def _digest(arrays: Mapping[str, np.ndarray]) -> bytes:
  """The sha256 of arrays with their names, types and shapes."""
  digest = hashlib.sha256()
  for name in sorted(arrays):
    array = np.ascontiguousarray(arrays[name])
    digest.update(f'{name} {array.dtype.str} {array.shape} '.encode())
    digest.update(array)
  return digest.digest()


@contextlib.contextmanager
def lock(folder: pathlib.Path, *, shared: bool = False,
         on_busy: Callable[[], None]) -> Iterator[None]:
  """Keeps other programs from a folder while it is entered.

  Args:
    folder: it must exist.
    shared: let those in that ask for a shared lock as well.
    on_busy: called when another program has the lock; it may raise. If it returns, this waits.
  """
  if _follows:
    yield
    return
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
