"""CIFAR-10 as a TFDS dataset, written and read without TensorFlow."""

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mah_jax import errors
from mah_jax.data import cifar10
from mah_jax.data import download

FORMAT = 'array_record'  # the only one that TFDS reads and writes without TensorFlow
BLOCK = 2_000            # rows decoded at once


# TFDS has a builder of this name, which needs TensorFlow; hence no registration.
class Cifar10(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """CIFAR-10 in official order; made from files in the data folder, else downloaded."""

  VERSION = tfds.core.Version('1.0.0')
  url_infos = {cifar10.OFFICIAL_URL: tfds.download.checksums.UrlInfo(
      size=cifar10.ARCHIVES[cifar10.OFFICIAL].size,
      checksum=cifar10.ARCHIVES[cifar10.OFFICIAL].sha256,
      filename=cifar10.OFFICIAL)}

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
        builder=self,
        description='60,000 colour images of 32 x 32 pixels in 10 classes.',
        features=tfds.features.FeaturesDict({
            'image': tfds.features.Tensor(shape=(32, 32, 3), dtype=np.uint8),
            'label': tfds.features.ClassLabel(names=cifar10.CLASS_NAMES),
        }),
        homepage='https://www.cs.toronto.edu/~kriz/cifar.html',
        disable_shuffling=True,
    )

  def _split_generators(
      self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
    copy = cifar10.find_official(pathlib.Path(self.data_dir_root))
    images, labels = copy.read() if copy else _download(dl_manager)
    train = 5 * cifar10.ROWS_PER_FILE
    return {
        'train': self._generate_examples(images[:train], labels[:train]),
        'test': self._generate_examples(images[train:], labels[train:]),
    }

  def _generate_examples(
      self, images: np.ndarray, labels: np.ndarray) -> Iterator[tuple[int, dict]]:
    """Yields (row, example) for images [rows, 32, 32, 3] and labels [rows, 10]."""
    for row, (image, label) in enumerate(zip(images, labels.argmax(axis=1))):
      yield row, {'image': image, 'label': int(label)}


def _download(dl_manager: tfds.download.DownloadManager) -> cifar10.Arrays:
  """Reads the official archive, downloaded and verified by TFDS."""
  download.probe(cifar10.OFFICIAL_URL)  # without a network TFDS would retry for minutes
  try:
    path = pathlib.Path(dl_manager.download(cifar10.OFFICIAL_URL))
  # The errors of TFDS for a bad answer and a bad checksum have no common base.
  except Exception as error:
    raise errors.InputError(
        f'TFDS could not download {cifar10.OFFICIAL_URL} ({error}): try again, or put '
        'the file into the data folder by hand.') from error
  return cifar10.read_archive(path, cifar10.ARCHIVES[cifar10.OFFICIAL])


def prepare(data_dir: pathlib.Path) -> pathlib.Path:
  """Writes `data_dir`/cifar10/1.0.0/ unless it is there, and returns that folder."""
  if not sys.stderr.isatty():
    tfds.disable_progress_bar()
  builder = Cifar10(data_dir=data_dir, file_format=FORMAT)
  builder.download_and_prepare()
  return pathlib.Path(builder.data_dir)


def read(folder: pathlib.Path) -> cifar10.Arrays:
  """Reads a prepared folder, ours or that of TFDS itself, in official order.

  Returns:
    images [60000, 32, 32, 3] uint8 and one-hot labels [60000, 10] uint8.
  """
  try:
    builder = tfds.builder_from_directory(folder)
    parts = [_read_split(builder, split) for split in ('train', 'test')]
  # A damaged folder makes TFDS and its file reader raise many unrelated types.
  except Exception as error:
    problem = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise errors.InputError(
        f'{folder} cannot be read as {FORMAT} with the splits train and test and the features '
        f'image and label ({problem}): run {cifar10.FETCH} --source=tfds with another '
        '--data_dir.') from error
  found = [len(labels) for _, labels in parts]
  expected = [5 * cifar10.ROWS_PER_FILE, cifar10.ROWS_PER_FILE]
  if found != expected:
    raise cifar10.damaged(
        folder, f'has {found} rows of train and test instead of {expected}')
  images, labels = (np.concatenate(arrays) for arrays in zip(*parts))
  cifar10.check_labels(labels, folder)
  return images, cifar10.one_hot(labels)


def _read_split(builder: tfds.core.DatasetBuilder, split: str) -> cifar10.Arrays:
  """Returns images [rows, 32, 32, 3] and class numbers [rows] of one split."""
  source = builder.as_data_source(split)
  rows = len(source)
  images = np.empty((rows, 32, 32, 3), np.uint8)
  labels = np.empty(rows, np.int64)
  ids = []
  for start in range(0, rows, BLOCK):
    examples = source.__getitems__(range(start, min(start + BLOCK, rows)))
    block = slice(start, start + len(examples))
    images[block] = [example['image'] for example in examples]
    labels[block] = [example['label'] for example in examples]
    ids += [example['id'] for example in examples if 'id' in example]
  if ids:  # the builder of TFDS itself shuffles, but names its rows train_00000 and on
    order = np.argsort(ids)
    return images[order], labels[order]
  return images, labels
