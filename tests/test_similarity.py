"""Sums over S by label set against the whole matrix S, and how much memory they take."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from mah_jax import discrete
from mah_jax import similarity


@pytest.mark.parametrize('num_labels', [1, 4, 21, 70])
def test_groups_are_the_distinct_label_sets(num_labels):
  _, _, labels, _ = reference.problem(0, n=200, num_labels=num_labels, multi=True)
  groups = similarity.group_rows(labels)
  assert len(groups.sets) == len({tuple(row) for row in labels})
  assert groups.sets.dtype == np.float32 and groups.of_row.dtype == np.int32
  np.testing.assert_array_equal(groups.sets[groups.of_row], labels)
  related = labels.astype(int) @ labels.T.astype(int) > 0
  np.testing.assert_array_equal(groups.degree[groups.of_row], related.sum(axis=1))
  assert groups.degree.dtype == np.int64


def test_up_to_sixteen_labels_sets_are_numbered_as_integers():
  labels = np.array([[0, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 1, 0]])
  assert similarity.group_rows(labels).of_row.tolist() == [3, 2, 0, 1, 2]  # 4, 3, 0, 2, 3


def test_a_row_without_labels_is_similar_to_nothing():
  groups = similarity.group_rows(np.array([[0, 0], [1, 0], [1, 1], [0, 0]]))
  assert groups.degree[groups.of_row].tolist() == [0, 2, 2, 0]


def test_no_rows_have_no_label_sets():
  groups = similarity.group_rows(np.zeros((0, 3)))
  assert groups.of_row.shape == groups.degree.shape == (0,) and groups.sets.shape == (0, 3)


@pytest.mark.parametrize('dtype', [np.uint8, bool, np.int32, np.float32, np.float64])
def test_rows_share_a_label_whatever_their_type(dtype):
  rng = np.random.default_rng(0)
  labels, others = ((rng.random((rows, 300)) < 0.05).astype(np.uint8) for rows in (9, 14))
  labels[0] = others[0] = np.arange(300) < 256  # a sum that a byte takes for 0
  labels[3] = 0
  expected = [[any(a and b for a, b in zip(x, y)) for y in others] for x in labels]
  similar = similarity.share_label(labels.astype(dtype), others.astype(dtype))
  assert isinstance(similar, np.ndarray) and similar.dtype == bool
  np.testing.assert_array_equal(similar, expected)
  traced = jax.jit(similarity.share_label)(labels.astype(dtype), others.astype(dtype))
  assert traced.dtype == bool
  np.testing.assert_array_equal(traced, expected)
  mixed = similarity.share_label(labels.astype(dtype), jnp.asarray(others.astype(dtype)))
  np.testing.assert_array_equal(mixed, expected)


def test_levels_of_ten_equal_classes():
  groups = similarity.group_rows(np.tile(np.eye(10, dtype=np.uint8), (30, 1)))
  for kind, similar, dissimilar in (
      ('balanced', 1, -1 / 9), ('signed', 1, -1), ('standardized', 3, -1 / 3)):
    levels = similarity.levels(groups, np.arange(40), kind)
    assert levels.similar == pytest.approx(10 * [similar])
    assert levels.dissimilar == pytest.approx(10 * [dissimilar])


@pytest.mark.parametrize('labels, weights', [
    (np.tile(np.eye(10), (3, 1)), (5.0, 5 / 9)),           # 10 % of the pairs are similar
    ([[1, 0], [1, 1], [0, 1], [0, 0]], (8 / 7, 8 / 9)),    # 7 of 16 pairs
    (np.ones((3, 1)), (1.0, 1.0)),                         # all of them
    (np.zeros((3, 2)), (1.0, 1.0)),                        # none
])
def test_balanced_pairs_have_the_mean_weight_one(labels, weights):
  labels = np.array(labels)
  assert similarity.pair_weights(labels, 'equal') == (1.0, 1.0)
  assert similarity.pair_weights(labels, 'balanced') == pytest.approx(weights)
  similar = labels @ labels.T > 0
  assert np.where(similar, *weights).mean() == pytest.approx(1.0)


@pytest.mark.parametrize('kind', similarity.SIMILARITIES)
def test_levels_are_the_values_of_s(kind):
  _, _, labels, sampled = reference.problem(1, multi=True)
  labels[sampled[0]] = 0  # similar to nothing
  groups = similarity.group_rows(labels)
  of_query = [values[groups.of_row[sampled], None]
              for values in similarity.levels(groups, sampled, kind)]
  s = np.where(labels[sampled].astype(int) @ labels.T.astype(int) > 0, *of_query)
  np.testing.assert_allclose(s, reference.similarity(labels, sampled, kind), atol=1e-12)
  if kind == 'balanced':
    assert s.sum() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize('kind, similar', [('balanced', 1.0), ('standardized', 0.0)])
def test_levels_where_all_rows_are_similar(kind, similar):
  groups = similarity.group_rows(np.ones((5, 1)))
  levels = similarity.levels(groups, np.arange(3), kind)
  assert levels.similar.tolist() == [similar] and levels.dissimilar.tolist() == [-similar]


@pytest.mark.parametrize('pairs', [2**22, 100, 1])  # one product, blocks, one set at a time
@pytest.mark.parametrize('multi, kind', [
    (False, 'balanced'), (True, 'signed'), (True, 'standardized')])
def test_sums_are_products_with_s(multi, kind, pairs, monkeypatch):
  monkeypatch.setattr(similarity, 'PAIRS', pairs)
  codes, embeddings, labels, sampled = reference.problem(2, m=9, num_labels=6, multi=multi)
  s = reference.similarity(labels, sampled, kind)  # [m, n]
  groups = similarity.group_rows(labels)
  levels = similarity.levels(groups, sampled, kind)
  of_row, sets = groups.of_row, groups.sets
  # There are fewer values than sets here if there are several labels, and more below.
  compiled = jax.jit(lambda *queries: similarity.query_sums(*queries, levels))
  queries = embeddings, of_row[sampled], sets
  for by_set in compiled(*queries), similarity.query_sums(*queries, levels):
    np.testing.assert_allclose(by_set[of_row], s.T @ embeddings, atol=1e-4)
  by_set = similarity.database_sums(codes.astype(np.float32), of_row, sets, levels)
  np.testing.assert_allclose(by_set[of_row[sampled]], s @ codes, atol=1e-4)


def test_twenty_thousand_label_sets_need_little_memory_and_time():
  rng = np.random.default_rng(0)
  n, m, c = 20_000, 2_000, 8
  labels = (rng.random((n, 80)) < 0.08).astype(np.uint8)
  groups = similarity.group_rows(labels)
  sets, g = groups.sets, len(groups.sets)
  assert g > 19_000
  checked = np.append(np.arange(0, g, 50), g - 1)  # in all blocks
  related = sets[checked] @ labels.T.astype(np.float32) > 0  # [sets, n]
  np.testing.assert_array_equal(groups.degree[checked], related.sum(axis=1))
  sampled = rng.permutation(n)[:m]
  h = np.tanh(rng.normal(size=(m, c))).astype(np.float32)
  codes = rng.choice([-1, 1], (n, c)).astype(np.int8)
  levels = similarity.Levels(1 + rng.random(g), -rng.random(g))
  for function, values, rows, of_query in (  # the query is a sampled row, or the label set
      (similarity.query_sums, h, sampled, groups.of_row[sampled]),
      (similarity.database_sums, codes.astype(np.float32), np.arange(n), checked[:, None])):
    arguments, sums = (values, groups.of_row[rows], sets, levels), jax.jit(function)
    plan = sums.lower(*arguments).compile().memory_analysis()
    # Pairs are compared in float32 and kept as bool and as float32, 9 bytes each, 38 MB in all;
    # as many bytes again are left for sums and copies. [g, g] alone has 400 MB of bool.
    assert plan.temp_size_in_bytes < 2 * 9 * similarity.PAIRS
    s = np.where(related[:, rows], *(level[of_query] for level in levels))
    np.testing.assert_allclose(sums(*arguments)[checked], s @ values, atol=1e-2)
  began = time.monotonic()
  jax.block_until_ready(discrete.dcc(codes, h, labels, sampled, gamma=200.0))
  assert time.monotonic() - began < 30.0  # 2 s alone on two cores, compilation included
