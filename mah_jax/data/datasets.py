"""The table of datasets, and the loader that checks what it hands out."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mah_jax import errors
from mah_jax import storage
from mah_jax.data import cifar10
from mah_jax.data import dataset as dataset_lib
from mah_jax.data import digits
from mah_jax.data import folder as folder_lib
from mah_jax.data import multilabel
from mah_jax.data import splits
from mah_jax.models import imagenet

DEFAULT = 'cifar10'        # the dataset of the paper's Table 1
QUERY_LIST = 'query-list'  # the protocol that a list of queries makes

Dataset = dataset_lib.Dataset
OnStart = Callable[[int], Callable[[], None]]


class Source(NamedTuple):
  """The source that a dataset is read from.

  data_dir: folder of its files.
  cache_dir: folder that remembers which image files are usable; None: beside the files.
  on_start: called with the number of files before they are checked; the function that it
    returns is called after each file.
  unlabelled: whether labels are to be left unread.
  on_unlabelled: called before files without labels are checked; it may raise.
  spread: spreads the check of files over processes, see `folder.Spread`; None: there is one.
  """
  data_dir: pathlib.Path
  cache_dir: pathlib.Path | None
  on_start: OnStart
  unlabelled: bool
  on_unlabelled: Callable[[], None]
  spread: folder_lib.Spread | None


class DatasetSpec(NamedTuple):
  """A dataset before it is read.

  load: reads it from a source.
  find: says what there is at a source, and reads no image; raises InputError as `load`.
  files: what --data_dir holds, for the help text.
  mean, std: per channel, of pixels scaled to 0..1.
  protocols: by name, (dataset, share of queries, seed, name) -> Protocol; the first is the
    default.
  protocol_note: what a protocol is where its name does not say it, for the help text.
  takes_query_fraction: whether its protocols ask for the share of queries.
  has_names: whether its rows are files, which a list of queries can name.
  takes_in: data_dir -> whether anything that is put below it becomes part of the dataset.
  """
  load: Callable[[Source], Dataset]
  find: Callable[[Source], str]
  files: str
  mean: tuple[float, ...]
  std: tuple[float, ...]
  protocols: dict[str, Callable[[Dataset, float, int, str], splits.Protocol]]
  protocol_note: str = ''
  takes_query_fraction: bool = False
  has_names: bool = False
  takes_in: Callable[[pathlib.Path], bool] = lambda data_dir: False


def load(name: str, data_dir: str, split_seed: int, *, protocol: str = '',
         query_fraction: float = 0.1, query_list: str = '',
         cache_dir: pathlib.Path | None = None, on_start: OnStart | None = None,
         on_unlabelled: Callable[[], None] = lambda: None,
         spread: folder_lib.Spread | None = None) -> Dataset:
  """Reads, checks and splits a dataset.

  Args:
    name: a key of `SPECS`.
    data_dir: folder of the files, `~` allowed; see `DatasetSpec.files`.
    split_seed: seed of the queries drawn and of the row orders.
    protocol: one of the dataset's `protocols`; empty: the first or, where there are no labels,
      `folder.UNLABELLED`.
    query_fraction: share of each class that becomes queries, if the dataset takes it.
    query_list: text file with the names of the queries, which then replace a protocol.
    cache_dir, on_start, on_unlabelled, spread: see `Source`.

  Raises:
    errors.UsageError: unknown name or protocol, negative seed, a list without names to list, a
      choice of queries where there are no labels.
    errors.InputError: missing or unusable files.
  """
  spec, source = _open(name, data_dir, protocol, query_list, Source(
      storage.path(data_dir), cache_dir, on_start or (lambda total: lambda: None),
      protocol == folder_lib.UNLABELLED, on_unlabelled, spread))
  data = spec.load(source)
  check(data.images, data.labels, unlabelled=folder_lib.UNLABELLED in spec.protocols)
  if query_list:
    split = _listed(data, query_list, split_seed)
  else:
    protocol = protocol or next(iter(spec.protocols))
    if not data.is_labelled:
      protocol = folder_lib.UNLABELLED
    split = spec.protocols[protocol](data, query_fraction, split_seed, protocol)
  if spec.has_names:  # a copy of such a dataset may lack files that others have
    split = split._replace(content=splits.fingerprint(data.names, data.labels))
  return data._replace(name=name, mean=spec.mean, std=spec.std, protocol=split)


def find(name: str, data_dir: str, *, protocol: str = '', query_list: str = '',
         on_unlabelled: Callable[[], None] = lambda: None) -> str:
  """Says what there is of a dataset; no image is read. Arguments and errors are those of `load`."""
  spec, source = _open(name, data_dir, protocol, query_list, Source(
      storage.path(data_dir), None, lambda total: lambda: None,
      protocol == folder_lib.UNLABELLED, on_unlabelled, None))
  sentence = spec.find(source)
  if query_list and not storage.path(query_list).is_file():
    raise errors.InputError(f'--query_list={query_list} does not exist: correct the path.')
  return sentence


def _open(name: str, data_dir: str, protocol: str, query_list: str,
          source: Source) -> tuple[DatasetSpec, Source]:
  """The entry of a dataset, and a source that refuses a choice of queries without labels."""
  if name not in SPECS:
    raise errors.UsageError(
        f'Unknown dataset {name!r}; choose one of: {", ".join(sorted(SPECS))}.')
  spec = SPECS[name]
  if protocol and protocol not in spec.protocols:
    raise errors.UsageError(f'Unknown protocol {protocol!r} of dataset {name}; choose one of: '
                            f'{", ".join(spec.protocols)}.')
  if query_list and not spec.has_names:
    raise errors.UsageError(f'The images of {name} have no file names that a list of queries '
                            f'could hold: choose a protocol instead of {query_list}.')

  def check_unlabelled():
    if query_list or protocol not in ('', folder_lib.UNLABELLED):
      choice = f'--query_list={query_list}' if query_list else f'--protocol={protocol}'
      raise errors.UsageError(f'{choice} chooses queries, but the images in {data_dir} have no '
                              'labels to score them by: leave it out.')
    source.on_unlabelled()

  return spec, source._replace(on_unlabelled=check_unlabelled)


def _listed(data: Dataset, query_list: str, seed: int) -> splits.Protocol:
  """The protocol whose queries a text file names."""
  rows = folder_lib.query_rows(data.names, storage.path(query_list))
  splits.check_chosen(rows, data.labels, data.class_names)
  return splits.chosen(rows, len(data.names), seed, QUERY_LIST)


def data_dir_help() -> str:
  """The sentence that says what --data_dir holds for each dataset."""
  return 'Files of the dataset: ' + '; '.join(
      f'for {name} {spec.files}' for name, spec in SPECS.items()) + '.'


def protocol_help() -> str:
  """The sentences that list the protocols of each dataset."""
  return 'Split into queries and database; empty: the first of the dataset. ' + '; '.join(
      f'{name} has {" and ".join(spec.protocols)}'
      + (f' ({spec.protocol_note})' if spec.protocol_note else '')
      for name, spec in SPECS.items()) + (
          '. Where only some database rows are for training, no other labels are seen and the '
          'database is encoded.')


def check(images: dataset_lib.Images, labels: np.ndarray, *, unlabelled: bool = False) -> None:
  """Raises InputError unless images are uint8 [rows, h, w, ch], labels 0/1 [rows, L].

  Only uint8 is accepted: a float array says nothing about its scale (0..1 or 0..255). Images
  in files are only counted. L = 0 is accepted where a dataset may be `unlabelled`.
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
  if 0 in shape or not (labels.size or unlabelled):
    raise errors.InputError(
        f'Images of shape {shape} with labels of shape {labels.shape} are empty; '
        'give at least one image and one class.')
  if in_memory:
    _check_pixels(images)
  wrong = np.flatnonzero(~np.isin(labels, (0, 1)).all(axis=1))
  if len(wrong):
    raise errors.InputError(
        f'Row {wrong[0]} of the labels holds a value other than 0 and 1; encode classes as '
        'one-hot or multi-hot rows.')


