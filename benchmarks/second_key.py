"""What second keys change: how near the first answers are by the whole feature.

PYTHONPATH=. python benchmarks/second_key.py RUN [--data_dir=...] [--picture=docs/second_key.png]

For every query of a run: the share of its first 10 answers that are among the 100 database images
whose pooled features are nearest to its own, by size of the second key. Equal distances keep the
order of the database where the key has no bytes. The picture shows the first answers to a few
queries at the fewest bits, without keys and with them.
"""

import sys

import numpy as np

import mah_jax
from mah_jax import storage
from mah_jax.data import pictures
from mah_jax.search import index as index_lib
from mah_jax.search import keys as keys_lib
from mah_jax.train import features as features_lib
from mah_jax.train import step as step_lib

SHOWN, NEAREST, BLOCK, SIDE = 10, 100, 50, 80
SIZES = (0, 8, 16, 32, 64, 128)


def nearest(queries, database):
  """The rows whose features are nearest, [q, D], [n, D] -> [q, NEAREST]."""
  length = np.square(database).sum(axis=1)
  return np.concatenate([
      np.argpartition(length - 2 * queries[i:i + BLOCK] @ database.T, NEAREST, axis=1)[:, :NEAREST]
      for i in range(0, len(queries), BLOCK)])


def draw(searcher, hashed, queries, reduction, of_rows):
  """A contact sheet: for each of some queries the answers without keys, then those with them."""
  data, c, rows = searcher.data, searcher.code_lengths[0], []
  packed = searcher.database.codes[f'{searcher.database.kinds[0]}_{c}']
  classes = data.labels[data.protocol.queries].argmax(axis=1)
  for i in [int(np.flatnonzero(classes == k)[0]) for k in (0, 4, 7)]:
    for name, keys in (('no key', None), ('64 bytes', of_rows)):
      index = index_lib.build_packed(packed, c, keys=keys)
      query = None if keys is None else keys_lib.apply(reduction, queries[i:i + 1])
      _, found = index_lib.search(index, hashed.codes[0][i:i + 1], SHOWN, keys=query)
      picture = pictures.square(data.images[data.protocol.queries[i]], SIDE)
      rows.append([pictures.Tile(picture, [f'query, {name}'], framed=True), *[
          pictures.Tile(searcher.picture(int(row), SIDE), [';'.join(
              searcher.database.labels_of(int(row)))]) for row in found[0]]])
  return pictures.sheet(rows)


def main(folder, picture='', **settings):
  searcher = mah_jax.load(folder, **settings)
  data, split = searcher.data, searcher.data.protocol
  devices = step_lib.pick_devices(1)
  values = features_lib.extract(
      searcher.config, data, step_lib.Devices(devices, searcher.config.batch_size)).values
  queries, database = np.asarray(values[split.queries]), np.asarray(values[split.database])
  wanted = nearest(queries, database)
  hashed = searcher.hash(data.images[split.queries])
  labels = data.labels[split.queries].astype(int)
  print('bits  bytes  share of the first 10 among the 100 nearest features  precision@10')
  for head, c in enumerate(searcher.code_lengths):
    for size in SIZES:
      reduction = keys_lib.fit(database[:4096], size) if size else None
      of_rows, of_queries = ((None, None) if reduction is None else
                             (keys_lib.apply(reduction, x) for x in (database, queries)))
      index = index_lib.build_packed(
          searcher.database.codes[f'{searcher.database.kinds[0]}_{c}'], c, keys=of_rows)
      _, rows = index_lib.search(index, hashed.codes[head], SHOWN, keys=of_queries)
      share = np.mean([np.isin(found, near).mean() for found, near in zip(rows, wanted)])
      relevant = np.einsum('ql,qkl->qk', labels, data.labels[split.database][rows]) > 0
      print(f'{c:4}  {size:5}  {share:55.3f}  {relevant.mean():12.3f}')
  if picture:
    reduction = keys_lib.fit(database[:4096], 64)
    storage.write(storage.path(picture), draw(searcher, hashed, queries, reduction,
                                              keys_lib.apply(reduction, database)))


if __name__ == '__main__':
  main(sys.argv[1], **dict(argument.lstrip('-').split('=', 1) for argument in sys.argv[2:]))
