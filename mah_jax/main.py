"""Entry: flags -> Config -> run. `python -m mah_jax.main --flagfile=launch/NAME.cfg`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import jax

from mah_jax import cache
from mah_jax import encode
from mah_jax import errors
from mah_jax import flags
from mah_jax import methods
from mah_jax import run
from mah_jax import shallow

STORIES = {'train': run.run, 'evaluate': run.run, 'encode': encode.encode}


def main(arguments: Sequence[str]) -> int:
  """Runs with these command-line arguments; returns the exit code."""
  if {'--help', '-h', '-help', '--helpfull'} & set(arguments):
    print(flags.help_text())
    return 0
  try:
    config = flags.from_arguments(arguments)
    _cache_compilations()
    logging.getLogger('absl').setLevel(logging.ERROR)  # Orbax warns of what is as it should be
    story = shallow.run if config.method in methods.SHALLOW else STORIES[config.mode]
    story(config)
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


def _cache_compilations():
  """Keeps compiled programs on disk, so that the second start is fast."""
  if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    jax.config.update('jax_compilation_cache_dir', str(cache.folder('compiled')))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.2)


def _complain(error: Exception | str, code: int) -> int:
  print(f'mah_jax: {error}', file=sys.stderr)
  return code


def command() -> int:
  """The installed command `mah-jax`."""
  return main(sys.argv[1:])


if __name__ == '__main__':
  sys.exit(command())
