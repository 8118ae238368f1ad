"""Datasets as TFDS prepares them: our builders, its own CIFAR-10, damages, interruptions."""

import io
import json
import sys
from concurrent import futures

import cifar10_layouts as layouts
import multilabel_layouts
import numpy as np
import PIL.Image
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core import shuffle

from mah_jax import errors
from mah_jax.data import builders
from mah_jax.data import cifar10
from mah_jax.data import images
from mah_jax.data import multilabel
from mah_jax.fetching import download


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
  monkeypatch.setattr(cifar10, 'ROWS_PER_FILE', layouts.ROWS)
  multilabel_layouts.use_small_layouts(monkeypatch)


@pytest.mark.parametrize('layout', ['binary folder', 'registry package'])
def test_prepared_tfds_folder_gives_the_same_arrays(layout, tmp_path):
  files = tmp_path / 'files'
  files.mkdir()
  layouts.write(layout, files)
  folder = builders.prepare('cifar10', files)
  folder.parent.rename(tmp_path / 'cifar10')  # away from the files it was made of
  layouts.assert_is_the_data(cifar10.load(tmp_path))
  assert cifar10.find(tmp_path).path == tmp_path / 'cifar10' / folder.name


def write_tfds_own_layout(data_dir, rows=6 * layouts.ROWS):
  """What the builder of TFDS prepares: images as PNG, ids, shuffled rows."""
  images, labels = layouts.arrays()

  def png(image):
    stream = io.BytesIO()
    PIL.Image.fromarray(image).save(stream, 'png')
    return io.BytesIO(stream.getvalue())

  class Cifar10(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version('3.0.2')

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({
          'id': tfds.features.Text(),
          'image': tfds.features.Image(shape=(32, 32, 3)),
          'label': tfds.features.ClassLabel(num_classes=10)}))

    def _split_generators(self, dl_manager):
      train = 5 * layouts.ROWS
      return {'train': self._generate_examples('train', 0, train),
              'test': self._generate_examples('test', train, rows)}

    def _generate_examples(self, split, start, stop):
      for row in range(start, stop):
        yield row, {'id': f'{split}_{row - start:05d}', 'image': png(images[row]),
                    'label': int(labels[row])}

  tfds.disable_progress_bar()
  Cifar10(data_dir=data_dir, file_format='array_record').download_and_prepare()


def test_layout_of_tfds_itself_is_put_into_official_order(tmp_path):
  write_tfds_own_layout(tmp_path)
  builder = tfds.builder_from_directory(tmp_path / 'cifar10/3.0.2')
  ids = [row['id'] for row in builder.as_data_source('train')]
  assert ids != sorted(ids)
  layouts.assert_is_the_data(cifar10.load(tmp_path))


def test_tfds_folder_with_missing_rows_is_refused(tmp_path):
  write_tfds_own_layout(tmp_path, rows=6 * layouts.ROWS - 1)
  message = r'has \[100, 19\] rows .* instead of \[100, 20\]'
  with pytest.raises(errors.InputError, match=message):
    cifar10.load(tmp_path)


def test_damaged_tfds_folder_is_refused(tmp_path):
  layouts.write('binary files', tmp_path)
  folder = builders.prepare('cifar10', tmp_path)
  for name in ('features.json', 'dataset_info.json',
               'cifar10-test.array_record-00000-of-00001'):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:len(content) // 2])
    with pytest.raises(errors.InputError, match='/1.0.0 cannot be read .*another --data_dir'):
      builders.read(folder)
    (folder / name).write_bytes(content)
  layouts.assert_is_the_data(builders.read(folder))


def test_builder_without_files_and_network_fails_at_once(tmp_path, monkeypatch):
  def no_network(request, timeout):
    assert timeout <= 10
    raise OSError('no route')

  monkeypatch.setattr(download.urllib.request, 'urlopen', no_network)
  with pytest.raises(errors.InputError, match='not be downloaded .no route.*network'):
    builders.prepare('cifar10', tmp_path)


