"""Scores of the ranking by outputs against inner products, all tie orders, and by hand."""

import numpy as np
import pytest
import reference

from mah_jax.evaluation import metrics


def random_case(seed, q, n, c, labels=3):
  """Arguments of `evaluate_outputs`: outputs with ties and zeros among them, random codes."""
  rng = np.random.default_rng(seed)
  outputs = rng.choice([-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0], (q, c))
  sets = [(rng.random((rows, labels)) < 0.4).astype(int) for rows in (q, n)]
  return outputs, rng.choice([-1, 1], (n, c)), *sets


def inner_products(outputs, codes):
  """Products of outputs, rounded to 2^-20 of a query's largest, with codes, [q, n]; exact sums."""
  largest = np.abs(outputs).max(axis=1, keepdims=True)
  return np.rint(outputs / np.where(largest > 0, largest, 1) * 2**20) @ codes.T.astype(np.float64)


def relevance(query_labels, labels):
  """Whether a label is shared, [q, n]."""
  return (query_labels[:, None] & labels[None]).any(axis=2)


def test_a_ranking_worked_by_hand():
  # Inner products 0.7, 1.1, -0.7, -0.7: the second row is first, the last two are a miss and a
  # hit that are tied. Hit first, the ranking is - + + - with AP (1/2 + 2/3) / 2 = 7/12; else
  # - + - + with (1/2 + 2/4) / 2 = 1/2. By Hamming distance three rows are tied: 1, 0, 1, 1.
  codes = np.array([[1, 1], [1, -1], [-1, -1], [-1, -1]])
  labels = np.array([[1], [0], [0], [1]])
  scores = metrics.evaluate_outputs(np.array([[0.9, -0.2]]), codes, np.array([[1]]), labels, k=3)
  assert scores == pytest.approx({
      'map': 13 / 24, 'map_low': 1 / 2, 'map_high': 7 / 12, 'map_database_order': 1 / 2,
      'precision@3': 1 / 2, 'map@3': 13 / 24})
  assert all(type(score) is float for score in scores.values())


@pytest.mark.parametrize('c', [1, 2, 3, 9])
@pytest.mark.parametrize('seed', range(3))
def test_scores_equal_the_enumeration_of_all_tie_orders(seed, c):
  outputs, codes, query_labels, labels = case = random_case(seed, 5, 6, c)
  outputs[0] = 0  # all rows are tied
  for k in (1, 3, 6, 7):
    expected = {name: [] for name in (
        'map', 'map_low', 'map_high', 'map_database_order', f'precision@{k}', f'map@{k}')}
    products = inner_products(outputs, codes)
    for product, relevant in zip(products, relevance(query_labels, labels), strict=True):
      orders = [relevant[order] for order in reference.all_tie_orders(-product)]
      aps = [reference.plain_ap(order) for order in orders]
      in_order = relevant[np.lexsort((np.arange(6), -product))]
      for name, value in zip(expected, (
          np.mean(aps), min(aps), max(aps), reference.plain_ap(in_order),
          np.mean([order[:k].mean() for order in orders]),
          np.mean([reference.plain_ap(order, k) for order in orders])), strict=True):
        expected[name].append(value)
    assert metrics.evaluate_outputs(*case, k=k) == pytest.approx(
        {name: np.mean(values) for name, values in expected.items()}, abs=1e-12)


