"""A page: texts, tables and figures, in Markdown with files beside it or as one HTML file."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

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
"""


MARK = b'<meta name="generator" content="mah_jax">'  # by which a page is known


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


Block = Text | Points | Table | Figure


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
          f'<title>{html.escape(page.title)}</title>\n<style>{STYLE}</style>\n</head>\n'
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
  svg = block.svg[block.svg.index('<svg'):]  # without the XML declaration
  return (f'<figure id="{block.name}">{_own_ids(svg, block.name)}'
          f'<figcaption>{_inline(block.caption)}</figcaption></figure>')


def _own_ids(svg: str, name: str) -> str:
  """An SVG whose ids are told apart from those of other SVGs in the same page."""
  svg = re.sub(r'\bid="', f'id="{name}-', svg)
  return re.sub(r'(url\(#|xlink:href="#|href="#)(?!' + re.escape(name) + '-)', rf'\1{name}-', svg)


def _inline(text: str) -> str:
  """HTML of a text with `code`, **bold** and [links](address)."""
  text = html.escape(text, quote=False)
  text = re.sub(r'`([^`]+)`', r'<code>\1</code>', text)
  text = re.sub(r'\*\*([^*]+)\*\*', r'<b>\1</b>', text)
  return re.sub(r'\[([^\]]+)\]\(([^)]+)\)', r'<a href="\2">\1</a>', text)


def _anchor(section: Section) -> str:
  return re.sub(r'\W+', '-', section.title.lower()).strip('-')
