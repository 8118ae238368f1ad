"""Running of experiments: one run after the other in one process, finished ones are skipped."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from collections.abc import Sequence

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax.modes import train
from mah_jax.paper import experiments
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import results
from mah_jax.runs import table
from mah_jax.train import backbone
from mah_jax.train import processes
from mah_jax.train import sources as sources_lib
from mah_jax.train import step as step_lib

MakeConfig = Callable[[experiments.Cell], config_lib.Config]


def unfinished(cells: Sequence[experiments.Cell], make_config: MakeConfig
               ) -> list[experiments.Cell]:
  """The runs that have no results yet; refuses results that were made with other settings."""
  return [cells[i] for i in processes.once(lambda: [
      i for i, cell in enumerate(cells) if not _is_finished(make_config(cell))])]


def _is_finished(config: config_lib.Config) -> bool:
  folder = folder_lib.RunFolder(config.workdir)
  if not folder.results.exists():
    return False
  saved = folder.flags() or {}
  different = config_lib.differences(backbone.resolve(config, saved), saved)
  if config.spec.trains_network and saved.get('num_rounds') != config.num_rounds:
    different.append(f'--num_rounds={config.num_rounds} (was {saved.get("num_rounds")})')
  if different:
    raise errors.UsageError(f'The run in {folder.path} was made with other settings: '
                            f'{"; ".join(different)}. Remove it, or choose another --runs.')
  return True


def run_all(cells: Sequence[experiments.Cell], make_config: MakeConfig):
  """Makes all these runs, and says after each how long the rest will take.

  A run whose loss becomes infinite is left out; the report shows that it is missing.
  """
  pace, sources = Pace(), sources_lib.Sources()
  with console.StopRequest('Stopped; the same command goes on with the runs that are missing.'
                           ) as stop:
    for number, cell in enumerate(cells):
      began, config = time.monotonic(), make_config(cell)
      if processes.once(folder_lib.RunFolder(config.workdir).results.exists):
        continue  # another command has made it meanwhile
      try:
        outcome = table.line(_run(config, sources, stop))
      except errors.NotFiniteError as error:
        outcome = f'  {error}'
      pace.add(cell, time.monotonic() - began)
      left = console.clock(pace.seconds(cells[number + 1:]))
      console.say(f'{number + 1}/{len(cells)}  {cell.name}{outcome}  {left} left')


def _run(config: config_lib.Config, sources: sources_lib.Sources,
         stop: console.StopRequest) -> dict:
  """Makes one run and keeps its settings, scores and packed codes; returns its scores."""
  folder = folder_lib.RunFolder(config.workdir)
  config = backbone.resolve(config, folder.flags())
  devices = step_lib.Devices(step_lib.pick_devices(config.num_devices), config.batch_size)
  with folder.claimed(config):
    data = sources.dataset(config)
    outcome = train.fit(config, devices, folder, stop, sources, say=lambda line: None)
    # Tables have no scores by outputs, which would be most of what is kept.
    outcome = outcome._replace(codes=[[codes._replace(outputs=None) for codes in of_seed]
                                      for of_seed in outcome.codes])
    results.write_archive(folder, outcome)
    return results.write_scores(folder, config, data, outcome)['metrics']


class Pace:
  """How long runs take: as those of the same row and dataset did, or else as expected."""

  def __init__(self):
    self._seconds = collections.defaultdict(list)

  def add(self, cell: experiments.Cell, seconds: float):
    """Takes note of a run that was made."""
    self._seconds[cell.row, cell.dataset].append(seconds)

  def seconds(self, cells: Sequence[experiments.Cell]) -> float:
    """How long these runs will take."""
    return sum(self._one(cell) for cell in cells)

  def _one(self, cell: experiments.Cell) -> float:
    known = self._seconds.get((cell.row, cell.dataset))
    return sum(known) / len(known) if known else experiments.ROWS[cell.row].seconds
