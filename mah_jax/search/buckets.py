"""Rows brought together by code, and two exact ways to those nearest to a query: walk and scan.

A walk looks up the codes that differ from the query in no bit, in one bit, in two and so on.
A scan counts the differing bits of every code that a row has.
Codes are words, [w, n]: bit j of a code is bit j % 64 of its word j // 64; see `word_type`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_TABLE = 16       # bits of a table at most; NumPy sorts integers of 16 bits by radix
_WALKED = 64      # bits of the longest codes that are walked to
_STEP = 2**16     # table entries, codes and rows that the queries of one step look at together
_BLOCK = 2**18    # bytes of codes whose bits are counted at a time, so that they stay in the cache
_SCANNED = 2**23  # distances that the queries of one step have together
_SORTED = 2**12   # rows that are sorted sooner than it is found out which of them are too far
_SAMPLE = 4       # queries whose distances tell how far to walk for the others
# What a query finds is one integer that sorts as answers are ordered: the number of the query,
# the distance in 9 bits, the number of a code or row in 32 bits.
_QUERY, _DISTANCE = 41, 32
_DISTANCES, _NUMBERS = 2**9 - 1, 2**32 - 1


class Piece(NamedTuple):
  """The distinct codes by the value of some of their bits.

  shift: the first of these bits.
  width: how many bits they are.
  starts: where the codes with each value begin in `order`, [2^width + 1] uint32.
  order: numbers of the codes by value, [g] uint32.
  alike: how many codes have the value of a code, itself included, on average.
  """
  shift: int
  width: int
  starts: np.ndarray
  order: np.ndarray
  alike: float


class Buckets(NamedTuple):
  """n rows by their code; g codes are distinct.

  bits: the length of a code, c.
  words: the distinct codes, [w, g].
  starts: where the rows of each distinct code begin in `order`, [g + 1] uint32.
  order: row numbers by code; those of one code ascend, [n] uint32.
  table: where the rows of each possible code begin in `order`, [2^c + 1] uint32; None above 16
    bits.
  pieces: the codes by each piece of their bits, for 17 to 64 bits.
  """
  bits: int
  words: np.ndarray
  starts: np.ndarray
  order: np.ndarray
  table: np.ndarray | None
  pieces: tuple[Piece, ...]


class _Found(NamedTuple):
  """Codes that some queries found, [f].

  place: the number of the query and the distance, in their bits.
  start: where the rows of the code begin in `order`.
  size: how many rows it has.
  """
  place: np.ndarray
  start: np.ndarray
  size: np.ndarray

  def take(self, some: np.ndarray) -> _Found:
    return _Found(*(field.take(some) for field in self))


def word_type(bits: int) -> np.dtype:
  """The type of the words of a code: the smallest that has its bits, or 64 of them."""
  return np.min_scalar_type(2**min(bits, 64) - 1)


def make(words: np.ndarray, bits: int) -> Buckets:
  """Brings rows together by their codes, [w, n]."""
  order = np.lexsort(words).astype(np.uint32)  # stable
  words = words.take(order, axis=1)
  is_first = np.ones(len(order), bool)
  is_first[1:] = (words[:, 1:] != words[:, :-1]).any(axis=0)
  first = np.flatnonzero(is_first)
  starts = np.append(first, len(order)).astype(np.uint32)
  return _with_tables(bits, words.take(first, axis=1), starts, order)


def keep(buckets: Buckets, allowed: np.ndarray) -> Buckets:
  """The buckets without the rows that are not allowed, [n] bool; rows keep their numbers."""
  is_kept = allowed.take(buckets.order)
  kept_before = np.append(0, np.cumsum(is_kept)).astype(np.uint32)  # [n + 1]
  starts = kept_before.take(buckets.starts)
  codes = np.flatnonzero(starts[1:] > starts[:-1])
  return _with_tables(buckets.bits, buckets.words.take(codes, axis=1),
                      np.append(starts.take(codes), starts[-1]), buckets.order[is_kept])


def words_of_rows(buckets: Buckets) -> np.ndarray:
  """The codes of all rows in the order of rows, [w, n]."""
  words = np.empty((len(buckets.words), len(buckets.order)), buckets.words.dtype)
  words[:, buckets.order] = np.repeat(buckets.words, np.diff(buckets.starts), axis=1)
  return words


def _with_tables(bits: int, words: np.ndarray, starts: np.ndarray, order: np.ndarray) -> Buckets:
  """Buckets with the tables that a walk looks codes up in."""
  if bits <= _TABLE:
    rows = np.zeros(2**bits + 1, np.uint32)
    rows[words[0].astype(np.intp) + 1] = np.diff(starts)
    return Buckets(bits, words, starts, order, np.cumsum(rows, dtype=np.uint32), ())
  m, pieces = -(-bits // _TABLE) if bits <= _WALKED else 0, []
  for j in range(m):
    shift, end = bits * j // m, bits * (j + 1) // m
    values = (words[0] >> shift & 2**(end - shift) - 1).astype(np.uint16)
    codes = np.bincount(values, minlength=2**(end - shift))
    pieces.append(Piece(shift, end - shift, np.append(0, np.cumsum(codes)).astype(np.uint32),
                        np.argsort(values, kind='stable').astype(np.uint32),
                        float(np.square(codes).sum() / max(1, codes.sum()))))
  return Buckets(bits, words, starts, order, None, tuple(pieces))


def nearest(buckets: Buckets, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
  """The k rows nearest to each query by (distance, row).

  Args:
    buckets: k rows or more.
    queries: codes, [w, q].
    k: 1 or more.

  Returns:
    Distances, [q, k] int32, and row numbers, [q, k] int64.
  """
  q = queries.shape[1]
  if q == 1:
    ranked = _nearest_to_one(buckets, queries, k)[None]
    return _distance(ranked).astype(np.int32), ranked & _NUMBERS
  distances, rows = np.empty((q, k), np.int32), np.empty((q, k), np.int64)
  pending, radius = np.arange(q), likely_radius(buckets.bits, len(buckets.order), k)
  if buckets.pieces and q >= 64 * _SAMPLE:  # long codes are seldom spread evenly
    sample = pending[::q // _SAMPLE]
    _answer_by_scan(buckets, queries, sample, distances, rows)
    pending = np.delete(pending, sample)
    radius = int(np.median(distances[sample, -1]))
  while len(pending) and walk_pays(buckets, radius, len(pending), k):
    far = []  # queries with less than k rows within the radius
    for part in _parts(pending, _STEP // (k + sum(_walk_size(buckets, radius, k)))):
      found = _walk(buckets, queries[0, part], radius)
      enough, *answers = _first_rows(buckets.order, found, len(part), k)
      distances[part[enough]], rows[part[enough]] = answers
      far.append(part[~enough])
    pending, radius = np.concatenate(far), radius + 1
  _answer_by_scan(buckets, queries, pending, distances, rows)
  return distances, rows


def _answer_by_scan(buckets: Buckets, queries: np.ndarray, pending: np.ndarray,
                    distances: np.ndarray, rows: np.ndarray):
  """Writes the answers to the numbered queries into distances and rows, [q, k]."""
  k = rows.shape[1]
  for part in _parts(pending, min(_STEP // k, _SCANNED // buckets.words.shape[1])):
    found = _scan(buckets, queries[:, part], k)
    _, distances[part], rows[part] = _first_rows(buckets.order, found, len(part), k)


def _nearest_to_one(buckets: Buckets, query: np.ndarray, k: int) -> np.ndarray:
  """`nearest` for one query [w, 1] in fewer calls of NumPy, which cost most here; [k] places."""
  if buckets.table is not None:
    start, end = buckets.table[int(query[0, 0]):][:2].tolist()
    if end - start >= k:  # rows with its own code, distance 0
      return buckets.order[start:start + k].astype(np.int64)
  radius = likely_radius(buckets.bits, len(buckets.order), k)
  while walk_pays(buckets, radius, 1, k):
    found = _walk(buckets, query[0], radius)
    if found.size.sum() >= k:
      break
    radius += 1
  else:
    found = _scan(buckets, query, k)
  found = found._replace(size=np.minimum(found.size, k))
  if found.size.sum() > 2 * k + _SORTED:
    found = _up_to_kth(found, k)
  return _ranked(buckets.order, found)[:k]


def ball(buckets: Buckets, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
  """All rows that are as near to a query [w] as the k-th nearest, by (distance, row).

  Returns:
    Distances and row numbers, [k or more] int64.
  """
  _, numbers, distances = _nearest_codes(buckets, query[:, None], k)
  return _ordered_rows(buckets, numbers, distances, k)


def weighted_ball(buckets: Buckets, query: np.ndarray, sums: np.ndarray,
                  k: int) -> tuple[np.ndarray, np.ndarray]:
  """`ball` by the sum of the weights of differing bits; see `hamming.byte_sums`."""
  differing = buckets.words.T ^ query  # [g, w]
  octets = differing.astype(differing.dtype.newbyteorder('<'), order='C').view(np.uint8)
  g = len(differing)
  grid = _blank_grid(1, g, k, np.int64)
  grid.reshape(-1)[:g] = sum(weights.take(octet) for weights, octet in zip(sums, octets.T))
  _, numbers, totals = _least(grid, min(k, g))
  return _ordered_rows(buckets, numbers, totals, k)


def within(buckets: Buckets, query: np.ndarray, radius: int) -> tuple[np.ndarray, np.ndarray]:
  """All rows within a radius of a query [w], by (distance, row), [.] int64 each."""
  distances = np.empty(buckets.words.shape[1], np.uint16)
  _count_differences(buckets.words, query[:, None], distances[None])
  numbers = np.flatnonzero(distances <= radius)
  return _ordered_rows(buckets, numbers, distances.take(numbers), None)


def walk_pays(buckets: Buckets, radius: int, q: int, k: int) -> bool:
  """Whether to walk to all codes within a radius of q queries rather than to scan all codes.

  The numbers are microseconds a query, as measured on one core of an AMD EPYC with AVX-512, NumPy
  2.4, random codes, 10,000 to a million rows, k of 1 to 5000: the calls of NumPy, which the
  queries of a step share, and what each table entry, code or row costs. So one query among 59,000
  random rows walks up to 16 bits, and a thousand queries do up to 32.

  A walk that finds too little is tried again one further out. The last one costs less than a
  scan, and those before it a part of that; so a query that is far from all codes takes a few
  times as long as a scan of the distinct codes.
  """
  if buckets.bits > _WALKED or radius > buckets.bits:
    return False
  g = buckets.words.shape[1]
  entries, found = _walk_size(buckets, radius, k)
  calls = 60 if buckets.pieces else 20
  walk = calls * max(1 / q, (entries + found) / _STEP) + 0.007 * entries + 0.012 * found
  scan = 27 / q + 8 + 0.00045 * g + 0.08 * min(k, g)
  return walk < scan


@functools.lru_cache(2**10)
def likely_radius(bits: int, n: int, k: int) -> int:
  """The distance of the k-th of n rows if their codes are spread evenly."""
  radius, codes = 0, 1
  while codes * n < k * 2**bits and radius < bits:
    radius += 1
    codes += math.comb(bits, radius)
  return radius


def _walk_size(buckets: Buckets, radius: int, k: int) -> tuple[int, int]:
  """How many table entries a walk looks up, and how many rows or codes it likely finds there.

  A query is taken to be like the codes, and the values that differ from its own to be evenly
  spread.
  """
  if buckets.table is not None:
    entries = _masks(buckets.bits).counts[radius]
    return entries, int(entries * min(k, len(buckets.order) / 2**buckets.bits))
  entries, found = 0, 0.0
  for piece, values in _pieces_within(buckets, radius):
    entries += len(values)
    found += piece.alike + (len(values) - 1) * buckets.words.shape[1] / 2**piece.width
  return entries, int(found)


def _parts(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
  """Consecutive parts of an array of this size, or of 1 where that is less."""
  size = max(1, size)
  return (array[i:i + size] for i in range(0, len(array), size))


class _Masks(NamedTuple):
  """All values of some bits, those with few bits set first.

  values: [2^width].
  counts: how many of them have up to 0, 1, ... width bits set.
  distances: the number of bits set, in the place of a distance, [2^width].
  """
  values: np.ndarray
  counts: list[int]
  distances: np.ndarray


@functools.lru_cache(_TABLE)
def _masks(width: int) -> _Masks:
  set_bits = np.bitwise_count(np.arange(2**width))
  values = np.argsort(set_bits, kind='stable')
  return _Masks(values, np.cumsum(np.bincount(set_bits)).tolist(),
                set_bits[values].astype(np.int64) << _DISTANCE)


def _pieces_within(buckets: Buckets, radius: int) -> Iterator[tuple[Piece, np.ndarray]]:
  """The pieces to look up for codes within a radius R, and the values that may differ in them.

  If two codes differ in at most R bits, then in one of their m pieces, the j-th from 0, they
  differ in at most (R - j) // m: else they would differ in R + 1 or more.
  """
  for j, piece in enumerate(buckets.pieces[:radius + 1]):
    masks = _masks(piece.width)
    yield piece, masks.values[:masks.counts[(radius - j) // len(buckets.pieces)]]


def _walk(buckets: Buckets, queries: np.ndarray, radius: int) -> _Found:
  """The codes within a radius of each query, [q]."""
  if buckets.table is None:
    return _walk_by_pieces(buckets, queries, radius)
  masks = _masks(buckets.bits)
  v = masks.counts[radius]
  start, size = _ranges(buckets.table, queries.astype(np.intp)[:, None] ^ masks.values[:v])
  hits = np.flatnonzero(size)  # of [q, v]
  query, mask = np.divmod(hits, v)
  return _Found((query << _QUERY) + masks.distances.take(mask), start.take(hits), size.take(hits))


def _walk_by_pieces(buckets: Buckets, queries: np.ndarray, radius: int) -> _Found:
  """`_walk`, but nothing for queries with a piece that very many codes share."""
  most = 1000 + buckets.words.shape[1] // 16
  crowded, found = np.zeros(len(queries), bool), []
  for piece, values in _pieces_within(buckets, radius):
    own = (queries >> piece.shift & 2**piece.width - 1).astype(np.intp)
    start, size = _ranges(piece.starts, own[:, None] ^ values)  # [q, v]
    crowded |= size.sum(axis=1) > most
    size[crowded] = 0
    hits = np.flatnonzero(size)
    size = size.take(hits)
    number = piece.order.take(_expanded(start.take(hits), size))
    query = np.repeat(hits // len(values), size)
    distance = np.bitwise_count(buckets.words[0].take(number) ^ queries.take(query))
    near = np.flatnonzero(distance <= radius)
    found.append(_place(query.take(near), distance.take(near)) + number.take(near))
  found = np.concatenate(found)
  found.sort()
  found = found[np.diff(found, prepend=-1) > 0]  # several pieces may find the same code
  found = found[~crowded.take(found >> _QUERY)]
  number = found & _NUMBERS
  return _Found(found - number, *_ranges(buckets.starts, number))


def _scan(buckets: Buckets, queries: np.ndarray, k: int) -> _Found:
  """The codes of the k rows nearest to each query [w, q], and a few more."""
  query, number, distance = _nearest_codes(buckets, queries, k)
  return _Found(_place(query, distance), *_ranges(buckets.starts, number))


def _nearest_codes(buckets: Buckets, queries: np.ndarray,
                   k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """`_least` of the distances of all codes to queries, [w, q]."""
  g = buckets.words.shape[1]
  grid = _blank_grid(queries.shape[1], g, k, np.min_scalar_type(buckets.bits + 1))
  _count_differences(buckets.words, queries, grid.reshape(len(grid), -1)[:, :g])
  return _least(grid, min(k, g))


def _count_differences(words: np.ndarray, queries: np.ndarray, out: np.ndarray):
  """Writes the distances of codes [w, g] to queries [w, q] into `out`, [q, g]."""
  size = max(1, _BLOCK // words.itemsize)
  for i in range(0, words.shape[1], size):
    block = words[:, i:i + size]
    for query, part in zip(queries.T, out[:, i:i + size]):
      np.bitwise_count(block[0] ^ query[0], out=part)
      for word, other in zip(block[1:], query[1:]):
        part += np.bitwise_count(word ^ other)


def _blank_grid(q: int, g: int, k: int, dtype: np.typing.DTypeLike) -> np.ndarray:
  """Room for g values of each query in lines, [q, lines, .]; what is over has the largest value.

  There are as many lines as make `_least` fast, and each is longer than k.
  """
  lines = max(1, math.isqrt(g // k) // 2)
  grid = np.empty((q, lines, -(-g // lines)), dtype)
  grid.reshape(q, -1)[:, g:] = np.iinfo(dtype).max
  return grid


def _least(grid: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The k least values of each query in a grid, with ties, and a few more.

  The k-th of the least values of the columns is not below the k-th of all values, and there is
  little to look at up to it.

  Returns:
    The query of each, its number among the values of the query, and the value itself, [f].
  """
  least = grid.min(axis=1)  # [q, .]
  # NumPy has a fast partition of 16 bits, but not of 8.
  limit = np.partition(least.astype(np.uint16) if least.itemsize == 1 else least, k - 1, axis=1)
  limit = limit[:, k - 1, None]
  # Numbers among all and np.divmod take half the time of np.nonzero in two dimensions.
  query, column = np.divmod(np.flatnonzero(least <= limit), least.shape[1])
  values = grid[query, :, column]  # [., lines]
  hits = np.flatnonzero(values <= limit.take(query, axis=0))
  some, line = np.divmod(hits, values.shape[1])
  return (query.take(some), line * least.shape[1] + column.take(some), values.take(hits))


