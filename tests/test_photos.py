"""Whole runs on folders of real JPEG files: streaming, several devices, resuming, encoding."""

import errno
import json
import logging
import os
import pathlib
import shutil
from concurrent import futures

import jax
import numpy as np
import pytest
from PIL import Image

from mah_jax import config
from mah_jax import main
from mah_jax.data import datasets
from mah_jax.evaluation import metrics
from mah_jax.runs import folder as folder_lib
from mah_jax.train import checkpoint
from mah_jax.train import features
from mah_jax.train import step

NAMES = ('blue', 'green', 'red')
FLAGS = ['--dataset=folder', '--backbone=compact', '--width=4', '--image_size=16', '--crop=0.8',
         '--augment=flip_shift', '--shift_pixels=1', '--code_lengths=3,6', '--head_weights=1,0.2',
         '--code_init=codebook', '--gamma=10', '--num_sampled=48', '--batch_size=16', '--shuffle',
         '--num_rounds=4', '--epochs_per_round=2', '--learning_rate=0.02', '--momentum=0.9',
         '--lr_drop_rounds=', '--query_fraction=0.2', '--resident_mb=0']


def _photo(rng, labels, path):
  """A JPEG of 40 to 60 pixels in which a stripe of each labelled colour crosses grey noise."""
  w, h = rng.integers(40, 60, 2)
  pixels = rng.integers(90, 160, (h, w, 3))
  for k, channel in enumerate((2, 1, 0)):
    if labels[k]:
      stripe = slice(k * h // 3, (k + 1) * h // 3)
      pixels[stripe] = rng.integers(0, 60, (1, 1, 3))
      pixels[stripe, :, channel] = 230
  Image.fromarray(pixels.astype(np.uint8)).save(path, quality=90)


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
  """A folder of 90 photographs with one or two labels each, and a file of their labels."""
  folder = tmp_path_factory.mktemp('photos')
  rng = np.random.default_rng(0)
  sets = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1)]
  lines = ['file,labels']
  for i in range(90):
    labels = sets[i % len(sets)]
    _photo(rng, labels, folder / f'photo {i}.jpg')
    lines.append(f'photo {i}.jpg,' + ';'.join(
        name for name, present in zip(NAMES, labels) if present))
  (folder / 'labels.csv').write_text('\n'.join(lines))
  return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


def _run(photos, workdir, *more):
  return main.main([*FLAGS, f'--data_dir={photos}', f'--workdir={workdir}', *more])


def _lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def _results(workdir):
  return json.loads((workdir / 'results.json').read_text())


@pytest.fixture(scope='module')
def finished(photos, tmp_path_factory):
  """The folder of a run on one device whose images stream from disk."""
  workdir = tmp_path_factory.mktemp('runs') / 'one'
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    assert _run(photos, workdir, '--num_devices=1') == 0
  return workdir


def test_a_multi_label_folder_is_learned_through_the_stream(photos, finished):
  results = _results(finished)
  assert results['classes'] == list(NAMES)
  assert len(results['metrics']['6']['codebook']['codewords']) == 3
  labels = np.load(finished / 'codes' / 'query_labels.npy')
  database = np.load(finished / 'codes' / 'database_labels.npy')
  chance = (labels @ database.T > 0).mean()
  assert results['metrics']['6']['learned']['map'] > chance + 0.2
  assert results['protocol']['queries'] + results['protocol']['database'] == 90
  names = json.loads((finished / 'codes' / 'names.json').read_text())
  assert sorted(names['queries'] + names['database']) == sorted(
      f'photo {i}.jpg' for i in range(90))
  lines = dict(line.split(',') for line in (photos / 'labels.csv').read_text().splitlines()[1:])
  for name, row in zip(names['database'], database):
    assert lines[name] == ';'.join(np.array(NAMES)[row > 0])


def test_four_devices_and_resident_images_give_the_same_scores(photos, finished, tmp_path):
  assert _run(photos, tmp_path / 'four', '--num_devices=4', '--num_rounds=1') == 0  # goes on below
  for name, more in {'four': ['--num_devices=4'],
                     'resident': ['--num_devices=1', '--resident_mb=64']}.items():
    assert _run(photos, tmp_path / name, *more) == 0
    got, expected = (_results(folder) for folder in (tmp_path / name, finished))
    assert got['protocol'] == expected['protocol']
    for c in ('3', '6'):
      np.testing.assert_allclose(got['metrics'][c]['learned']['map'],
                                 expected['metrics'][c]['learned']['map'], atol=1e-3)
  for c in (3, 6):  # where images come from changes no bit
    np.testing.assert_array_equal(np.load(tmp_path / 'resident' / f'codes/database_{c}.npy'),
                                  np.load(finished / f'codes/database_{c}.npy'))


