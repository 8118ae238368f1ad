"""Times `metrics.evaluate` beside a loop that sorts the database for every query.

PYTHONPATH=. python benchmarks/metrics.py
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from mah_jax.evaluation import metrics


def random_side(
    rng: np.random.Generator, rows: int, c: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
  """Codes [rows, c] and one-hot labels [rows, classes], both at random."""
  codes = np.where(rng.random((rows, c)) < 0.5, -1, 1).astype(np.int8)
  return codes, np.eye(classes, dtype=np.uint8)[rng.integers(0, classes, rows)]


def plain_map(query_codes, codes, query_labels, labels) -> float:
  """MAP in database order, one stable argsort of the database per query."""
  query_codes, codes = query_codes.astype(np.float32), codes.astype(np.float32)
  total = 0.0
  for code, label in zip(query_codes, query_labels, strict=True):
    # Not `codes @ code`: threads of a matrix product on a busy machine would flatter us.
    distance = (codes.shape[1] - np.einsum('nc,c->n', codes, code)) / 2
    relevant = labels[:, label > 0].any(axis=1)
    rank = np.flatnonzero(relevant[np.argsort(distance, kind='stable')]) + 1
    if rank.size:
      total += np.mean(np.arange(1, rank.size + 1) / rank)
  return total / len(query_codes)


def seconds(function: Callable[..., object], *args) -> float:
  """Wall time of one call."""
  start = time.perf_counter()
  function(*args)
  return time.perf_counter() - start


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--queries', type=int, default=1000)
  parser.add_argument('--database', type=int, default=59_000)
  parser.add_argument('--classes', type=int, default=10)
  parser.add_argument('--lengths', type=int, nargs='+', default=[4, 6, 8])
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--subset', type=int, default=50,
                      help='queries that the plain loop is timed on, then scaled')
  args = parser.parse_args()

  subset = min(args.subset, args.queries)
  print(f'{args.queries} queries x {args.database} rows, {args.classes} classes, median '
        f'(least to most) of {args.repeats} runs in seconds')
  print('plain: MAP in database order alone; evaluate: all seven scores')
  print(f'{"bits":>4}  {"plain":>22}  {"evaluate":>22}  {"ratio":>6}')
  for c in args.lengths:
    rng = np.random.default_rng(c)
    query_codes, query_labels = random_side(rng, args.queries, c, args.classes)
    codes, labels = random_side(rng, args.database, c, args.classes)
    whole = query_codes, codes, query_labels, labels
    part = query_codes[:subset], codes, query_labels[:subset], labels
    np.testing.assert_allclose(
        plain_map(*part), metrics.evaluate(*part)['map_database_order'], rtol=1e-9)
    plain, ours = [], []
    for _ in range(args.repeats):  # in turns, so that a busy machine slows both
      plain.append(seconds(plain_map, *part) * args.queries / subset)
      ours.append(seconds(metrics.evaluate, *whole))
    cells = [f'{statistics.median(t):.3f} ({min(t):.3f} to {max(t):.3f})'
             for t in (plain, ours)]
    ratio = statistics.median(p / o for p, o in zip(plain, ours, strict=True))
    print(f'{c:>4}  {cells[0]:>22}  {cells[1]:>22}  {ratio:>6.1f}')


if __name__ == '__main__':
  main()
