"""The pictures of docs/: made again they are the same files, and they show what was measured."""

import csv
import importlib.util
import pathlib
import re
import shutil
import sys
from xml.etree import ElementTree

import pytest

from mah_jax import errors

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / 'docs' / 'pictures'
SPACE = '{http://www.w3.org/2000/svg}'
MOST = 1_500_000  # bytes of all pictures
NAMES = ('diagram', 'map_over_bits', 'rounds', 'codebook')


@pytest.fixture(scope='module')
def pictures():
  spec = importlib.util.spec_from_file_location('docs_pictures', ROOT / 'docs' / 'pictures.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize('name', NAMES)
def test_made_again_it_is_the_same_file(pictures, tmp_path, name):
  assert pictures.main([name, f'--output={tmp_path}']) == 0
  assert [file.name for file in tmp_path.iterdir()] == [f'{name}.svg']
  assert (tmp_path / f'{name}.svg').read_bytes() == (FOLDER / f'{name}.svg').read_bytes(), (
      'make pictures draws it anew')


def test_without_names_all_are_made_that_need_the_repository_only(pictures, tmp_path):
  assert pictures.main([f'--output={tmp_path}']) == 0
  assert {file.stem for file in tmp_path.iterdir()} == set(NAMES)


@pytest.mark.parametrize('name', NAMES)
def test_it_has_light_and_dark_colours(name):
  root = ElementTree.parse(FOLDER / f'{name}.svg').getroot()
  assert root.find(f'{SPACE}title').text
  style = root.find(f'{SPACE}style').text
  rules = r'@media \(prefers-color-scheme: dark\) \{((?:[^{}]*\{[^}]*\})*)'
  dark, light = ''.join(re.findall(rules, style)), re.sub(rules, '', style)
  used = set(re.findall(r'var\((--\w+)\)', style))
  assert used
  for scheme in (light, dark):
    assert used <= set(re.findall(r'(--\w+):', scheme))
    assert re.search(r':root \{ color: #\w{6}; \}', scheme)  # of text
  colours = [dict(re.findall(r'(--\w+|color): (#\w{6})', scheme)) for scheme in (light, dark)]
  assert all(colours[0][key] != colours[1][key] for key in (*used, 'color'))


def test_all_pictures_are_small():
  files = [file for file in (ROOT / 'docs').rglob('*') if file.suffix in ('.png', '.svg', '.jpg')]
  assert {f'{name}.svg' for name in NAMES} <= {file.name for file in files}
  assert sum(file.stat().st_size for file in files) < MOST


@pytest.mark.parametrize('panel, dataset, row, lengths, bits, kind, title', [
    (0, 'cifar10', 'mah2', '4 6 8', '4', 'learned', 'MAH-2'),
    (1, 'mirflickr', 'itq', '4 6 8 10 12', '12', 'encoded', 'ITQ')])
def test_drawn_map_is_that_of_the_scores(panel, dataset, row, lengths, bits, kind, title):
  wanted = {'dataset': dataset, 'row': row, 'code_lengths': lengths, 'flags': '{}', 'bits': bits,
            'database': kind}
  with (ROOT / 'results' / 'paper' / 'scores.csv').open(newline='') as file:
    scores = [float(line['map']) for line in csv.DictReader(file) if wanted.items() <= line.items()]
  mean = sum(scores) / len(scores)
  assert len(scores) >= 5
  drawn = ElementTree.parse(FOLDER / 'map_over_bits.svg').getroot().findall(f'{SPACE}svg')[panel]
  mark, = [mark for mark in drawn if (mark.findtext(f'{SPACE}title') or '').startswith(
      f'{title}, {bits} bits: ')]
  assert mark.findtext(f'{SPACE}title') == f'{title}, {bits} bits: {mean:.4f}'
  if mark.tag == f'{SPACE}circle':
    height = float(mark.get('cy'))
  else:
    height = float(mark.get('y')) + float(mark.get('height')) / 2
  # The numbers at the axis say which MAP is drawn at this height; they stand 4 below their lines.
  levels = [(float(text.get('y')) - 4, float(text.text)) for text in drawn.iter(f'{SPACE}text')
            if re.fullmatch(r'[01]\.\d+', text.text)]
  (y0, low), (y1, high) = levels[0], levels[-1]
  assert low + (height - y0) / (y1 - y0) * (high - low) == pytest.approx(mean, abs=0.001)


def test_names_of_curves_stand_apart():
  for panel in ElementTree.parse(FOLDER / 'map_over_bits.svg').getroot().findall(f'{SPACE}svg'):
    names = [text for text in panel.iter(f'{SPACE}text')
             if re.match(r's\d|ink', text.get('class') or '')]
    heights = sorted(float(text.get('y')) for text in names)
    assert len({text.text for text in names}) == 14  # twelve methods, the control and the paper
    assert min(b - a for a, b in zip(heights, heights[1:])) >= 13.8
    assert heights[0] > 12 and heights[-1] < float(panel.get('height'))


def test_the_diagram_refuses_images_of_another_query(pictures, monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(pictures, 'QUERY', pictures.QUERY + 1)
  assert pictures.main(['diagram', f'--output={tmp_path}']) == 1
  assert 'docs/pictures.py tiles' in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_page_says_what_is_missing(pictures, monkeypatch):
  monkeypatch.setitem(sys.modules, 'playwright', None)
  with pytest.raises(errors.InputError, match=r'needs Playwright: .*requirements-browser.txt'):
    pictures.search_page(None)
  monkeypatch.setitem(sys.modules, 'playwright', type(sys)('playwright'))
  monkeypatch.setitem(sys.modules, 'playwright.sync_api', type(sys)('playwright.sync_api'))
  sys.modules['playwright'].sync_api = sys.modules['playwright.sync_api']
  monkeypatch.setattr(shutil, 'which', lambda name: None)
  with pytest.raises(errors.InputError, match='needs Chromium'):
    pictures.search_page(None)


def test_photographs_need_a_run(pictures, capsys):
  with pytest.raises(SystemExit):
    pictures.main(['neighbours'])
  assert '--photos=RUN' in capsys.readouterr().err
  with pytest.raises(SystemExit):
    pictures.main(['nonsense'])
  assert 'There is no picture nonsense' in capsys.readouterr().err
