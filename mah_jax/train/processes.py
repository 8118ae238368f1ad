"""Several processes that share one run: what they agree on, and how they end together.

No other file knows processes. The first one decides, prints and writes; the others follow it.
Words go through the key-value store of JAX's coordination service, arrays through the devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
from jax._src import distributed  # its key-value store has no public name

from mah_jax import console
from mah_jax import errors
from mah_jax import storage

TICK = 0.25    # seconds between two looks at what the other processes say
MEETING = 300  # seconds that processes wait for each other at the start
GRACE = 5      # seconds of silence that make a process dead once a collective has failed
FOREVER = 2**31 - 1  # milliseconds
ROOT = 'mah_jax/'
ALIVE, END, STOP, LEFT = (f'{ROOT}{name}' for name in ('alive/', 'end', 'stop', 'left/'))
GONE = ('Process {} of {} is gone: it ended, or its machine does not answer. The same command, '
        'given to all processes, goes on from what was saved.')


class Launch(NamedTuple):
  """How this process was started, as the flags of the same names say."""
  distributed: bool = False
  coordinator: str = ''
  num_processes: int = 1
  process_id: int = 0
  process_timeout: int = 60

  @property
  def several(self) -> bool:
    """Whether it is one of several."""
    return self.distributed or bool(self.coordinator)


def run(launch: Launch, work: Callable[[], None]) -> int:
  """Does the work, alone or as one of several processes; returns the exit code.

  Several processes end together and do not return: whichever cannot go on, the first one says
  why, once, and all have its exit code.
  """
  if not launch.several:
    return console.exit_code(work)
  code, sentence = console.attempt(lambda: _join(launch))
  if code:
    return console.complain(sentence, code)
  try:
    code, sentence = console.attempt(work)
  except SystemExit as stopped:
    code = stopped.code
  except BaseException:  # a defect of ours, or what another process's death does to this one
    code, sentence = 1, f'Process {_team.number} ended by the error that its log shows.'
    _team.failed = True
    if not _team.ending.wait(GRACE + 4 * TICK):  # nobody was found to be dead
      traceback.print_exc()
  _team.end(code, sentence)


def once(function: Callable[[], Any]) -> Any:
  """What a function returns in the first process, in all; it must be JSON. The others wait."""
  return function() if _team is None else _team.once(function)


def gather(value: Any) -> list[Any]:
  """The JSON values of all processes, in their order; each waits for all others."""
  return [value] if _team is None else _team.gather(value)


def spread(known: Callable[[], dict[int, str] | None],
           work: Callable[[Sequence[int]], dict[int, str]], count: int) -> dict[int, str]:
  """Texts of some of `count` items: those that are known already, or what `work` finds.

  Each process works on its share; the first one says whether they are known.
  """
  number, processes = (0, 1) if _team is None else (_team.number, _team.count)
  found = once(known)
  parts = [found] if found is not None else gather(work(range(number, count, processes)))
  return dict(sorted((int(item), text) for part in parts for item, text in part.items()))


def check_same(settings: Mapping[str, Any]):
  """Refuses processes that were started with other settings than the first one."""
  first = once(lambda: dict(settings))
  for name, value in settings.items():
    if name != 'process_id' and first[name] != value:
      raise errors.UsageError(f'Process {_team.number} has --{name}={value}, process 0 '
                              f'{first[name]}: give all processes the same flags.')


def check_shared(folder: pathlib.Path):
  """Refuses a folder that is not the same one for all processes."""
  first = once(lambda: os.stat(folder).st_ino)
  if not folder.exists() or os.stat(folder).st_ino != first:
    raise errors.InputError(f'{folder} of process {_team.number} is not the one of process 0: '
                            'choose a --workdir on a file system that all processes share.')


class _Team:
  """The processes, as one of them sees the others.

  number: of this process, from 0.
  count: of all processes.
  failed: whether this one was struck by an error, which another's death may have caused.
  ending: set when the end of all processes was announced.
  """

  def __init__(self, launch: Launch):
    state = distributed.global_state
    self.number, self.count, self._client = state.process_id, state.num_processes, state.client
    self.failed, self.ending = False, threading.Event()
    self._timeout = launch.process_timeout
    self._calls = 0  # of once and gather, which all processes make in the same order
    self._heard = {}  # process -> its last sign of life, and when it came
    self._living = set(range(1, self.count))  # whom the first process waits for at the end
    self._answered = time.monotonic()  # when the store last did
    for work in (self._watch, self._listen_for_first):
      threading.Thread(target=work, daemon=True).start()

  def once(self, function: Callable[[], Any]) -> Any:
    """See `once` above."""
    self._calls += 1
    key = f'{ROOT}once/{self._calls}'
    if self.number == 0:
      self._client.key_value_set(key, json.dumps(function()))
    return json.loads(self._client.blocking_key_value_get(key, FOREVER))

  def gather(self, value: Any) -> list[Any]:
    """See `gather` above."""
    self._calls += 1
    keys = [f'{ROOT}gather/{self._calls}/{number}' for number in range(self.count)]
    self._client.key_value_set(keys[self.number], json.dumps(value))
    return [json.loads(self._client.blocking_key_value_get(key, FOREVER)) for key in keys]

  def end(self, code: int, sentence: str = ''):
    """Waits for the end of all processes, which the first one or a failure brings about."""
    if self.number == 0 or code:
      self._announce(code, sentence)
    while True:
      time.sleep(FOREVER)

  def _announce(self, code: int, sentence: str):
    with contextlib.suppress(Exception):  # of several kinds: another process was first
      self._client.key_value_set(END, json.dumps([code, sentence]))

  def _watch(self):
    """Tells the others that this process lives, and does what they ask for, until the end."""
    beat = 0
    while True:
      beat += 1
      try:
        self._client.key_value_set(f'{ALIVE}{self.number}', str(beat), allow_overwrite=True)
        if console.asked() is not None:
          self._client.key_value_set(STOP, str(console.asked()), allow_overwrite=True)
        said = dict(self._client.key_value_dir_get(ROOT.rstrip('/')))
        self._answered = time.monotonic()
      except Exception:  # JAX raises several kinds: the first process has the store
        _last_words(GONE.format(0, self.count))
      if END in said:
        self.ending.set()
        self._leave(*json.loads(said[END]))
      if STOP in said:
        console.ask(int(said[STOP]))
      if self.number == 0:
        self._look_for_dead(said)
      time.sleep(TICK)

  def _listen_for_first(self):
    """Ends this process when the store, which the first one has, answers no more."""
    while time.monotonic() - self._answered < self._timeout:
      time.sleep(TICK)
    _last_words(GONE.format(0, self.count))

  def _look_for_dead(self, said: Mapping[str, str]):
    now = time.monotonic()
    for number in range(1, self.count):
      beat = said.get(f'{ALIVE}{number}')
      if self._heard.setdefault(number, (beat, now))[0] != beat:
        self._heard[number] = beat, now
      if now - self._heard[number][1] > (GRACE if self.failed else self._timeout):
        self._living.discard(number)
        self._announce(1, GONE.format(number, self.count))

  def _leave(self, code: int, sentence: str):
    """Ends this process: the first one says why, and waits until the others have heard it."""
    if self.number:
      self._client.key_value_set(f'{LEFT}{self.number}', '')
    else:
      if sentence:
        console.complain(sentence, code)
      until = time.monotonic() + GRACE
      while time.monotonic() < until and len(
          self._client.key_value_dir_get(LEFT.rstrip('/'))) < len(self._living):
        time.sleep(TICK)
    _exit(code)


_team: _Team | None = None  # None: this process is alone


def _join(launch: Launch):
  """Meets the other processes; refuses what cannot work."""
  global _team
  lost = ('The processes do not find each other{}: check that all of them were started, that the '
          'host of process 0 can be reached by the others, and that its port is free.')
  by_hand = {} if launch.distributed else {
      'coordinator_address': launch.coordinator, 'num_processes': launch.num_processes,
      'process_id': launch.process_id, 'cluster_detection_method': 'deactivate'}
  if launch.coordinator and launch.process_id == 0:  # JAX would wait for the others all the same
    try:
      socket.create_server(('', int(launch.coordinator.rsplit(':', 1)[1]))).close()
    except OSError as error:
      raise errors.UsageError(f'--coordinator={launch.coordinator} cannot be listened at '
                              f'({error.strerror}): choose another port.') from error
  before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # the meeting hears no Ctrl-C
  jax.config.update('jax_enable_preemption_service', False)  # it would take SIGTERM from us
  _aborting.sentence = lambda: lost.format(f' within {MEETING} s')
  _aborting.begin()
  try:
    jax.distributed.initialize(
        **by_hand, initialization_timeout=MEETING,
        heartbeat_timeout_seconds=2 * launch.process_timeout)
  except ValueError as error:
    raise errors.UsageError(
        '--distributed finds no job of Slurm, Open MPI 4 or Kubernetes that this process is part '
        'of: start it by one, or give --coordinator, --num_processes and --process_id.') from error
  except RuntimeError as error:
    raise errors.InputError(lost.format(f' ({str(error).splitlines()[0]})')) from error
  finally:
    signal.signal(signal.SIGINT, before)
    _aborting.end()
  if distributed.global_state.process_id:
    console.follow()
    storage.follow()
    _aborting.sentence = _first_is_gone
    _aborting.begin()
  _team = _Team(launch)


def _first_is_gone() -> str | None:
  """The sentence on the death of the first process, or None if it lives."""
  host, port = distributed.global_state.coordinator_address.rsplit(':', 1)
  try:
    socket.create_connection((host.strip('[]'), int(port)), timeout=GRACE).close()
  except OSError:
    return GONE.format(0, distributed.global_state.num_processes)
  return None


class _Aborting:
  """Replaces the dump with which JAX aborts a process that has lost the others by a sentence.

  What XLA writes meanwhile is kept, and shown if the sentence is None: it has other reasons.

  sentence: called for it when the abort comes.
  """

  def __init__(self):
    self.sentence: Callable[[], str | None] = lambda: None
    self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._on_abort)

  def begin(self):
    """Receives aborts from now on."""
    self._native = tempfile.TemporaryFile()  # noqa: SIM115, it stays open
    self._stderr = sys.stderr
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), 'w', buffering=1)
    os.dup2(self._native.fileno(), 2)
    ctypes.CDLL(None).signal(signal.SIGABRT, self._handler)

  def end(self):
    """Leaves aborts to the system again."""
    os.dup2(sys.stderr.fileno(), 2)
    sys.stderr = self._stderr
    ctypes.CDLL(None).signal(signal.SIGABRT, None)

  def _on_abort(self, number: int):
    sentence = self.sentence()
    if sentence is None:
      self._native.seek(0)
      sys.stderr.write(self._native.read().decode(errors='replace'))
    _last_words(sentence or 'XLA ended this process, for the reason above.')


_aborting = _Aborting()


def _last_words(sentence: str):
  """Ends a process that has nobody left to speak for it."""
  console.complain(sentence, 1)
  _exit(1)


def _exit(code: int):
  """Ends this process from any thread; JAX would wait for the others once more."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)
