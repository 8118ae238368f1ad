"""Scores of a run: all metrics of its codes of each length, and their averages over seeds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from mah_jax.evaluation import metrics

# Kinds of scores. The database is searched by the codes that the method updated or fitted
# (learned), by codes that it was given at the start and never updated (assigned), by the codes of
# the hash function (encoded), or by the first of these with a weight for each bit (weighted).
LEARNED, ASSIGNED, ENCODED, WEIGHTED = 'learned', 'assigned', 'encoded', 'weighted'
KINDS = (LEARNED, ASSIGNED, ENCODED, WEIGHTED)

OUTPUTS = 'outputs'  # inside a kind: its scores when the outputs of the queries rank its codes


class Codes(NamedTuple):
  """Codes of one length.

  queries: codes of the queries, [q, c].
  learned: codes of the database that the method holds, [n, c]; None where it holds none.
  encoded: codes of the database by the hash function, [n, c]; None where nobody asked for them.
  weights: weights of the bits in a weighted ranking, [c]; None where the method has none.
  outputs: real outputs of the queries, by which codes can be ranked, [q, c] float32; None where
    nobody kept them.
  """
  queries: np.ndarray
  learned: np.ndarray | None
  encoded: np.ndarray | None
  weights: np.ndarray | None = None
  outputs: np.ndarray | None = None

  @property
  def database(self) -> np.ndarray:
    """The codes that are searched: the learned ones where there are any, else the encoded."""
    return self.encoded if self.learned is None else self.learned


def score(codes: Codes, query_labels: np.ndarray, database_labels: np.ndarray, *, k: int,
          code_updates: int | None) -> dict[str, Any]:
  """All metrics of the codes of one length.

  Args:
    codes: of the queries and of the database.
    query_labels: 0/1, [q, L].
    database_labels: 0/1, [n, L].
    k: how many of the first rows `precision@k` and `map@k` look at.
    code_updates: how often the method has updated the codes that it holds; 0 makes their scores
      `ASSIGNED`. None means that it fitted them, which makes them `LEARNED` as updates do.

  Returns:
    The scores of `metrics.evaluate` by kind, for each kind of codes that there is, and under
    'codebook' the `metrics.codebook` of the codes that are searched.
  """
  labels = query_labels, database_labels
  kinds = {ASSIGNED if code_updates == 0 else LEARNED: codes.learned, ENCODED: codes.encoded}
  scores = {kind: metrics.evaluate(codes.queries, database, *labels, k=k)
            for kind, database in kinds.items() if database is not None}
  if codes.weights is not None:
    scores[WEIGHTED] = metrics.evaluate(codes.queries, codes.database, *labels, k=k,
                                        weights=codes.weights)
  return scores | {'codebook': metrics.codebook(codes.database, database_labels)}


def add_outputs(scores: dict[str, Any], codes: Codes, query_labels: np.ndarray,
                database_labels: np.ndarray, *, k: int) -> dict[str, Any]:
  """A `score` of codes with the scores of their ranking by outputs, in each kind but `WEIGHTED`.

  It costs more than `score`, since each query is ranked by itself. Where codes have no outputs,
  nothing is added.
  """
  if codes.outputs is None:
    return scores
  databases = {LEARNED: codes.learned, ASSIGNED: codes.learned, ENCODED: codes.encoded}
  return scores | {
      kind: scores[kind] | {OUTPUTS: metrics.evaluate_outputs(
          codes.outputs, database, query_labels, database_labels, k=k)}
      for kind, database in databases.items() if kind in scores}


def average(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """The scores of several seeds, each a `score` by length, as one such dictionary.

  Every metric becomes its mean; 'deviation' has the standard deviations by kind and metric, and
  'codebook' is that of the first seed. The scores of a single seed stay as they are.
  """
  if len(seeds) == 1:
    return seeds[0]
  return {c: _average_of_length([scores[c] for scores in seeds]) for c in seeds[0]}


def _average_of_length(scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """`average` of the scores of one length, one `score` per seed."""
  kinds = [{kind: s[kind] for kind in s if kind != 'codebook'} for s in scores]
  return _reduced(kinds, np.mean) | {
      'deviation': _reduced(kinds, functools.partial(np.std, ddof=1)),
      'codebook': scores[0]['codebook']}


def _reduced(seeds: Sequence[Any], reduce: Callable[[Sequence[float]], Any]) -> Any:
  """One number for the numbers of all seeds, at each place of their nested dictionaries."""
  if isinstance(seeds[0], dict):
    return {name: _reduced([of_seed[name] for of_seed in seeds], reduce) for name in seeds[0]}
  return float(reduce(seeds))
