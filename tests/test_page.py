"""Pages: the same blocks in Markdown and in HTML."""

import html.parser

import pytest

from mah_jax.runs import page

SVG = ('<?xml version="1.0"?>\n<svg xmlns="x"><g id="a"><use href="#a"/>'
       '<path clip-path="url(#a)"/></g></svg>')
PAGE = page.Page('Rows & columns', [page.Text('See `a < b`, **bold** and [this](x.csv).')], [
    page.Section('First part', [page.Table(['name', '4 bits'], [['a|b', '0.5 ±0.1'], ['<c>', '']]),
                                page.Points(['one', 'two'])]),
    page.Section('Second part', [page.Figure('one', SVG, 'The first.'),
                                 page.Figure('two', SVG, 'The second.')])])


def test_markdown():
  assert page.to_markdown(PAGE, 'figures') == (
      '# Rows & columns\n\nSee `a < b`, **bold** and [this](x.csv).\n\n## First part\n\n'
      '| name | 4 bits |\n| --- | --- |\n| a&#124;b | 0.5 ±0.1 |\n| <c> |  |\n\n- one\n- two\n\n'
      '## Second part\n\n![The first.](figures/one.svg)\n\nThe first.\n\n'
      '![The second.](figures/two.svg)\n\nThe second.\n')


class _Reader(html.parser.HTMLParser):
  """Collects what a browser would see."""

  def __init__(self, text):
    super().__init__()
    self.ids, self.text, self.open, self.links = [], '', [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.open.append(tag)
    attrs = dict(attrs)
    self.ids += [attrs['id']] if 'id' in attrs else []
    self.links += [attrs['href']] if 'href' in attrs else []

  def handle_data(self, data):
    self.text += data


def test_html_is_one_file_with_everything():
  read = _Reader(page.to_html(PAGE))
  for text in ('Rows & columns', 'a < b', 'a|b', '<c>', '0.5 ±0.1', 'two', 'The second.'):
    assert text in read.text
  assert read.open.count('svg') == 2 and read.open.count('table') == 1
  assert not [link for link in read.links if '//' in link]
  assert '<?xml' not in page.to_html(PAGE)


def test_text_from_outside_is_shown_as_it_is():
  hostile = '[x](" onmouseover="y) `c` **b** <script>'
  shown = _Reader(page.to_html(page.Page('', [page.Text(page.Plain(hostile))], [])))
  assert hostile in shown.text and not shown.links and 'code' not in shown.open
  marked = _Reader(page.to_html(page.Page('', [page.Text(hostile)], [])))
  assert marked.links == ['" onmouseover="y'] and 'script' not in marked.open


def test_the_figures_of_a_page_do_not_share_ids():
  read = _Reader(page.to_html(PAGE))
  assert len(read.ids) == len(set(read.ids))
  assert {link for link in read.links if link.startswith('#')} <= {f'#{name}' for name in read.ids}
  text = page.to_html(PAGE)
  assert 'url(#one-a)' in text and 'url(#two-a)' in text


def test_figures_are_drawn_with_their_numbers_and_names():
  pytest.importorskip('matplotlib', reason='Matplotlib, an extra, is not installed')
  import numpy as np

  from mah_jax.paper import figures
  curves = figures.curves({'left': {'method one': figures.Curve([4, 8], [0.1, 0.2], [0.01, 0.02])},
                           'right': {'method two': figures.Curve([4], [0.3])}},
                          figures.Axes('bits', 'map'))
  for text in ('left', 'right', 'method one', 'method two', 'bits', 'map'):
    assert text in curves
  grid = figures.Grid(['r1', 'r2'], ['c1', 'c2'], np.array([[0.125, np.nan], [0.25, 0.5]]))
  drawn = figures.heat_maps({'panel': grid}, figures.Axes('x axis', 'y axis'))
  assert [text in drawn for text in ('0.125', '0.250', '0.500', 'r2', 'c2', 'nan')] == [
      True] * 5 + [False]
  assert '12.5' in figures.bars({'p': {'a': 12.5}}, figures.Axes('', 's'))
  assert drawn == figures.heat_maps({'panel': grid}, figures.Axes('x axis', 'y axis'))
