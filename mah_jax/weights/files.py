"""Files of pretrained weights, read by their kind and written as .safetensors."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from mah_jax import errors
from mah_jax import storage
from mah_jax.models import imagenet
from mah_jax.weights import keras
from mah_jax.weights import pth

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


class _Kind(NamedTuple):
  """A kind of file: the function that reads its weights, and the one for its network's name."""
  read: Callable[[pathlib.Path], Weights]
  backbone: Callable[[pathlib.Path], str]


def read(path: str | os.PathLike) -> Weights:
  """Reads weights from anything that is `ACCEPTED`; `~` is expanded.

  Raises:
    errors.InputError: the file is absent, of another kind, or damaged.
  """
  path = storage.path(path)
  if not path.exists():
    raise errors.InputError(f'{path} does not exist: name {ACCEPTED}.')
  file = _file(path)
  kind = _kind(file)
  if kind is None:
    raise errors.InputError(f'{path} is not {ACCEPTED}.')
  return kind.read(file)


def backbone_of(path: str | os.PathLike) -> str:
  """The network that a file of weights says it is of; no tensor is read.

  Returns:
    Our name of the network, or '' if the file does not say, is absent or is damaged; `read`
    tells these apart.
  """
  file = _file(storage.path(path))
  kind = _kind(file)
  try:
    return kind.backbone(file) if kind and file.is_file() else ''
  except errors.InputError:
    return ''


def from_keras(model: keras.Model) -> Weights:
  """The weights of a Keras ResNet-50."""
  return Weights(keras.convert(model), keras.BACKBONE, keras.MEAN, keras.STD, model.path)


def write(path: str | os.PathLike, weights: Weights) -> None:
  """Writes weights as .safetensors; the file is there when it is whole, or not at all."""
  about = {'backbone': weights.backbone, 'mean': weights.mean, 'std': weights.std}
  tensors = {name: np.ascontiguousarray(array) for name, array in weights.tensors.items()}
  # save_file of the library would make a file that others may not read.
  storage.write(storage.path(path), safetensors.numpy.save(tensors, {METADATA: json.dumps(about)}))


def _file(path: pathlib.Path) -> pathlib.Path | None:
  """The file that a path means: a folder means the model.json in it, if there is one."""
  return keras.find(path) if path.is_dir() else path


def _kind(file: pathlib.Path | None) -> _Kind | None:
  """The kind of a file, by its name; None if there is no file or it is not `ACCEPTED`."""
  return file and _KINDS.get(file.name, _KINDS.get(file.suffix))


def _read_safetensors(path: pathlib.Path) -> Weights:
  with _blaming(path), safetensors.safe_open(path, framework='np') as file:
    about, tensors = _about(file), file.get_tensors()
  return Weights(_tidy(tensors, path), about['backbone'], about['mean'], about['std'], path)


def _backbone_of_safetensors(path: pathlib.Path) -> str:
  with _blaming(path), safetensors.safe_open(path, framework='np') as file:
    return _about(file)['backbone']


@contextlib.contextmanager
def _blaming(path: pathlib.Path) -> Iterator[None]:
  """Turns whatever a damaged .safetensors file makes its reader raise into an InputError."""
  try:
    yield
  # Damaged files raise an error of the library, types unknown to NumPy an AttributeError.
  except Exception as error:
    problem = ' '.join(str(error).split())
    raise errors.InputError(f'{path} is not a whole .safetensors file of weights ({problem}): '
                            'get it again.') from error


def _about(file: Any) -> dict[str, Any]:
  """The backbone, mean and std that the header of an open .safetensors file names."""
  about = {'backbone': '', 'mean': imagenet.MEAN, 'std': imagenet.STD}
  about |= json.loads((file.metadata() or {}).get(METADATA, '{}'))
  if not isinstance(about['backbone'], str):
    raise ValueError(f'its backbone is {about["backbone"]}')
  return about | {name: _channels(about[name]) for name in ('mean', 'std')}


def _channels(values: Sequence[float]) -> tuple[float, ...]:
  """Checks the mean or deviation of three channels, which are positive."""
  if len(values) != 3 or not 0 < min(values) <= max(values) < float('inf'):
    raise ValueError(f'its mean or std is {values}')
  return tuple(values)


def _read_pth(path: pathlib.Path) -> Weights:
  return Weights(_tidy(pth.read(path), path), '', imagenet.MEAN, imagenet.STD, path)


def _read_keras(path: pathlib.Path) -> Weights:
  return from_keras(keras.load(path))


_SAFETENSORS = _Kind(_read_safetensors, _backbone_of_safetensors)
_PTH = _Kind(_read_pth, lambda path: '')
_KERAS = _Kind(_read_keras, lambda path: keras.BACKBONE)
_KINDS = {'.safetensors': _SAFETENSORS, '.pth': _PTH, '.pt': _PTH, '.tgz': _KERAS,
          'model.json': _KERAS}


def _tidy(tensors: dict[str, np.ndarray], path: pathlib.Path) -> dict[str, np.ndarray]:
  """Makes all tensors float32, under the names that one device gives them, without counters."""
  prefix = PARALLEL if all(name.startswith(PARALLEL) for name in tensors) else ''
  tidy = {}
  for name, array in tensors.items():
    if name.endswith(COUNTER):
      continue
    if array.dtype.kind in 'biuc':
      raise errors.InputError(f'{name} in {path} has type {array.dtype}, not a float: use '
                              'weights that are not quantised.')
    with np.errstate(over='ignore'):  # a number that overflows is infinite, and refused as such
      tidy[name.removeprefix(prefix)] = np.ascontiguousarray(array, np.float32)
  return tidy
