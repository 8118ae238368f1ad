"""--mode=search: the nearest database images of one image or of a folder of them."""

from __future__ import annotations

import csv
import io
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax import storage
from mah_jax.data import images as images_lib
from mah_jax.data import pictures
from mah_jax.runs import folder as folder_lib
from mah_jax.search import searcher as searcher_lib
from mah_jax.train import dataset

SIDE = 128    # pixels of a tile on a contact sheet
SHOWN = 20    # queries whose neighbours are printed, and are on a sheet
WRITERS = ('.csv', '.jsonl')
MARKS = {'.csv': b'query,rank,distance,', '.jsonl': b'{"query": ', '.png': pictures.MARK}
TITLES = {'hamming': 'distance', 'outputs': 'agreement'}  # what a ranking orders by

Hits = Sequence[searcher_lib.Hit]


def search(config: config_lib.Config):
  """Prints the neighbours of --images, and writes them to --output and --sheet."""
  with console.StopRequest('Stopped; nothing was written.'):
    _search(config)


def _search(config: config_lib.Config):
  output = storage.path(config.output) if config.output else None
  if output is not None and output.suffix.lower() not in WRITERS:
    raise errors.UsageError(f'--output={output} must end in {" or ".join(WRITERS)}, which says '
                            'what is written.')
  sheet = storage.path(config.sheet) if config.sheet else None
  if sheet is not None and sheet.suffix.lower() != '.png':
    raise errors.UsageError(f'--sheet={sheet} must end in .png, which is what is written.')
  for flag, file in (('output', output), ('sheet', sheet)):
    if file is not None:
      folder_lib.RunFolder(config.workdir).check_output(flag, file)
      dataset.check_apart(config, flag, file)
      storage.check_file(file, MARKS[file.suffix.lower()])
  folder, names = files_of(config.images)
  searcher = searcher_lib.Searcher(config)
  searcher.index(config.code_length, config.database)  # which refuses what there is not
  bad = {}  # row: reason
  images = images_lib.Encoded(lambda row: storage.read_file(folder / names[row]), names)
  hashed = searcher.hash(images, bad.__setitem__)
  if len(bad) == len(names):
    raise errors.InputError(f'None of the images in {config.images} can be read; the first, '
                            f'{names[0]}: {bad[0]}.')
  found = searcher.search_hashed(hashed, config.neighbours, length=config.code_length,
                                 ranking=config.ranking, database=config.database)
  for row in sorted(bad):
    console.say(f'Skipped {names[row]}: {bad[row]}.')
  hits = {names[row]: found[row] for row in range(len(names)) if row not in bad}
  for name in list(hits)[:SHOWN]:
    console.say(_table(name, hits[name], config.ranking))
  if len(hits) > SHOWN:
    console.say(f'and {len(hits) - SHOWN} more images; --output=FILE.csv has all of them.')
  if output is not None:
    storage.write_text(output, (_csv if output.suffix.lower() == '.csv' else _json_lines)(hits))
    console.say(f'Written to {output}.')
  if sheet is not None:
    storage.write(sheet, _sheet(searcher, folder, dict(list(hits.items())[:SHOWN]),
                                TITLES[config.ranking]))
    console.say(f'Written to {sheet}.')


def files_of(name: str) -> tuple[pathlib.Path, list[str]]:
  """The folder and the names of the image files that --images means: a file or a folder."""
  path = storage.path(name)
  if path.is_file():
    return path.parent, [path.name]
  names = images_lib.find(path)
  if not names:
    raise errors.InputError(f'--images={path} holds no image files '
                            f'({", ".join(sorted(images_lib.SUFFIXES))}).')
  return path, names


def _table(name: str, hits: Hits, ranking: str) -> str:
  """The neighbours of one image as lines."""
  rows = [('rank', TITLES[ranking], 'file', 'labels')]
  rows += [(str(i), _number(hit.distance), hit.name, ';'.join(hit.labels))
           for i, hit in enumerate(hits, 1)]
  widths = [max(len(row[i]) for row in rows) for i in range(2)]
  longest = max(len(row[2]) for row in rows)
  lines = [f'{row[0]:>{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{longest}}  {row[3]}'.rstrip()
           for row in rows]
  return '\n'.join([f'{name}:', *lines, ''])


def _number(distance: int | float) -> str:
  return str(distance) if isinstance(distance, int) else f'{distance:.4f}'


def _csv(hits: dict[str, Hits]) -> str:
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator='\n')
  writer.writerow(['query', 'rank', 'distance', 'file', 'labels', 'row'])
  for name, of_query in hits.items():
    writer.writerows([name, i, hit.distance, hit.name, ';'.join(hit.labels), hit.row]
                     for i, hit in enumerate(of_query, 1))
  return buffer.getvalue()


def _json_lines(hits: dict[str, Hits]) -> str:
  return ''.join(json.dumps({'query': name, 'hits': [hit._asdict() for hit in of_query]}) + '\n'
                 for name, of_query in hits.items())


def _sheet(searcher: searcher_lib.Searcher, folder: pathlib.Path, hits: dict[str, Hits],
           title: str) -> bytes:
  """A contact sheet: each query, framed, and its neighbours."""
  rows = []
  for name, of_query in hits.items():
    query = images_lib.decode(storage.read_file(folder / name), SIDE)
    rows.append([pictures.Tile(query, [pathlib.PurePath(name).name, 'query'], framed=True), *[
        pictures.Tile(_picture(searcher, hit.row), list(filter(None, [
            pathlib.PurePath(hit.name).name, ';'.join(hit.labels),
            f'{title} {_number(hit.distance)}']))) for hit in of_query]])
  return pictures.sheet(rows)


def _picture(searcher: searcher_lib.Searcher, row: int) -> np.ndarray:
  """The picture of a row; grey where its file is gone."""
  try:
    return searcher.picture(row, SIDE)
  except errors.InputError:
    return np.full((SIDE, SIDE, 3), 200, np.uint8)
