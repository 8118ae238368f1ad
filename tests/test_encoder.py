"""Encoding beyond the network itself: mirror images, and codes that are words."""

import jax
import numpy as np
import pytest
import toy

from mah_jax import errors
from mah_jax.train import trainer


def test_with_mirror_an_image_and_its_mirror_image_are_averaged():
  data = toy.dataset()
  mirrored = data._replace(images=np.ascontiguousarray(data.images[:, :, ::-1]))
  rows = np.arange(70)  # one batch and a short one

  def outputs(data, **changes):
    made = toy.make(2, data=data, **changes)
    return made.outputs(made.new_state(), rows)

  plain, other = outputs(data), outputs(mirrored)
  for u, v, mean in zip(plain, other, outputs(data, mirror=True)):
    assert np.abs(u - v).max() > 1e-3
    np.testing.assert_allclose(mean, (u + v) / 2, atol=1e-6)


def test_training_does_not_depend_on_mirror():
  rows = np.arange(70)
  plain, mirrored = (made.database_outputs(made.new_state(), rows)
                     for made in (toy.make(), toy.make(mirror=True)))
  jax.tree.map(np.testing.assert_array_equal, plain, mirrored)


def test_codes_from_before_their_first_update_are_no_words():
  method = toy.method(np.eye(3, dtype=np.uint8), binarize='nearest')
  solved, zeros = np.ones((5, 4), np.int8), np.zeros((5, 4), np.int8)
  assert trainer.words(method, (solved,))[0].tolist() == [[1] * 4]
  with pytest.raises(errors.InputError, match='go on training'):
    trainer.words(method, (solved, zeros))
