"""Rows of the benchmark table: ours, the alternative, their ratio, the goal."""

import statistics
from collections.abc import Sequence


def row(work: str, ours: Sequence[float], other: Sequence[float], goal: float | None,
        note: str = '', scale: float = 1.0) -> dict:
  """One row from seconds of each repeat; `scale` multiplies the other's, where part was timed."""
  ratios = sorted(scale * b / a for a, b in zip(ours, other)) if len(ours) == len(other) else []
  ratio = scale * statistics.median(other) / statistics.median(ours)
  if ratios:
    note = f'{note}; turns {ratios[0]:.3g} to {ratios[-1]:.3g}'.strip('; ')
  return {'work': work, 'ours_s': statistics.median(ours),
          'other_s': scale * statistics.median(other), 'ratio': ratio, 'goal': goal,
          'repeats': len(ours), 'note': note}


def text(rows: Sequence[dict]) -> str:
  """The table for a person, in Markdown."""
  lines = ['| work | ours, s | other, s | ratio | goal | repeats | note |',
           '|---|---|---|---|---|---|---|']
  for own in rows:
    goal = '' if own['goal'] is None else f'{own["goal"]:g}'
    lines.append(f'| {own["work"]} | {own["ours_s"]:.3g} | {own["other_s"]:.3g} | '
                 f'{own["ratio"]:.3g} | {goal} | {own["repeats"]} | {own["note"]} |')
  return '\n'.join(lines)
