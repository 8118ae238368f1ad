"""DRSCH: triplets and Laplacian as plain loops, weights of bits, truncated codes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from flax import linen as nn

from mah_jax.data import pipeline
from mah_jax.methods import base
from mah_jax.methods import drsch
from mah_jax.train import backbone

N = 8  # images
LENGTHS = (2, 4)
WEIGHTS = np.array([0.2, -0.7, 1.5, 0.7], np.float32)


def _method(labels, **changes):
  return toy.method(labels, method='drsch', code_lengths=LENGTHS, **changes)


def _problem(multi=False):
  """Outputs (x, weights) of N images, and their labels."""
  rng = np.random.default_rng(0)
  labels = np.eye(3, dtype=np.uint8)[np.arange(N) % 3]
  if multi:
    labels = (rng.random((N, 4)) < 0.4).astype(np.uint8)
    labels[0] = 0
  x = rng.normal(0, 0.3, (N, LENGTHS[-1])).astype(np.float32)
  return (x, np.tile(WEIGHTS, (N, 1))), labels


def _mean_loss(method, outputs, position, sampled, valid=None, step=0, devices=1):
  """The mean loss of a training step on so many devices."""
  valid = np.ones(len(position), np.float32) if valid is None else valid
  targets = method.targets((), sampled, 0)
  total = 0.0
  for part in np.split(np.arange(len(position)), devices):
    own = tuple(u[part] for u in outputs)
    seen = base.Seen(position[part], outputs, outputs, position, valid, step)
    total += jnp.sum(method.loss(own, targets, seen)[0] * valid[part])
  return total / valid.sum()


def _by_loops(outputs, labels, margin, laplacian, steepness=5.0):
  """The same for images with labels [n, L]: triplet after triplet, in float64."""
  x, w = (np.asarray(u, np.float64) for u in outputs)
  r = w * (2 / (1 + np.exp(-steepness * x)) - 1)
  total = 0.0

  def distance(i, j):
    return sum((a - b) ** 2 for a, b in zip(r[i], r[j]))

  def similar(i, j):
    return any(a and b for a, b in zip(labels[i], labels[j]))

  for i in range(len(x)):
    hinges = [max(0.0, margin + distance(i, j) - distance(i, k))
              for j, k in itertools.permutations(set(range(len(x))) - {i}, 2)
              if similar(i, j) and not similar(i, k)]
    total += np.mean(hinges) if hinges else 0.0
    total += laplacian / 2 * np.mean([
        (1.0 if similar(i, j) else 1e-3) * distance(i, j) for j in range(len(x))])
  return total / len(x)


@pytest.mark.parametrize('multi', [False, True])
@pytest.mark.parametrize('margin, laplacian', [(1.0, 0.5), (5.0, 0.0), (0.0, 1e-3)])
def test_loss_and_gradient_equal_the_triple_loop(margin, laplacian, multi):
  outputs, labels = _problem(multi)
  rng = np.random.default_rng(1)
  sampled, position = rng.permutation(N), rng.permutation(N)
  method = _method(labels, margin=margin, laplacian=laplacian)
  got, gradient = jax.jit(jax.value_and_grad(
      lambda outputs: _mean_loss(method, outputs, position, sampled)))(outputs)

  def expected(change, direction):
    moved = [u + change * v for u, v in zip(outputs, direction)]
    return _by_loops(moved, labels[sampled[position]], margin, laplacian)

  directions = rng.normal(size=(3, 2, N, LENGTHS[-1]))
  assert got == pytest.approx(expected(0.0, directions[0]), rel=1e-5) and got > 0
  for direction in directions:
    slope = (expected(1e-6, direction) - expected(-1e-6, direction)) / 2e-6
    assert np.vdot(direction, gradient) == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_a_hand_worked_triplet():
  # Image 0 has a positive at 3 and negatives at 1 and 9; margin 2: (2 + 3 - 1 + 0) / 2.
  # Image 1 has no positive.
  got = drsch.triplet_loss(jnp.array([[0.0, 3.0, 1.0, 9.0]] * 2),
                           jnp.array([[0.0, 1.0, 0.0, 0.0], [0.0] * 4]),
                           jnp.array([[0.0, 0.0, 1.0, 1.0]] * 2), 2.0)
  np.testing.assert_allclose(got, [2.0, 0.0])


def test_the_hinge_has_the_slope_of_the_release():
  outputs, labels = _problem()
  positive, negative = (jnp.float32(same & ~np.eye(N, dtype=bool))
                        for same in (labels @ labels.T > 0, labels @ labels.T == 0))

  def release(r):
    d = drsch.pairwise_distance(r, r)
    hinge = jnp.maximum(d[:, :, None] - d[:, None], -1.0)
    return jnp.einsum('ijk,ij,ik,i', hinge, positive, negative,
                      1 / (positive.sum(axis=1) * negative.sum(axis=1)))

  def ours(r):
    return drsch.triplet_loss(drsch.pairwise_distance(r, r), positive, negative, 1.0).sum()

  r = drsch.relax(*outputs, 0)
  np.testing.assert_allclose(ours(r), release(r) + N * 1.0, rtol=1e-5)
  slopes = (jax.jit(jax.grad(loss))(r) for loss in (ours, release))
  np.testing.assert_allclose(*slopes, atol=1e-5)


def test_the_laplacian_is_that_of_the_matrix_and_draws_together():
  outputs, labels = _problem(multi=True)
  similar = labels.astype(int) @ labels.T > 0
  affinity = np.where(similar, 1.0, 1e-3)
  matrix = np.diag(affinity.sum(axis=1)) - affinity
  assert np.linalg.eigvalsh(matrix).min() > -1e-9
  r = np.asarray(drsch.relax(*outputs, 0), np.float64).T  # R of the paper, [q, n]
  trace = np.trace(r @ matrix @ r.T)

  def mean(r):
    return drsch.laplacian_loss(drsch.pairwise_distance(r, r), similar, np.ones(N)).mean()

  assert mean(r.T) == pytest.approx(trace / N**2, rel=1e-5) and trace > 0
  gradient = jax.grad(mean)(jnp.float32(r.T))
  assert mean(r.T - gradient) < mean(r.T)
  assert mean(np.ones((N, 4))) == 0


@pytest.mark.parametrize('step, steepness, margin', [
    (0, 5.0, 3.0), (9_999, 5.0, 3.0), (10_000, 5.5, 3.1), (25_000, 6.05, 3.2)])
def test_bits_get_steeper_and_the_margin_wider(step, steepness, margin):
  outputs, labels = _problem()
  got = _mean_loss(_method(labels, margin=3.0), outputs, np.arange(N), np.arange(N),
                   step=jnp.int32(step))
  assert got == pytest.approx(_by_loops(outputs, labels, margin, 1e-3, steepness), rel=1e-5)


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
  value, gradients = jax.jit(jax.value_and_grad(lambda outputs: _mean_loss(
      method, outputs, np.arange(N), np.arange(N))))((scale * x, weights))
  assert np.isfinite(value) and all(np.isfinite(g).all() for g in gradients)
  assert (value > 0) == triplets
  if not triplets:
    assert not any(g.any() for g in gradients)


@pytest.mark.parametrize('devices', [1, 4])
def test_repeated_rows_do_not_count(devices):
  outputs, labels = _problem()
  method, sampled = _method(labels, laplacian=0.5), np.arange(N)
  real = tuple(u[:5] for u in outputs)
  position, valid = np.r_[np.arange(5), np.arange(3)], np.float32([1] * 5 + [0] * 3)
  expected, slopes = jax.jit(jax.value_and_grad(
      lambda outputs: _mean_loss(method, outputs, np.arange(5), sampled)))(real)
  got, gradients = jax.jit(jax.value_and_grad(lambda outputs: _mean_loss(
      method, outputs, position, sampled, valid, devices=devices)))(outputs)
  np.testing.assert_allclose(got, expected, rtol=1e-6)
  for gradient, slope in zip(gradients, slopes):
    np.testing.assert_allclose(gradient[:5], slope, atol=1e-6)
    assert not np.any(gradient[5:])


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
