"""Protocols: which rows of a dataset are queries and which are the database."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax import errors


class Protocol(NamedTuple):
  """A split of a dataset's rows.

  queries: the row of each test query, [q] int64.
  database: the row of each database row, [n] int64: database row i is row database[i] of the
    dataset.
  content: `fingerprint` of the dataset where copies may differ, else empty.
  """
  name: str
  seed: int
  queries: np.ndarray
  database: np.ndarray
  content: str = ''

  @property
  def id(self) -> str:
    """The sha256 of rows and content: equal ids mean equal rows in equal order."""
    digest = hashlib.sha256()
    # The leading count tells where the queries end; '<i8' is the same on every platform.
    for rows in ([len(self.queries)], self.queries, self.database):
      digest.update(np.asarray(rows).astype('<i8').tobytes())
    digest.update(self.content.encode())
    return digest.hexdigest()


def fingerprint(names: Sequence[str], labels: np.ndarray) -> str:
  """The sha256 of each row's file name and labels [rows, L], in order."""
  digest = hashlib.sha256(np.asarray(labels.shape).astype('<i8').tobytes())
  digest.update(labels.astype(np.uint8).tobytes())
  # No file name holds a zero byte; names that are not UTF-8 keep their bytes.
  digest.update('\0'.join(names).encode(errors='surrogateescape'))
  return digest.hexdigest()


def balanced(labels: np.ndarray, per_class: int, seed: int, name: str) -> Protocol:
  """Draws `per_class` queries of every class; all other rows are the database.

  Queries and database are in random order, because metrics that break ties by database order
  would reward a database sorted by class. A row with several labels is drawn at most once.

  Args:
    labels: one-hot or multi-hot, [rows, L].
    per_class: query rows drawn for each class.
    seed: seed of the draw and of both orders, 0 or more.
    name: name of the protocol.

  Raises:
    errors.UsageError: the seed is negative.
    errors.InputError: a class has too few rows.
  """
  rng = _generator(seed)
  is_query = np.zeros(len(labels), dtype=bool)  # [rows]
  for k in range(labels.shape[1]):
    free = np.flatnonzero((labels[:, k] != 0) & ~is_query)
    if len(free) < per_class:
      raise _too_few(labels, k, per_class, k)
    is_query[rng.choice(free, per_class, replace=False)] = True
  lost = np.flatnonzero(~labels[~is_query].any(axis=0))  # classes whose rows others drew
  if len(lost):
    raise _too_few(labels, lost[0], per_class, lost[0])
  return _protocol(is_query, rng, seed, name)


def random_queries(labels: np.ndarray, count: int, seed: int, name: str, *,
                   labelled_only: bool) -> Protocol:
  """Draws `count` queries whatever their class, in random order like the database.

  Args:
    labels: multi-hot, [rows, L].
    count: number of queries.
    seed: seed of the draw and of both orders, 0 or more.
    name: name of the protocol.
    labelled_only: whether rows without any label are left to the database.

  Raises:
    errors.UsageError: the seed is negative.
    errors.InputError: the queries would leave no row to the database.
  """
  rng = _generator(seed)
  rows = np.flatnonzero(labels.any(axis=1)) if labelled_only else np.arange(len(labels))
  if len(rows) <= count:
    raise errors.InputError(
        f'The protocol {name} draws {count:,} queries and leaves the rest to the database, '
        f'but there are {len(rows):,} rows to draw from: add rows or choose another protocol.')
  is_query = np.zeros(len(labels), dtype=bool)
  is_query[rng.choice(rows, count, replace=False)] = True
  return _protocol(is_query, rng, seed, name)


