"""The searcher: a finished run that encodes images and finds their neighbours in its database."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax import options
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.data import images as images_lib
from mah_jax.data import pictures
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import restoring
from mah_jax.search import database as database_lib
from mah_jax.search import index as index_lib
from mah_jax.search import keys as keys_lib
from mah_jax.train import dataset as dataset_lib
from mah_jax.train import hasher as hasher_lib
from mah_jax.train import step as step_lib

GIVE = 'give a path, the bytes of a file or pixels as a NumPy array'
RANKINGS = ('hamming', 'outputs')

# An image: the path of its file, the content of its file, or pixels [h, w] or [h, w, ch] uint8.
Image = str | os.PathLike | bytes | np.ndarray


class Hit(NamedTuple):
  """A row of the database that a search found.

  distance: number of bits in which its code differs from the query's; when ranked by outputs,
    the mean agreement of the query's outputs with its code, from -1 to 1, 1 being the nearest.
  name: its file or, where images are no files, its number in the dataset.
  labels: its labels.
  row: its number in the database.
  """
  distance: int | float
  name: str
  labels: tuple[str, ...]
  row: int


class Searcher:
  """A run and its database. Networks, images and indexes are loaded when they are first needed."""

  def __init__(self, config: config_lib.Config):
    """Opens the database of the run in --workdir, and makes it if this is the first search."""
    self.config = config
    self.folder = folder_lib.RunFolder(config.workdir)
    with self.folder.opened(shared=True):
      self.database = self._open()
      self._stamp = _stamp(database_lib.path_of(self.folder))
    self._indexes: dict[tuple[str, int], index_lib.Index] = {}

  @property
  def code_lengths(self) -> tuple[int, ...]:
    """The bits of each code that the run has."""
    return self.config.code_lengths

  @property
  def class_names(self) -> tuple[str, ...]:
    """The labels that rows may have."""
    return self.database.class_names

  def __len__(self) -> int:
    """The number of rows that can be found."""
    return len(self.database.names)

  def encode(self, images: Image | Sequence[Image], length: int = 0, *,
             packed: bool = False) -> np.ndarray:
    """The codes of images as queries.

    Args:
      images: one image, several, or an array [n, h, w, ch] uint8.
      length: bits of the codes; 0: the most that the run has.
      packed: pack eight bits into a byte, 1 for +1, the first bit highest.

    Returns:
      [n, c] int8 in {-1, +1}, or [n, ceil(c / 8)] uint8; without n for a single image.
    """
    hashed, single = self._hash(images)
    codes = hashed.codes[self._head(length)]
    codes = np.packbits(codes > 0, axis=1) if packed else codes
    return codes[0] if single else codes

  def search(self, images: Image | Sequence[Image], k: int = 10, *, length: int = 0,
             ranking: str = 'hamming', database: str = '',
             allowed: Sequence[int] | np.ndarray | None = None) -> list[Any]:
    """The nearest rows of the database.

    Args:
      images: one image, several, or an array [n, h, w, ch] uint8.
      k: how many rows are wanted.
      length: bits of the codes; 0: the most that the run has.
      ranking: 'hamming', by the number of differing bits; or 'outputs', by the agreement of the
        query's real outputs with the codes, which is finer.
      database: 'learned' codes, or those 'encoded' by the network; empty: the learned ones where
        there are any.
      allowed: numbers of the rows that may be found; None: all.

    Returns:
      The hits of a single image, nearest first; for several images a list of such lists.
    """
    hashed, single = self._hash(images)
    found = self.search_hashed(hashed, k, length=length, ranking=ranking, database=database,
                               allowed=allowed)
    return found[0] if single else found

  def search_hashed(self, hashed: hasher_lib.Hashed, k: int, *, length: int = 0,
                    ranking: str = 'hamming', database: str = '',
                    allowed: Sequence[int] | np.ndarray | None = None) -> list[list[Hit]]:
    """The nearest rows of images that are hashed already; arguments as in `search`."""
    head = self._head(length)
    index = self.index(length, database)
    reduction = self.database.reduction
    keys = None if reduction is None else keys_lib.apply(reduction, hashed.features)
    if ranking not in RANKINGS:
      raise ValueError(f'ranking={ranking!r} is not one of {", ".join(RANKINGS)}.')
    if ranking == 'outputs':
      distances, rows = index_lib.search_outputs(index, hashed.outputs[head], k, keys=keys,
                                                 allowed=allowed)
    else:
      distances, rows = index_lib.search(index, hashed.codes[head], k, keys=keys, allowed=allowed)
    return [[Hit(distance, self.database.names[row], self.database.labels_of(row), row)
             for distance, row in zip(*of_query)]
            for of_query in zip(distances.tolist(), rows.tolist())]

  def hash(self, images: Sequence[Image] | np.ndarray, on_bad=None) -> hasher_lib.Hashed:
    """Codes, outputs and features of images; on_bad as in `hasher.Hasher.parts`."""
    return self.hasher(self._readable(images), on_bad)

  def index(self, length: int = 0, database: str = '') -> index_lib.Index:
    """The index over codes of a length; its ids are row numbers."""
    c, kind = self.code_lengths[self._head(length)], self.kind(database)
    if (kind, c) not in self._indexes:
      keys = self.database.keys if self.database.keys.shape[1] else None
      self._indexes[kind, c] = index_lib.build_packed(self.packed(length, database), c, keys=keys)
    return self._indexes[kind, c]

  def packed(self, length: int = 0, database: str = '') -> np.ndarray:
    """The codes of all rows, eight bits in a byte, [n, ceil(c / 8)] uint8."""
    return self.database.codes[f'{self.kind(database)}_{self.code_lengths[self._head(length)]}']

  def kind(self, database: str = '') -> str:
    """The kind of codes that a search takes, 'learned' or 'encoded', when it is asked for one."""
    kinds = self.database.kinds
    if database and database not in kinds:
      raise errors.UsageError(f'The run in {self.folder.path} has no {database} codes of its '
                              f'database: choose {" or ".join(kinds)}.')
    return database or kinds[0]

  def code(self, row: int, length: int = 0, database: str = '') -> np.ndarray:
    """The code of a row, [c] int8 in {-1, +1}."""
    c, row = self.code_lengths[self._head(length)], self._row(row)
    return np.unpackbits(self.packed(length, database)[row], count=c).astype(np.int8) * 2 - 1

  def image(self, row: int) -> bytes | np.ndarray:
    """The image of a row: the content of its file or, where images are no files, its pixels."""
    row = self._row(row)
    name, place = self.database.names[row], self.database.folder_of[row]
    if place != database_lib.OWN:
      file = pathlib.Path(self.database.folders[place]) / name
      try:
        return storage.read_file(file)
      except OSError as error:
        raise errors.InputError(f'{file} cannot be read ({error.strerror}).') from error
    images, of_dataset = self.data.images, int(self.data.protocol.database[row])
    if isinstance(images, np.ndarray):
      return images[of_dataset]
    try:
      return images.read(of_dataset)
    except errors.InputError as error:
      raise errors.InputError(f'{name} cannot be read ({error}).') from error

  def picture(self, row: int, side: int) -> np.ndarray:
    """The image of a row as a person sees it, [side, side, 3] uint8."""
    image = self.image(row)
    if isinstance(image, np.ndarray):
      return pictures.square(image, side)
    try:
      return images_lib.decode(image, side)
    except errors.InputError as error:
      raise errors.InputError(f'{self.database.names[row]} cannot be decoded ({error}): replace '
                              'the file or take it out of the data.') from error

  def add(self, folder: pathlib.Path, names: Sequence[str], hashed: hasher_lib.Hashed,
          labels: np.ndarray | None = None):
    """Adds images to the database and writes it; see `database.add`."""
    with self.folder.opened():
      file = database_lib.path_of(self.folder)
      if _stamp(file) != self._stamp:
        raise errors.InputError(f'{file} was changed by another command meanwhile: give the same '
                                'command again.')
      self.database = database_lib.add(self.database, str(folder.resolve()), names, labels, hashed,
                                       self.code_lengths)
      database_lib.save(self.database, file)
      self._stamp = _stamp(file)
    self._indexes.clear()

  @functools.cached_property
  def hasher(self) -> hasher_lib.Hasher:
    """The network of the run."""
    return restoring.hasher(self.config)

  @functools.cached_property
  def data(self) -> datasets.Dataset:
    """The dataset of the run."""
    return dataset_lib.load(self.config)

  def _open(self) -> database_lib.Database:
    """The database that was kept, or a new one where there is none or the run has changed."""
    file, source = database_lib.path_of(self.folder), database_lib.made_from(
        self.folder, self.config)
    if file.exists():
      kept = database_lib.load(file)
      if kept.made_from == source:
        return kept
      if kept.folders:
        raise errors.InputError(
            f'{file} was made from other codes than those of the run in {self.folder.path}, or '
            f'with other --key_bytes than {self.config.key_bytes}, and images were added to it: '
            'remove it, and add them again.')
      console.say(f'{file} was made from other codes or with other --key_bytes: it is made anew.')
    devices = step_lib.pick_devices(self.config.num_devices)
    batch_size = step_lib.round_up(self.config.batch_size, devices)
    made = database_lib.build(
        self.config, self.data, self.folder, step_lib.Devices(devices, batch_size),
        self.hasher if self.config.key_bytes and not self.config.reads_features else None)
    database_lib.save(made, file)
    console.say(f'Index of {len(made.names):,} rows written to {file.parent}.')
    queries = self.data.row_names(self.data.protocol.queries)
    # The files of some datasets lie elsewhere below --data_dir than their names say.
    if len(queries) and (storage.path(self.config.data_dir) / str(queries[0])).is_file():
      console.say(f'The {len(queries):,} queries of the run are not in it: --mode=index '
                  f'--images={self.config.data_dir} adds them.')
    return made

  def _row(self, row: int) -> int:
    """The number of a row that there is."""
    if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not (
        0 <= row < len(self)):
      raise ValueError(f'There is no row {row!r}; give a number from 0 to {len(self) - 1}.')
    return int(row)

  def _head(self, length: int) -> int:
    """The place of a length among those of the run."""
    length = length or self.code_lengths[-1]
    if length not in self.code_lengths:
      raise errors.UsageError(f'The run in {self.folder.path} has no codes of {length} bits: '
                              f'choose one of {options.text(self.code_lengths)}.')
    return self.code_lengths.index(length)

  def _hash(self, images: Image | Sequence[Image]) -> tuple[hasher_lib.Hashed, bool]:
    """Hashes one image or several, and says whether it was one."""
    single = isinstance(images, (str, os.PathLike, bytes)) or (
        isinstance(images, np.ndarray) and images.ndim < 4)
    return self.hash([images] if single else images), single

  def _readable(self, images: Sequence[Image] | np.ndarray) -> np.ndarray | images_lib.Encoded:
    """Images as the hasher reads them: an array of pixels, or files."""
    if isinstance(images, images_lib.Encoded):
      return images
    if not isinstance(images, (Sequence, np.ndarray)):
      raise ValueError(f'{type(images).__name__} is no image and no list of them; {GIVE}.')
    if not len(images):
      raise ValueError('There is no image; give at least one.')
    wanted = self.hasher.pixels.channels
    if isinstance(images, np.ndarray):
      _check_pixels(images[0])
      if images.shape[3:] == (wanted,):
        return images
    if all(isinstance(image, np.ndarray) for image in images):
      for image in images:
        _check_pixels(image)
      pixels = [image if image.ndim == 3 else image[..., None] for image in images]
      if len({x.shape for x in pixels}) == 1 and pixels[0].shape[2] == wanted:
        return np.stack(pixels)
    contents = [_content(image) for image in images]
    names = [str(image) if isinstance(image, (str, os.PathLike)) else f'image {i}'
             for i, image in enumerate(images)]
    return images_lib.Encoded(lambda i: contents[i](), names)


def _stamp(file: pathlib.Path) -> tuple[int, ...]:
  """Numbers that change when a file is replaced by another."""
  status = os.stat(file)
  return status.st_ino, status.st_size, status.st_mtime_ns


def _content(image: Image):
  """A function that gives the content of an image's file."""
  if isinstance(image, np.ndarray):
    return functools.partial(pictures.to_png, image)
  if isinstance(image, bytes):
    return lambda: image
  if isinstance(image, (str, os.PathLike)):
    return functools.partial(storage.read_file, storage.path(image))
  raise ValueError(f'{type(image).__name__} is no image; {GIVE}.')


def _check_pixels(image: np.ndarray):
  """Refuses an array that is no image; other numbers than uint8 say nothing about their scale."""
  if image.dtype != np.uint8 or image.ndim not in (2, 3) or 0 in image.shape or (
      image.ndim == 3 and image.shape[2] not in (1, 3)):
    raise ValueError(f'{image.dtype} {image.shape} is no image; give pixels from 0 to 255 as '
                     'uint8, [h, w], [h, w, 1] or [h, w, 3].')
