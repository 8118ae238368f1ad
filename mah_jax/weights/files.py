"""Files of pretrained weights, read by their kind and written as .safetensors."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from mah_jax import errors
from mah_jax.weights import keras
from mah_jax.weights import pth

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ACCEPTED = ('a .pth or .pt file of PyTorch, a .safetensors file, or a Keras ResNet-50 in '
            'TensorFlow.js format (.tgz, folder or model.json)')
PARALLEL = 'module.'             # put before all names by torch.nn.DataParallel
COUNTER = 'num_batches_tracked'  # in PyTorch's batch norm; ours has none
METADATA = 'mah_jax'  # JSON with backbone, mean and std; two keys would come in random order


class Weights(NamedTuple):
  """A trained network.

  tensors: float32 by torchvision's names, convolutions [out, in, h, w], linear [out, in].
  backbone: our name of the network, or '' if the file does not say.
  mean, std: the network reads (RGB / 255 - mean) / std.
  path: the file.
  """
  tensors: dict[str, np.ndarray]
  backbone: str
  mean: tuple[float, ...]
  std: tuple[float, ...]
  path: pathlib.Path


def read(path: str | os.PathLike) -> Weights:
  """Reads weights from anything that is `ACCEPTED`."""
  path = pathlib.Path(path)
  if not path.exists():
    raise errors.InputError(f'{path} does not exist: name {ACCEPTED}.')
  file = keras.find(path) if path.is_dir() else path
  reader = file and _READERS.get(file.name, _READERS.get(file.suffix))
  if reader is None:
    raise errors.InputError(f'{path} is not {ACCEPTED}.')
  return reader(file)


def from_keras(model: keras.Model) -> Weights:
  """The weights of a Keras ResNet-50."""
  return Weights(keras.convert(model), keras.BACKBONE, keras.MEAN, keras.STD, model.path)


def write(path: str | os.PathLike, weights: Weights) -> None:
  """Writes weights as .safetensors; the file is there when it is whole, or not at all."""
  part = pathlib.Path(f'{path}.part')
  about = {'backbone': weights.backbone, 'mean': weights.mean, 'std': weights.std}
  tensors = {name: np.ascontiguousarray(array) for name, array in weights.tensors.items()}
  try:
    # save_file would make a file that others may not read.
    part.write_bytes(safetensors.numpy.save(tensors, {METADATA: json.dumps(about)}))
    os.replace(part, path)
  finally:
    part.unlink(missing_ok=True)


def _read_safetensors(path: pathlib.Path) -> Weights:
  try:
    with safetensors.safe_open(path, framework='np') as file:
      tensors, metadata = file.get_tensors(), file.metadata() or {}
    about = {'backbone': '', 'mean': IMAGENET_MEAN, 'std': IMAGENET_STD}
    about |= json.loads(metadata.get(METADATA, '{}'))
    mean, std = _channels(about['mean']), _channels(about['std'])
  # Damaged files raise the library's own error, types unknown to NumPy an AttributeError.
  except Exception as error:
    problem = ' '.join(str(error).split())
    raise errors.InputError(f'{path} is not a whole .safetensors file of weights ({problem}): '
                            'get it again.') from error
  return Weights(_tidy(tensors, path), about['backbone'], mean, std, path)


def _channels(values: Sequence[float]) -> tuple[float, ...]:
  """The mean or deviation of three channels, which are positive."""
  if len(values) != 3 or not 0 < min(values) <= max(values) < float('inf'):
    raise ValueError(f'its mean or std is {values}')
  return tuple(values)


def _read_pth(path: pathlib.Path) -> Weights:
  return Weights(_tidy(pth.read(path), path), '', IMAGENET_MEAN, IMAGENET_STD, path)


def _read_keras(path: pathlib.Path) -> Weights:
  return from_keras(keras.load(path))


_READERS = {'.safetensors': _read_safetensors, '.pth': _read_pth, '.pt': _read_pth,
            '.tgz': _read_keras, 'model.json': _read_keras}


def _tidy(tensors: dict[str, np.ndarray], path: pathlib.Path) -> dict[str, np.ndarray]:
  """Makes everything float32, under names as a single device has them, without counters."""
  prefix = PARALLEL if all(name.startswith(PARALLEL) for name in tensors) else ''
  tidy = {}
  for name, array in tensors.items():
    if name.endswith(COUNTER):
      continue
    if array.dtype.kind in 'biuc':
      raise errors.InputError(f'{name} in {path} has type {array.dtype}, not a float: use '
                              'weights that are not quantised.')
    with np.errstate(over='ignore'):  # what overflows is infinite, and refused as such
      tidy[name.removeprefix(prefix)] = np.ascontiguousarray(array, np.float32)
  return tidy
