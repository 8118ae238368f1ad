"""README and docs: commands parse, files, flags and names exist, numbers are those of results."""

import argparse
import csv
import importlib
import importlib.util
import json
import pathlib
import re
import shlex
import statistics
import types

import pytest

from mah_jax import config
from mah_jax import errors
from mah_jax import flags
from mah_jax import main
from mah_jax import methods
from mah_jax import options
from mah_jax import report
from mah_jax.data import fetch
from mah_jax.evaluation import intervals
from mah_jax.paper import __main__ as paper
from mah_jax.paper import published
from mah_jax.runs import table

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / 'README.md'
PAGES = sorted([README, ROOT / 'BUILD_NOTES.md', *ROOT.glob('docs/*.md'),
                *ROOT.glob('results/**/*.md'), ROOT / 'benchmarks/README.md'])
PROGRAMS = {'mah_jax.data.fetch': fetch.main, 'mah_jax.report': report.main,
            'mah_jax.paper': paper.main}
OTHERS = {'ip', 'mkdir', 'echo', 'tensorboard'}  # programs of others
FOLDERS = 'mah_jax|launch|docs|results|tests|benchmarks'
# Flags of other programs that the pages name.
FOREIGN = {'flagfile', 'help', 'version', 'data-binary', 'bind-to', 'ntasks-per-node', 'logdir',
           'xla_force_host_platform_device_count', 'xla_cpu_experimental_ynn_fusion_type'}


def _name(page):
  return page.relative_to(ROOT).as_posix()


def _blocks(page):
  """The fenced blocks of a page: language and lines."""
  found, lines, language = [], None, ''
  for line in page.read_text().splitlines():
    if line.startswith('```') and lines is None:
      lines, language = [], line[3:]
    elif line.startswith('```'):
      found.append((language, lines))
      lines = None
    elif lines is not None:
      lines.append(line)
  assert lines is None, f'{page} has a block without an end'
  return found


def _inline(page):
  """The texts between single backquotes, outside of blocks."""
  text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.M | re.S)
  return re.findall(r'`([^`\n]+)`', text)


def _is_command(line):
  words = [word for word in line.split() if not re.fullmatch(r'[A-Z_]+=\S*', word)]
  return bool(words) and words[0] in {'python', 'make', 'pip', 'curl', 'srun', 'mpirun', *OTHERS}


def _commands():
  """Every command of every page and of the first lines of launch files, with its place."""
  found = []
  for page in PAGES:
    lines = [line for language, lines in _blocks(page) if not language for line in lines]
    lines += [line.strip() for line in page.read_text().splitlines() if line.startswith('    ')]
    lines += _inline(page)
    found += [(_name(page), line) for line in lines if _is_command(line)]
  for file in sorted(ROOT.glob('launch/*.cfg')):
    found += [(_name(file), line.lstrip('# ')) for line in file.read_text().splitlines()
              if line.startswith('# python -m')]
  return sorted(set(found))


class _Parsed(Exception):
  """A program has read its arguments."""


def _targets():
  return set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), flags=re.M))


def _check(command, monkeypatch):
  words = shlex.split(command, comments=True)
  while re.fullmatch(r'[A-Za-z_]+=.*', words[0]):
    words.pop(0)
  if words[0] in ('srun', 'mpirun', 'ip') and 'python' in words:
    words = words[words.index('python'):]
  if words[0] == 'make':
    assert {word for word in words[1:] if '=' not in word} <= _targets()
  elif words[0] == 'pip':
    for file in (words[i + 1] for i, word in enumerate(words) if word == '-r'):
      assert (ROOT / file).is_file()
  elif words[0] == 'curl':
    serve = (ROOT / 'mah_jax/search/serve.py').read_text()
    path, = re.findall(r'http://[^/]+(/[a-z/]*)', command)
    assert f"'{path}'" in serve
  elif words[:3] == ['python', '-m', 'pytest']:
    assert all((ROOT / word).exists() for word in words[3:] if not word.startswith('-'))
  elif words[:2] == ['python', '-m']:
    arguments = [word for word in words[3:] if word not in ('...', '[flags]')]
    if words[2] == 'mah_jax.main':
      if not {'--help', '--version'} & set(arguments):
        flags.from_arguments(arguments)
    else:
      parse = argparse.ArgumentParser.parse_args

      def stop(parser, given=None):
        parse(parser, given)
        raise _Parsed
      monkeypatch.setattr(argparse.ArgumentParser, 'parse_args', stop)
      with pytest.raises(_Parsed):
        PROGRAMS[words[2]](arguments)
  elif words[0] == 'python':
    assert all((ROOT / word).is_file() for word in words[1:2])


