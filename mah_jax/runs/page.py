"""A page: texts, tables and figures, in Markdown with files beside it or as one HTML file."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

# The colours of drawings, light and dark, and what has which of them; svg.py names the classes.
DRAWN = """
:root { --s0: #1f6fb4; --s1: #d1590b; --s2: #1d8348; --s3: #8e44ad; --s4: #b8860b; --s5: #c0266d;
        --s6: #0e7c86; --s7: #6b6b6b; --good: #1d8348; --bad: #c0392b; }
@media (prefers-color-scheme: dark) {
  :root { --s0: #6db3f2; --s1: #ff9d5c; --s2: #5fd38d; --s3: #cf9bf0; --s4: #e8c45a; --s5: #ff86bd;
          --s6: #5ccfd9; --s7: #b0b0b0; --good: #5fd38d; --bad: #ff8a7a; }
}
svg.drawn text { fill: currentColor; font: 11px system-ui, sans-serif; }
svg.drawn text.title { font-size: 13px; font-weight: 600; }
svg.drawn text.on { fill: #fff; }
.line { fill: none; stroke-width: 1.8; } .dot { stroke: none; } .bar, .one { fill: var(--s0); }
.grid { stroke: #8884; } .tick { stroke: #888a; } .faint { stroke: currentColor; opacity: 0.55; }
.heat { fill: #2567b0; } .zero { fill: none; stroke: #8889; }
.line.s0 { stroke: var(--s0); } .dot.s0 { fill: var(--s0); }
.line.s1 { stroke: var(--s1); } .dot.s1 { fill: var(--s1); }
.line.s2 { stroke: var(--s2); } .dot.s2 { fill: var(--s2); }
.line.s3 { stroke: var(--s3); } .dot.s3 { fill: var(--s3); }
.line.s4 { stroke: var(--s4); } .dot.s4 { fill: var(--s4); }
.line.s5 { stroke: var(--s5); } .dot.s5 { fill: var(--s5); }
.line.s6 { stroke: var(--s6); } .dot.s6 { fill: var(--s6); }
.line.s7 { stroke: var(--s7); } .dot.s7 { fill: var(--s7); }
"""

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #8886; padding: 0.2em 0.7em; text-align: left;
         font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { white-space: nowrap; }
figure { margin: 1em 0; padding: 0.5em; background: white; color: #333; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; }
code { background: #8882; padding: 0 0.2em; }
.wide { overflow-x: auto; }
figure.drawn { color: inherit; background: none; margin: 0; }
nav { margin: 1em 0; }
.beside { display: flex; flex-wrap: wrap; gap: 0 0.5em; align-items: flex-start; }
.beside figure { max-width: 100%; }
figcaption, .note { font-size: 13px; opacity: 0.85; max-width: 60em; }
.cards { display: flex; flex-wrap: wrap; gap: 0.8em; }
.cards div { border: 1px solid #8886; border-radius: 8px; padding: 0.5em 1em; }
.cards b { display: block; font-size: 26px; line-height: 1.2; }
.strip { display: flex; gap: 6px; overflow-x: auto; margin: 0.3em 0 1em; }
.strip figure { margin: 0; padding: 0; background: none; color: inherit; flex: 0 0 78px;
                font-size: 11px; line-height: 1.25; overflow-wrap: anywhere; }
.strip img, .strip .none { width: 72px; height: 72px; display: block; border: 3px solid #888;
                           border-radius: 4px; box-sizing: content-box; }
.strip img.pixels { image-rendering: pixelated; }
.strip .good { border-color: var(--good); } .strip .bad { border-color: var(--bad);
                                                          border-style: dashed; }
.strip figure:first-child { margin-right: 12px; }
summary { cursor: pointer; }
"""


MARK = b'<meta name="generator" content="mah_jax">'  # by which a page is known


class Plain(str):
  """A text from outside, such as a file name: it is shown as it is, whatever it holds."""


class Text(NamedTuple):
  """A paragraph; it may hold `code`, **bold** and [links](address)."""
  text: str


class Points(NamedTuple):
  """A list of texts, or of things whose `str` is one."""
  texts: Sequence[Any]


class Table(NamedTuple):
  """A table: the titles of its columns, and its rows."""
  head: Sequence[str]
  rows: Sequence[Sequence[str]]


class Figure(NamedTuple):
  """A drawing: the name of its file without .svg, its SVG and a caption."""
  name: str
  svg: str
  caption: str


class Drawing(NamedTuple):
  """A drawing by svg.py, which has the colours of the page, and a caption. Only HTML has it."""
  svg: str
  caption: str = ''


class Cards(NamedTuple):
  """Numbers that stand out: each a number and what it is. Only HTML has them."""
  numbers: Sequence[tuple[str, str]]


class Picture(NamedTuple):
  """A small picture.

  content: a PNG or JPEG file; None where the image is not at hand.
  lines: the texts below it.
  good: whether it is what was looked for; None where nobody can tell.
  enlarged: whether its pixels are few, and shown as squares.
  """
  content: bytes | None
  lines: Sequence[str]
  good: bool | None = None
  enlarged: bool = False


class Strip(NamedTuple):
  """A title and pictures in a row, of which the first is the query. Only HTML has it."""
  title: str
  pictures: Sequence[Picture]


class Beside(NamedTuple):
  """Blocks side by side where there is room. Only HTML has it."""
  blocks: Sequence[Any]


class Details(NamedTuple):
  """Blocks that are shown when a reader asks for them. Only HTML has it."""
  title: str
  blocks: Sequence[Any]


Block = Text | Points | Table | Figure | Drawing | Cards | Strip | Beside | Details


class Section(NamedTuple):
  """A part of a page with a title."""
  title: str
  blocks: Sequence[Block]


class Page(NamedTuple):
  """A page: its title, what stands before the sections, and the sections."""
  title: str
  blocks: Sequence[Block]
  sections: Sequence[Section]

  @property
  def figures(self) -> list[Figure]:
    """All figures."""
    blocks = [*self.blocks, *(block for section in self.sections for block in section.blocks)]
    return [block for block in blocks if isinstance(block, Figure)]


def to_markdown(page: Page, folder: str) -> str:
  """The page in Markdown; its figures are files in a folder beside it."""

  def block_lines(block: Block) -> list[str]:
    if isinstance(block, Text):
      return [block.text]
    if isinstance(block, Points):
      return [f'- {text}' for text in block.texts]
    if isinstance(block, Table):
      rows = [block.head, ['---'] * len(block.head), *block.rows]
      return [f'| {" | ".join(cell.replace("|", "&#124;") for cell in row)} |' for row in rows]
    return [f'![{block.caption}]({folder}/{block.name}.svg)', '', block.caption]

  parts = [f'# {page.title}', *['\n'.join(block_lines(block)) for block in page.blocks]]
  for section in page.sections:
    parts += [f'## {section.title}', *['\n'.join(block_lines(block)) for block in section.blocks]]
  return '\n\n'.join(parts) + '\n'


def to_html(page: Page) -> str:
  """The page as one HTML file that needs no other."""
  parts = [f'<h1>{html.escape(page.title)}</h1>', *map(_block_html, page.blocks)]
  if len(page.sections) > 1:
    links = ' · '.join(f'<a href="#{_anchor(section)}">{html.escape(section.title)}</a>'
                       for section in page.sections)
    parts.append(f'<nav>{links}</nav>')
  for section in page.sections:
    parts += [f'<h2 id="{_anchor(section)}">{html.escape(section.title)}</h2>',
              *map(_block_html, section.blocks)]
  body = '\n'.join(parts)
  return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
          f'<meta name="viewport" content="width=device-width">\n{MARK.decode()}\n'
          f'<title>{html.escape(page.title)}</title>\n<style>{STYLE}{DRAWN}</style>\n</head>\n'
          f'<body>\n{body}\n</body>\n</html>\n')


def _block_html(block: Block) -> str:
  if isinstance(block, Text):
    return f'<p>{_inline(block.text)}</p>'
  if isinstance(block, Points):
    return f'<ul>{"".join(f"<li>{_inline(str(text))}</li>" for text in block.texts)}</ul>'
  if isinstance(block, Table):
    head = ''.join(f'<th>{_inline(cell)}</th>' for cell in block.head)
    rows = ''.join(f'<tr>{"".join(f"<td>{_inline(cell)}</td>" for cell in row)}</tr>\n'
                   for row in block.rows)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{rows}</table></div>'
  if isinstance(block, Drawing):
    caption = f'<figcaption>{_inline(block.caption)}</figcaption>' if block.caption else ''
    return f'<figure class="drawn">{block.svg}{caption}</figure>'
  if isinstance(block, Cards):
    cards = ''.join(f'<div><b>{_inline(number)}</b>{_inline(what)}</div>'
                    for number, what in block.numbers)
    return f'<div class="cards">{cards}</div>'
  if isinstance(block, Strip):
    return (f'<div class="note">{_inline(block.title)}</div>\n<div class="strip">'
            f'{"".join(map(_picture_html, block.pictures))}</div>')
  if isinstance(block, Beside):
    return f'<div class="beside">{"".join(map(_block_html, block.blocks))}</div>'
  if isinstance(block, Details):
    return (f'<details><summary>{_inline(block.title)}</summary>'
            f'{"".join(map(_block_html, block.blocks))}</details>')
  svg = block.svg[block.svg.index('<svg'):]  # without the XML declaration
  return (f'<figure id="{block.name}">{_own_ids(svg, block.name)}'
          f'<figcaption>{_inline(block.caption)}</figcaption></figure>')


def _picture_html(picture: Picture) -> str:
  style = {None: '', True: 'good', False: 'bad'}[picture.good] + ' pixels' * picture.enlarged
  lines = '<br>'.join(map(_inline, picture.lines))
  shown = f'<div class="none {style}"></div>'
  if picture.content is not None:
    kind = 'png' if picture.content.startswith(b'\x89PNG') else 'jpeg'
    data = base64.b64encode(picture.content).decode()
    shown = f'<img class="{style}" alt="" src="data:image/{kind};base64,{data}">'
  return f'<figure>{shown}{lines}</figure>'


def _own_ids(svg: str, name: str) -> str:
  """An SVG whose ids are told apart from those of other SVGs in the same page."""
  svg = re.sub(r'\bid="', f'id="{name}-', svg)
  return re.sub(r'(url\(#|xlink:href="#|href="#)(?!' + re.escape(name) + '-)', rf'\1{name}-', svg)


def _inline(text: str) -> str:
  """HTML of a text with `code`, **bold** and [links](address)."""
  if isinstance(text, Plain):
    return html.escape(text.encode(errors='replace').decode())
  text = html.escape(text)
  text = re.sub(r'`([^`]+)`', r'<code>\1</code>', text)
  text = re.sub(r'\*\*([^*]+)\*\*', r'<b>\1</b>', text)
  return re.sub(r'\[([^\]]+)\]\(([^)]+)\)', r'<a href="\2">\1</a>', text)


def _anchor(section: Section) -> str:
  return re.sub(r'\W+', '-', section.title.lower()).strip('-')