def _check_pixels(images: np.ndarray) -> None:
  """Raises InputError unless the pixels are uint8; NaN and infinity get a message of theirs."""
  if np.issubdtype(images.dtype, np.inexact):
    bad = np.flatnonzero(~np.isfinite(images).all(axis=(1, 2, 3)))
    if len(bad):
      raise errors.InputError(
          f'{len(bad)} images hold NaN or infinity, the first in row {bad[0]}; remove or '
          'repair them and store pixels as uint8.')
  if images.dtype != np.uint8:
    raise errors.InputError(
        f'Images have dtype {images.dtype}; store pixels as uint8, 0 to 255.')


def _load_folder(source: Source) -> Dataset:
  beside = source.data_dir if source.data_dir.is_dir() else source.data_dir.parent
  return folder_lib.load(
      source.data_dir, cache=source.cache_dir or beside, on_start=source.on_start,
      unlabelled=source.unlabelled, on_unlabelled=source.on_unlabelled, spread=source.spread)


def _load_prepared(name: str, source: Source) -> Dataset:
  prepared = multilabel.find_prepared(name, source.data_dir)
  # The import is late because TFDS takes a second to import, which other datasets do not need.
  from mah_jax.data import builders
  return builders.read_encoded(prepared)


def _find_prepared(name: str, source: Source) -> str:
  return f'The images are in {multilabel.find_prepared(name, source.data_dir)}.'


def _per_class(count: int):
  return lambda data, share, seed, name: splits.balanced(data.labels, count, seed, name)


