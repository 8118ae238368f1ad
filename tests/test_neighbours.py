"""What lies near queries: counts against loops over rows, curves and AP against the scores."""

import numpy as np
import pytest

from mah_jax.evaluation import metrics
from mah_jax.evaluation import neighbours


def _draw(rng, rows, c, classes, several):
  codes = rng.choice(np.array([-1, 1], np.int8), (rows, c))
  if several:
    return codes, (rng.random((rows, classes)) < 0.3).astype(np.uint8)  # some have no label
  return codes, np.eye(classes, dtype=np.uint8)[rng.integers(0, classes, rows)]


def _look_by_loops(queries, database, query_labels, database_labels, k):
  """`neighbours.look`, one pair of rows at a time."""
  c = queries.shape[1]
  size, relevant = np.zeros((2, len(queries), c + 1), int)
  labels = np.zeros(query_labels.shape)
  for i, (code, own) in enumerate(zip(queries, query_labels)):
    distances = [sum(a != b for a, b in zip(code, other)) for other in database]
    for distance, other in zip(distances, database_labels):
      size[i, distance] += 1
      relevant[i, distance] += any(a and b for a, b in zip(own, other))
    for distance, other in zip(distances, database_labels):
      nearer = sum(d < distance for d in distances)
      tied = sum(d == distance for d in distances)
      labels[i] += min(1.0, max(0.0, (k - nearer) / tied)) * other / k
  return size, relevant, labels


@pytest.mark.parametrize('several', [False, True])
@pytest.mark.parametrize('c, k', [(2, 7), (3, 40), (9, 10)])
def test_counts_are_those_of_loops_over_all_pairs(several, c, k):
  rng = np.random.default_rng(c)
  queries, query_labels = _draw(rng, 11, c, 4, several)
  database, database_labels = _draw(rng, 40, c, 4, several)
  near = neighbours.look(queries, database, query_labels, database_labels, k)
  size, relevant, labels = _look_by_loops(queries, database, query_labels, database_labels, k)
  np.testing.assert_array_equal(near.size, size)
  np.testing.assert_array_equal(near.relevant, relevant)
  np.testing.assert_allclose(near.labels, labels, atol=1e-12)


@pytest.mark.parametrize('several', [False, True])
def test_precision_and_ap_are_those_of_the_scores(several):
  rng = np.random.default_rng(0)
  rows = *_draw(rng, 30, 6, 5, several), *_draw(rng, 200, 6, 5, several)
  arguments = rows[0], rows[2], rows[1], rows[3]
  near = neighbours.look(*arguments, k=10)
  ranks = np.array([1, 7, 50, 200])
  curves = neighbours.curves(near, ranks)
  for rank, precision in zip(ranks, curves.precision):
    scores = metrics.evaluate(*arguments, k=int(rank))
    assert precision == pytest.approx(scores[f'precision@{rank}'], abs=1e-12)
  assert neighbours.average_precision(near).mean() == pytest.approx(scores['map'], abs=1e-12)
  assert curves.recall[-1] == pytest.approx(metrics.ceiling(rows[1], rows[3]))  # 0 without any


def test_recall_by_hand():
  """One query: two rows at distance 0, one of them relevant, and a relevant row at distance 1."""
  queries = np.array([[1, 1]])
  database = np.array([[1, 1], [1, 1], [1, -1], [-1, -1]])
  labels = np.array([[1, 0], [0, 1], [1, 0], [0, 1]])
  near = neighbours.look(queries, database, np.array([[1, 0]]), labels, k=2)
  curves = neighbours.curves(near, np.array([1, 2, 3, 4]))
  np.testing.assert_allclose(curves.precision, [1 / 2, 1 / 2, 2 / 3, 1 / 2])
  np.testing.assert_allclose(curves.recall, [1 / 4, 1 / 2, 1, 1])
  np.testing.assert_allclose(near.labels, [[1 / 2, 1 / 2]])


def test_confusions_are_means_over_the_queries_of_a_label():
  labels = np.array([[0.5, 0.5, 0], [1.0, 0, 0], [0.25, 0.75, 0]])
  found = neighbours.confusions(labels, np.array([[1, 0, 0], [1, 0, 0], [1, 1, 0]]))
  np.testing.assert_allclose(found, [[1.75 / 3, 1.25 / 3, 0], [0.25, 0.75, 0], [np.nan] * 3])


def test_the_nearest_keep_database_order():
  database = np.array([[1, -1, 1], [1, 1, 1], [-1, -1, -1], [1, 1, 1], [-1, 1, 1]])
  rows, distances = neighbours.nearest(np.array([1, 1, 1]), database, 4)
  assert rows.tolist() == [1, 3, 0, 4] and distances.tolist() == [0, 0, 1, 1]
