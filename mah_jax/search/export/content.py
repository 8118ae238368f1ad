"""The content of an export: the rows of a database as other programs get them."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from mah_jax.search import database as database_lib
from mah_jax.search import searcher as searcher_lib


class Content(NamedTuple):
  """The rows of a database, and those of its codes that are exported.

  kind: 'learned' or 'encoded', the kind of the codes.
  codes: packed codes by their number of bits, {c: [n, ceil(c / 8)] uint8}; the first bit is the
    highest of its byte, and zeros fill the last byte.
  keys: second keys, [n, b] int8; b = 0 where there are none.
  names: as in `database.Database`, but valid text.
  added_from: the folder that each row was added from; empty for the rows of the run's own dataset.
  labels: the labels of each row.
  """
  kind: str
  codes: dict[int, np.ndarray]
  keys: np.ndarray
  names: list[str]
  added_from: list[str]
  labels: list[tuple[str, ...]]

  def __len__(self) -> int:
    return len(self.names)


def select(searcher: searcher_lib.Searcher, length: int = 0, database: str = '') -> Content:
  """The content of an export.

  Args:
    searcher: a run and its database.
    length: bits of the codes; 0: of every length that the run has.
    database: 'learned' or 'encoded'; empty: the learned ones where there are any.
  """
  rows = searcher.database
  lengths = [length] if length else searcher.code_lengths
  return Content(
      searcher.kind(database), {c: searcher.packed(c, database) for c in lengths}, rows.keys,
      list(map(_text, rows.names)),
      ['' if place == database_lib.OWN else _text(rows.folders[place]) for place in rows.folder_of],
      [rows.labels_of(row) for row in range(len(rows.names))])


def _text(name: str) -> str:
  """A name whose bytes are no valid text, with a sign in the place of each that is not."""
  return name.encode(errors='surrogateescape').decode(errors='replace')


def json_lines(content: Content) -> bytes:
  """All that is known of every row but its codes and its key, a line each."""
  return ''.join(
      json.dumps({'row': row, 'name': name, 'added_from': added_from, 'labels': labels},
                 ensure_ascii=False) + '\n'
      for row, (name, added_from, labels) in enumerate(
          zip(content.names, content.added_from, content.labels))).encode()