@pytest.mark.parametrize('place, command', _commands())
def test_a_command_parses(place, command, monkeypatch, tmp_path):
  del place
  monkeypatch.chdir(tmp_path)  # so that no run folder of this checkout is read
  if 'pcah' in command:  # the method that docs/adding_a_method.md adds
    monkeypatch.setitem(methods.METHODS, 'pcah', _added_method().SPEC)
  _check(command, monkeypatch)


def test_wrong_commands_would_be_noticed(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  for argument in ('--gama=1', '--flagfile=launch/no.cfg', '--mode=serach'):
    with pytest.raises(errors.UsageError):
      _check(f'python -m mah_jax.main {argument}', monkeypatch)
  for command in ('make nothing', 'pip install -r requirements-no.txt', 'python benchmarks/no.py',
                  'curl http://127.0.0.1:8000/api/find'):
    with pytest.raises(AssertionError):
      _check(command, monkeypatch)
  with pytest.raises(SystemExit):
    _check('python -m mah_jax.data.fetch cifar11', monkeypatch)


def _known_flags():
  """Names of flags: those of the program, of the other programs, and of benchmarks and docs."""
  names = set(config.all_fields()) | FOREIGN
  names |= {f'no{name}' for name, field in config.all_fields().items()
            if isinstance(field.default, bool)}
  for file in [*ROOT.glob('benchmarks/*.py'), *ROOT.glob('docs/*.py'),
               *(ROOT / f'mah_jax/{name}' for name in (
                   'data/fetch.py', 'report.py', 'paper/__main__.py'))]:
    names |= set(re.findall(r'--([a-z_]+)', file.read_text()))
  return names


@pytest.mark.parametrize('page', PAGES, ids=_name)
def test_flags_that_a_page_names_exist(page):
  fields = config.all_fields()
  text = page.read_text()
  assert set(re.findall(r'(?<![\w-])--([a-z][a-z_-]*)', text)) <= _known_flags()
  for name, value in re.findall(r'`--([a-z_]+)=([^`\s]+)`', text):
    if name in fields and options.choices(fields[name]) and not value.isupper():
      assert value in options.choices(fields[name]), f'--{name}={value}'


@pytest.mark.parametrize('page', PAGES, ids=_name)
def test_files_and_names_that_a_page_names_exist(page):
  for text in _inline(page):
    for path in re.findall(rf'(?<![\w/.-])(?:{FOLDERS})/[\w./*-]*', text):
      path = re.sub(r'[A-Z]{3,}\w*(?=[./]|$)', '*', path) if 'README' not in path else path
      path = re.sub(r'_(METHOD|NAME)', '_*', path)
      assert path.endswith('/*') or list(ROOT.glob(path.rstrip('/.'))), path
    for file in re.findall(r'^(?:requirements[\w-]*\.txt|[A-Z_]+\.md|Makefile)$', text):
      assert (ROOT / file).exists() or page.parent.joinpath(file).exists(), file
    for name in re.findall(r'^mah_jax(?:\.\w+)+', text):
      _resolve(name)


def _resolve(name):
  """A module, or something in one, by its dotted name."""
  parts = name.split('.')
  for end in range(len(parts), 0, -1):
    try:
      value = importlib.import_module('.'.join(parts[:end]))
    except ModuleNotFoundError:
      continue
    for part in parts[end:]:
      value = getattr(value, part)
    return value
  raise AssertionError(name)


def _anchors(page):
  """What links may point to in a page, as GitHub names headings."""
  return {re.sub(r'[^\w\- ]', '', line.lstrip('# ').lower()).replace(' ', '-')
          for line in page.read_text().splitlines() if line.startswith('#')}


@pytest.mark.parametrize('page', PAGES, ids=_name)
def test_links_lead_somewhere(page):
  for target in re.findall(r'\]\(([^)\s]+)\)', page.read_text()):
    if target.startswith('http'):
      continue
    path, _, anchor = target.partition('#')
    file = page.parent / path if path else page
    assert file.exists(), target
    if anchor:
      assert anchor in _anchors(file), target


def test_readme_is_short_and_links_to_all_docs():
  lines = README.read_text().splitlines()
  assert len(lines) <= 180
  assert max(len(line) for line in lines if not line.startswith('|')) <= 120
  for page in ROOT.glob('docs/*.md'):
    assert f'(docs/{page.name})' in README.read_text(), page


def test_pictures_are_shown():
  shown = {target for page in PAGES for target in re.findall(
      r'!\[[^\]]+\]\((?:docs/)?([^)\s]+)\)', page.read_text())}
  drawn = {path.relative_to(ROOT / 'docs').as_posix() for kind in ('svg', 'png')
           for path in ROOT.glob(f'docs/**/*.{kind}')}
  assert drawn - {'pictures/tiles.png'} <= shown  # tiles.png has the images of the diagram


def _rows(page):
  """The rows of all tables of a page, each with the head of its table: cells, cells."""
  found, head = [], None
  for line in page.read_text().splitlines():
    if not line.startswith('|'):
      head = None
      continue
    cells = [cell.strip() for cell in line.strip().strip('|').split('|')]
    if head is None:
      head = cells
    elif not set(line) <= set('|-: '):
      found.append((head, cells))
  return found


def _scored(page):
  """Rows of tables that link to run folders: (head, cells, contents of their results.json)."""
  for head, cells in _rows(page):
    folders = [page.parent / link for link in re.findall(r'\]\(([^)\s]+)\)', ' '.join(cells))]
    results = [json.loads((folder / 'results.json').read_text()) for folder in folders
               if (folder / 'results.json').exists()]
    if results:
      yield head, cells, results


def _check_scores(head, cells, results):
  """Compares the numbers of a row with results.json, and returns how many they are."""
  kind = next(kind for kind in ('assigned', 'learned', 'encoded', 'weighted')
              if re.search(rf'\b{kind}\b', ' '.join(cells)))
  count = 0
  for title, cell in zip(head, cells, strict=True):
    bits = re.search(r'(\d+) bits', title)
    number = re.match(r'\**(\d\.(\d+))\**(?: ±(\d\.\d+))?', cell)
    if not bits or not number:
      continue
    values = [result['metrics'][bits[1]][kind]['map'] for result in results]
    digits = len(number[2])
    assert number[1] == f'{statistics.mean(values):.{digits}f}', (cells, values)
    if number[3]:
      assert number[3] == f'{intervals.of(values).half:.{digits}f}', (cells, values)
    count += 1
  return count


def test_kept_runs_have_flags_of_this_version_and_can_be_scored_again():
  kept = [path.parent for path in ROOT.glob('results/**/config.json')
          if (path.parent / 'codes.npz').exists()]
  for folder in kept:
    made = flags.from_arguments(['--mode=evaluate', f'--workdir={folder}'])
    assert not made.data_dir.startswith('/') and (folder / 'results.json').exists()
  assert len(kept) > 40


def test_numbers_of_result_tables_are_those_of_results():
  counts = {page: sum(_check_scores(*row) for row in _scored(page)) for page in PAGES}
  assert counts[README] >= 9  # MAH-2, the control and COSDISH at three lengths


def test_a_wrong_number_would_be_noticed():
  head, cells, results = next(_scored(README))
  wrong = [re.sub(r'0\.(\d)', lambda found: f'0.{(int(found[1]) + 1) % 10}', cell)
           if re.match(r'\**0\.', cell) else cell for cell in cells]
  assert wrong != cells
  with pytest.raises(AssertionError):
    _check_scores(head, wrong, results)


def test_readme_has_the_papers_numbers():
  (head, cells), = [row for row in _rows(README) if row[1][0].startswith('paper')]
  del head
  found = [float(cell.strip('*')) for cell in cells if re.match(r'\**0\.\d', cell)]
  assert found == [pytest.approx(percent / 100) for percent in published.BEST]


def test_readme_shows_the_lines_that_the_quickstart_prints():
  results = json.loads((ROOT / 'results/quickstart/results.json').read_text())
  printed = table.table(results).splitlines()
  shown = next(lines for _, lines in _blocks(README) if lines[0].startswith('bits '))
  assert [line.rstrip() for line in shown[:4]] == [
      line.rstrip() for line in [printed[0], *(x for x in printed if ' learned ' in x)]]
  assert f'{results["protocol"]["chance"]:.4f}' in shown[4]


def test_the_short_table_of_the_paper_is_that_of_its_scores():
  with open(ROOT / 'results/paper/scores.csv') as file:
    lines = [line for line in csv.DictReader(file) if line['flags'] == '{}']
  for head, cells in _rows(ROOT / 'docs/paper.md'):
    name = re.match(r'MAH-\d|ADSH|COSDISH|classifier', cells[0])[0].lower().replace('-', '')
    for dataset, title, cell in zip(('cifar10', 'mirflickr'), head[1:], cells[1:]):
      bits = re.findall(r'\d+(?=,| bits)', title)
      for c, number in zip(bits, cell.split(', '), strict=True):
        values = [float(line['map']) for line in lines
                  if line['dataset'] == dataset and line['row'] == name and line['bits'] == c
                  and line['database'] in ('learned', 'assigned')
                  and _is_of_table_1(line, name, c)]
        assert values and number == f'{statistics.mean(values):.3f}', (name, dataset, c)


def _is_of_table_1(line, name, c):
  """Whether a line belongs to Table 1, whose MAH codes are the shortest of {j, j + 2, j + 4}."""
  if not name.startswith('mah'):
    return True
  j = int(c)
  return re.findall(r'\d+', line['code_lengths']) == [str(j), str(j + 2), str(j + 4)]


def test_the_tables_of_hard_cases_are_those_of_their_runs():
  folder = ROOT / 'results/hard_cases'
  path = ROOT / 'benchmarks/hard_cases.py'
  spec = importlib.util.spec_from_file_location('hard_cases', path)
  hard_cases = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(hard_cases)
  made = hard_cases.read(folder / 'scores.jsonl')
  assert (folder / 'tables.md').read_text() == hard_cases.tables(made)
  means = {(case, method): statistics.mean(
      made[case, method, seed]['8']['encoded'] for seed in range(5))
           for case in hard_cases.CASES for method in hard_cases.METHODS}
  rows = list(_rows(folder / 'README.md'))
  assert len(rows) == len(hard_cases.CASES)
  for head, cells in rows:
    shown = [cell.strip('*') for cell in cells[1:]]
    assert any(shown == [f'{means[case, method]:.3f}' for method in head[1:]]
               for case in hard_cases.CASES), cells[0]


def _added_method():
  """The method that docs/adding_a_method.md writes, as a module."""
  code, = [lines for language, lines in _blocks(ROOT / 'docs/adding_a_method.md')
           if language == 'python']
  module = types.ModuleType('pcah')
  exec('\n'.join(code), module.__dict__)
  return module


def test_the_method_that_the_docs_add_runs_and_is_scored(tmp_path, monkeypatch):
  monkeypatch.setitem(methods.METHODS, 'pcah', _added_method().SPEC)
  command, = [line for language, lines in _blocks(ROOT / 'docs/adding_a_method.md')
              if not language for line in lines]
  monkeypatch.chdir(tmp_path)
  assert main.main(shlex.split(command)[3:]) == 0
  results = json.loads((tmp_path / 'runs/pcah/results.json').read_text())
  # A random order has 0.104; directions of most variance must tell digits apart better than that.
  assert results['metrics']['8']['encoded']['map'] > 0.3
