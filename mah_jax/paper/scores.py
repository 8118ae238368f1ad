"""The scores of finished runs, by row, length and seed."""

from __future__ import annotations

import csv
import functools
import io
import json
import pathlib
import zipfile
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

from mah_jax.evaluation import scores as scores_lib
from mah_jax.paper import experiments
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import results as results_lib

SEARCHED = 'searched'  # the codes that a method is published with: its own, else the encoded ones
COLUMNS = ('dataset', 'row', 'code_lengths', 'flags', 'seed', 'bits', 'database', 'map',
           'map_low', 'map_high', 'map_database_order', 'precision', 'map_at_k', 'k', 'codewords',
           'fit_seconds')

BySeed = dict[int, float]


class Place(NamedTuple):
  """Runs that differ in their seeds only, see experiments.Cell."""
  row: str
  dataset: str
  lengths: tuple[int, ...]
  flags: tuple[tuple[str, str], ...] = ()

  def cell(self, seed: int) -> experiments.Cell:
    """The run with this seed."""
    return experiments.Cell(self.row, self.dataset, self.lengths, seed, self.flags)


class Scores:
  """The scores of the runs in a folder."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder

  def run(self, cell: experiments.Cell) -> folder_lib.RunFolder:
    """The folder of a run."""
    return folder_lib.RunFolder(self.folder / cell.name)

  @functools.cache  # noqa: B019 - lives as long as the program
  def results(self, cell: experiments.Cell) -> dict[str, Any] | None:
    """The content of a run's results.json, or None where it is not finished."""
    run = self.run(cell)
    return results_lib.read(run) if run.results.exists() else None

  def values(self, place: Place, bits: int, metric: str = 'map',
             kind: str = SEARCHED) -> BySeed:
    """A score of each finished seed; empty where there is none of this kind."""
    found = {}
    for seed in self._seeds(place):
      results = self.results(place.cell(seed))
      kinds = results['metrics'][str(bits)]
      wanted = next(k for k in scores_lib.KINDS if k in kinds) if kind == SEARCHED else kind
      if wanted in kinds:
        name = metric if metric == 'map' else f'{metric}@{results["k"]}'
        found[seed] = kinds[wanted][name]
    return found

  def codewords(self, place: Place, bits: int) -> BySeed:
    """The number of different codewords of the classes, of each finished seed."""
    return {seed: self.results(place.cell(seed))['metrics'][str(bits)]['codebook']['distinct']
            for seed in self._seeds(place)}

  def seconds(self, place: Place) -> BySeed:
    """How long each finished seed trained."""
    return {seed: self.results(place.cell(seed))['timing']['fit_seconds']
            for seed in self._seeds(place)}

  def epochs(self, place: Place) -> int:
    """How many epochs its runs train for, the first of which is finished."""
    flags = self.run(place.cell(0)).flags()
    return flags['num_rounds'] * flags['epochs_per_round']

  def rows_per_epoch(self, place: Place) -> int:
    """How many rows an epoch passes over."""
    flags, rows = self.run(place.cell(0)).flags(), self.results(place.cell(0))['protocol']
    return min(flags['num_sampled'] or rows['database'], rows['database'])

  def stored_bytes(self, cell: experiments.Cell, bits: int) -> int:
    """What the learned codes of a run take in its archive."""
    with zipfile.ZipFile(self.run(cell).archive) as archive:
      return archive.getinfo(f'{scores_lib.LEARNED}_{bits}.npy').compress_size

  def rounds(self, place: Place, bits: int) -> dict[int, list[float]]:
    """The searched codes' MAP after each round, of each finished seed."""
    found = {}
    for seed in self._seeds(place):
      lines = self.run(place.cell(seed)).rounds()
      scores = [line['metrics'][str(bits)] for line in lines]
      found[seed] = [s[next(k for k in scores_lib.KINDS if k in s)]['map'] for s in scores]
    return found

  def _seeds(self, place: Place) -> list[int]:
    """The finished seeds, from 0 up to the first that is not."""
    seeds = []
    while self.results(place.cell(len(seeds))) is not None:
      seeds.append(len(seeds))
    return seeds


def to_csv(scores: Scores, cells: Iterable[experiments.Cell]) -> str:
  """All scores of some runs as CSV, one line for each length and kind of database codes."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(COLUMNS)
  for cell in sorted(cells):
    results = scores.results(cell)
    if results is None:
      continue
    k = results['k']
    for bits, kinds in results['metrics'].items():
      for kind in scores_lib.KINDS:
        if kind in kinds:
          s = kinds[kind]
          writer.writerow([
              cell.dataset, cell.row, ' '.join(map(str, cell.lengths)),
              json.dumps(dict(cell.flags)), cell.seed, bits, kind, *[f'{s[name]:.6f}' for name in (
                  'map', 'map_low', 'map_high', 'map_database_order', f'precision@{k}',
                  f'map@{k}')], k, kinds['codebook']['distinct'],
              results['timing'].get('fit_seconds', '')])
  return text.getvalue()
