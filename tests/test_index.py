"""The index against a full matrix of distances that is sorted, and by hand."""

import tracemalloc

import numpy as np
import pytest

from mah_jax import errors
from mah_jax.search import buckets
from mah_jax.search import index as index_lib

LENGTHS = (*range(1, 21), 24, 32, 48, 64, 96, 128, 256)
KINDS = ('random', 'clustered', 'equal')
# How the way to the nearest rows is picked: as it is, and always the one or the other.
RULES = {'measured': None, 'scan': lambda *_: False,
         'walk': lambda rows, radius, q, k: radius <= rows.bits <= 64 and (
             sum(buckets._walk_size(rows, radius, k)) < 5000)}


def make_codes(kind, n, c, seed=0):
  rng = np.random.default_rng([seed, c])
  words = np.where(np.random.default_rng(c).random((5, c)) < 0.5, -1, 1)
  if kind == 'random':
    codes = np.where(rng.random((n, c)) < 0.5, -1, 1)
  elif kind == 'clustered':
    codes = words[rng.integers(0, 5, n)] * np.where(rng.random((n, c)) < 0.05, -1, 1)
  else:
    codes = np.repeat(words[:1], n, axis=0)
  return codes.astype(np.int8)


def make_keys(n, b=3, seed=0):
  """Keys of few values, so that many distances of keys are equal."""
  return np.random.default_rng([seed, n]).integers(-2, 3, (n, b), np.int8)


def ranking(codes, query, rows=None, keys=None, key=None):
  """Distances and row numbers of all rows by (distance, key, row), from the definitions."""
  rows = np.arange(len(codes)) if rows is None else np.sort(rows)
  distance = (codes[rows] != query).sum(axis=1)
  apart = np.zeros(len(rows), int)
  if key is not None:
    apart = ((keys[rows].astype(int) - key.astype(int)) ** 2).sum(axis=1)
  order = np.lexsort((rows, apart, distance))
  return distance[order], rows[order]


def check_search(index, codes, queries, k, rows=None, keys=None, query_keys=None, ids=None):
  """Compares `search` with `ranking`; `rows` are those allowed, `ids` the ids of all."""
  ids = np.arange(len(codes)) if ids is None else ids
  allowed = None if rows is None else ids[rows]
  distances, found = index_lib.search(index, queries, k, keys=query_keys, allowed=allowed)
  m = min(k, len(codes) if rows is None else len(rows))
  assert distances.shape == found.shape == (len(queries), m)
  for i, query in enumerate(queries):
    distance, row = ranking(codes, query, rows, keys, None if keys is None else query_keys[i])
    np.testing.assert_array_equal(distances[i], distance[:m])
    np.testing.assert_array_equal(found[i], ids[row[:m]])


@pytest.fixture(params=RULES)
def rule(request, monkeypatch):
  if RULES[request.param]:
    monkeypatch.setattr(buckets, 'walk_pays', RULES[request.param])


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('c', LENGTHS)
def test_answers_are_those_of_a_full_sort(c, kind, rule):
  n, q = 400, 6
  codes, queries = make_codes(kind, n, c), make_codes('random', q, c, 1)
  queries[:2] = codes[7], -codes[7]  # near, and far from all where codes are equal
  index = index_lib.build(codes)
  for k in (1, 10, n, n + 1):
    check_search(index, codes, queries, k)
  check_search(index, codes, queries[:1], 10)  # one query may go another way


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('c', LENGTHS)
def test_filters_keys_ids_adds_and_removals(c, kind, rule):
  rng = np.random.default_rng(c)
  codes, queries = make_codes(kind, 300, c), make_codes(kind, 4, c, 1)
  keys, query_keys = make_keys(300), make_keys(4, seed=1)
  ids = rng.permutation(10 ** 6)[:300] - 1000
  index = index_lib.build(codes[:200], ids[:200], keys[:200])
  index = index_lib.add(index, codes[200:], ids[200:], keys[200:])
  some = rng.permutation(300)[:100]
  for k in (1, 20, 400):
    check_search(index, codes, queries, k, keys=keys, query_keys=query_keys, ids=ids)
    check_search(index, codes, queries, k, some, keys, query_keys, ids)
    check_search(index, codes, queries, k, some, ids=ids)  # no keys, no second order
  index = index_lib.remove(index, set(ids[some].tolist()))
  left = np.setdiff1d(np.arange(300), some)
  np.testing.assert_array_equal(index.ids, ids[left])
  check_search(index, codes[left], queries, 20, np.arange(0, 200, 3), keys[left], query_keys,
               ids[left])
  check_search(index, codes[left], queries, 20, ids=ids[left])


