"""Balanced protocols: sizes, order, determinism, identity, classes that are too small."""

import hashlib
import struct

import numpy as np
import pytest

from mah_jax import errors
from mah_jax.data import splits


def one_hot(counts):
  """Rows sorted by class, as a dataset read class by class would be."""
  return np.eye(len(counts), dtype=np.uint8)[np.repeat(np.arange(len(counts)), counts)]


def test_every_row_is_used_once_and_every_class_has_its_queries():
  labels = one_hot([30, 40, 50])
  protocol = splits.balanced(labels, 7, seed=3, name='toy')
  assert labels[protocol.queries].sum(axis=0).tolist() == [7, 7, 7]
  assert labels[protocol.database].sum(axis=0).tolist() == [23, 33, 43]
  rows = np.concatenate([protocol.queries, protocol.database])
  assert sorted(rows.tolist()) == list(range(120))
  assert (protocol.name, protocol.seed) == ('toy', 3)


@pytest.mark.parametrize('part', ['queries', 'database'])
def test_rows_are_not_sorted_by_class(part):
  labels = one_hot([100] * 5)
  rows = getattr(splits.balanced(labels, 40, seed=0, name='toy'), part)
  changes = np.count_nonzero(np.diff(labels[rows].argmax(axis=1)))
  # Sorted by class there are 4 changes; in random order 4 of 5 neighbours differ.
  assert changes > 0.65 * len(rows)


def test_seed_decides_rows_and_order():
  labels = one_hot([30, 40, 50])
  first, again, other = (splits.balanced(labels, 7, seed, 'toy') for seed in (1, 1, 2))
  assert first.queries.tolist() == again.queries.tolist()
  assert first.database.tolist() == again.database.tolist()
  assert first.id == again.id
  assert set(first.queries.tolist()) != set(other.queries.tolist())
  assert first.id != other.id


def test_drawn_rows_stay_the_same_from_release_to_release():
  protocol = splits.balanced(one_hot([4, 4]), 2, seed=0, name='toy')
  assert protocol.queries.tolist() == [2, 5, 4, 3]
  assert protocol.database.tolist() == [7, 1, 6, 0]


def test_id_is_the_sha256_of_count_queries_and_database():
  protocol = splits.Protocol('toy', 0, np.array([5, 1]), np.array([0, 2], np.int32))
  expected = hashlib.sha256(struct.pack('<5q', 2, 5, 1, 0, 2)).hexdigest()
  assert protocol.id == expected
  big_endian = protocol._replace(queries=np.array([5, 1], '>i8'))
  assert big_endian.id == expected


def test_id_tells_where_the_queries_end():
  a = splits.Protocol('toy', 0, np.array([5, 1]), np.array([0]))
  b = splits.Protocol('toy', 0, np.array([5]), np.array([1, 0]))
  assert a.id != b.id


def test_multi_label_rows_are_drawn_once_and_every_class_keeps_a_database_row():
  labels = (np.random.default_rng(0).random((200, 4)) < 0.4).astype(np.uint8)
  protocol = splits.balanced(labels, 10, seed=0, name='toy')
  assert len(protocol.queries) == len(set(protocol.queries.tolist())) == 40
  assert (labels[protocol.queries].sum(axis=0) >= 10).all()
  assert labels[protocol.database].any(axis=0).all()


@pytest.mark.parametrize('count', [0, 1, 5])
def test_a_class_that_is_too_small_is_named(count):
  with pytest.raises(errors.InputError, match=rf'Class 2 has {count} rows, but needs 6 '):
    splits.balanced(one_hot([20, 20, count, 20]), 5, seed=0, name='toy')


def test_the_smallest_class_that_works_leaves_one_database_row():
  labels = one_hot([20, 6])
  protocol = splits.balanced(labels, 5, seed=0, name='toy')
  assert labels[protocol.database].sum(axis=0).tolist() == [15, 1]


def test_a_class_never_loses_its_last_database_row_to_another_class():
  labels = np.array([[1, 1], [1, 1], [0, 1]], np.uint8)
  refused = 0
  for seed in range(20):  # class 1 draws the last row of class 0 for about half of them
    try:
      protocol = splits.balanced(labels, 1, seed, 'toy')
    except errors.InputError as error:
      assert 'Class 0 has 2 rows' in str(error)
      refused += 1
    else:
      assert labels[protocol.database].any(axis=0).all()
  assert 0 < refused < 20


def test_negative_seed_is_refused():
  with pytest.raises(errors.UsageError, match='seed -1 is negative'):
    splits.balanced(one_hot([9, 9]), 2, seed=-1, name='toy')
