"""DPSH: the likelihood of pairs, with a memory of the outputs of all training rows.

W.-J. Li, S. Wang and W.-C. Kang, "Feature Learning based Deep Supervised Hashing with Pairwise
Labels", 2016.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from mah_jax import config as config_lib
from mah_jax import discrete
from mah_jax import losses
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.models import heads


class Targets(NamedTuple):
  """Who is similar to whom among the training rows.

  of_row: label set of each training row, [m].
  related: whether two label sets share a label, [g, g].
  """
  of_row: jax.Array
  related: jax.Array


def make(config: config_lib.Config, labels: np.ndarray) -> base.DeepMethod:
  """Makes DPSH for a database with 0/1 labels [n, L]; it trains on the first sample of rows."""
  groups = similarity.group_rows(labels)
  c, = config.code_lengths

  def network(make_backbone):
    # Without tanh, which would keep u . u' / 2 below c / 2, too little for few bits.
    return heads.HashNetwork(make_backbone(), heads.LinearHead(c))

  def targets(codes, sampled, epoch):
    del codes, epoch
    return Targets(groups.of_row[sampled], groups.related)

  def loss(outputs, targets, seen):
    (u,), (memory,) = outputs, seen.memory
    similar = similarity.share_label(
        targets.related, targets.of_row[seen.position], targets.of_row)  # [b, m]
    likelihood = losses.pair_loss(u, memory, similar)
    quantization = config.eta / len(memory) * losses.quantization_loss(
        u, jax.lax.stop_gradient(discrete.sign(u)))
    return likelihood + quantization, {'likelihood': likelihood, 'quantization': quantization}

  return base.DeepMethod(network, targets, loss)
