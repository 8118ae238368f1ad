"""Tables over several runs: `python -m mah_jax.report RUN_FOLDER ...` prints one in Markdown."""

from __future__ import annotations

import collections
import json
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import runfolder

# Flags in which runs of one row may differ: those of a seed, a length, a place or a machine.
FREE = {'seed', 'code_lengths', 'head_weights', *config_lib.FREE_FIELDS} - {'num_rounds'}


class Run(NamedTuple):
  """A finished run: its flags and what is in its results.json."""
  flags: dict[str, Any]
  results: dict[str, Any]


def read(folder: pathlib.Path) -> Run:
  """The run in a folder."""
  flags = config_lib.saved_flags(folder)
  path = folder / 'results.json'
  if flags is None or not path.exists():
    raise errors.InputError(f'{folder} is not the folder of a finished run: it has no config.json '
                            'or no results.json.')
  try:
    results = json.loads(path.read_text())
    return Run(flags, {name: results[name] for name in ('dataset', 'protocol', 'metrics', 'seeds')})
  except (ValueError, KeyError, TypeError):
    raise errors.InputError(f'{path} is damaged: give the command of its run again.') from None


def table(runs: Sequence[Run]) -> str:
  """A Markdown table: a row for each method and kind of database codes, a column per length.

  A cell has the mean of `map` over the seeds, their deviation and number, and the distinct
  codewords of the first of them. Runs whose protocols differ cannot stand in one table.
  """
  protocols = {run.results['protocol']['id']: run.results['protocol'] for run in runs}
  if len(protocols) > 1:
    raise errors.UsageError('These runs have different queries or databases (protocol ids '
                            f'{", ".join(protocols)}), so that their scores cannot be compared.')
  protocol, = protocols.values()
  lengths = sorted({int(c) for run in runs for c in run.results['metrics']})
  rows = [['method', 'database', *[f'{c} bits' for c in lengths]]]
  rows.append(['---'] * len(rows[0]))
  for name, members in _named(runs).items():
    for kind in runfolder.KINDS:
      cells = [_cell([run for run in members if kind in run.results['metrics'].get(str(c), {})],
                     str(c), kind) for c in lengths]
      if any(cells):
        rows.append([name, kind, *cells])
  lines = [f'| {" | ".join(row)} |' for row in rows]
  return '\n'.join([
      f'{runs[0].results["dataset"]}, {protocol["queries"]} queries, {protocol["database"]} '
      f'database rows, protocol {protocol["id"][:16]}: map, mean +- deviation (number of seeds; '
      'distinct codewords of the first).', '', *lines, '',
      f'A random order has map {protocol["chance"]:.4f}, the labels themselves '
      f'{protocol["ceiling"]:.4f}.'])


def _named(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Runs by method, and where a method was run in several ways, by what differs."""
  ways = collections.defaultdict(list)
  for run in runs:
    fixed = {name: config_lib.text(value) for name, value in run.flags.items()
             if name not in FREE}
    ways[tuple(sorted(fixed.items()))].append(run)
  of_method = collections.Counter(dict(way)['method'] for way in ways)
  named = {}
  for way, members in ways.items():
    method = dict(way)['method']
    others = [set(other) for other in ways if dict(other)['method'] == method]
    different = [f'--{name}={value}' for name, value in way
                 if of_method[method] > 1 and any((name, value) not in other for other in others)]
    named[' '.join([method, *different])] = members
  return named


def _cell(runs: Sequence[Run], c: str, kind: str) -> str:
  """Mean and deviation of one row's runs at one length; empty where there are none."""
  if not runs:
    return ''
  scores = [run.results['metrics'][c] for run in runs]
  maps = [score[kind]['map'] for score in scores]
  seeds, spread = len(maps), f' +-{statistics.stdev(maps):.3f}' if len(maps) > 1 else ''
  if 'deviation' in scores[0]:  # a run that averaged seeds itself
    seeds = len(runs[0].results['seeds'])
    spread = f' +-{scores[0]["deviation"][kind]["map"]:.3f}'
  return f'{statistics.mean(maps):.3f}{spread} ({seeds}; {scores[0]["codebook"]["distinct"]})'


def main(arguments: Sequence[str]) -> int:
  """Prints the table of the runs in these folders; returns the exit code."""
  if not arguments or {'--help', '-h'} & set(arguments):
    print('Usage: python -m mah_jax.report RUN_FOLDER [RUN_FOLDER ...]',
          file=sys.stdout if arguments else sys.stderr)
    return 0 if arguments else 2
  try:
    print(table([read(pathlib.Path(name).expanduser()) for name in arguments]))
  except (errors.UsageError, errors.InputError) as error:
    print(f'mah_jax: {error}', file=sys.stderr)
    return 2 if isinstance(error, errors.UsageError) else 1
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
