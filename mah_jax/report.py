"""Tables over several runs: `python -m mah_jax.report RUN_FOLDER ...` prints one in Markdown."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import runfolder

# Flags in which runs of one row may differ: those of a seed, a place or a machine.
FREE = {'seed', 'num_seeds', *config_lib.FREE_FIELDS} - {'num_rounds'}
PROTOCOL = ('id', 'queries', 'database', 'chance', 'ceiling')


class Scores(NamedTuple):
  """What a table shows of one code length.

  distinct: codewords of the classes.
  maps: by kind of database codes.
  deviations: likewise, where a run averaged several seeds.
  """
  distinct: int
  maps: dict[str, float]
  deviations: dict[str, float]


class Run(NamedTuple):
  """A finished run: its flags and what a table shows of its results.json."""
  flags: dict[str, Any]
  dataset: str
  protocol: dict[str, Any]
  scores: dict[str, Scores]  # by code length
  seeds: tuple[int, ...]


def read(folder: pathlib.Path) -> Run:
  """The run in a folder."""
  flags = config_lib.saved_flags(folder)
  path = folder / 'results.json'
  if flags is None or not path.exists():
    raise errors.InputError(f'{folder} is not the folder of a finished run: it has no config.json '
                            'or no results.json.')
  try:
    results = json.loads(path.read_text())
    protocol = {name: results['protocol'][name] for name in PROTOCOL}
    scores = {c: Scores(found['codebook']['distinct'], _maps(found),
                        _maps(found.get('deviation', {})))
              for c, found in results['metrics'].items()}
    # Flags that are newer than the run have their default; some may be changed by an evaluation.
    flags = config_lib.to_json(config_lib.Config()) | flags | {
        name: results[name] for name in config_lib.EVALUATION_FIELDS if name in results}
    return Run(flags, results['dataset'], protocol, scores, tuple(results['seeds']))
  except (ValueError, KeyError, TypeError, AttributeError):
    raise errors.InputError(f'{path} is damaged or of an earlier version of mah_jax: give the '
                            'command of its run again.') from None


def _maps(found: dict[str, Any]) -> dict[str, float]:
  return {kind: float(found[kind]['map']) for kind in runfolder.KINDS if kind in found}


def table(runs: Sequence[Run]) -> str:
  """A Markdown table: a row for each method and kind of database codes, a column per length.

  A cell has the mean of `map` over the seeds, their deviation and number, and the distinct
  codewords of the first of them. Runs whose protocols differ cannot stand in one table.
  """
  protocols = {run.protocol['id']: run.protocol for run in runs}
  if len(protocols) > 1:
    raise errors.UsageError('These runs have different queries or databases (protocol ids '
                            f'{", ".join(protocols)}), so that their scores cannot be compared.')
  protocol, = protocols.values()
  lengths = sorted({int(c) for run in runs for c in run.scores})
  rows = [['method', 'database', *[f'{c} bits' for c in lengths]]]
  rows.append(['---'] * len(rows[0]))
  for name, members in _named(runs).items():
    for kind in runfolder.KINDS:
      cells = [_cell(name, [run for run in members
                            if str(c) in run.scores and kind in run.scores[str(c)].maps],
                     str(c), kind) for c in lengths]
      if any(cells):
        rows.append([name, kind, *cells])
  lines = [f'| {" | ".join(row)} |' for row in rows]
  return '\n'.join([
      f'{runs[0].dataset}, {protocol["queries"]} queries, {protocol["database"]} '
      f'database rows, protocol {protocol["id"][:16]}: map, mean +- deviation (number of seeds; '
      'distinct codewords of the first).', '', *lines, '',
      f'A random order has map {protocol["chance"]:.4f}, the labels themselves '
      f'{protocol["ceiling"]:.4f}.'])


def _named(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Runs by method, and where a method was run in several ways, by what differs."""
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
  """The flags that make a row of the table."""
  free = set(FREE)
  if flags['method'] != 'mah':
    free.add('head_weights')
  if flags['method'] in (*config_lib.ONE_LENGTH, *config_lib.SHALLOW):
    free.add('code_lengths')  # each of them is fitted by itself
  return {name: config_lib.text(value) for name, value in flags.items() if name not in free}


def _cell(name: str, runs: Sequence[Run], c: str, kind: str) -> str:
  """Mean and deviation of one row's runs at one length; empty where there are none."""
  if not runs:
    return ''
  seeds = [seed for run in runs for seed in run.seeds]
  if len(set(seeds)) < len(seeds) or len(runs) > 1 and len(seeds) > len(runs):
    raise errors.UsageError(f'Several of these runs of {name} have {c} bits and the same seeds, or '
                            'are averages of seeds themselves: give one of them.')
  scores = [run.scores[c] for run in runs]
  maps = [own.maps[kind] for own in scores]
  deviation = statistics.stdev(maps) if len(maps) > 1 else scores[0].deviations.get(kind)
  spread = '' if deviation is None else f' +-{deviation:.3f}'
  return f'{statistics.mean(maps):.3f}{spread} ({len(seeds)}; {scores[0].distinct})'


def main(arguments: Sequence[str]) -> int:
  """Prints the table of the runs in these folders; returns the exit code."""
  if not arguments or {'--help', '-h'} & set(arguments):
    print('Usage: python -m mah_jax.report RUN_FOLDER [RUN_FOLDER ...]',
          file=sys.stdout if arguments else sys.stderr)
    return 0 if arguments else 2
  try:
    print(table([read(pathlib.Path(os.path.expanduser(name))) for name in arguments]))
  except errors.UsageError as error:
    return _complain(error, 2)
  except (errors.InputError, OSError) as error:
    return _complain(error, 1)
  return 0


def _complain(error: Exception, code: int) -> int:
  print(f'mah_jax: {error}', file=sys.stderr)
  return code


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
