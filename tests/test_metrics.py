"""Retrieval scores against hand-worked numbers, all tie orders, and random tie orders."""

import itertools
import math

import numpy as np
import pytest
import reference

from mah_jax.evaluation import metrics
from mah_jax.evaluation import ties


def random_case(seed, q, n, c, labels, density=0.4):
  """Arguments of `evaluate`: random codes and label sets, some of them empty."""
  rng = np.random.default_rng(seed)
  codes = [np.where(rng.random((rows, c)) < 0.5, -1, 1) for rows in (q, n)]
  sets = [(rng.random((rows, labels)) < density).astype(int) for rows in (q, n)]
  return *codes, *sets


def distance_and_relevance(query_codes, codes, query_labels, labels):
  """Both [q, n], straight from the definitions."""
  distance = (query_codes[:, None] != codes[None]).sum(axis=2)
  return distance, (query_labels[:, None] & labels[None]).any(axis=2)


def test_a_ranking_worked_by_hand():
  # Distances 0, 1, 1, 2; the two ties are a hit and a miss. Hit first, the ranking is
  # - + - + with AP (1/2 + 2/4) / 2 = 1/2; else - - + + with (1/3 + 2/4) / 2 = 5/12.
  codes = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
  labels = np.array([[0, 1], [1, 0], [0, 1], [1, 1]])
  scores = metrics.evaluate(codes[:1], codes, np.array([[1, 0]]), labels, k=2)
  assert scores == pytest.approx({
      'map': 11 / 24, 'map_low': 5 / 12, 'map_high': 1 / 2, 'map_database_order': 1 / 2,
      'precision@2': 1 / 4, 'map@2': 1 / 4, 'precision_radius_2': 1 / 2})
  assert all(type(score) is float for score in scores.values())


@pytest.mark.parametrize('c', [1, 2, 3])
@pytest.mark.parametrize('seed', range(4))
def test_scores_equal_the_enumeration_of_all_tie_orders(seed, c):
  case = random_case(seed, 3, 6, c, 3)
  expected = {name: [] for name in ('map', 'map_low', 'map_high')}
  at = {(name, k): [] for name in ('precision', 'map') for k in range(1, 8)}
  for distance, relevant in zip(*distance_and_relevance(*case), strict=True):
    orders = [relevant[order] for order in reference.all_tie_orders(distance)]
    aps = [reference.plain_ap(order) for order in orders]
    for name, value in zip(expected, (np.mean(aps), min(aps), max(aps)), strict=True):
      expected[name].append(value)
    for k in range(1, 8):
      at['precision', k].append(np.mean([order[:k].mean() for order in orders]))
      at['map', k].append(np.mean([reference.plain_ap(order, k) for order in orders]))
  for k in range(1, 8):  # the last one is more than there are rows
    scores = metrics.evaluate(*case, k=k)
    for name in expected:
      assert scores[name] == pytest.approx(np.mean(expected[name]), abs=1e-12)
    for name in ('precision', 'map'):
      assert scores[f'{name}@{k}'] == pytest.approx(np.mean(at[name, k]), abs=1e-12)


@pytest.mark.parametrize('c,k', [(1, 9), (3, 25), (4, 40)])
def test_expectations_agree_with_random_tie_orders(c, k):
  draws, n = 20_000, 60
  case = random_case(c, 2, n, c, 4, density=0.25)
  case[2][:, 0] = 1  # neither query is without a label
  rng = np.random.default_rng(c)
  samples = {'map': 0, f'precision@{k}': 0, f'map@{k}': 0}
  for distance, relevant in zip(*distance_and_relevance(*case), strict=True):
    order = np.argsort(distance + rng.random((draws, n)), axis=1)
    hits = relevant[order]                                              # [draws, n]
    precision = np.cumsum(hits, axis=1) / np.arange(1, n + 1)
    first = hits[:, :k].sum(axis=1)
    samples['map'] += (hits * precision).sum(axis=1) / relevant.sum() / 2
    samples[f'precision@{k}'] += first / k / 2
    samples[f'map@{k}'] += (
        (hits * precision)[:, :k].sum(axis=1) / np.maximum(first, 1) / 2)
  scores = metrics.evaluate(*case, k=k)
  for name, sample in samples.items():
    assert sample.std() > 0
    error = sample.std(ddof=1) / math.sqrt(draws)
    assert abs(scores[name] - sample.mean()) < 3 * error


