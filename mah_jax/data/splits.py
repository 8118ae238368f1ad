"""Protocols: which rows of a dataset are queries and which are the database."""

import hashlib
from typing import NamedTuple

import numpy as np

from mah_jax import errors


class Protocol(NamedTuple):
  """A split of a dataset's rows.

  queries: row numbers of the test queries, [q] int64.
  database: row numbers of the points to be searched, [n] int64.
  """
  name: str
  seed: int
  queries: np.ndarray
  database: np.ndarray

  @property
  def id(self) -> str:
    """sha256 of the row numbers: equal ids mean equal rows in equal order."""
    digest = hashlib.sha256()
    # The leading count tells where the queries end; '<i8' is the same on every platform.
    for numbers in ([len(self.queries)], self.queries, self.database):
      digest.update(np.asarray(numbers).astype('<i8').tobytes())
    return digest.hexdigest()


def balanced(labels: np.ndarray, per_class: int, seed: int, name: str) -> Protocol:
  """Draws `per_class` queries of every class; all other rows are the database.

  Both are in random order, because metrics that break ties by database order would
  reward a database sorted by class. A row with several labels is drawn at most once.

  Args:
    labels: one-hot or multi-hot, [rows, L].
    per_class: query rows drawn for each class.
    seed: of the draw and of both orders, 0 or more.
    name: name of the protocol.

  Raises:
    errors.UsageError: the seed is negative.
    errors.InputError: a class has too few rows.
  """
  if seed < 0:
    raise errors.UsageError(f'The split seed {seed} is negative; choose 0 or more.')
  rng = np.random.default_rng(seed)
  is_query = np.zeros(len(labels), dtype=bool)  # [rows]
  for k in range(labels.shape[1]):
    free = np.flatnonzero((labels[:, k] != 0) & ~is_query)
    if len(free) < per_class:
      raise _too_few(labels, k, per_class)
    is_query[rng.choice(free, per_class, replace=False)] = True
  gone = np.flatnonzero(~labels[~is_query].any(axis=0))  # other classes drew the rest
  if len(gone):
    raise _too_few(labels, gone[0], per_class)
  queries = rng.permutation(np.flatnonzero(is_query)).astype(np.int64)
  database = rng.permutation(np.flatnonzero(~is_query)).astype(np.int64)
  return Protocol(name, seed, queries, database)


def _too_few(labels: np.ndarray, k: int, per_class: int) -> errors.InputError:
  return errors.InputError(
      f'Class {k} has {np.count_nonzero(labels[:, k])} rows, but needs {per_class + 1} '
      f'that no other class draws ({per_class} for the queries, 1 for the database): add '
      'rows of this class or drop it.')
