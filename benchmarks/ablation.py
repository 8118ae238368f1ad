"""The worth of each choice of our recipe on CIFAR-10: runs all of them, prints a table.

PYTHONPATH=. python benchmarks/ablation.py [seeds]

Each run is launch/cifar_ablation.cfg with the flags below. Its settings, scores and codes go to
results/cifar10/ablation/; runs that are there already are not made again.
"""

import pathlib
import shutil
import statistics
import subprocess
import sys

from mah_jax import config
from mah_jax import flags
from mah_jax.runs import report

RESULTS = pathlib.Path('results/cifar10/ablation')
KEPT = ('config.json', 'metrics.jsonl', 'codes.npz', 'results.json')  # the last says: whole
RATE, DECAY = 0.2, 5e-4  # of the launch file
# Weights of the heads. The runs that are kept were made before --scale_heads, so that 4, 2 and 1
# are divided by c^2 here.
WEIGHTS = {4: 0.25, 6: 0.11, 8: 0.03125, 14: 0.0051, 16: 0.0039}
UPDATED = ('--hold_codes_rounds=0',)
SIGNED = ('--similarity=signed',)


def lengths(*bits: int) -> tuple[str, ...]:
  """Flags of code lengths and the weights of their heads."""
  return ('--noscale_heads', '--code_lengths=' + ','.join(map(str, bits)),
          '--head_weights=' + ','.join(str(WEIGHTS[c]) for c in bits))


def single(c: int) -> tuple[str, ...]:
  """Flags of ADSH, whose only head has the rate and the decay that it has among several."""
  return ('--noscale_heads', '--method=adsh', '--head_weights=6,2,1', f'--code_lengths={c}',
          f'--learning_rate={RATE * WEIGHTS[c]}', f'--weight_decay={DECAY / WEIGHTS[c]}')


# Rows of the table: what differs, and the flags of each run by the folder that it is kept in.
ROWS = {
    'the recipe: codebook, held, balanced S, cascaded': {'recipe': ()},
    'signed S': {'signed': SIGNED},
    'codebook, held for 2 of 5 rounds, then DCC': {'held_2': ('--hold_codes_rounds=2',)},
    'codebook, never held': {'not_held': UPDATED},
    'random codes, never held': {'random': ('--code_init=random', *UPDATED)},
    'zeros, never held': {'zeros': ('--code_init=zeros', *UPDATED)},
    'zeros, never held, signed S': {'zeros_signed': ('--code_init=zeros', *UPDATED, *SIGNED)},
    'flat heads': {'flat': ('--heads=flat',)},
    'three networks of one head (ADSH)': {f'adsh_{c}': single(c) for c in (4, 8, 16)},
    'lengths 4, 6, 8': {'lengths_4_6_8': lengths(4, 6, 8)},
    'lengths 4, 8, 14': {'lengths_4_8_14': lengths(4, 8, 14)},
}


def run(name: str, changes: tuple[str, ...], seed: int) -> report.Run:
  """Makes a run, unless its results are kept already, and reads them."""
  kept = RESULTS / f'{name}_{seed}'
  folder = pathlib.Path('runs/ablation') / kept.name
  arguments = ['--flagfile=launch/cifar_ablation.cfg', *lengths(4, 8, 16), *changes,
               f'--seed={seed}', f'--workdir={folder}']
  if (kept / 'results.json').exists():
    different = config.differences(flags.from_arguments(arguments), config.saved_flags(kept))
    if different:
      sys.exit(f'{kept} was run with other flags: {"; ".join(different)}. Remove it.')
  else:
    subprocess.run([sys.executable, '-m', 'mah_jax.main', *arguments], check=True)
    kept.mkdir(parents=True, exist_ok=True)
    for file in KEPT:
      shutil.copy(folder / file, kept)
  return report.read(kept)


def table(found: dict[str, list[report.Run]]) -> str:
  """A line for each row, a column for each length: map, and distinct codewords."""
  columns = sorted({int(c) for runs in found.values() for run in runs for c in run.scores})
  lines = [' | '.join(['| ', *[f'{c} bits' for c in columns], 'seeds |']),
           '|---' * (len(columns) + 2) + '|']
  for name, runs in found.items():
    cells = []
    for c in map(str, columns):
      scores = [run.scores[c] for run in runs if c in run.scores]
      maps = [run.maps.get('learned', run.maps.get('assigned')) for run in scores]
      spread = f' +-{statistics.stdev(maps):.3f}' if len(maps) > 1 else ''
      words = ', '.join(str(run.distinct) for run in scores)
      cells.append(f'{statistics.mean(maps):.3f}{spread} ({words})' if maps else '')
    seeds = len({seed for run in runs for seed in run.seeds})
    lines.append(f'| {name} | {" | ".join(cells)} | {seeds} |')
  return '\n'.join(lines)


def main(seeds: list[int]) -> None:
  """All rows for one seed after the other, so that it may be cut off between seeds."""
  found = {name: [] for name in ROWS}
  for seed in seeds:
    for name, variants in ROWS.items():
      found[name] += [run(folder, changes, seed) for folder, changes in variants.items()]
  print(table(found))


if __name__ == '__main__':
  main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2])
