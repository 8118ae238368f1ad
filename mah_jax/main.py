"""The command: flags become a Config, and --mode chooses what is done with it.

`python -m mah_jax.main --flagfile=launch/NAME.cfg [--flag=value ...]`
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import jax

from mah_jax import compiling
from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import flags
from mah_jax.modes import encode
from mah_jax.modes import evaluate
from mah_jax.modes import export
from mah_jax.modes import index
from mah_jax.modes import search
from mah_jax.modes import serve
from mah_jax.modes import train
from mah_jax.train import processes
from mah_jax.train import step

MODES = {'train': train.train, 'evaluate': evaluate.evaluate, 'encode': encode.encode,
         'search': search.search, 'index': index.index, 'serve': serve.serve,
         'export': export.export}
HELP = {'--help', '-h', '-help', '--helpfull'}


def main(arguments: Sequence[str]) -> int:
  """Runs with these command-line arguments; returns the exit code."""
  if HELP & set(arguments):
    print(flags.help_text())
    return 0
  return processes.run(flags.launch(arguments), lambda: _run(arguments))


def _run(arguments: Sequence[str]):
  config = flags.from_arguments(arguments)
  processes.check_same(config_lib.to_json(config))
  compiling.prepare()
  logging.getLogger('absl').setLevel(logging.ERROR)  # Orbax warns about harmless things
  try:
    MODES[config.mode](config)
  except jax.errors.JaxRuntimeError as error:
    if not step.is_out_of_memory(error):
      raise
    raise errors.InputError('The devices have too little memory for a batch: lower '
                            '--batch_size.') from error


def command() -> int:
  """Runs the installed command `mah-jax`."""
  return main(sys.argv[1:])


if __name__ == '__main__':
  sys.exit(command())
