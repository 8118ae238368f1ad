"""The table of datasets, protocols and lists of queries, and the checks at the border."""

import hashlib
import json
import pathlib
import subprocess
import sys

import multilabel_layouts
import numpy as np
import pytest

from mah_jax import errors
from mah_jax.data import builders
from mah_jax.data import cifar10
from mah_jax.data import datasets
from mah_jax.data import images as images_lib
from mah_jax.data import splits


@pytest.fixture(scope='module', name='digits')
def load_digits():
  return datasets.load('digits', 'no/such/folder', split_seed=0)


def test_digits_are_those_that_results_were_made_with(digits):
  assert digits.images.shape == (1797, 8, 8, 1) and digits.labels.shape == (1797, 10)
  assert digits.images.dtype == digits.labels.dtype == np.uint8
  assert digits.images.max() == 240
  assert [hashlib.sha256(array.tobytes()).hexdigest() for array in digits[:2]] == [
      'f7e1d7ca038133a62e5bed33a04474826df2b11ae9fb5f7cca56c9767f6637b2',
      '1762043d34ed522559dbd8987b38ac7141ea4b2f22a85fde7b2a191ff1c3534a']


def test_digits_are_those_of_scikit_learn(digits):
  original = pytest.importorskip('sklearn.datasets').load_digits()
  np.testing.assert_array_equal(digits.images[..., 0], 15 * original.images)
  np.testing.assert_array_equal(digits.labels, original.target[:, None] == np.arange(10))


def test_digits_protocol(digits):
  protocol = digits.protocol
  assert digits.labels[protocol.queries].sum(axis=0).tolist() == [10] * 10
  assert (len(protocol.queries), len(protocol.database)) == (100, 1697)
  assert protocol.name == 'digits-100-queries'
  # Published numbers refer to this split: it may not change from release to release.
  assert protocol.id == '9ebca9908ae9a073b9e3654541fa46169088eb17202563a66b0f5582eca024a2'


def test_split_seed_changes_the_split_only(digits):
  other = datasets.load('digits', '', split_seed=1)
  assert other.protocol.id != digits.protocol.id
  np.testing.assert_array_equal(other.images, digits.images)


def test_digits_mean_and_std_are_measured(digits):
  np.testing.assert_allclose(digits.mean, [(digits.images / 255).mean()], atol=1e-8)
  np.testing.assert_allclose(digits.std, [(digits.images / 255).std()], atol=1e-8)


@pytest.mark.parametrize('name', datasets.SPECS)
def test_every_spec_has_one_mean_and_std_per_channel_and_named_protocols(name):
  spec = datasets.SPECS[name]
  channels = 1 if name == 'digits' else 3
  assert len(spec.mean) == len(spec.std) == channels
  assert all(protocol.startswith(name) for protocol in spec.protocols)


def test_the_facts_that_others_ask_for():
  assert datasets.DEFAULT == 'cifar10'
  assert [name for name, spec in datasets.SPECS.items() if spec.takes_query_fraction] == ['folder']
  assert [name for name, spec in datasets.SPECS.items() if spec.has_names] == [
      'mirflickr', 'nuswide', 'folder']


def test_the_help_texts_speak_of_every_dataset_and_protocol(monkeypatch):
  spec = datasets.SPECS['digits']._replace(files='a box', protocols={'p': None, 'q': None})
  monkeypatch.setitem(datasets.SPECS, 'new', spec)
  for text in (datasets.data_dir_help(), datasets.protocol_help()):
    assert all(name in text for name in datasets.SPECS) and text.endswith('.')
  assert 'for new a box' in datasets.data_dir_help()
  assert 'new has p and q' in datasets.protocol_help()
  assert 'mirflickr has mirflickr-1000-queries and mirflickr-1700' in datasets.protocol_help()
  assert ('cifar10 has cifar10-1000-queries and cifar10-5000-training and cifar10-validation (the '
          'second has the queries of the first, and 500 database rows of each class for'
          ) in datasets.protocol_help()


