"""Drawings: every point stands where it belongs, and hostile names stay text."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from mah_jax.runs import svg

HOSTILE = '</text><script>alert(1)</script>"\'&\x00\x1b\udc80'
SPACE = '{http://www.w3.org/2000/svg}'
AXES = svg.Axes('title', 'x axis', 'y axis', (0.0, 1.0))


def _points(drawn):
  """The points of the first curve."""
  line = ElementTree.fromstring(drawn).find(f'.//{SPACE}polyline')
  return [tuple(map(float, pair.split(','))) for pair in line.get('points').split()]


def _texts(drawn):
  return [text.text for text in ElementTree.fromstring(drawn).iter(f'{SPACE}text')]


def test_points_stand_where_they_belong():
  (x0, y0), (x1, y1), (x2, y2) = _points(svg.curves({'a': svg.Curve([0, 5, 10], [0, 0.5, 1])},
                                                    AXES))
  assert x0 == svg.LEFT and x2 == svg.WIDTH - svg.RIGHT and x1 == pytest.approx((x0 + x2) / 2)
  assert y0 == svg.HEIGHT - svg.BOTTOM and y2 == svg.TOP and y1 == pytest.approx((y0 + y2) / 2)


def test_a_logarithmic_axis_has_equal_steps():
  drawn = svg.curves({'a': svg.Curve([1, 10, 100], [0, 0.5, 1])}, AXES._replace(log_x=True))
  (x0, _), (x1, _), (x2, _) = _points(drawn)
  assert x1 - x0 == pytest.approx(x2 - x1) and x2 == svg.WIDTH - svg.RIGHT
  assert {'1', '10', '100'} <= set(_texts(drawn))


def test_a_number_that_is_not_finite_is_left_out():
  drawn = svg.curves({'a': svg.Curve([1, 2, 3], [0.1, float('nan'), 0.3]),
                      'level': svg.Curve([1, 3], [0.2, 0.2], faint=True)},
                     AXES._replace(y_range=None))
  assert len(_points(drawn)) == 2 and 'nan' not in drawn
  assert {'a', 'level', 'title', 'x axis', 'y axis'} <= set(_texts(drawn))


@pytest.mark.parametrize('x, y', [([3], [0.5]), ([1, 2], [0.5, 0.5]), ([1, 2], [0, 0]),
                                  ([1, 2], [0.1, np.nextafter(0.1, 1)]), ([1, 2], [1e-9, 2e-9]),
                                  ([1, 2], [1e9, 3e9])])
def test_ranges_of_any_size_are_drawn(x, y):
  for place in _points(svg.curves({'a': svg.Curve(x, y)}, svg.Axes('t', 'x', 'y'))):
    assert np.isfinite(place).all() and min(place) >= 0


def test_bits_are_squares():
  root = ElementTree.fromstring(svg.bits(['101', ''], ['a', 'b'], '3 bits'))
  squares = {path.get('class'): path.get('d').count('M') for path in root.iter(f'{SPACE}path')}
  assert squares == {'one': 2, 'zero': 1}


def test_a_heat_map_is_as_strong_as_its_shades():
  shades = np.array([[1.0, 0.5], [np.nan, 0.0]])
  drawn = svg.heat_map(shades, [['full', 'half'], ['nothing', 'none']], ['a', 'b'], 'title')
  paths = list(ElementTree.fromstring(drawn).iter(f'{SPACE}path'))
  assert [float(path.get('fill-opacity')) for path in paths] == pytest.approx(
      [0.05, 0.525, 1.0], abs=0.01)
  assert [path.get('d').count('M') for path in paths] == [1, 1, 1]
  assert {'full', 'half', 'none'} <= set(_texts(drawn)) and 'nothing' not in _texts(drawn)
  many = svg.heat_map(np.zeros((30, 30)), [['text'] * 30] * 30, ['a'] * 30, 'title')
  assert 'text</text>' not in many and len(many) < 40_000


def test_bars_have_their_heights_and_a_level():
  root = ElementTree.fromstring(svg.bars([0.25, 1.0], ['1', '2'], AXES, level=0.5))
  low, high = (float(bar.get('height')) for bar in root.iter(f'{SPACE}rect'))
  assert high == pytest.approx(4 * low, rel=1e-2)
  assert high == pytest.approx(svg.HEIGHT - svg.TOP - svg.BOTTOM)
  level, = (line for line in root.iter(f'{SPACE}line') if 'faint' in line.get('class'))
  assert float(level.get('y1')) == pytest.approx((svg.TOP + svg.HEIGHT - svg.BOTTOM) / 2)


@pytest.mark.parametrize('drawn', [
    svg.curves({HOSTILE: svg.Curve([1, 2], [0.1, 0.2])}, svg.Axes(HOSTILE, HOSTILE, HOSTILE)),
    svg.bars([0.5], [HOSTILE], svg.Axes(HOSTILE, HOSTILE, HOSTILE)),
    svg.bits(['1'], [HOSTILE], HOSTILE),
    svg.heat_map(np.ones((1, 1)), [[HOSTILE]], [HOSTILE], HOSTILE)],
                         ids=['curves', 'bars', 'bits', 'heat map'])
def test_hostile_names_stay_text(drawn):
  tags = {element.tag for element in ElementTree.fromstring(drawn).iter()}
  assert f'{SPACE}script' not in tags and any('<script>' in (text or '') for text in _texts(drawn))
  drawn.encode()  # is valid text
  assert not re.search('[\x00-\x08\x0b-\x1f]', drawn)


def test_a_legend_of_many_curves_goes_on_below():
  drawn = svg.curves({f'{c} bits': svg.Curve([1, 2], [0.1, 0.2]) for c in range(12)}, AXES)
  root = ElementTree.fromstring(drawn)
  assert float(root.get('height')) > svg.HEIGHT and float(root.get('width')) == svg.WIDTH
  texts = [text for text in root.iter(f'{SPACE}text') if 'bits' in text.text]
  assert all(float(text.get('x')) < svg.WIDTH - 20 for text in texts) and len(texts) == 12


def test_a_name_has_its_colour_in_every_panel():
  drawn = svg.curves({'b': svg.Curve([1, 2], [0.1, 0.2])}, AXES, among=['a', 'b'])
  assert ElementTree.fromstring(drawn).find(f'.//{SPACE}polyline').get('class') == 'line s1'
