"""The table of datasets, and the loader that checks what it hands out."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mah_jax import errors
from mah_jax.data import cifar10
from mah_jax.data import splits


class DatasetSpec(NamedTuple):
  """What is known about a dataset before it is read.

  load: folder -> (images [rows, h, w, ch] uint8, labels [rows, L] uint8 0/1).
  mean, std: per channel, of pixels scaled to 0..1.
  queries_per_class: size of the query set drawn by `splits.balanced`.
  protocol: name of that split.
  """
  load: Callable[[pathlib.Path], tuple[np.ndarray, np.ndarray]]
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  queries_per_class: int
  protocol: str


class Dataset(NamedTuple):
  """A dataset in memory, split: images [rows, h, w, ch] uint8, labels [rows, L] uint8."""
  name: str
  images: np.ndarray
  labels: np.ndarray
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  protocol: splits.Protocol


def load(name: str, data_dir: str, split_seed: int) -> Dataset:
  """Reads, checks and splits a dataset.

  Args:
    name: a key of `SPECS`.
    data_dir: folder of the files, `~` allowed; not looked at by 'digits'.
    split_seed: seed of the queries drawn and of the row orders.

  Raises:
    errors.UsageError: unknown name or negative seed.
    errors.InputError: missing or unusable files.
  """
  if name not in SPECS:
    raise errors.UsageError(
        f'Unknown dataset {name!r}; choose one of: {", ".join(sorted(SPECS))}.')
  spec = SPECS[name]
  images, labels = spec.load(pathlib.Path(data_dir).expanduser())
  check(images, labels)
  protocol = splits.balanced(labels, spec.queries_per_class, split_seed, spec.protocol)
  return Dataset(
      name, images, labels, spec.class_names, spec.mean, spec.std, protocol)


def check(images: np.ndarray, labels: np.ndarray) -> None:
  """Raises InputError unless images are uint8 [rows, h, w, ch], labels 0/1 [rows, L].

  Only uint8 is accepted: a float array says nothing about its scale (0..1 or 0..255).
  """
  if images.ndim != 4 or labels.ndim != 2:
    raise errors.InputError(
        f'Images of shape {images.shape} and labels of shape {labels.shape} cannot be '
        'used; make them [rows, height, width, channels] and [rows, classes].')
  if len(images) != len(labels):
    raise errors.InputError(
        f'There are {len(images)} images but {len(labels)} rows of labels; give every '
        'image one row of labels.')
  if not images.size or not labels.size:
    raise errors.InputError(
        f'Images of shape {images.shape} with labels of shape {labels.shape} are empty; '
        'give at least one image and one class.')
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


def _load_digits(data_dir: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """The 8x8 digits inside scikit-learn: images [1797, 8, 8, 1], labels [1797, 10]."""
  del data_dir
  # Imported here because it takes a second that no other dataset needs.
  from sklearn import datasets as sklearn_datasets
  digits = sklearn_datasets.load_digits()
  images = (digits.images * 15).astype(np.uint8)  # 0..16 -> 0..240
  return images[..., np.newaxis], np.eye(10, dtype=np.uint8)[digits.target]


# Mean and std of digits are measured on all rows, those of cifar10 on the 50,000
# official training rows; the query counts of cifar10 follow the MAH paper.
SPECS = {
    'digits': DatasetSpec(
        load=_load_digits,
        class_names=tuple('0123456789'),
        mean=(0.28730380,),
        std=(0.35392868,),
        queries_per_class=10,
        protocol='digits-100-queries',
    ),
    'cifar10': DatasetSpec(
        load=cifar10.load,
        class_names=cifar10.CLASS_NAMES,
        mean=(0.49139968, 0.48215841, 0.44653091),
        std=(0.24703223, 0.24348513, 0.26158784),
        queries_per_class=100,
        protocol='cifar10-1000-queries',
    ),
}
