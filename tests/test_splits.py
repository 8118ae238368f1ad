"""Protocols: sizes, order, determinism, identity, classes that are too small."""

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


def test_content_enters_the_id_only_where_there_is_any():
  rows = np.array([5, 1]), np.array([0, 2])
  plain = splits.Protocol('toy', 0, *rows)
  same = splits.Protocol('toy', 0, *rows, content='')
  other = splits.Protocol('toy', 0, *rows, content='abc')
  assert plain.id == same.id
  assert other.id == hashlib.sha256(struct.pack('<5q', 2, 5, 1, 0, 2) + b'abc').hexdigest()


def test_the_id_is_what_it_was_before_there_were_parts_for_training():
  """Computed by the version before; kept runs are found by such ids."""
  labels = np.eye(10, dtype=np.uint8)[np.arange(60_000) % 10]
  assert splits.balanced(labels, 100, 0, 'cifar10-1000-queries').id == (
      '079c3e5e67f7f981fa3dd929bf868a129cef3c52ca113b405d71070142b9003c')
  labels = np.array([[1], [0], [1], [1], [0], [1], [1], [0]], np.uint8)
  protocol = splits.random_queries(labels, 2, 0, 'toy', labelled_only=True)
  assert protocol._replace(content='abc').id == (
      '7373692250d96f85645d540e4ebca598f73ecc1ded1ac38819c48dee4246fc02')


def test_rows_for_training_enter_the_id_where_they_are_not_the_whole_database():
  whole = splits.Protocol('toy', 0, np.array([5, 1]), np.array([0, 2]), content='abc')
  part = whole._replace(training_part=np.array([2], np.int32))
  assert whole.training is whole.database and part.training.tolist() == [2]
  assert part.id == hashlib.sha256(
      struct.pack('<5q', 2, 5, 1, 0, 2) + b'abctraining' + struct.pack('<q', 2)).hexdigest()
  assert len({whole.id, part.id, whole._replace(training_part=np.array([0])).id}) == 3


def test_training_per_class_is_a_part_of_an_unchanged_split():
  labels = one_hot([30, 40, 50])
  base = splits.balanced(labels, 7, seed=3, name='toy')
  part = splits.with_training_per_class(base, labels, 5)
  assert labels[part.training].sum(axis=0).tolist() == [5, 5, 5]
  assert part.queries is base.queries and part.database is base.database
  places = [base.database.tolist().index(row) for row in part.training]
  assert places == sorted(places) and part.training.dtype == np.int64
  # The part is drawn from everywhere: ties in database order must not favour it.
  assert places[0] < 33 and places[-1] > 66
  again = splits.with_training_per_class(base, labels, 5)
  assert again.id == part.id != base.id
  other = splits.with_training_per_class(base._replace(seed=4), labels, 5)
  assert other.training.tolist() != part.training.tolist()


def test_training_rows_stay_the_same_from_release_to_release():
  labels = one_hot([6, 6])
  part = splits.with_training_per_class(splits.balanced(labels, 2, 0, 'toy'), labels, 2)
  assert part.training.tolist() == [5, 6, 9, 0]  # of 10 2 5 6 8 1 9 0
  part = splits.with_random_training(splits.balanced(labels, 2, 0, 'toy'), labels, 3)
  assert part.training.tolist() == [6, 9, 0]


def test_random_training_rows_have_a_label():
  labels = multi_hot()
  base = splits.random_queries(labels, 50, 0, 'toy', labelled_only=True)
  labelled = int(labels[base.database].any(axis=1).sum())
  for count in (60, labelled):
    part = splits.with_random_training(base, labels, count)
    assert len(set(part.training.tolist())) == len(part.training) == count
    assert set(part.training.tolist()) <= set(base.database.tolist())
    assert labels[part.training].any(axis=1).all()
  with pytest.raises(errors.InputError, match=f'{labelled + 1} database rows with a label .*are '
                                              f'{labelled}'):
    splits.with_random_training(base, labels, labelled + 1)


def test_a_class_with_too_few_rows_for_training_is_named():
  labels = one_hot([30, 12])
  base = splits.balanced(labels, 5, seed=0, name='toy')
  splits.with_training_per_class(base, labels, 7)
  with pytest.raises(errors.InputError, match='toy draws 8 database rows of class 1 .*are 7,'):
    splits.with_training_per_class(base, labels, 8)


def test_training_on_all_rows_is_no_part():
  labels = one_hot([8, 8])
  base = splits.balanced(labels, 3, seed=0, name='toy')
  assert splits.with_training_per_class(base, labels, 5).id == base.id


