"""What signals and kills do to training, evaluating and encoding: nothing may be lost or mixed.

PYTHONPATH=.:tests python benchmarks/interruptions.py [signals] [kills] [writes]

- signals: SIGTERM and SIGINT at 30 moments of each command, spread evenly from its start to its
  end. It must say that it heard, leave with its code (0 and 130), and replace nothing.
- kills: SIGKILL at 100 moments spread evenly over the training itself, 20 of them in each run.
- writes: SIGKILL before every single change that a command makes to its files, for all of them.

After each, the same command must go on and end with the same files as if nothing had happened.
Exits with 1 if anything does not hold.
"""

import collections
import hashlib
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import changes
import image_files

MOMENTS = 30
KILLS = 100
RUNS = 5  # that share them
ROOT = pathlib.Path(__file__).parents[1]
TRAIN = ['--dataset=digits', '--backbone=compact', '--width=4', '--image_size=8', '--crop=1.0',
         '--normalize=dataset', '--code_lengths=4,8', '--head_weights=1,1', '--num_rounds=12',
         '--epochs_per_round=1', '--batch_size=64', '--num_sampled=600', '--num_devices=1']
CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}  # exit codes, as README.md says
HEARD = 'Stopping as soon as'
LAG = 0.3  # seconds until a line of a program on a busy machine is read here


