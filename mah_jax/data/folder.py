"""A user's images: a sub-folder for each class, a CSV of files and labels, or no labels."""

import contextlib
import csv
import hashlib
import io
import os
import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax import errors
from mah_jax import storage
from mah_jax.data import dataset
from mah_jax.data import images as images_lib

CSV = 'labels.csv'  # name of the CSV that is looked for in the folder
HEADER = ['file', 'labels']
UNLABELLED = 'folder-unlabelled'  # the protocol without labels and queries

# (known, work, count) -> problems of `count` files by their numbers: those that known() returns
# or, if it returns None, those that work(files) finds.
Spread = Callable[[Callable[[], dict[int, str] | None],
                   Callable[[Sequence[int]], dict[int, str]], int], dict[int, str]]


class Listing(NamedTuple):
  """The files of a folder and their labels, before any image is read.

  root: folder that the names are relative to.
  names: name of each file.
  labels: names of the classes of each file.
  class_names: [L], sorted.
  is_labelled: whether there are labels, be they of use or not.
  """
  root: pathlib.Path
  names: list[str]
  labels: list[set[str]]
  class_names: list[str]
  is_labelled: bool = True


def load(data_dir: pathlib.Path, *, cache: pathlib.Path,
         on_start: Callable[[int], Callable[[], None]], unlabelled: bool = False,
         on_unlabelled: Callable[[], None] = lambda: None,
         spread: Spread | None = None) -> dataset.Dataset:
  """Lists the images and their labels, and leaves out the files that cannot be decoded.

  Every file is decoded once to learn whether it can be, unless `cache` remembers that and no
  file has changed since.

  Args:
    data_dir: a CSV file, a folder with a labels.csv, one with a sub-folder for each class, or one
      whose images all lie directly in it, which is unlabelled.
    cache: folder that remembers which files cannot be decoded.
    on_start: called with the number of files before they are decoded; the function that it
      returns is called after each file.
    unlabelled: take the same files without their labels, whatever there is.
    on_unlabelled: called before unlabelled files are decoded; it may raise.
    spread: spreads the decoding over processes; None: there is one.

  Raises:
    errors.InputError: files or labels that cannot be used.
  """
  listing = _list(data_dir, unlabelled)
  labels = _multi_hot(listing)                             # [files, L]
  if listing.is_labelled:
    _check_classes(data_dir, listing.class_names, labels)  # before the slow part
  else:
    on_unlabelled()

  def read(file: int) -> bytes:
    return storage.read_file(listing.root / listing.names[file])

  encoded = images_lib.Encoded(read, listing.names, version=_version(listing))
  problems = _problems(encoded, cache, on_start, spread or _alone)
  report = _report({listing.names[file]: reason for file, reason in problems.items()},
                   len(encoded))
  files = np.setdiff1d(np.arange(len(encoded)), list(problems))  # the file of each row, [rows]
  images, labels = encoded[files], labels[files]
  if listing.is_labelled:
    _check_classes(data_dir, listing.class_names, labels)
  return dataset.Dataset(images, labels, tuple(listing.class_names), images.names, report)


def read_labels(path: pathlib.Path) -> dict[str, set[str]]:
  """The labels that a CSV of lines file,label1;label2 gives to each file."""
  listing = _list_csv(path, unlabelled=False)
  return dict(zip(listing.names, listing.labels))


def query_rows(names: Sequence[str], list_file: pathlib.Path) -> np.ndarray:
  """The rows of the files that a text file names, one a line; '#' begins a comment.

  Args:
    names: file name of each row.
    list_file: the text file.

  Returns:
    rows in the order of the lines, [q] int64.
  """
  rows = {name: row for row, name in enumerate(names)}
  lines = {}  # row -> number of the line that names it
  for number, line in enumerate(_read_text(list_file).splitlines(), start=1):
    name = line.strip()
    if not name or name.startswith('#'):
      continue
    name = pathlib.PurePath(name).as_posix()  # ./a.jpg is a.jpg, as in a CSV
    if name not in rows:
      raise _bad_line(list_file, number, f'names {name!r}, which is none of the usable '
                      'images: write it as the data do, or remove it')
    row = rows[name]
    if row in lines:
      raise _bad_line(list_file, number, f'repeats {name!r} of line {lines[row]}: remove it')
    lines[row] = number
  if not lines:
    raise errors.InputError(f'{list_file} names no image: write one file name on each line.')
  return np.array(list(lines), np.int64)


