"""A program that dies at its n-th change of files, to see what a kill leaves behind at each.

Python tells an audit hook of every file that is opened for writing, renamed, removed or made; a
hook that raises prevents it. From its death on a program changes nothing more, so that what runs
while the exception rises cannot tidy up what a kill would have left. Writing half of a file's
content is a moment too.
"""

import contextlib
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ('os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'shutil.rmtree')


class Death(BaseException):
  """It stands for a kill: no handler of the program expects it."""


def _die():
  raise Death


class Life:
  """The changes of files below some folders, as (what, path), and the number of the last one.

  last: the program dies when it would make this change, counted from 1; None: it lives.
  die: the death; it raises, or it ends the process.
  """

  def __init__(self, folders: tuple[pathlib.Path, ...], last: int | None, die: Callable):
    self._prefixes = tuple(map(str, folders))
    self._last, self._die, self._lock = last, die, threading.Lock()
    self.changes: list[tuple[str, str]] = []

  def note(self, what: str, path):
    """Counts a change that is about to be made; dies if it is the last, or after that one."""
    name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ''
    if name.startswith(self._prefixes):
      with self._lock:  # Orbax writes in threads
        self.changes.append((what, name))
        if self._last is not None and len(self.changes) >= self._last:
          self._die()


_life: list[Life] = []  # the one that goes on now, if any


def _hook(event: str, arguments: tuple):
  if _life and (event in CHANGES or event == 'open' and arguments[2] & WRITING):
    _life[0].note(event, arguments[0])


_hooked: list[bool] = []  # a hook stays for the life of the process


@contextlib.contextmanager
def life(*folders: pathlib.Path, last: int | None = None,
         die: Callable = _die) -> Iterator[list[tuple[str, str]]]:
  """Counts the changes of files below folders, up to the last; see Life. Gives the changes."""
  if not _hooked:
    sys.addaudithook(_hook)
    _hooked.append(True)
  whole = pathlib.Path.write_bytes

  def write_bytes(path, content):
    with open(path, 'wb') as file:
      file.write(content[:len(content) // 2])
      file.flush()
      _life[0].note('half', path)
      return len(content) // 2 + file.write(content[len(content) // 2:])

  now = Life(folders, last, die)
  _life.append(now)
  pathlib.Path.write_bytes = write_bytes
  try:
    yield now.changes
  finally:
    pathlib.Path.write_bytes = whole
    _life.remove(now)
