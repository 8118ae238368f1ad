"""The page of a run, of made-up results: whole, half-way, without labels, with many classes."""

import errno
import html.parser
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import toy

from mah_jax import config
from mah_jax import report
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.data import images as images_lib
from mah_jax.data import splits
from mah_jax.evaluation import scores
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import results
from mah_jax.runs import run_page

HOSTILE = ('<script>alert(1)</script>', '[x](javascript:alert(1))', '" onmouseover="alert(1)',
           "`'&amp;\udc80", '**b**|<b>')
MOST_BYTES = 2_000_000


def _codes(rng, rows, c, words):
  """Codes of rows of classes: the class's codeword with noise."""
  flips = np.where(rng.random((len(rows), c)) < 0.1, -1, 1)
  return (words[rows][:, :c] * flips).astype(np.int8)


def _write(path, data, lengths=(3, 5), seeds=(0,), rounds=3, **flags):
  """Fills a run folder as a run does, with made-up codes; returns it."""
  rng, folder = np.random.default_rng(0), folder_lib.RunFolder(str(path))
  kind = (data.labels.argmax(axis=1) if data.is_labelled else
          rng.integers(0, 4, len(data.labels)))
  words = rng.choice([-1, 1], (kind.max() + 1, max(lengths)))
  split = data.protocol
  codes = [[scores.Codes(_codes(rng, kind[split.queries], c, words), None,
                         _codes(rng, kind[split.database], c, words)) for c in lengths]
           for _ in seeds]
  made = config.make(**({'method': 'itq', 'dataset': 'folder', 'code_lengths': tuple(lengths),
                         'workdir': str(path)} | flags))
  storage.write_json(folder.path / 'config.json', {
      'flags': config.to_json(made), 'versions': {'jax': '1'}, 'devices': ['cpu']})
  metrics = [results.score(made, data, of_seed, None) for of_seed in codes]
  progress = {'step': 10, 'round': rounds, 'code_updates': 1} if rounds else {}
  results.write(folder, made, data, results.Outcome(
      codes, metrics, list(seeds), {'fit_seconds': 61.0, 'seconds': 70.0}, progress))
  for r in range(1, rounds + 1):
    folder.add_round({'round': r, 'losses': {'loss': 1 / r, 'semantic/3': 2 / r},
                      'metrics': metrics[0], 'seconds': float(r), 'images_per_second': 7.0,
                      'learning_rate': 0.1})
  return folder


