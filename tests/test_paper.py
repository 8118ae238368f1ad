"""The paper's experiments: their list, their verdicts, and a miniature of all of them."""

import csv
import itertools
import json
import re
import sys

import pytest

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import storage
from mah_jax.evaluation import intervals
from mah_jax.paper import __main__ as command
from mah_jax.paper import experiments
from mah_jax.paper import published
from mah_jax.paper import running
from mah_jax.paper import scores as scores_lib
from mah_jax.paper import sections
from mah_jax.paper import verdicts
from mah_jax.runs import results as results_lib

# Few lengths, and the same in several experiments, so that few programs are compiled.
MINIATURE = experiments.Study(
    datasets=('digits',), seeds=2, lengths=(4, 6), long_lengths=(6,), local=(4, (6, 8)),
    macro=(4, (6, 8)), weights=(2, 4), group=(4, 6, 8), start_lengths=(4,),
    literature=(('digits', 'digits-500-training'),), literature_length=6,
    validation='digits-500-training', chosen_length=6)
TINY = ['--num_rounds=2', '--epochs_per_round=2', '--hidden=8', '--num_sampled=100',
        '--batch_size=50']


@pytest.mark.parametrize('track', command.TRACKS)
def test_every_run_of_the_list_has_valid_settings(track):
  """Seeds and datasets aside, which change nothing about what is valid, each once."""
  cells = {cell._replace(seed=0) for cell in experiments.cells(
      experiments.Study(seeds=1), command.experiments_of(track))}
  once = {(cell.row, cell.lengths, cell.flags): cell for cell in sorted(cells)}
  for cell in once.values():
    config = command.config_of(cell, track, ['--workdir=x'])
    assert (config.code_lengths, config.dataset, config.seed) == (cell.lengths, cell.dataset, 0)
    settings = config_lib.to_json(config)
    for name, value in cell.flags:
      shown = settings[name]
      if isinstance(shown, float):
        assert float(value) == shown, cell
      else:
        assert value == (','.join(f'{x:g}' for x in shown) if isinstance(shown, list)
                         else str(shown)), cell


def test_runs_have_names_of_their_own_and_seeds_come_in_turn():
  cells = experiments.cells(experiments.Study(), list(experiments.EXPERIMENTS))
  assert len({cell.name for cell in cells}) == len(cells)
  seeds = [cell.seed for cell in cells]
  assert seeds == sorted(seeds) and set(seeds) == set(range(10))
  few = [cell for cell in cells if cell.seed >= 5]  # the headline's rows have twice as many
  assert {cell.row for cell in few} == {'mah1', 'mah2', 'adsh'}
  assert {cell.lengths[0] for cell in few} == {4}


def test_the_table_of_the_paper_has_a_run_for_each_of_its_numbers():
  study = experiments.Study()
  cells = set(experiments.table1(study))
  for dataset, rows in published.TABLE_1.items():
    for row, numbers in rows.items():
      for bits, _ in zip(published.LENGTHS, numbers, strict=True):
        lengths = experiments.ROWS[row].lengths(study, bits)
        assert bits in lengths
        assert {experiments.Cell(row, dataset, lengths, seed) for seed in range(5)} <= cells


@pytest.mark.parametrize('ends, outcome', [
    ([(0.1, 0.2), (0.01, 0.3)], verdicts.HOLDS),
    ([(0.1, 0.2), (-0.01, 0.3)], verdicts.OPEN),
    ([(0.1, 0.2), (-0.3, -0.01)], verdicts.FAILS),
    ([(-0.1, 0.2), (-0.3, -0.01)], verdicts.FAILS),
    ([(0.1, 0.2), None], verdicts.OPEN),
    ([], verdicts.OPEN)])
def test_a_sentence_holds_when_all_intervals_are_above_zero(ends, outcome):
  found = {str(i): end and intervals.Interval(sum(end) / 2, (end[1] - end[0]) / 2, 5)
           for i, end in enumerate(ends)}
  assert verdicts.all_above('It is so.', found).outcome == outcome


