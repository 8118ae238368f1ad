"""Files and folders: atomic writes, locks, caches and the expansion of `~`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import pathlib
import re
import shutil
import stat
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import BinaryIO

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


def size(folder: pathlib.Path) -> int:
  """Bytes of all files in a folder; 0 where there is none."""
  total = 0
  for parent, _, names in os.walk(folder):
    for name in names:
      with contextlib.suppress(OSError):  # another program may remove it meanwhile
        total += os.lstat(os.path.join(parent, name)).st_size
  return total


def free(place: pathlib.Path) -> int:
  """Bytes that are free where a file or folder is, or would be made."""
  return shutil.disk_usage(_existing(place)).free


def is_writable(place: pathlib.Path) -> bool:
  """Whether files can be put into a folder, which need not exist yet."""
  return _existing(place).is_dir() and os.access(_existing(place), os.W_OK | os.X_OK)


def _existing(place: pathlib.Path) -> pathlib.Path:
  """A path, or the nearest folder or file above it that exists."""
  return next(path for path in (place.absolute(), *place.absolute().parents)
              if os.path.lexists(path))


def follow():
  """Leaves writing and locking to another process, which this one follows."""
  global _follows
  _follows = True


_follows = False


def write(target: pathlib.Path, content: bytes):
  """Writes a file whole or not at all; makes its folder if need be."""
  write_together({target: content})


def write_together(contents: Mapping[pathlib.Path, bytes | Mapping[str, bytes]]):
  """Writes files, and folders of files, which get their names once all are on the disk.

  Until then everything is as it was, so a full disk changes nothing. The names then change in the
  order that is given, each in one step. A folder takes the place of one that had its name.
  """
  if _follows:
    return
  parts = {target: part_of(target) for target in contents}
  try:
    for target, part in parts.items():
      target.parent.mkdir(parents=True, exist_ok=True)
      _remove(part)  # of a command that was cut off
      _write_part(part, contents[target])
    for target, part in parts.items():
      _rename(part, target)
  finally:
    for part in parts.values():
      _remove(part)


def remove_empty(*folders: pathlib.Path):
  """Removes folders in this order, up to the first one that holds anything."""
  if not _follows:
    with contextlib.suppress(OSError):
      for folder in folders:
        folder.rmdir()


def part_of(target: pathlib.Path) -> pathlib.Path:
  """The name that a file or folder has while it is written."""
  return target.with_name(f'.{target.name}.part')


def install(part: pathlib.Path, target: pathlib.Path):
  """Gives a finished file its name in one step, once its bytes are on the disk."""
  _sync(part)
  _rename(part, target)


def _write_part(part: pathlib.Path, content: bytes | Mapping[str, bytes]):
  """Writes a file, or a folder of files by name, to the disk."""
  if isinstance(content, Mapping):
    part.mkdir()
    for name, of_file in content.items():
      _write_part(part / name, of_file)
  else:
    part.write_bytes(content)
  _sync(part)


def _rename(part: pathlib.Path, target: pathlib.Path):
  """Gives a file or folder its name, which survives a power cut when this returns."""
  if part.is_dir() and target.exists():
    _exchange(part, target)
  else:
    os.replace(part, target)
  _sync(target.parent)


def _sync(path: pathlib.Path):
  """Returns once a file, or the names in a folder, are on the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError:
    if not path.is_dir():  # some file systems cannot sync a folder
      raise
  finally:
    os.close(descriptor)


def _remove(part: pathlib.Path):
  """Removes a file or folder that may be there."""
  if part.is_dir():
    shutil.rmtree(part, ignore_errors=True)
  else:
    part.unlink(missing_ok=True)


SEAL = 'seal'              # the array of a .npz file that has the hash of the others
BEGINNING = 1024           # bytes of a file in which its mark is looked for
MANIFEST = 'written.json'  # in a folder that was written as a whole: the sha256 of its files


