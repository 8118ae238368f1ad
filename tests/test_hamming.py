"""Distances of packed codes and merged histograms against double loops."""

import numpy as np
import pytest

from mah_jax import distinct
from mah_jax.evaluation import hamming


def random_codes(rng, rows, c):
  return np.where(rng.random((rows, c)) < 0.5, -1, 1)



@pytest.mark.parametrize('c', [1, 8, 64, 70, 128, 256])
def test_distances_count_differing_columns(c):
  rng = np.random.default_rng(c)
  codes = random_codes(rng, 9, c)
  codes[1] = -codes[0]  # the largest distance there is
  packed = distinct.pack(codes)
  for i in range(9):
    np.testing.assert_array_equal(
        hamming.distances(packed, packed[i]), (codes != codes[i]).sum(axis=1))


@pytest.mark.parametrize('c,labels', [(1, 2), (3, 5), (17, 3), (70, 65)])
def test_merge_keeps_every_row(c, labels):
  rng = np.random.default_rng(c)
  codes = random_codes(rng, 6, c)[rng.integers(0, 6, 40)]
  label_sets = rng.integers(0, 2, (4, labels))[rng.integers(0, 4, 40)]
  merged = hamming.merge(codes, label_sets)
  np.testing.assert_array_equal(merged.codes[merged.code_of], distinct.pack(codes))
  np.testing.assert_array_equal(
      merged.label_sets[merged.label_set_of], distinct.pack(label_sets))
  assert len(merged.codes) == len(np.unique(codes, axis=0))
  assert len(merged.label_sets) == len(np.unique(label_sets, axis=0))
  code_of, label_set_of, counts = hamming.entries(merged)
  assert len(counts) == len(np.unique(np.hstack([codes, label_sets]), axis=0))
  assert (np.diff(code_of) >= 0).all()
  for code, label_set, count in zip(code_of, label_set_of, counts, strict=True):
    assert count == np.sum((merged.code_of == code) & (merged.label_set_of == label_set))


@pytest.mark.parametrize('c', [1, 4, 70, 300])
def test_a_ranking_sorts_by_distance_and_then_by_row(c):
  rng = np.random.default_rng(c)
  codes = random_codes(rng, 50, c)
  packed = distinct.pack(codes)
  distance = [sum(codes[0] != row) for row in codes]
  order, ends = hamming.ranking(*hamming.levels(packed, packed[0], c))
  assert order.tolist() == sorted(range(50), key=lambda row: (distance[row], row))
  assert ends.tolist() == [sum(x <= d for x in distance) for d in range(c + 1)]


@pytest.mark.parametrize('c', [3, 8, 13, 70])
def test_weighted_levels_number_the_sums_of_weights(c):
  rng = np.random.default_rng(c)
  codes, weights = random_codes(rng, 80, c), rng.integers(0, 5, c)
  weights[-1] = 2 ** 20  # the largest, so that rounding leaves the integers alone
  packed = distinct.pack(codes)
  distance = [sum(w for w, a, b in zip(weights, codes[0], row, strict=True) if a != b)
              for row in codes]
  level, count = hamming.levels(packed, packed[0], c, hamming.byte_sums(weights))
  values = sorted(set(distance))
  assert level.tolist() == [values.index(d) for d in distance]
  assert count == len(values)


def test_weights_are_rounded_before_they_are_compared():
  nearly = np.array([1.0, 1 + 2.0 ** -22])
  codes = distinct.pack(np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]))
  assert hamming.byte_sums(nearly) is None
  assert hamming.byte_sums(np.array([5, 5])) is None
  for weights, expected in (([0, 0], [0, 0, 0, 0]), ([0.1, 0.3], [0, 2, 1, 3]),
                            ([1, 1 + 2.0 ** -19], [0, 2, 1, 3]), ([0, 7], [0, 1, 0, 1])):
    sums = hamming.byte_sums(np.array(weights))
    assert hamming.levels(codes, codes[0], 2, sums)[0].tolist() == expected
