"""Where things are kept that can be computed again: below ~/.cache/mah_jax."""

import os
import pathlib


def folder(kind: str) -> pathlib.Path:
  """The folder for one kind of thing; XDG_CACHE_HOME moves it."""
  root = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser()
  return root / 'mah_jax' / kind
