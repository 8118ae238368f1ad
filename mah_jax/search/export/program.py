"""Codes and neighbours of images by an exported run. It needs JAX and NumPy alone.

    python search.py IMAGES.npy [K [LENGTH]]

prints the K rows nearest to each image of an array [n, h, w, ch] uint8. From Python:

    import search
    run = search.Run()
    distances, rows = run.search(images, k=10)
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sys

import jax
import numpy as np
from jax import export

BATCH = 64  # images that are encoded at once


class Run:
  """An exported run.

  shape: of the images that it encodes, (h, w, ch).
  lengths: bits of its codes.
  """

  def __init__(self, folder: str | os.PathLike = ''):
    """Opens the folder of an export; empty: the one that this file is in."""
    self.folder = pathlib.Path(folder or pathlib.Path(__file__).parent)
    encoder = export.deserialize(bytearray((self.folder / 'encoder.stablehlo').read_bytes()))
    self._encode = jax.jit(encoder.call)
    self.shape = tuple(encoder.in_avals[0].shape[1:])
    self.lengths = sorted(int(path.stem.removeprefix('index_'))
                          for path in self.folder.glob('index_*.npz'))

  @functools.cached_property
  def rows(self) -> list[dict]:
    """The number, name and labels of each row, and the folder that it was added from."""
    with open(self.folder / 'rows.jsonl', encoding='utf-8') as file:
      return [json.loads(line) for line in file]

  @functools.cached_property
  def keys(self) -> np.ndarray | None:
    """What orders rows at equal distance, [rows, b] int8; None: their numbers do."""
    path = self.folder / 'keys.npy'
    return np.load(path) if path.exists() else None

  @functools.cache  # noqa: B019 - a run lives as long as its program
  def index(self, length: int) -> dict[str, np.ndarray]:
    """The distinct codes of a length, and the rows that have each."""
    if length not in self.lengths:
      raise ValueError(f'There are no codes of {length} bits; choose one of {self.lengths}.')
    with np.load(self.folder / f'index_{length}.npz') as file:
      return dict(file)

  def encode(self, images: np.ndarray) -> dict[str, np.ndarray]:
    """Hashes images [n, h, w, ch] uint8.

    Returns:
      Packed codes, 'codes_8': [n, 1] uint8 and so on for every length, and 'keys' [n, b] int8.
    """
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.shape[1:] != self.shape or not len(images):
      raise ValueError(f'Images {images.shape} {images.dtype} cannot be encoded; give uint8 '
                       f'[n, {", ".join(map(str, self.shape))}].')
    parts = []
    for start in range(0, len(images), BATCH):
      part = images[start:start + BATCH]
      size = 1 << (len(part) - 1).bit_length()  # few sizes, because each is compiled
      padded = np.resize(part, (size, *self.shape))
      parts.append({name: np.asarray(x)[:len(part)] for name, x in self._encode(padded).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

  def search(self, images: np.ndarray, k: int = 10, length: int = 0
             ) -> tuple[np.ndarray, np.ndarray]:
    """The rows nearest to images, by distance, then key, then number.

    Args:
      images: [n, h, w, ch] uint8.
      k: how many rows are wanted.
      length: bits of the codes; 0: the most that there are.

    Returns:
      Distances and row numbers, [n, k], or as many as there are rows.
    """
    length = length or self.lengths[-1]
    hashed = self.encode(images)
    keys = hashed.get('keys', [None] * len(images))
    found = [self._nearest(self.index(length), code, key, k)
             for code, key in zip(hashed[f'codes_{length}'], keys)]
    distances, rows = map(np.stack, zip(*found))
    return distances, rows

  def _nearest(self, index, code, key, k):
    starts = index['starts']
    distance = np.bitwise_count(index['codes'] ^ code).sum(axis=1, dtype=np.int64)  # [g]
    sizes = np.diff(starts)
    within = np.cumsum(np.bincount(distance, weights=sizes))  # rows at each distance or nearer
    near = np.flatnonzero(distance <= np.searchsorted(within, k))
    rows = np.concatenate([index['rows'][:0],
                           *[index['rows'][starts[i]:starts[i + 1]] for i in near]])
    distances = np.repeat(distance[near], sizes[near])
    second = np.zeros(len(rows))
    if key is not None and self.keys is not None:
      second = ((self.keys[rows].astype(np.int64) - key) ** 2).sum(axis=1)
    order = np.lexsort((rows, second, distances))[:k]
    return distances[order], rows[order]


def main(arguments: list[str]):
  """Prints a line for each neighbour: image, rank, distance, name, labels."""
  if not 1 <= len(arguments) <= 3:
    sys.exit('Usage: python search.py IMAGES.npy [K [LENGTH]]')
  run = Run()
  numbers = dict(zip(('k', 'length'), map(int, arguments[1:])))
  distances, rows = run.search(np.load(arguments[0]), **numbers)
  for image, (of_image, found) in enumerate(zip(distances, rows)):
    for rank, (distance, row) in enumerate(zip(of_image, found), 1):
      print(image, rank, distance, run.rows[row]['name'], ';'.join(run.rows[row]['labels']),
            sep='\t')


if __name__ == '__main__':
  main(sys.argv[1:])
