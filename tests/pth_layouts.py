"""Files as torch.save writes them, put together opcode by opcode, honest or not."""

import io
import pathlib
import pickle
import struct
import zipfile

import numpy as np
import pytest

from mah_jax import errors
from mah_jax.weights import files

MAGIC = 0x1950a86a20f9469cfc6c


def plain(value: object) -> bytes:
  """Opcodes of a plain value."""
  return pickle.dumps(value, protocol=2)[2:-1]


def named(module: str, name: str) -> bytes:
  """Opcodes that look an object up by its name."""
  return f'c{module}\n{name}\n'.encode()


def sequence(*parts: bytes) -> bytes:
  """Opcodes of a tuple."""
  return b'(' + b''.join(parts) + b't'


def call(module: str, name: str, *arguments: bytes) -> bytes:
  """Opcodes that call a function."""
  return named(module, name) + sequence(*arguments) + b'R'


def mapping(entries: dict[str, bytes]) -> bytes:
  """Opcodes of a dict."""
  return b'}(' + b''.join(plain(key) + value for key, value in entries.items()) + b'u'


def pickled(opcodes: bytes) -> bytes:
  return b'\x80\x02' + opcodes + b'.'


def storage(key: str = '0', size: object = 6, kind: str = 'Float', *more: bytes) -> bytes:
  """A reference to numbers outside of the pickle."""
  return sequence(plain('storage'), named('torch', f'{kind}Storage'), plain(key), plain('cpu'),
                  plain(size), *more) + b'Q'


def tensor(numbers: bytes, shape: object = (2, 3), strides: object = (3, 1),
           offset: object = 0) -> bytes:
  hooks = call('collections', 'OrderedDict')
  return call('torch._utils', '_rebuild_tensor_v2', numbers, plain(offset), plain(shape),
              plain(strides), plain(False), hooks)


def zip_file(opcodes: bytes, storages: dict[str, bytes], order: str = 'little',
             compression: int = zipfile.ZIP_STORED) -> bytes:
  stream = io.BytesIO()
  with zipfile.ZipFile(stream, 'w', compression) as archive:
    archive.writestr('any/data.pkl', pickled(opcodes))
    archive.writestr('any/byteorder', order)
    for key, content in storages.items():
      archive.writestr(f'any/data/{key}', content)
    archive.writestr('any/version', '3\n')
  return stream.getvalue()


def legacy_file(opcodes: bytes, storages: dict[str, bytes],
                magic: bytes = plain(MAGIC)) -> bytes:
  """The format before PyTorch 1.6; `magic` are the opcodes of its first pickle."""
  system = {'protocol_version': 1001, 'little_endian': True, 'type_sizes': {'int': 4}}
  heads = [magic, plain(1001), plain(system), opcodes, plain(list(storages))]
  tails = [struct.pack('<q', len(part) // 4) + part for part in storages.values()]
  return b''.join([*map(pickled, heads), *tails])


def read(folder: pathlib.Path, content: bytes) -> dict[str, np.ndarray]:
  """The tensors in a file of this content."""
  path = folder / 'weights.pth'
  path.write_bytes(content)
  return files.read(path).tensors


def refusal(folder: pathlib.Path, content: bytes) -> str:
  """The message for a file that must be refused, which is one sentence."""
  with pytest.raises(errors.InputError) as caught:
    read(folder, content)
  message = str(caught.value)
  assert 'weights.pth' in message and '\n' not in message
  return message


FORMATS = {'zip': zip_file, 'legacy': legacy_file}