def check_replaceable(target: pathlib.Path, kind: str, earlier: str = ''):
  """Refuses a folder that must not be replaced, as it holds what no earlier result did.

  Args:
    target: the folder; if a kill left it under another name, it gets its name back.
    kind: what it may hold, in words, see `with_manifest`.
    earlier: a pattern of names that it may hold if it has no manifest.
  """
  if _follows:
    return
  if not target.exists() and _aside(target).exists():
    os.rename(_aside(target), target)
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
    if path.name == MANIFEST or _is_cache(path):
      continue
    if not written and re.fullmatch(earlier, path.name):
      continue
    if path.name not in written:
      raise errors.InputError(f'{target} holds {path.name}, which is not of an earlier result: '
                              'choose another folder.')
    if hashlib.sha256(read_file(path)).hexdigest() != written[path.name]:
      raise errors.InputError(f'{path} was changed since it was written: choose another folder, or '
                              'remove it.')


def check_file(target: pathlib.Path, mark: bytes):
  """Refuses a file that a result must not replace: it is there, and is not an earlier result.

  Args:
    target: the file; its folder may be missing.
    mark: bytes that stand at the beginning of each such result.
  """
  try:
    beginning = b''
    if os.path.lexists(target):
      with open_file(target) as file:
        beginning = file.read(BEGINNING)
    above = next(folder for folder in target.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
      raise OSError(errno.ENOTDIR, f'{above} is no folder')
  except OSError as error:
    raise errors.InputError(f'{target} cannot be written ({error.strerror}): choose another '
                            'name.') from error
  if beginning and mark not in beginning:
    raise errors.InputError(f'{target} is there already, and is not of an earlier result: choose '
                            'another name, or remove it.')


def _is_cache(path: pathlib.Path) -> bool:
  """Whether Python has made a folder, which then holds nothing but compiled modules."""
  return path.name == '__pycache__' and path.is_dir() and all(
      module.suffix == '.pyc' for module in path.iterdir())


def replace_folder(target: pathlib.Path, files: Mapping[str, bytes], kind: str):
  """Makes a folder hold just these files, in one step: until then what it held is there, whole.

  Args:
    target: the folder; it is made if need be.
    files: content by name.
    kind: what they are, in words; a folder of another kind is refused.
  """
  check_replaceable(target, kind)
  write_together({target: with_manifest(files, kind)})


def with_manifest(files: Mapping[str, bytes], kind: str) -> dict[str, bytes]:
  """The content of a folder of these files that `check_replaceable` knows again."""
  manifest = {'kind': kind, 'files': {
      name: hashlib.sha256(content).hexdigest() for name, content in files.items()}}
  return {**files, MANIFEST: to_json(manifest)}


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
    aside = _aside(other)
    _remove(aside)  # of a command that was cut off
    os.rename(other, aside)
    os.rename(one, other)
    os.rename(aside, one)


def _aside(target: pathlib.Path) -> pathlib.Path:
  """The name that an old folder has between two steps of an exchange."""
  return target.with_name(f'.{target.name}.old')


def append(target: pathlib.Path, content: bytes):
  """Adds bytes to a file; they are on the disk when this returns."""
  if _follows:
    return
  with open(target, 'ab') as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def write_text(target: pathlib.Path, text: str):
  """Writes a text file; a file name in it may be no valid text, and keeps its bytes."""
  write(target, text.encode(errors='surrogateescape'))


def write_json(target: pathlib.Path, content: Any):
  """Writes a JSON file that a person can read."""
  write(target, to_json(content))


def to_json(content: Any) -> bytes:
  """The content of a JSON file that a person can read."""
  return f'{json.dumps(content, indent=2)}\n'.encode()


@contextlib.contextmanager
def open_file(source: pathlib.Path) -> Iterator[BinaryIO]:
  """Opens a regular file; raises OSError for anything else, such as a pipe or a device."""
  descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
  with open(descriptor, 'rb') as file:
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
      number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
      raise OSError(number, 'it is no regular file', str(source))
    yield file


def read_file(source: pathlib.Path) -> bytes:
  """The content of a regular file, see `open_file`."""
  with open_file(source) as file:
    return file.read()


def read_json(source: pathlib.Path) -> Any:
  """The content of a JSON file; raises OSError or ValueError where there is none."""
  return parse_json(read_file(source))


def parse_json(content: bytes | str) -> Any:
  """The value of a JSON text; raises ValueError where it is none."""
  try:
    return json.loads(content)
  except RecursionError:
    raise ValueError('it is nested too deeply') from None


def npy(array: np.ndarray) -> bytes:
  """An array as the content of a .npy file."""
  buffer = io.BytesIO()
  np.save(buffer, array)
  return buffer.getvalue()


def json_lines(values: Iterable[Any]) -> bytes:
  """Values as the content of a file of JSON, one a line, whatever characters they hold."""
  return ''.join(f'{json.dumps(value)}\n' for value in values).encode()


class Rows:
  """A file of an array [rows, ...] that is filled from its first row to its last.

  Until it is whole it is another file, beside a note of how many rows are there.

  done: how many rows are there already; filling that was cut off goes on from them.
  """

  def __init__(self, target: pathlib.Path, shape: tuple[int, ...], note_every: int,
               dtype: np.dtype | type = np.float32):
    """Takes the name of the file, and after how many rows the note is written anew."""
    self._target, self._shape, self._every, self._dtype = target, shape, note_every, dtype
    self._part, self._note = target.with_name('part.npy'), target.with_name('rows.json')
    self.done = self._noted = (
        read_json(self._note) if self._note.exists() and self._part.exists() else 0)
    self._array = None

  def add(self, values: np.ndarray):
    """Adds rows [.., ...]."""
    if not _follows:
      if self._array is None:
        self._check_room()
        self._array = np.lib.format.open_memmap(
            self._part, 'r+' if self.done else 'w+', self._dtype, self._shape)
      self._array[self.done:self.done + len(values)] = values
    self.done += len(values)
    if self.done - self._noted >= self._every and not _follows:
      self._array.flush()  # before the note, which must never promise more than there is
      write_json(self._note, self.done)
      self._noted = self.done

  def _check_room(self):
    """Refuses to begin what the disk has no room for: a write through a map ends the program."""
    size = math.prod(self._shape) * np.dtype(self._dtype).itemsize
    if not self.done and free(self._part) < size:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._part.parent))

  def finish(self):
    """Gives the file its name, once all rows are there."""
    if self._array is not None:
      self._array.flush()
    install(self._part, self._target)
    self._note.unlink(missing_ok=True)


