"""PyTorch .pth files, read without PyTorch and without running what they contain."""

from __future__ import annotations

import collections
import io
import math
import pathlib
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np

from mah_jax import errors

Buffer = bytes | memoryview
Reader = Callable[['_Storage'], Buffer]

LEGACY_MAGIC = 0x1950a86a20f9469cfc6c  # first of the pickles in the format before PyTorch 1.6
WRAPPERS = ('state_dict', 'model')     # keys under which training scripts keep the weights
BFLOAT16 = 'bfloat16'                  # unknown to NumPy
DTYPES = {'Float': 'f4', 'Half': 'f2', 'Double': 'f8', 'BFloat16': BFLOAT16, 'Long': 'i8',
          'Int': 'i4', 'Short': 'i2', 'Char': 'i1', 'Byte': 'u1', 'Bool': '?'}


class _Storage(NamedTuple):
  """A sequence of numbers: the key under which the file keeps it, its type, its length."""
  key: str
  dtype: str
  size: int

  @property
  def stored(self) -> np.dtype:
    """The NumPy type that the bytes have."""
    return np.dtype('u2' if self.dtype == BFLOAT16 else self.dtype)


class _Tensor(NamedTuple):
  """A tensor as a window on a storage; offset and strides count numbers, not bytes."""
  storage: _Storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]

  def __setstate__(self, state: object) -> None:
    """Ignores the flags and hooks that early versions of PyTorch add to a parameter."""


class _Call(NamedTuple):
  """A function that a pickle may call but not change, as a tuple is immutable."""
  function: Callable[..., Any]

  def __call__(self, *arguments: Any) -> Any:
    return self.function(*arguments)


_TENSOR = _Call(lambda storage, offset, shape, strides, *gradients: _Tensor(
    storage, offset, tuple(shape), tuple(strides)))
_PARAMETER = _Call(lambda tensor, *gradients: tensor)
_ALLOWED = {
    ('collections', 'OrderedDict'): _Call(collections.OrderedDict),
    ('torch', 'Size'): _Call(tuple),
    ('torch._utils', '_rebuild_tensor'): _TENSOR,
    ('torch._utils', '_rebuild_tensor_v2'): _TENSOR,
    ('torch._utils', '_rebuild_parameter'): _PARAMETER,
    ('torch.nn.parameter', 'Parameter'): _PARAMETER,
    **{('torch', f'{name}Storage'): dtype for name, dtype in DTYPES.items()},
}