def test_the_protocols_of_every_dataset():
  assert {name: list(spec.protocols) for name, spec in datasets.SPECS.items()} == {
      'digits': ['digits-100-queries', 'digits-500-training'],
      'cifar10': ['cifar10-1000-queries', 'cifar10-5000-training', 'cifar10-validation'],
      'mirflickr': ['mirflickr-1000-queries', 'mirflickr-1700-queries',
                    'mirflickr-5000-training', 'mirflickr-validation'],
      'nuswide': ['nuswide-1000-queries', 'nuswide-2100-queries'],
      'folder': ['folder', 'folder-unlabelled'],
  }


def rows_of_all_kinds(rows=4000, classes=21):
  labels = (np.random.default_rng(0).random((rows, classes)) < 0.1).astype(np.uint8)
  return datasets.Dataset(np.zeros((rows, 1, 1, 3), np.uint8), labels, tuple('x' * classes))


@pytest.mark.parametrize('name, protocol, queries, all_labelled', [
    ('mirflickr', '', 1000, True),
    ('mirflickr', 'mirflickr-1700-queries', 1700, False),
    ('nuswide', 'nuswide-1000-queries', 1000, True),
    ('nuswide', 'nuswide-2100-queries', 2100, True),
])
def test_protocols_of_the_multi_label_datasets(
    name, protocol, queries, all_labelled, monkeypatch):
  data = rows_of_all_kinds()
  spec = datasets.SPECS[name]._replace(load=lambda source: data)
  monkeypatch.setitem(datasets.SPECS, name, spec)
  loaded = datasets.load(name, '', 0, protocol=protocol)
  assert loaded.protocol.name == (protocol or 'mirflickr-1000-queries')
  assert len(loaded.protocol.queries) == queries
  assert len(loaded.protocol.database) == 4000 - queries
  assert data.labels[loaded.protocol.queries].any(axis=1).all() == all_labelled
  assert not data.labels[loaded.protocol.database].any(axis=1).all()


def test_a_validation_protocol_leaves_the_queries_out(monkeypatch):
  data = rows_of_all_kinds()
  monkeypatch.setitem(datasets.SPECS, 'mirflickr',
                      datasets.SPECS['mirflickr']._replace(load=lambda source: data))
  base = datasets.load('mirflickr', '', 3).protocol
  split = datasets.load('mirflickr', '', 3, protocol='mirflickr-validation').protocol
  assert (split.name, len(split.queries), len(split.database)) == (
      'mirflickr-validation', 1000, 2000)
  assert data.labels[split.queries].any(axis=1).all()
  assert sorted([*split.queries, *split.database]) == sorted(base.database)


@pytest.mark.parametrize('seed', [0, 3])
@pytest.mark.parametrize('name, queries, training', [('digits', 10, 50), ('cifar10', 100, 500)])
def test_protocols_with_training_rows_of_each_class(name, queries, training, seed, monkeypatch):
  rows = {'digits': 1_000, 'cifar10': 60_000}[name]
  labels = np.eye(10, dtype=np.uint8)[np.arange(rows) % 10]
  data = rows_of_all_kinds()._replace(labels=labels, images=np.zeros((rows, 1, 1, 3), np.uint8))
  monkeypatch.setitem(datasets.SPECS, name,
                      datasets.SPECS[name]._replace(load=lambda source: data))
  base = datasets.load(name, '', seed).protocol
  split = datasets.load(name, '', seed, protocol=f'{name}-{10 * training}-training').protocol
  assert split.queries.tolist() == base.queries.tolist()
  assert split.database.tolist() == base.database.tolist()
  assert labels[split.queries].sum(axis=0).tolist() == [queries] * 10
  assert labels[split.training].sum(axis=0).tolist() == [training] * 10
  assert set(split.training.tolist()) <= set(split.database.tolist())
  assert len(split.training) == len(set(split.training.tolist())) < len(split.database)
  assert base.training is base.database and split.id != base.id


