"""Heads that learn from features first: the network starts where they end, and runs resume."""

import json

import jax
import numpy as np
import pytest
import random_weights
import toy

from mah_jax import codebook
from mah_jax import main
from mah_jax.data import pipeline
from mah_jax.methods import confusion
from mah_jax.methods import scaling
from mah_jax.models import heads
from mah_jax.train import trainer

NETWORK = ['--dataset=digits', '--width=8', '--image_size=0', '--crop=1.0', '--normalize=dataset',
           '--code_lengths=4,8', '--code_init=codebook', '--scale_heads', '--batch_size=64',
           '--num_sampled=0', '--epochs_per_round=1', '--shuffle', '--momentum=0.9',
           '--lr_drop_rounds=', '--num_devices=1', '--hold_codes_rounds=9']
HEADS_FIRST = [*NETWORK, '--code_init=alike', '--head_rounds=6', '--head_learning_rate=0.01',
               '--optimizer=adam', '--batch_norm=fixed', '--learning_rate=0.003', '--num_rounds=3']


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  """The folder of a run whose backbone the others take."""
  folder = tmp_path_factory.mktemp('runs') / 'source'
  assert main.main([*NETWORK, '--backbone=compact', '--num_rounds=2', '--learning_rate=0.1',
                    f'--workdir={folder}']) == 0
  return folder


def _results(folder):
  return json.loads((folder / 'results.json').read_text())


@pytest.mark.parametrize('module', [
    heads.FlatHeads((3, 7)), heads.CascadedHeads((3, 7)), heads.LinearHead(4),
    heads.WeightedBits(5)], ids=lambda module: type(module).__name__)
def test_folded_heads_make_the_same_of_features_as_they_are(module):
  """The longest of the heads has as many bits as features, so that shapes tell nothing."""
  x = random_weights.uniform('x', (5, 7), 0.0, 3.0)
  scale = scaling.Scaling(random_weights.uniform('mean', (7,), -1.0, 1.0),
                          random_weights.uniform('deviation', (7,), 0.5, 2.0))
  params = module.init(jax.random.key(0), x)['params']
  params = jax.tree.map(lambda p: p + 0.1, params)  # biases that are not 0
  expected = module.apply({'params': params}, scaling.apply(scale, x))
  got = module.apply({'params': heads.fold(module, params, *scale)}, x)
  for u, v in zip(got, expected, strict=True):
    np.testing.assert_allclose(u, v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('method', ['mah', 'daph', 'drsch', 'dpsh', 'classifier'])
def test_a_network_starts_from_heads_that_its_features_taught(method, source):
  """Its outputs for images are those of the heads for features, and it has their codes."""
  one = method not in ('mah', 'classifier')
  flags = {'method': method, 'width': 8, 'pretrained': str(source),
           'num_sampled': 300, 'optimizer': 'adam', **({'code_lengths': (5,)} if one else {}),
           **({'code_init': 'alike', 'hold_codes_rounds': 9} if method == 'mah' else {})}
  data, devices = toy.dataset(), toy.make().devices
  made, start, *_ = trainer.begin(
      toy.settings(**flags, head_rounds=3, head_learning_rate=0.01, head_weight_decay=0.3), data,
      devices)
  before, state, *_ = trainer.begin(
      toy.settings(**flags, augment='none', input='features', hidden=(), num_rounds=3,
                   learning_rate=0.01, weight_decay=0.3, lr_schedule='triangle',
                   lr_drop_rounds=(10, 20, 30, 40, 50)),
      data, devices)
  end = toy.fit(before, state)[-1].state
  rows = data.protocol.queries
  for u, v in zip(made.outputs(start, rows), before.outputs(end, rows), strict=True):
    np.testing.assert_allclose(u, v, rtol=1e-3, atol=1e-4)
  for b, expected in zip(start.codes, end.codes, strict=True):
    np.testing.assert_array_equal(b, expected)
  if method == 'mah':
    shares = confusion.of_classifier(before.features.values[data.protocol.training], before.labels)
    for b, words in zip(start.codes, codebook.codebook(5, (3, 5), 0, shares)):
      np.testing.assert_array_equal(b, words[before.labels.argmax(axis=1)])


@pytest.fixture(scope='module')
def finished(source, tmp_path_factory):
  """The folder of an uninterrupted run with head rounds."""
  folder = tmp_path_factory.mktemp('runs') / 'finished'
  assert main.main([*HEADS_FIRST, f'--pretrained={source}', f'--workdir={folder}']) == 0
  return folder


def test_a_run_goes_on_from_its_checkpoint_without_its_heads_learning_anew(
    source, finished, tmp_path, capsys):
  flags = [*HEADS_FIRST, f'--pretrained={source}', f'--workdir={tmp_path}']
  assert main.main([*flags, '--num_rounds=1']) == 0
  assert main.main(flags) == 0
  assert 'Restored' in capsys.readouterr().out
  assert _results(tmp_path)['metrics'] == _results(finished)['metrics']
  for name in ('queries_4', 'database_8'):
    np.testing.assert_array_equal(np.load(tmp_path / 'codes' / f'{name}.npy'),
                                  np.load(finished / 'codes' / f'{name}.npy'))


def test_fine_tuning_is_no_worse_than_the_features_it_starts_from(source, finished, tmp_path):
  """The backbone has seen the digits but twice, so that there is much left to learn."""
  assert main.main([*NETWORK, '--input=features', '--hidden=', '--num_rounds=6',
                    '--learning_rate=0.01', '--optimizer=adam', f'--pretrained={source}',
                    f'--workdir={tmp_path}']) == 0
  for c in ('4', '8'):
    assert (_results(finished)['metrics'][c]['assigned']['map'] >
            _results(tmp_path)['metrics'][c]['assigned']['map'])


def test_held_rounds_count_from_the_first_round_of_the_heads(source, finished, tmp_path):
  """With 6 rounds of heads and 3 more, 9 held ones leave no update of the codes, 5 leave 4."""
  assert _results(finished)['code_updates'] == 0
  assert main.main([*HEADS_FIRST, '--hold_codes_rounds=5', f'--pretrained={source}',
                    f'--workdir={tmp_path}']) == 0
  assert _results(tmp_path)['code_updates'] == 4


def test_fixed_statistics_stay_as_they_are(source):
  data, devices = toy.dataset(), toy.make().devices
  for fixed in (False, True):
    made, state, *_ = trainer.begin(
        toy.settings(width=8, pretrained=str(source), batch_norm='fixed' if fixed else 'global'),
        data, devices)
    before = jax.device_get(state.batch_stats)
    after = jax.device_get(toy.fit(made, state)[-1].state.batch_stats)
    changed = [np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (before, after)))]
    assert all(changed) != fixed and any(changed) != fixed


