"""Times the resizing of a batch beside jax.image.resize, which multiplies by whole matrices.

PYTHONPATH=. python benchmarks/resize.py
"""

import time

import jax
import numpy as np
import table

from mah_jax import compiling
from mah_jax.data import pipeline
from mah_jax.data import resize

BATCH, REPEATS = 64, 15
WORK = ((32, 256), (32, 64), (8, 16), (64, 48), (256, 73))  # pixels before and after


def seconds(function, images) -> float:
  """Wall time of one call."""
  began = time.perf_counter()
  function(images).block_until_ready()
  return time.perf_counter() - began


def measure(before: int, after: int) -> dict:
  """One line: images of bytes to normalised ones, as in a training step."""
  images = np.random.default_rng(0).integers(0, 256, (BATCH, before, before, 3)).astype(np.uint8)
  pixels = pipeline.Pixels(after, 3, (0.5,) * 3, (0.3,) * 3)

  def make(function):
    def prepare(images):
      x = function(images.astype(jax.numpy.float32) / 255.0)
      return (x - jax.numpy.asarray(pixels.mean)) / jax.numpy.asarray(pixels.std)
    return jax.jit(prepare)

  ours = make(lambda x: resize.bilinear(x, after))
  other = make(lambda x: jax.image.resize(x, (len(x), after, after, 3), 'bilinear'))
  largest = float(np.abs(ours(images) - other(images)).max()) * pixels.std[0]
  times = [[seconds(function, images) for function in (ours, other)] for _ in range(REPEATS)]
  return table.row(f'resizing {BATCH} images, {before} -> {after} px', *zip(*times), 1.0,
                   f'jax.image.resize; largest difference {largest:.1e} of 1')


def rows() -> list[dict]:
  """All lines of `WORK`."""
  compiling.prepare()
  return [measure(*line) for line in WORK]


if __name__ == '__main__':
  print(table.text(rows()))
