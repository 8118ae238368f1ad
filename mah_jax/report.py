"""The command `python -m mah_jax.report RUN_FOLDER ...`: a table over several runs, or a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mah_jax import console
from mah_jax import storage
from mah_jax.runs import page
from mah_jax.runs import report


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
    runs = [report.read(storage.path(name)) for name in parsed.runs]
    print(report.table(runs))
    if html is not None:
      storage.write_text(html, page.to_html(report.page(runs)))
      console.say(f'Written to {parsed.html}.')

  return console.exit_code(work)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