def test_a_shorter_run_goes_on_to_the_same_end(photos, finished, tmp_path, capsys):
  assert _run(photos, tmp_path / 'run', '--num_devices=1', '--num_rounds=2') == 0
  assert _run(photos, tmp_path / 'run', '--num_devices=1') == 0
  printed = capsys.readouterr().out
  assert 'round 3/4' in printed and 'round 4/4' in printed and 'Restored' in printed
  assert _results(tmp_path / 'run')['metrics'] == _results(finished)['metrics']


def test_images_that_changed_since_are_refused(photos, finished, tmp_path, capsys):
  other = tmp_path / 'photos'
  shutil.copytree(photos, other)
  lines = (other / 'labels.csv').read_text().splitlines()
  (other / 'labels.csv').write_text('\n'.join(lines[:-1]))
  shutil.copytree(finished, tmp_path / 'run')
  assert _run(other, tmp_path / 'run', '--num_devices=1', '--num_rounds=5') == 1
  assert 'are not those that the run' in capsys.readouterr().err


def test_listed_queries_without_a_label_count_0_in_every_score(photos, tmp_path, capsys):
  other, workdir = tmp_path / 'photos', tmp_path / 'run'
  shutil.copytree(photos, other)
  lines = (other / 'labels.csv').read_text().splitlines()
  lines[3:6:2] = ['photo 2.jpg,', 'photo 4.jpg,']
  (other / 'labels.csv').write_text('\n'.join(lines))
  (tmp_path / 'queries.txt').write_text('\n'.join(f'photo {i}.jpg' for i in (0, 1, 2, 3, 4)))
  flags = [flag for flag in FLAGS if 'query_fraction' not in flag]
  assert main.main([*flags, f'--data_dir={other}', f'--workdir={workdir}', '--num_devices=1',
                    f'--query_list={tmp_path / "queries.txt"}', '--num_rounds=1',
                    '--epochs_per_round=1']) == 0
  sentence = '2 of the 5 queries have no label, so nothing to find: they count 0 in every score.'
  assert sentence in capsys.readouterr().out
  codes = {name: np.load(workdir / 'codes' / f'{name}.npy') for name in (
      'queries_6', 'database_6', 'query_labels', 'database_labels')}
  assert codes['query_labels'].any(axis=1).tolist() == [True, True, False, True, False]
  labelled = [0, 1, 3]
  expected = metrics.evaluate(codes['queries_6'][labelled], codes['database_6'],
                              codes['query_labels'][labelled], codes['database_labels'])
  results = _results(workdir)
  scores = results['metrics']['6']['learned']
  assert 0 < scores.pop('outputs')['map'] <= 3 / 5
  for name, score in scores.items():
    assert score == pytest.approx(3 / 5 * expected[name]), name
  assert results['protocol']['ceiling'] == pytest.approx(3 / 5)
  shutil.rmtree(workdir / 'checkpoints')
  assert main.main(['--mode=evaluate', f'--workdir={workdir}', '--num_devices=1']) == 0
  assert sentence in capsys.readouterr().out


