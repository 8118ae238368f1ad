"""The Keras ResNet-50 in TensorFlow.js format, under torchvision's names and layouts."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import pathlib
import re
import tarfile
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

from mah_jax import errors
from mah_jax.models import imagenet

BACKBONE = 'resnet50_v1'  # its stride is on the 1x1 convolutions
MEAN = tuple(value / 255 for value in (123.68, 116.779, 103.939))  # red, green, blue
STD = imagenet.STD  # Keras has none; this one gives inputs the usual scale
EPSILON = 1e-5      # batch norm has it in torchvision and in our networks
LARGEST = 1 << 30   # bytes that a file of the archive may have
CHUNK = 1 << 20     # bytes read at once
_PARTS = {'2a': ('conv1', 'bn1'), '2b': ('conv2', 'bn2'), '2c': ('conv3', 'bn3'),
          '1': ('downsample.0', 'downsample.1')}


class Model(NamedTuple):
  """The Keras model as its files have it.

  path: the archive or the model.json.
  arrays: in Keras's layouts, by layer and kind, as in 'conv1/kernel'.
  epsilons: the epsilon of each batch norm, by layer.
  """
  path: pathlib.Path
  arrays: dict[str, np.ndarray]
  epsilons: dict[str, float]


def find(folder: pathlib.Path) -> pathlib.Path | None:
  """The first model.json in a folder or up to two levels below, if there is one."""
  return next((path for depth in ('', '*/', '*/*/')
               for path in sorted(folder.glob(f'{depth}model.json'))), None)


def load(path: pathlib.Path) -> Model:
  """Reads model.json and the shards beside it, or the same files in an archive (.tgz).

  Raises:
    errors.InputError: the files are damaged, or of another model.
  """
  with _blaming(path):
    contents = _archived(path) if path.suffix == '.tgz' else _unpacked(path.parent)
    description = json.loads(contents['model.json'])
    arrays = {}
    for group in description['weightsManifest']:
      arrays |= _cut(group['weights'], b''.join(contents[name] for name in group['paths']))
    layers = description['modelTopology']['model_config']['config']['layers']
    return Model(path, arrays, {layer['config']['name']: layer['config']['epsilon']
                                for layer in layers if 'epsilon' in layer['config']})


@contextlib.contextmanager
def _blaming(path: pathlib.Path) -> Iterator[None]:
  """Turns whatever damaged files make their readers raise into an InputError."""
  try:
    yield
  except Exception as error:
    lacking = isinstance(error, KeyError)
    problem = f'it lacks {error.args[0]}' if lacking else ' '.join(str(error).split())
    raise errors.InputError(f'{path} is not a whole Keras ResNet-50 in TensorFlow.js format '
                            f'({problem}): get it again.') from error


def _archived(path: pathlib.Path) -> dict[str, bytes]:
  """Contents of model.json and of the shards, by name; nothing is unpacked to disk."""
  contents = {}
  with gzip.open(path) as stream, tarfile.open(fileobj=stream) as tar:
    for member in tar:
      name = pathlib.PurePosixPath(member.name).name
      if member.isfile() and _wanted(name):
        if name in contents or member.size > LARGEST:
          raise ValueError(f'{member.name} is there twice or larger than {LARGEST:,} bytes')
        contents[name] = tar.extractfile(member).read()
    while stream.read(CHUNK):  # up to the checksum at the end
      pass
  return contents


def _unpacked(folder: pathlib.Path) -> dict[str, bytes]:
  """Contents of model.json and of the shards in a folder, by name."""
  return {path.name: path.read_bytes() for path in folder.iterdir() if _wanted(path.name)}


def _wanted(name: str) -> bool:
  return name == 'model.json' or name.endswith('.bin')


def _cut(specs: list[dict[str, Any]], content: bytes) -> dict[str, np.ndarray]:
  """Cuts the joined shards of a group into its arrays, by name."""
  if any(spec['dtype'] != 'float32' or 'quantization' in spec for spec in specs):
    raise ValueError('its numbers are not all float32')
  sizes = [4 * math.prod(spec['shape']) for spec in specs]
  if sum(sizes) != len(content):
    raise ValueError(f'its shards have {len(content):,} bytes instead of {sum(sizes):,}')
  return {spec['name']: np.frombuffer(content[end - size:end], '<f4').reshape(spec['shape'])
          for spec, size, end in zip(specs, sizes, np.cumsum(sizes))}


def convert(model: Model) -> dict[str, np.ndarray]:
  """Rewrites the network for torchvision's ResNet, which has no biases, without changing it.

  The mean of a batch norm loses the bias of the convolution before it, and its variance gains
  the difference of the epsilons. conv1 reads (RGB / 255 - MEAN) / STD, as our networks do,
  instead of BGR - 255 MEAN.

  Returns:
    float32 arrays by torchvision's names: convolutions [out, in, h, w], the top [out, in].
  """
  left = {name: array.astype(np.float64) for name, array in model.arrays.items()}
  tensors = {}
  with _blaming(model.path):
    tensors['fc.weight'] = left.pop('fc1000/kernel').T
    tensors['fc.bias'] = left.pop('fc1000/bias')
    left['conv1/kernel'] = left['conv1/kernel'][:, :, ::-1] * 255 * np.array(STD)[:, None]
    for layer in [name.removesuffix('/kernel') for name in left if name.endswith('/kernel')]:
      conv, norm, keras_norm = _names(layer)
      kernel, bias = left.pop(f'{layer}/kernel'), left.pop(f'{layer}/bias')
      scale, shift, mean, variance = (
          left.pop(f'{keras_norm}/{kind}')
          for kind in ('gamma', 'beta', 'moving_mean', 'moving_variance'))
      if {a.shape for a in (scale, shift, mean, variance, bias)} != {kernel.shape[3:]}:
        raise ValueError(f'{layer} and {keras_norm} have different sizes')
      tensors |= {
          f'{conv}.weight': kernel.transpose(3, 2, 0, 1),
          f'{norm}.weight': scale,
          f'{norm}.bias': shift,
          f'{norm}.running_mean': mean - bias,
          f'{norm}.running_var': variance + model.epsilons[keras_norm] - EPSILON,
      }
    if left:
      raise ValueError(f'no ResNet-50 has {next(iter(left))}')
  return {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}


def _names(layer: str) -> tuple[str, str, str]:
  """Torchvision's names of a convolution and its batch norm, and Keras's of the batch norm."""
  if layer == 'conv1':
    return 'conv1', 'bn1', 'bn_conv1'
  match = re.fullmatch(r'res([2-5])([a-z])_branch(1|2[abc])', layer)
  if not match:
    raise ValueError(f'no ResNet-50 has {layer}')
  stage, letter, branch = match.groups()
  conv, norm = _PARTS[branch]
  block = f'layer{int(stage) - 1}.{ord(letter) - ord("a")}'
  return f'{block}.{conv}', f'{block}.{norm}', layer.replace('res', 'bn')
