"""MIRFlickr-25K and NUS-WIDE as published: which image bears which labels."""

import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax import errors
from mah_jax.data import images
from mah_jax.fetching import sources

VERSION = '1.0.0'  # version of the prepared folders


class Listing(NamedTuple):
  """The image files of a dataset and their labels, before any image is read.

  names: path of each file relative to `root`, with slashes.
  labels: 0/1, [files, L] uint8.
  class_names: [L], sorted.
  root: folder of the images.
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
  images, label_files: numbers of images and of label files as published.
  kept_images, kept_labels: numbers of images and of labels that are used.
  """
  title: str
  prepared: str
  read: Callable[[pathlib.Path, 'Layout'], Listing]
  images: int
  label_files: int
  kept_images: int
  kept_labels: int


def read(name: str, data_dir: pathlib.Path) -> Listing:
  """Reads the labels of one of `LAYOUTS` from the official files below `data_dir`.

  Raises:
    errors.InputError: files are absent, incomplete or not what they should be.
  """
  layout = LAYOUTS[name]
  return layout.read(data_dir, layout)


def unusable(listing: Listing, on_image: Callable[[], None]) -> dict[str, str]:
  """Decodes every file once, to learn which are absent or cannot be decoded.

  Args:
    listing: the files.
    on_image: called after each file.

  Returns:
    file name -> reason, for each file that cannot be used.

  Raises:
    errors.InputError: too many files cannot be used.
  """
  encoded = images.Encoded(
      lambda file: (listing.root / listing.names[file]).read_bytes(), listing.names)
  problems = images.unusable(encoded, range(len(encoded)), on_image)
  skipped = {listing.names[file]: reason for file, reason in problems.items()}
  images.refuse_many(skipped, len(encoded), f'add or replace them in {listing.root}')
  return skipped


def find_prepared(name: str, data_dir: pathlib.Path) -> pathlib.Path:
  """The folder that TFDS has prepared; raises InputError with the command if there is none."""
  layout = LAYOUTS[name]
  folder = data_dir / layout.prepared
  if not folder.is_dir():  # unfinished ones have another name
    raise errors.InputError(
        f'No prepared {layout.title} in {data_dir} (looked for {layout.prepared}/): put the '
        f'official files there and run {sources.COMMAND} {name} --data_dir={data_dir}')
  return folder


def _read_mirflickr(data_dir: pathlib.Path, layout: Layout) -> Listing:
  """Lists all images; an annotation file has the numbers of the images with its label.

  The 38 labels of the literature are all 38 files: 24 labels, and for 14 of them a second
  file `*_r1.txt` with the images in which the label is prominent. All of these images but four
  of people_r1 have the label itself too, so that the second files change the label vectors but
  hardly any similarity.
  """
  folder = _find(data_dir, layout, '*.txt', (
      'annotations', 'mirflickr25k_annotations_v080', 'mirflickr/annotations', 'mirflickr',
      'mirflickr25k/annotations', 'mirflickr25k_annotations_v080/annotations')).parent
  root = _find(data_dir, layout, 'im*.jpg', (
      'mirflickr', 'mirflickr25k', 'mirflickr25k/mirflickr', '.')).parent
  paths = [path for path in folder.glob('*.txt') if not path.stem.lower().startswith('readme')]
  paths = _complete(paths, folder, layout)
  labels = np.zeros((layout.images, len(paths)), np.uint8)  # [files, L]
  for k, path in enumerate(paths):
    labels[_image_numbers(path, layout.images) - 1, k] = 1
  names = [f'im{number}.jpg' for number in range(1, layout.images + 1)]
  return Listing(names, labels, tuple(path.stem for path in paths), root)


def _image_numbers(path: pathlib.Path, last: int) -> np.ndarray:
  """Reads a text file with an image number, 1 to `last`, on each line."""
  numbers = []
  for i, line in enumerate(_text(path).splitlines(), start=1):
    text = line.strip()
    if not text:
      continue
    if not (text.isdecimal() and 1 <= int(text) <= last):
      raise _damaged(path, f'has {text!r} in line {i} instead of an image number from 1 to '
                     f'{last:,}')
    numbers.append(int(text))
  return np.array(numbers, np.int64)


