"""Retrieval scores of binary codes; they show how much of a Hamming ranking ties decide."""

import functools
import itertools
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np

from mah_jax import cores
from mah_jax import distinct
from mah_jax.evaluation import hamming
from mah_jax.evaluation import ties

_BLOCK = 2 ** 18  # counts that are kept at once
_KEPT = 2 ** 26  # bytes of the cache that knows which rows are relevant to a label set


def evaluate(
    query_codes: np.ndarray,
    database_codes: np.ndarray,
    query_labels: np.ndarray,
    database_labels: np.ndarray,
    k: int = 5000,
    weights: np.ndarray | None = None,
) -> dict[str, float]:
  """Scores the ranking of the database by Hamming distance to each query.

  A row is relevant when it shares at least one label with the query. Every score is the
  mean over all queries, and a query without relevant rows counts 0. With fewer than `k`
  rows in the database the first `k` are all of them; the key keeps the `k` asked for.

  Args:
    query_codes: codes in {-1, +1}, [q, c].
    database_codes: codes in {-1, +1}, [n, c].
    query_labels: 0/1 per label, [q, L].
    database_labels: 0/1 per label, [n, L].
    k: how many of the first rows `precision@k` and `map@k` look at.
    weights: the amount that each differing bit adds to a distance, not negative, [c]; 1 if
      not given. They are rounded to 2^-20 of the largest, and distances equal after that are
      ties.

  Returns:
    map: average precision (AP) over the whole ranking, divided by the number of
      relevant rows; its expectation when equal distances come in random order.
    map_low, map_high: the same AP in the worst and in the best order of ties.
    map_database_order: the same AP when equal distances keep the order of the database.
    precision@k: expected share of relevant rows among the first k, random order of ties.
    map@k: expectation, over random order of ties, of AP over the first k divided by the
      number of relevant rows among them; an order with none there counts 0.
    precision_radius_2: relevant rows with at most 2 differing bits, whatever the weights,
      divided by all rows there; 0 where there are none. Ties do not matter.
  """
  query_codes, query_labels = _checked('query', query_codes, query_labels)
  database_codes, database_labels = _checked('database', database_codes, database_labels)
  _check_equal_columns('query codes', query_codes, 'database codes', database_codes)
  _check_equal_columns('query labels', query_labels, 'database labels', database_labels)
  _check_k(k)

  queries = hamming.merge(query_codes, query_labels)
  database = hamming.merge(database_codes, database_labels)
  c = query_codes.shape[1]
  if weights is None:
    return _mean_scores(queries, database, c, k)
  weights = np.broadcast_to(_checked_weights(weights, c), (len(queries.codes), c))
  scores = _mean_scores(queries, database, c, k, weights)
  plain = _mean_scores(queries, database, c, k)
  return scores | {'precision_radius_2': plain['precision_radius_2']}


def evaluate_outputs(
    query_outputs: np.ndarray,
    database_codes: np.ndarray,
    query_labels: np.ndarray,
    database_labels: np.ndarray,
    k: int = 5000,
) -> dict[str, float]:
  """Scores the ranking of the database by inner product with the outputs of each query.

  The inner product of outputs u and a code b is sum |u| - 2 d, where d is the distance of b to
  the signs of u with the weights |u|: each query has weights of its own. They are rounded to
  2^-20 of the query's largest, and rows that are equal after that are ties. An output of 0 has
  no say.

  Args:
    query_outputs: real numbers whose signs are the codes of the queries, [q, c].
    database_codes: codes in {-1, +1}, [n, c].
    query_labels: 0/1 per label, [q, L].
    database_labels: 0/1 per label, [n, L].
    k: how many of the first rows `precision@k` and `map@k` look at.

  Returns:
    The scores of `evaluate`, without `precision_radius_2`, which has no meaning here.
  """
  outputs, query_labels = _checked_outputs(query_outputs, query_labels)
  database_codes, database_labels = _checked('database', database_codes, database_labels)
  _check_equal_columns('query outputs', outputs, 'database codes', database_codes)
  _check_equal_columns('query labels', query_labels, 'database labels', database_labels)
  _check_k(k)
  label_sets = distinct.number_rows(query_labels)
  queries = hamming.Merged(  # whose codes are not merged, for equal ones rank differently
      distinct.pack(outputs >= 0), np.arange(len(outputs)), label_sets.packed, label_sets.of_row)
  database = hamming.merge(database_codes, database_labels)
  return _mean_scores(queries, database, outputs.shape[1], k, np.abs(outputs))


def chance(query_labels: np.ndarray, database_labels: np.ndarray) -> float:
  """Expected MAP of the database in random order; 0/1 labels, [q, L], [n, L].

  It is the `map` of codes that are all equal. A query without relevant rows counts 0.
  """
  relevant, n = _relevant_rows(query_labels, database_labels), len(database_labels)
  total = ties.expected_sum(ties.harmonic_numbers(n), 0, 0, n, relevant)
  return float(ties.ratio(total, relevant).mean())


