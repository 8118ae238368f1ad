"""Networks on features: the way from features to codes, and from new images to the same codes."""

import json
import os

import jax
import numpy as np
import pytest
import toy
from PIL import Image

from mah_jax import main
from mah_jax.data import datasets
from mah_jax.data import digits
from mah_jax.models import perceptron
from mah_jax.train import loop
from mah_jax.train import trainer

FLAGS = ['--dataset=digits', '--input=features', '--hidden=32', '--code_lengths=4,8',
         '--scale_heads', '--code_init=codebook', '--num_sampled=0', '--shuffle', '--momentum=0.9',
         '--num_rounds=8', '--epochs_per_round=1', '--learning_rate=0.1', '--lr_drop_rounds=5',
         '--num_devices=1']


def _results(folder):
  return json.loads((folder / 'results.json').read_text())


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """The folder of a run on the pixels of the digits."""
  workdir = tmp_path_factory.mktemp('runs') / 'digits'
  assert main.main([*FLAGS, f'--workdir={workdir}']) == 0
  return workdir


def test_digits_are_learned_from_their_pixels(finished):
  """A nearest neighbour by pixels is right for 98 of 100 digits; a hidden layer comes near."""
  scores = _results(finished)['metrics']
  assert scores['8']['learned']['map'] > 0.9 and scores['4']['learned']['map'] > 0.8


def test_a_stopped_run_goes_on_and_is_scored_again(finished, tmp_path, capsys):
  workdir = tmp_path / 'run'
  assert main.main([*FLAGS, '--num_rounds=3', f'--workdir={workdir}']) == 0
  assert main.main([*FLAGS, f'--workdir={workdir}']) == 0
  assert 'Restored' in capsys.readouterr().out
  assert _results(workdir)['metrics'] == _results(finished)['metrics']
  (workdir / 'results.json').unlink()
  assert main.main(['--mode=evaluate', f'--workdir={workdir}', '--num_devices=1']) == 0
  assert _results(workdir)['metrics'] == _results(finished)['metrics']


def test_two_devices_agree_with_one(finished, tmp_path):
  assert main.main([*FLAGS, '--num_devices=2', f'--workdir={tmp_path}']) == 0
  for c in ('4', '8'):
    assert _results(tmp_path)['metrics'][c]['encoded']['map'] == pytest.approx(
        _results(finished)['metrics'][c]['encoded']['map'], abs=0.01)


def test_new_images_get_the_codes_of_their_features(finished, tmp_path):
  """The queries of the run, written as PNG files, have the codes that the run gave them."""
  data = datasets.load('digits', '', 0)
  folder = tmp_path / 'images'
  folder.mkdir()
  for i, row in enumerate(data.protocol.queries):
    Image.fromarray(data.images[row, :, :, 0]).save(folder / f'{i:03}.png')
  assert main.main(['--mode=encode', f'--images={folder}', f'--workdir={finished}',
                    f'--output={tmp_path / "codes"}', '--num_devices=1']) == 0
  for c in (4, 8):
    packed = np.load(tmp_path / 'codes' / f'codes_{c}.npy')
    expected = np.load(finished / 'codes' / f'queries_{c}.npy')
    np.testing.assert_array_equal(packed, np.packbits(expected > 0, axis=1))