def _random(count: int, *, labelled_only: bool):
  return lambda data, share, seed, name: splits.random_queries(
      data.labels, count, seed, name, labelled_only=labelled_only)


def _validation(draw: Callable[..., splits.Protocol]):
  """Draws queries, leaves them out, and draws others from the rest in the same way."""
  return lambda data, share, seed, name: splits.within_database(
      draw(data, share, seed, name), data.labels,
      lambda labels: draw(data._replace(labels=labels), share, seed, name))


def _training_per_class(draw: Callable[..., splits.Protocol], count: int):
  return lambda data, share, seed, name: splits.with_training_per_class(
      draw(data, share, seed, name), data.labels, count)


def _random_training(draw: Callable[..., splits.Protocol], count: int):
  return lambda data, share, seed, name: splits.with_random_training(
      draw(data, share, seed, name), data.labels, count)


def _share(data: Dataset, share: float, seed: int, name: str) -> splits.Protocol:
  return splits.fraction(data.labels, share, seed, name, data.class_names)


# The mean and std of digits are measured on all rows, those of cifar10 on the 50,000 official
# training rows; mirflickr and nuswide have the authors' and folder has ImageNet's.
# The first protocol of a dataset follows the MAH paper. The second has as many queries as the
# authors' lists, which are not published: the rows are drawn anew. Those that end in -training
# have the sizes that symmetric methods are published with.
SPECS = {
    'digits': DatasetSpec(
        load=lambda source: digits.load(),
        find=lambda source: 'The images are in the package.',
        files='nothing, as the package brings them along',
        mean=(0.28730380,), std=(0.35392868,),
        protocols={'digits-100-queries': _per_class(10),
                   'digits-500-training': _training_per_class(_per_class(10), 50)},
        protocol_note='the second has the queries of the first, and 50 database rows of each '
                      'class for training',
    ),
    'cifar10': DatasetSpec(
        load=lambda source: cifar10.load(source.data_dir),
        find=lambda source: f'The images are in {cifar10.found(source.data_dir).path}.',
        files='the folder that the fetch command fills, or that of the official files',
        mean=(0.49139968, 0.48215841, 0.44653091),
        std=(0.24703223, 0.24348513, 0.26158784),
        protocols={'cifar10-1000-queries': _per_class(100),
                   'cifar10-5000-training': _training_per_class(_per_class(100), 500),
                   'cifar10-validation': _validation(_per_class(100))},
        protocol_note='the second has the queries of the first, and 500 database rows of each '
                      'class for training; the third leaves these queries out and draws 1,000 '
                      'others, to choose settings by',
    ),
    'mirflickr': DatasetSpec(
        load=functools.partial(_load_prepared, 'mirflickr'),
        find=functools.partial(_find_prepared, 'mirflickr'),
        files='the folder in which the fetch command prepares the official files',
        mean=(0.389, 0.420, 0.436), std=(0.239, 0.235, 0.246),
        # A row without labels is similar to nothing; the paper's queries have a label at least.
        protocols={'mirflickr-1000-queries': _random(1_000, labelled_only=True),
                   'mirflickr-1700-queries': _random(1_700, labelled_only=False),
                   'mirflickr-5000-training': _random_training(
                       _random(2_000, labelled_only=True), 5_000),
                   'mirflickr-validation': _validation(_random(1_000, labelled_only=True))},
        protocol_note='the third has 2,000 queries, and 5,000 random database rows with a label '
                      'for training; the last leaves the queries of the first out and draws 1,000 '
                      'others, to choose settings by',
        has_names=True,
    ),
    'nuswide': DatasetSpec(
        load=functools.partial(_load_prepared, 'nuswide'),
        find=functools.partial(_find_prepared, 'nuswide'),
        files='the folder in which the fetch command prepares the official files',
        mean=(0.389, 0.420, 0.436), std=(0.239, 0.235, 0.246),
        protocols={'nuswide-1000-queries': _random(1_000, labelled_only=True),
                   'nuswide-2100-queries': _per_class(100)},
        has_names=True,
    ),
    'folder': DatasetSpec(
        load=_load_folder,
        find=lambda source: folder_lib.find(source.data_dir, unlabelled=source.unlabelled,
                                            on_unlabelled=source.on_unlabelled),
        files='any folder with a sub-folder of images for each class, or a CSV file of lines '
              f'file,label1;label2 (or a folder with such a {folder_lib.CSV}), or a folder of '
              'images without labels',
        mean=imagenet.MEAN, std=imagenet.STD,
        protocols={'folder': _share,
                   folder_lib.UNLABELLED: lambda data, share, seed, name: splits.database_only(
                       len(data.names), name)},
        protocol_note='the second reads no labels, and sub-folders are no classes: all images '
                      'are the database, and nothing is scored; images that lie directly in '
                      'the folder have it without asking',
        takes_query_fraction=True,
        has_names=True,
        takes_in=folder_lib.takes_in,
    ),
}
