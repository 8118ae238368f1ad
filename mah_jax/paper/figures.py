"""The figures of the paper as SVG, drawn by Matplotlib, an extra that nothing else needs."""

from __future__ import annotations

import io
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax import errors

PANEL = 4.4, 3.4  # inches, of one panel
MARKS = 'osv^DPX*<>h'
LINES = '-', '--', ':'  # the next once all colours are used
COLOURS = 10            # of Matplotlib's cycle


class Curve(NamedTuple):
  """A curve: its points, and how far above and below each of them its interval reaches."""
  x: Sequence[float]
  y: Sequence[float]
  error: Sequence[float] | None = None


class Grid(NamedTuple):
  """A heat map: the names of its rows and columns, and its numbers, NaN where there is none."""
  rows: Sequence[str]
  columns: Sequence[str]
  values: np.ndarray


class Axes(NamedTuple):
  """The titles of the two axes of a panel."""
  x: str
  y: str


def curves(panels: Mapping[str, Mapping[str, Curve]], axes: Axes,
           strong: Collection[str] = ()) -> str:
  """Panels by title, each with curves by name; a name has one colour in all of them.

  The curves whose names are in `strong` are drawn thick, above the others.
  """
  figure, places = _panels(len(panels), legend=True)
  names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
  for place, (title, curves_of_panel) in zip(places, panels.items()):
    for name, curve in curves_of_panel.items():
      number = names.index(name)
      width, size, height = (2.8, 7, 3) if name in strong else (1.2, 4, 2)
      place.errorbar(curve.x, curve.y, curve.error, label=name, color=f'C{number % COLOURS}',
                     marker=MARKS[number % len(MARKS)], markersize=size, linewidth=width,
                     zorder=height, capsize=2, linestyle=LINES[number // COLOURS % len(LINES)])
    x = sorted({x for curve in curves_of_panel.values() for x in curve.x})
    if len(x) <= 8:
      place.set_xticks(x, [f'{value:g}' for value in x])
    y = [value for curve in curves_of_panel.values() for value in curve.y]
    if y:
      margin = 0.08 * (max(y) - min(y)) + 1e-3
      place.set_ylim(min(y) - margin, max(y) + margin)  # wide intervals may be cut off
    place.set(title=title, xlabel=axes.x)
    place.grid(alpha=0.3)
  places[0].set_ylabel(axes.y)
  handles = {label: handle for place in places
             for handle, label in zip(*place.get_legend_handles_labels())}
  figure.legend(handles.values(), handles.keys(), loc='outside right center', frameon=False,
                fontsize=8)
  return _svg(figure)


def heat_maps(panels: Mapping[str, Grid], axes: Axes) -> str:
  """Panels by title, each a heat map with its numbers written in."""
  figure, places = _panels(len(panels))
  for place, (title, grid) in zip(places, panels.items()):
    values = np.ma.masked_invalid(grid.values)
    place.imshow(values, cmap='viridis', aspect='auto')
    middle = (values.min() + values.max()) / 2
    for (row, column), value in np.ndenumerate(grid.values):
      if np.isfinite(value):
        place.text(column, row, f'{value:.3f}', ha='center', va='center', fontsize=8,
                   color='black' if value > middle else 'white')
    place.set_xticks(range(len(grid.columns)), grid.columns)
    place.set_yticks(range(len(grid.rows)), grid.rows)
    place.set(title=title, xlabel=axes.x)
  places[0].set_ylabel(axes.y)
  return _svg(figure)


def bars(panels: Mapping[str, Mapping[str, float]], axes: Axes) -> str:
  """Panels by title, each with bars by name, their numbers written on them."""
  figure, places = _panels(len(panels))
  for place, (title, heights) in zip(places, panels.items()):
    drawn = place.bar(list(heights), list(heights.values()), color='#4878a8')
    place.bar_label(drawn, fmt='%.3g', fontsize=8)
    place.tick_params(axis='x', labelrotation=30 if len(heights) > 5 else 0)
    place.set(title=title, xlabel=axes.x)
  places[0].set_ylabel(axes.y)
  return _svg(figure)


def require():
  """Refuses to go on without Matplotlib."""
  try:
    import matplotlib
  except ImportError:
    raise errors.InputError('Figures need Matplotlib, which is not installed: pip install '
                            'matplotlib.') from None
  # Text stays text, and the same figure is the same file.
  matplotlib.rcParams.update({'svg.fonttype': 'none', 'svg.hashsalt': 'mah_jax',
                              'font.family': 'sans-serif', 'axes.titlesize': 10})


def _panels(count: int, legend: bool = False):
  """A figure with panels side by side, at most three in a line."""
  require()
  from matplotlib.figure import Figure
  columns = 2 if count == 4 else min(count, 3)
  lines = -(-count // columns)
  figure = Figure((PANEL[0] * columns + (1.6 if legend else 0), PANEL[1] * lines),
                  layout='constrained')
  places = np.atleast_1d(figure.subplots(lines, columns, squeeze=False).ravel())
  for place in places[count:]:
    place.set_axis_off()
  return figure, places[:count]


def _svg(figure) -> str:
  buffer = io.StringIO()
  figure.savefig(buffer, format='svg', metadata={'Date': None})
  return buffer.getvalue()
