"""Time and peak memory of each shallow method at the size of CIFAR-10's database.

PYTHONPATH=. python benchmarks/shallow.py [--rows 59000] [--bits 12]

Each method has a process of its own: it makes ten classes of random features as after a ReLU,
2,048 wide, fits once to compile and once for the clock, and encodes all rows.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import jax
import numpy as np

from mah_jax import methods
from mah_jax.train import shallow

WIDTH = 2048
CLASSES = 10


def measure(name: str, rows: int, c: int) -> dict[str, float]:
  """Seconds of a fit and of encoding all rows, and megabytes before and at the peak."""
  rng = np.random.default_rng(0)
  kind = np.arange(rows) % CLASSES
  centres = rng.normal(size=(CLASSES, WIDTH)).astype(np.float32)
  features = rng.standard_normal((rows, WIDTH), np.float32)
  for k in range(CLASSES):
    features[k::CLASSES] += centres[k]  # in place, so that the peak is the method's own
  np.maximum(features, 0, out=features)
  labels = np.eye(CLASSES, dtype=np.uint8)[kind]
  spec = methods.METHODS[name]
  method = spec.make(spec.options())
  before = _peak()
  for seed in (0, 1):
    began = time.monotonic()
    state = jax.block_until_ready(method.fit(features, labels, c, jax.random.key(seed))).state
    fitted = time.monotonic()
    shallow.encode(method, state, features)
  return {'fit': fitted - began, 'encode': time.monotonic() - fitted, 'before': before,
          'peak': _peak()}


def _peak() -> float:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rows', type=int, default=59_000)
  parser.add_argument('--bits', type=int, default=12)
  parser.add_argument('--child', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.child:
    print(json.dumps(measure(arguments.child, arguments.rows, arguments.bits)))
    return
  for name in [name for name, spec in methods.METHODS.items() if not spec.trains_network]:
    child = subprocess.run(
        [sys.executable, __file__, '--child', name, '--rows', str(arguments.rows), '--bits',
         str(arguments.bits)], check=True, capture_output=True, text=True)
    found = json.loads(child.stdout.splitlines()[-1])
    print(f'{name}: fit {found["fit"]:.1f} s, encode {found["encode"]:.1f} s, peak '
          f'{found["peak"]:.0f} MB, {found["before"]:.0f} MB of it before the fit', flush=True)


if __name__ == '__main__':
  main()