def test_map_at_k_sums_over_all_draws_from_a_large_tie():
  n, hits, k = 2000, 700, 500
  codes, labels = np.ones((n, 1)), np.zeros((n, 1))
  labels[:hits] = 1
  expected = 0.0
  for x in range(1, k + 1):
    draws = math.comb(hits, x) * math.comb(n - hits, k - x) / math.comb(n, k)
    precisions = sum((1 + i * (x - 1) / (k - 1)) / (i + 1) for i in range(k))
    expected += draws * precisions / k  # the x of the sum and of the divisor cancel
  scores = metrics.evaluate(codes[:1], codes, labels[:1], labels, k=k)
  assert scores[f'map@{k}'] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize('c', [1, 4, 17, 70])
def test_database_order_is_a_stable_sort(c):
  case = random_case(c, 30, 200, c, 5, density=0.2)
  expected = [
      reference.plain_ap(relevant[np.argsort(distance, kind='stable')])
      for distance, relevant in zip(*distance_and_relevance(*case), strict=True)]
  assert metrics.evaluate(*case)['map_database_order'] == pytest.approx(np.mean(expected))


@pytest.mark.parametrize('c', [1, 6, 70])
def test_radius_precision_counts_rows_within_two_bits(c):
  query_codes, codes, query_labels, labels = random_case(c, 20, 50, c, 4)
  codes[:5] = query_codes[:5]
  codes[:5, -1] *= -1  # at 70 bits, these are the only rows that near
  case = query_codes, codes, query_labels, labels
  expected = []
  for distance, relevant in zip(*distance_and_relevance(*case), strict=True):
    near = relevant[distance <= 2]
    expected.append(near.mean() if near.size else 0.0)
  assert 0 < np.mean(expected) < 1
  assert metrics.evaluate(*case)['precision_radius_2'] == pytest.approx(np.mean(expected))


def test_queries_with_nothing_to_find_count_zero():
  query_codes, codes, query_labels, labels = random_case(0, 8, 40, 4, 3)
  scores = metrics.evaluate(query_codes, codes, query_labels, labels, k=10)
  padded = metrics.evaluate(
      np.tile(query_codes, (2, 1)), codes,
      np.vstack([query_labels, np.zeros_like(query_labels)]), labels, k=10)
  assert padded == pytest.approx({name: score / 2 for name, score in scores.items()})


def test_k_beyond_the_database_means_all_of_it():
  case = random_case(1, 5, 30, 4, 3)
  whole, beyond = metrics.evaluate(*case, k=30), metrics.evaluate(*case)
  assert beyond['precision@5000'] == whole['precision@30']
  assert beyond['map@5000'] == whole['map@30'] == pytest.approx(whole['map'])


@pytest.mark.parametrize('c', [3, 70])
def test_merging_equal_rows_changes_nothing(c):
  query_codes, codes, query_labels, labels = random_case(c, 20, 90, c, 3)
  private = np.eye(110, dtype=int)  # one label that no other row has: nothing merges
  unmerged = (np.hstack([query_labels, private[:20]]), np.hstack([labels, private[20:]]))
  assert metrics.evaluate(query_codes, codes, *unmerged, k=40) == pytest.approx(
      metrics.evaluate(query_codes, codes, query_labels, labels, k=40))


