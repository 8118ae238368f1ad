"""The page of one run, report.html: settings, curves, scores, codewords, confusions, pictures.

It is made of what the run folder holds, so that it can be made half-way through a run as well.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import distinct
from mah_jax import errors
from mah_jax import options
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.data import pictures
from mah_jax.evaluation import metrics as metrics_lib
from mah_jax.evaluation import neighbours
from mah_jax.evaluation import scores as scores_lib
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import page as page_lib
from mah_jax.runs import results as results_lib
from mah_jax.runs import svg
from mah_jax.runs import table

CLASSES = 40    # labels that a drawing has room for
FIRST = 100     # rows whose labels are confusions
RANKS = 60      # points of a curve over ranks
SHOWN = 6       # queries with pictures: the first ones, and as many of the worst
ACROSS = 10     # neighbours of each
SIDE = 64       # pixels of a picture
EXACT = 32      # pixels of an image that is shown as it is, its pixels as squares
LISTED = 12     # pairs of classes that are confused most
LENGTHS = 6     # code lengths whose bits and classes are drawn, the shortest
BITS = 128      # bits of a code that are drawn, the first
MEANING = 140   # letters of what a flag means
POINTS = 400    # rounds of a curve
LETTERS = 60    # of a name, or of the labels of an image
SENTENCE = 900  # letters of a sentence that names classes

Block = page_lib.Block
Plain = page_lib.Plain


class Codes(NamedTuple):
  """Codes of one length, of the first seed: queries [q, c] and the database [n, c]."""
  queries: np.ndarray
  database: np.ndarray


class Run(NamedTuple):
  """What a run folder holds, as far as it goes.

  about: the content of config.json.
  rounds: the lines of metrics.jsonl.
  results: the content of results.json; None until the run has ended.
  codes: by length; empty where there are none.
  labels: of the queries [q, L] and of the database [n, L]; None where there are none.
  names: names of the queries and of the database.
  data: the dataset, for its pictures; None where it is not at hand.
  """
  about: dict[str, Any]
  rounds: list[dict[str, Any]]
  results: dict[str, Any] | None
  codes: dict[str, Codes]
  labels: tuple[np.ndarray, np.ndarray] | None
  names: tuple[Sequence[Any], Sequence[Any]]
  data: datasets.Dataset | None

  @property
  def flags(self) -> dict[str, Any]:
    """The settings; one that is newer than the run has its default."""
    return config_lib.to_json(config_lib.Config()) | self.about['flags']

  @property
  def metrics(self) -> dict[str, Any]:
    """The scores by length: those of the end or, until then, of the last round that was scored."""
    if self.results is not None:
      return self.results['metrics']
    return self.rounds[-1]['metrics'] if self.rounds else {}

  @property
  def class_names(self) -> list[str]:
    """The names of the labels; their numbers where nobody knows them."""
    if self.results is not None:
      return [_shortened(name) for name in self.results['classes']]
    if self.data is not None:
      return [_shortened(name) for name in self.data.class_names]
    words = next((m['codebook']['codewords'] for m in self.metrics.values()), [])
    return [f'label {i}' for i in range(len(words))]

  @property
  def bounds(self) -> dict[str, float]:
    """MAP of a random order and of the labels themselves, where they are known."""
    if self.results is not None:
      return {name: self.results['protocol'][name] for name in ('chance', 'ceiling')
              if name in self.results['protocol']}
    if self.data is None or not self.data.is_labelled:
      return {}
    labels = [self.data.labels[rows] for rows in (self.data.protocol.queries,
                                                  self.data.protocol.database)]
    return {'chance': metrics_lib.chance(*labels), 'ceiling': metrics_lib.ceiling(*labels)}


def write(folder: folder_lib.RunFolder, data: datasets.Dataset):
  """Writes report.html of a run that has ended, and says so; results stand without it too."""
  try:
    storage.check_file(folder.report, page_lib.MARK)
    storage.write_text(folder.report, to_html(read(folder, data)))
  except OSError as error:
    console.say(f'{folder.report} cannot be written ({error.strerror}); python -m mah_jax.report '
                f'{folder.path} --html makes the page where there is room.')
  except errors.InputError as error:  # somebody's own file has the name
    console.say(f'The page of the run is not written: {error}')
  else:
    console.say(f'{folder.report} shows the run as a page.')


def read(folder: folder_lib.RunFolder, data: datasets.Dataset | None) -> Run:
  """What a run folder holds; a dataset with other queries or another database is left out."""
  if folder.flags() is None:
    raise errors.InputError(f'{folder.path} is not a run folder: it has no config.json.')
  results = results_lib.read(folder) if folder.results.exists() else None
  if results is not None and data is not None and (
      results['protocol']['id'] != data.protocol.id):
    data = None
  codes, labels, names = {}, None, ((), ())
  if results is not None and folder.codes.is_dir():
    def array(name):
      return np.load(folder.codes / f'{name}.npy', allow_pickle=False)
    try:
      codes = {str(c): Codes(array(f'queries_{c}'), array(f'database_{c}'))
               for c in results['code_lengths']}
      labels = array('query_labels'), array('database_labels')
      content = storage.read_json(folder.codes / 'names.json')
      names = content['queries'], content['database']
    except (OSError, ValueError, LookupError, TypeError, EOFError) as error:
      raise errors.InputError(f'{folder.codes} lacks files or holds damaged ones ({error}): give '
                              'the command of its run again.') from None
  about = storage.read_json(folder.path / 'config.json')
  if results is not None:
    about['flags'] = results_lib.evaluated_flags(folder, results)
  return Run(about, folder.rounds(), results, codes, labels, names, data)


def to_html(run: Run) -> str:
  """The page as one file."""
  try:
    return page_lib.to_html(page(run))
  except (KeyError, TypeError, AttributeError, IndexError) as error:
    raise errors.InputError(f'The run in {run.flags["workdir"]} is damaged or of an earlier '
                            f'version of mah_jax ({type(error).__name__}: {error}): give its '
                            'command again.') from error


def page(run: Run) -> page_lib.Page:
  """The page of a run."""
  near = {}
  if run.labels is not None and run.labels[0].size:
    near = {c: neighbours.look(codes.queries, codes.database, *run.labels, FIRST)
            for c, codes in run.codes.items()}
  sections = [('Scores', _scores(run)), ('Rounds', _rounds(run)),
              ('Curves', _curves(near)), ('Codewords', _codewords(run)),
              ('Confusions', _confusions(run, near)), ('Bits', _bits(run)),
              ('Pictures', _pictures(run, near)), ('Settings', _settings(run))]
  return page_lib.Page(f'{run.flags["method"]} on {run.flags["dataset"]}', _head(run),
                       [page_lib.Section(*section) for section in sections if section[1]])


def _head(run: Run) -> list[Block]:
  """What the run is and how far, and its MAP in large figures."""
  flags, results = run.flags, run.results
  sentences = [f'Codes of {options.listed(list(map(str, flags["code_lengths"])))} bits.']
  if results is not None:
    protocol = results['protocol']
    queries = f'{protocol["queries"]:,} queries search ' if protocol['queries'] else ''
    sentences.append(f'{queries}{protocol["database"]:,} images ({protocol["name"]}).')
    seconds = results.get('timing', {}).get('fit_seconds')
    if seconds is not None:
      rounds = f' of {results["round"]} rounds' if 'round' in results else ''
      work = 'Training' if rounds else 'Fitting'
      sentences.append(f'{work}{rounds} took {console.clock(seconds)}.')
    if len(results['seeds']) > 1:
      sentences.append(f'Scores are means of {len(results["seeds"])} seeds; codes, curves and '
                       f'pictures are those of seed {results["seeds"][0]}.')
    if run.rounds and run.rounds[-1]['round'] > results.get('round', 0):
      sentences.append(f'It goes on: it has scored round {run.rounds[-1]["round"]} since, and what '
                       'is not over rounds is of the results before.')
  elif run.rounds:
    last = run.rounds[-1]
    sentences.append(f'The run has not ended: round {last["round"]} of {flags["num_rounds"]} was '
                     f'scored after {console.clock(last["seconds"])}.')
  else:
    sentences.append('The run has not ended, and no round was scored yet.')
  blocks: list[Block] = [page_lib.Text(Plain(' '.join(sentences)))]
  cards = [(f'{kinds[kind]["map"]:.3f}', f'map, {c} bits, {kind}')
           for c, kinds in run.metrics.items()
           for kind in [k for k in scores_lib.KINDS if k in kinds][:1]]
  return blocks + ([page_lib.Cards(cards)] if cards else [])


def _scores(run: Run) -> list[Block]:
  """The table of scores with its bounds."""
  if not run.metrics:
    if run.results is not None:
      return [page_lib.Text('The images have no labels, so that nothing can be scored.')]
    return []
  k = run.flags['k'] or config_lib.SCORED_ROWS
  shown = {'metrics': run.metrics, 'k': k} | (run.results or {})
  head, *rows = table.rows(shown)
  empty = [''] * (len(head) - 3)
  for name, words in (('ceiling', 'labels themselves'), ('chance', 'random order')):
    if name in run.bounds:
      rows.append(('', words, f'{run.bounds[name]:.4f}', *empty))
  blocks: list[Block] = [
      page_lib.Table(head, rows),
      page_lib.Text(f'`map` is the mean average precision over the whole database when equal '
                    f'distances come in random order; low and high are its worst and best order. '
                    f'`precision@{shown["k"]}` is the share of relevant rows among the first '
                    f'{shown["k"]:,}. A row is relevant if it shares a label with the query.')]
  if run.results is not None:
    shown['classes'] = run.class_names
    sentences = table.by_outputs(shown) + table.collisions(shown)
    if run.results['protocol']['database'] < shown['k']:
      sentences.append(f'The database has fewer rows than {shown["k"]:,}: precision@{shown["k"]} '
                       'is the share of relevant rows in all of it.')
    blocks += [page_lib.Text(Plain(_shortened(sentence, SENTENCE))) for sentence in sentences]
  return blocks


def _rounds(run: Run) -> list[Block]:
  """MAP, losses, rates and speed over rounds."""
  if len(run.rounds) < 2:
    return []
  every, drawn = -(-len(run.rounds) // POINTS), []
  lines = run.rounds[::-1][::every][::-1]  # the last one among them
  numbers = [line['round'] for line in lines]
  maps = {}
  for c in run.metrics:
    points = [(line['round'], next(line['metrics'][c][kind]['map'] for kind in scores_lib.KINDS
                                   if kind in line['metrics'][c]))
              for line in lines if c in line['metrics']]
    maps[f'{c} bits'] = svg.Curve(*zip(*points))
  if 'chance' in run.bounds:
    maps['random order'] = svg.Curve(numbers, [run.bounds['chance']] * len(numbers), faint=True)
  drawn.append(svg.curves(maps, svg.Axes('map of the queries', 'round', 'map', (0.0, 1.0))))
  groups = collections.defaultdict(dict)
  for name in lines[-1]['losses']:
    group, _, c = name.partition('/')
    values = [line['losses'].get(name, np.nan) for line in lines]
    groups[group][f'{c} bits' if c else 'all heads'] = svg.Curve(numbers, values)
  drawn += [svg.curves(curves, svg.Axes(f'loss: {group}' if group != 'loss' else 'loss', 'round',
                                        'mean over a round'))
            for group, curves in groups.items()]
  for name, title, y in (('learning_rate', 'learning rate', 'at the end of the round'),
                         ('images_per_second', 'speed of training, compilation included',
                          'images per second')):
    if all(name in line for line in lines):
      curve = svg.Curve(numbers, [line[name] for line in lines])
      drawn.append(svg.curves({name: curve}, svg.Axes(title, 'round', y)))
  kinds = {kind for line in lines for scores in line['metrics'].values() for kind in scores}
  words = ('Rounds whose database codes were not solved for yet are scored as assigned.'
           if scores_lib.ASSIGNED in kinds and scores_lib.LEARNED in kinds else '')
  return [page_lib.Beside([page_lib.Drawing(one) for one in drawn]),
          *([page_lib.Text(words)] if words else [])]


def _curves(near: dict[str, neighbours.Neighbours]) -> list[Block]:
  """Precision over rank and precision over recall."""
  if not near:
    return []
  by_rank, by_recall = {}, {}
  for c, of_length in near.items():
    n = int(of_length.size[0].sum())
    ranks = np.unique(np.geomspace(1, n, RANKS).round().astype(int))
    curves = neighbours.curves(of_length, ranks)
    by_rank[f'{c} bits'] = svg.Curve(ranks.tolist(), curves.precision.tolist())
    even = neighbours.curves(of_length, np.unique(np.linspace(1, n, RANKS).round().astype(int)))
    order = np.argsort(np.append(curves.recall, even.recall), kind='stable')
    by_recall[f'{c} bits'] = svg.Curve(
        np.append(curves.recall, even.recall)[order].tolist(),
        np.append(curves.precision, even.precision)[order].tolist())
  return [
      page_lib.Beside([
          page_lib.Drawing(svg.curves(by_rank, svg.Axes(
              'precision over rank', 'first rows', 'precision', (0.0, 1.0), log_x=True))),
          page_lib.Drawing(svg.curves(by_recall, svg.Axes(
              'precision over recall', 'recall', 'precision', (0.0, 1.0))))]),
      page_lib.Text('Means over all queries after the first 1, 2, 3, ... rows by Hamming distance, '
                    'with equal distances in random order; the codes that are searched.')]


def _shown_classes(run: Run) -> list[int]:
  """The labels that drawings show: all of them, or those of most database rows."""
  count = len(run.class_names)
  if count <= CLASSES:
    return list(range(count))
  rows = (run.labels[1].sum(axis=0, dtype=np.int64) if run.labels is not None
          else -np.arange(count))
  return sorted(np.argsort(-rows, kind='stable')[:CLASSES].tolist())


def _codewords(run: Run) -> list[Block]:
  """The codeword of each class as a row of bits."""
  if not run.metrics:
    return []
  shown, names = _shown_classes(run), run.class_names
  drawn = []
  for c, scores in list(run.metrics.items())[:LENGTHS]:
    words = [word[:BITS] for word in scores['codebook']['codewords']]
    drawn.append(page_lib.Drawing(svg.bits(
        [words[i] for i in shown], [names[i] for i in shown],
        f'{c} bits: {scores["codebook"]["distinct"]} codewords{_first_bits(c)}')))
  some = f' {CLASSES} of {len(names)} classes are shown.' if len(shown) < len(names) else ''
  return [page_lib.Beside(drawn),
          page_lib.Text('The codeword of a class is the majority, bit by bit, of the database rows '
                        f'with its label; full squares are 1.{some}')]


def _confusions(run: Run, near: dict[str, neighbours.Neighbours]) -> list[Block]:
  """Distances between codewords, and the labels that the neighbours of a class have."""
  if not run.metrics or len(run.class_names) < 2:
    return []
  shown, drawn, blocks = _shown_classes(run), [], []
  names = [run.class_names[i] for i in shown]
  for c, scores in list(run.metrics.items())[:LENGTHS]:
    words = [scores['codebook']['codewords'][i] for i in shown]
    apart = np.array([[sum(a != b for a, b in zip(x, y)) if x and y and i != j else np.nan
                       for j, y in enumerate(words)] for i, x in enumerate(words)])
    drawn.append(page_lib.Drawing(svg.heat_map(
        1 - apart / int(c), [[f'{x:.0f}' for x in row] for row in apart], names,
        f'{c} bits: distances of codewords')))
  blocks += [page_lib.Beside(drawn), page_lib.Text(
      'How many bits the codewords of two classes differ in; the nearer, the stronger the colour. '
      'Classes at distance 0 cannot be told apart by their codewords.')]
  if not near:
    return blocks
  share_of_label = run.labels[1].mean(axis=0)
  several = bool((run.labels[1].sum(axis=1) > 1).any())
  drawn, first = [], min(FIRST, len(run.labels[1]))
  title = f'labels of the first {first} rows' + (', above chance' if several else '')
  for c, of_length in list(near.items())[:LENGTHS]:
    shares = neighbours.confusions(of_length.labels, run.labels[0])
    if several:
      shares = shares - share_of_label
    elif not drawn:
      worst = _confused(run.class_names, shares, c)
    part = shares[np.ix_(shown, shown)]
    drawn.append(page_lib.Drawing(svg.heat_map(
        part / (np.nanmax(np.abs(part)) or 1) if several else part,
        [[f'{x:.2f}'.replace('0.', '.') if abs(x) >= 0.005 else '0' for x in row]
         for row in part], names, f'{c} bits: {title}')))
  words = (f'Images have several labels: of the first {first} rows, how much larger is the share '
           'that carries a label (across) for the queries with a label (down) than in the whole '
           'database? The stronger the colour, the more.' if several else
           f'The share of the first {first} rows with each label (across), for the queries of a '
           'class (down). A perfect run has 1 on the diagonal.')
  return [*blocks, page_lib.Beside(drawn), page_lib.Text(words), *([] if several else worst)]


def _confused(names: Sequence[str], shares: np.ndarray, c: str) -> list[Block]:
  """A table of the pairs of classes that are confused most."""
  wrong = np.nan_to_num(shares, nan=0.0)
  np.fill_diagonal(wrong, 0.0)
  order = np.argsort(-wrong, axis=None, kind='stable')[:LISTED]
  rows = [[Plain(names[i]), Plain(names[j]), f'{wrong[i, j]:.3f}']
          for i, j in zip(*np.unravel_index(order, wrong.shape)) if wrong[i, j] >= 0.0005]
  if not rows:
    return []
  return [page_lib.Table([f'queries of ({c} bits)', 'find', 'share of the first rows'], rows)]


def _bits(run: Run) -> list[Block]:
  """How evenly codes use their bits, and how many codes there are."""
  if not run.codes:
    return []
  rows, drawn = [], []
  for c, codes in list(run.codes.items())[:LENGTHS]:
    of_code = np.bincount(distinct.number_rows(codes.database).of_row) / len(codes.database)
    entropy = -(of_code * np.log2(of_code)).sum()
    positive = (codes.database > 0).mean(axis=0)
    rows.append([c, f'{len(of_code):,}', f'{2 ** int(c):,}' if int(c) <= 32 else f'2^{c}',
                 f'{entropy:.2f}', f'{of_code.max():.3f}',
                 f'{np.minimum(positive, 1 - positive).min():.3f}'])
    drawn.append(page_lib.Drawing(svg.bars(
        positive[:BITS].tolist(), [str(i + 1) for i in range(min(len(positive), BITS))],
        svg.Axes(f'{c} bits: share of 1{_first_bits(c)}', 'bit', 'share of rows', (0.0, 1.0)),
        level=0.5)))
  return [page_lib.Table(['bits', 'codes in use', 'of', 'entropy (bits)',
                          'share of the commonest code', 'rarer value of the most uneven bit'],
                         rows), page_lib.Beside(drawn),
          page_lib.Text('Codes of the database that are searched. A bit tells most where half of '
                        'the rows have it; entropy is how many bits the codes are worth.')]


def _first_bits(c: str) -> str:
  return f', first {BITS} bits' if int(c) > BITS else ''


def _pictures(run: Run, near: dict[str, neighbours.Neighbours]) -> list[Block]:
  """The first and the worst queries with their neighbours, at the fewest bits."""
  if not run.codes or run.data is None:
    return []
  c, codes = next(iter(run.codes.items()))
  blocks: list[Block] = []
  if not near:  # without labels the first rows of the database are the queries
    blocks.append(page_lib.Text(f'The first images and their neighbours at {c} bits. Equal '
                                'distances keep the order of the database.'))
    return blocks + [_strip(run, codes, i, None) for i in range(min(SHOWN, len(codes.database)))]
  precision = neighbours.average_precision(near[c])
  findable = np.flatnonzero(near[c].relevant.any(axis=1))
  worst = findable[np.argsort(precision[findable], kind='stable')][:SHOWN]
  blocks.append(page_lib.Text(
      f'Queries at {c} bits, each with its first {ACROSS} rows; equal distances keep the order of '
      'the database. A full frame and ✓ mark rows that share a label with the query, a dashed one '
      'and ✗ the others. AP is the average precision of the query.'))
  for title, chosen in (('**The first queries**', range(min(SHOWN, len(precision)))),
                        ('**The worst queries**', worst)):
    blocks.append(page_lib.Text(title))
    blocks += [_strip(run, codes, int(i), near[c].size[i, 0], precision[i]) for i in chosen]
  return blocks


def _strip(run: Run, codes: Codes, number: int, at_zero: int | None,
           precision: float = 0.0) -> page_lib.Strip:
  """A query, or a database row where `at_zero` is None, and its neighbours."""
  split = run.data.protocol
  if at_zero is None:
    rows, distances = neighbours.nearest(codes.database[number], codes.database, ACROSS + 1)
    rows, distances = rows[rows != number][:ACROSS], distances[rows != number][:ACROSS]
    first = _picture(run, split.database[number], run.names[1][number], [])
    return page_lib.Strip('', [first, *(
        _picture(run, split.database[row], run.names[1][row], [f'distance {distance}'])
        for row, distance in zip(rows, distances))])
  rows, distances = neighbours.nearest(codes.queries[number], codes.database, ACROSS)
  own, labels = run.labels[0][number], run.labels[1]
  tiles = [_picture(run, split.queries[number], run.names[0][number], ['query', _labels(run, own)])]
  for row, distance in zip(rows, distances):
    good = bool((own & labels[row]).any())
    tiles.append(_picture(run, split.database[row], run.names[1][row], [
        f'{"✓" if good else "✗"} distance {distance}', _labels(run, labels[row])], good))
  return page_lib.Strip(f'AP {precision:.3f}; rows at distance 0: {at_zero:,}', tiles)


def _labels(run: Run, row: np.ndarray) -> str:
  names = [run.class_names[i] for i in np.flatnonzero(row)]
  return _shortened(', '.join(names)) or 'no label'


def _shortened(text: str, most: int = LETTERS) -> str:
  return text if len(text) <= most else f'{text[:most - 1]}…'


def _picture(run: Run, row: int, name: Any, lines: Sequence[str],
             good: bool | None = None) -> page_lib.Picture:
  """A small picture of a row of the dataset; an image that cannot be read is left empty."""
  images = run.data.images
  texts = [Plain(line) for line in (*lines, _shortened(str(name).rpartition('/')[2]))]
  if isinstance(images, np.ndarray):
    pixels = images[row]
    if max(pixels.shape[:2]) <= EXACT:
      return page_lib.Picture(pictures.to_png(pixels), texts, good, enlarged=True)
    return page_lib.Picture(pictures.to_jpeg(pictures.square(pixels, SIDE)), texts, good)
  try:
    content = pictures.to_jpeg(images.decode(int(row), SIDE, 3))
  except errors.InputError:
    content = None
  return page_lib.Picture(content, texts, good)


def _settings(run: Run) -> list[Block]:
  """The flags of the run, those that are not at their defaults first."""
  fields = config_lib.all_fields()
  flags = config_lib.relevant(run.flags)
  text = {name: options.text(value) for name, value in flags.items()}
  changed = [name for name in flags if name in fields
             and text[name] != options.text(fields[name].default)]
  rows = [[Plain(f'--{name}={text[name]}'), Plain(_meaning(fields[name]))] for name in changed]
  versions = ', '.join(f'{name} {number}' for name, number in run.about.get('versions', {}).items())
  devices = collections.Counter(run.about.get('devices', []))
  machine = ', '.join(f'{count} x {name}' for name, count in devices.items())
  everything = json.dumps(flags, indent=None, ensure_ascii=False, default=str)
  return [page_lib.Table(['flag', 'meaning'], rows),
          page_lib.Text(Plain(f'Devices: {machine}. Versions: {versions}.')),
          page_lib.Details('All settings of this run, those at their defaults too',
                           [page_lib.Text(Plain(everything))])]


def _meaning(field: dataclasses.Field) -> str:
  """The first sentence of what a flag means, or its beginning."""
  sentence = re.split(r'(?<=\.) ', field.metadata['doc'])[0]
  return textwrap.shorten(sentence, MEANING, placeholder=' …')
