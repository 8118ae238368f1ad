"""What every method must do, on toy data: one case for each, and a case for each method."""

import functools
import json

import jax
import numpy as np
import pytest
import toy

from mah_jax import deep
from mah_jax import errors
from mah_jax import experiment
from mah_jax import main
from mah_jax import methods
from mah_jax import progress
from mah_jax import run
from mah_jax import runfolder
from mah_jax import shallow
from mah_jax.evaluation import metrics
from mah_jax.train import checkpoint
from mah_jax.train import step

# Flags of each method, and the least MAP that its longest codes reach on five classes.
CASES = {
    'mah': ({}, 0.9),
    'adsh': ({'code_lengths': (5,)}, 0.9),
    'dpsh': ({'code_lengths': (5,), 'eta': 1.0, 'learning_rate': 0.01}, 0.35),
    'drsch': ({'code_lengths': (3, 5)}, 0.7),
    'daph': ({'code_lengths': (5,), 'epochs_per_round': 2, 'learning_rate': 0.4,
              'quantization': 1.0, 'agreement': 0.1}, 0.6),
    'classifier': ({}, 0.9),
    'lsh': ({'code_lengths': (3, 8)}, 0.25),
    'itq': ({'code_lengths': (3, 8)}, 0.5),
    'sdh': ({'code_lengths': (3, 8), 'anchors': 100}, 0.9),
    'ksh': ({'code_lengths': (3, 8), 'anchors': 100, 'labelled': 200}, 0.9),
    'lfh': ({'code_lengths': (3, 8), 'columns': 64}, 0.5),
    'cosdish': ({'code_lengths': (3, 8), 'columns': 64}, 0.8),
}
LEARNS = {'mah', 'adsh', 'classifier', 'sdh', 'lfh', 'cosdish'}  # have database codes of their own
RESAMPLES = {'mah', 'adsh', 'classifier'}  # the others train on their first sample
DEEP = [name for name in CASES if name in methods.DEEP]
SHALLOW = [name for name in CASES if name in methods.SHALLOW]


