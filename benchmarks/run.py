"""All benchmarks side by side with their alternatives: one table, and benchmarks/results.json.

PYTHONPATH=.:tests python benchmarks/run.py [PART ...]
"""

import importlib
import json
import multiprocessing
import pathlib
import sys

import table

PARTS = ('core', 'resize', 'rounds', 'stream', 'metrics', 'search', 'networks', 'frozen', 'start')
RESULTS = pathlib.Path(__file__).with_name('results.json')


def measure(part: str) -> list[dict]:
  """The rows of one benchmark, in a process of its own."""
  context = multiprocessing.get_context('spawn')
  pipe, theirs = context.Pipe()
  child = context.Process(target=_send_rows, args=(part, theirs))
  child.start()
  theirs.close()  # so that a child that dies ends the wait for it
  rows = pipe.recv()
  child.join()
  return rows


def _send_rows(part, pipe):
  pipe.send(importlib.import_module(part).rows())


def main(parts: list[str]) -> None:
  """Measures the parts, keeps what results.json has of the others, prints all."""
  found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
  for part in parts:
    print(f'{part} ...', file=sys.stderr, flush=True)
    found[part] = measure(part) or found.get(part, [])
    RESULTS.write_text(json.dumps(found, indent=1) + '\n')
  print(table.text([row for part in PARTS for row in found.get(part, [])]))


if __name__ == '__main__':
  main(sys.argv[1:] or list(PARTS))
