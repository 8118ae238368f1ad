"""Weights and images drawn by name, the same on every machine and in every framework."""

import hashlib
import math
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util


def uniform(name: str, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
  """Float32 numbers that depend on nothing but the arguments.

  Uniform, because the generator makes those from its bits alone; normal draws would pass
  through the mathematics library of the machine.
  """
  seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], 'little')
  draws = np.random.Generator(np.random.PCG64(seed)).random(shape)
  draws *= high - low  # without a copy: the largest matrix of VGG has a hundred million
  draws += low
  return draws.astype(np.float32)


def images(seed: int, shape: tuple[int, ...]) -> np.ndarray:
  """Noise in the range of normalised images, [b, h, w, channels]."""
  return uniform(f'images/{seed}', shape, -2.0, 2.0)


def weight(path: str, shape: tuple[int, ...]) -> np.ndarray:
  """One parameter or running statistic; none has a value that would hide its absence."""
  kind = path.rsplit('/', 1)[-1]
  if kind == 'kernel':
    bound = math.sqrt(6.0 / math.prod(shape[:-1]))  # variance 2 / fan-in
    return uniform(path, shape, -bound, bound)
  low, high = {'scale': (0.5, 1.5), 'bias': (-0.5, 0.5),
               'mean': (-0.5, 0.5), 'var': (0.1, 1.9)}[kind]
  return uniform(path, shape, low, high)


def variables(module: nn.Module, images_shape: tuple[int, ...]) -> dict[str, Any]:
  """Everything `module.apply` needs for images of a shape, drawn by `weight`."""
  shapes = jax.eval_shape(
      lambda x: module.init(jax.random.key(0), x, train=False),
      jax.ShapeDtypeStruct(images_shape, np.float32))
  flat = traverse_util.flatten_dict(shapes, sep='/')
  drawn = {path: weight(path, leaf.shape) for path, leaf in flat.items()}
  return traverse_util.unflatten_dict(drawn, sep='/')


def scaled_error(values: np.ndarray, reference: np.ndarray) -> float:
  """Largest absolute difference over the standard deviation of the reference."""
  return float(np.max(np.abs(values - reference)) / np.std(reference))