def fraction(labels: np.ndarray, fraction: float, seed: int, name: str,
             class_names: Sequence[str]) -> Protocol:
  """Draws a share of every class as queries, in random order like the database.

  Each class gets its share rounded, but at least 1 query, and keeps at least 1 row in the
  database. A row with several labels counts for each of them, so that some classes exceed
  their share; the most frequent draws first, which brings much of the others' shares along.

  Args:
    labels: one-hot or multi-hot, [rows, L]; rows without labels stay in the database.
    fraction: share of the queries, above 0 and below 1.
    seed: seed of the draw and of both orders, 0 or more.
    name: name of the protocol.
    class_names: [L], for messages.

  Raises:
    errors.UsageError: the seed or the share is out of range.
    errors.InputError: a class has too few rows.
  """
  if not 0 < fraction < 1:
    raise errors.UsageError(f'The share {fraction} of rows that become queries is not between '
                            '0 and 1; choose one such as 0.1.')
  rng = _generator(seed)
  has = labels != 0                                            # [rows, L]
  total = has.sum(axis=0)                                      # [L]
  wanted = np.maximum(1, np.rint(fraction * total)).astype(int)
  drawn = np.zeros_like(total)
  is_query = np.zeros(len(labels), dtype=bool)
  for k in np.argsort(-total, kind='stable'):
    for row in rng.permutation(np.flatnonzero(has[:, k] & ~is_query)):
      if drawn[k] >= wanted[k]:
        break
      if (drawn[has[row]] + 1 < total[has[row]]).all():        # none loses its last row
        is_query[row] = True
        drawn += has[row]
    if not drawn[k]:
      raise _too_few(labels, k, 1, repr(class_names[k]))
  return _protocol(is_query, rng, seed, name)


def check_chosen(rows: np.ndarray, labels: np.ndarray, names: Sequence[str],
                 class_names: Sequence[str]):
  """Raises InputError unless each query that a list names has something to find.

  Args:
    rows: the row of each query, [q].
    labels: [rows, L].
    names: file name of each row.
    class_names: [L].
  """
  unlabelled = rows[~labels[rows].any(axis=1)]
  if len(unlabelled):
    raise errors.InputError(f'The list of queries names {names[unlabelled[0]]}, which has no '
                            'label and so nothing to find: remove it.')
  lost = labels.any(axis=0) & ~np.delete(labels, rows, axis=0).any(axis=0)  # [L]
  if lost.any():
    raise errors.InputError(f'The list of queries names all images of class '
                            f'{class_names[lost.argmax()]!r}: leave some to the database.')


def chosen(rows: np.ndarray, total: int, seed: int, name: str) -> Protocol:
  """Makes `rows` [q] the queries, in their order; the others of `total` rows are the database.

  Raises:
    errors.UsageError: the seed is negative.
    errors.InputError: there would be no query or no database.
  """
  rng = _generator(seed)
  if not 0 < len(rows) < total:
    raise errors.InputError(
        f'{len(rows):,} of {total:,} rows are chosen as queries, but at least one must be a '
        'query and one stay in the database: change the list of queries.')
  database = rng.permutation(np.setdiff1d(np.arange(total), rows))
  return Protocol(name, seed, np.asarray(rows, np.int64), database.astype(np.int64))


def _generator(seed: int) -> np.random.Generator:
  if seed < 0:
    raise errors.UsageError(f'The split seed {seed} is negative; choose 0 or more.')
  return np.random.default_rng(seed)


def _protocol(is_query: np.ndarray, rng: np.random.Generator, seed: int,
              name: str) -> Protocol:
  """The protocol whose queries and database, told apart by is_query [rows], are shuffled."""
  queries = rng.permutation(np.flatnonzero(is_query)).astype(np.int64)
  database = rng.permutation(np.flatnonzero(~is_query)).astype(np.int64)
  return Protocol(name, seed, queries, database)


def _too_few(labels: np.ndarray, k: int, per_class: int,
             name: str | int) -> errors.InputError:
  return errors.InputError(
      f'Class {name} has {np.count_nonzero(labels[:, k])} rows, but needs {per_class + 1} '
      f'that no other class draws ({per_class} for the queries, 1 for the database): add '
      'rows of this class or drop it.')
