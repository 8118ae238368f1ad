"""The facts that a fetched copy of CIFAR-10 is compared with."""

import pathlib

import cifar10_layouts as layouts
import numpy as np
import pytest

from mah_jax import errors
from mah_jax.data import cifar10
from mah_jax.data import fetch


def verify(monkeypatch, **changes):
  monkeypatch.setattr(cifar10, 'ROWS_PER_FILE', layouts.ROWS)
  monkeypatch.setattr(fetch, 'CIFAR10', layouts.facts()._replace(**changes))
  images, labels = layouts.arrays()
  return fetch.verify(pathlib.Path('folder/copy'), images, cifar10.one_hot(labels))


def test_a_true_copy_is_said_to_be_verified(monkeypatch):
  assert verify(monkeypatch).startswith('Verified folder/copy: 120 images, 12 of each')


@pytest.mark.parametrize('field, value', [
    ('mean', (0.5, 0.5, 0.5)), ('std', (0.3, 0.3, 0.3)), ('rows_per_class', 13),
    ('first_train', (0, 0, 0, 0, 0)), ('first_test', (0, 0, 0, 0, 0))])
def test_every_fact_is_compared(field, value, monkeypatch):
  with pytest.raises(errors.InputError, match=f'folder/copy has {field} .* delete it'):
    verify(monkeypatch, **{field: value})


@pytest.mark.parametrize('field', ['mean', 'std'])
def test_the_tolerance_is_a_millionth(field, monkeypatch):
  value = getattr(layouts.facts(), field)
  verify(monkeypatch, **{field: value + 5e-7})
  with pytest.raises(errors.InputError, match=f'has {field}'):
    verify(monkeypatch, **{field: value + 2e-6})


def test_channel_statistics_are_those_of_the_pixels():
  images = np.array([0, 255, 51, 51], np.uint8).reshape(2, 1, 1, 2)  # 0, 51 and 255, 51
  mean, std = fetch.channel_statistics(images)
  np.testing.assert_allclose(mean, [0.1, 0.6], atol=1e-15)
  np.testing.assert_allclose(std, [0.1, 0.4], atol=1e-15)
