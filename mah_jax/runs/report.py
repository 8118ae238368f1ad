"""Tables over several runs, in Markdown, and the page of their scores and figures."""

from __future__ import annotations

import collections
import pathlib
import statistics
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import methods
from mah_jax import options
from mah_jax.evaluation import scores as scores_lib
from mah_jax.runs import figures
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import page as page_lib
from mah_jax.runs import results as results_lib

PROTOCOL = {'id': str, 'queries': int, 'database': int, 'chance': float, 'ceiling': float}


class Scores(NamedTuple):
  """The scores of one code length that a table shows.

  distinct: number of different codewords of the classes.
  maps: by kind of database codes.
  deviations: by kind of database codes, where a run averaged several seeds.
  precisions: precision@k, by kind of database codes.
  """
  distinct: int
  maps: dict[str, float]
  deviations: dict[str, float]
  precisions: dict[str, float]


class Run(NamedTuple):
  """A finished run: its flags and the scores that a table shows, by code length.

  rounds: after which rounds it was scored, and the map of each code length then.
  seconds: how long it was trained or fitted; None in runs of earlier versions.
  """
  flags: dict[str, Any]
  dataset: str
  protocol: dict[str, Any]
  scores: dict[str, Scores]
  seeds: tuple[int, ...]
  rounds: list[tuple[int, dict[str, float]]]
  seconds: float | None


def read(path: pathlib.Path) -> Run:
  """The run in a folder."""
  folder = folder_lib.RunFolder(path)
  if folder.flags() is None or not folder.results.exists():
    raise errors.InputError(f'{path} is not the folder of a finished run: it has no config.json '
                            'or no results.json.')
  results = results_lib.read(folder)
  if results.get('classes') == []:
    raise errors.InputError(f'The run in {path} has no scores, as its images have no labels: leave '
                            'it out.')
  try:
    protocol = {name: kind(results['protocol'][name]) for name, kind in PROTOCOL.items()}
    scores = {str(int(c)): Scores(int(kinds['codebook']['distinct']), _maps(kinds),
                                  _maps(kinds.get('deviation', {})),
                                  _maps(kinds, f'precision@{results.get("k")}'))
              for c, kinds in results['metrics'].items()}
    if not all(of_length.maps for of_length in scores.values()) or not scores:
      raise ValueError
    # A flag that is newer than the run has its default.
    flags = config_lib.to_json(config_lib.Config()) | results_lib.evaluated_flags(folder, results)
    dataset, seconds = results['dataset'], results.get('timing', {}).get('fit_seconds')
  except (LookupError, TypeError, ValueError, AttributeError):
    raise errors.InputError(f'{folder.results} is damaged or of another version of mah_jax: give '
                            'the command of its run again, or copy it again.') from None
  if flags['method'] not in methods.METHODS:
    raise errors.InputError(f'The run in {path} has --method={flags["method"]}, which this version '
                            'of mah_jax does not know: leave it out.')
  return Run(flags, dataset, protocol, scores, tuple(results['seeds']), _rounds(folder), seconds)


def _rounds(folder: folder_lib.RunFolder) -> list[tuple[int, dict[str, float]]]:
  """The scores in metrics.jsonl, see `Run.rounds`."""
  lines = folder.rounds()
  try:
    return [(line['round'], {c: _first(_maps(kinds)) for c, kinds in line['metrics'].items()})
            for line in lines]
  except (LookupError, TypeError, ValueError, AttributeError, StopIteration):
    raise errors.InputError(f'The metrics.jsonl of the run in {folder.path} is damaged: remove it, '
                            'or copy it again.') from None


def _maps(kinds: dict[str, Any], metric: str = 'map') -> dict[str, float]:
  return {kind: float(kinds[kind][metric]) for kind in scores_lib.KINDS
          if kind in kinds and (metric == 'map' or metric in kinds[kind])}


def table(runs: Sequence[Run]) -> str:
  """A Markdown table of the scores, between its title and a note."""
  title, scores, note = _scores(runs)
  rows = [scores.head, ['---'] * len(scores.head), *scores.rows]
  return '\n'.join([title, '', *[f'| {" | ".join(row)} |' for row in rows], '', note])


