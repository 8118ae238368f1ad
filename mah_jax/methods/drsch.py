"""DRSCH: triplets of weighted bits, so that short codes are the heaviest bits of a long one.

R. Zhang, L. Lin, R. Zhang, W. Zuo and L. Zhang, "Bit-Scalable Deep Hashing with Regularized
Similarity Learning for Image Retrieval and Person Re-Identification", 2015.
"""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import options as options_lib
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.models import heads

# As in the authors' release, unless said otherwise.
STEEPNESS = 5.0         # kappa at the start
STEEPNESS_GROWTH = 1.1  # kappa is multiplied by this in each period
MARGIN_GROWTH = 0.1     # and this is added to the margin
PERIOD = 10_000         # training steps
SIMILAR, DISSIMILAR = 1.0, 1e-3  # W_ij of the Laplacian
ANCHORS = 16            # whose triplets are in memory at once; ours


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of DRSCH."""
  margin: float = options_lib.option(
      5.0, 'By how much a dissimilar image must be farther than a similar one.', least=0)
  laplacian: float = options_lib.option(1e-3, 'Weight of the Laplacian term.', least=0)

  def __post_init__(self):
    options_lib.check(self)


def make(options: Options, task: base.Task) -> base.DeepMethod:
  """Makes DRSCH: one network for all code lengths."""

  def network(make_backbone):
    return heads.HashNetwork(make_backbone(), heads.WeightedBits(task.code_lengths[-1]))

  def targets(codes, sampled, epoch):
    del codes, epoch
    return task.labels[sampled].astype(np.float32)  # [m, L]

  def loss(outputs, labels, seen):
    distance = pairwise_distance(relax(*outputs, seen.step), relax(*seen.batch, seen.step))
    similar = similarity.share_label(
        labels[seen.position], labels[seen.batch_position])  # [b, B]
    # An image is no pair of itself; a repeated row has the position of the one it repeats.
    other = seen.batch_valid * (seen.position[:, None] != seen.batch_position)
    margin = options.margin + MARGIN_GROWTH * (seen.step // PERIOD)
    triplet = triplet_loss(distance, other * similar, other * ~similar, margin)
    laplacian = options.laplacian * laplacian_loss(distance, similar, seen.batch_valid)
    return triplet + laplacian, {'triplet': triplet, 'laplacian': laplacian}

  def embeddings(outputs):
    x, weights = map(jnp.asarray, outputs)
    return tuple(x[:, heaviest(weights[0], c)] for c in task.code_lengths)

  def bit_weights(outputs):
    weights = np.asarray(outputs[1])[0]
    return tuple(weights[np.asarray(heaviest(weights, c))] ** 2 for c in task.code_lengths)

  return base.DeepMethod(network, targets, loss, query_embeddings=embeddings,
                         database_embeddings=embeddings, bit_weights=bit_weights,
                         batch_groups=similarity.group_rows(task.labels).of_row)


def relax(x: jax.Array, weights: jax.Array, step: jax.Array | int) -> jax.Array:
  """r = w z, z = 2 / (1 + exp(-kappa x)) - 1, ever nearer to sign(x): [b, q] -> [b, q]."""
  chex.assert_equal_shape([x, weights])
  steepness = STEEPNESS * STEEPNESS_GROWTH ** (step // PERIOD)
  return weights * jnp.tanh(steepness * x / 2.0)  # the same z, which cannot overflow


def pairwise_distance(own: jax.Array, batch: jax.Array) -> jax.Array:
  """|r_i - r_j|^2: [b, q], [B, q] -> [b, B]."""
  chex.assert_equal_shape_suffix([own, batch], 1)
  return jnp.sum((own[:, None] - batch) ** 2, axis=2)


def triplet_loss(distance: jax.Array, positive: jax.Array, negative: jax.Array,
                 margin: jax.Array | float) -> jax.Array:
  """Mean over all triplets of each anchor i of max(0, margin + d_ij - d_ik).

  This is the release's max(d_ij - d_ik, -margin) plus the margin, which makes it 0 where
  nothing is left to learn. The release draws as many triplets for one image as for another;
  the mean of each anchor is what it expects of these draws where classes are equally large.

  Args:
    distance: d from anchors to all images, [b, B].
    positive: 1 where j is a similar other image, else 0, [b, B].
    negative: 1 where k is a dissimilar one, else 0, [b, B].
    margin: by how much it should be farther.

  Returns:
    [b]; 0 for an anchor without a triplet.
  """
  chex.assert_equal_shape([distance, positive, negative])

  @jax.checkpoint
  def of_anchor(anchor):
    distance, positive, negative = anchor  # [B] each
    hinge = jax.nn.relu(margin + distance[:, None] - distance)  # [B, B]
    return positive @ hinge @ negative / jnp.maximum(positive.sum() * negative.sum(), 1.0)

  # A few at a time: all anchors at once would take B^3 numbers.
  return jax.lax.map(of_anchor, (distance, positive, negative), batch_size=ANCHORS)


def laplacian_loss(distance: jax.Array, similar: jax.Array, valid: jax.Array) -> jax.Array:
  """sum_j W_ij d_ij / 2N, whose mean over the N valid images is tr(R L R') / N^2, L = D - W.

  Similar images are drawn together. The release has -(D + W) in place of D - W.

  Args:
    distance: d from images to all images, [b, B].
    similar: whether they share a label, [b, B] bool.
    valid: 1 for those that count, [B].

  Returns:
    [b].
  """
  chex.assert_equal_shape([distance, similar])
  affinity = jnp.where(similar, SIMILAR, DISSIMILAR)
  return jnp.sum(affinity * distance * valid, axis=1) / (2.0 * valid.sum())


def heaviest(weights: jax.Array, c: int) -> jax.Array:
  """Numbers of the c bits of largest |w|, largest first, ties in their order: [q] -> [c]."""
  return jnp.argsort(-jnp.abs(weights), stable=True)[:c]


SPEC = base.Spec(make, Options, truncates=True)
