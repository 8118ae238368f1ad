"""Entry: flags -> Config -> run. `python -m mah_jax.main --flagfile=launch/NAME.cfg`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import jax

from mah_jax import compiling
from mah_jax import encode
from mah_jax import errors
from mah_jax import flags
from mah_jax import run

STORIES = {'train': run.run, 'evaluate': run.run, 'encode': encode.encode}


def main(arguments: Sequence[str]) -> int:
  """Runs with these command-line arguments; returns the exit code."""
  if {'--help', '-h', '-help', '--helpfull'} & set(arguments):
    print(flags.help_text())
    return 0
  try:
    config = flags.from_arguments(arguments)
    compiling.prepare()
    logging.getLogger('absl').setLevel(logging.ERROR)  # Orbax warns of what is as it should be
    STORIES[config.mode](config)
  except errors.UsageError as error:
    return _complain(error, 2)
  except errors.InputError as error:
    return _complain(error, 1)
  except OSError as error:
    return _complain(f'{error.filename or "A file"}: {error.strerror or error}.', 1)
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    return _complain('The devices have too little memory: lower --batch_size.', 1)
  return 0


def _complain(error: Exception | str, code: int) -> int:
  print(f'mah_jax: {error}', file=sys.stderr)
  return code


def command() -> int:
  """The installed command `mah-jax`."""
  return main(sys.argv[1:])


if __name__ == '__main__':
  sys.exit(command())
