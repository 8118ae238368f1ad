"""Scores by kind of codes, and their averages over seeds."""

import numpy as np
import pytest

from mah_jax.evaluation import metrics
from mah_jax.evaluation import scores


@pytest.fixture
def case():
  """Queries, two sets of database codes, weights; labels of queries and of the database."""
  rng = np.random.default_rng(0)
  queries, learned, encoded = (rng.choice([-1, 1], (rows, 6)) for rows in (9, 40, 40))
  labels = [(rng.random((rows, 4)) < 0.4).astype(np.uint8) for rows in (9, 40)]
  return queries, learned, encoded, rng.random(6), labels


def test_kinds_are_named_in_the_order_of_a_table():
  assert scores.KINDS == ('learned', 'assigned', 'encoded', 'weighted')


def test_all_kinds_of_codes_are_scored(case):
  queries, learned, encoded, weights, labels = case
  result = scores.score(scores.Codes(queries, learned, encoded, weights), *labels, k=7,
                        code_updates=3)
  assert result == {
      'learned': metrics.evaluate(queries, learned, *labels, k=7),
      'encoded': metrics.evaluate(queries, encoded, *labels, k=7),
      'weighted': metrics.evaluate(queries, learned, *labels, k=7, weights=weights),
      'codebook': metrics.codebook(learned, labels[1])}
  assert 'map@7' in result['learned'] and result['learned'] != result['encoded']


@pytest.mark.parametrize('code_updates, kind', [(None, 'learned'), (1, 'learned'), (0, 'assigned')])
def test_codes_that_were_never_updated_are_assigned(case, code_updates, kind):
  queries, learned, _, _, labels = case
  result = scores.score(scores.Codes(queries, learned, None), *labels, k=5,
                        code_updates=code_updates)
  assert list(result) == [kind, 'codebook']
  assert result[kind] == metrics.evaluate(queries, learned, *labels, k=5)


def test_encoded_codes_are_searched_where_a_method_holds_none(case):
  queries, _, encoded, weights, labels = case
  codes = scores.Codes(queries, None, encoded, weights)
  assert codes.database is encoded
  result = scores.score(codes, *labels, k=5, code_updates=0)
  assert list(result) == ['encoded', 'weighted', 'codebook']
  assert result['weighted'] == metrics.evaluate(queries, encoded, *labels, k=5, weights=weights)
  assert result['codebook'] == metrics.codebook(encoded, labels[1])


@pytest.mark.parametrize('code_updates, kind', [(3, 'learned'), (0, 'assigned')])
def test_outputs_are_scored_inside_each_kind_but_weighted(case, code_updates, kind):
  queries, learned, encoded, weights, labels = case
  outputs = queries * np.random.default_rng(1).random(queries.shape).astype(np.float32)
  codes = scores.Codes(queries, learned, encoded, weights, outputs)
  plain = scores.score(codes, *labels, k=7, code_updates=code_updates)
  result = scores.add_outputs(plain, codes, *labels, k=7)
  assert list(result) == [kind, 'encoded', 'weighted', 'codebook']
  for name, database in ((kind, learned), ('encoded', encoded)):
    assert result[name] == plain[name] | {
        'outputs': metrics.evaluate_outputs(outputs, database, *labels, k=7)}
    assert result[name]['outputs']['map'] != result[name]['map']
  assert {name: result[name] for name in ('weighted', 'codebook')} == {
      name: plain[name] for name in ('weighted', 'codebook')}


def test_codes_without_outputs_or_without_learned_ones(case):
  queries, learned, encoded, _, labels = case
  plain = {'learned': {'map': 0.5}, 'codebook': {}}
  assert scores.add_outputs(plain, scores.Codes(queries, learned, None), *labels, k=5) == plain
  codes = scores.Codes(queries, None, encoded, outputs=queries / 2)
  result = scores.add_outputs({'encoded': {'map': 0.5}, 'codebook': {}}, codes, *labels, k=5)
  assert list(result) == ['encoded', 'codebook'] and result['encoded']['map'] == 0.5
  assert 'outputs' in result['encoded']


def test_seeds_are_averaged_by_hand():
  first, second, third = (
      {'4': {'learned': {'map': a, 'map@9': 0.5}, 'encoded': {'map': 0.1, 'outputs': {'map': a}},
             'codebook': book}} for a, book in ((0.2, 'first'), (0.5, 'second'), (0.8, 'third')))
  average = scores.average([first, second, third])['4']
  assert average['learned'] == pytest.approx({'map': 0.5, 'map@9': 0.5})
  assert average['encoded'].pop('outputs') == pytest.approx({'map': 0.5})
  assert average['encoded'] == pytest.approx({'map': 0.1})
  # (0.3^2 + 0 + 0.3^2) / (3 - 1) = 0.3^2
  assert average['deviation']['learned'] == pytest.approx({'map': 0.3, 'map@9': 0.0})
  assert average['deviation']['encoded'].pop('outputs') == pytest.approx({'map': 0.3})
  assert average['deviation']['encoded'] == pytest.approx({'map': 0.0})
  assert average['codebook'] == 'first'
  assert list(average) == ['learned', 'encoded', 'deviation', 'codebook']
  assert type(average['learned']['map']) is float  # JSON knows no NumPy


def test_a_single_seed_stays_as_it_is():
  seed = {'4': {'learned': {'map': 0.2}, 'codebook': {}}}
  assert scores.average([seed]) == seed
