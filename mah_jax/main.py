"""The command: flags become a Config, and --mode chooses what is done with it.

`python -m mah_jax.main --flagfile=launch/NAME.cfg [--flag=value ...]`
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Sequence

import mah_jax
from mah_jax import console

HELP = {'--help', '-h', '-help', '--helpfull'}
VERSION = '--version'


def main(arguments: Sequence[str]) -> int:
  """Runs with these command-line arguments; returns the exit code."""
  # Imports are late because they take seconds, in which a person may stop the program.
  from mah_jax import flags
  from mah_jax.train import processes
  console.pause()
  return processes.run(flags.launch(arguments), lambda: _run(arguments))


def _run(arguments: Sequence[str]):
  import jax

  from mah_jax import compiling
  from mah_jax import config as config_lib
  from mah_jax import errors
  from mah_jax import flags
  from mah_jax import modes
  from mah_jax.train import processes
  from mah_jax.train import step
  console.pause()
  if HELP & set(arguments):
    print(flags.help_text())
    return
  if VERSION in arguments:
    print(f'mah-jax {mah_jax.__version__}')
    return
  config = flags.from_arguments(arguments)
  processes.check_same(config_lib.to_json(config))
  compiling.prepare(make_folder=config.mode != 'check')  # which changes nothing
  # Orbax warns about harmless things, and shows tracebacks of errors that it raises as well.
  for name in ('absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.CRITICAL)
  try:
    modes.MODES[config.mode](config)
  except jax.errors.JaxRuntimeError as error:
    if not step.is_out_of_memory(error):
      raise
    raise errors.InputError('The devices have too little memory for a batch: lower '
                            '--batch_size.') from error


def command() -> int:
  """Runs the installed command `mah-jax`; what follows its end cannot be stopped any more."""
  with console.StopRequest('Stopped; nothing was begun.', after=signal.SIG_IGN):
    gc.disable()  # what imports make stays; to look for garbage in it takes a tenth of a second
    from mah_jax import modes  # noqa: F401, which imports all that main needs
    gc.enable()
    return main(sys.argv[1:])


if __name__ == '__main__':
  sys.exit(command())