@pytest.fixture(params=['mirflickr', 'nuswide'], name='dataset')
def each_dataset(request):
  return request.param


def prepare(dataset, data_dir):
  multilabel_layouts.WRITERS[dataset](data_dir)
  return builders.prepare(dataset, data_dir)


def test_prepared_folder_has_the_listed_rows_and_the_bytes_of_their_files(
    dataset, tmp_path, monkeypatch):
  monkeypatch.setattr(builders, 'SHARD', 30)
  folder = prepare(dataset, tmp_path)
  assert folder == multilabel.find_prepared(dataset, tmp_path)
  assert len(list(folder.glob('*array_record*'))) > 1
  listing = multilabel.read(dataset, tmp_path)
  found = builders.read_encoded(folder)
  assert found.names == found.images.names == listing.names
  assert (found.class_names, found.report) == (listing.class_names, '')
  np.testing.assert_array_equal(found.labels, listing.labels)
  for row, name in enumerate(listing.names):
    assert found.images.read(row) == (listing.root / name).read_bytes()
  rows = [40, 3]
  np.testing.assert_array_equal(
      found.images[np.array(rows)].decode(1, 4, 3),
      images.decode((listing.root / listing.names[3]).read_bytes(), 4))
  source = tfds.builder_from_directory(folder).as_data_source('images')  # TFDS reads it itself
  assert [row['name'].decode() for row in source] == listing.names
  np.testing.assert_array_equal([row['labels'] for row in source], listing.labels)
  assert source[5]['image'].shape == (9, 12, 3)


def test_labels_are_read_without_the_images(tmp_path):
  folder = prepare('mirflickr', tmp_path)
  next(folder.glob('*array_record*')).unlink()
  found = builders.read_encoded(folder)
  np.testing.assert_array_equal(found.labels, multilabel_layouts.mirflickr_labels())
  with pytest.raises(errors.InputError, match='im3.jpg cannot be decoded .*/1.0.0 cannot be'):
    found.images.decode(2, 8, 3)


def test_more_images_than_fit_into_memory_need_no_tensorflow(tmp_path, monkeypatch):
  monkeypatch.setattr(shuffle, 'MAX_MEM_BUFFER_SIZE', 1000)
  assert len(builders.read_encoded(prepare('mirflickr', tmp_path)).names) == 200
  assert 'tensorflow' not in sys.modules


def test_threads_read_the_right_bytes(tmp_path, monkeypatch):
  monkeypatch.setattr(builders, 'SHARD', 30)
  encoded = builders.read_encoded(prepare('mirflickr', tmp_path)).images
  rows = np.random.default_rng(0).integers(0, 200, 2000).tolist()
  with futures.ThreadPoolExecutor(8) as pool:
    contents = list(pool.map(encoded.read, rows))
  expected = [multilabel_layouts.jpeg(i + 1) for i in range(200)]
  assert contents == [expected[row] for row in rows]


def test_unusable_images_are_left_out_and_reported(tmp_path):
  multilabel_layouts.write_mirflickr(tmp_path)
  (tmp_path / 'mirflickr/im2.jpg').unlink()
  (tmp_path / 'mirflickr/im50.jpg').write_bytes(multilabel_layouts.jpeg(50)[:300])
  folder = builders.prepare('mirflickr', tmp_path)
  found = builders.read_encoded(folder)
  assert list(json.loads((folder / 'skipped.json').read_text())) == ['im2.jpg', 'im50.jpg']
  assert found.names == [f'im{i}.jpg' for i in range(1, 201) if i not in (2, 50)]
  np.testing.assert_array_equal(
      found.labels, np.delete(multilabel_layouts.mirflickr_labels(), [1, 49], axis=0))
  assert found.images.read(48) == multilabel_layouts.jpeg(51)
  sentences = builders.report(folder)
  assert sentences.startswith(f'Prepared {folder}: 198 images with 4 labels. 2 of 200 images '
                              'were left out (first im2.jpg: No such file or directory; im50.jpg: ')
  assert sentences.endswith(f'all are in {folder}/skipped.json.')


