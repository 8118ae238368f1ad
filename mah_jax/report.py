"""The command `python -m mah_jax.report RUN_FOLDER ...`: a table over runs, or a page.

With --html, one run gives the page of that run, which need not have ended; several give a page
that compares them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mah_jax import console
from mah_jax import errors
from mah_jax import flags
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import page
from mah_jax.runs import report
from mah_jax.runs import run_page
from mah_jax.train import dataset


def main(arguments: Sequence[str]) -> int:
  """Prints the table of the runs in these folders, or writes their page; returns the exit code."""
  parser = argparse.ArgumentParser('python -m mah_jax.report', description=__doc__)
  parser.add_argument('runs', nargs='+', metavar='RUN_FOLDER')
  parser.add_argument('--html', metavar='FILE', nargs='?', const='report.html',
                      help='write a page with the table, figures and settings (report.html)')
  parsed = parser.parse_args(arguments)

  def work():
    html = storage.path(parsed.html) if parsed.html else None
    if html is not None:
      storage.check_file(html, page.MARK)
      if len(parsed.runs) == 1:
        run = run_page.read(folder_lib.RunFolder(parsed.runs[0]), _dataset(parsed.runs[0]))
        storage.write_text(html, run_page.to_html(run))
        console.say(f'Written to {parsed.html}.')
        return
    runs = [report.read(storage.path(name)) for name in parsed.runs]
    print(report.table(runs))
    if html is not None:
      storage.write_text(html, page.to_html(report.page(runs)))
      console.say(f'Written to {parsed.html}.')

  return console.exit_code(work)


def _dataset(workdir: str) -> datasets.Dataset | None:
  """The dataset of a run, whose pictures the page shows; None where it is not at hand."""
  try:
    return dataset.load(flags.from_arguments(['--mode=evaluate', f'--workdir={workdir}']))
  except (errors.UsageError, errors.InputError, OSError):
    return None


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
