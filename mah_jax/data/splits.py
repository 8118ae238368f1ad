"""Protocols: which rows of a dataset are queries, which the database, which are for training."""

import hashlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax import errors

TRAINING = 1  # folded into the split seed, so that this draw leaves queries and database alone


class Protocol(NamedTuple):
  """A split of a dataset's rows.

  queries: the row of each test query, [q] int64.
  database: the row of each database row, [n] int64: database row i is row database[i] of the
    dataset.
  content: `fingerprint` of the dataset where copies may differ, else empty.
  training_part: the rows for training, in database order, [t] int64; None: the whole database.
  """
  name: str
  seed: int
  queries: np.ndarray
  database: np.ndarray
  content: str = ''
  training_part: np.ndarray | None = None

  @property
  def training(self) -> np.ndarray:
    """The rows whose labels methods may see, a part of the database or all of it, [t] int64."""
    return self.database if self.training_part is None else self.training_part

  @property
  def id(self) -> str:
    """The sha256 of rows and content: equal ids mean equal rows in equal order."""
    digest = hashlib.sha256()
    # The leading count tells where the queries end; '<i8' is the same on every platform.
    for rows in ([len(self.queries)], self.queries, self.database):
      digest.update(np.asarray(rows).astype('<i8').tobytes())
    digest.update(self.content.encode())
    if self.training_part is not None:
      digest.update(b'training' + self.training_part.astype('<i8').tobytes())
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
  is_query = _draw_per_class(labels, per_class, rng,
                             lambda k: _too_few(labels, k, per_class, k))
  lost = np.flatnonzero(~labels[~is_query].any(axis=0))  # classes whose rows others drew
  if len(lost):
    raise _too_few(labels, lost[0], per_class, lost[0])
  return _protocol(is_query, rng, seed, name)


def within_database(base: Protocol, labels: np.ndarray,
                    draw: Callable[[np.ndarray], Protocol]) -> Protocol:
  """A split of another protocol's database, so that settings are chosen without its queries.

  Args:
    base: the other protocol, whose queries are left out.
    labels: one-hot or multi-hot, of all rows, [rows, L].
    draw: labels of the database [n, L] -> a split of its rows.
  """
  inner = draw(labels[base.database])
  return inner._replace(queries=base.database[inner.queries],
                        database=base.database[inner.database])


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


def with_training_per_class(split: Protocol, labels: np.ndarray, per_class: int) -> Protocol:
  """Draws `per_class` database rows of every class for training; the split stays as it is.

  A row with several labels is drawn at most once.

  Args:
    split: queries and database.
    labels: one-hot or multi-hot, [rows, L].
    per_class: rows drawn for each class.

  Raises:
    errors.InputError: a class has too few rows in the database.
  """
  of_database = labels[split.database]  # [n, L]
  return _with_training(split, _draw_per_class(
      of_database, per_class, _training_generator(split.seed),
      lambda k: _too_few_for_training(split, of_database[:, k], per_class, f' of class {k}')))


def with_random_training(split: Protocol, labels: np.ndarray, count: int) -> Protocol:
  """Draws `count` database rows that have a label for training; the split stays as it is.

  Args:
    split: queries and database.
    labels: multi-hot, [rows, L].
    count: rows drawn.

  Raises:
    errors.InputError: the database has fewer rows with a label.
  """
  has_label = labels[split.database].any(axis=1)  # [n]
  return _with_training(split, _draw_per_class(
      has_label[:, None], count, _training_generator(split.seed),
      lambda k: _too_few_for_training(split, has_label, count, ' with a label')))


def check_chosen(rows: np.ndarray, labels: np.ndarray, class_names: Sequence[str]):
  """Raises InputError if a list of queries leaves no image of a class to the database.

  Args:
    rows: the row of each query, [q]; rows without a label are allowed and count 0 in scores.
    labels: [rows, L].
    class_names: [L].
  """
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


def database_only(total: int, name: str) -> Protocol:
  """Makes all of `total` rows the database, in their order; nothing is drawn."""
  return Protocol(name, 0, np.zeros(0, np.int64), np.arange(total, dtype=np.int64))


def _generator(seed: int) -> np.random.Generator:
  if seed < 0:
    raise errors.UsageError(f'The split seed {seed} is negative; choose 0 or more.')
  return np.random.default_rng(seed)


def _training_generator(seed: int) -> np.random.Generator:
  return np.random.default_rng((seed, TRAINING))


def _draw_per_class(labels: np.ndarray, per_class: int, rng: np.random.Generator,
                    too_few: Callable[[int], errors.InputError]) -> np.ndarray:
  """Draws so many rows of each class, [rows, L] -> [rows] bool; raises too_few(class)."""
  drawn = np.zeros(len(labels), dtype=bool)  # [rows]
  for k in range(labels.shape[1]):
    free = np.flatnonzero((labels[:, k] != 0) & ~drawn)
    if len(free) < per_class:
      raise too_few(k)
    drawn[rng.choice(free, per_class, replace=False)] = True
  return drawn


def _with_training(split: Protocol, drawn: np.ndarray) -> Protocol:
  """The split with the drawn database rows, [n] bool, for training."""
  return split._replace(training_part=None if drawn.all() else split.database[drawn])


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


def _too_few_for_training(split: Protocol, eligible: np.ndarray, count: int,
                          which: str) -> errors.InputError:
  return errors.InputError(
      f'The protocol {split.name} draws {count:,} database rows{which} for training, but there '
      f'are {np.count_nonzero(eligible):,}, less those that another class draws: add rows or '
      'choose another protocol.')
