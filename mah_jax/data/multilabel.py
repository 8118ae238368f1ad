"""MIRFlickr-25K and NUS-WIDE as published: which image bears which labels."""

import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax import errors
from mah_jax.data import images

VERSION = '1.0.0'  # of the prepared folders
FETCH = 'python -m mah_jax.data.fetch'


class Listing(NamedTuple):
  """The rows of a dataset.

  names: path of each image relative to `root`, with slashes.
  labels: [rows, L] uint8 0/1.
  class_names: [L], sorted.
  """
  names: list[str]
  labels: np.ndarray
  class_names: tuple[str, ...]
  root: pathlib.Path


class Layout(NamedTuple):
  """How a dataset is published, and what a complete copy of it holds.

  title: name in messages.
  prepared: folder, below the data folder, of the dataset that TFDS prepares.
  read: (data folder, this layout) -> Listing.
  rows, files: images and label files as published.
  kept_rows, kept_labels: images and labels that are used.
  """
  title: str
  prepared: str
  read: Callable[[pathlib.Path, 'Layout'], Listing]
  rows: int
  files: int
  kept_rows: int
  kept_labels: int


def read(name: str, data_dir: pathlib.Path) -> Listing:
  """Reads the labels of one of `LAYOUTS` from the official files below `data_dir`.

  Raises:
    errors.InputError: files are absent, incomplete or not what they should be.
  """
  layout = LAYOUTS[name]
  return layout.read(data_dir, layout)


def unusable(listing: Listing, on_image: Callable[[], None]) -> dict[str, str]:
  """Decodes every image once: the reason for each that is absent or cannot be decoded.

  Args:
    listing: the rows.
    on_image: called after each image.

  Raises:
    errors.InputError: they are too many.
  """
  rows = len(listing.names)
  encoded = images.Encoded(
      lambda row: (listing.root / listing.names[row]).read_bytes(), listing.names)
  reasons = images.usable(encoded, on_image)
  skipped = {listing.names[row]: reason for row, reason in sorted(reasons.items())}
  images.refuse_many(skipped, rows, f'add or replace them in {listing.root}')
  return skipped


def find_prepared(name: str, data_dir: pathlib.Path) -> pathlib.Path:
  """The folder that TFDS has prepared; InputError with the command if there is none."""
  layout = LAYOUTS[name]
  folder = data_dir / layout.prepared
  if not folder.is_dir():  # unfinished ones have another name
    raise errors.InputError(
        f'No prepared {layout.title} in {data_dir} (looked for {layout.prepared}/): put the '
        f'official files there and run {FETCH} {name} --data_dir={data_dir}')
  return folder


def _read_mirflickr(data_dir: pathlib.Path, layout: Layout) -> Listing:
  """All rows; a file of the annotations lists the numbers of the images with its label.

  The 38 labels of the literature are all 38 files: 24 labels, and for 14 of them a second
  file `*_r1.txt` with the images in which the label is prominent. These are a part of the
  first, so they change no similarity, only the label vectors.
  """
  folder = _find(data_dir, layout, '*.txt', (
      'annotations', 'mirflickr25k_annotations_v080', 'mirflickr/annotations', 'mirflickr',
      'mirflickr25k/annotations', 'mirflickr25k_annotations_v080/annotations')).parent
  root = _find(data_dir, layout, 'im*.jpg', (
      'mirflickr', 'mirflickr25k', 'mirflickr25k/mirflickr', '.')).parent
  paths = [path for path in folder.glob('*.txt') if not path.stem.lower().startswith('readme')]
  paths = _complete(paths, folder, layout)
  labels = np.zeros((layout.rows, len(paths)), np.uint8)
  for k, path in enumerate(paths):
    labels[_image_numbers(path, layout.rows) - 1, k] = 1
  names = [f'im{number}.jpg' for number in range(1, layout.rows + 1)]
  return Listing(names, labels, tuple(path.stem for path in paths), root)


def _image_numbers(path: pathlib.Path, rows: int) -> np.ndarray:
  """The numbers, 1 to `rows`, in a file with one of them per line."""
  numbers = []
  for i, line in enumerate(_text(path).splitlines(), start=1):
    text = line.strip()
    if not text:
      continue
    if not (text.isdecimal() and 1 <= int(text) <= rows):
      raise _damaged(path, f'has {text!r} in line {i} instead of an image number from 1 to '
                     f'{rows:,}')
    numbers.append(int(text))
  return np.array(numbers, np.int64)


