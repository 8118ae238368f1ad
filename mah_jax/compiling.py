"""Compilation: programs are kept on disk, and CPUs get the faster of two convolutions."""

import functools
import importlib.metadata
import os
import subprocess
import sys
import warnings

import jax

from mah_jax import console
from mah_jax import errors
from mah_jax import storage

# XLA gives convolutions to a library that takes up to twice as long as XLA's own code. Only these
# versions know the flag that prevents it, and XLA refuses to start with an unknown flag.
OWN_CONVOLUTION = '--xla_cpu_experimental_ynn_fusion_type=-individual_convolution'
KNOWN_TO = '0.10.'
READ_FLAGS = 'import jaxlib._jax; jaxlib._jax.CompileOptions()'  # a program that reads XLA_FLAGS
CACHE = 'JAX_COMPILATION_CACHE_DIR'


def prepare(make_folder: bool = True):
  """Sets both up, unless the environment says otherwise; JAX must not have computed anything.

  Without `make_folder` no folder is made for the programs.
  """
  _keep_programs(make_folder)
  flags = os.environ.get('XLA_FLAGS', '')
  if flags:
    _check_flags(flags)
  if importlib.metadata.version('jaxlib').startswith(KNOWN_TO) and '_ynn_' not in flags:
    os.environ['XLA_FLAGS'] = f'{flags} {OWN_CONVOLUTION}'.strip()


def _keep_programs(make_folder: bool):
  """Lets JAX keep compiled programs, where there is a folder for them."""
  folder = os.environ.get(CACHE) or str(storage.cache_folder('compiled'))
  if not os.environ.get(CACHE):
    jax.config.update('jax_compilation_cache_dir', folder)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)  # many are short
  # A cache that cannot be read or written later on, such as on a full disk, only costs time.
  warnings.filterwarnings('ignore', 'Error (reading|writing) persistent compilation cache')
  if not make_folder or '://' in folder:  # which is not on this machine
    return
  try:
    os.makedirs(folder, exist_ok=True)
  except OSError as error:
    jax.config.update('jax_enable_compilation_cache', False)
    console.say(f'Compiled programs cannot be kept in {folder} ({error.strerror}), so that every '
                f'start takes longer: set XDG_CACHE_HOME or {CACHE} to a folder for them.')


@functools.cache
def _check_flags(flags: str):
  """Refuses XLA_FLAGS that XLA does not understand: it would end the program in its own words."""
  read = subprocess.run([sys.executable, '-c', READ_FLAGS], env=os.environ | {'XLA_FLAGS': flags},
                        capture_output=True, text=True, errors='replace')
  if read.returncode and 'flags' in read.stderr:
    reason = read.stderr.splitlines()[0].partition('] ')[2]
    raise errors.UsageError(f'XLA does not understand XLA_FLAGS={flags} ({reason.rstrip(".")}): '
                            'correct the variable, or unset it.')
