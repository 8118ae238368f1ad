"""The report: README.md, index.html, figures, all scores as CSV, and the codes of table rows."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from collections.abc import Sequence

from mah_jax import storage
from mah_jax.paper import experiments
from mah_jax.paper import scores as scores_lib
from mah_jax.paper import sections
from mah_jax.paper import verdicts
from mah_jax.runs import page

FIGURES = 'figures'
KEPT = ('config.json', 'results.json', 'codes.npz')
TITLE = "The paper's experiments"
TABLES = ('table1', 'table2')  # whose runs of the first seed are kept with their codes


def check(output: pathlib.Path):
  """Refuses a folder whose files the report must not replace."""
  for name, mark in (('README.md', f'# {TITLE}'), ('index.html', '<title>The paper'),
                     ('scores.csv', ','.join(scores_lib.COLUMNS[:3]))):
    storage.check_file(output / name, mark.encode())


def write(study: experiments.Study, only: Sequence[str], scores: scores_lib.Scores,
          output: pathlib.Path, missing: Mapping[str, str], inputs: str):
  """Writes the report on some experiments from the runs that are finished.

  `inputs` says what the methods read.
  """
  material = sections.Material(study, scores, missing)
  made = [sections.SECTIONS[name](material) for name in sections.SECTIONS if name in only]
  blocks = [*_introduction(study, inputs), _summary(made)]
  whole = page.Page(TITLE, blocks, made)
  for figure in whole.figures:
    storage.write_text(output / FIGURES / f'{figure.name}.svg', figure.svg)
  storage.write_text(output / 'README.md', page.to_markdown(whole, FIGURES))
  storage.write_text(output / 'index.html', page.to_html(whole))
  storage.write_text(output / 'scores.csv',
                     scores_lib.to_csv(scores, experiments.cells(study, only)))
  for cell in experiments.cells(study, [name for name in TABLES if name in only]):
    if cell.seed == 0 and scores.results(cell) is not None:
      _keep(scores.run(cell).path, output / 'runs' / cell.name)


def _introduction(study: experiments.Study, inputs: str) -> list[page.Block]:
  return [
      page.Text(
          'Every table and figure of "Collaborative Learning for Extremely Low Bit Asymmetric '
          f'Hashing" (MAH), made by `make paper`: twelve methods on the same input. {inputs}'),
      page.Text(
          f'{study.seeds} seeds, {experiments.EXTRA_SEEDS * study.seeds} for MAH and ADSH with '
          f'{study.lengths[0]} bits, {study.figure_seeds} in grids and curves; the split into '
          'queries and database is fixed, so intervals are about training and not about other '
          'queries. A verdict looks at differences paired by seed: a sentence holds when all '
          'their 95 % intervals are above 0, does not hold when one is below, and cannot be told '
          'otherwise. The intervals are not widened for their number: of forty differences that '
          'are truly 0, two would be outside by chance.'),
      page.Text(
          'All numbers: [scores.csv](scores.csv). `runs/` has settings, scores and packed codes '
          'of the first seed of each row of Tables 1 and 2; `python -m mah_jax.main '
          '--mode=evaluate --workdir=results/paper/runs/NAME` scores them anew. The same page as '
          'one file: [index.html](index.html).')]


def _summary(made: Sequence[page.Section]) -> page.Table:
  """All verdicts at a glance."""
  return page.Table(['', 'said', 'here'], [
      [section.title.partition(':')[0], verdict.sentence, verdict.outcome]
      for section in made for block in section.blocks if isinstance(block, page.Points)
      for verdict in block.texts if isinstance(verdict, verdicts.Verdict)])


def _keep(run: pathlib.Path, target: pathlib.Path):
  """Copies what is needed to score a run anew."""
  for name in KEPT:
    content = (run / name).read_bytes()
    if not (target / name).exists() or (target / name).read_bytes() != content:
      storage.write(target / name, content)