@pytest.mark.parametrize('n', [0, 1, 2])
@pytest.mark.parametrize('c', [1, 16, 17, 65])
def test_few_rows_and_no_queries(n, c):
  codes, queries = make_codes('random', n, c), make_codes('random', 3, c, 1)
  index = index_lib.build(codes, keys=make_keys(n))
  for k in (1, 5):
    check_search(index, codes, queries, k)
    check_search(index, codes, queries[:0], k)
    check_search(index, codes, queries, k, np.arange(0))
  scores, rows = index_lib.search_outputs(index, queries.astype(np.float32), 5)
  assert scores.shape == rows.shape == (3, n)
  assert [len(rows) for _, rows in index_lib.within(index, queries, c)] == [n] * 3
  assert len(index_lib.remove(index, index.ids)) == 0


@pytest.mark.parametrize('c, kind', [
    (1, 'random'), (8, 'clustered'), (16, 'random'), (16, 'equal'), (20, 'random'),
    (32, 'clustered'), (64, 'random'), (128, 'clustered')])
def test_300_000_rows(c, kind):
  codes, queries = make_codes(kind, 300_000, c), make_codes(kind, 3, c, 1)
  index = index_lib.build(codes)
  check_search(index, codes, queries, 10)
  check_search(index, codes, queries[:1], 5000)


@pytest.mark.parametrize('k', [3, 200])
@pytest.mark.parametrize('shared, rest', [(slice(12), slice(12, 24)), (slice(12, 24), slice(12))])
def test_codes_that_share_a_piece(shared, rest, k, rule):
  codes = make_codes('random', 6000, 24)
  codes[:3000, shared] = 1  # more codes have this half of a query than a walk looks through
  others = codes[:3000, rest]
  others[(others < 0).sum(axis=1) < 3] = -1  # by the other half they are not found either
  check_search(index_lib.build(codes), codes, np.ones((2, 24), np.int8), k)


@pytest.mark.parametrize('kind', ['random', 'clustered'])
@pytest.mark.parametrize('c', [4, 8, 12, 20])
def test_every_k_of_one_query(c, kind, rule):
  codes = make_codes(kind, 100, c)
  index = index_lib.build(codes)
  for query in codes[:3]:
    for k in range(1, 40):
      check_search(index, codes, query[None], k)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('c', [17, 32, 64])
def test_many_queries_of_which_some_are_a_sample(c, kind, rule):
  codes, queries = make_codes(kind, 500, c), make_codes('random', 300, c, 1)
  queries[::2] = make_codes('clustered', 150, c, 1)
  check_search(index_lib.build(codes), codes, queries, 10)


@pytest.mark.parametrize('sizes', [(1, 1, 1), (50, 7, 400), (3000, 64, 10 ** 6)])
@pytest.mark.parametrize('c', [12, 24, 48, 100])
def test_steps_and_blocks_do_not_change_answers(c, sizes, rule, monkeypatch):
  for name, size in zip(('_STEP', '_BLOCK', '_SCANNED'), sizes, strict=True):
    monkeypatch.setattr(buckets, name, size)
  monkeypatch.setattr(buckets, '_SORTED', 0)
  monkeypatch.setattr(index_lib, '_BLOCK', sizes[1])
  codes, queries = make_codes('clustered', 200, c), make_codes('clustered', 9, c, 1)
  keys, query_keys = make_keys(200), make_keys(9, seed=1)
  index = index_lib.build(codes, keys=keys)
  for k in (3, 60):
    check_search(index, codes, queries, k)
    check_search(index, codes, queries, k, keys=keys, query_keys=query_keys)