def test_most_is_more_than_half():
  above, below, open_ = (intervals.Interval(mean, 0.1, 5) for mean in (1.0, -1.0, 0.0))

  def outcome(*found):
    return verdicts.mostly_above('Mostly.', dict(enumerate(found))).outcome

  assert outcome(above, above, below) == verdicts.HOLDS
  assert outcome(above, below, below) == verdicts.FAILS
  assert outcome(above, below) == outcome(above, open_) == verdicts.OPEN


@pytest.mark.parametrize('arguments, code, text', [
    (['--only=table9'], 2, 'there is no table9'),
    (['--seeds=0'], 2, 'must be at least 1'),
    (['--data_dir=/nonexistent'], 1, 'mah_jax: No CIFAR-10')])
def test_wrong_arguments_are_one_sentence(arguments, code, text, capsys):
  assert command.main(arguments) == code
  assert text in capsys.readouterr().err


@pytest.fixture(scope='module')
def made(tmp_path_factory, request):
  """The miniature: all experiments on the digits, two seeds and two rounds."""
  pytest.importorskip('matplotlib', reason='Matplotlib, an extra, is not installed')
  root = tmp_path_factory.mktemp('paper')
  patch = pytest.MonkeyPatch()
  request.addfinalizer(patch.undo)
  patch.setattr(experiments, 'TRIED', {'adsh': [(('learning_rate', '0.1'),)]})
  scores = scores_lib.Scores(root / 'runs')

  def make_config(cell):
    row = experiments.ROWS[cell.row]
    return command.config_of(cell, 'features', [
        f'--workdir={root / "runs" / cell.name}', '--pretrained=', '--image_size=0',
        '--num_devices=1', *([] if row.file == 'shallow' else TINY),
        *(['--anchors=50'] if cell.row in ('sdh', 'ksh') else [])])

  def make():
    command.make(MINIATURE, list(experiments.EXPERIMENTS), make_config, scores_lib.Scores(
        root / 'runs'), root / 'out', {'nuswide': 'NUS-WIDE is left out here.'})

  make()
  return root, scores, make


def test_the_miniature_has_every_table_and_figure(made):
  root, _, _ = made
  text = (root / 'out/index.html').read_text()
  for title in ('Table 1', 'Table 2', 'Table 3', 'Ours: what decides few bits',
                'Ours: how settings were chosen', 'NUS-WIDE is left out here.'):
    assert title in text
  for name in ('figure2', 'figure3', 'figure4', 'figure5', 'figure6', 'figure7_map',
               'figure7_time', 'figure8'):
    assert f'<figure id="{name}"><svg' in text
    assert (root / f'out/figures/{name}.svg').exists()
  assert 'nan' not in re.sub(r'<svg.*?</svg>', '', text, flags=re.DOTALL)
  markdown = (root / 'out/README.md').read_text()
  told = re.findall(r'\| (holds|does not hold|cannot be told here) \|\n', markdown)
  assert text.count('<table>') == markdown.count('| --- |\n')
  assert markdown.count('**Holds**') + markdown.count('**Does not hold**') + markdown.count(
      '**Cannot be told here**') == sum(text.count(f'<b>{word}</b>') for word in (
          'Holds', 'Does not hold', 'Cannot be told here')) == len(told) > 20