@pytest.mark.parametrize('q, n, c', [(7, 300, 4), (7, 300, 16), (5, 900, 70), (3, 5000, 12)])
def test_many_rows_are_ranked_by_their_inner_products(q, n, c):
  outputs, codes, query_labels, labels = case = random_case(c, q, n, c, 5)
  outputs[1:] = np.random.default_rng(c).normal(size=(q - 1, c))  # the first has tied bits
  codes[n // 2:] = codes[:n - n // 2]  # all rows are tied, be it with one other
  products = inner_products(outputs, codes)
  database_order, bounds = [], {'map_low': [], 'map_high': []}
  for product, relevant in zip(products, relevance(query_labels, labels), strict=True):
    database_order.append(reference.plain_ap(relevant[np.lexsort((np.arange(n), -product))]))
    for name, key in (('map_low', relevant), ('map_high', ~relevant)):
      bounds[name].append(reference.plain_ap(relevant[np.lexsort((key, -product))]))
  scores = metrics.evaluate_outputs(*case, k=50)
  assert scores['map_database_order'] == pytest.approx(np.mean(database_order), abs=1e-12)
  for name, values in bounds.items():
    assert scores[name] == pytest.approx(np.mean(values), abs=1e-12)
  assert scores['map_low'] < scores['map'] < scores['map_high']
  # Each query alone is a weighted ranking.
  alone = [metrics.evaluate(np.where(u >= 0, 1, -1)[None], codes, label[None], labels, k=50,
                            weights=np.abs(u)) for u, label in zip(outputs, query_labels)]
  assert scores == pytest.approx(
      {name: np.mean([one[name] for one in alone]) for name in scores}, abs=1e-12)


def test_working_in_blocks_changes_nothing(monkeypatch):
  case = random_case(5, 30, 200, 9)
  whole = metrics.evaluate_outputs(*case, k=50)
  monkeypatch.setattr(metrics, '_BLOCK', 400)  # three queries at a time
  assert metrics.evaluate_outputs(*case, k=50) == pytest.approx(whole, abs=1e-14)


@pytest.mark.parametrize('c', [1, 6, 70])
def test_outputs_of_one_size_rank_like_codes(c):
  outputs, codes, *labels = random_case(c, 20, 90, c)
  signs = np.where(outputs >= 0, 1, -1)
  expected = metrics.evaluate(signs, codes, *labels, k=40)
  del expected['precision_radius_2']
  sizes = np.linspace(1e-20, 1e20, 20)[:, None]  # each query has its own, which does not matter
  assert metrics.evaluate_outputs(sizes * signs, codes, *labels, k=40) == pytest.approx(
      expected, abs=1e-14)


def test_outputs_apart_by_rounding_alone_are_ties():
  # 0.1 + 0.2 is not 0.3 in floating point; the last two rows are tied none the less.
  codes = np.array([[1, 1, 1], [-1, -1, 1], [1, 1, -1]])
  scores = metrics.evaluate_outputs(np.array([[0.1, 0.2, 0.1 + 0.2]]), codes, np.array([[1]]),
                                    np.array([[0], [0], [1]]))
  assert (scores['map_low'], scores['map_high']) == pytest.approx((1 / 3, 1 / 2))


GOOD = random_case(0, 3, 4, 2, 2)


@pytest.mark.parametrize('position,value,message', [
    (0, np.full((3, 2), np.nan), 'query outputs hold nan; give finite numbers'),
    (0, np.array([[1, 1], [1, -np.inf], [1, 1]]), 'query outputs hold -inf'),
    (0, np.ones((3, 5)), 'query outputs have 5 columns and database codes 2; both need'),
    (0, np.ones(3), r'query outputs have shape \(3,\), but a non-empty matrix'),
    (0, np.ones((0, 2)), r'query outputs have shape \(0, 2\)'),
    (0, np.ones((5, 2)), '5 rows of query outputs came with 3 rows of labels; give one row'),
    (1, np.full((4, 2), 0.5), 'database codes hold values other than -1 and 1'),
    (1, np.ones((5, 2)), '5 database codes came with 4 rows of labels'),
    (2, np.ones((3, 3)), 'query labels have 3 columns and database labels 2'),
    (3, np.full((4, 2), 7), 'database labels hold values other than 0 and 1'),
])
def test_unusable_arrays_are_named(position, value, message):
  case = list(GOOD)
  case[position] = value
  with pytest.raises(ValueError, match=message):
    metrics.evaluate_outputs(*case)


def test_k_below_one_is_refused():
  with pytest.raises(ValueError, match='k is 0'):
    metrics.evaluate_outputs(*GOOD, k=0)
