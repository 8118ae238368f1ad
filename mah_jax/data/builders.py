"""Datasets as TFDS prepares them, written and read without TensorFlow."""

import contextlib
import functools
import io
import pathlib
import sys
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from mah_jax import errors
from mah_jax import storage
from mah_jax.data import cifar10
from mah_jax.data import dataset
from mah_jax.data import images as images_lib
from mah_jax.data import multilabel
from mah_jax.fetching import download
from mah_jax.fetching import sources

FORMAT = 'array_record'  # the only one that TFDS reads and writes without TensorFlow
BLOCK = 2_000            # rows decoded at once
SHARD = 2_000            # photographs in a file, some 250 MB
SPLIT = 'images'         # the only split of the multi-label datasets
ROWS = 'rows.npz'        # file with names and labels, to be read without the images
SKIPPED = 'skipped.json'  # file with name -> reason, for the images left out


# This builder is not registered, because TFDS has one of the same name, which needs TensorFlow.
class Cifar10(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """Prepares CIFAR-10 in official order, from files in the data folder, else from a download."""

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


# GeneratorBasedBuilder keeps all examples in memory even where it does not shuffle them,
# and needs TensorFlow as soon as they exceed 1 GB.
class _MultiLabel(tfds.core.ShardBasedBuilder, skip_registration=True):
  """Prepares one of `multilabel.LAYOUTS` in the order of its listing: files, labels, names."""

  VERSION = tfds.core.Version(multilabel.VERSION)
  KEY = ''  # name in LAYOUTS

  def _info(self) -> tfds.core.DatasetInfo:
    layout = multilabel.LAYOUTS[self.KEY]
    return tfds.core.DatasetInfo(
        builder=self,
        description=f'{layout.title}: photographs with {layout.kept_labels} labels.',
        features=tfds.features.FeaturesDict({
            'image': tfds.features.Image(),
            'labels': tfds.features.Tensor(shape=(layout.kept_labels,), dtype=np.uint8),
            'name': tfds.features.Text(),
        }),
        disable_shuffling=True,
    )

  def _shard_iterators_per_split(
      self, dl_manager: tfds.download.DownloadManager) -> Mapping[str, Any]:
    del dl_manager
    listing = multilabel.read(self.KEY, pathlib.Path(self.data_dir_root))
    with tfds.core.utils.tqdm(total=len(listing.names), desc='Checking images') as bar:
      skipped = multilabel.unusable(listing, bar.update)
    kept = np.array([name not in skipped for name in listing.names])
    names, labels = np.array(listing.names)[kept], listing.labels[kept]
    folder = pathlib.Path(self.data_dir)  # TFDS renames this folder when all is done
    np.savez_compressed(folder / ROWS, names=names, labels=labels,
                        class_names=np.array(listing.class_names))
    storage.write_json(folder / SKIPPED, skipped)
    return {SPLIT: [
        functools.partial(_examples, listing.root, names[start:start + SHARD],
                          labels[start:start + SHARD], f'Copying images from {start:,} on')
        for start in range(0, len(names), SHARD)]}


class MirFlickr(_MultiLabel, skip_registration=True):
  """Prepares MIRFlickr-25K from the official files in the data folder."""
  KEY = 'mirflickr'


class NusWide(_MultiLabel, skip_registration=True):
  """Prepares NUS-WIDE with its 21 most frequent labels from files in the data folder."""
  KEY = 'nuswide'


BUILDERS = {'cifar10': Cifar10, 'mirflickr': MirFlickr, 'nuswide': NusWide}


def _examples(root: pathlib.Path, names: np.ndarray, labels: np.ndarray,
              title: str) -> Iterator[tuple[int, dict]]:
  """Yields (number in the shard, example) for the rows of a shard.

  Args:
    root: folder of the images.
    names: file name of each row of the shard, [rows].
    labels: [rows, L].
    title: what the progress bar says.
  """
  bar = tfds.core.utils.tqdm(names.tolist(), desc=title, leave=False)
  for number, (name, label) in enumerate(zip(bar, labels)):
    yield number, {'image': root / name, 'labels': label, 'name': name}


def prepare(name: str, data_dir: pathlib.Path) -> pathlib.Path:
  """Writes the folder of one of `BUILDERS` below `data_dir` unless it is there; returns it.

  Raises:
    errors.InputError: the official files are absent or unusable.
  """
  builder = BUILDERS[name]
  folder = data_dir / builder.name / str(builder.VERSION)
  if not folder.is_dir():  # TFDS renames a temporary folder to this when all is written
    if not sys.stderr.isatty():
      tfds.disable_progress_bar()
    # TFDS announces a download of unknown size, even where there is none.
    with _tidied(data_dir, folder.parent), contextlib.redirect_stdout(io.StringIO()):
      builder(data_dir=data_dir, file_format=FORMAT).download_and_prepare()
  return folder


@contextlib.contextmanager
def _tidied(data_dir: pathlib.Path, folder: pathlib.Path) -> Iterator[None]:
  """Removes the empty folders that TFDS makes even where the official files turn out absent."""
  made = [path for path in (data_dir / 'downloads/extracted', data_dir / 'downloads', folder)
          if not path.exists()]
  try:
    yield
  except BaseException:
    for path in made:
      with contextlib.suppress(OSError):  # it is not empty
        path.rmdir()
    raise


def report(folder: pathlib.Path) -> str:
  """Says how much a prepared multi-label folder holds, and which images were left out."""
  data = read_encoded(folder)
  rows, labels = data.labels.shape
  return f'Prepared {folder}: {rows:,} images with {labels} labels. {data.report}'.strip()


def read_encoded(folder: pathlib.Path) -> dataset.Dataset:
  """Opens a prepared multi-label folder; threads may read and decode its images.

  Raises:
    errors.InputError: the folder is damaged.
  """
  try:
    with np.load(folder / ROWS) as rows:
      names, labels, class_names = (rows[key] for key in ('names', 'labels', 'class_names'))
    version = str((folder / ROWS).stat().st_mtime_ns)  # changes when it is prepared again
    skipped = storage.read_json(folder / SKIPPED)
    source = tfds.builder_from_directory(folder).as_data_source(
        SPLIT, decoders={'image': tfds.decode.SkipDecoding()})
    images = len(source)
  # A damaged folder makes NumPy, TFDS and its file reader raise many unrelated types.
  except Exception as error:
    raise _damaged(folder, error) from error
  if not len(names) == len(labels) == images:
    raise _damaged(
        folder, f'it has {images} images, {len(names)} names, {len(labels)} rows of labels')

  def read(row: int) -> bytes:
    try:
      return source[row]['image']
    except Exception as error:
      raise _damaged(folder, error) from error

  text = (f'{len(skipped):,} of {len(skipped) + len(names):,} images were left out '
          f'({images_lib.first(skipped)}); all are in {folder / SKIPPED}.') if skipped else ''
  names = names.tolist()
  return dataset.Dataset(images_lib.Encoded(read, names, version=version), labels,
                         tuple(class_names.tolist()), names, text)


def read(folder: pathlib.Path) -> cifar10.Arrays:
  """Reads a prepared CIFAR-10, ours or that of TFDS itself, in official order.

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
  rows = [len(labels) for _, labels in parts]
  expected = [5 * cifar10.ROWS_PER_FILE, cifar10.ROWS_PER_FILE]
  if rows != expected:
    raise cifar10.damaged(
        folder, f'has {rows} rows of train and test instead of {expected}')
  images, labels = (np.concatenate(arrays) for arrays in zip(*parts))
  cifar10.check_labels(labels, folder)
  return images, cifar10.one_hot(labels)


def _damaged(folder: pathlib.Path, error: Exception | str) -> errors.InputError:
  problem = ' '.join(str(error).split()) or type(error).__name__
  return errors.InputError(f'{folder} cannot be read ({problem}): delete it and prepare it '
                           f'again with {sources.COMMAND}.')


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
