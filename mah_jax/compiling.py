"""How programs are compiled: kept on disk, and on a CPU with the faster of two convolutions."""

import importlib.metadata
import os

import jax

from mah_jax import cache

# XLA gives convolutions to a library that takes up to twice as long as its own code. Its name is
# known to these versions only, and XLA refuses to start with a flag that it does not know.
OWN_CONVOLUTION = '--xla_cpu_experimental_ynn_fusion_type=-individual_convolution'
KNOWN_TO = '0.10.'


def prepare():
  """Sets both, unless the environment says otherwise; to be called before JAX computes anything."""
  if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    jax.config.update('jax_compilation_cache_dir', str(cache.folder('compiled')))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)  # many are short
  flags = os.environ.get('XLA_FLAGS', '')
  if importlib.metadata.version('jaxlib').startswith(KNOWN_TO) and '_ynn_' not in flags:
    os.environ['XLA_FLAGS'] = f'{flags} {OWN_CONVOLUTION}'.strip()
