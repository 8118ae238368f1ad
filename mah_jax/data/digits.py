"""The digits that come with scikit-learn: small images that need no download."""

import gzip
import importlib.util
import pathlib

import numpy as np

from mah_jax import errors
from mah_jax.data import dataset

CLASS_NAMES = tuple('0123456789')


def load() -> dataset.Dataset:
  """Reads images [1797, 8, 8, 1] uint8 and one-hot labels [1797, 10] uint8.

  The file of scikit-learn is read without importing scikit-learn, which would take a second.
  """
  package = importlib.util.find_spec('sklearn')
  if package is None:
    raise errors.InputError('The digits are inside scikit-learn: pip install scikit-learn.')
  path = pathlib.Path(package.origin).parent / 'datasets' / 'data' / 'digits.csv.gz'
  lines = gzip.decompress(path.read_bytes()).decode().split()
  table = np.array([line.split(',') for line in lines], np.float32).astype(np.uint8)
  pixels, digit = table[:, :64], table[:, 64]
  images = (pixels * np.uint8(15)).reshape(-1, 8, 8, 1)  # 0..16 -> 0..240
  return dataset.Dataset(images, np.eye(len(CLASS_NAMES), dtype=np.uint8)[digit], CLASS_NAMES)