def page(runs: Sequence[Run]) -> page_lib.Page:
  """The page of the runs: their scores, and how these depend on length, round and time."""
  title, scores, note = _scores(runs)
  blocks: list[page_lib.Block] = [page_lib.Text(title), scores, page_lib.Text(note)]
  named = _named(runs)
  lengths = {name: sorted({c for run in members for c in run.scores}, key=int)
             for name, members in named.items()}
  by_length = {title: {name: figures.Curve(
      [int(c) for c in lengths[name]],
      [statistics.mean(_first(getattr(run.scores[c], field)) for run in members if c in run.scores)
       for c in lengths[name]]) for name, members in named.items()
                       if all(getattr(s, field) for run in members for s in run.scores.values())}
               for title, field in (('map', 'maps'), ('precision@k', 'precisions'))}
  blocks.append(page_lib.Figure('lengths', figures.curves(by_length, figures.Axes('bits', 'score')),
                                'Scores of the codes that are searched over their length.'))
  by_round = {}
  for name, members in named.items():
    for run in members:
      for c in run.scores:
        points = [(number, maps[c]) for number, maps in run.rounds if c in maps]
        if len(points) > 1:
          label = name if len(members) == 1 else f'{name}, seed {run.seeds[0]}'
          by_round.setdefault(f'{c} bits', {})[label] = figures.Curve(*zip(*points))
  if by_round:
    blocks.append(page_lib.Figure(
        'rounds', figures.curves(by_round, figures.Axes('round', 'map')),
        'map after the rounds that were scored.'))
  seconds = {name: statistics.mean(run.seconds for run in members)
             for name, members in named.items() if None not in [run.seconds for run in members]}
  blocks.append(page_lib.Figure('seconds', figures.bars({'seconds of training': seconds},
                                                        figures.Axes('', 's')),
                                'What training or fitting took, on the machines of these runs.'))
  settings = [[name, ' '.join(f'`--{flag}={value}`' for flag, value in
                              _settings(members[0].flags).items() if value)]
              for name, members in named.items()]
  blocks.append(page_lib.Table(['run', 'settings'], settings))
  return page_lib.Page(f'Runs on {runs[0].dataset}', blocks, ())


def _first(scores: Mapping[str, float]) -> float:
  """The score of the codes that are searched."""
  return next(iter(scores.values()))


def _scores(runs: Sequence[Run]) -> tuple[str, page_lib.Table, str]:
  """A title, a row for each method and kind of database codes with a column per length, a note.

  A cell has the mean of `map` over the seeds, their deviation and number, and the distinct
  codewords of the first of them. Runs whose protocols differ cannot stand in one table.
  """
  protocols = {run.protocol['id']: run.protocol for run in runs}
  if len(protocols) > 1:
    raise errors.UsageError('These runs have different queries or databases (protocol ids '
                            f'{", ".join(protocols)}), so that their scores cannot be compared.')
  protocol, = protocols.values()
  lengths = sorted({int(c) for run in runs for c in run.scores})
  rows = []
  for name, members in _named(runs).items():
    for kind in scores_lib.KINDS:
      cells = [_cell(name, [run for run in members
                            if str(c) in run.scores and kind in run.scores[str(c)].maps],
                     str(c), kind) for c in lengths]
      if any(cells):
        rows.append([name, kind, *cells])
  title = (f'{runs[0].dataset}, {protocol["queries"]} queries, {protocol["database"]} database '
           f'rows, protocol {protocol["id"][:16]}: map, mean +- deviation (number of seeds; '
           'distinct codewords of the first).')
  note = (f'A random order has map {protocol["chance"]:.4f}, the labels themselves '
          f'{protocol["ceiling"]:.4f}.')
  return title, page_lib.Table(['method', 'database', *[f'{c} bits' for c in lengths]], rows), note


def _named(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Runs by method and, where a method was run in several ways, by the flags that differ."""
  ways = collections.defaultdict(list)
  for run in runs:
    ways[tuple(_settings(run.flags).items())].append(run)
  named = {}
  for way, members in ways.items():
    method = members[0].flags['method']
    others = [dict(other) for other in ways if dict(other)['method'] == method]
    different = [f'--{name}={value}' for name, value in way
                 if any(other.get(name) != value for other in others)]
    named[' '.join([method, *different])] = members
  return named


def _settings(flags: dict[str, Any]) -> dict[str, str]:
  """The flags that make a row of the table: not those of a seed, a folder or a machine."""
  spec, fields = methods.METHODS[flags['method']], config_lib.all_fields()
  free = {name for name, field in fields.items()
          if field.metadata['may_change'] == options.ALWAYS} - {'num_rounds'}
  free |= {'seed', 'num_seeds'}
  if spec.one_length or not spec.trains_network:
    free.add('code_lengths')  # each length is fitted by itself
  return {name: options.text(value) for name, value in config_lib.relevant(flags).items()
          if name not in free}


def _cell(name: str, runs: Sequence[Run], c: str, kind: str) -> str:
  """Mean and deviation of one row's runs at one length; empty where there are none."""
  if not runs:
    return ''
  seeds = [seed for run in runs for seed in run.seeds]
  if len(set(seeds)) < len(seeds) or len(runs) > 1 and len(seeds) > len(runs):
    raise errors.UsageError(f'Several of these runs of {name} have {c} bits and the same seeds, or '
                            'are averages of seeds themselves: give one of them.')
  scores = [run.scores[c] for run in runs]
  maps = [of_run.maps[kind] for of_run in scores]
  deviation = statistics.stdev(maps) if len(maps) > 1 else scores[0].deviations.get(kind)
  spread = '' if deviation is None else f' +-{deviation:.3f}'
  return f'{statistics.mean(maps):.3f}{spread} ({len(seeds)}; {scores[0].distinct})'