def test_new_images_are_encoded_and_corrupt_ones_reported(photos, finished, tmp_path, capsys):
  new = tmp_path / 'new'
  (new / 'sub').mkdir(parents=True)
  for i in range(20):
    shutil.copy(photos / f'photo {i}.jpg', new / 'sub' / f'{i:02}.jpg')
  (new / 'broken.jpg').write_bytes((new / 'sub' / '00.jpg').read_bytes()[:300])
  arguments = ['--mode=encode', f'--images={new}', f'--workdir={finished}',
               f'--output={tmp_path / "codes"}', '--num_devices=1']
  assert main.main(arguments) == 0
  output = capsys.readouterr().out
  assert '20 images encoded' in output and '1 skipped' in output and 'broken.jpg' in output
  names = _lines(tmp_path / 'codes' / 'files.jsonl')
  assert names == [f'sub/{i:02}.jpg' for i in range(20)]
  skipped, = _lines(tmp_path / 'codes' / 'skipped.jsonl')
  assert skipped['file'] == 'broken.jpg' and skipped['reason']
  # The same images as queries and database rows of the run have the same codes.
  data = datasets.load('folder', str(photos), 0, query_fraction=0.2, cache_dir=tmp_path)
  queries = [int(data.names[row].split()[1].split('.')[0]) for row in data.protocol.queries]
  for c in (3, 6):
    packed = np.load(tmp_path / 'codes' / f'codes_{c}.npy')
    assert packed.dtype == np.uint8 and packed.shape == (20, 1)
    codes = np.unpackbits(packed, axis=1, count=c).astype(np.int8) * 2 - 1
    expected = np.load(finished / 'codes' / f'queries_{c}.npy')
    assert all(np.array_equal(codes[i], expected[place])
               for place, i in enumerate(queries) if i < 20)
    assert sum(i < 20 for i in queries) > 1
  # One file is encoded as it is among others.
  assert main.main([*arguments, f'--images={new / "sub" / "03.jpg"}']) == 0
  assert _lines(tmp_path / 'codes' / 'files.jsonl') == ['03.jpg']
  assert np.load(tmp_path / 'codes' / 'codes_6.npy').tolist() == [packed[3].tolist()]


def test_queries_are_found_once_they_are_added(photos, finished, tmp_path, capsys):
  copy = tmp_path / 'copy'
  shutil.copytree(finished, copy)
  run = [f'--workdir={copy}', '--num_devices=1']
  assert main.main(['--mode=search', *run, f'--images={photos / "photo 0.jpg"}']) == 0
  queries = len(np.load(finished / 'codes' / 'queries_3.npy'))
  said = capsys.readouterr().out
  assert f'{queries} queries of the run are not in it: --mode=index --images={photos}' in said
  assert main.main(['--mode=index', *run, f'--images={photos}']) == 0
  assert f'{queries} images added' in capsys.readouterr().out
  # A list of files is no folder of images: nobody is told to add it.
  shutil.rmtree(copy / 'index')
  assert main.main(['--mode=search', *run, f'--images={photos / "photo 0.jpg"}',
                    f'--data_dir={photos / "labels.csv"}']) == 0
  assert 'queries of the run' not in capsys.readouterr().out


def test_new_images_get_the_nearest_codes_that_an_evaluation_gives(
    photos, finished, tmp_path):
  nearest = ['--binarize=nearest', '--num_devices=1']
  copy = tmp_path / 'copy'
  shutil.copytree(finished, copy)
  assert main.main(['--mode=evaluate', f'--workdir={copy}', *nearest]) == 0
  assert main.main(['--mode=encode', f'--images={photos}', f'--workdir={finished}',
                    f'--output={tmp_path / "codes"}', *nearest]) == 0
  names = _lines(tmp_path / 'codes' / 'files.jsonl')
  data = datasets.load('folder', str(photos), 0, query_fraction=0.2, cache_dir=tmp_path)
  places = [names.index(data.names[row]) for row in data.protocol.queries]
  changed, both = 0, (finished, copy)
  for c in (3, 6):
    packed = np.load(tmp_path / 'codes' / f'codes_{c}.npy')
    signs, expected = (np.load(folder / 'codes' / f'queries_{c}.npy') for folder in both)
    np.testing.assert_array_equal(packed[places], np.packbits(expected > 0, axis=1))
    changed += np.any(signs != expected)
  assert changed


def test_a_run_at_work_is_not_read_but_readers_share_a_folder(photos, finished, tmp_path, capsys):
  encode = ['--mode=encode', f'--images={photos}', f'--workdir={finished}', '--num_devices=1',
            f'--output={tmp_path / "codes"}']
  folder = folder_lib.RunFolder(finished)
  with folder.opened():
    assert main.main(encode) == 1
    assert 'Another run is at work' in capsys.readouterr().err
  with folder.opened(shared=True):
    assert main.main(encode) == 0