@pytest.mark.parametrize('method', ['mah', 'daph'])
def test_features_are_standardised_by_the_database(method):
  data = toy.dataset()
  x = data.images.reshape(len(data.images), -1) / np.float32(255)
  made, state, *_ = trainer.begin(
      toy.settings(method=method, input='features', augment='none', hidden=(7,),
                   **({'code_lengths': (5,)} if method == 'daph' else {})), data,
      toy.make().devices)
  database = x[data.protocol.database]
  for name, part in state.batch_stats.items():
    np.testing.assert_allclose(part['mean'], database.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(part['deviation'], database.std(axis=0), atol=1e-5)
    kernel, bias = (np.asarray(state.params[name]['layer1'][leaf]) for leaf in ('kernel', 'bias'))
    module = perceptron.Perceptron((7,))
    got = module.apply({'params': state.params[name], 'batch_stats': part}, x[:5], train=False)
    expected = np.maximum(
        (x[:5] - database.mean(axis=0)) / database.std(axis=0) @ kernel + bias, 0)
    np.testing.assert_allclose(got, expected, atol=1e-4)
  assert len(state.batch_stats) == (2 if method == 'daph' else 1)


@pytest.mark.parametrize('num_devices', [1, 2])
def test_several_steps_in_one_call_are_the_same_steps(num_devices, monkeypatch):
  """Also where an epoch has one more step than calls hold, and its last batch is short."""
  data, outcomes = toy.dataset(), []
  flags = {'input': 'features', 'hidden': (8,), 'augment': 'none', 'batch_size': 16,
           'num_sampled': 100, 'num_rounds': 2, 'epochs_per_round': 2}
  for rows in (1, 3 * 16):
    monkeypatch.setattr(loop, 'CALL_ROWS', rows)
    made, state, *_ = trainer.begin(toy.settings(**flags), data, toy.make(num_devices).devices)
    assert made.plan.steps_per_call == max(1, rows // 16) and made.plan.steps_per_epoch == 7
    steps = []
    pauses = toy.fit(made, state, on_step=steps.append)
    assert sum(steps) == made.plan.num_steps == 28 and max(steps) == made.plan.steps_per_call
    outcomes.append((jax.device_get(pauses[-1].state.params),
                     [pause.history for pause in pauses]))
  for one, several in zip(*map(jax.tree.leaves, outcomes), strict=True):
    np.testing.assert_allclose(one, several, rtol=1e-4, atol=1e-6)


def test_a_run_without_checkpoints_keeps_codes_and_one_that_was_stopped_goes_on(
    finished, tmp_path, capsys):
  """--checkpoint_every=0 saves when it is asked to stop, and then at the end as well."""
  flags = [*FLAGS, '--checkpoint_every=0']
  whole, stopped = tmp_path / 'whole', tmp_path / 'stopped'
  assert main.main([*flags, f'--workdir={whole}']) == 0
  assert not list((whole / 'checkpoints').glob('*'))
  assert _results(whole)['metrics'] == _results(finished)['metrics']
  assert main.main([*flags, f'--workdir={whole}']) == 1
  assert 'no checkpoint to resume' in capsys.readouterr().err
  assert main.main([*FLAGS, '--num_rounds=3', f'--workdir={stopped}']) == 0  # left a checkpoint
  assert main.main([*flags, f'--workdir={stopped}']) == 0
  assert _results(stopped)['metrics'] == _results(finished)['metrics']
  newest = max(int(path.name) for path in (stopped / 'checkpoints').glob('[0-9]*'))
  assert newest == _results(stopped)['step']


def test_flat_linear_heads_on_features_are_several_runs_of_one_head():
  """Without a hidden layer flat heads share nothing, so that MAH-1 is ADSH, several times."""
  flags = {'input': 'features', 'hidden': (), 'augment': 'none', 'code_init': 'zeros',
           'num_rounds': 4, 'momentum': 0.0, 'learning_rate': 0.01}
  devices = toy.make().devices

  def codes(**changes):
    made, state, *_ = trainer.begin(toy.settings(**flags, **changes), toy.dataset(), devices)
    return jax.device_get(toy.fit(made, state)[-1].state.codes)

  together = codes(heads='flat', code_lengths=(3, 8), head_weights=(1.0, 1.0))
  for c, expected in zip((3, 8), together):
    alone, = codes(method='adsh', code_lengths=(c,))
    np.testing.assert_array_equal(alone, expected)


@pytest.fixture
def photos(tmp_path, monkeypatch):
  """A folder of digits as colour photographs in class folders."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  data, folder = digits.load(), tmp_path / 'photos'
  for i in range(60):
    name = str(data.labels[i].argmax() % 3)
    os.makedirs(folder / name, exist_ok=True)
    Image.fromarray(np.repeat(data.images[i], 3, axis=2)).resize((20, 24)).save(
        folder / name / f'{i}.png')
  return folder


def test_photographs_go_through_a_backbone_whose_weights_must_stay(photos, tmp_path, capsys):
  network = ['--backbone=compact', '--width=4', '--image_size=16', '--crop=0.8',
             '--normalize=dataset']
  common = ['--dataset=folder', f'--data_dir={photos}', '--code_lengths=4', '--batch_size=16',
            '--num_devices=1', '--num_rounds=2', '--epochs_per_round=1', '--lr_drop_rounds=']
  source, workdir, codes = tmp_path / 'source', tmp_path / 'run', tmp_path / 'codes'
  assert main.main([*common, *network, f'--workdir={source}']) == 0
  run = [*common, *network[1:4], '--input=features', '--hidden=8,6', f'--pretrained={source}',
         '--mirror', f'--workdir={workdir}']
  assert main.main(run) == 0  # which takes the backbone of the source
  assert json.loads((workdir / 'config.json').read_text())['flags']['backbone'] == 'compact'
  fitted = tmp_path / 'fitted'
  assert main.main([*common[:5], *network[1:4], '--method=itq', f'--pretrained={source}',
                    '--mirror', f'--workdir={fitted}']) == 0
  encode, encode_fitted = (['--mode=encode', f'--images={photos}', f'--workdir={folder}',
                            f'--output={codes / folder.name}', '--num_devices=1']
                           for folder in (workdir, fitted))
  for folder, arguments in ((workdir, encode), (fitted, encode_fitted)):
    assert main.main(arguments) == 0
    names = json.loads((folder / 'codes' / 'names.json').read_text())
    files = list(map(json.loads, (codes / folder.name / 'files.jsonl').read_text().splitlines()))
    packed = np.load(codes / folder.name / 'codes_4.npy')
    for side in ('queries', 'database') if folder == fitted else ('queries',):
      expected = np.packbits(np.load(folder / 'codes' / f'{side}_4.npy') > 0, axis=1)
      rows = [files.index(name) for name in names[side]]
      np.testing.assert_array_equal(packed[rows], expected)
  assert main.main([*common, *network, '--num_rounds=3', f'--workdir={source}']) == 0  # others now
  for mode in (encode, ['--mode=evaluate', f'--workdir={workdir}', '--num_devices=1'], run,
               encode_fitted):
    capsys.readouterr()
    assert main.main(mode) == 1
    assert 'restore them' in capsys.readouterr().err


@pytest.mark.parametrize('flags, words', [
    (['--input=images', '--hidden=3'], '--hidden has no effect'),
    (['--augment=shift'], '--augment has no effect'),
    (['--hidden=0'], '--hidden=0 must be at least 1'),
])
def test_flags_that_do_not_go_together_are_refused(flags, words, tmp_path, capsys):
  assert main.main([*FLAGS, *flags, f'--workdir={tmp_path / "run"}']) == 2
  assert words in capsys.readouterr().err
