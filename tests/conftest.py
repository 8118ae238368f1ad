"""Eight virtual CPU devices for every test, and a compilation cache that all workers share."""

import gc
import os
import pathlib

import jax
import pytest

# XLA compiles twice as fast with these; the programs are slower, but tests run them briefly.
os.environ['XLA_FLAGS'] = ' '.join([
    os.environ.get('XLA_FLAGS', ''), '--xla_backend_optimization_level=0',
    '--xla_llvm_disable_expensive_passes=true'])
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)  # tests compile much alike


@pytest.fixture(scope='session', autouse=True)
def compilation_cache(tmp_path_factory):
  """The programs that this session has compiled; never those of an earlier one."""
  base = tmp_path_factory.getbasetemp()
  folder = str((base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base) / 'compiled')
  os.environ['JAX_COMPILATION_CACHE_DIR'] = folder
  jax.config.update('jax_compilation_cache_dir', folder)


MAPS = pathlib.Path('/proc/self/maps')


@pytest.fixture(scope='module', autouse=True)
def programs_are_let_go():
  """Each compiled program takes some 350 memory maps; Linux gives a process 65,530, then aborts."""
  yield
  if MAPS.exists() and MAPS.read_bytes().count(b'\n') > 20_000:
    jax.clear_caches()
    gc.collect()


# Files that take longest come first, so that no worker ends long after the other.
LONGEST = ('test_run.py', 'test_photos.py', 'test_devices.py', 'test_method_contract.py')


def pytest_collection_modifyitems(items):
  """Puts the longest files in front; the others keep their order."""
  items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST
             else len(LONGEST))
