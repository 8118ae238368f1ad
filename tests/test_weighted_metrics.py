"""Scores of weighted distances, of a random order and of a perfect one, by brute force."""

import fractions

import numpy as np
import pytest

from mah_jax.evaluation import metrics


def random_case(seed, q, n, c, labels):
  """Arguments of `evaluate`: random codes, and label sets of which some are empty."""
  rng = np.random.default_rng(seed)
  codes = [np.where(rng.random((rows, c)) < 0.5, -1, 1) for rows in (q, n)]
  sets = [(rng.random((rows, labels)) < 0.3).astype(int) for rows in (q, n)]
  return *codes, *sets


def ap(relevant):
  """Average precision of ranked 0/1, exactly."""
  ranks = [rank for rank, hit in enumerate(relevant, start=1) if hit]
  total = sum(fractions.Fraction(i, rank) for i, rank in enumerate(ranks, start=1))
  return total / len(ranks) if ranks else fractions.Fraction(0)


def expected_ap(groups):
  """Mean AP over all orders of ties from a sum over pairs of rows, exactly.

  A relevant row of a group sees 1 + others ranked up to it; each position in the group is
  as likely, and each other row of the group comes before it with that position's share.
  """
  rank, before, total = 0, 0, fractions.Fraction(0)
  for group in groups:
    size, hits = len(group), sum(group)
    for position in range(size):
      for _ in range(hits):
        within = fractions.Fraction((hits - 1) * position, max(size - 1, 1))
        total += (before + 1 + within) / (rank + position + 1) / size
    rank, before = rank + size, before + hits
  return total / before if before else total


def brute(query_codes, codes, query_labels, labels, weights, k):
  """The scores by a loop over queries; weights are integers, so ties are exact."""
  names = ('map', 'map_low', 'map_high', 'map_database_order', f'precision@{k}',
           'precision_radius_2')
  scores = {name: [] for name in names}
  for code, label in zip(query_codes, query_labels, strict=True):
    distance = [sum(int(w) for w, a, b in zip(weights, code, row, strict=True) if a != b)
                for row in codes]
    hits = [int((label & row).any()) for row in labels]
    groups = [[hit for hit, x in zip(hits, distance, strict=True) if x == d]
              for d in sorted(set(distance))]
    precision = fractions.Fraction(0)
    left = k
    for group in groups:
      taken = min(left, len(group))
      precision += fractions.Fraction(taken * sum(group), len(group) * k)
      left -= taken
    near = [hit for hit, row in zip(hits, codes, strict=True) if sum(code != row) <= 2]
    values = (expected_ap(groups), ap(sum(map(sorted, groups), [])),
              ap(sum((sorted(group, reverse=True) for group in groups), [])),
              ap(sum(groups, [])), precision, np.mean(near) if near else 0.0)
    for name, value in zip(names, values, strict=True):
      scores[name].append(float(value))
  return {name: np.mean(values) for name, values in scores.items()}


@pytest.mark.parametrize('c,weights', [
    (2, [3, 1]), (4, [0, 1, 1, 2]), (4, [1, 0, 0, 0]), (4, [0, 0, 0, 0]),
    (9, [1, 2, 3, 4, 5, 6, 7, 8, 9]), (70, list(range(70)))])
def test_weighted_scores_equal_brute_force(c, weights):
  case = random_case(c, 6, 40, c, 3)
  case[1][:6, 1:] = case[0][:, 1:]  # some rows are near, whatever c is
  weights = np.array(weights)
  scores = metrics.evaluate(*case, k=11, weights=weights / max(weights.max(), 1) * 1.0)
  expected = brute(*case, np.rint(weights / max(weights.max(), 1) * 2 ** 20), 11)
  assert set(scores) == set(expected) | {'map@11'}
  assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-12)
  plain = metrics.evaluate(*case, k=11)
  assert scores['precision_radius_2'] == plain['precision_radius_2'] > 0
  assert scores['map'] != plain['map']


