"""Packing and numbering of distinct rows against integers and sets of Python."""

import numpy as np
import pytest

from mah_jax import distinct


def _bits(rows, columns, seed=0, density=0.4):
  return (np.random.default_rng(seed).random((rows, columns)) < density).astype(np.uint8)


def test_pack_puts_column_i_into_bit_i():
  codes = -np.ones((2, 70), int)
  codes[0, [0, 3]] = 1
  codes[1, [63, 64, 69]] = 1
  expected = [[0b1001, 0], [1 << 63, 0b100001]]
  np.testing.assert_array_equal(distinct.pack(codes), np.array(expected, np.uint64))


@pytest.mark.parametrize('columns', [1, 4, 16, 17, 40, 64])
@pytest.mark.parametrize('rows', [7, 300])
def test_up_to_a_word_rows_are_numbered_as_integers_with_the_first_column_lowest(rows, columns):
  bits = _bits(rows, columns)
  integers = [sum(int(bit) << i for i, bit in enumerate(row)) for row in bits]
  order = sorted(set(integers))
  numbered = distinct.number_rows(bits)
  assert numbered.of_row.tolist() == [order.index(x) for x in integers]
  assert numbered.packed[:, 0].tolist() == order
  assert [integers[row] for row in numbered.row] == order


@pytest.mark.parametrize('columns', [65, 80, 128, 200])
def test_rows_of_many_columns_are_told_apart(columns):
  bits = np.concatenate([np.eye(columns), _bits(50, columns)])[np.arange(600) % (columns + 50)]
  numbered = distinct.number_rows(bits)
  assert len(numbered.packed) == len({tuple(row) for row in bits})
  np.testing.assert_array_equal(numbered.packed[numbered.of_row], distinct.pack(bits))
  np.testing.assert_array_equal(bits[numbered.row][numbered.of_row], bits)


def test_signs_are_numbered_like_labels():
  bits = _bits(100, 9)
  for x, y in zip(distinct.number_rows(bits), distinct.number_rows(2.0 * bits - 1)):
    np.testing.assert_array_equal(x, y)


def test_no_rows_have_no_distinct_rows():
  numbered = distinct.number_rows(np.zeros((0, 70)))
  assert numbered.packed.shape == (0, 2)
  assert numbered.of_row.shape == numbered.row.shape == (0,)


def test_rows_without_columns_are_all_equal():
  assert distinct.number_rows(np.zeros((3, 0))).of_row.tolist() == [0, 0, 0]


@pytest.mark.parametrize('least', [0, 2**40])  # counted, and sorted
def test_keys_are_numbered_in_ascending_order(least):
  keys = least + np.random.default_rng(0).integers(0, 50, 80) ** 2
  values, numbers = distinct.number(keys.astype(np.uint64))
  assert values.tolist() == sorted(set(keys.tolist()))
  np.testing.assert_array_equal(values[numbers], keys)


@pytest.mark.parametrize('labels', [1, 5, 70])
def test_overlapping_sets_share_a_label(labels):
  rng = np.random.default_rng(labels)
  label_sets = rng.random((50, labels)) < 1 / labels
  packed = distinct.pack(label_sets)
  for i in range(10):
    expected = [any(a and b for a, b in zip(label_sets[i], row, strict=True))
                for row in label_sets]
    assert distinct.overlapping(packed, packed[i]).tolist() == expected


def test_rows_that_share_a_label_are_counted_by_label_set():
  queries, database = _bits(20, 70, density=0.05), _bits(90, 70, seed=1, density=0.05)
  queries[3] = 0
  sets, others = distinct.number_rows(queries), distinct.number_rows(database[:60].repeat(2, 0))
  counts = distinct.count_overlapping(sets, others)
  expected = [sum(2 * any(a and b for a, b in zip(query, row)) for row in database[:60])
              for query in queries]
  assert counts.dtype == np.int64 and counts[sets.of_row].tolist() == expected
