"""DRSCH: triplets and Laplacian as plain loops, weights of bits, truncated codes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import toy
from flax import linen as nn

from mah_jax.data import pipeline
from mah_jax.methods import drsch
from mah_jax.train import backbone

N = 8  # images
LENGTHS = (2, 4)
WEIGHTS = np.array([0.2, -0.7, 1.5, 0.7], np.float32)


def _method(labels, **changes):
  return toy.method(labels, method='drsch', code_lengths=LENGTHS, **changes)


def _problem():
  """Outputs (x, weights) of N images of three classes, and their labels."""
  x = np.random.default_rng(0).normal(0, 0.3, (N, LENGTHS[-1])).astype(np.float32)
  return (x, np.tile(WEIGHTS, (N, 1))), np.eye(3, dtype=np.uint8)[np.arange(N) % 3]


def _by_loops(outputs, similar, margin, laplacian, steepness):
  """The published loss of images, triplet after triplet: the mean over triplets of each anchor.

  outputs: x and w of each image, [n, q].
  similar: whether two images share a label, [n][n].
  """
  x, w = outputs
  n = len(x)
  r = w * (2 / (1 + np.exp(-steepness * x)) - 1)
  distance = [[sum((a - b) ** 2 for a, b in zip(own, other)) for other in r] for own in r]
  total = trace = 0.0
  for i in range(n):
    hinges = [max(distance[i][j] - distance[i][k], -margin) + margin
              for j, k in itertools.permutations(set(range(n)) - {i}, 2)
              if similar[i][j] and not similar[i][k]]
    total += np.mean(hinges) if hinges else 0.0
    # tr(R L R') with L = D - W, as the sum over i and j of (D - W)_ij r_i . r_j.
    affinity = [1.0 if same else 1e-3 for same in similar[i]]
    for j in range(n):
      trace += (sum(affinity) * (i == j) - affinity[j]) * sum(a * b for a, b in zip(r[i], r[j]))
  return total / n + laplacian * trace / n**2


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('margin, laplacian, step, steepness, widened', [
    (1.0, 0.5, 0, 5.0, 1.0), (5.0, 0.0, 9_999, 5.0, 5.0), (0.0, 1e-3, 10_000, 5.5, 0.1),
    (3.0, 1e-2, 25_000, 6.05, 3.2)])
def test_loss_and_gradient_equal_the_triple_loop(
    margin, laplacian, step, steepness, widened, devices):
  """Several labels or none, two rows repeated; bits get steeper and the margin wider."""
  rng = np.random.default_rng(1)
  batch = toy.batch(rng)
  x = rng.normal(0, 0.3, (8, 4)).astype(np.float32)
  outputs = x, np.tile(WEIGHTS, (8, 1))
  memory = tuple(rng.normal(size=(12, 4)).astype(np.float32) for _ in outputs)
  method = _method(batch.labels, margin=margin, laplacian=laplacian)
  loss = toy.step_loss(method, method.targets((), batch.sampled, 0), batch, memory,
                       jnp.int32(step), devices)
  got, gradients = jax.jit(jax.value_and_grad(loss))(outputs)
  places, positions = zip(*batch.counted())
  similar = [[batch.similar()[p][q] for q in positions] for p in positions]

  def expected(arrays):
    return _by_loops([u[list(places)] for u in arrays], similar, widened, laplacian, steepness)

  assert got == pytest.approx(expected([u.astype(float) for u in outputs]), rel=1e-5) and got > 0
  for gradient, slope in zip(gradients, toy.slopes(expected, outputs)):
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-5)
    assert not np.any(gradient[batch.valid == 0])


def test_a_hand_worked_triplet():
  # Image 0 has a positive at 3 and negatives at 1 and 9; margin 2: (2 + 3 - 1 + 0) / 2.
  # Image 1 has no positive.
  got = drsch.triplet_loss(jnp.array([[0.0, 3.0, 1.0, 9.0]] * 2),
                           jnp.array([[0.0, 1.0, 0.0, 0.0], [0.0] * 4]),
                           jnp.array([[0.0, 0.0, 1.0, 1.0]] * 2), 2.0)
  np.testing.assert_allclose(got, [2.0, 0.0])


@pytest.mark.parametrize('labels, triplets', [
    (np.eye(3)[np.arange(N) % 3], True),
    (np.ones((N, 1)), False),   # a single class
    (np.eye(N), False),         # no image has a similar one
    (np.zeros((N, 2)), False),  # nor a label
])
@pytest.mark.parametrize('scale', [0.0, 1.0, 1e30])
def test_loss_and_gradient_are_finite_at_the_extremes(labels, triplets, scale):
  (x, weights), _ = _problem()
  method = _method(labels.astype(np.uint8), laplacian=0.0)
  targets = method.targets((), np.arange(N), 0)
  value, gradients = jax.jit(jax.value_and_grad(lambda outputs: method.loss(
      outputs, targets, reference.seen(outputs, np.arange(N)))[0].mean()))((scale * x, weights))
  assert np.isfinite(value) and all(np.isfinite(g).all() for g in gradients)
  assert (value > 0) == triplets
  if not triplets:
    assert not any(g.any() for g in gradients)


class _Pixels(nn.Module):
  """A backbone that compiles fast: the pixels themselves."""

  def __call__(self, images, train):
    del train
    return images.reshape(len(images), -1)


@pytest.fixture(scope='module')
def trained():
  """On 1 and 4 devices, after an epoch whose second and last batch has 36 rows."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(backbone, 'make', lambda config, platform: _Pixels())
    made = {d: toy.make(d, method='drsch', num_rounds=1, num_sampled=100, laplacian=0.1,
                        augment='none') for d in (1, 4)}
  return {d: (own, *toy.fit(own)) for d, own in made.items()}


