"""The export to Parquet: one table, codes and keys as lists of a fixed size."""

from __future__ import annotations

import io

import numpy as np

from mah_jax.search import searcher as searcher_lib
from mah_jax.search.export import content as content_lib

README = """\
# A table of {rows:,} images in Parquet

`rows.parquet` has a line for each image: `row` (its number), `name`, `added_from` (a folder; empty
for images of the run's own dataset), `labels`, and `code_C` for codes of C bits ({lengths}): lists
of bytes of a fixed size. The first bit is the highest of the first byte, and zeros fill the last
byte, as `numpy.packbits` does.{keys}

    import numpy as np, pyarrow.parquet
    table = pyarrow.parquet.read_table('rows.parquet')
    codes = table['code_{longest}'].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    distances = np.bitwise_count(codes ^ query).sum(axis=1)
"""
KEYS = """ `key` orders images at equal distance: by the sum of
squared differences to the key of the query."""


def files(searcher: searcher_lib.Searcher, content: content_lib.Content) -> dict[str, bytes]:
  """The files of the export by name."""
  del searcher
  import pyarrow as pa  # late, because it is an extra
  from pyarrow import parquet
  text = pa.string()
  columns = {'row': pa.array(np.arange(len(content)), pa.int64()),
             'name': pa.array(content.names, text),
             'added_from': pa.array(content.added_from, text),
             'labels': pa.array(content.labels, pa.list_(text))}
  arrays = {f'code_{c}': packed for c, packed in content.codes.items()}
  if content.keys.shape[1]:
    arrays['key'] = content.keys
  columns |= {name: pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
              for name, array in arrays.items()}
  buffer = io.BytesIO()
  parquet.write_table(pa.table(columns), buffer)
  lengths = list(content.codes)
  return {'rows.parquet': buffer.getvalue(), 'README.md': README.format(
      rows=len(content), lengths=', '.join(map(str, lengths)), longest=lengths[-1],
      keys=KEYS if 'key' in arrays else '').encode()}
