"""The worth of each choice of our recipe on CIFAR-10: makes all runs, writes their table.

PYTHONPATH=. python benchmarks/ablation.py [--seeds=3]

Each run is launch/cifar_ablation.cfg with the flags below. Its settings, scores and codes go to
results/cifar10/ablation/; runs that are there already are not made again. table.md beside them has
MAP, mean and 95 % interval, with a star where the difference from the base, paired by seed, has an
interval without 0, and how many codewords the ten classes have on average.
"""

import argparse
import pathlib
import shutil
import statistics

from mah_jax import compiling
from mah_jax import config as config_lib
from mah_jax import flags
from mah_jax import modes
from mah_jax import storage
from mah_jax.evaluation import intervals
from mah_jax.runs import report
from mah_jax.train import backbone

RESULTS = pathlib.Path('results/cifar10/ablation')
KEPT = ('config.json', 'codes.npz', 'results.json')  # the last says: whole
LENGTHS = ('4', '8', '16')
UPDATED = ('--hold_codes_rounds=0',)
SIGNED = ('--similarity=signed',)
BASE = 'the base: codebook, held, balanced S, cascaded'


def single(c: str) -> tuple[str, ...]:
  """Flags of ADSH, which has no weights of heads."""
  return ('--method=adsh', '--head_weights=6,2,1', f'--code_lengths={c}')


# Rows of the table: what differs, and the flags of each run by the folder that it is kept in.
ROWS = {
    BASE: {'base': ()},
    'near codewords for classes that look alike': {'alike': ('--code_init=alike',)},
    'held for 3 of 10 rounds, then DCC': {'held_3': ('--hold_codes_rounds=3',)},
    'never held': {'not_held': UPDATED},
    'random codes, never held': {'random': ('--code_init=random', *UPDATED)},
    'zeros, never held': {'zeros': ('--code_init=zeros', *UPDATED)},
    'zeros, never held, signed S': {'zeros_signed': ('--code_init=zeros', *UPDATED, *SIGNED)},
    'signed S': {'signed': SIGNED},
    'flat heads': {'flat': ('--heads=flat',)},
    'three networks of one head (ADSH)': {f'adsh_{c}': single(c) for c in LENGTHS},
    'losses not divided by c²': {'unscaled': ('--noscale_heads',)},
    'heads of equal weight': {'equal': ('--head_weights=1,1,1',)},
    'codes by the nearest codeword': {'nearest': ('--binarize=nearest',)},
}


def run(name: str, changes: tuple[str, ...], seed: int) -> report.Run:
  """Makes a run, unless its results are kept already, and reads them."""
  kept = RESULTS / f'{name}_{seed}'
  config = backbone.resolve(flags.from_arguments([
      '--flagfile=launch/cifar_ablation.cfg', *changes, '--noreport', f'--seed={seed}',
      f'--workdir=runs/ablation/{kept.name}']), None)
  if not (kept / 'results.json').exists():
    modes.MODES['train'](config)
    kept.mkdir(parents=True, exist_ok=True)
    for file in KEPT:
      shutil.copy(pathlib.Path(config.workdir) / file, kept)
  elif different := config_lib.differences(config, config_lib.saved_flags(kept)):
    raise SystemExit(f'{kept} was run with other flags ({"; ".join(different)}): remove it.')
  return report.read(kept)


def table(found: dict[str, list[report.Run]], kind: str) -> list[str]:
  """Lines of a Markdown table of the scores of own or encoded database codes."""
  own = {name: {c: {run.seeds[0]: run.scores[c] for run in runs if c in run.scores}
                for c in LENGTHS} for name, runs in found.items()}

  def maps(name, c):
    return {seed: scores.maps['encoded'] if kind == 'encoded' else
            scores.maps.get('learned', scores.maps.get('assigned'))
            for seed, scores in own[name][c].items()}

  lines = [f'| {kind} codes | {" | ".join(f"{c} bits" for c in LENGTHS)} |', '|---|---|---|---|']
  for name, lengths in own.items():
    cells = []
    for c, of_seed in lengths.items():
      mean = intervals.of(list(maps(name, c).values()))
      apart = intervals.paired(maps(name, c), maps(BASE, c))
      star = ' *' if name != BASE and apart.low * apart.high > 0 else ''
      words = '' if kind == 'encoded' else (
          f' ({statistics.mean(scores.distinct for scores in of_seed.values()):.3g})')
      cells.append(f'{mean.mean:.3f} ±{mean.half:.3f}{star}{words}')
    lines.append(f'| {name} | {" | ".join(cells)} |')
  return [*lines, '']


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--seeds', type=int, default=3)
  arguments = parser.parse_args()
  compiling.prepare()
  found = {name: [] for name in ROWS}
  for seed in range(arguments.seeds):  # so that it may be cut off between seeds
    for name, variants in ROWS.items():
      found[name] += [run(folder, changes, seed) for folder, changes in variants.items()]
    storage.write_text(RESULTS / 'table.md', '\n'.join(
        line for kind in ('own', 'encoded') for line in table(found, kind)))


if __name__ == '__main__':
  main()