def test_the_mirflickr_protocol_with_training_rows(monkeypatch):
  data = rows_of_all_kinds(rows=9_000)
  monkeypatch.setitem(datasets.SPECS, 'mirflickr',
                      datasets.SPECS['mirflickr']._replace(load=lambda source: data))
  split = datasets.load('mirflickr', '', 0, protocol='mirflickr-5000-training').protocol
  assert (len(split.queries), len(split.database), len(split.training)) == (2_000, 7_000, 5_000)
  assert data.labels[split.queries].any(axis=1).all()
  assert data.labels[split.training].any(axis=1).all()
  assert set(split.training.tolist()) < set(split.database.tolist())
  assert split.content


def test_the_authors_nuswide_protocol_draws_100_for_each_label(monkeypatch):
  labels = np.eye(21, dtype=np.uint8)[np.arange(4200) % 21]
  data = rows_of_all_kinds()._replace(labels=labels)
  draw = datasets.SPECS['nuswide'].protocols['nuswide-2100-queries']
  assert labels[draw(data, 0.1, 0, 'toy').queries].sum(axis=0).tolist() == [100] * 21


def test_what_was_read_is_checked(monkeypatch):
  data = rows_of_all_kinds()
  data.labels[7] = 2
  spec = datasets.SPECS['mirflickr']._replace(load=lambda source: data)
  monkeypatch.setitem(datasets.SPECS, 'mirflickr', spec)
  with pytest.raises(errors.InputError, match='Row 7 of the labels'):
    datasets.load('mirflickr', '', 0)


def test_unknown_protocol_lists_those_of_the_dataset():
  message = "'cifar10-1000-queries' of dataset mirflickr.*mirflickr-1000-queries, mirflickr-1"
  with pytest.raises(errors.UsageError, match=message):
    datasets.load('mirflickr', '', 0, protocol='cifar10-1000-queries')


@pytest.mark.parametrize('name', ['mirflickr', 'nuswide'])
def test_a_dataset_that_is_not_prepared_names_the_command(name, tmp_path):
  with pytest.raises(errors.InputError, match=f'data.fetch {name} --data_dir={tmp_path}'):
    datasets.load(name, str(tmp_path), 0)


@pytest.fixture(name='flickr')
def prepared_mirflickr(tmp_path, monkeypatch):
  """Loads 200 photographs, prepared, with a protocol of 20 queries."""
  multilabel_layouts.use_small_layouts(monkeypatch)
  multilabel_layouts.write_mirflickr(tmp_path)
  (tmp_path / 'mirflickr/im9.jpg').unlink()
  builders.prepare('mirflickr', tmp_path)
  spec = datasets.SPECS['mirflickr']._replace(
      protocols={'few': datasets._random(20, labelled_only=True)})
  monkeypatch.setitem(datasets.SPECS, 'mirflickr', spec)
  return lambda **options: datasets.load('mirflickr', str(tmp_path), 0, **options)


def test_a_prepared_dataset(flickr):
  data = flickr()
  assert isinstance(data.images, images_lib.Encoded) and len(data.images) == 199
  assert list(data.names) == data.images.names
  labels = np.delete(multilabel_layouts.mirflickr_labels(), 8, axis=0)
  np.testing.assert_array_equal(data.labels, labels)
  assert data.class_names == ('animals', 'baby', 'baby_r1', 'sky')
  assert data.mean == (0.389, 0.420, 0.436) and data.std == (0.239, 0.235, 0.246)
  assert data.report.startswith('1 of 200 images were left out (first im9.jpg: ')
  row = data.protocol.queries[3]
  i = int(data.names[row][2:-4])
  np.testing.assert_array_equal(data.images[data.protocol.queries].decode(3, 4, 3),
                                images_lib.decode(multilabel_layouts.jpeg(i), 4))


def test_the_id_of_a_prepared_dataset_depends_on_its_names_and_labels(flickr):
  data = flickr()
  assert data.protocol.content == splits.fingerprint(data.names, data.labels)
  assert data.protocol.id == flickr().protocol.id
  # Numbers that anybody publishes refer to rows by this id.
  assert data.protocol.id == (
      '47d1608fe49c4c7b797a4607a4440d95ddd3156e41588ee7ed553f149fe842f7')


