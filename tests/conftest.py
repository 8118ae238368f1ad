"""Eight virtual CPU devices for every test, and a compilation cache that they share."""

import os

import jax
import pytest

jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)  # tests compile much alike


@pytest.fixture(scope='session', autouse=True)
def compilation_cache(tmp_path_factory):
  """Compiled programs of this session; never those of an earlier one."""
  folder = str(tmp_path_factory.mktemp('compiled'))
  os.environ['JAX_COMPILATION_CACHE_DIR'] = folder
  jax.config.update('jax_compilation_cache_dir', folder)