def _first_rows(order: np.ndarray, found: _Found, q: int,
                k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The first k rows of those whose codes q queries found.

  Returns:
    Whether each query found k rows, [q]; distances and row numbers of those that did, [., k].
  """
  found = found._replace(size=np.minimum(found.size, k))  # more of one code are never needed
  rows = np.bincount(found.place >> _QUERY, found.size, minlength=q)
  enough = rows >= k
  if not enough.all():
    found = found.take(np.flatnonzero(enough.take(found.place >> _QUERY)))
  if rows.sum() > 2 * k * q + _SORTED:
    found = _up_to_kth(found, k)
  ranked = _ranked(order, found)
  first = np.searchsorted(ranked, np.flatnonzero(enough) << _QUERY)
  ranked = ranked.take(first[:, None] + np.arange(k))
  return enough, _distance(ranked), ranked & _NUMBERS


def _ranked(order: np.ndarray, found: _Found) -> np.ndarray:
  """The rows of found codes, as integers that are sorted."""
  ranked = np.repeat(found.place, found.size)
  ranked += order.take(_expanded(found.start, found.size))
  ranked.sort()
  return ranked


def _up_to_kth(found: _Found, k: int) -> _Found:
  """What was found without what is farther than the k-th row; every query has k rows."""
  found = found.take(np.argsort(found.place))
  first = np.flatnonzero(np.diff(found.place >> _QUERY, prepend=-1))  # code of each query
  codes = np.diff(first, append=len(found.place))  # of each query
  before = np.cumsum(found.size, dtype=np.int64) - found.size  # rows before each code
  before -= np.repeat(before.take(first), codes)
  kth = found.place[(before < k) & (before + found.size >= k)]  # of each query
  return found.take(np.flatnonzero(found.place <= np.repeat(kth, codes)))


def _ordered_rows(buckets: Buckets, numbers: np.ndarray, values: np.ndarray,
                  k: int | None) -> tuple[np.ndarray, np.ndarray]:
  """The rows of numbered codes by (value, row), up to the value of the k-th, if k is given."""
  distinct, levels = np.unique(values.astype(np.int64), return_inverse=True)
  start, size = _ranges(buckets.starts, numbers)
  if k is not None:
    rows = np.cumsum(np.bincount(levels, size))  # up to each level
    near = np.flatnonzero(levels <= np.searchsorted(rows, k))
    levels, start, size = levels.take(near), start.take(near), size.take(near)
  ranked = _ranked(buckets.order, _Found(levels << _DISTANCE, start, size))
  return distinct.take(ranked >> _DISTANCE), ranked & _NUMBERS


def _place(query: np.ndarray, distance: np.ndarray) -> np.ndarray:
  """Query and distance in their bits, the number of a code or row left 0."""
  return (query << _QUERY - _DISTANCE) + distance << _DISTANCE


def _distance(place: np.ndarray) -> np.ndarray:
  """The distance in a place."""
  return place >> _DISTANCE & _DISTANCES


def _ranges(starts: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Where numbered ranges begin and how long they are; each ends where the next one begins."""
  start = starts.take(numbers)
  return start, starts[1:].take(numbers) - start


def _expanded(start: np.ndarray, size: np.ndarray) -> np.ndarray:
  """All numbers of ranges, one range after the other, uint32."""
  end = np.cumsum(size, dtype=np.uint32)
  numbers = np.repeat(start - (end - size), size)  # modulo 2^32
  numbers += np.arange(len(numbers), dtype=np.uint32)
  return numbers
