"""The console: lines, progress bars and complaints for a person, who may stop the program."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tqdm

from mah_jax import errors

FORMAT = '{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]'
MOVING = 0.2                    # seconds between two moves of a bar
FIRST_LINE, NEXT_LINE = 10, 60  # seconds until a bar in a log file has its first line, its next


def exit_code(work: Callable[[], None]) -> int:
  """Does the work; an error that a user can mend becomes one sentence on stderr and a code."""
  code, sentence = attempt(work)
  return complain(sentence, code) if code else code


def attempt(work: Callable[[], None]) -> tuple[int, str]:
  """Does the work.

  Returns:
    0 and nothing; 2 for a command that cannot be meant or 1 for input that cannot be used, and
    a sentence.
  """
  _open_streams()
  try:
    work()
    sys.stdout.flush()
  except errors.UsageError as error:
    return 2, str(error)
  except errors.InputError as error:
    return 1, str(error)
  except BrokenPipeError:
    os.dup2(_nowhere(), 1)  # else Python would complain at its end
    return 1, ('The program that read the output has ended, and so does this one: let it read to '
               'the end, or write to a file.')
  except OSError as error:
    return 1, _explained(error)
  except MemoryError:
    return 1, NO_MEMORY
  except RuntimeError as error:
    if "can't start new thread" not in str(error):
      raise
    return 1, NO_MEMORY
  return 0, ''


def follow():
  """Leaves speaking and stopping to another process, which this one follows."""
  global _follows
  _follows = True


_follows = False


def complain(sentence: str, code: int) -> int:
  """Prints a sentence to stderr and returns the exit code."""
  # The name of a file, or a foreign message, may hold line breaks and signs that move the cursor.
  text = ''.join(x if x.isprintable() else '?' for x in ' '.join(sentence.splitlines()))
  with contextlib.suppress(OSError):  # nobody may be listening
    print(f'mah_jax: {text}', file=sys.stderr, flush=True)
  return code


NO_MEMORY = ('The program has too little memory, or may start too few threads: end other programs, '
             'or raise the limits (ulimit -v, ulimit -u).')
REMEDIES = {
    errno.ENOSPC: 'make room on the disk, and give the same command again',
    errno.EDQUOT: 'make room on the disk, and give the same command again',
    errno.EFBIG: 'raise the limit of file sizes (ulimit -f)',
    errno.EACCES: 'correct its permissions, or choose another place',
    errno.EPERM: 'correct its permissions, or choose another place',
    errno.EROFS: 'choose another place',
    errno.ENOENT: 'correct the path; if it was there, another program has removed it',
    errno.EEXIST: 'move it away, or choose another place',
    errno.EISDIR: 'move it away, or choose another place',
    errno.ENOTDIR: 'correct the path',
    errno.ELOOP: 'correct the link',
    errno.ENAMETOOLONG: 'choose a shorter name',
    errno.EINVAL: 'replace it by a file',
    errno.EMFILE: 'raise the limit of open files (ulimit -n)',
    errno.ENOMEM: 'give the program more memory',
    errno.EIO: 'check the disk',
}


def _explained(error: OSError) -> str:
  """An error of the system as a sentence: the file, what happened, and the remedy."""
  reason = error.strerror or str(error) or type(error).__name__
  remedy = REMEDIES.get(error.errno, 'see to it, and give the same command again')
  file = error.filename or 'A file or the output'
  return f'{file} cannot be read or written ({reason}): {remedy}.'


def _open_streams():
  """Opens an output that was closed, as by `>&-`, so that what is said goes nowhere.

  Its number must not become that of another file, which would then get what libraries print.
  """
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      _nowhere()  # which gets the lowest number that is free, this one
  for name in ('stdout', 'stderr'):
    if getattr(sys, name) is None:
      setattr(sys, name, os.fdopen(_nowhere(), 'w'))


def _nowhere() -> int:
  return os.open(os.devnull, os.O_RDWR)


def say(text: str):
  """Prints a line above any progress bar."""
  if _follows:
    return
  encoding = sys.stdout.encoding or 'utf-8'  # which may lack letters of a file name
  tqdm.tqdm.write(text.encode(encoding, 'replace').decode(encoding), file=sys.stdout)
  sys.stdout.flush()


class Lines(tqdm.tqdm):
  """A progress bar for log files: a line a minute instead of a moving bar."""

  def display(self, msg=None, pos=None):
    """Prints the bar as a line of its own."""
    if msg != '':
      print(msg or str(self), file=self.fp, flush=True)
      if self.delay:  # the first line came early
        self.mininterval = NEXT_LINE

  def refresh(self, nolock=False, lock_args=None):
    """Prints the bar, unless tqdm only redraws it after other output, which sets nolock."""
    return nolock or super().refresh(nolock, lock_args)

  def clear(self, nolock=False):
    """Does nothing: a line in a log cannot be cleared."""


def bar(total: int, name: str, done: int = 0, unit: str = 'images') -> tqdm.tqdm:
  """A progress bar with its speed and time left; at each update of it work may stop.

  A `total` of 0 is not known.
  """
  if 'ipykernel' in sys.modules:  # a notebook
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # without ipywidgets it is a bar of text
      from tqdm import auto
    kind, pace = auto.tqdm, MOVING
  else:
    kind, pace = (tqdm.tqdm, MOVING) if sys.stderr.isatty() else (Lines, FIRST_LINE)
  # tqdm would start a thread for each such class, which never ends.
  return type('Bar', (_Stopping, kind), {'monitor_interval': 0})(
      total=total or None, initial=done, desc=name, leave=False, mininterval=pace, delay=pace,
      miniters=1, dynamic_ncols=True, disable=_follows, unit=f' {unit}', bar_format=FORMAT)


class _Stopping:
  """A progress bar that lets the program stop where it is updated."""

  def update(self, n=1):
    """Counts, then stops if a person asked to and nothing defers it."""
    super().update(n)
    pause()

  def skip(self, n: int):
    """Counts what took a time of its own, as a first step that is compiled, and measures anew."""
    if not self.disable:
      self.n += n
      self.initial = self.last_print_n = self.n
      self.start_t = self.last_print_t = self._time()
    pause()


def clock(seconds: float) -> str:
  """Seconds as h:mm:ss, or m:ss below an hour."""
  return tqdm.tqdm.format_interval(seconds)


@dataclasses.dataclass
class _Note:
  """The signal that asks to stop, whether it came to this process, and whether that was said."""
  asked: int | None = None
  received: bool = False
  explained: bool = False


class StopRequest:
  """Receives SIGTERM and Ctrl-C while it is entered: work stops where it next asks.

  A signal is only noted, by a thread of its own, which says so at once even while the program
  compiles: an exception out of a signal handler could be lost in a callback. A second signal ends
  the program on the spot; files are written whole or not at all, so nothing is lost.

  One that is entered inside of another takes its place; they share what came.
  """

  def __init__(self, text: str, after: Any = None):
    """Takes the text that is said when the program stops, and what then handles signals.

    That is `after`, as `signal.signal` takes it; None: what handled them before.
    """
    self._text, self._after = text, after
    self._deferred = False
    self._before: dict[int, Any] = {}
    self._note = _Note()

  @property
  def asked(self) -> int | None:
    """The signal that came, or None."""
    return self._note.asked

  def __enter__(self) -> StopRequest:
    if _active:
      self._note = _active[-1]._note
    receive, send = socket.socketpair()
    for end in (receive, send):
      end.setblocking(end is receive)
    self._ends, self._wakeup = (receive, send), signal.set_wakeup_fd(send.fileno())
    self._thread = threading.Thread(target=self._listen, args=(receive,), daemon=True)
    self._thread.start()
    for number in SIGNALS:
      self._before[number] = signal.signal(number, lambda number, frame: None)
    _active.append(self)
    return self

  def __exit__(self, kind, *unused):
    _active.remove(self)
    for number, handler in self._before.items():
      signal.signal(number, handler if self._after is None else self._after)
    signal.set_wakeup_fd(self._wakeup)
    receive, send = self._ends
    send.close()  # which ends the thread
    self._thread.join()
    receive.close()
    if kind is SystemExit and not self._note.explained:
      say(self._text)
      self._note.explained = True

  def _listen(self, receive: socket.socket):
    """Notes the signals, whose numbers arrive as bytes."""
    while received := receive.recv(1):
      if received[0] not in SIGNALS:
        continue
      if self._note.received:
        os._exit(_exit_code(received[0]))
      self._note.received = True
      self.ask(received[0])

  def ask(self, number: int):
    """Notes the first signal, and says so at once."""
    if self._note.asked is None:
      self._note.asked = number
      with contextlib.suppress(OSError):  # nobody may be listening
        os.write(2, b'\nStopping as soon as the work allows it; a second signal ends it at once.\n')

  @contextlib.contextmanager
  def deferred(self) -> Iterator[None]:
    """Lets work that asks itself, or that must not be cut in two, go on when a signal came."""
    self._deferred = True
    try:
      yield
    finally:
      self._deferred = False

  def pause(self):
    """Stops if a person asked to and nothing defers it."""
    if self.asked is not None and not self._deferred:
      self.leave()

  def leave(self, text: str = ''):
    """Says why and ends the program, with code 0 for SIGTERM and 130 for Ctrl-C."""
    if text:
      say(text)
      self._note.explained = True
    raise SystemExit(_exit_code(self.asked))


SIGNALS = (signal.SIGTERM, signal.SIGINT)
_active: list[StopRequest] = []  # those that are entered, the innermost last


def pause():
  """A moment at which work may stop: long work without a progress bar calls it now and then."""
  if _active and not _follows and threading.current_thread() is threading.main_thread():
    _active[-1].pause()


def asked() -> int | None:
  """The signal that asked this program to stop, or None."""
  return _active[-1].asked if _active else None


def ask(number: int):
  """Asks this program to stop, as a signal of this number would."""
  for stop in _active:
    stop.ask(number)


def _exit_code(number: int | None) -> int:
  return 0 if number == signal.SIGTERM else 130
