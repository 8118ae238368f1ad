"""Batches of decoded images, made by threads a few batches ahead of their use."""

import collections
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent import futures
from typing import NamedTuple

import numpy as np

from mah_jax import cores
from mah_jax import errors
from mah_jax.data import images as images_lib


class _Batch(NamedTuple):
  """A batch in the making: rows [B], pixels [B, side, side, channels], a task for each row."""
  rows: np.ndarray
  pixels: np.ndarray
  tasks: list[futures.Future]


class Stream:
  """Decodes batches of rows in order; iterating over it gives their pixels.

  At most `ahead` batches are in the making or wait to be taken, whatever the number of rows.
  Leaving early drops the batches that have not begun and ends the threads.
  """

  def __init__(self, images: images_lib.Encoded, batches: Iterable[np.ndarray], *, side: int,
               channels: int, threads: int = 0, ahead: int = 4,
               on_bad: Callable[[int, str], None] | None = None):
    """Prepares a stream; nothing is read before it is iterated over.

    Args:
      images: the images to decode.
      batches: rows of `images`, [B] each.
      side: height and width of the decoded images.
      channels: 3 or 1.
      threads: how many threads decode; 0: one for each core.
      ahead: how many batches are decoded in advance.
      on_bad: called with the row and the reason of an image that cannot be decoded, whose
        pixels are then 0; None: such an image raises InputError when its batch is due.
    """
    self._encoded, self._batches, self._ahead = images, batches, ahead
    self._side, self._channels = side, channels
    self._threads, self._on_bad = threads or cores.usable(), on_bad

  def __iter__(self) -> Iterator[np.ndarray]:
    """Yields pixels [B, side, side, channels] uint8."""
    pool = futures.ThreadPoolExecutor(self._threads)
    started = (self._start(pool, rows) for rows in self._batches)
    try:
      waiting = collections.deque(itertools.islice(started, self._ahead))
      while waiting:
        pixels = self._finish(waiting.popleft())
        waiting.extend(itertools.islice(started, 1))
        yield pixels
    finally:
      pool.shutdown(cancel_futures=True)

  def _start(self, pool: futures.ThreadPoolExecutor, rows: np.ndarray) -> _Batch:
    pixels = np.empty((len(rows), self._side, self._side, self._channels), np.uint8)

    def decode(i: int):
      pixels[i] = self._encoded.decode(rows[i], self._side, self._channels)

    return _Batch(rows, pixels, [pool.submit(decode, i) for i in range(len(rows))])

  def _finish(self, batch: _Batch) -> np.ndarray:
    for i, task in enumerate(batch.tasks):
      try:
        task.result()
      except errors.InputError as error:
        if self._on_bad is None:
          raise
        self._on_bad(int(batch.rows[i]), str(error.__cause__))
        batch.pixels[i] = 0
    return batch.pixels
