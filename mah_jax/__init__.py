"""MAH in JAX: images hashed into extremely few bits, several code lengths from one network."""

from __future__ import annotations

import os
import typing
from typing import Any

if typing.TYPE_CHECKING:
  from mah_jax.search import searcher

__version__ = '0.1.0'


def load(folder: str | os.PathLike, **settings: Any) -> searcher.Searcher:
  """Opens a finished run, to encode images and to search its database.

      hasher = mah_jax.load('runs/photos')
      hasher.encode(['a.jpg', 'b.jpg'], length=8)       # [2, 8] int8 in {-1, +1}
      hasher.search('a.jpg', k=10)                      # [Hit(distance, name, labels, row), ...]

  Args:
    folder: the run folder.
    settings: flags that differ from those of the run, such as data_dir='photos'.
  """
  # These imports are late because they take seconds, which other uses of the package do not need.
  import logging

  from mah_jax import compiling
  from mah_jax import flags
  from mah_jax import options
  from mah_jax.search import searcher
  compiling.prepare()
  logging.getLogger('absl').setLevel(logging.CRITICAL)  # Orbax raises what it logs as an error
  if not isinstance(folder, (str, os.PathLike)):
    raise ValueError(f'folder={folder!r} is no path; give that of a run folder.')
  arguments = [f'--{name}={options.text(value)}' for name, value in settings.items()]
  return searcher.Searcher(flags.from_arguments(
      ['--mode=serve', f'--workdir={os.fspath(folder)}', *arguments]))