def test_training_is_the_same_on_four_devices(trained):
  (_, expected), (_, pause) = trained[1], trained[4]
  for ours, theirs in zip(jax.tree.leaves(pause.state.params),
                          jax.tree.leaves(expected.state.params), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  assert len(pause.history) == 2
  for ours, theirs in zip(pause.history, expected.history):
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ours['loss'] == pytest.approx(ours['triplet'] + ours['laplacian'])


def test_weights_of_bits_start_at_one_and_learn(trained):
  made, pause = trained[1]
  np.testing.assert_array_equal(made.new_state().params['heads']['weights'], np.ones(5))
  x, weights = made.database_outputs(pause.state, np.arange(7))
  assert x.shape == weights.shape == (7, 5) and np.all(weights != 1)
  assert np.all(weights == pause.state.params['heads']['weights'])


def test_batches_have_all_classes_alike(trained):
  groups = trained[1][0].method.batch_groups
  for batch in pipeline.batches(np.arange(len(groups)), 10, jax.random.key(0), groups):
    assert np.bincount(groups[batch.row]).tolist() == [2] * 5


def test_short_codes_are_the_heaviest_bits():
  """|w| of 0.2, 0.7, 1.5, 0.7: bit 2, then 1 and 3 in their order although 1 is negative."""
  (x, weights), labels = _problem()
  method = _method(labels)
  assert method.query_embeddings is method.database_embeddings
  short, long = method.query_embeddings((x, weights))
  np.testing.assert_array_equal(long, x[:, [2, 1, 3, 0]])
  np.testing.assert_array_equal(short, x[:, [2, 1]])
  for kept, own in zip(method.bit_weights((x, weights)), ([2, 1], [2, 1, 3, 0])):
    np.testing.assert_array_equal(kept, WEIGHTS[own] ** 2)


def test_the_weighted_ranking_is_by_the_distance_of_training():
  """Where z is -1 or 1, |r_i - r_j|^2 is four times the weighted Hamming distance."""
  (x, weights), labels = _problem()
  method = _method(labels)
  code, bits = method.query_embeddings((x, weights))[1], method.bit_weights((x, weights))[1]
  hamming = (np.sign(code)[:, None] != np.sign(code)) @ bits
  r = drsch.relax(1e6 * x, weights, 0)
  np.testing.assert_allclose(drsch.pairwise_distance(r, r), 4 * hamming, atol=1e-5)


def test_an_empty_database_still_encodes():
  outputs, labels = _problem()
  codes = _method(labels[:0]).query_embeddings(outputs)
  assert [code.shape for code in codes] == [(N, 2), (N, 4)]