def test_report_of_a_complete_copy_is_one_sentence(tmp_path, capsys):
  folder = prepare('nuswide', tmp_path)
  assert capsys.readouterr() == ('', '')  # nothing about downloads
  assert builders.report(folder) == f'Prepared {folder}: 56 images with 3 labels.'


def test_too_many_unusable_images_leave_no_folder(tmp_path):
  multilabel_layouts.write_mirflickr(tmp_path)
  for i in range(1, 4):
    (tmp_path / f'mirflickr/im{i}.jpg').write_bytes(b'')
  with pytest.raises(errors.InputError, match='^3 of 200 images .*im1.jpg: the file is empty'):
    builders.prepare('mirflickr', tmp_path)
  assert not (tmp_path / 'mir_flickr').exists() and not (tmp_path / 'downloads').exists()


def test_absent_official_files_are_named(dataset, tmp_path):
  with pytest.raises(errors.InputError, match=f'^No .* in {tmp_path} .looked in '):
    builders.prepare(dataset, tmp_path)


def test_a_second_prepare_does_nothing(dataset, tmp_path):
  folder = prepare(dataset, tmp_path)
  before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
  for path in (tmp_path / 'annotations', tmp_path / 'Groundtruth'):
    if path.exists():
      path.rename(tmp_path / 'away')  # a prepared folder needs no official files
  assert builders.prepare(dataset, tmp_path) == folder
  assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_an_unfinished_folder_never_looks_finished(tmp_path, monkeypatch):
  multilabel_layouts.write_mirflickr(tmp_path)
  original = builders._examples

  def assert_absent():
    with pytest.raises(errors.InputError, match='No prepared MIRFlickr-25K'):
      multilabel.find_prepared('mirflickr', tmp_path)

  def interrupted(*arguments):
    for number, example in original(*arguments):
      if number == 150:
        assert list((tmp_path / 'mir_flickr').iterdir())  # a kill would leave files behind,
        assert_absent()                                   # which have another name
        raise KeyboardInterrupt
      yield number, example

  with monkeypatch.context() as patch:
    patch.setattr(builders, '_examples', interrupted)
    with pytest.raises(KeyboardInterrupt):
      builders.prepare('mirflickr', tmp_path)
  assert_absent()
  (tmp_path / 'mir_flickr' / 'incomplete.ABCDEF_1.0.0').mkdir(parents=True)
  assert len(builders.read_encoded(builders.prepare('mirflickr', tmp_path)).names) == 200


def test_a_damaged_multi_label_folder_is_refused(tmp_path):
  folder = prepare('mirflickr', tmp_path)
  for name in ('features.json', 'dataset_info.json', 'rows.npz', 'skipped.json'):
    content = (folder / name).read_bytes()
    for share in (0, 0.5):
      (folder / name).write_bytes(content[:int(share * len(content))])
      assert builders.prepare('mirflickr', tmp_path) == folder
      with pytest.raises(errors.InputError, match='/1.0.0 cannot be read .*delete it and prep'):
        builders.report(folder)
    (folder / name).write_bytes(content)
  assert builders.report(folder) == f'Prepared {folder}: 200 images with 4 labels.'


def test_names_and_images_that_do_not_match_are_refused(tmp_path):
  path = prepare('mirflickr', tmp_path) / 'rows.npz'
  with np.load(path) as rows:
    arrays = dict(rows)
  np.savez(path, **(arrays | {'names': arrays['names'][1:]}))
  with pytest.raises(errors.InputError, match='it has 200 images, 199 names, 200 rows of lab'):
    builders.read_encoded(path.parent)
