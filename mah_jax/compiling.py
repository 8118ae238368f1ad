"""Compilation: programs are kept on disk, and CPUs get the faster of two convolutions."""

import importlib.metadata
import os

import jax

from mah_jax import storage

# XLA gives convolutions to a library that takes up to twice as long as XLA's own code. Only these
# versions know the flag that prevents it, and XLA refuses to start with an unknown flag.
OWN_CONVOLUTION = '--xla_cpu_experimental_ynn_fusion_type=-individual_convolution'
KNOWN_TO = '0.10.'


def prepare():
  """Sets both up, unless the environment says otherwise; JAX must not have computed anything."""
  if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    jax.config.update('jax_compilation_cache_dir', str(storage.cache_folder('compiled')))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)  # many are short
  flags = os.environ.get('XLA_FLAGS', '')
  if importlib.metadata.version('jaxlib').startswith(KNOWN_TO) and '_ynn_' not in flags:
    os.environ['XLA_FLAGS'] = f'{flags} {OWN_CONVOLUTION}'.strip()