def test_by_hand():
  codes = np.array([[1, 1, 1], [-1, -1, -1], [1, 1, -1], [1, 1, 1], [-1, 1, 1]], np.int8)
  queries = np.array([[1, 1, 1], [-1, -1, 1]], np.int8)
  index = index_lib.build(codes)
  assert (len(index), index.bits, index.ids.tolist()) == (5, 3, [0, 1, 2, 3, 4])
  assert index.packed.tolist() == [[0b111 << 5], [0], [0b110 << 5], [0b111 << 5], [0b011 << 5]]
  distances, rows = index_lib.search(index, queries, 4)
  assert (distances.dtype, rows.dtype) == (np.int32, np.int64)
  assert distances.tolist() == [[0, 0, 1, 1], [1, 1, 2, 2]]
  assert rows.tolist() == [[0, 3, 2, 4], [1, 4, 0, 3]]
  near = index_lib.within(index, queries, 1, allowed=[4, 3, 1, 99])
  assert [(d.tolist(), r.tolist()) for d, r in near] == [([0, 1], [3, 4]), ([1, 1], [1, 4])]
  # Squared distances of the keys to the query's: 81, 4, 0, 25, 0.
  keys = np.array([[9, 0], [0, 2], [0, 0], [3, 4], [0, 0]], np.int8)
  index = index_lib.build(codes, keys=keys)
  _, rows = index_lib.search(index, queries[:1], 5, keys=np.zeros((1, 2), np.int8))
  assert rows.tolist() == [[3, 0, 2, 4, 1]]
  # Inner products 0.5 - 2 + 1 = -0.5, -0.5 + 2 - 1, 0.5 - 2 - 1 = -2.5, -0.5, -0.5 - 2 + 1 = -1.5.
  scores, rows = index_lib.search_outputs(index, np.array([[0.5, -2, 1]]), 5)
  assert rows.tolist() == [[1, 0, 3, 4, 2]]
  np.testing.assert_array_equal(scores, np.array([[0.5, -0.5, -0.5, -1.5, -2.5]]) / 3)


def test_keys_of_the_largest_differences_are_exact():
  keys = np.full((3, 300), 127, np.int8)
  keys[1, 0], keys[2, 0] = 126, -128
  codes = np.ones((3, 4), np.int8)
  _, rows = index_lib.search(index_lib.build(codes, keys=keys), codes[:1], 3,
                             keys=np.full((1, 300), -128, np.int8))
  assert rows.tolist() == [[2, 1, 0]]


def test_keys_are_used_only_if_both_sides_have_them():
  codes = np.ones((4, 4), np.int8)
  keys = np.array([[3], [2], [1], [0]], np.int8)
  for index, query_keys in ((index_lib.build(codes, keys=keys), None),
                            (index_lib.build(codes), keys[3:])):
    assert index_lib.search(index, codes[:1], 4, keys=query_keys)[1].tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize('c', [5, 16, 40])
