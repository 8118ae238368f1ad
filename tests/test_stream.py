"""Streams of decoded batches: their order, bounds, errors and ends."""

import threading
import time

import image_files
import numpy as np
import pytest

from mah_jax import cores
from mah_jax import errors
from mah_jax.data import images
from mah_jax.data import stream

ROWS = 60
PIXELS = np.random.default_rng(0).integers(0, 256, (ROWS, 8, 8, 3), dtype=np.uint8)
FILES = [image_files.encode(pixels) for pixels in PIXELS]


class Source:
  """Files that count how many reads have begun."""

  def __init__(self, files=FILES, before=lambda row: None):
    self.reads = []
    self._files, self._before = files, before
    self.images = images.Encoded(self._read, [f'{row}.png' for row in range(len(files))])

  def _read(self, row):
    self.reads.append(row)  # atomic
    self._before(row)
    return self._files[row]


def batches(size, rows=ROWS):
  return [np.arange(start, min(start + size, rows)) for start in range(0, rows, size)]


def start(source, parts, **options):
  return stream.Stream(source.images, parts, **{'side': 8, 'channels': 3, **options})


@pytest.mark.parametrize('threads, ahead', [(0, 4), (1, 1), (3, 1), (3, 100)])
def test_batches_come_in_order(threads, ahead):
  order = np.random.default_rng(1).permutation(ROWS)
  parts = [order[rows] for rows in batches(7)]
  # Some images take longer than the ones after them.
  source = Source(before=lambda row: time.sleep(0.002 * (row % 3)))
  stream_ = start(source, parts, threads=threads, ahead=ahead)
  decoded = list(stream_)
  assert [len(batch) for batch in decoded] == [7] * 8 + [4]
  for batch, rows in zip(decoded, parts):
    np.testing.assert_array_equal(batch, PIXELS[rows])


def test_equal_to_direct_decoding():
  source = Source()
  for batch, rows in zip(start(source, batches(11), side=5, channels=1), batches(11)):
    expected = [images.decode(FILES[row], 5, 1) for row in rows]
    np.testing.assert_array_equal(batch, expected)
    assert batch.shape == (len(rows), 5, 5, 1)


@pytest.mark.parametrize('ahead', [1, 3])
def test_no_more_batches_than_asked_for_are_in_flight(ahead):
  begun = []

  def count():
    for rows in batches(4):
      begun.append(rows)
      yield rows

  for taken, _ in enumerate(start(Source(), count(), ahead=ahead), start=1):
    assert len(begun) == min(taken + ahead, ROWS // 4)


def wait_until(condition):
  deadline = time.monotonic() + 5
  while not condition() and time.monotonic() < deadline:
    time.sleep(0.002)
  assert condition()


def test_threads_work_ahead_of_a_slow_user_and_then_rest():
  source = Source()
  stream_ = start(source, batches(4), ahead=3)
  iterator = iter(stream_)
  next(iterator)
  wait_until(lambda: len(source.reads) == 4 + 3 * 4)
  time.sleep(0.05)
  assert len(source.reads) == 4 + 3 * 4
  iterator.close()


def test_decodes_in_several_threads(monkeypatch):
  monkeypatch.setattr(cores, 'usable', lambda: 3)
  barrier = threading.Barrier(3)  # lets nobody pass before three have come
  source = Source(before=lambda row: barrier.wait(timeout=5))
  assert len(list(start(source, batches(6)))) == 10


def test_an_error_comes_at_its_batch():
  files = [*FILES]
  files[21] = b''
  delivered = []
  with pytest.raises(errors.InputError, match=r'^21\.png cannot be decoded \(the file is'):
    for batch in start(Source(files), batches(5), ahead=8):
      delivered.append(batch)
  assert len(delivered) == 4
  np.testing.assert_array_equal(np.concatenate(delivered), PIXELS[:20])


def test_bad_images_are_told_and_black_where_somebody_listens():
  files = [*FILES]
  files[3], files[21] = b'', b'rubbish'
  told = []
  rows = np.arange(ROWS)[::-1]
  stream_ = start(Source(files), [rows[:30], rows[30:]],
                  on_bad=lambda row, reason: told.append((row, reason)))
  decoded = np.concatenate(list(stream_))
  assert [row for row, _ in told] == [21, 3]
  assert told[1][1] == 'the file is empty'
  assert told[0][1].startswith('it is none of')
  expected = PIXELS[rows].copy()
  expected[[ROWS - 1 - 3, ROWS - 1 - 21]] = 0
  np.testing.assert_array_equal(decoded, expected)


def test_other_errors_are_not_taken_for_bad_images():
  def fail(row):
    raise ZeroDivisionError

  with pytest.raises(ZeroDivisionError):
    list(start(Source(before=fail), batches(5), on_bad=lambda row, reason: None))


@pytest.mark.parametrize('files', [FILES, [b''] * ROWS], ids=['closed', 'failed'])
def test_an_early_end_drops_the_rest_and_leaves_no_threads(files):
  before = threading.active_count()
  # The second and third batch would take 0.6 s.
  source = Source(files, before=lambda row: time.sleep(0.03 if row >= 20 else 0))
  iterator = iter(start(source, batches(20), threads=2, ahead=2))
  try:
    next(iterator)
  except errors.InputError:
    assert files is not FILES
  iterator.close()
  assert threading.active_count() == before
  reads = len(source.reads)
  assert reads < ROWS
  time.sleep(0.05)
  assert len(source.reads) == reads


def test_leaving_the_loop_is_an_early_end():
  before = threading.active_count()
  for _ in start(Source(), batches(5)):
    break
  assert threading.active_count() == before


def test_no_rows_no_batches():
  assert not list(start(Source(), []))
