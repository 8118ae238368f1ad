"""Sums over S by label set against the whole matrix S."""

import numpy as np
import pytest
import reference

from mah_jax import similarity


@pytest.mark.parametrize('num_labels', [1, 4, 21, 70])
def test_groups_are_the_distinct_label_sets(num_labels):
  _, _, labels, _ = reference.problem(0, n=200, num_labels=num_labels, multi=True)
  groups = similarity.group_rows(labels)
  related = labels.astype(int) @ labels.T.astype(int) > 0
  assert len(groups.related) == len({tuple(row) for row in labels})
  np.testing.assert_array_equal(groups.related[groups.of_row][:, groups.of_row], related)
  np.testing.assert_array_equal(groups.degree[groups.of_row], related.sum(axis=1))


def test_every_label_is_told_from_every_other():
  labels = np.concatenate([np.eye(40), np.eye(40) + np.roll(np.eye(40), 1, axis=1)])
  groups = similarity.group_rows(labels.astype(np.uint8))
  assert len(np.unique(groups.of_row)) == 80


def test_a_row_without_labels_is_similar_to_nothing():
  groups = similarity.group_rows(np.array([[0, 0], [1, 0], [1, 1], [0, 0]]))
  assert groups.degree[groups.of_row].tolist() == [0, 2, 2, 0]


def test_no_rows_have_no_label_sets():
  groups = similarity.group_rows(np.zeros((0, 3)))
  assert groups.of_row.shape == (0,) and groups.related.shape == (0, 0)


def test_balanced_value_of_ten_equal_classes_is_a_ninth():
  labels = np.tile(np.eye(10, dtype=np.uint8), (30, 1))
  groups = similarity.group_rows(labels)
  sampled = np.arange(40)
  assert similarity.dissimilar_value(groups, sampled, 'balanced') == pytest.approx(1 / 9)
  assert similarity.dissimilar_value(groups, sampled, 'signed') == 1.0


def test_balanced_similarity_sums_to_zero_over_the_sample():
  _, _, labels, sampled = reference.problem(1, multi=True)
  r = similarity.dissimilar_value(similarity.group_rows(labels), sampled, 'balanced')
  similar = labels[sampled].astype(int) @ labels.T.astype(int) > 0
  assert np.where(similar, 1.0, -r).sum() == pytest.approx(0.0, abs=1e-9)


def test_all_similar_has_no_dissimilar_value_to_balance():
  groups = similarity.group_rows(np.ones((5, 1)))
  assert similarity.dissimilar_value(groups, np.arange(3), 'balanced') == 1.0


@pytest.mark.parametrize('multi', [False, True])
@pytest.mark.parametrize('kind', ['balanced', 'signed'])
def test_set_sums_are_products_with_s(multi, kind):
  codes, embeddings, labels, sampled = reference.problem(2, multi=multi)
  s = reference.similarity(labels, sampled, kind)  # [m, n]
  groups = similarity.group_rows(labels)
  r = similarity.dissimilar_value(groups, sampled, kind)
  of_row = groups.of_row
  by_set = similarity.set_sums(embeddings, of_row[sampled], groups.related, r)
  np.testing.assert_allclose(by_set[of_row], s.T @ embeddings, atol=1e-4)
  by_set = similarity.set_sums(codes.astype(np.float32), of_row, groups.related, r)
  np.testing.assert_allclose(by_set[of_row[sampled]], s @ codes, atol=1e-4)