def ceiling(query_labels: np.ndarray, database_labels: np.ndarray) -> float:
  """MAP of a ranking with all relevant rows first; 0/1 labels, [q, L], [n, L].

  It is the share of queries that have a relevant row, for the others count 0.
  """
  return float((_relevant_rows(query_labels, database_labels) > 0).mean())


def codebook(
    database_codes: np.ndarray, database_labels: np.ndarray) -> dict[str, Any]:
  """Describes how well the codes of the classes are told apart.

  The codeword of a class is the sign of the mean code of the rows that carry its label,
  with sign(0) = +1. A label without rows has no codeword.

  Args:
    database_codes: codes in {-1, +1}, [n, c].
    database_labels: 0/1 per label, [n, L].

  Returns:
    distinct: number of different codewords.
    min_distance: least Hamming distance between the codewords of two classes, 0 when two
      classes share one; c when there are no two classes.
    bit_balance: share of the rarer sign on the most uneven bit over all rows; 0.5 is
      perfect, 0 is a bit that never changes.
    codewords: the codeword of each label, as a text of 0 (for -1) and 1; an empty text for a
      label without rows.
  """
  codes, labels = _checked('database', database_codes, database_labels)
  codes, labels = codes.astype(np.float64), labels.astype(np.float64)
  bits = labels.T @ codes >= 0  # [L, c]
  has_rows = labels.any(axis=0)
  words = distinct.pack(bits[has_rows])
  gaps = np.concatenate([[codes.shape[1]]] + [
      hamming.distances(words[i + 1:], word) for i, word in enumerate(words)])
  positive = (codes > 0).mean(axis=0)
  return {
      'distinct': len(np.unique(words, axis=0)),
      'min_distance': int(gaps.min()),
      'bit_balance': float(np.minimum(positive, 1 - positive).min()),
      'codewords': [''.join(map(str, word.astype(int))) if rows else ''
                    for word, rows in zip(bits, has_rows)],
  }