def test_the_first_10_of_100_are_the_10(c):
  codes, queries = make_codes('clustered', 500, c), make_codes('clustered', 20, c, 1)
  keys, query_keys = make_keys(500), make_keys(20, seed=1)
  index = index_lib.build(codes, keys=keys)
  for options in ({}, {'keys': query_keys}, {'allowed': range(0, 500, 2)}):
    few, many = (index_lib.search(index, queries, k, **options) for k in (10, 100))
    for short, long in zip(few, many, strict=True):
      np.testing.assert_array_equal(short, long[:, :10])


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('c', [1, 4, 8, 13, 16, 31, 64, 70, 256])
def test_outputs_rank_by_their_rounded_inner_product(c, kind):
  rng = np.random.default_rng(c)
  codes = make_codes(kind, 200, c)
  outputs = np.tanh(rng.normal(size=(6, c))).astype(np.float32)
  outputs[1] = 0                     # all inner products are 0
  outputs[2] = np.sign(outputs[2])   # all weights are equal
  outputs[3, ::2] = 0
  outputs[4] = np.round(4 * outputs[4]) / 4  # many ties
  keys, query_keys = make_keys(200), make_keys(6, seed=1)
  index = index_lib.build(codes, keys=keys)
  some = rng.permutation(200)[:50]
  for k, rows, use_keys in ((1, None, False), (30, None, True), (300, some, True)):
    scores, found = index_lib.search_outputs(
        index, outputs, k, keys=query_keys if use_keys else None, allowed=rows)
    for i, u in enumerate(outputs.astype(np.float64)):
      whole = np.rint(u / (abs(u).max() or 1) * 2 ** 20).astype(int)
      products = codes.astype(int) @ whole
      allowed = np.arange(200) if rows is None else np.sort(rows)
      apart = ((keys.astype(int) - query_keys[i]) ** 2).sum(axis=1) * use_keys
      order = allowed[np.lexsort((allowed, apart[allowed], -products[allowed]))][:k]
      np.testing.assert_array_equal(found[i], order)
      np.testing.assert_allclose(scores[i], codes[order] @ u / c, atol=2e-6)
      ties = np.diff(products[order]) == 0
      np.testing.assert_array_equal(np.diff(scores[i]) == 0, ties)


def test_outputs_of_plus_and_minus_one_rank_like_codes():
  codes, queries = make_codes('random', 300, 12), make_codes('random', 5, 12, 1)
  index = index_lib.build(codes)
  distances, rows = index_lib.search(index, queries, 40)
  scores, same_rows = index_lib.search_outputs(index, queries.astype(np.float64), 40)
  np.testing.assert_array_equal(rows, same_rows)
  np.testing.assert_allclose(scores, 1 - distances / 6)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('c', [1, 8, 16, 33, 256])
