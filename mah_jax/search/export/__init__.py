"""The registry of exports: what each format needs and writes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

from mah_jax import errors
from mah_jax.search import searcher as searcher_lib
from mah_jax.search.export import content as content_lib
from mah_jax.search.export import faiss
from mah_jax.search.export import parquet
from mah_jax.search.export import postgres
from mah_jax.search.export import stablehlo


class Format(NamedTuple):
  """A format.

  files: (searcher, content) -> the files of an export by name.
  library: the module that it is written with; empty: none but NumPy.
  package: what pip calls it.
  """
  files: Callable[[searcher_lib.Searcher, content_lib.Content], Mapping[str, bytes]]
  library: str = ''
  package: str = ''


FORMATS: dict[str, Format] = {
    'faiss': Format(faiss.files, 'faiss', 'faiss-cpu'),
    'pgvector': Format(postgres.files),
    'parquet': Format(parquet.files, 'pyarrow', 'pyarrow'),
    'stablehlo': Format(stablehlo.files, 'flatbuffers', 'flatbuffers'),
}


def require(name: str):
  """Refuses a format whose library is not installed."""
  library, package = FORMATS[name].library, FORMATS[name].package
  if library and importlib.util.find_spec(library) is None:
    raise errors.InputError(f'--format={name} needs {package}, which is not installed: pip '
                            f'install {package}.')