def test_a_list_of_queries_replaces_the_protocol(flickr, tmp_path):
  (tmp_path / 'queries.txt').write_text('# mine\nim30.jpg\n./im2.jpg\n\nim1.jpg\n')
  protocol = flickr(query_list=str(tmp_path / 'queries.txt')).protocol
  assert protocol.name == 'query-list' and len(protocol.database) == 196
  assert protocol.queries.tolist() == [28, 1, 0]  # im9.jpg was left out
  assert protocol.content


@pytest.mark.parametrize('rows', [[0, 3], [0, 2], [3]])
def test_listed_queries_may_have_no_label(rows):
  labels = np.array([[1, 0], [1, 0], [0, 1], [0, 0], [0, 1]])
  splits.check_chosen(np.array(rows), labels, ['x', 'y'])


def test_listed_queries_leave_every_class_an_image():
  labels = np.array([[1, 0], [1, 0], [0, 1], [0, 0], [0, 1]])
  with pytest.raises(errors.InputError, match="all images of class 'x'"):
    splits.check_chosen(np.array([0, 3, 1]), labels, ['x', 'y'])


def test_a_list_with_an_image_that_was_left_out_is_refused(flickr, tmp_path):
  (tmp_path / 'queries.txt').write_text('im30.jpg\nim9.jpg\n')
  with pytest.raises(errors.InputError, match="Line 2 of .*queries.txt names 'im9.jpg'"):
    flickr(query_list=str(tmp_path / 'queries.txt'))


def test_a_list_of_queries_needs_names(tmp_path, monkeypatch):
  spec = datasets.SPECS['digits']._replace(load=None)  # nothing is read before the refusal
  monkeypatch.setitem(datasets.SPECS, 'digits', spec)
  with pytest.raises(errors.UsageError, match='images of digits have no .*queries.txt'):
    datasets.load('digits', '', 0, query_list=str(tmp_path / 'queries.txt'))


def test_a_row_is_named_by_its_file_or_else_by_its_number(digits, flickr):
  rows = digits.protocol.queries[:3]
  names = digits.row_names(rows)
  assert names == rows.tolist() and {type(name) for name in names} == {int}
  data = flickr()
  assert data.row_names([0, 8, 198]) == ['im1.jpg', 'im10.jpg', 'im200.jpg']
  assert data.row_names(data.protocol.database) == data.images[data.protocol.database].names
  json.dumps([names, data.row_names(data.protocol.queries)])


@pytest.fixture(name='folder')
def folder_of_two_classes(tmp_path):
  for i in range(60):
    path = tmp_path / 'pictures' / ('cat', 'dog')[i % 3 == 0] / f'{i}.jpg'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(multilabel_layouts.jpeg(i))
  return tmp_path / 'pictures'


def test_a_folder_is_split_by_a_share_of_each_class(folder, tmp_path):
  started, checked = [], []

  def on_start(total):
    started.append(total)
    return lambda: checked.append(1)

  data = datasets.load('folder', str(folder), 0, cache_dir=tmp_path / 'cache',
                       on_start=on_start)
  assert started == [60] and len(checked) == 60
  assert data.class_names == ('cat', 'dog') and data.names[0] == 'cat/1.jpg'
  assert data.labels[data.protocol.queries].sum(axis=0).tolist() == [4, 2]
  assert data.protocol.name == 'folder' and data.protocol.content
  assert data.mean == (0.485, 0.456, 0.406) and data.report == ''
  half = datasets.load('folder', str(folder), 0, query_fraction=0.5,
                       cache_dir=tmp_path / 'cache', on_start=on_start)
  assert half.labels[half.protocol.queries].sum(axis=0).tolist() == [20, 10]
  assert started == [60]  # the second time, the cache knew
  assert sorted(path.name for path in folder.iterdir()) == ['cat', 'dog']


def test_a_folder_needs_neither_cache_nor_progress(folder):
  assert len(datasets.load('folder', str(folder), 0).images) == 60


