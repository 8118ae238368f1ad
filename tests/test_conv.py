"""Both ways of the convolution give the same numbers and gradients."""

import jax
import numpy as np
import pytest

from mah_jax.models import conv

LAYOUT = ('NHWC', 'HWIO', 'NHWC')


@pytest.mark.parametrize('size, ci, k, stride, padding', [
    (2, 24, 3, 1, 'SAME'),            # small output
    (1, 24, 3, 1, ((1, 1), (1, 1))),
    (4, 24, 3, 2, ((1, 1), (1, 1))),
    (3, 24, 3, 2, 'SAME'),
    (5, 24, 4, 1, 'VALID'),
    (9, 3, 2, 1, 'SAME'),             # small patch, padded on one side only
    (9, 1, 3, 2, 'SAME'),
    (2, 40, 1, 1, ((0, 0), (0, 0))),
    (9, 24, 3, 1, 'SAME'),            # neither
])
def test_it_is_the_convolution_of_xla(size, ci, k, stride, padding):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(3, size, size, ci)).astype(np.float32)
  kernel = rng.normal(size=(k, k, ci, 6)).astype(np.float32)

  def total(convolve):
    def loss(x, kernel):
      y = convolve(x, kernel, (stride, stride), padding, dimension_numbers=LAYOUT)
      return (y ** 2).sum(), y
    return jax.value_and_grad(loss, (0, 1), has_aux=True)(x, kernel)

  (_, ours), our_grads = total(conv.convolve)
  (_, theirs), their_grads = total(jax.lax.conv_general_dilated)
  assert ours.shape == theirs.shape
  for a, b in zip((ours, *our_grads), (theirs, *their_grads)):
    np.testing.assert_allclose(a, b, atol=1e-4 * float(np.abs(b).max()))


@pytest.mark.parametrize('size, ci, patches', [(2, 24, True), (9, 1, True), (9, 24, False)])
def test_patches_are_used_where_they_are_faster(size, ci, patches, monkeypatch):
  used = []
  plain = conv._by_patches
  monkeypatch.setattr(conv, '_by_patches', lambda *args: used.append(1) or plain(*args))
  conv.convolve(np.ones((1, size, size, ci), np.float32), np.ones((3, 3, ci, 2), np.float32),
                (1, 1), 'SAME', dimension_numbers=LAYOUT)
  assert bool(used) == patches
