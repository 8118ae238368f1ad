"""A round of training as a trace shows it, and on several devices beside one.

PYTHONPATH=. python benchmarks/rounds.py

Several devices are virtual ones of the same cores, so that they cannot be faster; what is shown
is that they give the same results.
"""

import gzip
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import table

DEVICES = (1, 2, 4)
ROUNDS = 4  # after a first one, which compiles
STEPS = 3  # after which results are compared; rounding grows about tenfold with each
FLAGS = ('--flagfile=launch/quickstart.cfg', '--hold_codes_rounds=0')
COMPUTES = 'ThunkExecutor::Execute (wait for completion)'  # in a trace: a program runs
WAITS = 'np.asarray(jax.Array)'  # in a trace: Python reads what was computed


def make(num_devices: int, on_step=lambda steps: False):
  """The experiment of `make run`, and its rounds, of which none is made yet."""
  from mah_jax import compiling  # in the child alone, whose environment says how many devices
  compiling.prepare()
  from mah_jax import flags
  from mah_jax.train import dataset
  from mah_jax.train import step
  from mah_jax.train import trainer
  config = flags.from_arguments([*FLAGS, f'--num_devices={num_devices}'])
  devices = step.Devices(step.pick_devices(num_devices), config.batch_size)
  made, state, *_ = trainer.begin(config, dataset.load(config), devices)
  return made, made.fit(state, on_step)


def train(num_devices: int) -> dict[str, Any]:
  """Seconds of each round after the first; outputs for all queries after the first steps."""
  steps = itertools.count(1)
  made, rounds = make(num_devices, on_step=lambda made: next(steps) == STEPS)
  outputs = made.outputs(next(rounds).state, made.data.protocol.queries)
  _, rounds = make(num_devices)
  next(rounds)
  times = []
  for _ in range(ROUNDS):
    began = time.perf_counter()
    next(rounds)
    times.append(time.perf_counter() - began)
  return {'times': times, 'outputs': [u.tolist() for u in outputs]}


def trace() -> dict[str, float]:
  """What a trace of the third round says: steps, and seconds that pass, compute and wait."""
  import jax
  _, rounds = make(1)
  next(rounds), next(rounds)
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      began = time.perf_counter()
      pause = next(rounds)
      passed = time.perf_counter() - began
    path, = pathlib.Path(folder).rglob('*.trace.json.gz')
    events = [event for event in json.loads(gzip.decompress(path.read_bytes()))['traceEvents']
              if event.get('ph') == 'X']
  return {'steps': len(pause.history), 'passed': passed, 'computes': covered(events, COMPUTES),
          'waits': covered(events, WAITS)}


def covered(events: list[dict], name: str) -> float:
  """Seconds in which at least one event of this name goes on."""
  total = end = 0.0
  spans = sorted((event['ts'], event['ts'] + event['dur'])
                 for event in events if event['name'] == name)
  if not spans:
    raise ValueError(f'The trace has no {name}: this JAX calls it otherwise.')
  for first, last in spans:
    total += max(0.0, last - max(first, end))
    end = max(end, last)
  return total / 1e6


def child(*arguments: object) -> dict[str, Any]:
  """What `train` or `trace` finds in a process of its own that has four devices."""
  found = subprocess.run(
      [sys.executable, __file__, *map(str, arguments)], check=True, capture_output=True, text=True,
      env=os.environ | {'XLA_FLAGS': f'--xla_force_host_platform_device_count={DEVICES[-1]}'})
  return json.loads(found.stdout.splitlines()[-1])


def rows() -> list[dict]:
  """All measurements."""
  seen = child('trace')
  found = {d: child('train', d) for d in DEVICES}
  one = found.pop(1)
  return [table.row(
      f'a round of make run, {seen["steps"]} steps and an update of the codes: all of it against '
      'what the device computes', [seen['passed']], [seen['computes']], None,
      f'in a trace; Python waits for results {seen["waits"] / seen["passed"]:.0%} of the '
      'time'), *(table.row(
          f'a round of make run on {d} virtual devices, against one', own['times'], one['times'],
          None, agreement(own, one)) for d, own in found.items())]


def agreement(own: dict[str, Any], one: dict[str, Any]) -> str:
  """How far two trainings are apart."""
  import numpy as np
  apart = max(np.abs(np.subtract(u, v)).max() for u, v in zip(own['outputs'], one['outputs']))
  signs = sum((np.sign(u) != np.sign(v)).sum() for u, v in zip(own['outputs'], one['outputs']))
  return f'after {STEPS} steps outputs differ by at most {apart:.1e}, {signs} of their signs do'


if __name__ == '__main__':
  if sys.argv[1:]:  # the child
    print(json.dumps(trace() if sys.argv[1] == 'trace' else train(int(sys.argv[2]))))
  else:
    print(table.text(rows()))
