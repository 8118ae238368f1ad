"""What every method must do, on toy data: one case for each, and a case for each method."""

import jax
import numpy as np
import pytest
import toy

from mah_jax import config
from mah_jax import main
from mah_jax import methods
from mah_jax.evaluation import metrics

CLASSES = 5
# Least MAP on 400 toy points of five classes: of 5-bit codes (deep) and of 8-bit codes (shallow).
DEEP = {'mah': 0.9}
SHALLOW = {'lsh': 0.25, 'itq': 0.5, 'sdh': 0.9, 'ksh': 0.9, 'lfh': 0.5, 'cosdish': 0.8}
LEARNS = {'sdh', 'lfh', 'cosdish'}  # methods that solve for database codes
OPTIONS = {'anchors': 100, 'labelled': 200, 'columns': 64}


def test_every_method_has_a_case():
  assert set(DEEP) == set(methods.METHODS)
  assert set(SHALLOW) == set(methods.SHALLOW)


@pytest.fixture(scope='module')
def points():
  """Features of five classes, never negative, as after a ReLU; labels; the last 100 are queries."""
  rng = np.random.default_rng(0)
  kind = np.arange(500) % CLASSES
  centres = rng.normal(0, 2, (CLASSES, 32))
  features = np.maximum(centres[kind] + rng.normal(0, 1, (500, 32)), 0).astype(np.float32)
  return features, np.eye(CLASSES, dtype=np.uint8)[kind]


def _codes(name, points, c, seed=0, options=OPTIONS):
  features, labels = points
  method = methods.SHALLOW[name](config.Config(method=name, **options))
  state = method.fit(features[:400], labels[:400], c, jax.random.key(seed))
  learned = method.learned(state)
  return (np.asarray(method.encode(state, features[400:])),
          np.asarray(method.encode(state, features[:400])),
          None if learned is None else np.asarray(learned))


@pytest.mark.parametrize('name', SHALLOW)
def test_codes_of_shallow_methods_are_codes_and_find_their_class(name, points):
  queries, encoded, learned = _codes(name, points, 8)
  assert (learned is not None) == (name in LEARNS)
  _, labels = points
  for codes, rows in ((queries, 100), (encoded, 400), (learned, 400)):
    if codes is not None:
      assert codes.shape == (rows, 8) and codes.dtype == np.int8
      assert set(np.unique(codes)) == {-1, 1}
  database = encoded if learned is None else learned
  score = metrics.evaluate(queries, database, labels[400:], labels[:400])['map']
  assert score > SHALLOW[name]


@pytest.mark.parametrize('name', SHALLOW)
def test_a_key_decides_everything(name, points):
  one, same, other = (_codes(name, points, 4, seed) for seed in (1, 1, 2))
  np.testing.assert_array_equal(one[0], same[0])
  np.testing.assert_array_equal(one[1], same[1])
  assert not np.array_equal(one[1], other[1])


@pytest.mark.parametrize('name', SHALLOW)
def test_points_are_encoded_one_by_one_as_all_at_once(name, points):
  """The training statistics are used, not those of the points that are encoded."""
  features, labels = points
  method = methods.SHALLOW[name](config.Config(method=name, **OPTIONS))
  state = method.fit(features[:400], labels[:400], 6, jax.random.key(0))
  together = np.asarray(method.encode(state, features[400:]))
  alone = np.concatenate([np.asarray(method.encode(state, features[i:i + 1]))
                          for i in range(400, 420)])
  np.testing.assert_array_equal(alone, together[:20])


@pytest.mark.parametrize('name', SHALLOW)
def test_rows_with_several_labels_or_none_are_no_obstacle(name, points):
  features, labels = points
  labels = labels.copy()
  labels[::7, 0] = 1
  labels[5] = 0
  queries, *_ = _codes(name, (features, labels), 4)
  assert set(np.unique(queries)) == {-1, 1}


@pytest.mark.parametrize('name', DEEP)
def test_deep_methods_learn_pause_after_each_round_and_find_their_class(name):
  made = toy.make(num_rounds=10, num_sampled=0, width=8, method=name)
  pauses = toy.fit(made)
  assert [pause.round for pause in pauses] == list(range(10))
  assert all(pause.finished for pause in pauses)
  losses = [pause.metrics['loss'] for pause in pauses]
  assert losses[-1] < 0.8 * losses[0]
  assert toy.scores(made, pauses[-1].state)[1]['map'] > DEEP[name]


def test_a_shallow_run_averages_seeds_and_writes_its_folder(tmp_path, capsys):
  assert main.main(['--method=itq', '--dataset=digits', '--code_lengths=4,6', '--num_seeds=3',
                    f'--workdir={tmp_path / "run"}', '--num_devices=1']) == 0
  printed = capsys.readouterr().out
  assert '+-' in printed and 'encoded' in printed and 'learned' not in printed
  assert np.load(tmp_path / 'run' / 'codes' / 'database_6.npy').shape == (1697, 6)


@pytest.mark.parametrize('flags, words', [
    (['--method=mah', '--num_seeds=2'], '--num_seeds'),
    (['--method=itq', '--mode=evaluate'], '--mode=evaluate'),
    (['--method=itq', '--code_lengths=65', '--dataset=digits'], '65 bits'),
    (['--method=ksh', '--anchors=0'], '--anchors=0'),
])
def test_wrong_use_gives_one_sentence(flags, words, tmp_path, capsys):
  assert main.main([*flags, f'--workdir={tmp_path / "run"}', '--num_devices=1']) == 2
  error = capsys.readouterr().err
  assert words in error and error.count('\n') == 1
