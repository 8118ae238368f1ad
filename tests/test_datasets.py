"""The table of datasets, the digits, and the checks at the border."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from sklearn import datasets as sklearn_datasets

from mah_jax import errors
from mah_jax.data import datasets


@pytest.fixture(scope='module', name='digits')
def load_digits():
  return datasets.load('digits', 'no/such/folder', split_seed=0)


def test_digits_are_those_of_scikit_learn(digits):
  original = sklearn_datasets.load_digits()
  assert digits.images.shape == (1797, 8, 8, 1)
  assert digits.images.dtype == digits.labels.dtype == np.uint8
  for row in (0, 900, 1796):
    for y in range(8):
      for x in range(8):
        assert digits.images[row, y, x, 0] == 15 * original.images[row, y, x]
    expected = [int(k == original.target[row]) for k in range(10)]
    assert digits.labels[row].tolist() == expected
  assert digits.images.max() == 240


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
def test_every_spec_has_one_entry_per_channel_and_class(name):
  spec = datasets.SPECS[name]
  channels = {'digits': 1, 'cifar10': 3}[name]
  assert len(spec.mean) == len(spec.std) == channels
  assert len(set(spec.class_names)) == 10
  assert all(isinstance(class_name, str) for class_name in spec.class_names)


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


@pytest.mark.parametrize('image_shape, label_shape, message', [
    ((4, 2, 2), (4, 3), 'shape'),
    ((4, 2, 2, 3), (4,), 'shape'),
    ((4, 2, 2, 3), (5, 3), '4 images but 5 rows of labels'),
    ((0, 2, 2, 3), (0, 3), 'empty'),
    ((4, 0, 2, 3), (4, 3), 'empty'),
    ((4, 2, 2, 3), (4, 0), 'empty'),
])
def test_check_refuses_wrong_shapes(image_shape, label_shape, message):
  with pytest.raises(errors.InputError, match=message):
    datasets.check(np.zeros(image_shape, np.uint8), np.zeros(label_shape, np.uint8))


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
