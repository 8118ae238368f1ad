"""CIFAR-10 as TFDS prepares it: our builder, the layout of TFDS itself, damages."""

import io

import cifar10_layouts as layouts
import PIL.Image
import pytest
import tensorflow_datasets as tfds

from mah_jax import errors
from mah_jax.data import builders
from mah_jax.data import cifar10
from mah_jax.data import download


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
  monkeypatch.setattr(cifar10, 'ROWS_PER_FILE', layouts.ROWS)


@pytest.mark.parametrize('layout', ['binary folder', 'registry package'])
def test_prepared_tfds_folder_gives_the_same_arrays(layout, tmp_path):
  files = tmp_path / 'files'
  files.mkdir()
  layouts.write(layout, files)
  folder = builders.prepare(files)
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


@pytest.mark.parametrize('name', [
    'features.json', 'dataset_info.json', 'cifar10-test.array_record-00000-of-00001'])
def test_damaged_tfds_folder_is_refused(name, tmp_path):
  layouts.write('binary files', tmp_path)
  path = builders.prepare(tmp_path) / name
  path.write_bytes(path.read_bytes()[:len(path.read_bytes()) // 2])
  with pytest.raises(errors.InputError, match='/1.0.0 cannot be read .*another --data_dir'):
    builders.read(path.parent)


def test_builder_without_files_and_network_fails_at_once(tmp_path, monkeypatch):
  def no_network(request, timeout):
    assert timeout <= 10
    raise OSError('no route')

  monkeypatch.setattr(download.urllib.request, 'urlopen', no_network)
  with pytest.raises(errors.InputError, match='not be downloaded .no route.*network'):
    builders.prepare(tmp_path)
