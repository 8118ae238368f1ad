"""The command `python -m mah_jax.paper`: the paper's tables and figures, made anew."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from mah_jax import compiling
from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax import flags
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.paper import experiments
from mah_jax.paper import figures
from mah_jax.paper import report
from mah_jax.paper import running
from mah_jax.paper import scores as scores_lib
from mah_jax.train import processes

TRACKS = {'features': 'features', 'images': 'cifar'}  # how the names of launch files begin
INPUTS = {
    'features': 'The deep ones are networks with one hidden layer on fixed ResNet-50 features at '
                '96 px (ImageNet weights), the others fit these features directly. The paper '
                'fine-tuned ResNet-50 at 224 px, so its levels are higher; what can be compared '
                'is which method is above which, and why.',
    'images': 'The deep ones fine-tune ResNet-50 at 224 px, as the paper did; the others fit '
              'features of ResNet-50 with ImageNet weights at 96 px.'}


def main(arguments: Sequence[str]) -> int:
  """Runs with these command-line arguments; returns the exit code."""
  parsed = _parser().parse_args(arguments)
  launch = processes.Launch(*(getattr(parsed, name) for name in processes.Launch._fields))
  return processes.run(launch, lambda: _run(parsed))


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser('python -m mah_jax.paper', description=__doc__)
  parser.add_argument('--only', default='', help='some of: ' + ', '.join(experiments.EXPERIMENTS))
  parser.add_argument('--seeds', type=int, default=experiments.Study().seeds,
                      help='seeds of each run; MAH and ADSH at 4 bits have twice as many')
  parser.add_argument('--dry_run', action='store_true',
                      help='say which runs are missing and how long they take')
  parser.add_argument('--output', default='', help='folder of the report; empty: results/paper '
                      'or, of the track images, results/paper_images')
  parser.add_argument('--runs', default='runs/paper', help='folder of the runs')
  parser.add_argument('--data_dir', default='data', help='folder of the datasets')
  parser.add_argument('--track', default='features', choices=TRACKS,
                      help='features: networks read fixed features, for a CPU; images: networks '
                      'are fine-tuned, for GPUs (not yet run)')
  flags = config_lib.all_fields()
  for name, default in processes.Launch()._asdict().items():
    kind = {'action': 'store_true'} if default is False else {'type': type(default)}
    parser.add_argument(f'--{name}', default=default, help=flags[name].metadata['doc'], **kind)
  return parser


def _run(arguments: argparse.Namespace):
  known = experiments_of(arguments.track)
  only = [name for name in arguments.only.split(',') if name] or known
  unknown = [name for name in only if name not in known]
  if unknown:
    raise errors.UsageError(f'--only={arguments.only}: there is no {unknown[0]}; choose some of '
                            f'{", ".join(known)}.')
  if arguments.seeds < 1:
    raise errors.UsageError(f'--seeds={arguments.seeds} must be at least 1.')
  study, missing = at_hand(experiments.Study(seeds=arguments.seeds), arguments.data_dir)
  runs = storage.path(arguments.runs) / arguments.track
  output = arguments.output or ('results/paper' if arguments.track == 'features' else
                                f'results/paper_{arguments.track}')

  def make_config(cell: experiments.Cell) -> config_lib.Config:
    return config_of(cell, arguments.track, [
        f'--data_dir={arguments.data_dir}', f'--workdir={runs / cell.name}'])

  make(study, only, make_config, scores_lib.Scores(runs), storage.path(output), missing,
       track=arguments.track, dry_run=arguments.dry_run)


def make(study: experiments.Study, only: Sequence[str], make_config: running.MakeConfig,
         scores: scores_lib.Scores, output: pathlib.Path, missing: dict[str, str], *,
         track: str = 'features', dry_run: bool = False):
  """Makes the runs that are missing, then the report."""
  cells = experiments.cells(study, only)
  todo = running.unfinished(cells, make_config)
  for sentence in missing.values():
    console.say(sentence)
  console.say(f'{len(cells)} runs, {len(cells) - len(todo)} of them finished; the others take '
              f'about {console.clock(running.Pace().seconds(todo))} on two cores, and the features '
              'of images that nobody has extracted yet.')
  if dry_run:
    for cell in todo:
      console.say(cell.name)
    return
  figures.require()  # before the hours that the runs take
  report.check(output)
  compiling.prepare()
  running.run_all(todo, make_config)
  processes.once(lambda: report.write(study, only, scores, output, missing, INPUTS[track]))
  console.say(f'Written to {output}: README.md, index.html, scores.csv.')


def experiments_of(track: str) -> list[str]:
  """The names of the experiments of a track; settings were chosen on features only."""
  return [name for name in experiments.EXPERIMENTS if track == 'features' or name != 'choices']


def at_hand(study: experiments.Study, data_dir: str
            ) -> tuple[experiments.Study, dict[str, str]]:
  """The study with those of its datasets that are there; a sentence for each of the others."""
  missing = {}
  for name in study.datasets:
    try:
      datasets.load(name, data_dir, split_seed=0)
    except errors.InputError as error:
      if name == study.datasets[0]:
        raise
      missing[name] = f'{name} is left out: {error}'
  there = tuple(name for name in study.datasets if name not in missing)
  return study._replace(datasets=there), missing


def config_of(cell: experiments.Cell, track: str, more: Sequence[str]) -> config_lib.Config:
  """The settings of a run: those of its launch file, and its own."""
  row = experiments.ROWS[cell.row]
  return flags.from_arguments([
      f'--flagfile=launch/{TRACKS[track]}_{row.file}.cfg', *row.flags,
      f'--dataset={cell.dataset}', f'--code_lengths={",".join(map(str, cell.lengths))}',
      f'--seed={cell.seed}', *[f'--{name}={value}' for name, value in cell.flags], *more])


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
