"""A database of a hundred million rows: seconds and peak memory of update, scores and index.

PYTHONPATH=. python benchmarks/large.py [rows]

Codes of 16 bits are int8 in the memory of the host: the codewords of ten classes with a twentieth
of the bits flipped. Each part runs in a process of its own, whose peak includes codes, labels and
Python itself. The update goes through the rows in blocks, which need not be on the device together.
The scores of 1,000 queries come from counts of rows by code and class, also made in blocks, which
gives all of them but those in database order; `metrics.evaluate`, which gives those too, sorts all
rows for each distinct query code and is timed on a few. The index is built from packed codes.
"""

import multiprocessing
import resource
import sys
import time

import numpy as np

from mah_jax import compiling
from mah_jax import discrete
from mah_jax import distinct
from mah_jax import similarity
from mah_jax.evaluation import hamming
from mah_jax.evaluation import metrics
from mah_jax.evaluation import ties
from mah_jax.search import index as index_lib

ROWS = 10**8
BLOCK = 10**7
BITS, CLASSES, SAMPLED, QUERIES, RANKED = 16, 10, 2_000, 1_000, 4
FLIPPED, GAMMA, K, NEIGHBOURS = 0.05, 200.0, 5_000, 10


def make_rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Codes [n, c] int8 and the class of each row, [n] int32."""
  words = np.random.default_rng(0).choice(2**BITS, CLASSES, replace=False)
  words = (words[:, None] >> np.arange(BITS) & 1).astype(np.int8) * 2 - 1
  rng = np.random.default_rng(seed)
  kind = rng.integers(CLASSES, size=n, dtype=np.int32)
  codes = words[kind]
  for start in range(0, n, BLOCK // 10):
    part = codes[start:start + BLOCK // 10]
    np.negative(part, out=part, where=rng.random(part.shape, np.float32) < FLIPPED)
  return codes, kind


def update(n: int) -> dict[str, float]:
  """Seconds of one update of all codes, the second of two."""
  compiling.prepare()
  codes, kind = make_rows(n, 1)
  rng = np.random.default_rng(2)
  embeddings = np.tanh(rng.normal(size=(SAMPLED, BITS))).astype(np.float32)
  sampled = rng.integers(n, size=SAMPLED).astype(np.int32)
  levels = similarity.Levels(np.ones(CLASSES), np.full(CLASSES, -1 / (CLASSES - 1)))
  for _ in range(2):
    began = time.monotonic()
    position, problem = discrete.row_problem(
        embeddings, sampled, kind, np.eye(CLASSES, dtype=np.float32), levels, GAMMA)
    position = np.asarray(position)
    for start in range(0, n, BLOCK):
      part = slice(start, start + BLOCK)
      codes[part] = discrete.descend_rows((codes[part], kind[part], position[part]), *problem,
                                          sweeps=1)
  return {f'update, {BITS} bits': time.monotonic() - began}


def count(codes: np.ndarray, kind: np.ndarray) -> np.ndarray:
  """Rows by code and class, [2^c, classes]."""
  counts = np.zeros(2**BITS * CLASSES, np.int64)
  for start in range(0, len(codes), BLOCK // 10):
    part = slice(start, start + BLOCK // 10)
    key = distinct.pack(codes[part])[:, 0].astype(np.int64) * CLASSES + kind[part]
    counts += np.bincount(key, minlength=len(counts))
  return counts.reshape(2**BITS, CLASSES)


def score(counts: np.ndarray, codes: np.ndarray, kind: np.ndarray) -> dict[str, float]:
  """Scores of queries with these codes and classes: those of `metrics.evaluate` without order."""
  every = np.arange(2**BITS, dtype=np.uint64)[:, None]
  rows, of_class = counts.sum(axis=1), counts.T.copy()
  size, relevant = np.zeros((2, len(codes), BITS + 1), np.int64)
  for i, (packed, own) in enumerate(zip(distinct.pack(codes), kind)):
    level = hamming.distances(every, packed)
    size[i] = np.bincount(level, rows, BITS + 1)
    relevant[i] = np.bincount(level, of_class[own], BITS + 1)
  harmonic = ties.harmonic_numbers(int(counts.sum()))
  precision, cut = ties.first_rows(harmonic, size, relevant, K)
  scores = ties.whole_ranking(harmonic, size, relevant) | {
      f'precision@{K}': precision, f'map@{K}': cut}
  return {name: float(values.mean()) for name, values in scores.items()}


def count_and_score(n: int) -> dict[str, float]:
  """Seconds of the counts, and of the scores of all queries from them."""
  codes, kind = make_rows(n, 1)
  queries = make_rows(QUERIES, 3)
  began = time.monotonic()
  counts = count(codes, kind)
  counted = time.monotonic()
  score(counts, *queries)
  return {'counts of rows by code and class': counted - began,
          f'scores of {QUERIES} queries from the counts': time.monotonic() - counted}


def evaluate(n: int) -> dict[str, float]:
  """Seconds of all scores of a few queries, ranking included."""
  codes, kind = make_rows(n, 1)
  queries, own = make_rows(RANKED, 3)
  one_hot = np.eye(CLASSES, dtype=np.uint8)
  labels = one_hot[kind]
  del kind
  began = time.monotonic()
  metrics.evaluate(queries, codes, one_hot[own], labels, K)
  return {f'metrics.evaluate of {RANKED} queries': time.monotonic() - began}


def search(n: int) -> dict[str, float]:
  """Seconds of building an index, and of the nearest rows of all queries, together and one by one.

  Half of the queries are codes like those of the rows, the others are random.
  """
  packed = np.concatenate([np.packbits(make_rows(min(BLOCK, n - start), start)[0] > 0, axis=1)
                           for start in range(0, n, BLOCK)])
  queries = make_rows(QUERIES, 3)[0]
  queries[::2] = np.random.default_rng(4).choice((-1, 1), queries[::2].shape)
  began = time.monotonic()
  index = index_lib.build_packed(packed, BITS)
  built = time.monotonic()
  together = index_lib.search(index, queries, NEIGHBOURS)
  searched = time.monotonic()
  singles = [index_lib.search(index, query[None], NEIGHBOURS) for query in queries]
  ended = time.monotonic()
  for one, many in zip(zip(*singles), together):
    np.testing.assert_array_equal(np.concatenate(one), many)
  return {'index': built - began,
          f'{NEIGHBOURS} nearest of {QUERIES} queries at once': searched - built,
          f'{NEIGHBOURS} nearest of one query': (ended - searched) / QUERIES}


def check(n: int = 10**5):
  """Raises unless scores from counts are those of `metrics.evaluate`."""
  (codes, kind), (queries, own) = make_rows(n, 1), make_rows(QUERIES, 3)
  one_hot = np.eye(CLASSES, dtype=np.uint8)
  expected = metrics.evaluate(queries, codes, one_hot[own], one_hot[kind], K)
  for name, value in score(count(codes, kind), queries, own).items():
    np.testing.assert_allclose(value, expected[name], rtol=1e-9)


def send(part, n, pipe):
  """Runs a part in this process and sends its seconds and the peak in bytes."""
  seconds = part(n)
  pipe.send((seconds, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def main(n: int) -> None:
  """Runs all parts, one after the other, and prints a table."""
  check()
  print('| rows | work | seconds | peak of the process, GB |\n|---|---|---|---|', flush=True)
  context = multiprocessing.get_context('spawn')
  for part in (update, count_and_score, evaluate, search):
    ours, theirs = context.Pipe()
    child = context.Process(target=send, args=(part, n, theirs))
    child.start()
    theirs.close()  # so that a child that dies ends the wait for it
    seconds, peak = ours.recv()
    child.join()
    for work, taken in seconds.items():
      print(f'| {n:.0e} | {work} | {taken:.3g} | {peak / 1e9:.2f} |', flush=True)


if __name__ == '__main__':
  main(int(float(sys.argv[1])) if len(sys.argv) > 1 else ROWS)