class Command:
  """A command, the folder that it changes, and what that holds before and after.

  prepare: makes the folder what it is before the command, below a new folder.
  """

  def __init__(self, name, arguments, target, prepare):
    self.name, self.target, self.prepare = name, target, prepare
    self._arguments = arguments

  def arguments(self, base):
    """Its arguments, for files below a folder."""
    return [argument.replace('BASE', str(base)) for argument in self._arguments]

  def start(self, base, child=()):
    """Starts it, as a user would or as a child that does something at certain moments."""
    how = ['-m', 'mah_jax.main'] if not child else [__file__, 'child', *map(str, child)]
    return subprocess.Popen([sys.executable, *how, *self.arguments(base)], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

  def shortened(self):
    """The same with fewer rounds of training, if it trains."""
    more = ['--num_rounds=2'] if self.name == 'train' else []
    return Command(self.name, [*self._arguments, *more], self.target, self.prepare)

  def finish(self, base):
    """Runs it to its end; returns what its folder then holds."""
    process = self.start(base)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert not changes.left_over(base / self.target), changes.left_over(base / self.target)
    return changes.content(base / self.target)


def commands(base: pathlib.Path) -> list[Command]:
  """The three commands; a finished run and images are made below a folder first."""
  run, photos = base / 'run', base / 'photos'
  image_files.class_tree(photos, {'bag': 40, 'cup': 40})
  train = Command('train', [*TRAIN, '--workdir=BASE/run'], 'run', lambda base: None)
  train.finish(base)
  encode = ['--mode=encode', f'--workdir={run}', '--output=BASE/codes', '--num_devices=1']
  bags = Command('', [*encode, f'--images={photos / "bag"}'], 'codes', None)
  bags.finish(base)
  return [
      train,
      Command('evaluate', ['--mode=evaluate', '--workdir=BASE/run', '--binarize=nearest',
                           '--num_devices=1'], 'run',
              lambda new: shutil.copytree(run, new / 'run')),
      Command('encode', [*encode, f'--images={photos}'], 'codes',
              lambda new: shutil.copytree(base / 'codes', new / 'codes'))]


def signals(command: Command, base: pathlib.Path) -> collections.Counter:
  """Sends signals at moments of a command; counts how it ended.

  Moments are seconds of computing, so that a busy machine does not move them.
  """
  own = base / f'signals-{command.name}'
  before, after, seconds = _undisturbed(command, own)
  deaf = _seconds_of_import()
  ends = collections.Counter()
  for k in range(MOMENTS):
    number = (signal.SIGTERM, signal.SIGINT)[k % 2]
    moment = (k + 0.5) / MOMENTS * seconds
    while True:
      _renew(command, own)
      process = command.start(own)
      while process.poll() is None and _computed(process) < moment:
        time.sleep(0.002)
      if process.poll() is None:
        break
      process.communicate()
      moment *= 0.95  # it had ended already
    process.send_signal(number)
    sent = time.monotonic()
    out, written = '', math.inf  # when it said so
    for line in process.stdout:
      out += line
      if 'Written to' in line:
        written = time.monotonic()
    err = process.stderr.read()
    process.wait()
    ended = time.monotonic() - sent
    found = changes.content(own / command.target)
    if HEARD in err and process.returncode == CODES[number] and 'Stopped' in out:
      if command.name != 'train':
        _check(found == before, f'{command.name} was stopped and has changed its files')
      end = 'heard, stopped'
    elif process.returncode == 0 and (HEARD in err or written < sent + LAG):
      _check(found == after, f'{command.name} ended with other files')
      end = 'heard too late, finished' if HEARD in err else 'all was done'
    elif moment < deaf and HEARD not in err:
      _check(found == before, f'{command.name} was ended at its start and has changed its files')
      end = 'before the program began'
    else:
      end = 'WRONG'
      print(f'{command.name}, {number.name} after {moment:.2f} of {seconds:.2f} s: code '
            f'{process.returncode}\n{out[-2000:]}{err[-2000:]}')
    _check(command.finish(own) == after, f'{command.name} did not go on to the same files')
    ends[end] += 1
    print(f'{command.name}  {number.name}  after {moment:.2f} of {seconds:.2f} s  {end}  '
          f'{ended:.2f} s later', flush=True)
  return ends


def kills(command: Command, base: pathlib.Path) -> collections.Counter:
  """Kills the training at moments after its first step, up to its end; counts what it was at.

  Each run is killed KILLS / RUNS times before it may end. A moment is the last thing that an
  undisturbed run had begun then, and the seconds since: a busy machine does not move it.
  """
  own, log = base / 'kills', base / 'log'
  _, after, _ = _undisturbed(command, own)
  _renew(command, own)
  log.write_text('')
  command.start(own, ('log', log)).communicate()
  times = [(float(line.split(' ', 1)[0]), line.split(' ', 1)[1])
           for line in log.read_text().splitlines()]
  began = min(time_ for time_, event in times if event == 'begin step 1')
  ended = times[-1][0]
  moments = [began + (k + 0.5) / KILLS * (ended - began) for k in range(KILLS)]
  phases = collections.Counter()
  for run in range(RUNS):
    _renew(command, own)
    for moment in moments[run::RUNS]:
      time_, event = max(pair for pair in times if pair[0] <= moment)
      phase = _kill(command, own, log, event, moment - time_)
      if not phase:  # a checkpoint that was saved in time has spared it this moment
        _check(changes.content(own / 'run') == after, 'a killed training ended with other files')
        _renew(command, own)
        phase = _kill(command, own, log, event, moment - time_)
      phases[phase] += 1
      print(f'run {run + 1}, killed {moment - began:.2f} of {ended - began:.2f} s into the '
            f'training, {event}: {phase}', flush=True)
    _check(command.finish(own) == after, f'run {run + 1} did not end with the same files')
    print(f'run {run + 1} ended', flush=True)
  return phases


def _kill(command: Command, own: pathlib.Path, log: pathlib.Path, event: str, delay: float) -> str:
  """Kills a training some seconds after an event; returns its phase, or '' where it ended."""
  log.write_text('')
  process = command.start(own, ('log', log))
  while f' {event}\n' not in log.read_text() and process.poll() is None:
    time.sleep(0.001)
  time.sleep(delay)
  process.kill()
  out, err = process.communicate()
  _check(process.returncode in (0, -signal.SIGKILL), f'the same command failed: {out}{err}')
  return _phase(log.read_text()) if process.returncode else ''


def _phase(log: str) -> str:
  """What a killed training was at: that which began last and did not end."""
  open_ = set()
  for line in log.splitlines():
    _, kind, name, *_ = line.split(' ')
    {'begin': open_.add, 'end': open_.discard}[kind](name)
  order = 'sealing', 'results', 'saving', 'encoding', 'step'  # saving goes on during steps
  return next(name for name in order if name in open_)


def writes(command: Command, base: pathlib.Path) -> collections.Counter:
  """Kills a command before each of its changes of files; counts what it leaves."""
  own = base / f'writes-{command.name}'
  before, after, _ = _undisturbed(command, own)
  log = base / 'count'
  left = collections.Counter()
  n = 0
  while True:
    n += 1
    log.write_text('')
    _renew(command, own)
    process = command.start(own, ('die', log, own, n))
    process.communicate()
    if process.returncode == 0:
      break  # it makes fewer changes
    _check(process.returncode == -signal.SIGKILL, f'{command.name} ended with an error')
    found = changes.content(own / command.target)
    kind = _left_in_run(found, before, after) if command.target == 'run' else (
        'old' if found == before else 'new' if found == after else 'WRONG')
    _check(command.finish(own) == after, f'{command.name}, {log.read_text()}: other files')
    left[kind] += 1
    print(f'{command.name}  change {n}: {log.read_text()}  left {kind}', flush=True)
  return left


def _left_in_run(found, before, after) -> str:
  """Whether the parts of a run folder are those before or after a command."""
  def part(content, name):
    return {key: value for key, value in content.items() if key.split('/')[0] == name}

  names = {key.split('/')[0] for key in (*found, *before, *after)}
  kinds = set()
  for name in names:
    if name == 'metrics.jsonl':  # it grows by a line at a time
      continue
    own = part(found, name)
    if part(before, name) != part(after, name):
      kinds.add('old' if own == part(before, name) else 'new' if own == part(after, name)
                else 'WRONG')
  if 'WRONG' in kinds:
    return 'WRONG'
  if kinds != {'old', 'new'}:
    return ''.join(kinds) or 'old'
  return 'old and new, which results.json tells' if _tells(found) else 'WRONG: old and new'


def _tells(found) -> bool:
  """Whether results.json is missing or shows that some codes are not its own."""
  if 'results.json' not in found:
    return True
  hashes = found['results.json'][0]['sha256']
  return any(hashlib.sha256(found.get(name, b'')).hexdigest() != value
             for name, value in hashes.items())


def _undisturbed(command: Command, own: pathlib.Path):
  """What the folder of a command holds before and after it, and its seconds of computing."""
  _renew(command, own)
  before = changes.content(own / command.target)
  command.finish(own)
  _renew(command, own)
  began = _computed_by_children()
  after = command.finish(own)
  return before, after, _computed_by_children() - began


def _computed(process: subprocess.Popen) -> float:
  """The seconds that a process has computed so far."""
  fields = pathlib.Path(f'/proc/{process.pid}/stat').read_text().rpartition(')')[2].split()
  return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def _computed_by_children() -> float:
  """The seconds that processes have computed which this one started and which have ended."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def _renew(command: Command, own: pathlib.Path):
  shutil.rmtree(own, ignore_errors=True)
  own.mkdir()
  command.prepare(own)


def _seconds_of_import() -> float:
  """The seconds of computing until a program can hear signals, and half as many for chance."""
  began = _computed_by_children()
  subprocess.run([sys.executable, '-c', 'from mah_jax import console'], cwd=ROOT, check=True)
  return 1.5 * (_computed_by_children() - began)


_wrong: list[str] = []


def _check(holds: bool, complaint: str):
  if not holds:
    _wrong.append(complaint)
    print(f'WRONG: {complaint}', flush=True)


def _child(what: str, log: str, *arguments: str):
  """Runs a command that notes in `log` what it is at, or that dies at a change of its files."""
  from mah_jax import main
  descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
  if what == 'log':
    _note_phases(descriptor)
    sys.exit(main.main(arguments))
  folder, last, *arguments = arguments
  made = []

  def die(change, path):
    made.append(path)
    if len(made) == int(last):
      os.write(descriptor, f'{change} {path.removeprefix(folder)}'.encode())
      os.kill(os.getpid(), signal.SIGKILL)

  with changes.watched(pathlib.Path(folder), on_change=die):
    sys.exit(main.main(arguments))


def _note_phases(descriptor: int):
  from mah_jax.modes import train
  from mah_jax.runs import results
  from mah_jax.train import checkpoint

  def note(text):
    os.write(descriptor, f'{time.monotonic()} {text}\n'.encode())

  def noted(module, function, before, after):
    inner = getattr(module, function)

    def wrapped(*args, **kwargs):
      for text in before(*args):
        note(text)
      made = inner(*args, **kwargs)
      for text in after(*args):
        note(text)
      return made

    setattr(module, function, wrapped)

  steps = []  # that are done

  def begin(progress, *_):
    steps.append(int(progress.state.step))
    return [f'begin step {steps[-1]}']

  def step(*_):
    steps.append(steps[-1] + 1)
    return [f'begin step {steps[-1]}']

  def sealed(folder):  # it was saved in the background until now
    return [f'end saving {folder.name}', f'begin sealing {folder.name}']

  noted(train, '_train_rounds', begin, lambda *_: ['end step', 'begin encoding'])
  noted(checkpoint.Checkpoints, 'poll', step, lambda *_: [])
  noted(checkpoint.Checkpoints, 'save', lambda _, state, meta: [f'begin saving {int(state.step)}'],
        lambda *_: [])
  noted(checkpoint, '_seal', sealed, lambda folder: [f'end sealing {folder.name}'])
  noted(results, 'write', lambda *_: ['end encoding', 'begin results'], lambda *_: ['end results'])


def main(parts: list[str]) -> int:
  """Does the parts that are named, or all, and prints what came of it."""
  parts = parts or ['signals', 'kills', 'writes']
  with tempfile.TemporaryDirectory() as folder:
    base = pathlib.Path(folder)
    os.environ |= {'JAX_COMPILATION_CACHE_DIR': str(base / 'compiled'), 'JAX_PLATFORMS': 'cpu',
                   'XDG_CACHE_HOME': str(base / 'cache')}
    all_ = commands(base)
    made = {}
    for part in parts:
      for command in all_ if part != 'kills' else all_[:1]:
        if part == 'writes':
          command = command.shortened()
        made[f'{part}, {command.name}'] = globals()[part](command, base)
  for name, counts in made.items():
    print(f'{name}: {json.dumps(counts)}')
  wrong = _wrong + [name for name, counts in made.items() if any('WRONG' in key for key in counts)]
  print('\n'.join(wrong) or 'All of it holds.')
  return 1 if wrong else 0


if __name__ == '__main__':
  if sys.argv[1:2] == ['child']:
    _child(*sys.argv[2:])
  sys.exit(main(sys.argv[1:]))
