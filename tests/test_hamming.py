"""Packed codes, distances and merged histograms against double loops."""

import numpy as np
import pytest

from mah_jax.evaluation import hamming


def random_codes(rng, rows, c):
  return np.where(rng.random((rows, c)) < 0.5, -1, 1)


def test_pack_puts_column_i_into_bit_i():
  codes = -np.ones((2, 70), int)
  codes[0, [0, 3]] = 1
  codes[1, [63, 64, 69]] = 1
  expected = [[0b1001, 0], [1 << 63, 0b100001]]
  np.testing.assert_array_equal(hamming.pack(codes), np.array(expected, np.uint64))


@pytest.mark.parametrize('c', [1, 8, 64, 70, 128, 256])
def test_distances_count_differing_columns(c):
  rng = np.random.default_rng(c)
  codes = random_codes(rng, 9, c)
  codes[1] = -codes[0]  # the largest distance there is
  packed = hamming.pack(codes)
  for i in range(9):
    np.testing.assert_array_equal(
        hamming.distances(packed, packed[i]), (codes != codes[i]).sum(axis=1))


@pytest.mark.parametrize('c,labels', [(1, 2), (3, 5), (17, 3), (70, 65)])
def test_merge_keeps_every_row(c, labels):
  rng = np.random.default_rng(c)
  codes = random_codes(rng, 6, c)[rng.integers(0, 6, 40)]
  label_sets = rng.integers(0, 2, (4, labels))[rng.integers(0, 4, 40)]
  merged = hamming.merge(codes, label_sets)
  np.testing.assert_array_equal(merged.codes[merged.code_of], hamming.pack(codes))
  np.testing.assert_array_equal(
      merged.label_sets[merged.label_set_of], hamming.pack(label_sets))
  rows = np.hstack([codes, label_sets])
  assert len(merged.codes) == len(np.unique(codes, axis=0))
  assert len(merged.label_sets) == len(np.unique(label_sets, axis=0))
  assert len(merged.entry_count) == len(np.unique(rows, axis=0))
  for code, label_set, count in zip(
      merged.entry_code, merged.entry_label_set, merged.entry_count, strict=True):
    assert count == np.sum((merged.code_of == code) & (merged.label_set_of == label_set))


def test_entries_by_code_visits_every_entry_with_its_code():
  rng = np.random.default_rng(3)
  merged = hamming.merge(random_codes(rng, 50, 3), rng.integers(0, 2, (50, 2)))
  visited = []
  for code, entries in hamming.entries_by_code(merged):
    assert (merged.codes[merged.entry_code[entries]] == code).all()
    visited.extend(entries)
  assert visited == list(range(len(merged.entry_code)))


@pytest.mark.parametrize('c,labels', [(1, 1), (4, 3), (16, 65), (70, 4)])
def test_histograms_equal_a_double_loop(c, labels):
  rng = np.random.default_rng(c)
  query_codes, codes = random_codes(rng, 12, c), random_codes(rng, 60, c)
  query_labels = rng.random((12, labels)) < 0.3
  database_labels = rng.random((60, labels)) < 0.3
  queries = hamming.merge(query_codes, query_labels)
  size, relevant = hamming.distance_histograms(
      queries, hamming.merge(codes, database_labels), c)
  entries = list(zip(queries.entry_code, queries.entry_label_set, strict=True))
  for i in range(12):
    expected = np.zeros((2, c + 1), int)
    for j in range(60):
      d = np.sum(query_codes[i] != codes[j])
      expected[0, d] += 1
      expected[1, d] += np.any(query_labels[i] & database_labels[j])
    entry = entries.index((queries.code_of[i], queries.label_set_of[i]))
    np.testing.assert_array_equal([size[entry], relevant[entry]], expected)
