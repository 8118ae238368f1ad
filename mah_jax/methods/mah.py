"""MAH, "Collaborative Learning for Extremely Low Bit Asymmetric Hashing": heads share a network."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import config as config_lib
from mah_jax import discrete
from mah_jax import losses
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.models import heads


class Targets(NamedTuple):
  """What one head's loss needs of the database, each divided by n.

  gram: B'B, [c, c].
  pull: sum_j S_ij b_j for each sampled row i, [m, c].
  square: sum_j S_ij^2, [m].
  codes: the sampled rows' own codes (not divided), [m, c].
  """
  gram: jax.Array
  pull: jax.Array
  square: jax.Array
  codes: jax.Array


def make(config: config_lib.Config, labels: np.ndarray) -> base.DeepMethod:
  """Makes MAH for a database with 0/1 labels [n, L]: MAH-1 with flat heads, MAH-2 cascaded."""
  n, num_labels = labels.shape
  groups = similarity.group_rows(labels)
  of_row, related = jax.device_put((groups.of_row, groups.related))
  descend_rows = functools.partial(discrete.descend_rows, sweeps=config.dcc_sweeps)

  def network(make_backbone):
    return heads.HashNetwork(make_backbone(), heads.HEADS[config.heads](config.code_lengths))

  def init_codes():
    if config.code_init == 'codebook':
      books = discrete.codebook(num_labels, config.code_lengths, config.seed)
      return tuple(discrete.codes_from_labels(labels, words) for words in books)
    if config.code_init == 'random':
      rng = np.random.default_rng(config.seed)
      return tuple(rng.choice(np.array([-1, 1], np.int8), (n, c)) for c in config.code_lengths)
    return tuple(np.zeros((n, c), np.int8) for c in config.code_lengths)

  def targets(codes, sampled, epoch):
    del epoch
    r = similarity.dissimilar_value(groups, sampled, config.similarity)
    degree = groups.degree[groups.of_row[sampled]] / n  # [m]
    square = np.float32(degree + (1.0 - degree) * r**2)
    return tuple(_targets(b, sampled, of_row, related, r, square) for b in codes)

  def loss(embeddings, targets, seen):
    total, terms = 0.0, {}
    for c, weight, u, head in zip(config.code_lengths, config.head_weights, embeddings, targets):
      semantic = losses.semantic_loss(
          u, head.gram, head.pull[seen.position], head.square[seen.position])
      quantization = config.gamma / n * losses.quantization_loss(u, head.codes[seen.position])
      total += weight * (semantic + quantization)  # Eq. 7
      terms |= {f'semantic/{c}': semantic, f'quantization/{c}': quantization}
    return total, terms

  def update_codes(codes, embeddings, sampled, over_rows):
    r = similarity.dissimilar_value(groups, sampled, config.similarity)
    new = []
    for b, h in zip(codes, embeddings):
      place, problem = discrete.row_problem(h, sampled, of_row, related, r, config.gamma)
      new.append(over_rows(descend_rows, (b, of_row, place), problem))
    return tuple(new)

  return base.DeepMethod(network, targets, loss, init_codes, update_codes,
                         learned=lambda codes: codes, resamples=True)


@jax.jit
def _targets(codes, sampled, of_row, related, r, square) -> Targets:
  """Targets of one head from its codes [n, c] int8."""
  n = len(codes)
  b = codes.astype(jnp.float32)
  by_set = similarity.set_sums(b, of_row, related, r) / n  # [g, c]
  gram = jnp.matmul(b.T, b, precision='highest') / n
  return Targets(gram, by_set[of_row[sampled]], square, b[sampled])