@pytest.fixture(autouse=True, scope='module')
def small_backbone():
  """Methods differ in what they build on a backbone, not in the backbone."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(experiment, 'backbone', lambda config: toy.Backbone())
    yield


def _settings(name, **changes):
  return toy.settings(**({'method': name, 'num_sampled': 0, 'num_rounds': 10}
                         | CASES[name][0] | changes))


def _make(name, num_devices=1, **changes):
  flags = {'method': name, 'num_sampled': 0, 'num_rounds': 1} | CASES[name][0]
  return toy.make(num_devices, **(flags | changes))


def test_every_method_has_a_case():
  assert set(CASES) == methods.DEEP.keys() | methods.SHALLOW.keys()


@functools.cache
def _fitted(name, folder, seed=0):
  """Codes of the toy data by a method, as a run makes them."""
  config, data = _settings(name, seed=seed), toy.dataset()
  if name in methods.SHALLOW:
    method, x = shallow.make(config), data.images.reshape(len(data.images), -1) / np.float32(255)
  else:
    devices = step.Devices(step.pick_devices(1), config.batch_size)
    method = deep.make(config, data, devices, runfolder.RunFolder(folder / name),
                       progress.StopRequest('stopped'))
    x = np.arange(len(data.images))
  assert method.reads == ('features' if name in methods.SHALLOW else 'images')
  codes, seconds = run.fit_codes(method, data, x, seed)
  assert seconds > 0
  return config, data, codes


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('contract')


@pytest.mark.parametrize('name', CASES)
def test_codes_are_codes_and_find_their_class(name, folder):
  config, data, codes = _fitted(name, folder)
  split = data.protocol
  assert [own.queries.shape[1] for own in codes] == list(config.code_lengths)
  for own in codes:
    assert (own.learned is not None) == (name in LEARNS)
    for array, rows in ((own.queries, split.queries), (own.encoded, split.database),
                        (own.database, split.database)):
      assert array.shape == (len(rows), own.queries.shape[1]) and array.dtype == np.int8
      assert set(np.unique(array)) == {-1, 1}
  labels = data.labels[split.queries], data.labels[split.database]
  assert metrics.evaluate(codes[-1].queries, codes[-1].database, *labels)['map'] > CASES[name][1]


@pytest.mark.parametrize('name', SHALLOW)
def test_a_seed_decides_everything(name, folder):
  one, other = _fitted(name, folder)[2], _fitted(name, folder, seed=1)[2]
  same = _fitted.__wrapped__(name, folder)[2]
  for own, again in zip(one, same):
    np.testing.assert_array_equal(own.queries, again.queries)
    np.testing.assert_array_equal(own.database, again.database)
  assert any(not np.array_equal(own.encoded, changed.encoded)
             for own, changed in zip(one, other))


@pytest.mark.parametrize('name', SHALLOW)
def test_points_are_encoded_one_by_one_as_all_at_once(name):
  """The training statistics are used, not those of the points that are encoded."""
  data = toy.dataset()
  x = data.images.reshape(len(data.images), -1) / np.float32(255)
  method = shallow.make(_settings(name))
  state, _ = method.fit(x[:300], data.labels[:300], 0)
  together = method.encode(state, x[300:])[-1]
  alone = np.concatenate([method.encode(state, x[i:i + 1])[-1] for i in range(300, 320)])
  np.testing.assert_array_equal(alone, together[:20])


@pytest.mark.parametrize('name', CASES)
def test_rows_with_several_labels_or_none_are_no_obstacle(name):
  data = toy.dataset()
  labels = data.labels.copy()
  labels[::7, 0] = 1
  labels[5::40] = 0
  if name in methods.SHALLOW:
    x = data.images.reshape(len(data.images), -1) / np.float32(255)
    method = shallow.make(_settings(name))
    state, _ = method.fit(x, labels, 0)
    assert set(np.unique(method.encode(state, x)[-1])) == {-1, 1}
  else:
    made = _make(name, labels=labels)
    pause = toy.fit(made)[-1]
    assert np.isfinite(pause.metrics['loss'])


@pytest.mark.parametrize('name', DEEP)
def test_a_stopped_run_goes_on_to_the_same_end(name, tmp_path):
  """Stopped in the middle of a round, saved, restored on new objects: bit-identical."""
  whole = toy.fit(_make(name, num_rounds=2))[-1].state
  stop_at = 8
  answers = iter([False] * (stop_at - 1) + [True])
  pause = toy.fit(_make(name, num_rounds=2), on_step=answers.__next__)[-1]
  saved = checkpoint.Checkpoints(tmp_path, max_to_keep=2)
  saved.save(pause.state, {})
  saved.wait()
  made = _make(name, num_rounds=2)
  state = saved.restore(stop_at, made.new_state())
  saved.close()
  resumed = toy.fit(made, state, history=pause.history)[-1].state
  for x, y in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
    np.testing.assert_array_equal(jax.device_get(_raw(x)), jax.device_get(_raw(y)))


def _raw(x):
  return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x


@pytest.mark.parametrize('name', DEEP)
def test_rows_are_drawn_anew_in_each_round_or_once(name):
  made = _make(name, num_sampled=64, num_rounds=2)
  feed, rows = made.feed_database, []
  made.feed_database = lambda batches: feed(rows.append(set(row)) or row for row in batches)
  toy.fit(made)
  assert (rows[0] != rows[-1]) == (name in RESAMPLES)


@pytest.mark.parametrize('name', DEEP)
def test_four_devices_agree_with_one(name):
  """The last batch is short: what a loss sees of the batch is that of all devices."""
  one, four = (toy.fit(_make(name, d))[-1] for d in (1, 4))
  for tree in ('params', 'batch_stats', 'memory'):
    for x, y in zip(jax.tree.leaves(getattr(one.state, tree)),
                    jax.tree.leaves(getattr(four.state, tree)), strict=True):
      np.testing.assert_allclose(x, y, atol=2e-4)
  assert one.metrics == pytest.approx(four.metrics, rel=1e-4)


@pytest.mark.parametrize('name', DEEP)
def test_a_loss_that_is_not_finite_stops_the_run(name):
  with pytest.raises(errors.InputError, match='lower --learning_rate'):
    toy.fit(_make(name, learning_rate=1e35, num_rounds=3))


def test_a_shallow_run_averages_seeds_and_writes_its_folder(tmp_path, capsys):
  assert main.main(['--method=itq', '--dataset=digits', '--code_lengths=4,6', '--num_seeds=3',
                    f'--workdir={tmp_path / "run"}', '--num_devices=1']) == 0
  printed = capsys.readouterr().out
  assert '+-' in printed and 'encoded' in printed and 'learned' not in printed
  assert 'A random order has map 0.1' in printed and 'the labels themselves 1.0000' in printed
  codes = np.load(tmp_path / 'run' / 'codes' / 'database_6.npy')  # of the first seed
  assert codes.shape == (1697, 6)
  assert main.main(['--method=itq', '--dataset=digits', '--code_lengths=4,6',
                    f'--workdir={tmp_path / "one"}', '--num_devices=1']) == 0
  np.testing.assert_array_equal(codes, np.load(tmp_path / 'one' / 'codes' / 'database_6.npy'))
  results = tmp_path / 'run' / 'results.json'
  before = json.loads(results.read_text())
  assert before['metrics']['4']['deviation']['encoded']['map'] > 0
  results.write_text(json.dumps(before | {'metrics': {}}))  # to be found anew, for all seeds
  evaluate = ['--mode=evaluate', f'--workdir={tmp_path / "run"}']
  assert main.main(evaluate) == 0
  assert json.loads(results.read_text()) == before
  (tmp_path / 'run' / 'codes.npz').unlink()
  capsys.readouterr()
  assert main.main(evaluate) == 1
  assert 'codes.npz' in capsys.readouterr().err


@pytest.mark.parametrize('flags, words', [
    (['--method=mah', '--num_seeds=2'], '--num_seeds'),
    (['--method=itq', '--mode=encode', '--images=x'], '--mode=encode'),
    (['--method=itq', '--code_lengths=65', '--dataset=digits'], '65 bits'),
    (['--method=ksh', '--anchors=0'], '--anchors=0'),
    (['--method=adsh', '--code_lengths=4,8'], 'one of --code_lengths=4,8'),
    (['--method=dpsh', '--code_lengths=8', '--eta=-1'], '--eta=-1'),
    (['--method=drsch', '--margin=nan'], '--margin=nan'),
    (['--method=mah', '--head_weights='], '--head_weights='),
    (['--method=daph', '--code_lengths=8', '--towers=three'], 'three'),
])
def test_wrong_use_gives_one_sentence(flags, words, tmp_path, capsys):
  assert main.main([*flags, f'--workdir={tmp_path / "run"}', '--num_devices=1']) == 2
  error = capsys.readouterr().err
  assert words in error and error.count('\n') == 1