class _Reader(html.parser.HTMLParser):
  """Collects what a browser would see and load."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.attributes, self.text, self.titles = [], [], '', []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs

  def handle_data(self, data):
    if self.tags[-1:] == ['h2'] and data.strip():
      self.titles.append(data)
    self.text += data


def _read(folder, data):
  return _Reader(run_page.to_html(run_page.read(folder, data)))


@pytest.fixture
def data():
  """The toy data as files with hostile names, of classes with hostile names."""
  made = toy.dataset(rows=100)
  return made._replace(class_names=HOSTILE, names=[f'{HOSTILE[i % 5]}/{HOSTILE[i % 4]} {i}'
                                                   for i in range(100)])


def test_a_page_has_everything_and_needs_no_other_file(tmp_path, data):
  folder = _write(tmp_path / 'run', data, method='mah', head_weights=(1.0, 1.0))
  run_page.write(folder, data)
  text = folder.report.read_text()
  read = _Reader(text)
  assert read.titles == ['Scores', 'Rounds', 'Curves', 'Codewords', 'Confusions', 'Bits',
                         'Pictures', 'Settings']
  content = json.loads(folder.results.read_text())
  for scored in content['metrics'].values():
    assert f'{scored["encoded"]["map"]:.4f}' in read.text
    assert f'({scored["encoded"]["map_low"]:.4f}..{scored["encoded"]["map_high"]:.4f})' in read.text
  for name in ('chance', 'ceiling'):
    assert f'{content["protocol"][name]:.4f}' in read.text
  assert 'Training of 3 rounds took 01:01.' in read.text
  assert '--code_lengths=3,5' in read.text and 'Rounds whose database' not in read.text
  assert read.tags.count('img') == 2 * run_page.SHOWN * (1 + run_page.ACROSS)
  # Curves: map, two losses, rate, speed, two of precision; bars and bits of both lengths.
  assert read.tags.count('polyline') == 3 + 2 + 2 + 4
  assert text.count('class="one"') == 2
  loaded = [value for name, value in read.attributes if name in ('src', 'href', 'xlink:href')]
  assert all(value.startswith(('#', 'data:image/')) for value in loaded)
  assert len(text.encode()) < MOST_BYTES


def test_hostile_names_stay_text(tmp_path, data):
  folder = _write(tmp_path / 'run', data, rounds=0, data_dir='`x` [y](javascript:z)')
  read = _read(folder, data)
  assert 'script' not in read.tags
  assert not [name for name, value in read.attributes
              if name.startswith('on') or 'javascript:' in (value or '')]
  for name in HOSTILE[:3]:
    assert name in read.text
  assert '--data_dir=`x` [y](javascript:z)' in read.text


def test_the_worst_queries_are_those_of_the_least_precision(tmp_path, data):
  folder = _write(tmp_path / 'run', data, rounds=0)
  split = data.protocol
  wrong = 3  # a query whose code is opposite to all codes of its class
  database = np.load(folder.codes / 'database_3.npy')
  labels = data.labels[split.database]
  queries = np.load(folder.codes / 'queries_3.npy')
  own = data.labels[split.queries[wrong]].argmax()
  database[labels[:, own] > 0] = 1
  database[labels[:, own] == 0] = -1
  queries[:], queries[wrong] = 1, -1
  queries[data.labels[split.queries].argmax(axis=1) != own] = -1
  np.save(folder.codes / 'database_3.npy', database)
  np.save(folder.codes / 'queries_3.npy', queries)
  page = run_page.page(run_page.read(folder, data))
  blocks = next(section.blocks for section in page.sections if section.title == 'Pictures')
  strips = [block for block in blocks if hasattr(block, 'pictures')]
  assert len(strips) == 2 * run_page.SHOWN
  first, worst = strips[wrong], strips[run_page.SHOWN]
  assert worst == first
  assert [picture.good for picture in worst.pictures] == [None] + [False] * run_page.ACROSS
  assert str(split.queries[wrong]) in worst.pictures[0].lines[-1]


def test_half_way_the_page_has_what_is_there(tmp_path, data):
  folder = _write(tmp_path / 'run', data, method='mah', head_weights=(1.0, 1.0), num_rounds=9)
  folder.results.unlink()
  with open(folder.path / 'metrics.jsonl', 'a') as file:
    file.write('{"round": 4, "los')  # which the run is writing now
  for known in (None, data):
    read = _read(folder, known)
    assert 'The run has not ended: round 3 of 9 was scored after 00:03.' in read.text
    assert read.titles == ['Scores', 'Rounds', 'Codewords', 'Confusions', 'Settings']
    assert ('label 4' in read.text) == (known is None)
    assert ('labels themselves' in read.text) == (known is not None)
  (folder.path / 'metrics.jsonl').unlink()
  read = _read(folder, None)
  assert 'no round was scored yet' in read.text and read.titles == ['Settings']


def test_a_run_that_goes_on_says_so(tmp_path, data):
  folder = _write(tmp_path / 'run', data, method='mah', head_weights=(1.0, 1.0))
  line = folder.rounds()[-1]
  folder.add_round(line | {'round': 4})
  assert 'It goes on: it has scored round 4 since' in _read(folder, data).text


def test_the_settings_are_those_of_the_evaluation(tmp_path, data):
  folder = _write(tmp_path / 'run', data, rounds=0)
  assert '--mirror=True' not in _read(folder, data).text
  content = json.loads(folder.results.read_text())
  storage.write_json(folder.results, content | {'mirror': True})
  assert '--mirror=True' in _read(folder, data).text


def test_several_seeds_and_fits_without_rounds(tmp_path, data):
  folder = _write(tmp_path / 'run', data, seeds=(0, 1, 2), num_seeds=3, rounds=0)
  read = _read(folder, data)
  deviation = json.loads(folder.results.read_text())['metrics']['3']['deviation']['encoded']['map']
  assert f'+-{deviation:.4f}' in read.text
  assert 'means of 3 seeds' in read.text and 'Fitting took 01:01.' in read.text
  assert 'Rounds' not in read.titles and 'Curves' in read.titles


def test_without_labels_there_are_codes_and_pictures(tmp_path, data):
  split = splits.database_only(100, 'folder-unlabelled')
  data = data._replace(labels=np.zeros((100, 0), np.uint8), class_names=(), protocol=split)
  read = _read(_write(tmp_path / 'run', data, rounds=0), data)
  assert read.titles == ['Scores', 'Bits', 'Pictures', 'Settings']
  assert 'have no labels' in read.text
  assert read.tags.count('img') == run_page.SHOWN * (1 + run_page.ACROSS)


def test_several_labels_are_compared_with_chance(tmp_path, data):
  labels = data.labels.copy()
  labels[::3, 0] = 1
  data = data._replace(labels=labels)
  read = _read(_write(tmp_path / 'run', data, rounds=0), data)
  assert 'than in the whole database' in read.text and 'perfect run' not in read.text
  assert 'no label' not in read.text
  assert '<b>' in read.text  # the last of several names of labels


def test_pictures_need_the_images_of_the_run(tmp_path, data):
  folder = _write(tmp_path / 'run', data, rounds=0)
  other = data._replace(protocol=splits.balanced(data.labels, 10, 1, 'other'))
  for known in (None, other):
    assert 'Pictures' not in _read(folder, known).titles and 'Curves' in _read(folder, known).titles

  def read(number):
    raise OSError('gone')
  data = data._replace(images=images_lib.Encoded(read, data.names))
  shown = _read(folder, data)
  assert 'img' not in shown.tags and 'Pictures' in shown.titles and '✓ distance 0' in shown.text


def test_a_page_of_many_classes_and_bits_stays_below_two_megabytes(tmp_path):
  rng = np.random.default_rng(0)
  rows, classes = 2000, 300
  labels = np.eye(classes, dtype=np.uint8)[np.arange(rows) % classes]
  data = datasets.Dataset(
      rng.integers(0, 256, (rows, 64, 64, 3), np.uint8)[:1].repeat(rows, axis=0), labels,
      tuple(f'{i} ' + 'long name ' * 30 for i in range(classes)),
      names=[f'{"x" * 200}{i}' for i in range(rows)], protocol=splits.balanced(labels, 1, 0, 'p'))
  folder = _write(tmp_path / 'run', data, lengths=(2, 4, 8, 16, 32, 64, 128, 256), method='mah',
                  head_weights=(1.0,) * 8, rounds=2)
  lines = folder.rounds()
  for r in range(3, 1500):
    lines.append(lines[0] | {'round': r})
  page = run_page.to_html(run_page.read(folder, data)._replace(rounds=lines))
  assert 500_000 < len(page.encode()) < MOST_BYTES
  assert 'first 128 bits' not in page and f'{run_page.CLASSES} of {classes} classes' in page


def test_codes_of_many_bits_are_drawn_in_part(tmp_path, data):
  read = _read(_write(tmp_path / 'run', data, lengths=(3, 200), rounds=0), data)
  assert '200 bits: share of 1, first 128 bits' in read.text


@pytest.mark.parametrize('name', ['database_3.npy', 'names.json', 'query_labels.npy'])
def test_damaged_codes_are_one_sentence(name, tmp_path, data, capsys):
  folder = _write(tmp_path / 'run', data, rounds=0)
  (folder.codes / name).write_bytes(b'{')
  assert report.main([str(folder.path), f'--html={tmp_path / "page.html"}']) == 1
  error = capsys.readouterr().err
  assert str(folder.codes) in error and error.count('\n') == 1
  assert not (tmp_path / 'page.html').exists()


def test_the_command_writes_the_page_of_one_run(tmp_path, data, capsys):
  folder = _write(tmp_path / 'run', data, rounds=0)
  target = tmp_path / 'page.html'
  assert report.main([str(folder.path), f'--html={target}']) == 0
  assert f'Written to {target}.' in capsys.readouterr().out
  read = _Reader(target.read_text())
  assert 'Curves' in read.titles and 'Pictures' not in read.titles  # the dataset is not there
  shutil.rmtree(folder.codes)
  content = json.loads(folder.results.read_text())
  del content['metrics']['3']['encoded']['map_low']  # an earlier version
  storage.write_json(folder.results, content)
  assert report.main([str(folder.path), f'--html={target}']) == 1
  assert 'earlier version' in capsys.readouterr().err
  assert report.main([str(pathlib.Path(tmp_path)), f'--html={target}']) == 1
  assert 'no config.json' in capsys.readouterr().err


def test_a_page_replaces_an_earlier_one_and_nothing_else(tmp_path, data, capsys):
  folder = _write(tmp_path / 'run', data, rounds=1)
  for _ in range(2):
    run_page.write(folder, data)
    assert 'shows the run as a page' in capsys.readouterr().out
  folder.report.write_text('my own notes')
  run_page.write(folder, data)
  assert 'is not written' in capsys.readouterr().out
  assert folder.report.read_text() == 'my own notes'


def test_results_stand_where_the_disk_has_no_room_for_the_page(tmp_path, data, capsys, monkeypatch):
  folder = _write(tmp_path / 'run', data, rounds=1)

  def full(target, text):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

  monkeypatch.setattr(storage, 'write_text', full)
  run_page.write(folder, data)
  assert 'No space left on device' in capsys.readouterr().out
