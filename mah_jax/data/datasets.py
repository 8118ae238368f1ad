"""The table of datasets, and the loader that checks what it hands out."""

import functools
import os
import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax import errors
from mah_jax.data import cifar10
from mah_jax.data import digits
from mah_jax.data import folder as folder_lib
from mah_jax.data import images as images_lib
from mah_jax.data import multilabel
from mah_jax.data import splits

QUERY_LIST = 'query-list'  # the protocol that a list of queries makes

Images = np.ndarray | images_lib.Encoded
OnStart = Callable[[int], Callable[[], None]]


class Source(NamedTuple):
  """Where a dataset is read from.

  data_dir: folder of its files.
  cache_dir: folder for what a check of image files has found; None: beside them.
  on_start: called with the number of images before such a check; what it returns is called
    after each of them.
  """
  data_dir: pathlib.Path
  cache_dir: pathlib.Path | None
  on_start: OnStart


class Loaded(NamedTuple):
  """A dataset as read.

  images: [rows, h, w, ch] uint8, or files that are decoded when asked for.
  labels: [rows, L] uint8 0/1.
  names: of the rows where they are files, else empty.
  report: what was left out, in words.
  """
  images: Images
  labels: np.ndarray
  class_names: tuple[str, ...]
  names: Sequence[str] = ()
  report: str = ''


class DatasetSpec(NamedTuple):
  """What is known about a dataset before it is read.

  mean, std: per channel, of pixels scaled to 0..1.
  protocols: by name, (dataset, share of queries, seed, name) -> Protocol; the first is the
    default. Only 'folder' leaves the share open.
  """
  load: Callable[[Source], Loaded]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  protocols: dict[str, Callable[[Loaded, float, int, str], splits.Protocol]]


class Dataset(NamedTuple):
  """A dataset, split; fields as in `Loaded` and `DatasetSpec`."""
  name: str
  images: Images
  labels: np.ndarray
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  protocol: splits.Protocol
  names: Sequence[str] = ()
  report: str = ''


def load(name: str, data_dir: str, split_seed: int, *, protocol: str = '',
         query_fraction: float = 0.1, query_list: str = '',
         cache_dir: pathlib.Path | None = None, on_start: OnStart | None = None) -> Dataset:
  """Reads, checks and splits a dataset.

  Args:
    name: a key of `SPECS`.
    data_dir: folder of the files, `~` allowed; not looked at by 'digits'.
    split_seed: seed of the queries drawn and of the row orders.
    protocol: one of the dataset's `protocols`; empty: the first.
    query_fraction: share of each class that the protocol 'folder' draws.
    query_list: text file with the names of the queries; takes the place of a protocol.
    cache_dir, on_start: see `Source`.

  Raises:
    errors.UsageError: unknown name or protocol, negative seed, a list without names to list.
    errors.InputError: missing or unusable files.
  """
  if name not in SPECS:
    raise errors.UsageError(
        f'Unknown dataset {name!r}; choose one of: {", ".join(sorted(SPECS))}.')
  spec = SPECS[name]
  protocol = protocol or next(iter(spec.protocols))
  if protocol not in spec.protocols:
    raise errors.UsageError(f'Unknown protocol {protocol!r} of dataset {name}; choose one of: '
                            f'{", ".join(spec.protocols)}.')
  on_start = on_start or (lambda total: lambda: None)
  data = spec.load(Source(pathlib.Path(os.path.expanduser(data_dir)), cache_dir, on_start))
  check(data.images, data.labels)
  if query_list:
    split = _listed(name, data, query_list, split_seed)
  else:
    split = spec.protocols[protocol](data, query_fraction, split_seed, protocol)
  if data.names:  # of these datasets not all copies are alike
    split = split._replace(content=splits.fingerprint(data.names, data.labels))
  return Dataset(name, data.images, data.labels, data.class_names, spec.mean, spec.std, split,
                 data.names, data.report)


def _listed(name: str, data: Loaded, query_list: str, seed: int) -> splits.Protocol:
  if not data.names:
    raise errors.UsageError(f'The images of {name} have no file names that a list of queries '
                            f'could hold: choose a protocol instead of {query_list}.')
  rows = folder_lib.query_rows(data.names, pathlib.Path(os.path.expanduser(query_list)))
  splits.check_chosen(rows, data.labels, data.names, data.class_names)
  return splits.chosen(rows, len(data.names), seed, QUERY_LIST)