def _list(data_dir: pathlib.Path, unlabelled: bool) -> Listing:
  if data_dir.is_file():
    if data_dir.suffix.lower() != '.csv':
      raise errors.InputError(f'{data_dir} is neither a folder nor a .csv file: give either.')
    return _list_csv(data_dir, unlabelled)
  if not data_dir.is_dir():
    raise errors.InputError(f'There is no folder {data_dir}: correct --data_dir.')
  if (data_dir / CSV).is_file():
    return _list_csv(data_dir / CSV, unlabelled)
  return _list_folders(data_dir, unlabelled)


def _without_labels(root: pathlib.Path, names: list[str]) -> Listing:
  return Listing(root, names, [set()] * len(names), [], is_labelled=False)


def _list_folders(root: pathlib.Path, unlabelled: bool) -> Listing:
  """Lists a folder in which each sub-folder is a class, with images at any depth.

  Where no image lies in a sub-folder, nobody has sorted them: they are unlabelled.
  """
  names = images_lib.find(root)
  if not names:
    raise errors.InputError(f'{root} holds no image ({", ".join(images_lib.SUFFIXES)}): put '
                            f'images, a sub-folder of them for each class, or a {CSV} into it.')
  stray = [name for name in names if '/' not in name]
  if unlabelled or len(stray) == len(names):
    return _without_labels(root, names)
  if stray:
    raise errors.InputError(
        f'{root} holds images outside of any class folder ({len(stray):,}, as {stray[0]!r}): '
        f'move them into a sub-folder for each class, add a {CSV} of file,labels or, if '
        f'sub-folders are no classes, give --protocol={UNLABELLED}.')
  class_names = sorted(path.name for path in root.iterdir()
                       if path.is_dir() and not path.name.startswith('.'))
  return Listing(root, names, [{name.split('/')[0]} for name in names], class_names)


def _list_csv(path: pathlib.Path, unlabelled: bool) -> Listing:
  """Lists a CSV of lines file,label1;label2 with files relative to its folder."""
  lines = {}  # file -> number of its line
  labels = []
  reader = csv.reader(io.StringIO(_read_text(path), newline=''), strict=True)
  try:
    for cells in reader:
      number, cells = reader.line_num, [cell.strip() for cell in cells]
      if not any(cells) or (number == 1 and cells == HEADER):
        continue
      _check_cells(path, number, cells)
      name = _below(path, number, cells[0])
      if name in lines:
        raise _bad_line(path, number, f'repeats {name!r} of line {lines[name]}: give each '
                        'file one line with all its labels')
      lines[name] = number
      labels.append({label.strip() for label in cells[1].split(';')} - {''})
  except csv.Error as error:
    raise _bad_line(path, reader.line_num, f'is no CSV ({error}): correct it') from error
  if not lines:
    raise errors.InputError(f'{path} names no image: add lines of file,label1;label2.')
  if unlabelled:
    return _without_labels(path.parent, list(lines))
  return Listing(path.parent, list(lines), labels, sorted(set().union(*labels)))


def _below(path: pathlib.Path, number: int, name: str) -> str:
  """The path of a file below the folder of a CSV, in one form: ./bag/../bag/a.jpg is bag/a.jpg."""
  root = os.path.abspath(path.parent)
  relative = os.path.relpath(os.path.join(root, name), root)
  if relative.split(os.sep)[0] == os.pardir:
    raise _bad_line(path, number, f'names {name!r}, which is outside of the folder of the CSV: '
                    'move the file into it')
  return pathlib.PurePath(relative).as_posix()


def _check_cells(path: pathlib.Path, number: int, cells: list[str]):
  if len(cells) != len(HEADER):
    raise _bad_line(path, number, f'has {len(cells)} instead of the 2 columns file,labels: '
                    'separate labels by semicolons, and put quotes around a name with a comma')
  if not cells[0] or '\0' in cells[0]:
    raise _bad_line(path, number, 'names no file: write it before the comma')
  is_image = cells[0].lower().endswith(images_lib.SUFFIXES)
  if number == 1 and not is_image and not (path.parent / cells[0]).is_file():
    raise _bad_line(path, number, f'begins with {cells[0]!r}, neither a file nor the header '
                    f'{",".join(HEADER)}: make files the first column')


