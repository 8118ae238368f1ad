"""The list of experiments: the runs that each table and figure of the paper needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

from mah_jax.paper import published

EXTRA_SEEDS = 2   # times as many seeds for the rows whose 4 bits decide the paper's headline
CHOICE_SEEDS = 2  # of settings that were tried, at most
FIGURE_SEEDS = 3  # of grids and of curves over rounds, at most
Flags = tuple[tuple[str, str], ...]  # (name, value)
BRANCHES = (4, 2, 1)  # alpha, beta, 1 in the paper's ablations; its Table 1 has 6, 2, 1


class Row(NamedTuple):
  """A row of the tables: a method with its settings.

  title: its name in tables.
  lengths: (Study, bits) -> all code lengths of the run that has codes of so many bits.
  file: its launch file, without the track that stands before it.
  seconds: about what a run takes on two CPU cores, reading features.
  flags: flags beyond those of the launch file.
  extra: whether it gets EXTRA_SEEDS at the fewest bits.
  """
  title: str
  lengths: Callable[[Study, int], tuple[int, ...]]
  file: str
  seconds: float
  flags: tuple[str, ...] = ()
  extra: bool = False


class Study(NamedTuple):
  """The size of all experiments.

  datasets: those of Table 1; the first serves all other experiments.
  seeds: how many seeds, from 0 on.
  lengths: bits of Table 1.
  long_lengths: bits of Table 2.
  local, macro: the shortest length of the stride grids, and the lengths that it is joined by.
  weights: values of alpha and of beta.
  group: lengths of the grid of weights and of Table 2's MAH-2.
  start_lengths: bits at which the starts of codes are compared.
  literature: protocols with few training rows, by dataset, for the methods published so.
  literature_length: their bits.
  validation: protocol that leaves the queries out, by which settings are chosen.
  chosen_length: bits at which they are chosen.
  """
  datasets: tuple[str, ...] = ('cifar10', 'mirflickr', 'nuswide')
  seeds: int = 5
  lengths: tuple[int, ...] = published.LENGTHS
  long_lengths: tuple[int, ...] = published.LONG_LENGTHS
  local: tuple[int, tuple[int, ...]] = (4, (6, 8, 10, 12, 14))
  macro: tuple[int, tuple[int, ...]] = (6, (8, 16, 32, 48, 96))
  weights: tuple[float, ...] = (0.5, 1, 2, 4, 8)
  group: tuple[int, ...] = (4, 8, 16)
  start_lengths: tuple[int, ...] = (4, 8, 12)
  literature: tuple[tuple[str, str], ...] = (('cifar10', 'cifar10-5000-training'),
                                             ('mirflickr', 'mirflickr-5000-training'))
  literature_length: int = 12
  validation: str = 'cifar10-validation'
  chosen_length: int = 8

  @property
  def figure_seeds(self) -> int:
    """How many seeds grids and curves over rounds have."""
    return min(self.seeds, FIGURE_SEEDS)


class Cell(NamedTuple):
  """One run.

  row: a key of ROWS.
  dataset: its data.
  lengths: its code lengths.
  seed: its seed.
  flags: flags beyond those of its launch file, as (name, value).
  """
  row: str
  dataset: str
  lengths: tuple[int, ...]
  seed: int
  flags: Flags = ()

  @property
  def name(self) -> str:
    """The name of its folder, below that of its dataset."""
    changed = [f'{name}-{value}'.replace(',', '-') for name, value in self.flags]
    bits = '-'.join(map(str, self.lengths))
    return '/'.join([self.dataset, '_'.join([self.row, bits, *changed, f'seed{self.seed}'])])


def _together(study: Study, bits: int) -> tuple[int, ...]:
  """One run has all lengths of its table."""
  return study.lengths if bits in study.lengths else study.long_lengths


def _alone(study: Study, bits: int) -> tuple[int, ...]:
  """A run has one length."""
  del study
  return (bits,)


def _group(study: Study, bits: int) -> tuple[int, ...]:
  """A length is the shortest of its group, {j, j + 2, j + 4}."""
  del study
  return bits, bits + 2, bits + 4


def _truncated(study: Study, bits: int) -> tuple[int, ...]:
  """Short codes are parts of one that is longer than all of them."""
  return (*study.lengths, study.lengths[-1] + 4) if bits in study.lengths else study.long_lengths


def _shallow(title: str, method: str, seconds: float) -> Row:
  return Row(title, _together, 'shallow', seconds, (f'--method={method}', '--num_seeds=1'))


ROWS = {
    'lsh': _shallow('LSH', 'lsh', 6),
    'itq': _shallow('ITQ', 'itq', 30),
    'sdh': _shallow('SDH', 'sdh', 35),
    'ksh': _shallow('KSH', 'ksh', 45),
    'lfh': _shallow('LFH', 'lfh', 20),
    'cosdish': _shallow('COSDISH', 'cosdish', 20),
    'dpsh': Row('DPSH', _alone, 'dpsh', 8),
    'dpsh_balanced': Row('DPSH, balanced pairs (not published)', _alone, 'dpsh', 8,
                         ('--pair_weights=balanced',)),
    'drsch': Row('DRSCH', _truncated, 'drsch', 8),
    'adsh': Row('ADSH', _alone, 'adsh', 6, extra=True),
    'daph': Row('DAPH', _alone, 'daph', 14),
    'mah1': Row('MAH-1', _group, 'mah1', 7, extra=True),
    'mah2': Row('MAH-2', _group, 'mah2', 7, extra=True),
    'classifier': Row('Classifier (control)', _together, 'classifier', 7),
}
SYMMETRIC = ('dpsh', 'dpsh_balanced', 'drsch', 'daph')  # published with few training rows
ASYMMETRIC = ('adsh', 'mah1', 'mah2')
DEEP_BASELINES = ('dpsh', 'dpsh_balanced', 'drsch', 'adsh', 'daph')
STRUCTURES = ('mah1', 'mah2')
STARTS = ('zeros', 'random', 'codebook')



def _each(name: str, *values: str) -> list[Flags]:
  return [((name, value),) for value in values]


# What was tried beside the launch file of each row as it is.
TRIED: dict[str, list[Flags]] = {
    'mah1': _each('learning_rate', '0.003', '0.03'),
    'mah2': [*_each('learning_rate', '0.001', '0.01', '0.03'), *_each('hidden', '64', '512'),
             *_each('weight_decay', '0.005', '0.02'), (('num_rounds', '41'),)],
    'adsh': [*_each('learning_rate', '0.02', '0.1'), *_each('weight_decay', '0.005', '0.02')],
    'dpsh': [*_each('learning_rate', '0.05', '0.1'), *_each('eta', '10', '200'),
             *_each('weight_decay', '1e-05', '0.0005', '0.02'),
             (('momentum', '0.9'), ('learning_rate', '0.02'))],
    'daph': [*_each('learning_rate', '0.05', '0.2', '0.5'), *_each('quantization', '2', '50'),
             *_each('weight_decay', '1e-05', '0.0005', '0.02'),
             (('momentum', '0'), ('learning_rate', '0.5'))],
    'drsch': [*_each('learning_rate', '0.00333', '0.03', '0.3'), *_each('margin', '2', '10'),
              *_each('weight_decay', '0.0005', '0.005', '0.05')],
    'classifier': [*_each('learning_rate', '0.01', '0.2'), *_each('weight_decay', '0.005', '0.02')],
}
TIMED = ('dpsh', 'drsch', 'adsh', 'daph', 'mah1', 'mah2')


def table1(study: Study) -> list[Cell]:
  """All methods, short codes."""
  return [cell for dataset in study.datasets for name, row in ROWS.items()
          for bits in study.lengths
          for cell in _seeds(study, name, dataset, row.lengths(study, bits),
                             EXTRA_SEEDS if row.extra and bits == study.lengths[0] else 1)]


def table2(study: Study) -> list[Cell]:
  """Deep methods with long codes, beside MAH-2 with short ones."""
  dataset = study.datasets[0]
  cells = [cell for name in DEEP_BASELINES for bits in study.long_lengths
           for cell in _seeds(study, name, dataset, ROWS[name].lengths(study, bits))]
  return cells + _seeds(study, 'mah2', dataset, study.group, flags=weights(*BRANCHES[:2]))


def table3(study: Study) -> list[Cell]:
  """Every branch of the groups of Table 1."""
  return [cell for name in STRUCTURES for bits in study.lengths[:-1]
          for cell in _seeds(study, name, study.datasets[0], ROWS[name].lengths(study, bits))]


def figure3(study: Study) -> list[Cell]:
  """Strides, a local view."""
  return _strides(study, *study.local)


def figure4(study: Study) -> list[Cell]:
  """Strides, a macro view."""
  return _strides(study, *study.macro)


def figure5(study: Study) -> list[Cell]:
  """Weights of the branches."""
  return [Cell('mah2', study.datasets[0], study.group, seed, weights(alpha, beta))
          for alpha, beta in itertools.product(study.weights, repeat=2)
          for seed in range(study.figure_seeds)]


def figure7(study: Study) -> list[Cell]:
  """Scores after every round, and the time that rounds take."""
  bits = study.lengths[0]
  return [Cell(name, study.datasets[0], ROWS[name].lengths(study, bits), seed,
               (('eval_every', '1'),))
          for name in TIMED for seed in range(study.figure_seeds)]


def figure8(study: Study) -> list[Cell]:
  """The archives of codes whose sizes are measured."""
  return [cell for cell in table1(study) + table2(study)
          if cell.seed == 0 and cell.row == 'adsh' and cell.dataset == study.datasets[0]]


def starts(study: Study) -> list[Cell]:
  """What codes are before training: zeros, random or a codebook."""
  cells = []
  for dataset, start in itertools.product(study.datasets, STARTS):
    flags = start_flags(start)
    for bits in study.start_lengths:
      cells += _seeds(study, 'adsh', dataset, (bits,), flags=flags)
    for name in STRUCTURES:
      cells += _seeds(study, name, dataset, study.start_lengths, flags=flags)
  return cells + [cell for cell in table1(study) if cell.row == 'classifier']


def literature(study: Study) -> list[Cell]:
  """Symmetric methods under the split that they are published with."""
  return [Cell(name, dataset, (study.literature_length,), seed, (('protocol', protocol),))
          for dataset, protocol in study.literature if dataset in study.datasets
          for name in SYMMETRIC for seed in range(study.seeds)]


def choices(study: Study) -> list[Cell]:
  """Settings beside those of the launch files, on a split that holds no query."""
  return [Cell(row, study.datasets[0], ROWS[row].lengths(study, study.chosen_length), seed,
               (('protocol', study.validation), *flags))
          for row, tried in TRIED.items() for flags in ((), *tried)
          for seed in range(min(study.seeds, CHOICE_SEEDS))]


def weights(alpha: float, beta: float) -> Flags:
  """The flags of a run with these weights of its branches."""
  return (('head_weights', f'{alpha:g},{beta:g},1'),)


def start_flags(start: str) -> Flags:
  """The flags of a run whose codes start so; that of the launch files needs none."""
  return () if start == STARTS[0] else (('code_init', start),)


def groups(shortest: int, others: Sequence[int]) -> list[tuple[int, int, int]]:
  """All groups of a shortest length and two of the others."""
  return [(shortest, *pair) for pair in itertools.combinations(others, 2)]


def _strides(study: Study, shortest: int, others: Sequence[int]) -> list[Cell]:
  return [Cell(name, study.datasets[0], group, seed, weights(*BRANCHES[:2]))
          for name in STRUCTURES for group in groups(shortest, others)
          for seed in range(study.figure_seeds)]


def _seeds(study: Study, row: str, dataset: str, lengths: tuple[int, ...], times: int = 1,
           flags: Flags = ()) -> list[Cell]:
  return [Cell(row, dataset, lengths, seed, flags) for seed in range(times * study.seeds)]


# The runs that each of them needs; figures 2 and 6 draw those of Table 1 and of Figure 5.
EXPERIMENTS: dict[str, Callable[[Study], list[Cell]]] = {
    'table1': table1, 'table2': table2, 'table3': table3, 'figure2': table1, 'figure3': figure3,
    'figure4': figure4, 'figure5': figure5, 'figure6': figure5, 'figure7': figure7,
    'figure8': figure8, 'starts': starts, 'literature': literature,
    'choices': choices,
}


def cells(study: Study, only: Sequence[str]) -> list[Cell]:
  """The runs of some experiments, each once; those that differ in their seeds follow each other."""
  seeds = {}  # a run with seed 0 -> all its seeds, in the order of the experiments
  for name in only:
    for cell in EXPERIMENTS[name](study):
      seeds.setdefault(cell._replace(seed=0), set()).add(cell)
  return [cell for group in seeds.values() for cell in sorted(group)]
