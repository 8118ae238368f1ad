"""The export to FAISS: a binary index of each code length."""

from __future__ import annotations

import numpy as np

from mah_jax.search import searcher as searcher_lib
from mah_jax.search.export import content as content_lib

README = """\
# An index of {rows:,} images for FAISS

`codes_C.faiss` is an `IndexBinaryFlat` over codes of C bits ({lengths}). Zeros fill the last byte
of a code, which changes no distance. Ids are the rows of `rows.jsonl`, which has names and labels.

    import faiss, numpy as np
    index = faiss.read_index_binary('codes_{longest}.faiss')
    query = np.packbits(code > 0, axis=1)  # code [n, {longest}] in {{-1, +1}}
    distances, rows = index.search(query, 10)

`mah_jax.load(RUN).encode(images, length={longest}, packed=True)` gives such queries. If there are
fewer rows than asked for, FAISS fills up with -1. It does not promise an order of equal distances.
"""


def files(searcher: searcher_lib.Searcher, content: content_lib.Content) -> dict[str, bytes]:
  """The files of the export by name."""
  del searcher
  import faiss  # late, because it is an extra
  made = {}
  for c, packed in content.codes.items():
    index = faiss.IndexBinaryFlat(8 * packed.shape[1])
    index.add(np.ascontiguousarray(packed))
    made[f'codes_{c}.faiss'] = faiss.serialize_index_binary(index).tobytes()
  lengths = list(content.codes)
  return made | {
      'rows.jsonl': content_lib.json_lines(content),
      'README.md': README.format(rows=len(content), lengths=', '.join(map(str, lengths)),
                                 longest=lengths[-1]).encode()}
