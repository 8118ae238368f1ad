"""The console: lines, progress bars and complaints for a person, who may stop the program."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from collections.abc import Iterator

import tqdm

from mah_jax import errors


def exit_code(work: Callable[[], None]) -> int:
  """Does the work; an error that a user can mend becomes one sentence on stderr and a code.

  Returns:
    0; 2 for a command that cannot be meant, 1 for input that cannot be used.
  """
  try:
    work()
  except errors.UsageError as error:
    return complain(str(error), 2)
  except errors.InputError as error:
    return complain(str(error), 1)
  except OSError as error:
    return complain(f'{error.filename or "A file"}: {error.strerror or error}.', 1)
  return 0


def complain(sentence: str, code: int) -> int:
  """Prints a sentence to stderr and returns the exit code."""
  print(f'mah_jax: {sentence}', file=sys.stderr)
  return code


def say(text: str):
  """Prints a line above any progress bar."""
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
  """A progress bar with its time left."""
  kind, pace = (tqdm.tqdm, 0.2) if sys.stderr.isatty() else (Lines, 60)
  return kind(total=total, initial=done, desc=name, leave=False, mininterval=pace, delay=pace,
              miniters=1, dynamic_ncols=True)


def clock(seconds: float) -> str:
  """Seconds as h:mm:ss, or m:ss below an hour."""
  return tqdm.tqdm.format_interval(seconds)


class StopRequest:
  """Receives SIGTERM and Ctrl-C while it is entered: the program ends at once, unless `deferred`.

  asked: the signal that came, or None.
  """

  def __init__(self, text: str):
    """Takes the text that is said when the program ends at once."""
    self._text = text
    self.asked: int | None = None
    self._deferred = self._explained = False
    self._before = {}

  def __enter__(self) -> StopRequest:
    for number in (signal.SIGTERM, signal.SIGINT):
      self._before[number] = signal.signal(number, self._receive)
    return self

  def __exit__(self, kind, *unused):
    for number, handler in self._before.items():
      signal.signal(number, handler)
    if kind is SystemExit and not self._explained:
      say(self._text)

  @contextlib.contextmanager
  def deferred(self) -> Iterator[None]:
    """Only notes the signal in `asked`; a second one ends the program all the same."""
    self._deferred = True
    try:
      yield
    finally:
      self._deferred = False

  def leave(self, text: str = ''):
    """Says why and ends the program, with code 0 for SIGTERM and 130 for Ctrl-C."""
    if text:
      say(text)
      self._explained = True
    raise SystemExit(0 if self.asked == signal.SIGTERM else 130)

  def _receive(self, number, frame):  # prints nothing: it may have interrupted a print
    again, self.asked = self.asked is not None, number
    if again or not self._deferred:
      self.leave()
