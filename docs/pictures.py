r"""The pictures of README.md and of this folder, each made by a command.

PYTHONPATH=. python docs/pictures.py [names...] [--photos=RUN] [--data_dir=data]

Without names it makes diagram.svg, map_over_bits.svg, rounds.svg and codebook.svg, which need
nothing but the repository (`make pictures`), and with --photos also neighbours.png and
search_page.png, which show photographs of a run. They were made by

PYTHONPATH=. python docs/pictures.py photographs
python -m mah_jax.main --flagfile=launch/folder_features.cfg --data_dir=runs/photographs \
  --workdir=runs/photos --image_size=160 --crop=1.0
PYTHONPATH=. python docs/pictures.py neighbours search_page --photos=runs/photos

Their queries are the first of each label; that of the page was picked.

`photographs` takes some of MIRFlickr-25K out of --data_dir. `tiles` takes the images of the diagram
out of CIFAR-10 in --data_dir; it is needed when RUN finds other images for QUERY, which the diagram
says.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import pathlib
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from PIL import Image
from PIL import PngImagePlugin

from mah_jax import errors
from mah_jax import storage
from mah_jax.evaluation import scores as scores_lib
from mah_jax.paper import experiments
from mah_jax.paper import published
from mah_jax.runs import svg

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / 'docs' / 'pictures'
RUN = ROOT / 'results' / 'cifar10' / 'finetune'  # four passes of 4, 8, 16 bits
SCORES = ROOT / 'results' / 'paper' / 'scores.csv'

# diagram
QUERY = 21        # the query of the diagram, a ship
NEAREST = 3       # its nearest neighbours that are shown, before the first with another code
TILE = 32         # pixels of an image of CIFAR-10
TILE_COLOURS = 24
TILES = 'tiles.png'

# map_over_bits
TITLES = {'cifar10': 'CIFAR-10', 'mirflickr': 'MIRFlickr-25K'}
RANGES = {'cifar10': (0.1, 1.0, 0.1), 'mirflickr': (0.55, 0.95, 0.05)}  # low, high, step

# photographs
LABELS = ('bird', 'car', 'dog', 'flower', 'food', 'night', 'sea', 'tree')
PER_LABEL = 100
ANNOTATIONS = 'mirflickr25k_annotations_v080'

# neighbours and search_page
SIDE, ROWS, ACROSS = 96, 6, 8
COLOURS = 256     # the most that a palette has
PAGE_SIZE = {'width': 1200, 'height': 980}
PAGE_QUERY = 2    # the label whose query is on the page
CHROMIUM = ('chromium', 'chromium-browser', 'google-chrome')

EDGE_STYLE = """
:root { --box: #f2f5f8; --edge: #8c98a4; --soft: #59636e; }
@media (prefers-color-scheme: dark) { :root { --box: #20272e; --edge: #75808b; --soft: #a3adb8; } }
.zero { stroke: var(--edge); }
"""


class Look(NamedTuple):
  """How a method's curve looks: its class of colour, its mark, its width and dashes."""
  style: str
  mark: str
  width: float = 1.6
  dashes: str = ''


LOOKS = {
    'lsh': Look('s7', 'circle'), 'itq': Look('s7', 'square'),
    'sdh': Look('s2', 'circle'), 'cosdish': Look('s2', 'square'),
    'ksh': Look('s6', 'circle'), 'lfh': Look('s6', 'square'),
    'dpsh': Look('s4', 'circle'), 'drsch': Look('s5', 'circle'),
    'adsh': Look('s1', 'circle'), 'daph': Look('s3', 'circle'),
    'mah1': Look('s0', 'square', 2.0), 'mah2': Look('s0', 'circle', 3.6),
    'classifier': Look('ink', '', 1.6, '6 4'), 'paper': Look('s0', '', 2.0, '2 4')}
NAMES = {name: row.title.partition(' (')[0] for name, row in experiments.ROWS.items()
         if name in LOOKS} | {'paper': 'MAH-2, paper'}


# Drawings of the repository's own results.


def diagram() -> str:
  """From an image to its neighbours: network, heads, codes, search."""
  with Image.open(FOLDER / TILES) as image:
    shown = json.loads(image.info['shown'])
    tiles = [image.crop((i * TILE, 0, (i + 1) * TILE, TILE)).convert('RGB')
             for i in range(image.width // TILE)]
  found = _found()
  if (shown['query'], shown['rows']) != (QUERY, found.rows):
    raise errors.InputError(f'{FOLDER / TILES} holds other images than the diagram of {RUN} '
                            'needs: run docs/pictures.py tiles.')
  parts = [_pixels(tiles[0], 8, 74, 3.5)]
  parts += [_text(64, 206, f'a query: {shown["classes"][0]}', 'middle', 'soft')]
  for x, name in ((64, 'image'), (214, 'network'), (331, 'heads'), (474, 'codes'),
                  (637, 'search'), (796, 'neighbours')):
    parts.append(_text(x, 24, name, 'middle', 'head'))
  parts += [_arrow([(124, 130), (154, 130)])]
  parts += ['<path class="box" d="M160 52 L268 78 V182 L160 208 Z"/>',
            _text(214, 126, 'ResNet-50', 'middle', 'strong'),
            _text(214, 144, '2,048 features', 'middle')]
  ys = {16: 72, 8: 136, 4: 200}
  parts += [_arrow([(268, 96), (284, 96), (284, 72), (300, 72)])]
  for c, y in ys.items():
    strong = ' chosen' if c == 4 else ''
    parts += [f'<rect class="box{strong}" x="304" y="{y - 17}" width="54" height="34" rx="6"/>',
              _text(331, y + 4, f'{c} bits', 'middle', 'strong')]
    parts.append(_squares(found.codes[c], 374, y - 5.5, 11, 12.7))
  parts += [_arrow([(331, 89), (331, 115)]), _arrow([(331, 153), (331, 179)])]
  parts += [_arrow([(430, 200), (584, 200)])]
  parts += ['<rect class="box" x="588" y="52" width="98" height="172" rx="8"/>']
  middle = 637
  parts += [_text(middle, 76, 'Hamming', 'middle', 'strong'),
            _text(middle, 91, 'distance to', 'middle'),
            _text(middle, 106, f'{found.total:,} codes', 'middle')]
  query = found.codes[4]
  parts.append(_squares(query, middle - 42, 195, 10, 11.5))
  for k, (word, count) in enumerate(found.nearest):
    y = 124 + 15 * k
    parts += [_squares(word, middle - 42, y, 10, 11.5, query),
              _text(middle + 42, y + 9, f'{count}', 'end')]
  parts += [f'<line class="rule" x1="{middle - 42}" x2="{middle + 42}" y1="186" y2="186"/>',
            _text(middle + 42, 204, 'query', 'end', 'soft')]
  parts += [_arrow([(686, 138), (708, 138)])]
  for k, (tile, label) in enumerate(zip(tiles[1:], shown['classes'][1:])):
    x, y = 718 + 84 * (k % 2), 40 + 108 * (k // 2)
    parts.append(_pixels(tile, x, y, 2.25))
    distance = found.distances[k]
    parts += [_text(x, y + 85, f'{found.ranks[k]:,}. {label}', style='strong'),
              _text(x, y + 98, 'same code' if distance == 0 else
                    f'{distance} bit{"s" if distance > 1 else ""}', style='soft')]
  drawn = _drawing(900, 260, parts)
  return svg.stand_alone([drawn], 'An image, the network, its heads, their codes, the search and '
                         'the neighbours', DIAGRAM_STYLE)


DIAGRAM_STYLE = EDGE_STYLE + """
svg.drawn text { font-size: 12px; }
svg.drawn text.head { font-size: 13px; font-weight: 600; fill: var(--soft); }
svg.drawn text.strong { font-weight: 600; }
svg.drawn text.soft { fill: var(--soft); }
.box { fill: var(--box); stroke: var(--edge); stroke-width: 1.2; }
.box.chosen { stroke: var(--s0); stroke-width: 2; }
.arrow { fill: none; stroke: var(--edge); stroke-width: 1.6; }
.tip { fill: var(--edge); } .rule { stroke: var(--edge); stroke-width: 0.8; }
.one.other { fill: var(--s1); } .zero.other { stroke: var(--s1); }
"""


class Found(NamedTuple):
  """What a search of the headline run's codes finds for QUERY at its fewest bits.

  codes: the query's code of each length, texts of 0 and 1.
  rows: rows of the database that are shown: NEAREST ones, then the first with another code.
  ranks, distances: of these rows.
  nearest: the nearest codewords of the database, and how far they are.
  total: rows of the database.
  """
  codes: dict[int, str]
  rows: list[int]
  ranks: list[int]
  distances: list[int]
  nearest: list[tuple[str, int]]
  total: int


def _found() -> Found:
  results, archive = storage.read_json(RUN / 'results.json'), storage.read_npz(RUN / 'codes.npz')

  def bits(name, c):
    return np.unpackbits(archive[f'{name}_{c}'][0], axis=1, count=c)  # [.., c]

  lengths = results['code_lengths']
  few = lengths[0]
  codes = {c: ''.join(map(str, bits('queries', c)[QUERY])) for c in lengths}
  database = bits('learned', few)
  distances = (database != bits('queries', few)[QUERY]).sum(axis=1)  # [n]
  order = np.argsort(distances, kind='stable')
  first_other = int(np.count_nonzero(distances == distances.min()))
  ranks = [*range(NEAREST), first_other]
  rows = [int(order[rank]) for rank in ranks]
  words = results['metrics'][str(few)]['codebook']['codewords']
  far = {word: sum(a != b for a, b in zip(word, codes[few])) for word in words}
  nearest = sorted(far.items(), key=lambda pair: pair[1])[:4]
  return Found(codes, rows, [rank + 1 for rank in ranks], [int(distances[row]) for row in rows],
               nearest, len(database))


def map_over_bits() -> str:
  """MAP over code length of all methods, a panel for each dataset."""
  panels = []
  for dataset, title in TITLES.items():
    scores = {name: means(dataset, name) for name in LOOKS if name != 'paper'}
    scores['paper'] = {c: value / 100 for c, value in zip(
        published.LENGTHS, published.TABLE_1[dataset]['mah2'])}
    panels.append(_map_panel(title, scores, RANGES[dataset]))
  return svg.stand_alone(panels, 'MAP over code length of all methods on CIFAR-10 and '
                         'MIRFlickr-25K', MAP_STYLE)


MAP_STYLE = """
svg.drawn text { font-size: 12px; }
svg.drawn text.title { font-size: 14px; }
svg.drawn text.strong { font-weight: 700; }
.line.ink { stroke: currentColor; } .leader { opacity: 0.6; stroke-width: 0.8 !important; }
""" + ''.join(f'svg.drawn text.s{i} {{ fill: var(--s{i}); }}\n' for i in range(svg.COLOURS))


def means(dataset: str, name: str) -> dict[int, float]:
  """MAP of a row of Table 1 by length: of its learned or assigned codes where it has any."""
  row, study, found = experiments.ROWS[name], experiments.Study(), {}
  with SCORES.open(newline='') as file:
    for line in csv.DictReader(file):
      bits = int(line['bits'])
      if (line['dataset'], line['row'], line['flags']) == (dataset, name, '{}') and (
          bits in study.lengths
          and line['code_lengths'] == ' '.join(map(str, row.lengths(study, bits)))):
        found.setdefault(bits, {}).setdefault(line['database'], []).append(float(line['map']))
  searched = {c: next(kinds[kind] for kind in scores_lib.KINDS if kind in kinds)
              for c, kinds in sorted(found.items())}
  return {c: sum(values) / len(values) for c, values in searched.items()}


def _map_panel(title: str, scores: Mapping[str, Mapping[int, float]],
               levels: tuple[float, float, float]) -> str:
  """A panel whose curves have their names at their ends."""
  width, height, left, right, top, bottom = 444, 372, 42, 116, 52, 44
  low, high, step = levels
  lengths = published.LENGTHS

  def place(c, value):
    return (left + (c - lengths[0]) / (lengths[-1] - lengths[0]) * (width - left - right - 8) + 4,
            height - bottom - (value - low) / (high - low) * (height - top - bottom))

  parts = [_text(left, 18, title, style='title')]
  decimals = 2 if step < 0.1 else 1
  for k in range(round((high - low) / step) + 1):
    y = place(lengths[0], low + k * step)[1]
    parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>'
                 + _text(left - 6, y + 4, f'{low + k * step:.{decimals}f}', 'end'))
  for c in lengths:
    x = place(c, low)[0]
    parts.append(_text(x, height - bottom + 17, str(c), 'middle'))
  parts.append(_text((left + width - right) / 2, height - 8, 'bits', 'middle'))
  parts.append(_text(left - 6, top - 14, 'MAP', 'end', 'soft'))
  ends = {name: place(max(of_name), of_name[max(of_name)])[1] for name, of_name in scores.items()
          if of_name}
  spread = _apart(ends, 14, top - 10, height - bottom + 4)
  for name, look in LOOKS.items():
    if name not in ends:
      continue
    points = [place(c, value) for c, value in scores[name].items()]
    dashes = f' stroke-dasharray="{look.dashes}"' if look.dashes else ''
    parts.append(f'<polyline class="line {look.style}" style="stroke-width: {look.width:g}"'
                 f'{dashes} points="' + ' '.join(f'{x:.1f},{y:.1f}' for x, y in points) + '"/>')
    size = 1.6 + look.width / 1.6
    for (x, y), (c, value) in zip(points, scores[name].items()):
      tip = f'<title>{NAMES[name]}, {c} bits: {value:.4f}</title>'
      if look.mark == 'circle':
        parts.append(f'<circle class="dot {look.style}" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}">'
                     f'{tip}</circle>')
      elif look.mark == 'square':
        parts.append(f'<rect class="dot {look.style}" x="{x - size:.1f}" y="{y - size:.1f}" '
                     f'width="{2 * size:.1f}" height="{2 * size:.1f}">{tip}</rect>')
    x, y = points[-1]
    parts.append(f'<polyline class="line leader {look.style}" points="{x + 6:.1f},{y:.1f} '
                 f'{x + 18:.1f},{spread[name]:.1f} {x + 22:.1f},{spread[name]:.1f}"/>')
    strong = ' strong' if name == 'mah2' else ''
    parts.append(_text(x + 25, spread[name] + 4, NAMES[name], style=look.style + strong))
  return _drawing(width, height, parts)


def _apart(places: Mapping[str, float], least: float, low: float, high: float) -> dict[str, float]:
  """Places of labels that are `least` apart and between two bounds, near the wanted ones."""
  groups = []  # [names, their middle]: those that touch are one group around their mean
  for name in sorted(places, key=places.get):
    groups.append([[name], places[name]])
    while True:
      for group in groups:
        half = (len(group[0]) - 1) * least / 2
        group[1] = min(max(group[1], low + half), high - half)
      if len(groups) < 2 or groups[-1][1] - groups[-2][1] >= least * (
          len(groups[-1][0]) + len(groups[-2][0])) / 2:
        break
      last = groups.pop()
      names = groups[-1][0] + last[0]
      groups[-1] = [names, sum(places[n] for n in names) / len(names)]
  return {name: middle + (k - (len(names) - 1) / 2) * least
          for names, middle in groups for k, name in enumerate(names)}


def rounds() -> str:
  """MAP of every length and the loss over the rounds of the headline run."""
  lines = [json.loads(line) for line in (RUN / 'metrics.jsonl').read_text().splitlines()]
  queries = storage.read_json(RUN / 'results.json')['protocol']['queries']
  numbers = [line['round'] for line in lines]
  lengths = list(lines[-1]['metrics'])

  def score(line, c):
    kinds = line['metrics'][c]
    return kinds[next(kind for kind in scores_lib.KINDS if kind in kinds)]['map']

  scores = {f'{c} bits': svg.Curve(numbers, [score(line, c) for line in lines]) for c in lengths}
  loss = {'all heads together': svg.Curve(numbers, [line['losses']['loss'] for line in lines])}
  drawn = [svg.curves(scores, svg.Axes(f'MAP of {queries:,} queries', 'round', 'MAP')),
           svg.curves(loss, svg.Axes('Loss in training', 'round', 'loss'),
                      among=[*scores, *loss])]
  return svg.stand_alone(drawn, 'MAP and loss over the rounds of a run on CIFAR-10')


def codebook() -> str:
  """The codewords of the classes at every length of the headline run."""
  results = storage.read_json(RUN / 'results.json')
  drawn = []
  for c in results['code_lengths']:
    book = results['metrics'][str(c)]['codebook']
    least = book['min_distance']
    names = [''] * len(results['classes']) if drawn else results['classes']
    drawn.append(svg.bits(book['codewords'], names, f'{c} bits, at least {least} apart'))
  return svg.stand_alone(drawn, 'The codewords of the ten classes of CIFAR-10', EDGE_STYLE)


def _drawing(width: int, height: int, parts: Sequence[str]) -> str:
  return (f'<svg class="drawn" xmlns="http://www.w3.org/2000/svg" width="{width}" '
          f'height="{height}" viewBox="0 0 {width} {height}">' + '\n'.join(parts) + '</svg>')


def _text(x: float, y: float, text: str, anchor: str = 'start', style: str = '') -> str:
  more = f' class="{style}"' if style else ''
  return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{text}</text>'


def _arrow(points: Sequence[tuple[float, float]]) -> str:
  """A line through points, with a tip at its end; its last part is level or upright."""
  (x0, y0), (x, y) = points[-2:]
  if y0 == y:
    tip = f'M{x + 2} {y} l-8 -4.5 v9 z'
    points = [*points[:-1], (x - 5, y)]
  else:
    tip = f'M{x} {y + 2} l-4.5 -8 h9 z'
    points = [*points[:-1], (x, y - 5)]
  line = ' '.join(f'{a:g},{b:g}' for a, b in points)
  return f'<polyline class="arrow" points="{line}"/><path class="tip" d="{tip}"/>'


def _squares(word: str, x: float, y: float, side: float, step: float, other: str = '') -> str:
  """A code as squares, full for 1; those that differ from the other code have its colour."""
  parts = []
  for k, bit in enumerate(word):
    style = ('one' if bit == '1' else 'zero') + ' other' * bool(other and bit != other[k])
    parts.append(f'<rect class="{style}" x="{x + k * step + 0.5:.1f}" y="{y + 0.5:.1f}" '
                 f'width="{side - 1:g}" height="{side - 1:g}" rx="1.5"/>')
  return ''.join(parts)


def _pixels(image: Image.Image, x: float, y: float, side: float) -> str:
  """An image as squares; those of one colour are one path."""
  pixels, paths = np.asarray(image), {}
  for i, line in enumerate(pixels):
    starts = [0, *(np.flatnonzero((line[1:] != line[:-1]).any(axis=1)) + 1), len(line)]
    for a, b in zip(starts[:-1], starts[1:]):
      colour = '#' + ''.join(f'{v:02x}' for v in line[a])
      paths.setdefault(colour, []).append(f'M{a} {i}h{b - a}v1h-{b - a}z')
  drawn = ''.join(f'<path fill="{colour}" d="{"".join(runs)}"/>'
                  for colour, runs in paths.items())
  return (f'<g transform="translate({x:g} {y:g}) scale({side:g})" shape-rendering="crispEdges">'
          f'{drawn}</g>')


# Pictures of photographs, which need a run or data.


def tiles(data_dir: str) -> bytes:
  """The images of the diagram, side by side with few colours each."""
  from mah_jax.data import datasets
  flags = storage.read_json(RUN / 'config.json')['flags']
  data = datasets.load('cifar10', data_dir, flags['split_seed'])
  if data.protocol.id != storage.read_json(RUN / 'results.json')['protocol']['id']:
    raise errors.InputError(f'The queries of {RUN} are others than those of {data_dir}.')
  rows = _found().rows
  numbers = [data.protocol.queries[QUERY], *data.protocol.database[rows]]
  classes = [data.class_names[k] for k in data.labels[numbers].argmax(axis=1)]
  wide = Image.new('RGB', (TILE * len(numbers), TILE))
  for k, number in enumerate(numbers):
    few = Image.fromarray(data.images[number]).quantize(
        TILE_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    wide.paste(few.convert('RGB'), (k * TILE, 0))
  about = PngImagePlugin.PngInfo()
  about.add_text('shown', json.dumps({'query': QUERY, 'rows': rows, 'classes': classes}))
  return _png(wide, pnginfo=about)


def photographs(target: pathlib.Path, data_dir: pathlib.Path):
  """A folder of the first photographs of each label that have no other label and no people."""
  annotations = data_dir / ANNOTATIONS

  def rows_of(*names):
    return {int(number) for name in names for number in (annotations / name).read_text().split()}

  relevant = {label: rows_of(f'{label}_r1.txt' if (annotations / f'{label}_r1.txt').exists()
                             else f'{label}.txt') for label in LABELS}
  target.mkdir(parents=True, exist_ok=True)
  lines = ['file,labels']
  for label, rows in relevant.items():
    others = [relevant[other] for other in LABELS if other != label]
    for row in sorted(rows.difference(rows_of('people.txt', 'people_r1.txt'), *others))[:PER_LABEL]:
      shutil.copy(data_dir / 'mirflickr' / f'im{row}.jpg', target)
      lines.append(f'im{row}.jpg,{label}')
  storage.write_text(target / 'labels.csv', '\n'.join(lines) + '\n')


def neighbours(searcher: Any) -> bytes:
  """A sheet: the first query of each of some labels, and its neighbours at the fewest bits."""
  from mah_jax.data import images as images_lib
  from mah_jax.data import pictures
  data, few = searcher.data, min(searcher.code_lengths)
  rows = []
  for row in _queries(searcher)[:ROWS]:
    image = data.images.read(row)
    hits = searcher.search(image, ACROSS, length=few)
    label = _labels(data, row)
    rows.append([pictures.Tile(images_lib.decode(image, SIDE), [label, 'query'], framed=True), *[
        pictures.Tile(searcher.picture(hit.row, SIDE), [';'.join(hit.labels), _bits(hit.distance)])
        for hit in hits]])
  with Image.open(io.BytesIO(pictures.sheet(rows))) as sheet:
    return _png(_few_colours(sheet))


def search_page(searcher: Any) -> bytes:
  """The served page with a query and its neighbours, as a browser shows it."""
  try:
    from playwright import sync_api
  except ImportError:
    raise errors.InputError('search_page.png needs Playwright: pip install -r '
                            'requirements-browser.txt.') from None
  program = next(filter(None, map(shutil.which, CHROMIUM)), None)
  if program is None:
    raise errors.InputError("search_page.png needs Chromium: install the system's package of it "
                            '(Debian: apt-get install chromium).')
  data, queries = searcher.data, _queries(searcher)

  def search(page, row):
    """Searches by an image of the dataset, and waits for its neighbours and their pictures."""
    name = pathlib.PurePath(data.images.names[row]).name
    page.set_input_files('#file', [{'name': name, 'mimeType': 'image/jpeg',
                                    'buffer': data.images.read(row)}])
    page.wait_for_function(
        '(name) => document.getElementById("query-name").innerText === name && '
        'document.getElementById("results").ariaBusy === "false" && '
        'document.querySelectorAll(".distance").length > 0 && '
        '[...document.querySelectorAll(".card img")].every(image => image.naturalWidth > 0)',
        arg=name)

  with _serving(searcher) as port, sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=program,
                                         args=['--no-sandbox', '--disable-gpu'])
    with contextlib.closing(browser):
      page = browser.new_page(viewport=PAGE_SIZE, color_scheme='light')
      page.goto(f'http://127.0.0.1:{port}/')
      page.wait_for_selector('.card')
      page.get_by_text('encoded', exact=True).click()
      search(page, queries[PAGE_QUERY - 1])  # it compiles, which is no time to show
      search(page, queries[PAGE_QUERY])
      content = page.screenshot()
  with Image.open(io.BytesIO(content)) as shot:
    return _png(_few_colours(shot.convert('RGB')))


@contextlib.contextmanager
def _serving(searcher: Any) -> Iterator[int]:
  """Serves the page while it is entered; gives its port."""
  from mah_jax.search import serve
  listener = socket.create_server(('127.0.0.1', 0))
  port = listener.getsockname()[1]
  server = serve.server(serve.application(searcher, [f'127.0.0.1:{port}']))
  thread = threading.Thread(target=server.run, kwargs={'sockets': [listener]})
  thread.start()
  try:
    while not server.started and thread.is_alive():
      time.sleep(0.01)
    yield port
  finally:
    server.should_exit = True
    thread.join()


def _queries(searcher: Any) -> list[int]:
  """The first query of each label, as numbers of the dataset."""
  data = searcher.data
  queries = data.protocol.queries
  return [int(queries[of_label.argmax()]) for of_label in data.labels[queries].T if of_label.any()]


def _labels(data: Any, row: int) -> str:
  return ';'.join(name for name, has in zip(data.class_names, data.labels[row]) if has)


def _bits(distance: int) -> str:
  return f'{distance}  bit' + 's' * (distance != 1)  # two spaces, as the font has narrow ones


def _few_colours(image: Image.Image) -> Image.Image:
  return image.quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=3)


def _png(image: Image.Image, **options) -> bytes:
  buffer = io.BytesIO()
  image.save(buffer, 'PNG', optimize=True, **options)
  return buffer.getvalue()


DRAWN = {'diagram': diagram, 'map_over_bits': map_over_bits, 'rounds': rounds,
         'codebook': codebook}                                   # need the repository only
TAKEN = {'neighbours': neighbours, 'search_page': search_page}   # need --photos


def main(arguments: Sequence[str]) -> int:
  """Makes the pictures that are named; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('names', nargs='*', metavar='names',
                      help=', '.join([*DRAWN, *TAKEN, 'tiles', 'photographs']))
  parser.add_argument('--photos', help='the run whose photographs are shown')
  parser.add_argument('--data_dir', default='data', help='the folder of CIFAR-10 and MIRFlickr')
  parser.add_argument('--output', type=pathlib.Path, default=FOLDER, help='the folder of pictures')
  options = parser.parse_args(arguments)
  names = options.names or [*DRAWN, *(TAKEN if options.photos else ())]
  for name in names:
    if name not in (*DRAWN, *TAKEN, 'tiles', 'photographs'):
      parser.error(f'There is no picture {name}: name some of {", ".join([*DRAWN, *TAKEN])}.')
    if name in TAKEN and not options.photos:
      parser.error(f'{name} needs --photos=RUN, a run on photographs.')
  searcher = None
  try:
    for name in names:
      if name == 'photographs':
        photographs(pathlib.Path('runs/photographs'), pathlib.Path(options.data_dir))
        print('Written to runs/photographs.')
        continue
      if name in DRAWN:
        target, content = options.output / f'{name}.svg', DRAWN[name]().encode()
      elif name == 'tiles':
        target, content = options.output / TILES, tiles(options.data_dir)
      else:
        if searcher is None:
          import mah_jax
          searcher = mah_jax.load(options.photos, num_devices=1)
        target, content = options.output / f'{name}.png', TAKEN[name](searcher)
      storage.write(target, content)
      print(f'Written to {target} ({len(content):,} bytes).')
  except (errors.InputError, errors.UsageError) as error:
    print(error, file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