def _read_nuswide(data_dir: pathlib.Path, layout: Layout) -> Listing:
  """Lists the images with one of the most frequent labels at least.

  Labels that are equally frequent count by name, the first as more frequent.
  """
  folder = _find(data_dir, layout, 'Labels_*.txt', (
      'Groundtruth/AllLabels', 'nuswide/Groundtruth/AllLabels',
      'NUS-WIDE/Groundtruth/AllLabels')).parent
  base = folder.parents[1]
  image_list = _find(base, layout, 'Image[lL]ist.txt', ('ImageList',))
  names = [line.strip().replace('\\', '/') for line in _text(image_list).splitlines()]
  names = [name for name in names if name]
  _check_lines(image_list, len(names), layout.images)
  root = _image_root(base, names, layout)
  paths = _complete(folder.glob('Labels_*.txt'), folder, layout)
  labels = np.stack([_flags(path, layout.images) for path in paths], axis=1)  # [images, 81]
  frequent = np.argsort(-labels.sum(axis=0, dtype=np.int64), kind='stable')
  kept = np.sort(frequent[:layout.kept_labels])
  labels = labels[:, kept]
  lines = np.flatnonzero(labels.any(axis=1))  # the line of each file in the image list, [files]
  if len(lines) != layout.kept_images:
    raise _damaged(folder, f'gives {len(lines):,} images one of the {layout.kept_labels} most '
                   f'frequent labels instead of {layout.kept_images:,}')
  class_names = tuple(paths[k].stem.removeprefix('Labels_') for k in kept)
  return Listing([names[line] for line in lines], labels[lines], class_names, root)


def _flags(path: pathlib.Path, lines: int) -> np.ndarray:
  """Reads a text file with 0 or 1 on each line, [lines] uint8."""
  values = np.array(path.read_bytes().split())
  _check_lines(path, len(values), lines)
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


def _find(base: pathlib.Path, layout: Layout, pattern: str,
          folders: Sequence[str]) -> pathlib.Path:
  """A file like `pattern`, from the first of the folders below `base` that has any."""
  for folder in folders:
    for path in (base / folder).glob(pattern):
      return path
  raise errors.InputError(
      f'No {pattern} of {layout.title} in {base} (looked in '
      f'{", ".join(f"{folder}/" for folder in folders)}): unpack the official files there.')


def _complete(paths: Sequence[pathlib.Path], folder: pathlib.Path,
              layout: Layout) -> list[pathlib.Path]:
  """The label files by name; raises InputError unless all that were published are there."""
  paths = sorted(paths, key=lambda path: path.stem)
  surplus = len(paths) - layout.label_files
  if surplus:
    problem = f'{surplus} too many' if surplus > 0 else f'{-surplus} missing'
    raise _damaged(folder, f'has {len(paths)} label files instead of the {layout.label_files} of '
                   f'{layout.title}, {problem}')
  return paths


def _check_lines(path: pathlib.Path, lines: int, expected: int) -> None:
  if lines != expected:
    raise _damaged(path, f'has {lines:,} lines instead of {expected:,}')


def _text(path: pathlib.Path) -> str:
  try:
    return path.read_text(encoding='utf-8-sig')
  except UnicodeDecodeError as error:
    raise _damaged(path, f'is not a text file ({error})') from error


def _damaged(path: pathlib.Path, problem: str) -> errors.InputError:
  return errors.InputError(f'{path} {problem}: unpack the official files again.')


LAYOUTS = {
    'mirflickr': Layout(
        'MIRFlickr-25K', f'mir_flickr/{VERSION}', _read_mirflickr, images=25_000,
        label_files=38, kept_images=25_000, kept_labels=38),
    'nuswide': Layout(
        'NUS-WIDE', f'nus_wide/{VERSION}', _read_nuswide, images=269_648, label_files=81,
        kept_images=195_834, kept_labels=21),
}
