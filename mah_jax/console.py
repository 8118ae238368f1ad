"""What a person sees while the program works: lines, bars, complaints; and how it is stopped."""

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
  encoding = sys.stdout.encoding or 'utf-8'  # file names may hold what it has no letter for
  tqdm.tqdm.write(text.encode(encoding, 'replace').decode(encoding), file=sys.stdout)
  sys.stdout.flush()


class Lines(tqdm.tqdm):
  """A progress bar for log files: a line a minute instead of a moving bar."""

  def display(self, msg=None, pos=None):
    """Prints the bar as a line of its own."""
    if msg != '':
      print(msg or str(self), file=self.fp, flush=True)

  def refresh(self, nolock=False, lock_args=None):
    """Prints when it is time; a redraw after other output, the only use of nolock, is not."""
    return nolock or super().refresh(nolock, lock_args)

  def clear(self, nolock=False):
    """A line stays where it is."""


def bar(total: int, name: str, done: int = 0) -> tqdm.tqdm:
  """A progress bar with its time left."""
  kind, pace = (tqdm.tqdm, 0.2) if sys.stderr.isatty() else (Lines, 60)
  return kind(total=total, initial=done, desc=name, leave=False, mininterval=pace, delay=pace,
              miniters=1, dynamic_ncols=True)


def clock(seconds: float) -> str:
  """Seconds as h:mm:ss, or m:ss below an hour."""
  return tqdm.tqdm.format_interval(seconds)


class StopRequest:
  """SIGTERM and Ctrl-C while it is entered: leave at once, or after the step when `deferred`.

  asked: the signal that came, or None.
  """

  def __init__(self, text: str):
    """`text` is said when the program is left at once."""
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
    """Only notes the wish in `asked`; a second one leaves all the same."""
    self._deferred = True
    try:
      yield
    finally:
      self._deferred = False

  def leave(self, text: str = ''):
    """Ends the program, after a sentence of why: code 0 for SIGTERM, 130 for Ctrl-C."""
    if text:
      say(text)
      self._explained = True
    raise SystemExit(0 if self.asked == signal.SIGTERM else 130)

  def _receive(self, number, frame):  # prints nothing: it may have interrupted a print
    again, self.asked = self.asked is not None, number
    if again or not self._deferred:
      self.leave()