@pytest.mark.parametrize('optimizer', ['adam', 'sgd'])
def test_frozen_stages_keep_their_weights_and_all_else_moves(optimizer):
  """The decay is strong, so that it would be seen."""
  data = toy.dataset(rows=120)
  data = data._replace(images=np.repeat(data.images, 3, axis=-1))
  config = toy.settings(backbone='resnet18', width=64, pretrained='weights', batch_norm='fixed',
                        frozen_stages=2, weight_decay=0.5, optimizer=optimizer, num_rounds=1)
  made = trainer.Trainer(config, data, pipeline.Pixels(8, 3, (0.5,) * 3, (0.3,) * 3),
                         toy.make().devices)
  state = made.new_state()
  before = jax.device_get(state.params)
  after = jax.device_get(toy.fit(made, state)[-1].state.params)
  for path, x in jax.tree.leaves_with_path(before['backbone']):
    same = np.array_equal(x, _at(after['backbone'], path))
    assert same == path[0].key.startswith(('conv1', 'bn1', 'layer1_', 'layer2_')), path
  assert all(np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (
      before['heads'], after['heads']))))


def _at(tree, path):
  for part in path:
    tree = tree[part.key]
  return tree


@pytest.mark.parametrize('flags, words', [
    (['--frozen_stages=1'], '--frozen_stages has no effect, as --batch_norm=global changes them'),
    (['--frozen_stages=1', '--batch_norm=fixed', '--pretrained=x', '--backbone=compact'],
     '--frozen_stages has no effect, as --backbone=compact has no stages'),
    (['--frozen_stages=1', '--input=features'], '--frozen_stages has no effect'),
    (['--frozen_stages=5', '--batch_norm=fixed', '--pretrained=x'], 'must be at most 4'),
    (['--head_rounds=2'], '--head_rounds has no effect, as there are no --pretrained weights'),
    (['--head_rounds=2', '--input=features'], '--head_rounds has no effect'),
    (['--batch_norm=fixed'], '--batch_norm has no effect, as there are no --pretrained weights'),
    (['--head_learning_rate=0.1'], '--head_learning_rate has no effect'),
    (['--head_weight_decay=1'], '--head_weight_decay has no effect'),
    (['--head_learning_rate=0', '--head_rounds=2', '--pretrained=x'], 'must be above 0'),
])
def test_flags_without_effect_are_refused(flags, words, tmp_path, capsys):
  assert main.main([*NETWORK, *flags, f'--workdir={tmp_path}']) == 2
  assert words in capsys.readouterr().err