def test_working_in_blocks_changes_nothing(monkeypatch):
  case = random_case(5, 30, 200, 6, 4)
  whole = metrics.evaluate(*case, k=50)
  monkeypatch.setattr(metrics, '_BLOCK', 30)  # five codes at a time
  monkeypatch.setattr(ties, '_BLOCK', 300)    # three queries at a time
  assert metrics.evaluate(*case, k=50) == pytest.approx(whole, abs=1e-14)


@pytest.mark.parametrize('dtype', [np.int8, np.float32, np.float64])
def test_the_dtype_of_codes_and_labels_does_not_matter(dtype):
  case = random_case(2, 10, 50, 8, 4)
  assert metrics.evaluate(*(x.astype(dtype) for x in case)) == metrics.evaluate(*case)


def test_perfect_codes_score_one_and_ties_do_not_matter():
  labels = np.eye(4, dtype=int)[np.arange(40) % 4]
  codes = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])[np.arange(40) % 4]
  scores = metrics.evaluate(codes[:8], codes, labels[:8], labels, k=10)
  assert scores.pop('precision_radius_2') == 0.25
  assert set(scores.values()) == {1.0}


GOOD = random_case(0, 3, 4, 2, 2)


@pytest.mark.parametrize('position,value,message', [
    (0, np.zeros((3, 2)), 'query codes hold values other than'),
    (1, np.full((4, 2), np.nan), 'database codes hold values other than'),
    (0, np.ones((3, 5)), 'query codes have 5 columns and database codes 2'),
    (0, np.ones(3), r'query codes have shape \(3,\)'),
    (0, np.ones((0, 2)), r'query codes have shape \(0, 2\)'),
    (1, np.ones((0, 2)), r'database codes have shape \(0, 2\)'),
    (1, np.ones((5, 2)), '5 database codes came with 4 rows of labels'),
    (2, np.ones((3, 3)), 'query labels have 3 columns and database labels 2'),
    (3, np.full((4, 2), 7), 'database labels hold values other than 0 and 1'),
    (3, np.ones((4, 0)), r'database labels have shape \(4, 0\)'),
])
def test_unusable_arrays_are_named(position, value, message):
  case = list(GOOD)
  case[position] = value
  with pytest.raises(ValueError, match=message):
    metrics.evaluate(*case)


def test_k_below_one_is_refused():
  with pytest.raises(ValueError, match='k is 0'):
    metrics.evaluate(*GOOD, k=0)


def test_codebook_worked_by_hand():
  codes = np.array([[1, 1, 1], [1, -1, 1], [1, -1, -1], [1, 1, 1], [1, 1, -1]])
  labels = np.zeros((5, 4))
  labels[[0, 1, 2, 3], [0, 0, 2, 3]] = 1  # the last row has none
  # Means: (1, 0, 1) -> + + +, no row for the second label, + - -, + + + again.
  assert metrics.codebook(codes, labels) == {
      'distinct': 2, 'min_distance': 0, 'bit_balance': 0.0,
      'codewords': ['111', '', '100', '111']}
  assert metrics.codebook(codes[:3, 1:], labels[:3]) == {
      'distinct': 2, 'min_distance': 2, 'bit_balance': pytest.approx(1 / 3),
      'codewords': ['11', '', '00', '']}


def test_codebook_min_distance_equals_a_double_loop():
  rng = np.random.default_rng(0)
  words = np.where(rng.random((9, 70)) < 0.5, -1, 1)
  gaps = [np.sum(a != b) for a, b in itertools.combinations(words, 2)]
  book = metrics.codebook(words.repeat(3, axis=0), np.eye(9).repeat(3, axis=0))
  assert (book['distinct'], book['min_distance']) == (9, min(gaps))


def test_codebook_of_one_class_has_no_pair_to_measure():
  book = metrics.codebook(np.array([[1, -1], [1, 1]]), np.array([[1], [1]]))
  assert book == {'distinct': 1, 'min_distance': 2, 'bit_balance': 0.0, 'codewords': ['11']}
