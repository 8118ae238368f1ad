"""Second keys: a feature in a few bytes, which orders rows whose codes are equally far away."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LARGEST = 127     # of int8
COVERED = 0.9999  # share of the numbers that are stored without being cut off


class Reduction(NamedTuple):
  """The map from features to keys.

  mean: of the features, [D] float32.
  axes: their principal axes, [D, b] float32.
  scale: the number that one step of a key stands for, of shape () float32. All axes share it, so
    that distances of keys are distances of features, but for rounding.
  """
  mean: np.ndarray
  axes: np.ndarray
  scale: np.ndarray


def fit(features: np.ndarray, size: int) -> Reduction:
  """Finds the axes on which features [n, D] vary most, `size` of them or as many as there are."""
  if features.ndim != 2 or not len(features) or size < 1:
    raise ValueError(f'Keys of {size} bytes cannot be fitted to features of shape '
                     f'{features.shape}; give at least one row and one byte.')
  mean = features.mean(axis=0, dtype=np.float64)
  centred = (features - mean).astype(np.float32)  # [n, D]
  _, vectors = np.linalg.eigh(centred.T.astype(np.float64) @ centred)
  axes = vectors[:, ::-1][:, :size].astype(np.float32)  # [D, b]
  reach = np.quantile(np.abs(centred @ axes), COVERED) or 1.0
  return Reduction(mean.astype(np.float32), axes, np.float32(reach / LARGEST))


def apply(reduction: Reduction, features: np.ndarray) -> np.ndarray:
  """The keys of features, [n, D] -> [n, b] int8; features of JAX give keys of JAX."""
  steps = (features - reduction.mean) @ reduction.axes / reduction.scale
  return steps.round().clip(-LARGEST, LARGEST).astype(np.int8)