def write_npz(target: pathlib.Path, arrays: Mapping[str, np.ndarray], *, compressed: bool = False):
  """Writes arrays by name as one .npz file, sealed by their hash."""
  write(target, npz(arrays, compressed=compressed))


def npz(arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> bytes:
  """Arrays by name as the content of a .npz file, sealed by their hash."""
  buffer = io.BytesIO()
  save = np.savez_compressed if compressed else np.savez
  save(buffer, **arrays, **{SEAL: np.frombuffer(_digest(arrays), np.uint8)})
  return buffer.getvalue()


def read_npz(source: pathlib.Path, *, sealed: bool = False) -> dict[str, np.ndarray]:
  """The arrays of a .npz file by name, which must be those that were sealed, if they were.

  Raises OSError or ValueError where there are none, others, or unsealed ones where `sealed` is
  asked for.
  """
  try:
    with open_file(source) as content, np.load(content, allow_pickle=False) as file:
      arrays = dict(file)
  except OSError:
    raise
  # Damaged files make NumPy, zipfile and zlib raise almost anything.
  except Exception as error:
    raise ValueError('it is no archive of arrays, or was cut off') from error
  seal = arrays.pop(SEAL, None)
  if sealed and seal is None or seal is not None and seal.tobytes() != _digest(arrays):
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
