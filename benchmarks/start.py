"""How much sooner the second start of a run makes its first step, as compilations are kept.

PYTHONPATH=. python benchmarks/start.py
"""

import os
import subprocess
import sys
import tempfile
import time

import table

GOAL = 4.0
FIRST_STEP = '''
import os, sys
from mah_jax import main
from mah_jax.train import loop
fit = loop.fit
loop.fit = lambda *args, on_step, **rest: fit(*args, on_step=lambda steps: os._exit(0), **rest)
main.main(['--flagfile=launch/quickstart.cfg', f'--workdir={sys.argv[1]}'])
sys.exit('There was no first step.')
'''


def seconds(cache: str) -> float:
  """From the start of the program to the end of its first training step."""
  with tempfile.TemporaryDirectory() as workdir:
    environment = os.environ | {'XDG_CACHE_HOME': cache}
    environment.pop('JAX_COMPILATION_CACHE_DIR', None)  # it would be the cache of both
    start = time.perf_counter()
    subprocess.run([sys.executable, '-c', FIRST_STEP, workdir], check=True, env=environment,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def rows(repeats: int = 3) -> list[dict]:
  """One row: the second start against the first."""
  first, second = [], []
  for _ in range(repeats):
    with tempfile.TemporaryDirectory() as cache:
      first.append(seconds(cache))
      second.append(seconds(cache))
  return [table.row('second start of make run to its first step / first start', second, first,
                    GOAL)]


if __name__ == '__main__':
  print(table.text(rows()))
