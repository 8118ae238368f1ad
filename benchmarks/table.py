"""Rows of the benchmark table: ours, the alternative, their ratio, the goal, the machine."""

import functools
import os
import pathlib
import platform
import re
import statistics
from collections.abc import Sequence

CPUS = pathlib.Path('/proc/cpuinfo')


@functools.cache
def machine() -> str:
  """Its processor, or what family it is of where no name is to be found, and its cores."""
  name = re.search('model name\\s*: (.*)', CPUS.read_text()) if CPUS.exists() else None
  wide = ', AVX-512' if name and re.search('flags.* avx512f', CPUS.read_text()) else ''
  return f'{name[1] if name else platform.machine()}{wide}, {os.cpu_count()} cores'


def row(work: str, ours: Sequence[float], other: Sequence[float], goal: float | None,
        note: str = '', scale: float = 1.0) -> dict:
  """One row from seconds of each repeat; `scale` multiplies the other's, where part was timed."""
  each = len(ours) // len(other)  # ours may be timed several times for each of theirs
  ratios = [scale * b / statistics.median(ours[i * each:(i + 1) * each])
            for i, b in enumerate(other)]
  return {'work': work, 'ours_s': statistics.median(ours),
          'other_s': scale * statistics.median(other),
          'ratio': scale * statistics.median(other) / statistics.median(ours), 'goal': goal,
          'repeats': len(other),
          'note': f'{note}; single ratios {min(ratios):.3g} to {max(ratios):.3g}'.strip('; '),
          'machine': machine()}


def text(rows: Sequence[dict]) -> str:
  """The table for a person, in Markdown."""
  lines = ['| work | ours, s | other, s | ratio | goal | repeats | note | machine |',
           '|---|---|---|---|---|---|---|---|']
  for own in rows:
    goal = '' if own['goal'] is None else f'{own["goal"]:g}'
    lines.append(f'| {own["work"]} | {own["ours_s"]:.3g} | {own["other_s"]:.3g} | '
                 f'{own["ratio"]:.3g} | {goal} | {own["repeats"]} | {own["note"]} | '
                 f'{own["machine"]} |')
  return '\n'.join(lines)