def test_within_gives_all_rows_up_to_a_radius(c, kind):
  codes, queries = make_codes(kind, 200, c), make_codes(kind, 4, c, 1)
  keys, query_keys = make_keys(200), make_keys(4, seed=1)
  index = index_lib.build(codes, keys=keys)
  some = np.arange(0, 200, 3)
  for radius in {0, c // 3, c, c + 5}:
    for rows, use_keys in ((None, False), (some, True)):
      answers = index_lib.within(
          index, queries, radius, keys=query_keys if use_keys else None, allowed=rows)
      for i, (distances, found) in enumerate(answers):
        distance, row = ranking(codes, queries[i], rows, keys, query_keys[i] if use_keys else None)
        np.testing.assert_array_equal(distances, distance[distance <= radius])
        np.testing.assert_array_equal(found, row[distance <= radius])


def test_numbers_of_rows_stay_and_are_not_used_again():
  codes = make_codes('random', 9, 8)
  index = index_lib.build(codes[:5])
  index = index_lib.remove(index, [4, 1, 1])
  assert index.ids.tolist() == [0, 2, 3]
  index = index_lib.add(index, codes[5:7])
  assert index.ids.tolist() == [0, 2, 3, 5, 6]
  index = index_lib.remove(index, np.array([6]))
  index = index_lib.add(index_lib.add(index, codes[:0]), codes[7:])
  assert index.ids.tolist() == [0, 2, 3, 5, 7, 8]
  left = [0, 2, 3, 5, 7, 8]
  np.testing.assert_array_equal(index.packed, np.packbits(codes[left] > 0, axis=1))
  check_search(index, codes[left], codes, 6, ids=np.array(left))


def test_add_and_remove_leave_the_index_alone():
  codes = make_codes('random', 30, 8)
  index = index_lib.build(codes[:20])
  index_lib.add(index, codes[20:])
  index_lib.remove(index, [3])
  check_search(index, codes[:20], codes, 20)


def test_arrays_that_the_caller_changes_later_do_not_matter():
  codes = np.ones((3, 8), np.int8)
  ids, keys = np.arange(3), make_keys(3)
  packed = np.packbits(codes > 0, axis=1)
  index = index_lib.build_packed(packed, 8, ids, keys)
  before = keys.copy()
  packed[:], ids[:], keys[:] = 0, 0, 0
  assert index.packed.tolist() == [[255]] * 3 and index.ids.tolist() == [0, 1, 2]
  np.testing.assert_array_equal(index.keys, before)


@pytest.mark.parametrize('c', LENGTHS)
def test_packed_codes_make_the_same_index(c):
  codes, ids, keys = make_codes('random', 50, c), np.arange(50) * 3, make_keys(50)
  packed = np.packbits(codes > 0, axis=1)
  index = index_lib.build_packed(packed, c, ids, keys)
  np.testing.assert_array_equal(index.packed, packed)
  check_search(index, codes, codes[:5], 50, keys=keys, query_keys=keys[:5], ids=ids)


@pytest.mark.parametrize('c', [3, 16, 64, 200])
@pytest.mark.parametrize('case', ['plain', 'keys', 'ids', 'removed', 'empty'])
def test_a_saved_index_answers_the_same(c, case, tmp_path):
  codes, keys = make_codes('random', 0 if case == 'empty' else 60, c), None
  ids = np.arange(60) ** 2 - 5 if case == 'ids' else None
  if case == 'keys':
    keys = make_keys(60)
  index = index_lib.build(codes, ids, keys)
  if case == 'removed':
    index = index_lib.remove(index, [59, 3])
  path = tmp_path / 'folder' / 'index.npz'
  index_lib.save(index, path)
  loaded = index_lib.load(str(path))
  assert (len(loaded), loaded.bits, loaded.next_id) == (len(index), c, index.next_id)
  for name in ('packed', 'ids', 'keys'):
    np.testing.assert_array_equal(getattr(loaded, name), getattr(index, name))
  queries = make_codes('random', 5, c, 1)
  query_keys = None if keys is None else keys[:5]
  for one, other in zip(index_lib.search(index, queries, 20, keys=query_keys),
                        index_lib.search(loaded, queries, 20, keys=query_keys), strict=True):
    np.testing.assert_array_equal(one, other)
  if case == 'removed':
    assert index_lib.add(loaded, codes[:1]).ids[-1] == 60


def test_a_damaged_file_is_an_input_error_or_the_same_index(tmp_path):
  index = index_lib.build(make_codes('random', 40, 12), np.arange(40) * 7, make_keys(40))
  path = tmp_path / 'index.npz'
  index_lib.save(index, path)
  content = path.read_bytes()
  rng = np.random.default_rng(0)
  damaged = [content[:length] for length in (0, 1, 100, len(content) // 2, len(content) - 1)]
  for place in rng.integers(0, len(content), 150):
    damaged.append(content[:place] + bytes([content[place] ^ 1 << rng.integers(8)])
                   + content[place + 1:])
  refused = 0
  for wrong in damaged:
    path.write_bytes(wrong)
    try:
      loaded = index_lib.load(path)
    except errors.InputError as error:
      assert str(path) in str(error)
      refused += 1
    else:
      for name in ('packed', 'ids', 'keys', 'bits', 'next_id'):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(index, name))
  assert refused > 100


def test_foreign_files_are_input_errors(tmp_path):
  path = tmp_path / 'index.npz'
  with pytest.raises(errors.InputError, match='missing'):
    index_lib.load(path)
  index_lib.save(index_lib.build(make_codes('random', 4, 8)), path)
  good = dict(np.load(path))
  for change in ({'format': 'mah_jax index 2'}, {'format': None}, {'bits': 9}, {'bits': 'x'},
                 {'packed': good['packed'].astype(int)}, {'packed': None}, {'next_id': 3},
                 {'next_id': None}, {'ids': np.arange(3)}, {'ids': np.array([1, 2, 3, 3])},
                 {'keys': np.zeros((4, 0), np.int8)}, {'keys': np.array([[{}]] * 4)}):
    arrays = {name: value for name, value in (good | change).items() if value is not None}
    np.savez(path, **arrays)
    with pytest.raises(errors.InputError, match='no index of mah_jax'):
      index_lib.load(path)
  np.save(path.open('wb'), np.zeros(3))
  with pytest.raises(errors.InputError, match='no index of mah_jax'):
    index_lib.load(path)


class Trap:
  """An object that writes a file when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return open, (str(self.path), 'w')


def test_nothing_is_unpickled(tmp_path):
  path, trap = tmp_path / 'index.npz', tmp_path / 'trap'
  np.savez(path, format=np.array([Trap(trap)]))
  with pytest.raises(errors.InputError, match='no index of mah_jax'):
    index_lib.load(path)
  assert not trap.exists()


ONES = np.ones((4, 8), np.int8)
INDEX = index_lib.build(ONES, keys=np.zeros((4, 2), np.int8))
WITH_IDS = index_lib.build(ONES, np.arange(4))


@pytest.mark.parametrize('call, message', [
    (lambda: index_lib.build(ONES[0]), r'int8 \(8,\)'),
    (lambda: index_lib.build(ONES > 0), 'bool'),
    (lambda: index_lib.build(ONES[:, :0]), '0 bits.*1 to 256'),
    (lambda: index_lib.build(np.ones((1, 257), np.int8)), '257 bits.*1 to 256'),
    (lambda: index_lib.build(ONES * 0), 'value 0.*sign'),
    (lambda: index_lib.build(ONES * np.int8(127)), 'value 127.*sign'),
    (lambda: index_lib.build(ONES * 0.5), 'value 0.5.*sign'),
    (lambda: index_lib.build(ONES * np.nan), 'value nan.*sign'),
    (lambda: index_lib.build(ONES, [1, 2, 3]), '4 codes came with 3 ids'),
    (lambda: index_lib.build(ONES, [1, 2, 3, 1]), 'id 1;'),
    (lambda: index_lib.build(ONES, [1.0, 2, 3, 4]), 'float64'),
    (lambda: index_lib.build(ONES, [0, 1, 2, 2**63]), '64 bits'),
    (lambda: index_lib.build(ONES, keys=np.zeros((4, 2))), r'float64 \(4, 2\)'),
    (lambda: index_lib.build(ONES, keys=np.zeros((3, 2), np.int8)), r'\(3, 2\)'),
    (lambda: index_lib.build(ONES, keys=np.zeros((4, 0), np.int8)), r'\(4, 0\)'),
    (lambda: index_lib.build(ONES, keys=np.zeros((4, 2**15 + 1), np.int8)), '32768'),
    (lambda: index_lib.build_packed(np.zeros((4, 1), np.uint8), 0), 'bits is 0'),
    (lambda: index_lib.build_packed(np.zeros((4, 33), np.uint8), 257), '1 to 256'),
    (lambda: index_lib.build_packed(np.zeros((4, 1), np.uint8), 9), r'uint8 \[n, 2\]'),
    (lambda: index_lib.build_packed(np.zeros((4, 1), np.int8), 8), 'int8'),
    (lambda: index_lib.build_packed(np.full((4, 1), 9, np.uint8), 7), 'beyond the 7'),
    (lambda: index_lib.search(INDEX, ONES[:, :7], 1), '7 bits.*8'),
    (lambda: index_lib.search(INDEX, ONES * 2, 1), 'value 2'),
    (lambda: index_lib.search(INDEX, ONES, 0), 'k is 0'),
    (lambda: index_lib.search(INDEX, ONES, 2.0), 'k is 2.0'),
    (lambda: index_lib.search(INDEX, ONES, True), 'k is True'),
    (lambda: index_lib.search(INDEX, ONES, 1, keys=np.zeros((3, 2), np.int8)), r'\[4, 2\]'),
    (lambda: index_lib.search(INDEX, ONES, 1, keys=np.zeros((4, 3), np.int8)), r'\[4, 2\]'),
    (lambda: index_lib.search(INDEX, ONES, 1, allowed=np.ones(4, bool)), 'bool.*mask'),
    (lambda: index_lib.search(INDEX, ONES, 1, allowed=['a']), 'allowed are <U1'),
    (lambda: index_lib.search(INDEX, ONES, 1, allowed=3), r'allowed are int64 \(\)'),
    (lambda: index_lib.search_outputs(INDEX, ONES, 1), 'int8'),
    (lambda: index_lib.search_outputs(INDEX, ONES[:, :7] * 1.0, 1), r'\(4, 7\)'),
    (lambda: index_lib.search_outputs(INDEX, ONES * np.inf, 1), 'inf'),
    (lambda: index_lib.search_outputs(INDEX, ONES * 1.0, -1), 'k is -1'),
    (lambda: index_lib.within(INDEX, ONES, -1), 'radius is -1'),
    (lambda: index_lib.within(INDEX, ONES, 1.5), 'radius is 1.5'),
    (lambda: index_lib.add(INDEX, ONES), 'with keys; give'),
    (lambda: index_lib.add(INDEX, ONES, keys=np.zeros((4, 3), np.int8)), r'\[4, 2\]'),
    (lambda: index_lib.add(INDEX, ONES, range(4), np.zeros((4, 2), np.int8)), 'without ids; leave'),
    (lambda: index_lib.add(WITH_IDS, ONES), 'with ids; give'),
    (lambda: index_lib.add(WITH_IDS, ONES, [4, 5, 6, 3]), 'id 3;'),
    (lambda: index_lib.remove(WITH_IDS, [2, 4]), 'id 4;'),
    (lambda: index_lib.remove(INDEX, [-1]), 'id -1;'),
    (lambda: index_lib.remove(INDEX, np.ones(4, bool)), 'bool'),
])
def test_mistakes_are_named(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.parametrize('c', [4, 9, 16])
def test_memory_is_at_most_6_bytes_a_row_and_a_table(c):
  n = 300_000
  codes = make_codes('random', n, c)
  index_lib.search(index_lib.build(codes[:100]), codes[:1], 1)  # what is kept for all indexes
  tracemalloc.start()
  index = index_lib.build(codes)
  index_lib.search(index, codes[:50], 10)
  kept = tracemalloc.get_traced_memory()[0]
  tracemalloc.stop()
  assert len(index) == n
  assert kept < 6 * n + 16 * 2 ** c + 10_000


def spread(n, c):
  """Buckets of n different codes."""
  codes = np.random.default_rng(0).permutation(2 ** 20)[:n].astype(np.uint64)
  codes = (codes * np.uint64(0x9E3779B97F4A7C15) & np.uint64(2 ** c - 1)).astype(
      buckets.word_type(c))
  return buckets.make(codes[None], c)


@pytest.mark.parametrize('c, one, many', [
    (4, True, True), (16, True, True), (24, False, True), (32, False, True), (64, False, False)])
def test_the_rule_walks_where_its_reason_says(c, one, many):
  index, k = spread(59_000, c), 10
  radius = buckets.likely_radius(c, 59_000, k)
  assert buckets.walk_pays(index, radius, 1, k) == one
  assert buckets.walk_pays(index, radius, 1000, k) == many


def test_a_query_far_from_all_codes_is_not_walked_to_for_long(monkeypatch):
  walked = []
  walk = buckets._walk

  def spy(index, queries, radius):
    walked.append(sum(buckets._walk_size(index, radius, 10)) * len(queries))
    return walk(index, queries, radius)

  monkeypatch.setattr(buckets, '_walk', spy)
  rng = np.random.default_rng(0)
  codes = np.where(rng.random((50_000, 16)) < 0.02, -1, 1).astype(np.int8)
  index = index_lib.build(codes)
  check_search(index, codes, -np.ones((1, 16), np.int8), 10)
  assert 0 < sum(walked) < 10_000  # of 2^16 codes


def test_the_likely_radius_of_even_codes():
  # 1 + 8 codes of 256 with 2 rows each are the first with 10 rows or more.
  assert buckets.likely_radius(8, 512, 10) == 1
  assert buckets.likely_radius(8, 512, 2) == 0
  assert buckets.likely_radius(8, 512, 512) == 8
