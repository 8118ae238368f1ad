"""The record of a dataset.

Five kinds of numbers count images, and each has one name in this package:
  file: number in a listing of files, the unusable ones included;
  row: number in the dataset, 0 to rows - 1;
  database row: number in the database, 0 to n - 1, an index into `protocol.database`;
  training row: number among the rows for training, an index into `protocol.training`; methods
    and training see no others and call these their database rows;
  position: number among the sampled training rows of a round, 0 to m - 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax.data import images as images_lib
from mah_jax.data import splits

Images = np.ndarray | images_lib.Encoded


class Dataset(NamedTuple):
  """A dataset; the reader of its files leaves the last four fields to `datasets.load`.

  images: [rows, h, w, ch] uint8, or files that are decoded when they are asked for.
  labels: 0/1, [rows, L] uint8; a row may have several labels or none. L = 0 where the dataset
    is unlabelled.
  class_names: [L].
  names: file name of each row; empty where rows are no files.
  report: which images were left out, in words; empty if none were.
  name: name of the dataset.
  mean, std: per channel, of pixels scaled to 0..1.
  protocol: which rows are queries, which are the database and which are for training.
  """
  images: Images
  labels: np.ndarray
  class_names: tuple[str, ...]
  names: Sequence[str] = ()
  report: str = ''
  name: str = ''
  mean: tuple[float, ...] = ()
  std: tuple[float, ...] = ()
  protocol: splits.Protocol | None = None

  @property
  def is_labelled(self) -> bool:
    """Whether there are classes; without them nothing can be scored."""
    return self.labels.shape[1] > 0

  def row_names(self, rows: Iterable[int]) -> list[str] | list[int]:
    """The file name of each of these rows or, where rows are no files, the row itself."""
    return [self.names[row] if self.names else int(row) for row in rows]
