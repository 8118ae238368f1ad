"""Folders of images without labels: hashed by methods that need none, never scored."""

import json

import image_files
import numpy as np
import pytest
from flax import linen as nn

from mah_jax import main
from mah_jax import methods
from mah_jax import report
from mah_jax.data import images
from mah_jax.train import backbone

UNSUPERVISED = [name for name, spec in methods.METHODS.items() if not spec.supervised]
SUPERVISED = [name for name, spec in methods.METHODS.items() if spec.supervised]
NETWORK = ['--width=4', '--image_size=16', '--num_devices=1', '--batch_size=8']
NESTED = '--protocol=folder-unlabelled'


class Backbone(nn.Module):
  """A backbone for images of any size that compiles at once."""

  @nn.compact
  def __call__(self, images, train):
    return nn.relu(nn.Conv(32, (4, 4), (4, 4))(images)).mean(axis=(1, 2))


@pytest.fixture(scope='module', autouse=True)
def own_cache_and_small_backbone(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    patch.setattr(backbone, 'make', lambda config, platform: Backbone())
    yield


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
  """The folder of a run whose backbone the others take."""
  root = tmp_path_factory.mktemp('weights')
  image_files.class_tree(root / 'photos', {'a': 6, 'b': 6})
  assert main.main(['--dataset=folder', f'--data_dir={root / "photos"}', '--backbone=compact',
                    '--code_lengths=4', '--head_weights=1', '--num_rounds=1',
                    '--epochs_per_round=1', '--lr_drop_rounds=', *NETWORK,
                    f'--workdir={root / "run"}']) == 0
  return root / 'run'


def _write(folder, place):
  """20 pictures, each in the sub-folder `place(i)`."""
  for i in range(20):
    target = folder / place(i)
    target.mkdir(parents=True, exist_ok=True)
    content = image_files.encode(image_files.picture(24 + i, 40 - i, seed=i), 'PNG')
    (target / f'{i:02}.png').write_bytes(content)
  return folder


@pytest.fixture(scope='module')
def flat(tmp_path_factory):
  return _write(tmp_path_factory.mktemp('flat'), lambda i: '')


@pytest.fixture(scope='module')
def nested(tmp_path_factory):
  """The same pictures in the same order, but in several folders."""
  return _write(tmp_path_factory.mktemp('nested'), lambda i: ('', '2019', '2020/may')[i // 7])


def _train(photos, weights, workdir, *more):
  return main.main(['--dataset=folder', f'--data_dir={photos}', f'--pretrained={weights}',
                    f'--workdir={workdir}', *NETWORK, *more])


@pytest.fixture(scope='module', params=UNSUPERVISED)
def finished(request, flat, weights, tmp_path_factory):
  """A method and the folder of its run on the flat folder."""
  workdir = tmp_path_factory.mktemp('runs') / request.param
  assert _train(flat, weights, workdir, f'--method={request.param}', '--code_lengths=3,12') == 0
  return request.param, workdir


def _codes(workdir, c):
  """Codes of the database by the names of its files, without their folders."""
  names = json.loads((workdir / 'codes' / 'names.json').read_text())['database']
  codes = np.load(workdir / 'codes' / f'database_{c}.npy')
  return {name.split('/')[-1]: code.tolist() for name, code in zip(names, codes, strict=True)}


def test_a_run_has_codes_and_no_scores(finished, flat):
  method, workdir = finished
  results = json.loads((workdir / 'results.json').read_text())
  assert (results['schema'], results['method'], results['seeds']) == (1, method, [0])
  assert results['classes'] == [] and results['metrics'] == {}
  assert len(results['protocol'].pop('id')) == 64
  assert results['protocol'] == {'name': 'folder-unlabelled', 'queries': 0, 'database': 20}
  assert json.loads((workdir / 'codes' / 'names.json').read_text()) == {
      'queries': [], 'database': sorted(path.name for path in flat.iterdir())}
  arrays = {path.stem: np.load(path) for path in (workdir / 'codes').glob('*.npy')}
  assert {name: array.shape for name, array in arrays.items()} == {
      'queries_3': (0, 3), 'queries_12': (0, 12), 'database_3': (20, 3), 'database_12': (20, 12),
      'query_labels': (0, 0), 'database_labels': (20, 0)}
  assert set(np.unique(arrays['database_12'])) == {-1, 1}
  packed = np.load(workdir / 'codes.npz')
  assert packed['queries_12'].shape == (1, 0, 2)
  np.testing.assert_array_equal(packed['encoded_12'][0],
                                np.packbits(arrays['database_12'] > 0, axis=1))


def test_the_run_encodes_images(finished, flat, tmp_path):
  _, workdir = finished
  assert main.main(['--mode=encode', f'--images={flat}', f'--workdir={workdir}',
                    f'--output={tmp_path}', '--num_devices=1']) == 0
  for c in (3, 12):
    np.testing.assert_array_equal(
        np.load(tmp_path / f'codes_{c}.npy'),
        np.packbits(np.load(workdir / 'codes' / f'database_{c}.npy') > 0, axis=1))


def test_nobody_scores_it(finished, capsys):
  _, workdir = finished
  before = (workdir / 'results.json').read_text()
  for command in (lambda: main.main(['--mode=evaluate', f'--workdir={workdir}']),
                  lambda: report.main([str(workdir)])):
    capsys.readouterr()
    assert command() == 1
    error = capsys.readouterr().err
    assert 'have no labels' in error and error.count('\n') == 1
  assert (workdir / 'results.json').read_text() == before


def test_sub_folders_are_no_classes_where_one_says_so(finished, nested, weights, tmp_path, capsys):
  method, workdir = finished
  run = f'--method={method}', '--code_lengths=3,12'
  assert _train(nested, weights, tmp_path / 'run', *run) == 1
  assert NESTED in capsys.readouterr().err
  assert _train(nested, weights, tmp_path / 'run', *run, NESTED) == 0
  assert 'No labels, so no scores: 20 images have codes of 3,12 bits.' in capsys.readouterr().out
  assert _codes(tmp_path / 'run', 12) == _codes(workdir, 12)


def test_two_methods_need_no_labels():
  assert UNSUPERVISED == ['lsh', 'itq']


@pytest.mark.parametrize('method', SUPERVISED)
def test_methods_that_learn_from_labels_say_so_before_any_work(
    method, flat, weights, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(images, 'unusable', lambda *args: pytest.fail('images were decoded'))
  more = ['--head_weights=1'] if method == 'mah' else []
  assert _train(flat, weights, tmp_path / 'run', f'--method={method}', '--code_lengths=8',
                *more) == 1
  error = capsys.readouterr().err
  assert f'--method={method} learns from labels' in error and error.count('\n') == 1
  assert f'choose a --method that needs none, {" or ".join(UNSUPERVISED)}.' in error
  assert not (tmp_path / 'run' / 'config.json').exists()


@pytest.mark.parametrize('flag, words', [
    ('--query_fraction=0.2', '--query_fraction has no effect'),
    ('--split_seed=1', '--split_seed has no effect'),
    ('--num_seeds=2', '--num_seeds has no effect'),
    ('--query_list=queries.txt', '--query_list=queries.txt chooses queries'),
    ('--protocol=folder', '--protocol=folder chooses queries'),
])
def test_flags_that_choose_what_is_scored_are_refused(flag, words, flat, weights, tmp_path, capsys):
  assert _train(flat, weights, tmp_path / 'run', '--method=itq', flag) == 2
  error = capsys.readouterr().err
  assert words in error and 'no labels' in error and error.count('\n') == 1


def test_other_datasets_have_their_labels(tmp_path, capsys):
  assert main.main(['--dataset=digits', '--method=itq', NESTED, f'--workdir={tmp_path}']) == 2
  assert "Unknown protocol 'folder-unlabelled'" in capsys.readouterr().err
