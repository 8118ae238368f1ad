"""Times all scores of `metrics.evaluate` beside loops that sort the database for each query.

PYTHONPATH=. python benchmarks/metrics.py

Loops are timed on a few queries and scaled to all. At a million rows ours is scaled as well,
which leaves out that equal codes among more queries are ranked once.
"""

import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import table

from mah_jax.evaluation import metrics

CLASSES = 10
K = 5000
LENGTHS = (4, 8, 16)
FLIPPED = 0.05


def make_case(kind: str, q: int, n: int, c: int) -> tuple[np.ndarray, ...]:
  """Arguments of `evaluate`: 'random' codes, or class codewords with some bits flipped."""
  rng = np.random.default_rng(c)
  words = rng.choice(2 ** c, CLASSES, replace=False)  # distinct
  words = (words[:, None] >> np.arange(c) & 1).astype(np.int8) * 2 - 1
  codes, labels = [], []
  for rows in (q, n):
    classes = rng.integers(0, CLASSES, rows)
    if kind == 'random':
      codes.append(rng.integers(0, 2, (rows, c), np.int8) * 2 - 1)
    else:
      flips = rng.random((rows, c), np.float32) < FLIPPED
      codes.append(np.where(flips, -words[classes], words[classes]))
    labels.append(np.eye(CLASSES, dtype=np.uint8)[classes])
  return *codes, *labels


def average_precision(relevant: np.ndarray) -> float:
  """AP of ranked 0/1 [n]; 0 when there is nothing to find."""
  precision = np.cumsum(relevant) / np.arange(1, len(relevant) + 1)
  return float(precision[relevant].mean()) if relevant.any() else 0.0


def loop_scores(query_codes, codes, query_labels, labels) -> np.ndarray:
  """MAP, MAP@k and precision@k, each with distances and an argsort of its own per query."""
  # 64 bits, which argsort likes best.
  query_codes, codes = query_codes.astype(np.float64), codes.astype(np.float64)
  total = np.zeros(3)

  def ranked(code, label):
    distance = (codes.shape[1] - codes @ code) / 2
    return labels[:, label > 0].any(axis=1)[np.argsort(distance)]

  for code, label in zip(query_codes, query_labels, strict=True):
    total += (average_precision(ranked(code, label)),
              average_precision(ranked(code, label)[:K]), ranked(code, label)[:K].mean())
  return total / len(query_codes)


def blocked_scores(query_codes, codes, query_labels, labels, kind=None, block=8) -> np.ndarray:
  """The same from one sort per query of popcounts of packed 16-bit codes, by blocks."""
  queries, packed = (
      np.packbits(x > 0, axis=1).view(np.uint16)[:, 0] for x in (query_codes, codes))
  total = np.zeros(3)
  for start in range(0, len(queries), block):
    distance = np.bitwise_count(queries[start:start + block, None] ^ packed)
    orders = np.argsort(distance, axis=1, kind=kind)
    for order, label in zip(orders, query_labels[start:start + block], strict=True):
      relevant = labels[:, label > 0].any(axis=1)[order]
      total += (average_precision(relevant), average_precision(relevant[:K]),
                relevant[:K].mean())
  return total / len(queries)


def seconds(function: Callable[..., object], *args, **options) -> float:
  """Wall time of one call."""
  start = time.perf_counter()
  function(*args, **options)
  return time.perf_counter() - start


def first(case: tuple[np.ndarray, ...], q: int) -> tuple[np.ndarray, ...]:
  """The case with its first q queries alone."""
  return case[0][:q], case[1], case[2][:q], case[3]


def check(case: tuple[np.ndarray, ...], other: Callable[..., np.ndarray]) -> None:
  """Stops unless the MAP of an arbitrary order of ties lies where ours says that it can."""
  ours, found = metrics.evaluate(*case), other(*case)[0]
  assert ours['map_low'] - 1e-9 <= found <= ours['map_high'] + 1e-9, (ours, found)


def cifar_row(kind: str, repeats: int, q: int = 1000, n: int = 59_000, part: int = 8) -> dict:
  """The size of CIFAR-10's protocol, three code lengths together."""
  cases = [make_case(kind, q, n, c) for c in LENGTHS]
  for case in cases:
    check(first(case, part), loop_scores)
  ours, other = [], []
  for _ in range(repeats):  # in turns, so that a busy machine slows both
    ours.append(sum(seconds(metrics.evaluate, *case) for case in cases))
    other.append(sum(seconds(loop_scores, *first(case, part)) for case in cases) * q / part)
  return table.row(f'scores, {q} x {n} rows, {kind} codes, bits {LENGTHS}', ours, other, 1000,
             'a loop with an argsort per query and score')


def million_rows(
    repeats: int, q: int = 10_000, n: int = 1_000_000, part: int = 96) -> list[dict]:
  """A million rows at 16 bits, against the default sort and the stable one, by radix."""
  case = make_case('random', part, n, 16)
  few = first(case, 8)
  check(few, blocked_scores)
  peaks = [peak_megabytes(queries, n) for queries in (part, 4 * part)]
  ours, others = [], {'default': [], 'stable': []}
  for _ in range(repeats):
    ours.append(seconds(metrics.evaluate, *case) * q / part)
    for name, kind in ('default', None), ('stable', 'stable'):
      others[name].append(seconds(blocked_scores, *few, kind=kind) * q / 8)
  return [table.row(f'scores, {q} x {n} rows, random codes, 16 bits', ours, other, 100,
              f'blocked popcount and {name} argsort; our process peaks at {peaks[0]:.0f} MB '
              f'with {part} queries, {peaks[1]:.0f} MB with {4 * part}')
          for name, other in others.items()]


def peak_megabytes(q: int, n: int) -> float:
  """Peak memory of a fresh process that makes the data and evaluates them."""
  child = subprocess.run([sys.executable, __file__, str(q), str(n)], check=True,
                         capture_output=True, text=True)
  return json.loads(child.stdout)


def rows(repeats: int = 5) -> list[dict]:
  """All measurements."""
  return [*(cifar_row(kind, repeats) for kind in ('random', 'realistic')),
          *million_rows(repeats)]


if __name__ == '__main__':
  if sys.argv[1:]:  # the child of peak_megabytes
    metrics.evaluate(*make_case('random', int(sys.argv[1]), int(sys.argv[2]), 16))
    # Not getrusage: its peak of a child begins with that of the parent.
    status = pathlib.Path('/proc/self/status').read_text()
    print(int(status.split('VmHWM:')[1].split()[0]) / 1024)
  else:
    print(table.text(rows()))
