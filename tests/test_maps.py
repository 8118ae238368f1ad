"""Maps of frozen stages, which are kept and take the place of images: whole runs on a folder."""

import json
import shutil

import numpy as np
import pytest
import random_weights
from flax import traverse_util
from PIL import Image

from mah_jax import main
from mah_jax import models
from mah_jax import storage
from mah_jax.weights import files
from mah_jax.weights import fitting

FLAGS = ['--dataset=folder', '--backbone=resnet18', '--image_size=32', '--crop=1.0',
         '--augment=flip', '--code_lengths=3,6', '--head_weights=1', '--code_init=codebook',
         '--gamma=10', '--num_sampled=0', '--batch_size=16', '--shuffle', '--optimizer=adam',
         '--momentum=0.9', '--head_rounds=2', '--batch_norm=fixed', '--frozen_stages=2',
         '--num_rounds=2', '--epochs_per_round=1', '--learning_rate=1e-3', '--lr_drop_rounds=',
         '--hold_codes_rounds=2', '--query_fraction=0.2', '--mirror', '--num_devices=1']
CLASSES = ('left', 'right')


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  """A folder of 48 images in two classes, and random weights for the backbone."""
  folder = tmp_path_factory.mktemp('source')
  rng = np.random.default_rng(0)
  for i in range(48):
    pixels = rng.integers(0, 120, (32, 32, 3)).astype(np.uint8)
    pixels[:, :16] += np.uint8(40 if i % 2 else 0)  # the mirror image has the other side bright
    pixels[16:, 16:, i % 3] += np.uint8(100)
    (folder / 'photos' / CLASSES[i % 2]).mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / 'photos' / CLASSES[i % 2] / f'{i}.png')
  module = models.make_backbone('resnet18', feature='pooled', width=64, axis_name=None,
                                platform='cpu')
  variables = traverse_util.flatten_dict(random_weights.variables(module, (1, 32, 32, 3)))
  path = folder / 'weights.safetensors'
  files.write(path, files.Weights(
      {fitting.torchvision_name(name): _as_torch(np.asarray(value))
       for name, value in variables.items()}, 'resnet18', (0.4,) * 3, (0.2,) * 3, path))
  return folder


def _as_torch(value):
  return np.ascontiguousarray(value.transpose(3, 2, 0, 1) if value.ndim == 4 else value)


def _run(source, workdir, *more):
  return main.main([*FLAGS, f'--pretrained={source / "weights.safetensors"}',
                    f'--data_dir={source / "photos"}', f'--workdir={workdir}', *more])


@pytest.fixture(scope='module')
def runs(source, tmp_path_factory):
  """Folders of a run that reads images and of one that reads maps, and their cache."""
  folder = tmp_path_factory.mktemp('runs')
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(folder / 'cache'))
    assert _run(source, folder / 'images') == 0
    assert _run(source, folder / 'maps', '--keep_maps') == 0
  return folder


def _codes(folder, name):
  return np.load(folder / 'codes' / f'{name}.npy')


def _lines(folder):
  return [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]


def test_training_on_maps_is_training_on_images_up_to_the_rounding_of_maps(runs):
  for got, expected in zip(_lines(runs / 'maps'), _lines(runs / 'images'), strict=True):
    for name, value in expected['losses'].items():
      np.testing.assert_allclose(got['losses'][name], value, rtol=5e-3)
  for name in ('queries_3', 'queries_6', 'database_6'):
    assert np.mean(_codes(runs / 'maps', name) == _codes(runs / 'images', name)) > 0.97


def test_a_stopped_run_makes_its_maps_again_and_ends_with_the_same_bits(
    source, runs, tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  shutil.copytree(runs / 'cache', tmp_path / 'cache')
  assert _run(source, tmp_path / 'run', '--keep_maps', '--num_rounds=1') == 0
  shutil.rmtree(tmp_path / 'cache')
  assert _run(source, tmp_path / 'run', '--keep_maps') == 0
  assert 'its first 2 stages passed once' in capsys.readouterr().out
  assert [line['losses'] for line in _lines(tmp_path / 'run')] == [
      line['losses'] for line in _lines(runs / 'maps')]
  np.testing.assert_array_equal(_codes(tmp_path / 'run', 'queries_6'),
                                _codes(runs / 'maps', 'queries_6'))


def test_new_images_pass_the_whole_network(source, runs, tmp_path):
  """The queries of the run, as if they were new, get the codes that they had from their maps."""
  names = json.loads((runs / 'maps' / 'codes' / 'names.json').read_text())['queries']
  folder = tmp_path / 'new'
  for name in names:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / 'photos' / name, folder / name)
  assert _run(source, runs / 'maps', '--keep_maps', '--mode=encode', f'--images={folder}',
              f'--output={tmp_path / "out"}') == 0
  files_encoded = map(json.loads, (tmp_path / 'out' / 'files.jsonl').read_text().splitlines())
  bits = np.unpackbits(np.load(tmp_path / 'out' / 'codes_6.npy'), axis=1, count=6)
  got = dict(zip(files_encoded, bits.astype(np.int8) * 2 - 1, strict=True))
  codes = np.stack([got[name] for name in names])
  assert np.mean(codes == _codes(runs / 'maps', 'queries_6')) > 0.97


def test_maps_that_the_disk_has_no_room_for_are_not_begun(
    source, tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(storage, 'free', lambda place: 10**5)
  assert _run(source, tmp_path / 'run', '--keep_maps') == 1
  assert 'make room on the disk' in capsys.readouterr().err
  assert not list(tmp_path.rglob('part.npy'))


@pytest.mark.parametrize('flags, words', [
    (['--frozen_stages=0'], '--keep_maps has no effect, as --frozen_stages=0 makes no maps'),
    (['--augment=flip_shift'], '--augment=flip_shift shifts images, of which --keep_maps keeps'),
    (['--shift_pixels=1'], '--shift_pixels has no effect, as --augment=flip shifts nothing')])
def test_flags_that_do_not_go_with_maps_are_refused(flags, words, source, tmp_path, capsys):
  assert _run(source, tmp_path, '--keep_maps', *flags) == 2
  assert words in capsys.readouterr().err
