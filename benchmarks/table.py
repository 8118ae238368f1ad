"""Rows of the benchmark table: ours, the alternative, their ratio, the goal."""

import statistics
from collections.abc import Sequence


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
          'note': f'{note}; single ratios {min(ratios):.3g} to {max(ratios):.3g}'.strip('; ')}


def text(rows: Sequence[dict]) -> str:
  """The table for a person, in Markdown."""
  lines = ['| work | ours, s | other, s | ratio | goal | repeats | note |',
           '|---|---|---|---|---|---|---|']
  for own in rows:
    goal = '' if own['goal'] is None else f'{own["goal"]:g}'
    lines.append(f'| {own["work"]} | {own["ours_s"]:.3g} | {own["other_s"]:.3g} | '
                 f'{own["ratio"]:.3g} | {goal} | {own["repeats"]} | {own["note"]} |')
  return '\n'.join(lines)