def _read_nuswide(data_dir: pathlib.Path, layout: Layout) -> Listing:
  """The rows with at least one of the most frequent labels; ties go to the first by name."""
  folder = _find(data_dir, layout, 'Labels_*.txt', (
      'Groundtruth/AllLabels', 'nuswide/Groundtruth/AllLabels',
      'NUS-WIDE/Groundtruth/AllLabels')).parent
  base = folder.parents[1]
  image_list = _find(base, layout, 'Image[lL]ist.txt', ('ImageList',))
  names = [line.strip().replace('\\', '/') for line in _text(image_list).splitlines()]
  names = [name for name in names if name]
  _check_lines(image_list, len(names), layout.rows)
  root = _image_root(base, names, layout)
  paths = _complete(folder.glob('Labels_*.txt'), folder, layout)
  labels = np.stack([_flags(path, layout.rows) for path in paths], axis=1)  # [rows, files]
  frequent = np.argsort(-labels.sum(axis=0, dtype=np.int64), kind='stable')
  kept = np.sort(frequent[:layout.kept_labels])
  labels = labels[:, kept]
  rows = np.flatnonzero(labels.any(axis=1))
  if len(rows) != layout.kept_rows:
    raise _damaged(folder, f'gives {len(rows):,} images one of the {layout.kept_labels} most '
                   f'frequent labels instead of {layout.kept_rows:,}')
  class_names = tuple(paths[k].stem.removeprefix('Labels_') for k in kept)
  return Listing([names[row] for row in rows], labels[rows], class_names, root)


def _flags(path: pathlib.Path, rows: int) -> np.ndarray:
  """The 0s and 1s, [rows] uint8, in a file with one of them per line."""
  values = np.array(path.read_bytes().split())
  _check_lines(path, len(values), rows)
  bad = np.flatnonzero((values != b'0') & (values != b'1'))
  if len(bad):
    value = values[bad[0]].decode(errors='replace')
    raise _damaged(path, f'has {value!r} in line {bad[0] + 1} instead of 0 or 1')
  return (values == b'1').astype(np.uint8)


def _image_root(base: pathlib.Path, names: Sequence[str], layout: Layout) -> pathlib.Path:
  """The folder that the names of the image list are relative to."""
  for root in (base / 'Flickr', base / 'images', base):
    if root.is_dir() and any((root / name).is_file() for name in names):
      return root
  raise errors.InputError(
      f'No image of {layout.title} is in {base} (looked for {names[0]} and the others of its '
      'image list in Flickr/, images/ and that folder itself): put the images there.')


def _find(folder: pathlib.Path, layout: Layout, pattern: str,
          places: Sequence[str]) -> pathlib.Path:
  """A file like `pattern`, from the first of some places below a folder that has any."""
  for place in places:
    for path in (folder / place).glob(pattern):
      return path
  raise errors.InputError(
      f'No {pattern} of {layout.title} in {folder} (looked in '
      f'{", ".join(f"{place}/" for place in places)}): unpack the official files there.')


def _complete(paths: Sequence[pathlib.Path], folder: pathlib.Path,
              layout: Layout) -> list[pathlib.Path]:
  """The label files by name; InputError unless there are as many as were published."""
  paths = sorted(paths, key=lambda path: path.stem)
  surplus = len(paths) - layout.files
  if surplus:
    problem = f'{surplus} too many' if surplus > 0 else f'{-surplus} missing'
    raise _damaged(folder, f'has {len(paths)} label files instead of the {layout.files} of '
                   f'{layout.title}, {problem}')
  return paths


def _check_lines(path: pathlib.Path, found: int, expected: int) -> None:
  if found != expected:
    raise _damaged(path, f'has {found:,} lines instead of {expected:,}')


def _text(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding='utf-8-sig')
  except UnicodeDecodeError as error:
    raise _damaged(path, f'is not a text file ({error})') from error


def _damaged(path: pathlib.Path, problem: str) -> errors.InputError:
  return errors.InputError(f'{path} {problem}: unpack the official files again.')


LAYOUTS = {
    'mirflickr': Layout(
        'MIRFlickr-25K', f'mir_flickr/{VERSION}', _read_mirflickr, rows=25_000, files=38,
        kept_rows=25_000, kept_labels=38),
    'nuswide': Layout(
        'NUS-WIDE', f'nus_wide/{VERSION}', _read_nuswide, rows=269_648, files=81,
        kept_rows=195_834, kept_labels=21),
}
