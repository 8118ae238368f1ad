"""Every change that a program makes to files, told before it is made, and what a folder holds.

Python tells an audit hook of every file that is opened for writing, renamed, removed or made. What
is on the disk then is what a kill at this moment would leave. When half of a file's content is
written is such a moment too. What TensorStore writes by itself, arrays of a checkpoint that has
no name yet, is not told.
"""

import contextlib
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ('os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'shutil.rmtree')


class _Watch:
  """Tells of changes below some folders, one at a time: Orbax makes them in threads."""

  def __init__(self, folders: tuple[pathlib.Path, ...], on_change: Callable[[str, str], None]):
    self._prefixes = tuple(map(str, folders))
    self._on_change, self._lock = on_change, threading.RLock()
    self._busy = False

  def tell(self, what: str, path):
    """Tells of a change, unless on_change itself makes it."""
    name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ''
    if not name.startswith(self._prefixes):
      return
    with self._lock:
      if not self._busy:
        self._busy = True
        try:
          self._on_change(what, name)
        finally:
          self._busy = False


_watches: list[_Watch] = []  # the one that goes on now, if any
_hooked: list[bool] = []  # a hook stays for the life of the process


def _hook(event: str, arguments: tuple):
  if _watches and (event in CHANGES or event == 'open' and arguments[2] & WRITING):
    _watches[0].tell(event, arguments[0])


@contextlib.contextmanager
def watched(*folders: pathlib.Path, on_change: Callable[[str, str], None]) -> Iterator[None]:
  """Calls on_change(what, path) before each change below folders; it may raise, or end it all."""
  if not _hooked:
    sys.addaudithook(_hook)
    _hooked.append(True)
  watch, whole = _Watch(folders, on_change), pathlib.Path.write_bytes

  def write_bytes(path, content):
    half = len(content) // 2
    with open(path, 'wb') as file:
      file.write(content[:half])
      file.flush()
      watch.tell('half', path)
      return half + file.write(content[half:])

  _watches.append(watch)
  pathlib.Path.write_bytes = write_bytes
  try:
    yield
  finally:
    pathlib.Path.write_bytes = whole
    _watches.remove(watch)


def content(folder: pathlib.Path) -> dict[str, object]:
  """What a folder holds, by name, without times, and without the checkpoints of a run.

  The hidden names that files have while they are written are left out: no reader looks at them.
  So are the page and the events of a run, which are made of the rest and have times.
  """
  found = {}
  for path in sorted(folder.rglob('*')):
    name = path.relative_to(folder).as_posix()
    if path.is_file() and '/.' not in f'/{name}' and not name.startswith(
        ('checkpoints/', 'config.json', 'report.html', 'events.')):
      found[name] = path.read_bytes()
  times = ('timing', 'seconds', 'images_per_second')
  for name in ('results.json', 'metrics.jsonl'):
    if name in found:
      lines = [found[name]] if name == 'results.json' else found[name].splitlines()
      found[name] = [{key: value for key, value in json.loads(line).items() if key not in times}
                     for line in lines]
  return found


def left_over(folder: pathlib.Path) -> list[str]:
  """The names that files have only while they are written."""
  return [path.name for path in folder.rglob('*')
          if path.suffix in ('.part', '.old') or 'orbax-checkpoint-tmp' in path.name]