def check(images: Images, labels: np.ndarray) -> None:
  """Raises InputError unless images are uint8 [rows, h, w, ch], labels 0/1 [rows, L].

  Only uint8 is accepted: a float array says nothing about its scale (0..1 or 0..255). Of
  images in files, only the number is looked at.
  """
  in_memory = isinstance(images, np.ndarray)
  shape = images.shape if in_memory else (len(images), 1, 1, 1)
  if len(shape) != 4 or labels.ndim != 2:
    raise errors.InputError(
        f'Images of shape {shape} and labels of shape {labels.shape} cannot be '
        'used; make them [rows, height, width, channels] and [rows, classes].')
  if len(images) != len(labels):
    raise errors.InputError(
        f'There are {len(images)} images but {len(labels)} rows of labels; give every '
        'image one row of labels.')
  if 0 in shape or not labels.size:
    raise errors.InputError(
        f'Images of shape {shape} with labels of shape {labels.shape} are empty; '
        'give at least one image and one class.')
  if in_memory:
    _check_pixels(images)
  if not np.isin(labels, (0, 1)).all():
    row = np.flatnonzero(~np.isin(labels, (0, 1)).all(axis=1))[0]
    raise errors.InputError(
        f'Row {row} of the labels holds a value other than 0 and 1; encode classes as '
        'one-hot or multi-hot rows.')


def _check_pixels(images: np.ndarray) -> None:
  """Raises InputError unless the pixels are uint8, naming NaN and infinity as such."""
  if np.issubdtype(images.dtype, np.inexact):
    bad = np.flatnonzero(~np.isfinite(images).all(axis=(1, 2, 3)))
    if len(bad):
      raise errors.InputError(
          f'{len(bad)} images hold NaN or infinity, the first in row {bad[0]}; remove or '
          'repair them and store pixels as uint8.')
  if images.dtype != np.uint8:
    raise errors.InputError(
        f'Images have dtype {images.dtype}; store pixels as uint8, 0 to 255.')


def _load_digits(source: Source) -> Loaded:
  del source
  return Loaded(*digits.load(), digits.CLASS_NAMES)


def _load_cifar10(source: Source) -> Loaded:
  return Loaded(*cifar10.load(source.data_dir), cifar10.CLASS_NAMES)


def _load_folder(source: Source) -> Loaded:
  beside = source.data_dir if source.data_dir.is_dir() else source.data_dir.parent
  return _in_files(folder_lib.load(
      source.data_dir, cache=source.cache_dir or beside, on_start=source.on_start))


def _load_prepared(name: str, source: Source) -> Loaded:
  prepared = multilabel.find_prepared(name, source.data_dir)
  # Imported here because TFDS takes a second to import, which other datasets do not need.
  from mah_jax.data import builders
  return _in_files(builders.read_encoded(prepared))


def _in_files(found: folder_lib.Folder) -> Loaded:
  return Loaded(found.images, found.labels, found.class_names, found.names, found.report)


def _per_class(count: int):
  return lambda data, share, seed, name: splits.balanced(data.labels, count, seed, name)


def _random(count: int, *, labelled_only: bool):
  return lambda data, share, seed, name: splits.random_queries(
      data.labels, count, seed, name, labelled_only=labelled_only)


def _share(data: Loaded, share: float, seed: int, name: str) -> splits.Protocol:
  return splits.fraction(data.labels, share, seed, name, data.class_names)


# Mean and std of digits are measured on all rows, those of cifar10 on the 50,000 official
# training rows; those of mirflickr and nuswide are the authors', those of folder ImageNet's.
# The first protocol of a dataset follows the MAH paper. The second has the number of queries
# of the authors' own lists, which are not published: the rows are drawn anew.
SPECS = {
    'digits': DatasetSpec(
        load=_load_digits,
        mean=(0.28730380,), std=(0.35392868,),
        protocols={'digits-100-queries': _per_class(10)},
    ),
    'cifar10': DatasetSpec(
        load=_load_cifar10,
        mean=(0.49139968, 0.48215841, 0.44653091),
        std=(0.24703223, 0.24348513, 0.26158784),
        protocols={'cifar10-1000-queries': _per_class(100)},
    ),
    'mirflickr': DatasetSpec(
        load=functools.partial(_load_prepared, 'mirflickr'),
        mean=(0.389, 0.420, 0.436), std=(0.239, 0.235, 0.246),
        # Rows without labels are similar to nothing; the paper's queries have one at least.
        protocols={'mirflickr-1000-queries': _random(1_000, labelled_only=True),
                   'mirflickr-1700-queries': _random(1_700, labelled_only=False)},
    ),
    'nuswide': DatasetSpec(
        load=functools.partial(_load_prepared, 'nuswide'),
        mean=(0.389, 0.420, 0.436), std=(0.239, 0.235, 0.246),
        protocols={'nuswide-1000-queries': _random(1_000, labelled_only=True),
                   'nuswide-2100-queries': _per_class(100)},
    ),
    'folder': DatasetSpec(
        load=_load_folder,
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        protocols={'folder': _share},
    ),
}