def test_a_weighted_map_at_k_is_that_of_the_same_ties():
  # Bits of weight 0 do not exist: what is left ranks like codes without them.
  query_codes, codes, query_labels, labels = case = random_case(1, 20, 60, 7, 3)
  weights = np.array([0, 1, 1, 0, 1, 1, 0])
  kept = np.flatnonzero(weights)
  short = metrics.evaluate(query_codes[:, kept], codes[:, kept], query_labels, labels, k=9)
  scores = metrics.evaluate(*case, k=9, weights=weights)
  for name in ('map', 'map_low', 'map_high', 'map_database_order', 'precision@9', 'map@9'):
    assert scores[name] == pytest.approx(short[name], abs=1e-14)


def test_distances_apart_by_rounding_alone_are_ties():
  # 0.1 + 0.2 is not 0.3 in floating point; rows two and three are tied none the less.
  codes = np.array([[1, 1, 1], [-1, -1, 1], [1, 1, -1]])
  labels = np.array([[0], [0], [1]])
  scores = metrics.evaluate(codes[:1], codes, np.array([[1]]), labels,
                            weights=np.array([0.1, 0.2, 0.1 + 0.2]))
  assert scores['map'] == pytest.approx((1 / 2 + 1 / 3) / 2)
  assert (scores['map_low'], scores['map_high']) == pytest.approx((1 / 3, 1 / 2))


@pytest.mark.parametrize('c', [1, 6, 17, 70])
@pytest.mark.parametrize('weight', [1, 0.3, 1e9])
def test_equal_weights_change_nothing(c, weight):
  case = random_case(c, 10, 80, c, 4)
  assert metrics.evaluate(*case, weights=np.full(c, weight)) == metrics.evaluate(*case)


@pytest.mark.parametrize('weights,message', [
    ([1, -0.5], 'weights hold -0.5; give finite numbers'),
    ([np.nan, 1], 'weights hold nan'),
    ([1, np.inf], 'weights hold inf'),
    ([1, 1, 1], r'weights have shape \(3,\), but the codes have 2 bits'),
    ([[1, 1]], r'weights have shape \(1, 2\)'),
])
def test_unusable_weights_are_named(weights, message):
  with pytest.raises(ValueError, match=message):
    metrics.evaluate(*random_case(0, 3, 4, 2, 2), weights=np.array(weights))


def test_chance_and_ceiling_worked_by_hand():
  # One of three rows is relevant to the first query: AP 1, 1/2 or 1/3, 11/18 on average.
  # Two are relevant to the second: 1, (1 + 2/3) / 2 or (1/2 + 2/3) / 2, 29/36 on average.
  # None is relevant to the third. All three are relevant to the fourth.
  query_labels = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]])
  labels = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1]])
  assert metrics.chance(query_labels, labels) == pytest.approx(
      (11 / 18 + 29 / 36 + 0 + 1) / 4)
  assert metrics.ceiling(query_labels, labels) == 3 / 4


@pytest.mark.parametrize('labels', [2, 70])
def test_chance_is_the_map_of_equal_codes_and_ceiling_of_perfect_ones(labels):
  *_, query_labels, database_labels = random_case(labels, 30, 100, 1, labels)
  query_labels[0] = 0
  scores = metrics.evaluate(np.ones((30, 1)), np.ones((100, 1)), query_labels, database_labels)
  assert metrics.chance(query_labels, database_labels) == pytest.approx(scores['map'])
  assert metrics.ceiling(query_labels, database_labels) == pytest.approx(scores['map_high'])
  assert metrics.ceiling(query_labels, database_labels) < 1


def test_chance_and_ceiling_refuse_what_is_not_labels():
  for function in (metrics.chance, metrics.ceiling):
    with pytest.raises(ValueError, match='query labels hold values other than 0 and 1'):
      function(np.full((2, 3), 2), np.ones((2, 3)))
    with pytest.raises(ValueError, match='query labels have 2 columns and database labels 3'):
      function(np.ones((2, 2)), np.ones((2, 3)))
