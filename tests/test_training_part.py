"""Runs that train on a part of the database: what they see, what they score, what is kept."""

import json
import shutil

import numpy as np
import pytest
import toy

from mah_jax import main
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.data import splits
from mah_jax.train import backbone
from mah_jax.train import trainer

DEEP = ['--input=features', '--hidden=16', '--num_sampled=0', '--num_rounds=2',
        '--epochs_per_round=2', '--learning_rate=0.05', '--batch_size=64', '--lr_drop_rounds=']
# Methods that encode, learn and assign database codes, and one on features that learns them.
METHODS = {'dpsh': [*DEEP, '--eta=0.1'],
           'adsh': [*DEEP, '--code_init=codebook'],
           'classifier': [*DEEP, '--momentum=0.9'],
           'sdh': ['--anchors=100']}


def _run(method, workdir, *more):
  return main.main([f'--method={method}', '--dataset=digits', '--protocol=digits-500-training',
                    '--code_lengths=8', '--num_devices=1', f'--workdir={workdir}',
                    *METHODS[method], *more])


def _results(workdir):
  return json.loads((workdir / 'results.json').read_text())


def _codes(workdir):
  return [np.load(workdir / 'codes' / f'{side}_8.npy') for side in ('queries', 'database')]


@pytest.fixture(scope='module', params=METHODS)
def finished(request, tmp_path_factory):
  """A method and the folder of a run of it."""
  workdir = tmp_path_factory.mktemp('runs') / request.param
  assert _run(request.param, workdir) == 0
  return request.param, workdir


def test_the_whole_database_is_encoded_and_scored(finished):
  method, workdir = finished
  results, (queries, database) = _results(workdir), _codes(workdir)
  assert {name: results['protocol'][name] for name in ('queries', 'database', 'training')} == {
      'queries': 100, 'database': 1697, 'training': 500}
  assert set(results['metrics']['8']) == {'encoded', 'codebook'}
  assert results['metrics']['8']['encoded']['map'] > 0.2  # a random order has 0.1
  assert (len(queries), len(database)) == (100, 1697)
  codes = {name for name in storage.read_npz(workdir / 'codes.npz') if name.endswith('_8')}
  assert codes - {'outputs_8'} == {'queries_8', 'encoded_8'}


def test_it_is_scored_again_the_same(finished, tmp_path, capsys):
  """By the checkpoint, where there is one, and by the codes alone."""
  method, workdir = finished
  before = _results(workdir)
  shutil.copytree(workdir, tmp_path / 'all')
  kept = tmp_path / 'kept'
  kept.mkdir()
  for name in ('config.json', 'results.json', 'codes.npz'):
    shutil.copy(workdir / name, kept)
  for folder in (tmp_path / 'all', kept):
    (folder / 'results.json').write_text(json.dumps(before | {'metrics': {}}))
    capsys.readouterr()
    assert main.main(['--mode=evaluate', f'--workdir={folder}', '--num_devices=1']) == 0
    assert ('500 of 1,697 database rows are for training; the database is encoded.'
            in capsys.readouterr().out)
    again = _results(folder)
    assert (again['metrics'], again['protocol']) == (before['metrics'], before['protocol'])


def test_nothing_but_the_rows_for_training_is_learned_from(finished, tmp_path, monkeypatch):
  """Wrong labels of all other rows change no code, other images only their own."""
  method, workdir = finished
  load, split = datasets.load, None

  def poisoned(*arguments, **options):
    nonlocal split
    data = load(*arguments, **options)
    split = data.protocol
    others = np.setdiff1d(np.arange(len(data.labels)), split.training)
    data.labels[others] = np.roll(data.labels[others], 1, axis=1)
    changed = np.setdiff1d(split.database, split.training)[::2]
    data.images[changed] = 255 - data.images[changed]
    return data

  monkeypatch.setattr(datasets, 'load', poisoned)
  assert _run(method, tmp_path) == 0
  same = np.ones(len(split.database), bool)
  same[np.isin(split.database, np.setdiff1d(split.database, split.training)[::2])] = False
  assert same.sum() == 500 + 598
  (queries, database), (got_queries, got_database) = _codes(workdir), _codes(tmp_path)
  np.testing.assert_array_equal(got_queries, queries)
  np.testing.assert_array_equal(got_database[same], database[same])
  assert (got_database[~same] != database[~same]).any()
  assert _results(tmp_path)['metrics'] != _results(workdir)['metrics']


def test_a_stopped_run_goes_on_to_the_same_end(tmp_path):
  assert _run('adsh', tmp_path / 'once') == 0
  assert _run('adsh', tmp_path / 'twice', '--num_rounds=1') == 0
  assert _run('adsh', tmp_path / 'twice') == 0
  for one, two in zip(_codes(tmp_path / 'once'), _codes(tmp_path / 'twice')):
    np.testing.assert_array_equal(one, two)


def test_another_part_is_another_run(tmp_path, capsys):
  assert _run('adsh', tmp_path) == 0
  capsys.readouterr()
  assert _run('adsh', tmp_path, '--protocol=digits-100-queries') == 2
  assert '--protocol' in capsys.readouterr().err


@pytest.fixture
def small_backbone(monkeypatch):
  monkeypatch.setattr(backbone, 'make', lambda config, platform: toy.Backbone())


def _part(**changes) -> trainer.Trainer:
  """A Trainer on the toy data of which 20 rows of each class are for training."""
  data = toy.dataset()
  data = data._replace(protocol=splits.with_training_per_class(data.protocol, data.labels, 20))
  return toy.make(data=data, augment='none', **changes)


def test_training_rows_are_numbers_in_the_part(small_backbone):
  made = _part()
  data, training = made.data, made.data.protocol.training
  assert made.plan.num_rows == made.plan.num_sampled == len(made.labels) == 100
  np.testing.assert_array_equal(made.labels, data.labels[training])
  rows = np.array([99, 0, 7] + [1] * 61)
  fed = np.asarray(next(made.feed_database([rows])))
  np.testing.assert_array_equal(fed.reshape(64, 8, 8, 1), data.images[training[rows]])
  state = made.new_state()
  for got, expected in zip(made.database_outputs(state, np.arange(100)),
                           made.outputs(state, training)):
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_codes_are_solved_for_the_part_and_the_database_is_encoded(small_backbone):
  made = _part()
  state = toy.fit(made)[-1].state
  assert [b.shape for b in state.codes] == [(100, 3), (100, 5)]
  for codes in made.codes(state, always_encode=False):
    assert codes.learned is None and len(codes.encoded) == 350
  nearest = _part(binarize='nearest')
  for codes, held in zip(nearest.codes(state), state.codes):
    words = set(map(tuple, np.asarray(held).tolist()))
    assert set(map(tuple, codes.encoded.tolist())) <= words


def test_features_are_standardised_by_the_part():
  data = _part().data
  x = data.images.reshape(len(data.images), -1) / np.float32(255)
  _, state, *_ = trainer.begin(
      toy.settings(input='features', augment='none', hidden=(7,)), data, toy.make().devices)
  part, = state.batch_stats.values()
  np.testing.assert_allclose(part['mean'], x[data.protocol.training].mean(axis=0), atol=1e-5)
  np.testing.assert_allclose(part['deviation'], x[data.protocol.training].std(axis=0), atol=1e-5)
