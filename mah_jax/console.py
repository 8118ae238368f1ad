"""The console: lines, progress bars and complaints for a person, who may stop the program."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tqdm

from mah_jax import errors


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
  try:
    work()
  except errors.UsageError as error:
    return 2, str(error)
  except errors.InputError as error:
    return 1, str(error)
  except OSError as error:
    return 1, f'{error.filename or "A file"}: {error.strerror or error}.'
  return 0, ''


def follow():
  """Leaves speaking and stopping to another process, which this one follows."""
  global _follows
  _follows = True


_follows = False


def complain(sentence: str, code: int) -> int:
  """Prints a sentence to stderr and returns the exit code."""
  print(f'mah_jax: {sentence}', file=sys.stderr)
  return code


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

  def refresh(self, nolock=False, lock_args=None):
    """Prints the bar, unless tqdm only redraws it after other output, which sets nolock."""
    return nolock or super().refresh(nolock, lock_args)

  def clear(self, nolock=False):
    """Does nothing: a line in a log cannot be cleared."""


def bar(total: int, name: str, done: int = 0) -> tqdm.tqdm:
  """A progress bar with its time left; each update of it is a moment at which work may stop."""
  if 'ipykernel' in sys.modules:  # a notebook
    import tqdm.auto
    kind, pace = tqdm.auto.tqdm, 0.2
  else:
    kind, pace = (tqdm.tqdm, 0.2) if sys.stderr.isatty() else (Lines, 60)
  return type('Bar', (_Stopping, kind), {})(
      total=total, initial=done, desc=name, leave=False, mininterval=pace, delay=pace, miniters=1,
      dynamic_ncols=True, disable=_follows)


class _Stopping:
  """A progress bar that lets the program stop where it is updated."""

  def update(self, n=1):
    """Counts, then stops if a person asked to and nothing defers it."""
    super().update(n)
    pause()


def clock(seconds: float) -> str:
  """Seconds as h:mm:ss, or m:ss below an hour."""
  return tqdm.tqdm.format_interval(seconds)


class StopRequest:
  """Receives SIGTERM and Ctrl-C while it is entered: work stops where it next asks.

  A signal is only noted, by a thread of its own, which says so at once even while the program
  compiles: an exception out of a signal handler could be lost in a callback. A second signal ends
  the program on the spot; files are written whole or not at all, so nothing is lost.

  asked: the signal that came, or None.
  """

  def __init__(self, text: str):
    """Takes the text that is said when the program stops."""
    self._text = text
    self.asked: int | None = None
    self._received = self._deferred = self._explained = False
    self._before: dict[int, Any] = {}

  def __enter__(self) -> StopRequest:
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
      signal.signal(number, handler)
    signal.set_wakeup_fd(self._wakeup)
    receive, send = self._ends
    send.close()  # which ends the thread
    self._thread.join()
    receive.close()
    if kind is SystemExit and not self._explained:
      say(self._text)

  def _listen(self, receive: socket.socket):
    """Notes the signals, whose numbers arrive as bytes."""
    while received := receive.recv(1):
      if received[0] not in SIGNALS:
        continue
      if self._received:
        os._exit(_exit_code(received[0]))
      self._received = True
      self.ask(received[0])

  def ask(self, number: int):
    """Notes the first signal, and says so at once."""
    if self.asked is None:
      self.asked = number
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
      self._explained = True
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
