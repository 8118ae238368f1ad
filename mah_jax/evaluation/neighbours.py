"""What lies near each query: rows at each distance, and curves and confusions made of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mah_jax import distinct
from mah_jax.evaluation import hamming
from mah_jax.evaluation import ties


class Neighbours(NamedTuple):
  """What the database holds around each query.

  size: rows at each distance 0..c, [q, c + 1].
  relevant: those of them that share a label with the query, [q, c + 1].
  labels: expected share of the first k rows that carry each label, equal distances in random
    order, [q, L].
  """
  size: np.ndarray
  relevant: np.ndarray
  labels: np.ndarray


class Curves(NamedTuple):
  """Means over all queries after so many rows, equal distances in random order.

  A query without relevant rows counts 0 in both.

  ranks: how many of the first rows are looked at, [r].
  precision: expected share of relevant rows among them, [r].
  recall: expected share of all relevant rows that are among them, [r].
  """
  ranks: np.ndarray
  precision: np.ndarray
  recall: np.ndarray


def look(query_codes: np.ndarray, database_codes: np.ndarray, query_labels: np.ndarray,
         database_labels: np.ndarray, k: int) -> Neighbours:
  """Counts what lies near each query.

  Equal codes are counted once for all queries that have them, and nothing is sorted.

  Args:
    query_codes: codes in {-1, +1}, [q, c].
    database_codes: codes in {-1, +1}, [n, c].
    query_labels: 0/1 per label, [q, L].
    database_labels: 0/1 per label, [n, L].
    k: how many of the first rows `labels` looks at; all, where there are fewer.
  """
  queries = hamming.merge(query_codes, query_labels)
  database = hamming.merge(database_codes, database_labels)
  code_of, set_of, rows = hamming.entries(database)
  label_sets = distinct.number_rows(database_labels)  # numbered as in `merge`
  labels_of_set = database_labels[label_sets.row].astype(np.float64)  # [S, L]
  q, levels, k = len(query_codes), query_codes.shape[1] + 1, min(k, len(database_codes))
  size, relevant = np.empty((2, q, levels), np.int64)
  labels = np.empty((q, database_labels.shape[1]))
  by_code = np.argsort(queries.code_of, kind='stable')
  bounds = np.searchsorted(queries.code_of[by_code], np.arange(len(queries.codes) + 1))
  for number, code in enumerate(queries.codes):
    level = hamming.distances(database.codes, code).take(code_of)  # [E]
    ends = np.cumsum(np.bincount(level, rows, levels)).astype(np.int64)
    cut = np.searchsorted(ends, k)  # the distance of the k-th row
    before = ends[cut - 1] if cut else 0
    share = np.where(np.arange(levels) < cut, 1.0, (k - before) / max(ends[cut] - before, 1))
    near = np.flatnonzero(level <= cut)
    taken = np.bincount(set_of[near], rows[near] * share[level[near]], len(labels_of_set))
    sets = np.flatnonzero(taken)  # few of many
    members = by_code[bounds[number]:bounds[number + 1]]
    size[members], labels[members] = np.diff(ends, prepend=0), taken[sets] @ labels_of_set[sets] / k
    for label_set in np.unique(queries.label_set_of[members]):
      shares = distinct.overlapping(database.label_sets, queries.label_sets[label_set])
      same = members[queries.label_set_of[members] == label_set]
      relevant[same] = np.bincount(level, rows * shares.take(set_of), levels)
  return Neighbours(size, relevant, labels)


def average_precision(near: Neighbours) -> np.ndarray:
  """Expected AP of each query over the whole ranking, as in `metrics.evaluate`, [q]."""
  harmonic = ties.harmonic_numbers(int(near.size[0].sum()))
  return ties.whole_ranking(harmonic, near.size, near.relevant)['map']


def curves(near: Neighbours, ranks: np.ndarray) -> Curves:
  """Precision and recall after so many rows [r]; between two distances both grow evenly."""
  start = np.zeros((len(near.size), 1), np.int64)
  ends, found = (np.cumsum(np.hstack([start, x]), axis=1) for x in (near.size, near.relevant))
  hits = np.array([np.interp(ranks, *pair) for pair in zip(ends, found)])  # [q, r]
  recall = ties.ratio(hits, found[:, -1:])
  return Curves(ranks, (hits / ranks).mean(axis=0), recall.mean(axis=0))


def confusions(labels: np.ndarray, query_labels: np.ndarray) -> np.ndarray:
  """The `labels` of `Neighbours` averaged over the queries with each label, [q, L] -> [L, L].

  A label that no query has gets a row of NaN.
  """
  weights = query_labels.astype(np.float64)
  count = weights.sum(axis=0)[:, None]
  return np.where(count > 0, weights.T @ labels / np.maximum(count, 1), np.nan)


def nearest(query_code: np.ndarray, database_codes: np.ndarray, k: int
            ) -> tuple[np.ndarray, np.ndarray]:
  """The k nearest rows to one code [c], and their distances; equal ones keep database order."""
  packed, code = distinct.pack(database_codes), distinct.pack(query_code[None])[0]
  distance = hamming.distances(packed, code)
  rows = np.argsort(distance, kind='stable')[:k]
  return rows, distance[rows]
