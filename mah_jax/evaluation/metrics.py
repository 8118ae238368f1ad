"""Retrieval scores of binary codes that do not hide what ties do to a Hamming ranking."""

from typing import Any

import numpy as np

from mah_jax.evaluation import hamming


def evaluate(
    query_codes: np.ndarray,
    database_codes: np.ndarray,
    query_labels: np.ndarray,
    database_labels: np.ndarray,
    k: int = 5000,
) -> dict[str, float]:
  """Scores the ranking of the database by Hamming distance to each query.

  A row is relevant when it shares at least one label with the query. Every score is the
  mean over all queries, and a query with nothing to find counts 0. With fewer than `k`
  rows in the database the first `k` are all of them; the key keeps the `k` asked for.

  Args:
    query_codes: codes in {-1, +1}, [q, c].
    database_codes: codes in {-1, +1}, [n, c].
    query_labels: 0/1 per label, [q, L].
    database_labels: 0/1 per label, [n, L].
    k: how many of the first rows `precision@k` and `map@k` look at.

  Returns:
    map: average precision (AP) over the whole ranking, divided by the number of
      relevant rows; its expectation when equal distances come in random order.
    map_low, map_high: the same AP in the worst and in the best order of ties.
    map_database_order: the same AP when equal distances keep the order of the database.
    precision@k: expected share of relevant rows among the first k, random order of ties.
    map@k: expectation, over random order of ties, of AP over the first k divided by the
      number of relevant rows found there; an order that finds none counts 0.
    precision_radius_2: relevant rows at distance 2 or less divided by all rows there; 0
      where there are none. Ties do not matter.
  """
  query_codes, query_labels = _checked('query', query_codes, query_labels)
  database_codes, database_labels = _checked('database', database_codes, database_labels)
  _check_equal_columns('codes', query_codes, database_codes)
  _check_equal_columns('labels', query_labels, database_labels)
  if k < 1:
    raise ValueError(f'k is {k}, but it counts rows from the first on; give 1 or more.')

  queries = hamming.merge(query_codes, query_labels)
  database = hamming.merge(database_codes, database_labels)
  size, relevant = hamming.distance_histograms(queries, database, query_codes.shape[1])
  first = min(k, len(database_codes))
  scores = _tie_scores(size, relevant) | {
      'map_database_order': _database_order_ap(queries, database),
      f'precision@{k}': _precision_at(size, relevant, first),
      f'map@{k}': _ap_at(size, relevant, first),
      'precision_radius_2': _ratio(relevant[:, :3].sum(axis=1), size[:, :3].sum(axis=1)),
  }
  return {name: float(queries.entry_count @ score / len(query_codes))
          for name, score in scores.items()}


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
    codewords: of each label, as a text of 0 (for -1) and 1; empty for one without rows.
  """
  codes, labels = _checked('database', database_codes, database_labels)
  codes, labels = codes.astype(np.float64), labels.astype(np.float64)
  bits = labels.T @ codes >= 0  # [L, c]
  has_rows = labels.any(axis=0)
  words = hamming.pack(bits[has_rows])
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
  """Codes and labels of one side as arrays, once they are known to be usable."""
  codes, labels = np.asarray(codes), np.asarray(labels)
  for what, array in ('codes', codes), ('labels', labels):
    if array.ndim != 2 or 0 in array.shape:
      raise ValueError(f'{name} {what} have shape {array.shape}, but a non-empty matrix '
                       'with one row per image is needed.')
  if len(codes) != len(labels):
    raise ValueError(f'{len(codes)} {name} codes came with {len(labels)} rows of labels; '
                     'give one row of labels per code.')
  if not ((codes == 1) | (codes == -1)).all():
    raise ValueError(f'{name} codes hold values other than -1 and +1; take their sign '
                     'first.')
  if not ((labels == 0) | (labels == 1)).all():
    raise ValueError(f'{name} labels hold values other than 0 and 1; give one column per '
                     'label.')
  return codes, labels


def _check_equal_columns(what: str, query: np.ndarray, database: np.ndarray) -> None:
  if query.shape[1] != database.shape[1]:
    raise ValueError(f'query {what} have {query.shape[1]} columns and database {what} '
                     f'{database.shape[1]}; both need the same number.')


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
  """part / whole, and 0 where there is nothing to divide by."""
  return part / np.maximum(whole, 1)


def _before(counts: np.ndarray) -> np.ndarray:
  """Rows nearer than each distance, [.., c + 1] -> [.., c + 1]."""
  return np.cumsum(counts, axis=-1) - counts


def _harmonic(n: int) -> np.ndarray:
  """The harmonic numbers 1 + 1/2 + ... + 1/i for i = 0..n, [n + 1]."""
  return np.append(0.0, np.cumsum(1 / np.arange(1, n + 1)))


def _expected_sum(harmonic, rank, found, size, relevant):
  """Expected sum of precisions at the relevant rows of ties in random order.

  Position i of the ties holds a relevant row with probability relevant / size, and then
  (i - 1) (relevant - 1) / (size - 1) of the positions before it do, on average. So

    relevant / size * sum_{i=1..size} (found + 1 + (i - 1) slope) / (rank + i)

  with slope = (relevant - 1) / (size - 1), and the sum follows from harmonic numbers.

  Args:
    harmonic: harmonic numbers up to rank + size.
    rank: rows ranked before the ties.
    found: relevant rows among those.
    size: rows that are tied.
    relevant: relevant rows among those.
  """
  slope = (relevant - 1) / np.maximum(size - 1, 1)
  inverse_ranks = harmonic[rank + size] - harmonic[rank]
  total = (found + 1 - slope * (rank + 1)) * inverse_ranks + slope * size
  return _ratio(relevant, size) * total


def _ordered_sum(harmonic, rank, found, relevant):
  """sum_{i=1..relevant} (found + i) / (rank + i): relevant rows in one unbroken run."""
  return relevant + (found - rank) * (harmonic[rank + relevant] - harmonic[rank])


def _tie_scores(size: np.ndarray, relevant: np.ndarray) -> dict[str, np.ndarray]:
  """Expected, worst and best AP of each query from its histograms [E, c + 1] -> [E]."""
  harmonic = _harmonic(size[0].sum())
  rank, found = _before(size), _before(relevant)
  sums = {
      'map': _expected_sum(harmonic, rank, found, size, relevant),
      'map_low': _ordered_sum(harmonic, rank + size - relevant, found, relevant),
      'map_high': _ordered_sum(harmonic, rank, found, relevant),
  }
  total = relevant.sum(axis=1)
  return {name: _ratio(value.sum(axis=1), total) for name, value in sums.items()}


def _database_order_ap(queries: hamming.Merged, database: hamming.Merged) -> np.ndarray:
  """AP of each query entry when equal distances keep the order of the database, [E]."""
  found = np.arange(1.0, len(database.code_of) + 1)
  ap = np.zeros(len(queries.entry_code))
  for code, entries in hamming.entries_by_code(queries):
    distance = hamming.distances(database.codes, code)[database.code_of]  # [n]
    ranked = database.label_set_of[np.argsort(distance, kind='stable')]   # [n]
    for entry in entries:
      relevant = hamming.relevant_label_sets(queries, entry, database)
      rank = np.flatnonzero(relevant[ranked]) + 1
      ap[entry] = _ratio((found[:rank.size] / rank).sum(), rank.size)
  return ap


def _cut(size: np.ndarray, k: int) -> tuple[tuple, np.ndarray]:
  """Where the k-th row lies: an index of its distance, and the rows taken there, [E]."""
  at_cut = np.arange(len(size)), (np.cumsum(size, axis=1) >= k).argmax(axis=1)
  return at_cut, k - _before(size)[at_cut]


def _precision_at(size: np.ndarray, relevant: np.ndarray, k: int) -> np.ndarray:
  """Expected precision of the first k rows, [E, c + 1], [E, c + 1] -> [E]."""
  at_cut, taken = _cut(size, k)
  return (_before(relevant)[at_cut] + taken * relevant[at_cut] / size[at_cut]) / k


def _ap_at(size: np.ndarray, relevant: np.ndarray, k: int) -> np.ndarray:
  """Expected AP over the first k rows divided by the relevant ones found there, [E]."""
  harmonic = _harmonic(size[0].sum())
  rank, found = _before(size), _before(relevant)
  nearer = _before(_expected_sum(harmonic, rank, found, size, relevant))
  at_cut, taken = _cut(size, k)
  columns = [x[at_cut] for x in (nearer, rank, found, size, relevant)]
  return np.array([
      _cut_ap(harmonic, *row) for row in zip(*columns, taken, strict=True)])


def _cut_ap(harmonic, nearer, rank, found, size, relevant, taken):
  """`_ap_at` of one query, averaged over what k leaves of the ties that it cuts.

  How many relevant rows a random part of the ties holds is hypergeometric, and the order
  of nearer rows does not depend on it.

  Args:
    harmonic: harmonic numbers up to rank + size.
    nearer: expected sum of precisions before the ties.
    rank, found, size, relevant: as in `_expected_sum`.
    taken: rows of the ties that are among the first k.
  """
  drawn, probability = _hypergeometric(size, relevant, taken)
  total = nearer + _expected_sum(harmonic, rank, found, taken, drawn)
  return probability @ _ratio(total, found + drawn)


def _hypergeometric(
    size: int, relevant: int, taken: int) -> tuple[np.ndarray, np.ndarray]:
  """How many relevant rows a draw of `taken` rows from `size` can hold, and how likely.

  Built from the ratios of neighbouring probabilities, which lose no digits where
  differences of large log-factorials would.
  """
  irrelevant = size - relevant
  drawn = np.arange(max(0, taken - irrelevant), min(relevant, taken) + 1)
  x = drawn[:-1]
  ratio = (relevant - x) * (taken - x) / ((x + 1) * (irrelevant - taken + x + 1))
  log_weight = np.append(0.0, np.cumsum(np.log(ratio)))
  weight = np.exp(log_weight - log_weight.max())
  return drawn, weight / weight.sum()
