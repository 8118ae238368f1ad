"""The handwritten digits that come with this package: small images that need no download."""

import pathlib

import numpy as np

from mah_jax import storage
from mah_jax.data import dataset

CLASS_NAMES = tuple('0123456789')
FILE = pathlib.Path(__file__).with_name('digits.npz')  # digits_licence.txt says where it is from


def load() -> dataset.Dataset:
  """Reads images [1797, 8, 8, 1] uint8 and one-hot labels [1797, 10] uint8."""
  arrays = storage.read_npz(FILE)
  images = (arrays['pixels'] * np.uint8(15))[..., None]  # 0..16 -> 0..240
  return dataset.Dataset(images, np.eye(len(CLASS_NAMES), dtype=np.uint8)[arrays['digits']],
                         CLASS_NAMES)