def test_fingerprint_is_the_sha256_of_shape_labels_and_names():
  labels = np.array([[1, 0], [0, 1]], np.uint8)
  expected = hashlib.sha256(
      struct.pack('<2q', 2, 2) + bytes([1, 0, 0, 1]) + 'a.jpg\0ü.jpg'.encode()).hexdigest()
  assert splits.fingerprint(['a.jpg', 'ü.jpg'], labels) == expected
  assert splits.fingerprint(['a.jpg', 'ü.jpg'], labels.astype(int)) == expected


def test_fingerprint_changes_with_names_labels_and_their_order():
  labels = np.array([[1, 0], [0, 1]], np.uint8)
  prints = [splits.fingerprint(['a', 'b'], labels), splits.fingerprint(['b', 'a'], labels),
            splits.fingerprint(['a', 'c'], labels),
            splits.fingerprint(['a', 'b'], labels[::-1]),
            splits.fingerprint(['a', 'b'], labels.reshape(1, 4)),
            splits.fingerprint(['ab'], labels), splits.fingerprint(['a', '\udcffb'], labels)]
  assert len(set(prints)) == len(prints)


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


def multi_hot(rows=300, classes=5, share=0.2, seed=0):
  """Rows with none to all labels, about a third of them with none."""
  return (np.random.default_rng(seed).random((rows, classes)) < share).astype(np.uint8)


# Each kind of draw with the arguments that only it has.
DRAWS = {
    'balanced': lambda labels, seed: splits.balanced(labels, 5, seed, 'toy'),
    'random': lambda labels, seed: splits.random_queries(
        labels, 50, seed, 'toy', labelled_only=False),
    'labelled': lambda labels, seed: splits.random_queries(
        labels, 50, seed, 'toy', labelled_only=True),
    'fraction': lambda labels, seed: splits.fraction(labels, 0.2, seed, 'toy', 'abcde'),
    'chosen': lambda labels, seed: splits.chosen(np.array([7, 3, 90]), 300, seed, 'toy'),
}


@pytest.mark.parametrize('draw', DRAWS.values(), ids=DRAWS)
def test_every_draw_uses_every_row_once_and_depends_on_the_seed_alone(draw):
  labels = multi_hot()
  protocol, again, other = draw(labels, 4), draw(labels, 4), draw(labels, 5)
  rows = np.concatenate([protocol.queries, protocol.database])
  assert sorted(rows.tolist()) == list(range(300))
  assert protocol.queries.dtype == protocol.database.dtype == np.int64
  assert (protocol.name, protocol.seed, protocol.content) == ('toy', 4, '')
  assert protocol.id == again.id != other.id
  assert protocol.database.tolist() != sorted(protocol.database.tolist())
  assert protocol.queries.tolist() != sorted(protocol.queries.tolist())


@pytest.mark.parametrize('draw', DRAWS.values(), ids=DRAWS)
def test_negative_seed_is_refused(draw):
  with pytest.raises(errors.UsageError, match='seed -1 is negative'):
    draw(multi_hot(), -1)


def test_random_queries_are_drawn_among_all_rows_or_the_labelled_ones():
  labels = multi_hot()
  empty = ~labels.any(axis=1)
  assert 50 < empty.sum() < 150
  everywhere = splits.random_queries(labels, 150, 0, 'toy', labelled_only=False)
  labelled = splits.random_queries(labels, 150, 0, 'toy', labelled_only=True)
  assert len(everywhere.queries) == len(labelled.queries) == 150
  assert 25 < empty[everywhere.queries].sum() < 75
  assert empty[labelled.queries].sum() == 0
  assert empty[labelled.database].sum() == empty.sum()


def test_every_row_is_equally_likely_to_become_a_query():
  labels = multi_hot(rows=20)
  counts = np.zeros(20)
  for seed in range(600):
    counts[splits.random_queries(labels, 5, seed, 'toy', labelled_only=False).queries] += 1
  assert abs(counts - 150).max() < 50  # 4.7 deviations of a count


@pytest.mark.parametrize('labelled_only, rows', [(True, 3), (False, 5)])
def test_random_queries_leave_a_row_to_the_database(labelled_only, rows):
  labels = np.array([[1, 0], [0, 0], [1, 1], [0, 0], [0, 1]], np.uint8)
  splits.random_queries(labels, rows - 1, 0, 'toy', labelled_only=labelled_only)
  with pytest.raises(errors.InputError, match=f'toy draws {rows} queries .* are {rows} rows'):
    splits.random_queries(labels, rows, 0, 'toy', labelled_only=labelled_only)


