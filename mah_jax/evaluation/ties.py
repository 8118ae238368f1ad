"""Average precision from counts of rows per distance, in closed form over orders of ties."""

import math

import numpy as np

_BLOCK = 2 ** 16  # probabilities of draws that are kept at once


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
  """part / whole for counts, and 0 where the whole is 0."""
  return part / np.maximum(whole, 1)


def harmonic_numbers(n: int) -> np.ndarray:
  """1 + 1/2 + ... + 1/i for i = 0..n, [n + 1]."""
  return np.append(0.0, np.cumsum(1 / np.arange(1, n + 1)))


def expected_sum(harmonic, rank, hits, size, relevant):
  """Expected sum of precisions at the relevant rows of ties in random order.

  Position i of the ties holds a relevant row with probability relevant / size, and then
  (i - 1) (relevant - 1) / (size - 1) of the positions before it do, on average. So the sum is

    relevant / size * sum_{i=1..size} (hits + 1 + (i - 1) slope) / (rank + i)

  with slope = (relevant - 1) / (size - 1), and it follows from harmonic numbers.

  Args:
    harmonic: harmonic numbers up to rank + size.
    rank: rows ranked before the ties.
    hits: relevant rows among the rows before the ties.
    size: rows that are tied.
    relevant: relevant rows among the tied ones.
  """
  slope = (relevant - 1) / np.maximum(size - 1, 1)
  inverse_ranks = harmonic[rank + size] - harmonic[rank]
  total = (hits + 1 - slope * (rank + 1)) * inverse_ranks + slope * size
  return ratio(relevant, size) * total


def whole_ranking(
    harmonic: np.ndarray, size: np.ndarray, relevant: np.ndarray) -> dict[str, np.ndarray]:
  """Expected, worst and best AP of each query from rows per level, [E, m] -> [E]."""
  rank, hits = _before(size), _before(relevant)
  sums = {
      'map': expected_sum(harmonic, rank, hits, size, relevant),
      'map_low': _ordered_sum(harmonic, rank + size - relevant, hits, relevant),
      'map_high': _ordered_sum(harmonic, rank, hits, relevant),
  }
  total = relevant.sum(axis=1)
  return {name: ratio(value.sum(axis=1), total) for name, value in sums.items()}


def first_rows(
    harmonic: np.ndarray, size: np.ndarray, relevant: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
  """Expected precision and AP of the first k rows from rows per level, [E, m] -> [E].

  AP is divided by the number of relevant rows among the k; an order with none there counts 0.
  """
  rank, hits = _before(size), _before(relevant)
  nearer = _before(expected_sum(harmonic, rank, hits, size, relevant))
  cut = np.arange(len(size)), (rank + size >= k).argmax(axis=1)  # where the k-th row lies
  nearer, rank, hits, size, relevant = (
      x[cut][:, None] for x in (nearer, rank, hits, size, relevant))
  taken = k - rank
  precision = (hits + taken * relevant / size) / k
  variance = taken * relevant / size * (1 - relevant / size) * (size - taken)
  reach = math.ceil(10 * math.sqrt((variance / np.maximum(size - 1, 1)).max())) + 40
  step = _BLOCK // (2 * reach + 1) + 1
  ap = [_cut_ap(harmonic, reach, *(x[start:start + step] for x in (
      nearer, rank, hits, size, relevant, taken))) for start in range(0, len(size), step)]
  return precision[:, 0], np.concatenate(ap)


def _before(counts: np.ndarray) -> np.ndarray:
  """The number of rows nearer than each level, from those at each level, [E, m] -> [E, m]."""
  return np.cumsum(counts, axis=1) - counts


def _ordered_sum(harmonic, rank, hits, relevant):
  """sum_{i=1..relevant} (hits + i) / (rank + i): relevant rows in one unbroken run."""
  return relevant + (hits - rank) * (harmonic[rank + relevant] - harmonic[rank])


def _cut_ap(harmonic, reach, nearer, rank, hits, size, relevant, taken):
  """Expected AP of the first k rows, where the k-th row lies among ties -> [E].

  The number of relevant rows among the ties that are taken has a hypergeometric distribution,
  and the order of the rows before the ties does not depend on it. So AP is averaged over that
  number.

  Args:
    harmonic: harmonic numbers up to rank + size.
    reach: how many numbers of relevant rows to try on both sides of the likeliest.
    nearer: expected sum of precisions before the ties, [E, 1].
    rank, hits, size, relevant: as in `expected_sum`, [E, 1].
    taken: rows of the ties that are among the first k, [E, 1].
  """
  drawn, probability = _hypergeometric(size, relevant, taken, reach)
  total = nearer + expected_sum(harmonic, rank, hits, taken, drawn)
  return (probability * ratio(total, hits + drawn)).sum(axis=1)


def _hypergeometric(
    size: np.ndarray, relevant: np.ndarray, taken: np.ndarray, reach: int
) -> tuple[np.ndarray, np.ndarray]:
  """How many relevant rows a draw of `taken` rows from `size` may hold, and how likely.

  Probabilities are built from the ratios of neighbouring ones, outwards from the likeliest
  number, so that nothing overflows and no digits are lost. Numbers that cannot be drawn get 0.
  With 10 standard deviations + 40 as reach, Bernstein's bound leaves less than 1e-20 outside.

  Args:
    size: rows that each query draws from, [E, 1].
    relevant: relevant rows among them, [E, 1].
    taken: rows that are drawn, [E, 1].
    reach: how far to go from the likeliest number on both sides.

  Returns:
    The numbers and their probabilities, both [E, 2 reach + 1].
  """
  mode = (relevant + 1) * (taken + 1) // (size + 2)
  missing = size - relevant - taken
  x = mode + np.arange(reach)
  up = (relevant - x) * (taken - x) / ((x + 1) * (missing + x + 1))     # to x + 1
  x = mode - np.arange(reach)
  down = x * (missing + x) / ((relevant - x + 1) * (taken - x + 1))     # to x - 1
  weight = np.hstack([np.cumprod(down, axis=1)[:, ::-1], np.ones_like(mode),
                      np.cumprod(up, axis=1)])
  return mode + np.arange(-reach, reach + 1), weight / weight.sum(axis=1, keepdims=True)
