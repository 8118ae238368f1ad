"""The classifier baseline: its loss, and codewords for classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toy

from mah_jax.methods import classifier
from mah_jax.train import backbone

LABELS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]], np.uint8)


def _method(labels=LABELS):
  return toy.method(labels, method='classifier', code_lengths=(2, 4))


def test_loss_is_the_cross_entropy_with_the_shares_of_the_labels():
  method = _method()
  sampled = np.array([4, 3, 0])
  logits = jnp.log(jnp.array([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]]))
  seen = reference.seen((logits,), np.arange(3))
  loss, _ = method.loss((logits,), method.targets((), sampled, 0), seen)
  # No label: nothing to learn. Labels 0 and 1: half of each. Label 0 alone.
  expected = [0.0, -0.5 * (np.log(0.2) + np.log(0.3)), -np.log(0.7)]
  np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize('logits', [[1e30, -1e30], [-1e30, 1e30], [0.0, 0.0]])
@pytest.mark.parametrize('wanted', [[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])
def test_gradients_are_finite_at_the_extremes(logits, wanted):
  gradient = jax.grad(lambda x: classifier.cross_entropy(x, jnp.array([wanted])).sum())(
      jnp.array([logits]))
  assert np.isfinite(gradient).all()


def test_an_image_gets_the_codeword_of_its_likeliest_class():
  method = _method()
  short, long = method.query_embeddings((np.array([[5.0, 1, 2], [0, 9, 8], [0, 1, 2]]),))
  learned = method.learned(method.init_codes())
  np.testing.assert_array_equal(short, learned[0][:3])
  np.testing.assert_array_equal(long, learned[1][:3])
  assert len({tuple(word.tolist()) for word in long}) == 3


def test_codewords_do_not_need_the_database():
  outputs = (np.eye(3),)
  for own, other in zip(_method().query_embeddings(outputs),
                        _method(LABELS[:0]).query_embeddings(outputs)):
    np.testing.assert_array_equal(own, other)


def test_learned_and_encoded_codes_differ_only_where_a_row_is_misclassified(monkeypatch):
  monkeypatch.setattr(backbone, 'make', lambda config, platform: toy.Backbone())
  made = toy.make(method='classifier', num_rounds=2, num_sampled=0)
  state = toy.fit(made)[-1].state
  logits, = made.database_outputs(state, np.arange(len(made.labels)))
  right = logits.argmax(axis=1) == made.labels.argmax(axis=1)
  encoded = made.method.database_embeddings((logits,))[1]
  same = (encoded == np.asarray(state.codes[1])).all(axis=1)
  np.testing.assert_array_equal(same, right)
  assert right.mean() > 0.5


@pytest.mark.parametrize('columns', [1, 12])
def test_any_number_of_classes_has_codewords(columns):
  assert _method(np.zeros((0, columns), np.uint8)).query_embeddings((np.eye(columns),))
