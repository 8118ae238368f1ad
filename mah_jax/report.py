"""The command `python -m mah_jax.report RUN_FOLDER ...`: a table over several runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mah_jax import console
from mah_jax import storage
from mah_jax.runs import report


def main(arguments: Sequence[str]) -> int:
  """Prints the table of the runs in these folders; returns the exit code."""
  if not arguments or {'--help', '-h'} & set(arguments):
    print('Usage: python -m mah_jax.report RUN_FOLDER [RUN_FOLDER ...]',
          file=sys.stdout if arguments else sys.stderr)
    return 0 if arguments else 2
  return console.exit_code(lambda: print(report.table(
      [report.read(storage.path(name)) for name in arguments])))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