def test_an_encoding_replaces_an_earlier_one_and_nothing_else(photos, finished, tmp_path, capsys):
  new, output = tmp_path / 'new', tmp_path / 'codes'
  new.mkdir()
  encode = ['--mode=encode', f'--images={new}', f'--workdir={finished}', '--num_devices=1']
  for name in ('a.jpg', 'b.jpg'):
    shutil.copy(photos / 'photo 0.jpg', new / name)
    assert main.main([*encode, f'--output={output}']) == 0
  assert _lines(output / 'files.jsonl') == ['a.jpg', 'b.jpg']
  assert sorted(path.name for path in tmp_path.iterdir() if path.name != 'cache') == [
      'codes', 'new']  # nothing is left over
  (output / 'codes_2024.npy').write_bytes(b"a user's own")
  before = {path.name: path.read_bytes() for path in output.iterdir()}
  for folder in (output, finished, new):
    assert main.main([*encode, f'--output={folder}']) == 1
    assert 'choose another folder' in capsys.readouterr().err
  assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_a_full_disk_leaves_the_earlier_encoding(photos, finished, tmp_path, capsys, monkeypatch):
  output = tmp_path / 'codes'
  encode = ['--mode=encode', f'--images={photos}', f'--workdir={finished}', '--num_devices=1',
            f'--output={output}']
  assert main.main(encode) == 0
  before = {path.name: path.read_bytes() for path in output.iterdir()}
  written = []

  def write(path, content, whole=pathlib.Path.write_bytes):
    written.append(path)
    if len(written) == 2:
      raise OSError(errno.ENOSPC, 'No space left on device', str(path))
    whole(path, content)

  monkeypatch.setattr(pathlib.Path, 'write_bytes', write)
  assert main.main(encode) == 1
  assert 'No space left' in capsys.readouterr().err
  assert {path.name: path.read_bytes() for path in output.iterdir()} == before
  assert [path.name for path in tmp_path.iterdir() if path.name != 'cache'] == ['codes']


@pytest.mark.parametrize('flags, words, code', [
    (['--mode=encode', '--images=no/such/folder'], 'no/such/folder', 1),
    (['--mode=encode'], '--images=FILE_OR_FOLDER', 2),
    (['--mode=encode', '--images=PHOTOS', '--output=/dev/null/x'], '--output=/dev/null/x', 1),
    (['--mode=encode', '--images=PHOTOS', '--workdir=no/such/run'], 'is not a run folder', 1),
    (['--mode=train', '--images=x'], '--mode=encode', 2),
])
def test_wrong_use_of_encode_gives_one_sentence(photos, finished, flags, words, code, capsys):
  flags = [flag.replace('PHOTOS', str(photos)) for flag in flags]
  assert main.main([f'--workdir={finished}', '--num_devices=1', *flags]) == code
  error = capsys.readouterr().err
  assert words in error and error.count('\n') == 1


def test_a_run_can_start_from_the_backbone_of_another(photos, finished, tmp_path, capsys):
  source = tmp_path / 'source'
  shutil.copytree(finished, source)
  assert _run(photos, tmp_path / 'run', '--num_devices=1', f'--pretrained={source}',
              '--heads=flat', '--num_rounds=1', '--learning_rate=1e-12', '--weight_decay=0') == 0
  assert 'Starting from the backbone' in capsys.readouterr().out
  kernels, devices = [], step.Devices(step.pick_devices(1), 8)
  for folder in (finished, tmp_path / 'run'):
    saved = checkpoint.Checkpoints(folder / 'checkpoints', devices)
    template = {'params': {'backbone': {'stem': {'kernel': jax.ShapeDtypeStruct(
        (2, 2, 3, 24), np.float32)}}}}
    kernels.append(saved.restore_part(saved.newest()[0], template))
    saved.close()
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), *kernels)
  scores = _results(tmp_path / 'run')['metrics']
  shutil.rmtree(source)  # a run that has begun needs it no more
  assert main.main(['--mode=evaluate', f'--workdir={tmp_path / "run"}']) == 0
  assert _results(tmp_path / 'run')['metrics'] == scores


def test_a_run_with_another_backbone_or_width_is_no_start(photos, finished, tmp_path, capsys):
  for flags, words in ((['--backbone=resnet18', '--width=64'], '--backbone=compact'),
                       (['--width=8'], '--width=4'),
                       (['--dataset=digits', '--query_fraction=0.1'], '3 channels'),
                       (['--pretrained=no/such/file.pth'], 'fetch resnet50')):
    assert _run(photos, tmp_path / 'run', f'--pretrained={finished}', '--num_devices=1',
                *flags) == 1
    error = capsys.readouterr().err
    assert words in error and error.count('\n') == 1