def test_the_numbers_are_those_of_the_runs(made):
  root, scores, _ = made
  with open(root / 'out/scores.csv') as file:
    lines = list(csv.DictReader(file))
  cells = experiments.cells(MINIATURE, list(experiments.EXPERIMENTS))
  assert {(line['row'], line['flags'], line['seed']) for line in lines} == {
      (cell.row, json.dumps(dict(cell.flags)), str(cell.seed)) for cell in cells}
  for line in lines[::50]:
    cell = experiments.Cell(line['row'], line['dataset'],
                            tuple(map(int, line['code_lengths'].split())), int(line['seed']),
                            tuple(json.loads(line['flags']).items()))
    saved = storage.read_json(root / 'runs' / cell.name / 'results.json')['metrics']
    assert float(line['map']) == pytest.approx(saved[line['bits']][line['database']]['map'],
                                               abs=1e-6)
  material = sections.Material(MINIATURE, scores, {})
  values = [scores.results(experiments.Cell('adsh', 'digits', (4,), seed))['metrics']['4'][
      'learned']['map'] for seed in range(4)]
  mean = intervals.of(values)
  assert f'{mean.mean:.3f} ±{mean.half:.3f}' in str(sections.table1(material))


def test_kept_codes_are_scored_anew_to_the_same_numbers(made):
  root, _, _ = made
  kept = root / 'out/runs/digits/mah2_4-6-8_seed0'
  before = storage.read_json(kept / 'results.json')
  from mah_jax import main
  assert main.main(['--mode=evaluate', f'--workdir={kept}']) == 0
  after = storage.read_json(kept / 'results.json')['metrics']
  for c, kind in itertools.product('468', ('learned', 'encoded')):
    assert 'map' in after[c][kind].pop('outputs')  # which the many runs do without
  assert after == before['metrics']


def test_a_second_call_makes_no_run_and_a_lost_run_is_made_again(made, monkeypatch):
  root, scores, make = made
  report = (root / 'out/README.md').read_bytes()
  lost = scores.run(experiments.Cell('classifier', 'digits', (4, 6), 1))
  before = results_lib.read(lost)['metrics']
  monkeypatch.setattr('mah_jax.paper.running._run', None)  # which would fail if it were called
  make()
  assert (root / 'out/README.md').read_bytes() == report
  monkeypatch.undo()
  monkeypatch.setattr(experiments, 'TRIED', {'adsh': [(('learning_rate', '0.1'),)]})
  for path in (lost.results, lost.archive):
    path.unlink()
  make()
  assert results_lib.read(lost)['metrics'] == before
  assert (root / 'out/README.md').read_bytes() == report


def test_a_finished_run_with_other_settings_is_refused(made):
  root, _, _ = made
  cell = experiments.Cell('adsh', 'digits', (4,), 0)
  folder = f'--workdir={root / "runs" / cell.name}'
  same = [folder, '--pretrained=', '--image_size=0', *TINY]
  assert running.unfinished([cell], lambda cell: command.config_of(cell, 'features', same)) == []
  for change in ('--learning_rate=0.5', '--num_rounds=3'):
    with pytest.raises(errors.UsageError, match=f'{change}.*Remove it'):
      running.unfinished([cell], lambda cell, change=change: command.config_of(
          cell, 'features', [*same, change]))


def test_only_a_loss_that_is_not_finite_lets_the_other_runs_go_on(monkeypatch, tmp_path, capsys):
  cells = [experiments.Cell('adsh', 'digits', (4,), seed) for seed in (0, 1)]

  def make_config(cell):
    return command.config_of(cell, 'features', [f'--workdir={tmp_path / cell.name}'])

  def fail(error):
    def run(*arguments):
      raise error
    monkeypatch.setattr(running, '_run', run)

  fail(errors.NotFiniteError('The loss is not finite.'))
  running.run_all(cells, make_config)
  assert capsys.readouterr().out.count('The loss is not finite.') == 2
  fail(errors.InputError('The weights are missing.'))
  with pytest.raises(errors.InputError, match='weights are missing'):
    running.run_all(cells, make_config)


def test_without_matplotlib_nothing_is_run(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  monkeypatch.setattr(running, 'run_all', None)  # which would fail if it were called
  with pytest.raises(errors.InputError, match='pip install matplotlib'):
    command.make(MINIATURE, ['table2'], lambda cell: command.config_of(
        cell, 'features', [f'--workdir={tmp_path / cell.name}']),
                 scores_lib.Scores(tmp_path), tmp_path / 'out', {})
