"""An exact index of binary codes of 1 to 256 bits: build, search, add, remove, save and load.

  index = build(codes)                          # [n, c] in {-1, +1}
  distances, rows = search(index, queries, 10)  # [q, c] -> [q, 10] each

Answers are ordered by (distance, second key, row); rows are in the order in which they came into
the index. So the first 10 of 100 are the 10, and the lists are the same on every machine.
"""

from __future__ import annotations

import dataclasses
import io
import os
import zipfile
import zlib
from collections.abc import Collection

import numpy as np

from mah_jax import distinct
from mah_jax import errors
from mah_jax import storage
from mah_jax.evaluation import hamming
from mah_jax.search import buckets as buckets_lib

MOST_BITS = 256
MOST_ROWS = 2**32 - 1   # row numbers have 32 bits
MOST_KEY_BYTES = 2**15  # squared distances of keys have 31 bits
FORMAT = 'mah_jax index 1'
_BLOCK = 2**14  # rows that are packed, or whose keys are compared, at a time
# Each byte with its bits in reverse: np.packbits puts the first bit of a code highest, words have
# it lowest.
_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8), bitorder='little'))


@dataclasses.dataclass(frozen=True, eq=False)
class Index:
  """n rows with a code of c bits each. It never changes; `add` and `remove` make another one.

  buckets: the rows by their codes.
  keys: second keys of the rows, [n, b] int8, or None.
  given_ids: ids of the rows, [n] int64; None while they are 0..n-1.
  next_id: the id of the next row, if rows are numbered; None if the user gives ids.
  """
  buckets: buckets_lib.Buckets
  keys: np.ndarray | None
  given_ids: np.ndarray | None
  next_id: int | None

  def __len__(self) -> int:
    return len(self.buckets.order)

  @property
  def bits(self) -> int:
    """The length of a code, c."""
    return self.buckets.bits

  @property
  def ids(self) -> np.ndarray:
    """The ids of the rows in their order, [n] int64."""
    return np.arange(len(self)) if self.given_ids is None else self.given_ids

  @property
  def packed(self) -> np.ndarray:
    """The codes in the order of rows as np.packbits packs them, [n, ceil(c / 8)] uint8."""
    words = buckets_lib.words_of_rows(self.buckets)
    octets = words.T.astype(words.dtype.newbyteorder('<'), order='C').view(np.uint8)
    return _REVERSED[octets[:, :-(-self.bits // 8)]]


def build(codes: np.ndarray, ids: np.ndarray | None = None,
          keys: np.ndarray | None = None) -> Index:
  """An index of codes.

  Args:
    codes: in {-1, +1}, [n, c]; n may be 0, c is 1 to 256.
    ids: the ids that `search` answers with, different integers, [n]; row numbers if not given.
    keys: second keys, which order rows at equal distances, [n, b] int8.
  """
  words, bits = _words('codes', codes), np.shape(codes)[1]
  return _build(words, bits, ids, keys)


def build_packed(packed: np.ndarray, bits: int, ids: np.ndarray | None = None,
                 keys: np.ndarray | None = None) -> Index:
  """An index of codes that are packed by np.packbits(codes > 0, axis=1).

  Args:
    packed: [n, ceil(bits / 8)] uint8.
    bits: the length of a code, 1 to 256.
    ids: as in `build`.
    keys: as in `build`.
  """
  _check_bits(_whole('bits', bits, 1))
  packed = np.asarray(packed)
  if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != -(-bits // 8):
    raise ValueError(f'packed is {packed.dtype} {packed.shape}, but codes of {bits} bits are uint8 '
                     f'[n, {-(-bits // 8)}]; give np.packbits(codes > 0, axis=1).')
  if bits % 8 and (packed[:, -1] & 0xff >> bits % 8).any():
    raise ValueError(f'packed has bits beyond the {bits} of a code; give np.packbits(codes > 0, '
                     'axis=1), which leaves them 0.')
  dtype = buckets_lib.word_type(bits)
  octets = np.zeros((len(packed), -(-bits // 64) * dtype.itemsize), np.uint8)
  octets[:, :packed.shape[1]] = _REVERSED[packed]
  return _build(octets.view(dtype.newbyteorder('<')).T.astype(dtype, order='C'), bits, ids, keys)


def add(index: Index, codes: np.ndarray, ids: np.ndarray | None = None,
        keys: np.ndarray | None = None) -> Index:
  """The index with more rows behind its own; all are sorted anew, so add many at once.

  Args:
    index: it stays as it is.
    codes: in {-1, +1}, [n, c].
    ids: their ids, if the index was built with ids. Else rows go on being numbered, and the
      numbers of removed rows are not used again.
    keys: their second keys, if the index was built with keys.
  """
  words = _words('codes', codes, index.bits)
  n = words.shape[1]
  _check_given('ids', ids, index.next_id is None)
  _check_given('keys', keys, index.keys is not None)
  next_id = index.next_id
  if next_id is not None:
    if index.given_ids is not None:
      ids = np.arange(next_id, next_id + n)
    next_id += n
  if ids is not None:
    ids = np.concatenate([index.ids, _checked_ids(ids, n)])
  if keys is not None:
    keys = np.concatenate([index.keys, _checked_keys(keys, n, index.keys.shape[1])])
  words = np.hstack([buckets_lib.words_of_rows(index.buckets), words])
  return dataclasses.replace(_build(words, index.bits, ids, keys), next_id=next_id)


def remove(index: Index, ids: Collection[int]) -> Index:
  """The index without the rows that have these ids; the others keep their ids."""
  ids = _checked_collection('ids', ids)
  is_kept = ~_has_id(index, ids)
  if len(index) - np.count_nonzero(is_kept) < len(ids):
    unknown = ids[~np.isin(ids, index.ids)]
    raise ValueError(f'The index has no row with the id {unknown[0]}; give ids that are in '
                     'index.ids.')
  buckets = buckets_lib.keep(index.buckets, is_kept)
  numbers = np.cumsum(is_kept, dtype=np.uint32) - np.uint32(1)  # of the rows that are kept
  return dataclasses.replace(
      index, buckets=buckets._replace(order=numbers[buckets.order]),
      keys=None if index.keys is None else index.keys[is_kept], given_ids=index.ids[is_kept])


def search(index: Index, codes: np.ndarray, k: int, *, keys: np.ndarray | None = None,
           allowed: Collection[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
  """The rows nearest to each query by Hamming distance.

  Args:
    index: the index.
    codes: queries in {-1, +1}, [q, c].
    k: how many rows are wanted, 1 or more.
    keys: second keys of the queries, [q, b] int8. Rows at equal distances are ordered by the
      squared Euclidean distance of their keys to it. Without them, or if the index has no keys,
      and where these are equal, rows keep their order.
    allowed: the ids that may be answered, all if not given. Ids that the index does not have do
      not matter.

  Returns:
    Distances, [q, m] int32, and ids, [q, m] int64; m is k or the number of rows, if that is less.
  """
  queries = _words('codes', codes, index.bits)
  q = queries.shape[1]
  keys, buckets = _query_keys(index, keys, q), _allowed_buckets(index, allowed)
  k = min(_whole('k', k, 1), len(buckets.order))
  distances, rows = np.empty((q, k), np.int32), np.empty((q, k), np.int64)
  if not distances.size:
    return distances, rows
  different, number = _different(queries)
  if keys is None:
    distances, rows = buckets_lib.nearest(buckets, different, k)
    return distances[number], _ids_of(index, rows[number])
  for i, query in enumerate(different.T):
    ball = buckets_lib.ball(buckets, query, k)
    for j in np.flatnonzero(number == i):
      distances[j], rows[j] = _by_key(*ball, index.keys, keys[j], k)
  return distances, _ids_of(index, rows)


def search_outputs(
    index: Index, outputs: np.ndarray, k: int, *, keys: np.ndarray | None = None,
    allowed: Collection[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
  """The rows whose codes have the largest inner product with a query's real outputs.

  This is the order by Hamming distance to the signs of the outputs if each bit weighs as much as
  the size of its output. Weights are rounded to 2^-20 of the largest, so that ties are exact.

  Args:
    index: the index.
    outputs: finite real numbers, [q, c].
    k: how many rows are wanted, 1 or more.
    keys: second keys of the queries, as in `search`.
    allowed: the ids that may be answered, as in `search`.

  Returns:
    Scores, [q, m] float64, the inner products of the rounded outputs divided by c, and ids, [q, m]
    int64; m as in `search`.
  """
  outputs = _checked_outputs(outputs, index.bits)
  q = len(outputs)
  keys, buckets = _query_keys(index, keys, q), _allowed_buckets(index, allowed)
  k = min(_whole('k', k, 1), len(buckets.order))
  scores, rows = np.empty((q, k), np.float64), np.empty((q, k), np.int64)
  if not scores.size:
    return scores, rows
  queries = distinct.pack(outputs >= 0).astype(buckets.words.dtype)  # [q, w]
  for i, (query, weights) in enumerate(zip(queries, np.abs(outputs))):
    sums = hamming.byte_sums(weights)
    if sums is None:  # all weigh the same
      ball, total, largest = buckets_lib.ball(buckets, query, k), index.bits, 1
    else:
      ball = buckets_lib.weighted_ball(buckets, query, sums, k)
      total, largest = sums[:, -1].sum(), sums[:, 2**np.arange(8)].max()
    lost, rows[i] = _by_key(*ball, index.keys, None if keys is None else keys[i], k)
    scores[i] = (total - 2 * lost) * (weights.max() / max(largest, 1)) / index.bits
  return scores, _ids_of(index, rows)


def within(index: Index, codes: np.ndarray, radius: int, *, keys: np.ndarray | None = None,
           allowed: Collection[int] | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
  """All rows within a Hamming distance of each query.

  Args:
    index: the index.
    codes: queries in {-1, +1}, [q, c].
    radius: the largest distance, 0 or more.
    keys: second keys of the queries, as in `search`.
    allowed: the ids that may be answered, as in `search`.

  Returns:
    Distances, int32, and ids, int64, of each query, in the order of `search`.
  """
  queries = _words('codes', codes, index.bits)
  keys, buckets = _query_keys(index, keys, queries.shape[1]), _allowed_buckets(index, allowed)
  radius, answers = _whole('radius', radius, 0), []
  for i, query in enumerate(queries.T):
    near = buckets_lib.within(buckets, query, radius)
    distances, rows = _by_key(*near, index.keys, None if keys is None else keys[i], len(near[1]))
    answers.append((distances.astype(np.int32), _ids_of(index, rows)))
  return answers


def save(index: Index, path: str | os.PathLike):
  """Writes an index as one .npz file."""
  arrays = {'format': FORMAT, 'bits': index.bits, 'packed': index.packed, 'keys': index.keys,
            'ids': index.given_ids, 'next_id': -1 if index.next_id is None else index.next_id}
  buffer = io.BytesIO()
  np.savez(buffer, **{name: array for name, array in arrays.items() if array is not None})
  storage.write(storage.path(path), buffer.getvalue())


def load(path: str | os.PathLike) -> Index:
  """Reads an index that `save` wrote; raises errors.InputError for any other file."""
  try:
    with open(storage.path(path), 'rb') as file:
      arrays = dict(np.load(file, allow_pickle=False))
    if str(arrays['format']) != FORMAT:
      raise ValueError(f'its format is {arrays["format"]}')
    index = build_packed(arrays['packed'], int(arrays['bits']), arrays.get('ids'),
                         arrays.get('keys'))
    next_id = int(arrays['next_id'])
    if index.given_ids is None and next_id != len(index) or (
        0 <= next_id <= index.ids.max(initial=-1)):
      raise ValueError(f'its next id is {next_id}')
    return dataclasses.replace(index, next_id=None if next_id < 0 else next_id)
  except (OSError, ValueError, LookupError, TypeError, EOFError, RuntimeError, MemoryError,
          zlib.error, zipfile.BadZipFile) as error:
    raise errors.InputError(f'{path} is missing, damaged or no index of mah_jax ({error}): build '
                            'and save it again.') from error


def _build(words: np.ndarray, bits: int, ids: np.ndarray | None,
           keys: np.ndarray | None) -> Index:
  """An index of checked codes, [w, n]."""
  n = words.shape[1]
  if n > MOST_ROWS:
    raise ValueError(f'An index has at most {MOST_ROWS} rows, not {n}; split them.')
  return Index(buckets_lib.make(words, bits), None if keys is None else _checked_keys(keys, n),
               None if ids is None else _checked_ids(ids, n), n if ids is None else None)


def _words(name: str, codes: np.ndarray, bits: int | None = None) -> np.ndarray:
  """Checked codes as words, [n, c] -> [w, n]; `bits` is the c of an index."""
  codes = np.asarray(codes)
  if codes.ndim != 2 or codes.dtype.kind not in 'if':
    raise ValueError(f'{name} are {codes.dtype} {codes.shape}; give [rows, bits] of -1 and +1, '
                     'int8 for example.')
  n, c = codes.shape
  if bits is None:
    _check_bits(c)
  elif c != bits:
    raise ValueError(f'{name} have {c} bits, but those of the index have {bits}; give the codes of '
                     'the same head.')
  words = np.empty((-(-c // 64), n), buckets_lib.word_type(c))
  for i in range(0, n, _BLOCK):
    block = codes[i:i + _BLOCK]
    wrong = block[np.abs(block) != 1]
    if wrong.size:
      raise ValueError(f'{name} have the value {wrong[0]}, but only -1 and +1 are bits; take the '
                       'sign first.')
    words[:, i:i + _BLOCK] = distinct.pack(block).T
  return words


def _check_bits(c: int):
  if not 1 <= c <= MOST_BITS:
    raise ValueError(f'Codes of {c} bits cannot be indexed; give 1 to {MOST_BITS}.')


def _whole(name: str, value: int, least: int) -> int:
  """A checked whole number."""
  if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
    raise ValueError(f'{name} is {value!r}; give a whole number, {least} or more.')
  return int(value)


def _check_given(name: str, value: np.ndarray | None, wanted: bool):
  """Raises unless ids or keys are given to an index that has them, and only then."""
  if wanted != (value is not None):
    raise ValueError(f'The index was built {"with" if wanted else "without"} {name}; '
                     f'{"give" if wanted else "leave out"} the {name} of the rows to add.')


def _int64(name: str, values: np.ndarray) -> np.ndarray:
  """Checked ids as a new array, [n] int64."""
  if values.ndim != 1 or values.dtype.kind not in 'iu' or (
      values.max(initial=0) > np.iinfo(np.int64).max):
    raise ValueError(f'{name} are {values.dtype} {values.shape}; give integers of 64 bits in one '
                     'dimension, and index.ids[mask] in place of a mask.')
  return values.astype(np.int64)


def _checked_ids(ids: np.ndarray, n: int) -> np.ndarray:
  """The ids of n rows, which must differ."""
  ids = _int64('ids', np.asarray(ids))
  if len(ids) != n:
    raise ValueError(f'{n} codes came with {len(ids)} ids; give one id per code.')
  ascending = np.sort(ids)
  repeated = ascending[1:][ascending[1:] == ascending[:-1]]
  if len(repeated):
    raise ValueError(f'Several rows have the id {repeated[0]}; give each row an id of its own.')
  return ids


def _checked_collection(name: str, ids: Collection[int]) -> np.ndarray:
  """The different ids in a collection, ascending."""
  if not isinstance(ids, np.ndarray):
    ids = np.asarray(list(ids) if isinstance(ids, Collection) else ids)
    if ids.shape == (0,):
      ids = ids.astype(np.int64)
  return np.unique(_int64(name, ids))


def _checked_keys(keys: np.ndarray, n: int, b: int | None = None) -> np.ndarray:
  """A copy of the keys of n rows; `b` is the size of the keys of an index."""
  keys = np.array(keys)
  if keys.dtype != np.int8 or keys.ndim != 2 or len(keys) != n or (
      keys.shape[1] != b if b else not 1 <= keys.shape[1] <= MOST_KEY_BYTES):
    raise ValueError(f'keys are {keys.dtype} {keys.shape}; give int8 [{n}, '
                     f'{b or f"1 to {MOST_KEY_BYTES}"}], a row for each code.')
  return keys


def _query_keys(index: Index, keys: np.ndarray | None, q: int) -> np.ndarray | None:
  """The checked keys of q queries, or None where they are of no use."""
  if keys is None or index.keys is None:
    return None
  return _checked_keys(keys, q, index.keys.shape[1])


def _checked_outputs(outputs: np.ndarray, bits: int) -> np.ndarray:
  """Outputs of queries as float64, [q, c]."""
  outputs = np.asarray(outputs)
  if outputs.ndim != 2 or outputs.shape[1] != bits or outputs.dtype.kind != 'f':
    raise ValueError(f'outputs are {outputs.dtype} {outputs.shape}; give real numbers [q, {bits}], '
                     'one for each bit of the index.')
  wrong = outputs[~np.isfinite(outputs)]
  if wrong.size:
    raise ValueError(f'outputs have the value {wrong[0]}; give finite numbers.')
  return outputs.astype(np.float64)


def _has_id(index: Index, ids: np.ndarray) -> np.ndarray:
  """Whether each row has one of some ids, [n] bool."""
  if index.given_ids is not None:
    return np.isin(index.given_ids, ids)
  has_id = np.zeros(len(index), bool)
  has_id[ids[(ids >= 0) & (ids < len(index))]] = True
  return has_id


def _allowed_buckets(index: Index, allowed: Collection[int] | None) -> buckets_lib.Buckets:
  """The rows that may be answered, by their codes."""
  if allowed is None:
    return index.buckets
  return buckets_lib.keep(index.buckets, _has_id(index, _checked_collection('allowed', allowed)))


def _different(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The different codes among queries [w, q], and the number of each query's code, [q]."""
  if queries.shape[1] == 1:
    return queries, np.zeros(1, np.intp)
  if len(queries) == 1:
    different, number = np.unique(queries[0], return_inverse=True)  # faster than by axis
    return different[None], number
  return np.unique(queries, axis=1, return_inverse=True)


def _by_key(values: np.ndarray, rows: np.ndarray, keys: np.ndarray | None,
            key: np.ndarray | None, k: int) -> tuple[np.ndarray, np.ndarray]:
  """The first k of rows that are ordered by (value, row), ordered by (value, key, row).

  Args:
    values: a distance of each row, [r].
    rows: row numbers, [r].
    keys: second keys of all rows, [n, b].
    key: the second key of the query, [b], or None.
    k: not more than r.
  """
  if key is None:
    return values[:k], rows[:k]
  apart = np.empty(len(rows), np.int64)
  for i in range(0, len(rows), _BLOCK):
    difference = keys[rows[i:i + _BLOCK]].astype(np.int32) - key
    apart[i:i + _BLOCK] = np.einsum('rb,rb->r', difference, difference)
  level = np.cumsum(np.diff(values, prepend=values[:1]) > 0)
  apart += level * (255**2 * len(key) + 1)
  near = np.arange(len(rows))
  if k < len(rows):
    near = np.flatnonzero(apart <= np.partition(apart, k - 1)[k - 1])
  near = near[np.argsort(apart[near], kind='stable')[:k]]
  return values[near], rows[near]


def _ids_of(index: Index, rows: np.ndarray) -> np.ndarray:
  """The ids of rows, in the shape of the row numbers."""
  return rows if index.given_ids is None else index.given_ids[rows]