def test_names_that_are_no_text_and_other_batch_sizes_are_no_obstacle(photos, finished, tmp_path,
                                                                      capsys):
  new = os.fsencode(tmp_path / 'new')
  os.mkdir(new)
  for name in (b'/fine\xfc.jpg', b'/two\nlines.jpg'):
    shutil.copy(os.fsencode(photos / 'photo 0.jpg'), new + name)
  with open(new + b'/broken\xfc.jpg', 'wb') as file:
    file.write(b'no image')
  assert main.main(['--mode=encode', f'--images={tmp_path / "new"}', f'--workdir={finished}',
                    '--batch_size=4', '--num_devices=1', f'--output={tmp_path / "codes"}']) == 0
  names = _lines(tmp_path / 'codes' / 'files.jsonl')
  assert [os.fsencode(name) for name in names] == [b'fine\xfc.jpg', b'two\nlines.jpg']
  assert '1 skipped' in capsys.readouterr().out
  # Orbax's warnings pass pytest by, so that only the level shows that they are not printed.
  assert logging.getLogger('absl').getEffectiveLevel() == logging.CRITICAL


@pytest.fixture
def streamed(photos, finished, tmp_path):
  """The arguments of `features.extract` for the photographs, which stream."""
  settings = config.Config(backbone='compact', width=4, image_size=16, batch_size=16,
                           pretrained=str(finished), resident_mb=0)
  return (settings, datasets.load('folder', str(photos), 0, cache_dir=tmp_path),
          step.Devices(step.pick_devices(1), 16))


def test_features_are_kept_and_an_interrupted_extraction_goes_on(streamed, tmp_path, monkeypatch):
  _, data, _ = streamed
  whole = np.array(features.extract(*streamed).values)
  assert whole.shape == (90, 16) and whole.std() > 0
  decoded = []
  plain = type(data.images).decode
  monkeypatch.setattr(type(data.images), 'decode',
                      lambda self, row, *rest: decoded.append(row) or plain(self, row, *rest))
  np.testing.assert_array_equal(features.extract(*streamed).values, whole)
  assert not decoded
  monkeypatch.setattr(features, 'SAVE_ROWS', 16)
  folder = next((tmp_path / 'cache' / 'mah_jax' / 'features').iterdir())
  shutil.rmtree(folder)

  def stop_late(self, row, *rest):
    if len(decoded) == 60:
      raise KeyboardInterrupt
    decoded.append(row)
    return plain(self, row, *rest)

  monkeypatch.setattr(type(data.images), 'decode', stop_late)
  with pytest.raises(KeyboardInterrupt):
    features.extract(*streamed)
  decoded.clear()
  monkeypatch.setattr(type(data.images), 'decode',
                      lambda self, row, *rest: decoded.append(row) or plain(self, row, *rest))
  np.testing.assert_array_equal(features.extract(*streamed).values, whole)
  assert 0 < len(decoded) < 90


def test_runs_that_need_the_same_features_extract_them_once(streamed, monkeypatch):
  _, data, _ = streamed
  decoded, plain = [], type(data.images).decode
  monkeypatch.setattr(type(data.images), 'decode',
                      lambda self, row, *rest: decoded.append(row) or plain(self, row, *rest))
  with futures.ThreadPoolExecutor(2) as pool:
    one, two = pool.map(lambda _: np.array(features.extract(*streamed).values), range(2))
  np.testing.assert_array_equal(one, two)
  assert len(decoded) == 96  # once: the last of six batches is filled up


def test_features_of_other_sizes_and_of_mirrored_images_are_kept_apart(photos, finished, tmp_path):
  data = datasets.load('folder', str(photos), 0, cache_dir=tmp_path)
  devices = step.Devices(step.pick_devices(1), 16)
  small, large, mirrored = (features.extract(config.Config(
      backbone='compact', width=4, batch_size=16, pretrained=str(finished), **changes),
      data, devices).values for changes in (
          {'image_size': 16}, {'image_size': 24}, {'image_size': 16, 'mirror': True}))
  assert small.shape == large.shape and not np.array_equal(small, large)
  assert small.shape == mirrored.shape and not np.array_equal(small, mirrored)