def test_random_rows_stay_the_same_from_release_to_release():
  labels = np.array([[1], [0], [1], [1], [0], [1], [1], [0]], np.uint8)
  protocol = splits.random_queries(labels, 2, 0, 'toy', labelled_only=True)
  assert protocol.queries.tolist() == [6, 5]
  assert protocol.database.tolist() == [7, 3, 2, 4, 1, 0]
  protocol = splits.fraction(labels, 0.4, 0, 'toy', 'a')
  assert protocol.queries.tolist() == [3, 6]
  assert protocol.database.tolist() == [5, 7, 1, 2, 0, 4]


def test_fraction_takes_the_rounded_share_of_every_class():
  labels = one_hot([100, 40, 14, 16, 3, 2])
  protocol = splits.fraction(labels, 0.1, 0, 'toy', 'abcdef')
  assert labels[protocol.queries].sum(axis=0).tolist() == [10, 4, 1, 2, 1, 1]
  protocol = splits.fraction(labels, 0.9, 0, 'toy', 'abcdef')
  assert labels[protocol.queries].sum(axis=0).tolist() == [90, 36, 13, 14, 2, 1]


def test_fraction_of_multi_label_rows():
  labels = multi_hot(rows=2000, classes=6, share=0.15)
  labels[:, 5] &= np.arange(2000) < 20  # a rare label
  protocol = splits.fraction(labels, 0.1, 0, 'toy', 'abcdef')
  queries, total = labels[protocol.queries].sum(axis=0), labels.sum(axis=0)
  assert (queries >= np.rint(0.1 * total)).all() and (queries <= 0.2 * total + 1).all()
  assert (labels[protocol.database].sum(axis=0) >= 1).all()
  assert labels[protocol.queries].any(axis=1).all()  # rows without labels stay


def test_fraction_lets_frequent_classes_draw_first():
  labels = np.array([[1, 1]] * 40 + [[0, 1]] * 160, np.uint8)
  drawn = [labels[splits.fraction(labels, 0.1, seed, 'toy', 'ab').queries].sum(axis=0)
           for seed in range(100)]
  # The 20 queries of class 1 bring 4 of class 0 along, its whole share: few have to follow.
  # Were it the other way round, 4 and then 16 would be drawn, with 3.3 more of class 0.
  assert np.mean(drawn, axis=0)[0] < 5.5 and np.mean(drawn, axis=0)[1] < 21.5


def test_fraction_never_takes_the_last_row_of_a_class():
  labels = np.array([[1, 1]] * 2 + [[1, 0]] * 8, np.uint8)  # class 0 may not take both of 1
  for seed in range(30):
    protocol = splits.fraction(labels, 0.9, seed, 'toy', 'ab')
    assert labels[protocol.database].sum(axis=0).tolist() == [1, 1]


@pytest.mark.parametrize('count', [0, 1])
def test_fraction_names_a_class_that_is_too_small(count):
  with pytest.raises(errors.InputError, match=f"Class 'cat' has {count} rows, but needs 2 "):
    splits.fraction(one_hot([9, count]), 0.1, 0, 'toy', ['dog', 'cat'])


@pytest.mark.parametrize('share', [0, 1, -0.1, 1.5, float('nan')])
def test_fraction_out_of_range_is_refused(share):
  with pytest.raises(errors.UsageError, match=f'share {share} of rows .*between 0 and 1'):
    splits.fraction(one_hot([9, 9]), share, 0, 'toy', 'ab')


def test_chosen_queries_keep_their_order():
  protocol = splits.chosen(np.array([7, 3, 9]), 12, 0, 'query-list')
  assert protocol.queries.tolist() == [7, 3, 9]
  assert sorted(protocol.database.tolist()) == [0, 1, 2, 4, 5, 6, 8, 10, 11]


@pytest.mark.parametrize('rows', [[], [0, 1, 2]])
def test_chosen_queries_leave_a_database(rows):
  with pytest.raises(errors.InputError, match=f'{len(rows)} of 3 rows are chosen as queries'):
    splits.chosen(np.array(rows, int), 3, 0, 'query-list')


def test_a_split_within_the_database_leaves_the_queries_out():
  labels = np.eye(3, dtype=np.uint8)[np.arange(60) % 3]
  base = splits.balanced(labels, 4, 5, 'base')
  inner = splits.within_database(
      base, labels, lambda own: splits.balanced(own, 2, 5, 'inner'))
  assert (inner.name, inner.seed) == ('inner', 5)
  assert np.array_equal(labels[inner.queries].sum(axis=0), [2, 2, 2])
  assert sorted([*inner.queries, *inner.database]) == sorted(base.database)
  assert not set(base.queries) & {*inner.queries, *inner.database}
