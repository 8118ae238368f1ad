"""Tables over several runs: means over seeds, rows told apart, runs that cannot be compared."""

import json
import sys

import pytest

from mah_jax import config
from mah_jax import report
from mah_jax.runs import table


def _run(folder, maps, *, protocol='p' * 64, kind='learned', deviation=None, **flags):
  folder.mkdir()
  lengths = [int(c) for c in maps]
  if flags.get('method', 'mah') == 'mah':
    flags = {'head_weights': (1.0,) * len(lengths)} | flags
  made = config.make(code_lengths=tuple(lengths), **flags)
  (folder / 'config.json').write_text(json.dumps({'flags': config.to_json(made)}))
  metrics = {c: {kind: {'map': value}, 'codebook': {'distinct': 9}} for c, value in maps.items()}
  for c in metrics if deviation else ():
    metrics[c]['deviation'] = {kind: {'map': deviation}}
  (folder / 'results.json').write_text(json.dumps({
      'dataset': 'digits', 'metrics': metrics, 'seeds': [0, 1, 2] if deviation else [made.seed],
      'protocol': {'id': protocol, 'queries': 100, 'database': 1697, 'chance': 0.1,
                   'ceiling': 1.0}}))
  return str(folder)


def _rows(printed):
  return [[cell.strip() for cell in line.strip('|').split('|')]
          for line in printed.splitlines() if line.startswith('|')]


def test_seeds_are_averaged_and_lengths_of_single_runs_stand_in_one_row(tmp_path, capsys):
  folders = [_run(tmp_path / 'a', {'4': 0.5, '8': 0.9}, seed=0),
             _run(tmp_path / 'b', {'4': 0.7, '8': 0.9}, seed=1),
             _run(tmp_path / 'c', {'8': 0.8}, method='adsh'),
             _run(tmp_path / 'd', {'12': 0.6}, method='adsh'),
             _run(tmp_path / 'e', {'8': 0.4}, method='itq', kind='encoded', deviation=0.05)]
  assert report.main(folders) == 0
  printed = capsys.readouterr().out
  assert _rows(printed) == [
      ['method', 'database', '4 bits', '8 bits', '12 bits'], ['---'] * 5,
      ['mah', 'learned', '0.600 +-0.141 (2; 9)', '0.900 +-0.000 (2; 9)', ''],
      ['adsh', 'learned', '', '0.800 (1; 9)', '0.600 (1; 9)'],
      ['itq', 'encoded', '', '0.400 +-0.050 (3; 9)', '']]
  assert 'random order has map 0.1000' in printed


def test_the_ranking_by_outputs_stands_in_no_table(tmp_path, capsys):
  folder = _run(tmp_path / 'a', {'4': 0.5})
  assert report.main([folder]) == 0
  before, path = capsys.readouterr().out, tmp_path / 'a' / 'results.json'
  results = json.loads(path.read_text())
  results['metrics']['4']['learned']['outputs'] = {'map': 0.75}
  path.write_text(json.dumps(results))
  assert report.main([folder]) == 0
  assert capsys.readouterr().out == before
  assert table.by_outputs(results) == [
      'Ranked by the outputs of each query in place of its code: map 0.7500 (4 bits learned).']
  results['metrics']['4']['deviation'] = {'learned': {'map': 0.2, 'outputs': {'map': 0.125}}}
  results['metrics']['8'] = {'encoded': {'map': 0.5, 'outputs': {'map': 0.25}},
                             'weighted': {'map': 0.5}}
  sentence, = table.by_outputs(results)
  assert sentence.endswith('0.7500 +-0.1250 (4 bits learned), 0.2500 (8 bits encoded).')


def test_a_method_run_in_two_ways_has_two_rows(tmp_path, capsys):
  folders = [_run(tmp_path / 'a', {'4': 0.5}, heads='flat'), _run(tmp_path / 'b', {'4': 0.7})]
  assert report.main(folders) == 0
  assert [row[0] for row in _rows(capsys.readouterr().out)[2:]] == [
      'mah --heads=flat', 'mah --heads=cascaded']


def test_a_run_evaluated_in_two_ways_has_two_rows(tmp_path, capsys):
  folders = [_run(tmp_path / name, {'4': value}) for name, value in (('a', 0.5), ('b', 0.7))]
  results = json.loads((tmp_path / 'b' / 'results.json').read_text())
  (tmp_path / 'b' / 'results.json').write_text(json.dumps(results | {'binarize': 'nearest'}))
  for name in 'ab':  # of a version that did not have the flag yet
    saved = json.loads((tmp_path / name / 'config.json').read_text())
    del saved['flags']['binarize']
    (tmp_path / name / 'config.json').write_text(json.dumps(saved))
  assert report.main(folders) == 0
  assert [row[0] for row in _rows(capsys.readouterr().out)[2:]] == [
      'mah --binarize=sign', 'mah --binarize=nearest']