def _bad_line(path: pathlib.Path, number: int, problem: str) -> errors.InputError:
  return errors.InputError(f'Line {number} of {path} {problem}.')


def _read_text(path: pathlib.Path) -> str:
  """Reads a text file in UTF-8, with or without a byte order mark."""
  try:
    content = storage.read_file(path)
  except OSError as error:
    raise errors.InputError(
        f'{path} cannot be read ({error.strerror}): correct the path.') from error
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    number = content[:error.start].count(b'\n') + 1
    raise _bad_line(path, number, 'is not UTF-8: save the file in that encoding') from error


def _multi_hot(listing: Listing) -> np.ndarray:
  """The labels of each file as 0/1, [files, L] uint8."""
  columns = {name: k for k, name in enumerate(listing.class_names)}
  labels = np.zeros((len(listing.names), len(columns)), np.uint8)
  for file, names in enumerate(listing.labels):
    labels[file, [columns[name] for name in names]] = 1
  return labels


def _check_classes(data_dir: pathlib.Path, class_names: list[str], labels: np.ndarray):
  """Raises InputError unless there are two classes and labels [.., L] have each of them."""
  if len(class_names) < 2:
    raise errors.InputError(f'{data_dir} needs two classes or more but has {class_names}, '
                            'which leaves nothing to tell apart: add images of others or, to '
                            f'do without classes, give --protocol={UNLABELLED}.')
  empty = np.flatnonzero(~labels.any(axis=0))
  if len(empty):
    raise errors.InputError(f'Class {class_names[empty[0]]!r} of {data_dir} has no usable '
                            'image: add images of it, or remove it.')


def _problems(encoded: images_lib.Encoded, cache: pathlib.Path,
              on_start: Callable[[int], Callable[[], None]], spread: Spread) -> dict[int, str]:
  """The reason for each file that cannot be decoded, from the cache if no file has changed.

  Args:
    encoded: all files of a listing, so that its rows are files.
    cache, on_start, spread: see `load`.
  """
  path = cache / f'{encoded.version}.json'

  def known() -> dict[int, str] | None:
    try:
      return {int(file): reason for file, reason in storage.read_json(path).items()}
    except (OSError, ValueError, AttributeError):
      return None  # the files were never checked, or the cache is damaged

  def check(files: Sequence[int]) -> dict[int, str]:
    return images_lib.unusable(encoded, files, on_start(len(files)))

  problems = spread(known, check, len(encoded))
  if known() != problems:
    with contextlib.suppress(OSError):  # without a cache the next start only takes longer
      storage.write_json(path, problems)
  return problems


def _alone(known: Callable[[], dict[int, str] | None],
           work: Callable[[Sequence[int]], dict[int, str]], count: int) -> dict[int, str]:
  """The `Spread` of one process."""
  problems = known()
  return work(range(count)) if problems is None else problems


def _version(listing: Listing) -> str:
  """A sha256 that changes with the folder, and with the name, size or time of any file."""
  digest = hashlib.sha256(images_lib.DECODER.encode())
  digest.update(os.fsencode(os.path.abspath(listing.root)))
  for name in listing.names:
    try:
      status = os.stat(os.path.join(listing.root, name))
      size, time = status.st_size, status.st_ctime_ns  # ctime changes with permissions too
    except OSError:
      size = time = None  # the file is absent
    digest.update(os.fsencode(f'\n{name}\0{size}\0{time}'))
  return digest.hexdigest()


def _report(skipped: dict[str, str], total: int) -> str:
  """Names the files left out, a line each after a line with their number.

  Args:
    skipped: file name -> reason.
    total: files of the listing.

  Raises:
    errors.InputError: too many are left out.
  """
  if not skipped:
    return ''
  images_lib.refuse_many(skipped, total, 'repair or remove them')
  return '\n  '.join([f'{len(skipped):,} of {total:,} images cannot be used and were skipped:',
                      *(f'{name}: {reason}' for name, reason in skipped.items())])
