"""Times the index beside FAISS's IndexBinaryFlat, one thread a side, in CPU seconds.

pip install -r requirements-bench.txt
PYTHONPATH=. python benchmarks/search.py

FAISS wants lengths that are multiples of 8: codes are padded by zeros to the next one, and to 32 or
64 bits, where it is fastest. Ours starts no threads. Every distance of ours is compared with
FAISS's before it is timed.
"""

import functools
import importlib.util
import time
from collections.abc import Callable

import numpy as np
import table

from mah_jax.search import index as index_lib

K = 10
CLASSES = 10
FLIPPED = 0.05
BATCH = 1000
SINGLES = 50       # queries that are asked one by one
FEW = 50           # queries of a batch that FAISS is asked, where it is slow
LENGTHS = (4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)  # among 59,000 rows


def make_codes(kind: str, rows: int, c: int, seed: int) -> np.ndarray:
  """Random codes, class codewords with some bits flipped, or codes near one word, packed."""
  rng = np.random.default_rng([seed, c])
  if kind == 'random':
    return _packed(rng.integers(0, 2, (rows, c), np.uint8))
  words = np.random.default_rng(c).integers(0, 2, (CLASSES if kind == 'clustered' else 1, c),
                                            np.uint8)
  flips = rng.random((rows, c), np.float32) < FLIPPED
  return _packed(words[rng.integers(0, len(words), rows)] ^ flips)


def _packed(bits: np.ndarray) -> np.ndarray:
  return np.packbits(bits, axis=1)


def unpacked(packed: np.ndarray, c: int) -> np.ndarray:
  """Codes in {-1, +1}, [n, c] int8."""
  return np.unpackbits(packed, axis=1, count=c).astype(np.int8) * 2 - 1


def make_other(packed: np.ndarray, bits: int) -> Callable[[np.ndarray], tuple]:
  """A function that asks FAISS for the first K of packed queries, at some length."""
  import faiss
  faiss.omp_set_num_threads(1)
  flat = faiss.IndexBinaryFlat(bits)
  flat.add(_padded(packed, bits))
  return lambda queries: flat.search(_padded(queries, bits), K)


def _padded(packed: np.ndarray, bits: int) -> np.ndarray:
  return np.ascontiguousarray(np.pad(packed, ((0, 0), (0, bits // 8 - packed.shape[1]))))


def seconds(function: Callable[..., object], *args) -> float:
  """CPU time of this thread in one call."""
  start = time.thread_time()
  function(*args)
  return time.thread_time() - start


def one_by_one(search: Callable[[np.ndarray], object], queries: list[np.ndarray]) -> None:
  """Asks for each query by itself."""
  for query in queries:
    search(query)


def race(index, packed, queries, c, bits, goals, repeats, work) -> list[dict]:
  """Rows for a batch of queries and for single ones, against FAISS at some length.

  Args:
    index: ours.
    packed: the same codes, packed.
    queries: packed.
    c: the length of a code.
    bits: the length that FAISS has.
    goals: the least ratios of the batch and of single queries, or None.
    repeats: how often both are timed, in turns.
    work: what is searched.
  """
  ours, other = functools.partial(index_lib.search, index, k=K), make_other(packed, bits)
  codes = unpacked(queries, c)
  few = FEW if len(packed) > 10 ** 5 else len(queries)
  np.testing.assert_array_equal(ours(codes[:few])[0], other(queries[:few])[0])
  note = f'FAISS flat at {bits} bits'
  single = [codes[i:i + 1] for i in range(SINGLES)], [queries[i:i + 1] for i in range(SINGLES)]
  times = [], [], [], []
  for _ in range(repeats):
    times[0].append(seconds(ours, codes))
    times[1].append(seconds(other, queries[:few]) * len(queries) / few)
    times[2].append(seconds(one_by_one, ours, single[0]) / SINGLES)
    times[3].append(seconds(one_by_one, other, single[1]) / SINGLES)
  return [table.row(f'{work}, {len(queries)} queries', times[0], times[1], goals[0], note),
          table.row(f'{work}, 1 query', times[2], times[3], goals[1], note)]


def search_rows(kind, n, c, goal, padded_goal, repeats) -> list[dict]:
  """Rows for codes of one kind and length, as they are and padded to what FAISS likes best."""
  packed, queries = make_codes(kind, n, c, 0), make_codes(kind, BATCH, c, 1)
  index = index_lib.build_packed(packed, c)
  work = f'search, {n} {kind} codes, {c} bits'
  own, fast = -(-c // 8) * 8, 32 if c <= 32 else 64
  found = race(index, packed, queries, c, own, (goal, goal), repeats, work)
  if fast > own:
    found += race(index, packed, queries, c, fast, (padded_goal, padded_goal), repeats, work)
  return found


def ten_million(repeats: int, n: int = 10_000_000, c: int = 16) -> list[dict]:
  """One query among ten million codes of 16 bits; the time and the memory of building."""
  packed = make_codes('random', n, c, 0)
  queries, codes = make_codes('random', SINGLES, c, 1), unpacked(packed, c)
  build = [seconds(index_lib.build, codes) for _ in range(repeats)]
  index = index_lib.build(codes)
  arrays = [array for array in index.buckets if isinstance(array, np.ndarray)]
  each = sum(array.nbytes for array in arrays) / n
  found = race(index, packed, queries, c, c, (None, 200), repeats,
               f'search, {n} random codes, {c} bits')
  return [table.row(f'build of {n} codes, {c} bits', build, [1.0] * repeats, 1.0,
                    f'the other is a limit of 1 s; {each:.2f} bytes a row with all tables'),
          *found[1:]]


def worst(repeats: int, n: int = 1_000_000, c: int = 16) -> list[dict]:
  """Queries that are as far as can be from all codes, which lie around one word."""
  packed = make_codes('near one word', n, c, 0)
  index = index_lib.build_packed(packed, c)
  far = _packed(unpacked(make_codes('near one word', SINGLES, c, 1), c) < 0)
  return race(index, packed, far, c, c, (None, None), repeats,
              f'search, {n} codes near one word, {c} bits, queries opposite to it')


def rows(repeats: int = 7) -> list[dict]:
  """All measurements; none without FAISS."""
  if importlib.util.find_spec('faiss') is None:
    print('Search is skipped, and its last rows kept: faiss-cpu is missing; '
          'requirements-bench.txt says which.')
    return []
  found = []
  for c in (4, 8, 12, 16):
    found += search_rows('random', 1_000_000, c, 100, 30, repeats)
  for c in (24, 32, 64):
    found += search_rows('random', 1_000_000, c, None if c == 24 else 0.8, None, repeats)
  for c in LENGTHS:
    found += search_rows('random', 59_000, c, 2, 2, repeats)
  for c in (16, 32, 64):
    found += search_rows('clustered', 59_000, c, 2, 2, repeats)
  return [*found, *worst(repeats), *ten_million(repeats)]


if __name__ == '__main__':
  print(table.text(rows()))