def test_cifar10_is_handed_on(tmp_path, monkeypatch):
  labels = np.eye(10, dtype=np.uint8)[np.arange(2000) % 10]
  images = np.zeros((2000, 2, 2, 3), np.uint8)
  copy = cifar10.Copy(tmp_path, lambda: (images, labels))
  monkeypatch.setattr(cifar10, 'find', lambda data_dir: copy)
  data = datasets.load('cifar10', str(tmp_path), 0)
  assert data.images is images and data.labels is labels
  assert data.class_names == cifar10.CLASS_NAMES
  assert not data.names and not data.protocol.content
  assert len(data.protocol.queries) == 1000


def test_unknown_name_lists_the_known_ones():
  with pytest.raises(errors.UsageError, match="'mnist'.*cifar10, digits"):
    datasets.load('mnist', '', 0)


def test_tilde_is_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  with pytest.raises(errors.InputError, match=f'No CIFAR-10 in {tmp_path}/here'):
    datasets.load('cifar10', '~/here', 0)


def images_and_labels():
  return np.zeros((4, 2, 2, 3), np.uint8), np.eye(4, dtype=np.uint8)


def test_check_accepts_one_hot_multi_hot_and_unlabelled_rows():
  images, labels = images_and_labels()
  datasets.check(images, labels)
  labels[0] = [1, 1, 0, 1]
  labels[1] = 0
  datasets.check(images, labels)
  datasets.check(images, labels[:, :0], unlabelled=True)


@pytest.mark.parametrize('image_shape, label_shape, message', [
    ((4, 2, 2), (4, 3), 'shape'),
    ((4, 2, 2, 3), (4,), 'shape'),
    ((4, 2, 2, 3), (5, 3), '4 images but 5 rows of labels'),
    ((0, 2, 2, 3), (0, 3), 'empty'),
    ((4, 0, 2, 3), (4, 3), 'empty'),
    ((4, 2, 2, 3), (4, 0), 'empty'),
    ((0, 2, 2, 3), (0, 0), 'empty'),
])
def test_check_refuses_wrong_shapes(image_shape, label_shape, message):
  with pytest.raises(errors.InputError, match=message):
    datasets.check(np.zeros(image_shape, np.uint8), np.zeros(label_shape, np.uint8))


def test_check_of_images_in_files():
  encoded = images_lib.Encoded(lambda row: b'', ['a', 'b'])
  datasets.check(encoded, np.eye(2, dtype=np.uint8))
  with pytest.raises(errors.InputError, match='2 images but 3 rows of labels'):
    datasets.check(encoded, np.eye(3, dtype=np.uint8))
  with pytest.raises(errors.InputError, match='Row 1 of the labels'):
    datasets.check(encoded, np.diag([1, 2]))


@pytest.mark.parametrize('value', [2, 255])
def test_check_names_the_first_row_with_a_bad_label(value):
  images, labels = images_and_labels()
  labels[2, 1] = value
  with pytest.raises(errors.InputError, match='Row 2 of the labels'):
    datasets.check(images, labels)


def test_check_counts_images_that_are_not_finite():
  images, labels = images_and_labels()
  images = images.astype(np.float32)
  images[1, 0, 0, 0] = np.nan
  images[1, 1, 0, 0] = np.nan
  images[3, 0, 1, 2] = -np.inf
  with pytest.raises(errors.InputError, match='^2 images hold NaN or infinity.* row 1;'):
    datasets.check(images, labels)


@pytest.mark.parametrize('dtype', [np.float32, np.float64, np.int64, np.int8, bool])
def test_check_refuses_every_type_but_uint8(dtype):
  images, labels = images_and_labels()
  with pytest.raises(errors.InputError, match=f'dtype {np.dtype(dtype)}; store .* uint8'):
    datasets.check(images.astype(dtype), labels)


def test_import_does_not_pay_for_tfds_or_scikit_learn():
  code = ('import sys; from mah_jax.data import datasets, fetch; '
          'sys.exit(any(m in sys.modules for m in ("tensorflow_datasets", "sklearn")))')
  root = pathlib.Path(datasets.__file__).parents[2]
  assert subprocess.run([sys.executable, '-c', code], cwd=root).returncode == 0
