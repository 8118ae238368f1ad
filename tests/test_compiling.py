"""XLA's flags: ours are added once, and only to versions that know them."""

import os
import subprocess
import sys

import pytest

from mah_jax import compiling

# Flags that XLA knows; the second decides about convolutions itself.
KNOWN = '--xla_cpu_enable_fast_math=true'
OTHERWISE = '--xla_cpu_experimental_ynn_fusion_type='


@pytest.mark.parametrize('version, before, after', [
    ('0.10.2', None, compiling.OWN_CONVOLUTION),
    ('0.10.2', KNOWN, f'{KNOWN} {compiling.OWN_CONVOLUTION}'),
    ('0.10.2', compiling.OWN_CONVOLUTION, compiling.OWN_CONVOLUTION),
    ('0.10.2', OTHERWISE, OTHERWISE),
    ('0.11.0', KNOWN, KNOWN),
    ('0.1.0', None, ''),
])
def test_flags_of_xla(version, before, after, monkeypatch):
  monkeypatch.setattr(compiling.importlib.metadata, 'version', lambda name: version)
  monkeypatch.setenv('XLA_FLAGS', '')
  if before is not None:
    monkeypatch.setenv('XLA_FLAGS', before)
  compiling.prepare()
  assert os.environ['XLA_FLAGS'] == after


def test_this_jax_starts_with_them():
  """XLA ends the program at a flag that it does not know."""
  program = 'from mah_jax import compiling; compiling.prepare(); import jax; print(jax.devices())'
  started = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
                           env=os.environ | {'XLA_FLAGS': '', 'JAX_PLATFORMS': 'cpu'})
  assert started.returncode == 0, started.stderr