def test_groups_of_lengths_and_weights_of_heads_make_other_runs(tmp_path, capsys):
  folders = [_run(tmp_path / 'a', {'4': 0.5, '8': 0.6}),
             _run(tmp_path / 'b', {'8': 0.9, '12': 0.9}),
             _run(tmp_path / 'c', {'4': 0.7, '8': 0.6}, head_weights=(2.0, 1.0))]
  assert report.main(folders) == 0
  rows = _rows(capsys.readouterr().out)[2:]
  assert len(rows) == 3 and all('+-' not in cell for row in rows for cell in row)
  assert 'mah --code_lengths=8,12 --head_weights=1,1' in [row[0] for row in rows]


@pytest.mark.parametrize('deviation', [None, 0.1])
def test_equal_seeds_and_averages_of_averages_are_refused(deviation, tmp_path, capsys):
  folders = [_run(tmp_path / name, {'4': 0.5}, method='itq', deviation=deviation) for name in 'ab']
  assert report.main(folders) == 2
  assert 'the same seeds' in capsys.readouterr().err


def test_runs_on_different_queries_are_refused(tmp_path, capsys):
  folders = [_run(tmp_path / 'a', {'4': 0.5}), _run(tmp_path / 'b', {'4': 0.7}, protocol='q' * 64)]
  assert report.main(folders) == 2
  assert 'cannot be compared' in capsys.readouterr().err


@pytest.mark.parametrize('content', [
    None, '{', '{"dataset": 3}', '[]',
    '{"dataset": "d", "metrics": {}, "seeds": [0], "protocol": {"id": "p"}}',
    '{"dataset": "d", "metrics": [], "seeds": [0], "protocol": {"id": "p"}}'])
def test_a_folder_without_results_is_named(content, tmp_path, capsys):
  folder = _run(tmp_path / 'a', {'4': 0.5})
  if content is None:
    (tmp_path / 'a' / 'results.json').unlink()
  else:
    (tmp_path / 'a' / 'results.json').write_text(content)
  assert report.main([folder]) == 1
  error = capsys.readouterr().err
  assert str(folder) in error and error.count('\n') == 1


def test_no_folder_at_all_explains_the_command(capsys):
  with pytest.raises(SystemExit, match='2'):
    report.main([])
  assert 'RUN_FOLDER' in capsys.readouterr().err


@pytest.fixture
def folders(tmp_path):
  """Three runs: one with a log of its rounds, one of an earlier version, one of another method."""
  made = [_run(tmp_path / 'a', {'4': 0.5, '8': 0.9}, seed=0),
          _run(tmp_path / 'b', {'4': 0.7, '8': 0.8}, seed=1),
          _run(tmp_path / 'c', {'8': 0.8}, method='adsh')]
  for name in 'ac':
    path = tmp_path / name / 'results.json'
    results = json.loads(path.read_text())
    for kinds in results['metrics'].values():
      kinds['learned']['precision@10'] = 0.25
    path.write_text(json.dumps(results | {'k': 10, 'timing': {'fit_seconds': 3.5}}))
  lines = [{'round': r, 'metrics': {c: {'learned': {'map': r / 10}} for c in '48'}} for r in (1, 2)]
  (tmp_path / 'a' / 'metrics.jsonl').write_text(''.join(f'{json.dumps(line)}\n' for line in lines))
  return made


def test_the_page_has_the_table_and_drawings_without_matplotlib(
    folders, tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  target = tmp_path / 'page.html'
  assert report.main([*folders, f'--html={target}']) == 0
  text, table = target.read_text(), capsys.readouterr().out
  assert f'Written to {target}.' in table
  for line in table.splitlines():
    for cell in line.strip('| ').split(' | ') if line.startswith('|') else ():
      assert cell == '---' or cell in text
  for title in ('map', 'map over rounds, 4 bits', 'map over rounds, 8 bits'):
    assert f'aria-label="{title}"' in text
  assert 'aria-label="precision@k"' in text  # of the only run all of whose lengths have it
  assert '<td>3.5</td>' in text and text.count('<polyline') == 5


def test_long_names_are_numbered_in_the_page(tmp_path):
  folders = [_run(tmp_path / name, {'4': 0.5}, momentum=momentum, learning_rate=0.1 + momentum,
                  heads=heads) for name, momentum, heads in (('a', 0.5, 'flat'),
                                                             ('b', 0.25, 'cascaded'))]
  target = tmp_path / 'page.html'
  assert report.main([*folders, f'--html={target}']) == 0
  text = target.read_text()
  for name, rate in (('mah 1', '0.6'), ('mah 2', '0.35')):
    assert f'<td>{name}</td><td>learned</td>' in text
    assert text.index(f'--learning_rate={rate}') > text.rindex(f'<td>{name}</td>')
