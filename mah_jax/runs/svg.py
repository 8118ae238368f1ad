"""Drawings as SVG, written by hand: curves, bars, heat maps and bits, in the colours of the page.

They need no library. Lines and fills name classes that `page.DRAWN` gives colours to, light and
dark; text has the colour of the text around it. `stand_alone` makes a file of them, which brings
its own colours.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax.runs import page

WIDTH, HEIGHT = 340, 235         # of a panel with axes
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 46, 40
LINE = 15                        # height of a line of text
COLOURS = 8                      # classes s0 to s7
DASHES = '', '7 3', '2 3'        # in turn, so that curves that cover each other are all seen
LETTER = 6.2                     # width of a letter, about
NAME = 18                        # letters of a name that have room beside a row
CELL, SMALL, WRITTEN = 28, 14, 15  # sides of cells with and without texts; most rows with them
SHADES = 20                      # of a heat map
SLANT = 0.87                     # height of a slanted name in parts of its length
BIT = 14                         # side of a bit
# The colour of text in a file of its own, which has no text around it.
INK = """
:root { color: #1f2328; }
@media (prefers-color-scheme: dark) { :root { color: #e6edf3; } }
"""


class Curve(NamedTuple):
  """A curve, or a level that everything is compared with where it is `faint`."""
  x: Sequence[float]
  y: Sequence[float]
  faint: bool = False


class Axes(NamedTuple):
  """The titles of a panel and of its axes, and the range of y where it is known beforehand."""
  title: str
  x: str
  y: str
  y_range: tuple[float, float] | None = None
  log_x: bool = False


def curves(named: Mapping[str, Curve], axes: Axes, among: Sequence[str] = ()) -> str:
  """Curves by name in one panel, with a legend above them.

  `among` has the names of all panels, in each of which a name has the same colour.
  """
  order = list(among or [name for name, curve in named.items() if not curve.faint])
  x = [value for curve in named.values() for value in curve.x if not axes.log_x or value > 0]
  y = [value for curve in named.values() for value in curve.y if math.isfinite(value)]
  low_x, high_x = _widened(min(x), max(x))
  low_y, high_y = axes.y_range or _widened(min(y), max(y), margin=0.05)
  if axes.log_x:
    low_x, high_x = math.log10(min(x)), math.log10(max(max(x), 10 * min(x)))

  def place(a, b):
    a = math.log10(a) if axes.log_x else a
    return (LEFT + (a - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (b - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM))

  ticks_x = ([10.0 ** e for e in range(math.ceil(low_x), math.floor(high_x) + 1)] if axes.log_x
             else _ticks(low_x, high_x, whole=all(float(v).is_integer() for v in x)))
  parts = [_frame(axes, [(place(t, low_y)[0], _number(t)) for t in ticks_x],
                  [(place(x[0], t)[1], _number(t)) for t in _ticks(low_y, high_y)])]
  legend, x_legend, y_legend = [], 8, 34
  for name, curve in named.items():
    number = 0 if curve.faint else order.index(name)
    style, dash = ('faint', '3 4') if curve.faint else (
        f's{number % COLOURS}', DASHES[number % len(DASHES)])
    points = [place(a, b) for a, b in zip(curve.x, curve.y)
              if math.isfinite(b) and (a > 0 or not axes.log_x)]
    stroke = f' stroke-dasharray="{dash}"' if dash else ''
    parts.append(f'<polyline class="line {style}"{stroke} points="'
                 + ' '.join(f'{a:.1f},{b:.1f}' for a, b in points) + '"/>')
    if len(points) <= 15 and not curve.faint:
      parts += [f'<circle class="dot {style}" cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>'
                for a, b in points]
    room = 34 + round(LETTER * len(name))
    if x_legend > 8 and x_legend + room > WIDTH:
      x_legend, y_legend = 8, y_legend + LINE
    legend.append(f'<line class="line {style}"{stroke} x1="{x_legend}" x2="{x_legend + 18}" '
                  f'y1="{y_legend}" y2="{y_legend}"/>{_text(x_legend + 22, y_legend + 4, name)}')
    x_legend += room
  lower = y_legend - 34  # where the legend has several lines
  panel = f'<g transform="translate(0 {lower})">{"".join(parts)}</g>'
  return _svg(WIDTH, HEIGHT + lower, axes.title, [*legend, panel])


def bars(heights: Sequence[float], names: Sequence[str], axes: Axes,
         level: float | None = None) -> str:
  """Bars side by side, and a dashed line at a level."""
  low, high = axes.y_range or (0.0, max(heights) or 1.0)
  width = (WIDTH - LEFT - RIGHT) / len(heights)

  def y(value):
    return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

  every = math.ceil(len(heights) / (8 if max(map(len, names)) > 3 else 16))
  parts = [_frame(axes, [(LEFT + (i + 0.5) * width, name) for i, name in enumerate(names)
                         if i % every == 0], [(y(t), _number(t)) for t in _ticks(low, high)])]
  parts += [f'<rect class="bar" x="{LEFT + (i + 0.1) * width:.1f}" y="{y(value):.1f}" '
            f'width="{0.8 * width:.1f}" height="{y(low) - y(value):.1f}">'
            f'<title>{_escape(name)}: {value:.3f}</title></rect>'
            for i, (name, value) in enumerate(zip(names, heights))]
  if level is not None:
    parts.append(f'<line class="line faint" stroke-dasharray="3 4" x1="{LEFT}" '
                 f'x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}"/>')
  return _svg(WIDTH, HEIGHT, axes.title, parts)


def heat_map(shades: np.ndarray, texts: Sequence[Sequence[str]], names: Sequence[str],
             title: str) -> str:
  """A square of cells, as strong in colour as their shades [L, L] from 0 to 1; NaN has none.

  Each has a text, which is written into it where there is room. The names are those of the rows
  and of the columns.
  """
  written = len(names) <= WRITTEN
  cell, left = CELL if written else SMALL, _margin(names)
  top = 38 + round(SLANT * LETTER * max(len(_short(name)) for name in names))
  parts = []
  for i, name in enumerate(names):
    middle = (i + 0.5) * cell + 4
    parts.append(_text(left - 6, top + middle, _short(name), 'end'))
    parts.append(f'<g transform="translate({left + middle:.1f} {top - 6}) rotate(-60)">'
                 f'{_text(0, 0, _short(name))}</g>')
  # Cells of about the same shade are one path, which keeps large squares short.
  levels = np.where(np.isfinite(shades), np.rint(np.nan_to_num(shades).clip(0, 1) * SHADES), -1)
  for level in range(SHADES + 1):
    cells = [(left + j * cell, top + i * cell) for i, j in zip(*np.nonzero(levels == level))]
    parts.append(_squares('heat', cells, cell - 1, 0.05 + 0.95 * level / SHADES))
  for i, j in zip(*np.nonzero(levels >= 0)) if written else ():
    parts.append(_text(left + (j + 0.5) * cell - 0.5, top + (i + 0.5) * cell + 4, texts[i][j],
                       'middle', 'on' if shades[i, j] > 0.45 else ''))
  width = left + len(names) * cell + round(top / 3)  # the last name leans out
  return _svg(max(width, _title_width(title)), top + len(names) * cell + 8, title, parts)


def bits(words: Sequence[str], names: Sequence[str], title: str) -> str:
  """Codewords, texts of 0 and 1, as rows of squares: full ones are 1."""
  left, top = _margin(names), 34
  parts = [_text(left - 6, top + (i + 0.5) * BIT + 4, _short(name), 'end')
           for i, name in enumerate(names)]
  for style, value in (('one', '1'), ('zero', '0')):
    parts.append(_squares(style, [(left + j * BIT, top + i * BIT) for i, word in enumerate(words)
                                  for j, bit in enumerate(word) if bit == value], BIT - 2))
  width = left + max(map(len, words)) * BIT + 8
  return _svg(max(width, _title_width(title)), top + len(words) * BIT + 8, title, parts)


def stand_alone(drawings: Sequence[str], title: str, style: str = '', gap: int = 12) -> str:
  """Drawings side by side as the content of one SVG file, with light and dark colours.

  `style` has more rules of CSS.
  """
  placed, left, height = [], 0, 0
  for drawn in drawings:
    size = re.match(r'<svg [^>]*?width="(\d+)" height="(\d+)"', drawn)
    placed.append(f'<svg x="{left}" y="0" {drawn.removeprefix("<svg ")}\n')
    left, height = left + int(size[1]) + gap, max(height, int(size[2]))
  width = left - gap
  return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
          f'viewBox="0 0 {width} {height}" role="img">\n<title>{_escape(title)}</title>\n'
          f'<style>{INK}{page.DRAWN}{style}</style>\n{"".join(placed)}</svg>\n')


def _frame(axes: Axes, ticks_x: Sequence[tuple[float, str]],
           ticks_y: Sequence[tuple[float, str]]) -> str:
  """Grid lines, the numbers at both axes, and their titles."""
  right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
  parts = [f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
           + _text(LEFT - 6, y + 4, text, 'end') for y, text in ticks_y]
  parts += [f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
            + _text(x, bottom + 17, text, 'middle') for x, text in ticks_x]
  parts.append(f'<line class="tick" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
  parts.append(_text((LEFT + right) / 2, HEIGHT - 6, axes.x, 'middle'))
  middle = (TOP + bottom) / 2
  parts.append(f'<g transform="rotate(-90 12 {middle})">{_text(12, middle, axes.y, "middle")}</g>')
  return ''.join(parts)


def _widened(low: float, high: float, margin: float = 0.0) -> tuple[float, float]:
  """A range that is not empty, with a share of it as a margin."""
  if high - low <= 1e-9 * max(abs(low), abs(high)):  # but for rounding they are equal
    return low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
  return low - margin * (high - low), high + margin * (high - low)


def _ticks(low: float, high: float, whole: bool = False) -> list[float]:
  """Four to eight round numbers in a range."""
  step = 10.0 ** math.floor(math.log10((high - low) / 4))
  step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 8)
  step = max(step, 1.0) if whole else step
  first = math.ceil(low / step - 1e-9)
  return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
  return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:g}'


def _short(name: str) -> str:
  return name if len(name) <= NAME else f'{name[:NAME - 1]}…'


def _title_width(title: str) -> int:
  return 16 + round(1.2 * LETTER * len(title))


def _margin(names: Sequence[str]) -> int:
  """Room for the names of rows."""
  return 16 + round(LETTER * max(len(_short(name)) for name in names))


def _squares(style: str, corners: Sequence[tuple[int, int]], side: int,
             opacity: float = 1.0) -> str:
  """Squares of one style as a single path, by their upper left corners."""
  if not corners:
    return ''
  path = ''.join(f'M{x} {y}h{side}v{side}h-{side}z' for x, y in corners)
  return f'<path class="{style}" fill-opacity="{opacity:.2f}" d="{path}"/>'


def _text(x: float, y: float, text: str, anchor: str = 'start', style: str = '') -> str:
  more = f' class="{style}"' if style else ''
  return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{_escape(text)}</text>'


def _escape(text: str) -> str:
  """Text for XML, without characters that it cannot hold."""
  text = text.encode(errors='replace').decode()  # a file name may be no valid text
  return html.escape(''.join(letter if letter.isprintable() else ' ' for letter in text))


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
  return (f'<svg class="drawn" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
          f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
          f'aria-label="{_escape(title)}"><text class="title" x="8" y="18">{_escape(title)}</text>'
          + ''.join(parts) + '</svg>')
