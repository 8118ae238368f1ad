"""Seconds that report.html takes for CIFAR-10's size, with made-up codes, and its bytes.

PYTHONPATH=. python benchmarks/run_page.py 4,8,12
"""

import sys
import tempfile
import time

import numpy as np

from mah_jax import config
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.data import splits
from mah_jax.evaluation import scores
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import results
from mah_jax.runs import run_page

ROWS, CLASSES, ROUNDS, FLIPPED = 60_000, 10, 41, 0.08


def main(lengths, workdir):
  rng = np.random.default_rng(0)
  kind = rng.integers(0, CLASSES, ROWS)
  labels = np.eye(CLASSES, dtype=np.uint8)[kind]
  data = datasets.Dataset(
      rng.integers(0, 256, (ROWS, 32, 32, 3), np.uint8), labels,
      tuple(f'class {i}' for i in range(CLASSES)), protocol=splits.balanced(labels, 100, 0, 'made'))
  made = config.make(code_lengths=lengths, head_weights=(1.0,) * len(lengths), workdir=workdir)
  words = rng.choice([-1, 1], (CLASSES, max(lengths)))

  def codes(rows, c):
    return (words[kind[rows]][:, :c] * np.where(rng.random((len(rows), c)) < FLIPPED, -1, 1)
            ).astype(np.int8)

  split = data.protocol
  of_seed = [scores.Codes(codes(split.queries, c), codes(split.database, c), None)
             for c in lengths]
  metrics = results.score(made, data, of_seed, 1)
  folder = folder_lib.RunFolder(workdir)
  storage.write_json(folder.path / 'config.json', {'flags': config.to_json(made)})
  results.write(folder, made, data, results.Outcome(
      [of_seed], [metrics], [0], {'fit_seconds': 1.0},
      {'step': 1, 'round': ROUNDS, 'code_updates': 1}))
  for r in range(1, ROUNDS + 1):
    folder.add_round({'round': r, 'losses': {'loss': 1 / r}, 'metrics': metrics, 'seconds': r})
  for _ in range(3):
    began = time.monotonic()
    run_page.write(folder, data)
    print(f'{time.monotonic() - began:.2f} s, {folder.report.stat().st_size:,} bytes')


if __name__ == '__main__':
  with tempfile.TemporaryDirectory() as workdir:
    main(tuple(map(int, (sys.argv[1:] or ['4,8,12'])[0].split(','))), workdir)