class _Unpickler(pickle.Unpickler):
  """Builds containers and `_Tensor`s; a pickle that asks for anything else is refused."""

  def __init__(self, content: bytes, path: pathlib.Path):
    super().__init__(io.BytesIO(content), encoding='utf-8')
    self._path = path
    self.storages = {}

  def find_class(self, module_name: str, global_name: str) -> object:
    if (module_name, global_name) not in _ALLOWED:
      raise errors.InputError(
          f'{self._path} asks for {module_name}.{global_name}, which weights do not need, and '
          'was not executed: use a file written by torch.save(model.state_dict(), ...).')
    return _ALLOWED[module_name, global_name]

  def persistent_load(self, pid: Any) -> _Storage:
    kind, dtype, key, _, size, *views = pid
    if kind != 'storage' or dtype not in DTYPES.values() or any(views):
      raise ValueError('it stores numbers in an unknown form')
    return self.storages.setdefault(key, _Storage(key, dtype, size))


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads a state dict, bare or under one of `WRAPPERS`, in either format of torch.save.

  Returns:
    Arrays by name, as they are in the file but for bfloat16, which becomes float32.

  Raises:
    errors.InputError: the file is damaged, of another kind, or asks for more than tensors.
  """
  content = path.read_bytes()
  load = _load_zip if content.startswith(b'PK\x03\x04') else _load_legacy
  try:
    return _arrays(*load(content, path), len(content))
  except errors.InputError:
    raise
  # Damaged or hostile bytes can make the readers of zip files and pickles raise anything.
  except Exception as error:
    problem = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise errors.InputError(
        f'{path} ({len(content):,} bytes) is not a whole file of weights ({problem}): get it '
        'again, or one written by torch.save(model.state_dict(), ...).') from error


def _load_zip(content: bytes, path: pathlib.Path) -> tuple[Any, Reader, str]:
  """Reads <root>/data.pkl, beside which each storage is the member data/<key>.

  Returns:
    The unpickled object, the reader of a storage's bytes, and the order of bytes in a number.
  """
  archive = zipfile.ZipFile(io.BytesIO(content))
  # torch.save compresses nothing, and what is not compressed cannot grow while it is read.
  if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
    raise ValueError('its members are compressed')
  names = archive.namelist()
  roots = [name.removesuffix('data.pkl') for name in names if name.endswith('/data.pkl')]
  if len(roots) != 1:
    raise ValueError('it has no data.pkl')
  state, _, _ = _unpickle(archive.read(f'{roots[0]}data.pkl'), 0, path)
  order = f'{roots[0]}byteorder'
  big = order in names and archive.read(order) == b'big'
  return state, lambda s: archive.read(f'{roots[0]}data/{s.key}'), '>' if big else '<'


def _load_legacy(content: bytes, path: pathlib.Path) -> tuple[Any, Reader, str]:
  """Reads five pickles in a row, then each storage as its size and its numbers.

  Returns:
    The unpickled object, the reader of a storage's bytes, and the order of bytes in a number.
  """
  magic, _, end = _unpickle(content, 0, path)
  if magic != LEGACY_MAGIC:
    raise ValueError('it starts in another way')
  for _ in range(2):  # the version of the format and the sizes of C types
    _, _, end = _unpickle(content, end, path)
  state, storages, end = _unpickle(content, end, path)
  keys, _, end = _unpickle(content, end, path)
  parts = {}
  for key in keys:
    if int.from_bytes(content[end:end + 8], 'little') != storages[key].size:
      raise ValueError(f'storage {key} has another size than announced')
    start, end = end + 8, end + 8 + storages[key].size * storages[key].stored.itemsize
    parts[key] = memoryview(content)[start:end]
  return state, lambda s: parts[s.key], '<'


def _unpickle(content: bytes, start: int, path: pathlib.Path) -> tuple[Any, dict, int]:
  """Reads one pickle; returns its object, the storages it names, and where it ends."""
  stream = io.BytesIO(content)
  stream.seek(start)
  # The unpickler would reserve memory for any length and any memo number that it is told. This
  # pass over the opcodes builds nothing and meets every length first.
  for opcode, argument, _ in pickletools.genops(stream):
    if opcode.name in ('PUT', 'BINPUT', 'LONG_BINPUT') and argument > len(content):
      raise ValueError(f'it refers to an object {argument}')
  unpickler = _Unpickler(content[start:stream.tell()], path)
  return unpickler.load(), unpickler.storages, stream.tell()


def _arrays(state: Any, data: Reader, order: str, limit: int) -> dict[str, np.ndarray]:
  """Makes arrays of the table of tensors in a pickle, of `limit` numbers at most."""
  for key in WRAPPERS:
    if isinstance(state, dict) and isinstance(state.get(key), dict):
      state = state[key]
  if not isinstance(state, dict) or not state or not all(
      isinstance(name, str) and isinstance(tensor, _Tensor) for name, tensor in state.items()):
    raise ValueError('it holds something else than a table of tensors')
  for name, tensor in state.items():
    sizes = (tensor.offset, *tensor.shape, *tensor.strides)
    if (not all(type(size) is int and size >= 0 for size in sizes)
        or len(tensor.shape) != len(tensor.strides)):
      raise ValueError(f'{name} has an impossible shape')
  if sum(math.prod(tensor.shape) for tensor in state.values()) > limit:
    raise ValueError('its tensors have more numbers than it has bytes')
  numbers = {s: _numbers(s, data(s), order) for s in {t.storage for t in state.values()}}
  return {name: _window(name, tensor, numbers[tensor.storage])
          for name, tensor in state.items()}


def _numbers(storage: _Storage, data: Buffer, order: str) -> np.ndarray:
  """Decodes the bytes of a storage, [size]."""
  numbers = np.frombuffer(data, storage.stored.newbyteorder(order))
  if len(numbers) != storage.size:
    raise ValueError(f'storage {storage.key} has {len(numbers)} of {storage.size} numbers')
  if storage.dtype == BFLOAT16:  # the upper half of a float32
    return (numbers.astype(np.uint32) << 16).view(np.float32)
  return numbers


def _window(name: str, tensor: _Tensor, numbers: np.ndarray) -> np.ndarray:
  """The part of a storage that a tensor shows; raises ValueError if it reaches beyond."""
  last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides))
  if math.prod(tensor.shape) and last >= len(numbers):
    raise ValueError(f'{name} reaches beyond its storage')
  return np.lib.stride_tricks.as_strided(
      numbers[tensor.offset:], tensor.shape, [s * numbers.itemsize for s in tensor.strides])