def _checked(
    name: str, codes: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Codes and labels of the queries or of the database as arrays; raises if unusable."""
  codes = _checked_matrix(f'{name} codes', codes, -1, 1, 'take their sign first')
  labels = _checked_labels(name, labels)
  if len(codes) != len(labels):
    raise ValueError(f'{len(codes)} {name} codes came with {len(labels)} rows of labels; '
                     'give one row of labels per code.')
  return codes, labels


def _checked_outputs(
    outputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Outputs in float64 and labels of the queries as arrays; raises if unusable."""
  outputs = np.asarray(outputs, np.float64)
  _check_shape('query outputs', outputs)
  wrong = outputs[~np.isfinite(outputs)]
  if wrong.size:
    raise ValueError(f'query outputs hold {wrong[0]}; give finite numbers.')
  labels = _checked_labels('query', labels)
  if len(outputs) != len(labels):
    raise ValueError(f'{len(outputs)} rows of query outputs came with {len(labels)} rows of '
                     'labels; give one row of labels per query.')
  return outputs, labels


def _checked_labels(name: str, labels: np.ndarray) -> np.ndarray:
  """Labels of the queries or of the database as an array; raises if it is unusable."""
  return _checked_matrix(f'{name} labels', labels, 0, 1, 'give one column per label')


def _checked_matrix(
    what: str, matrix: np.ndarray, low: int, high: int, remedy: str) -> np.ndarray:
  """A matrix as an array; raises if it is empty or holds more than `low` and `high`."""
  matrix = np.asarray(matrix)
  _check_shape(what, matrix)
  if matrix.dtype == bool and low < 0 or not ((matrix == low) | (matrix == high)).all():
    raise ValueError(f'{what} hold values other than {low} and {high}; {remedy}.')
  return matrix


def _check_shape(what: str, matrix: np.ndarray) -> None:
  """Raises if an array is no matrix, or an empty one."""
  if matrix.ndim != 2 or 0 in matrix.shape:
    raise ValueError(f'{what} have shape {matrix.shape}, but a non-empty matrix with one '
                     'row per image is needed.')


def _check_k(k: int) -> None:
  """Raises if k is no number of rows."""
  if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
    raise ValueError(f'k is {k!r}, but it counts rows from the first on; give a whole number, 1 or '
                     'more.')


def _checked_weights(weights: np.ndarray, c: int) -> np.ndarray:
  """Weights as an array [c]; raises if there are not c, or one is negative or not finite."""
  weights = np.asarray(weights, np.float64)
  if weights.shape != (c,):
    raise ValueError(f'weights have shape {weights.shape}, but the codes have {c} bits; '
                     'give one weight per bit.')
  wrong = weights[~((weights >= 0) & np.isfinite(weights))]
  if wrong.size:
    raise ValueError(f'weights hold {wrong[0]}; give finite numbers that are not negative.')
  return weights


def _check_equal_columns(
    what: str, matrix: np.ndarray, other_what: str, other: np.ndarray) -> None:
  """Raises if two matrices have different numbers of columns."""
  if matrix.shape[1] != other.shape[1]:
    raise ValueError(f'{what} have {matrix.shape[1]} columns and {other_what} '
                     f'{other.shape[1]}; both need the same number.')


def _relevant_rows(query_labels: np.ndarray, database_labels: np.ndarray) -> np.ndarray:
  """How many rows of the database are relevant to each query, [q, L], [n, L] -> [q]."""
  query_labels = _checked_labels('query', query_labels)
  database_labels = _checked_labels('database', database_labels)
  _check_equal_columns('query labels', query_labels, 'database labels', database_labels)
  queries, database = distinct.number_rows(query_labels), distinct.number_rows(database_labels)
  return distinct.count_overlapping(queries, database)[queries.of_row]


def _mean_scores(
    queries: hamming.Merged, database: hamming.Merged, c: int, k: int,
    weights: np.ndarray | None = None) -> dict[str, float]:
  """`evaluate` of merged rows; `precision_radius_2` only where there are no weights.

  `weights` has the weights of the bits for each code of the queries, [C, c].
  """
  n = len(database.code_of)
  harmonic, first = ties.harmonic_numbers(n), min(k, n)
  totals = {}
  for count, ap, size, relevant in _ranked(queries, database, c, weights):
    precision, cut_ap = ties.first_rows(harmonic, size, relevant, first)
    scores = ties.whole_ranking(harmonic, size, relevant) | {
        'map_database_order': ap, f'precision@{k}': precision, f'map@{k}': cut_ap}
    if weights is None:
      scores['precision_radius_2'] = ties.ratio(
          relevant[:, :3].sum(axis=1), size[:, :3].sum(axis=1))
    for name, score in scores.items():
      totals[name] = totals.get(name, 0.0) + count @ score
  return {name: float(total / len(queries.code_of)) for name, total in totals.items()}


def _ranked(
    queries: hamming.Merged, database: hamming.Merged, c: int, weights: np.ndarray | None
) -> Iterator[tuple[np.ndarray, ...]]:
  """Ranks the database for all queries, a block of their codes at a time.

  Yields:
    Four arrays that describe each pair of a code in the block and a label set of queries that
    have it: the number of queries that it stands for, [E]; AP in database order, [E]; the
    numbers of all rows and of relevant rows at each level of distance, [E, m]. Weighted
    distances have other levels for each code; the last levels of some are then empty.
  """
  code_of, label_set_of, count = hamming.entries(queries)
  bounds = np.searchsorted(code_of, np.arange(len(queries.codes) + 1))
  hits = np.arange(1.0, len(database.code_of) + 1)

  @functools.lru_cache(max(1, _KEPT // len(database.code_of)))
  def relevant(label_set):
    sets = distinct.overlapping(database.label_sets, queries.label_sets[label_set])
    return sets.take(database.label_set_of)  # [n]

  def rank(code):
    sums = None if weights is None else hamming.byte_sums(weights[code])
    level, m = hamming.levels(database.codes, queries.codes[code], c, sums)
    order, ends = hamming.ranking(level.take(database.code_of), m)
    entries = []
    for label_set in label_set_of[bounds[code]:bounds[code + 1]]:
      ranks = np.flatnonzero(relevant(label_set).take(order)) + 1
      ap = ties.ratio((hits[:ranks.size] / ranks).sum(), ranks.size)
      found = np.searchsorted(ranks, ends, 'right')
      entries.append((ap, *((ends, found) if weights is None else _joined(ends, found))))
    return entries

  levels = c + 1 if weights is None else max(c + 1, len(database.codes))  # at most
  step = _BLOCK // levels + 1
  # Threads help, since NumPy sorts and takes without the GIL.
  with futures.ThreadPoolExecutor(cores.usable()) as pool:
    for start in range(0, len(queries.codes), step):
      codes = range(start, min(start + step, len(queries.codes)))
      entries = itertools.chain.from_iterable(pool.map(rank, codes))
      ap, rows, relevant_rows = zip(*entries, strict=True)
      yield (count[bounds[codes.start]:bounds[codes.stop]], np.array(ap),
             *(np.diff(_stacked(x), axis=1, prepend=0) for x in (rows, relevant_rows)))


def _joined(ends: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Joins levels without relevant rows that follow each other; no score tells them apart.

  Args:
    ends: the number of rows up to each level, [m].
    found: the number of relevant rows up to each level, [m].

  Returns:
    Both for the levels that are left.
  """
  has_relevant = np.diff(found, prepend=0) > 0
  last = has_relevant | np.append(has_relevant[1:], True)
  return ends[last], found[last]


def _stacked(counts: Sequence[np.ndarray]) -> np.ndarray:
  """Numbers of rows up to each level as a matrix; the last is repeated where there are fewer."""
  stacked = np.empty((len(counts), max(map(len, counts))), np.int64)
  for row, values in zip(stacked, counts, strict=True):
    row[:len(values)], row[len(values):] = values, values[-1]
  return stacked
