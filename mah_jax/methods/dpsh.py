"""DPSH: the likelihood of pairs, with a memory of the outputs of all training rows.

W.-J. Li, S. Wang and W.-C. Kang, "Feature Learning based Deep Supervised Hashing with Pairwise
Labels", 2016.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from mah_jax import discrete
from mah_jax import losses
from mah_jax import options as options_lib
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.models import heads


@dataclasses.dataclass(frozen=True)
class PairOptions:
  """The options of methods that maximise the likelihood of pairs."""
  pair_weights: str = options_lib.option(
      'equal', 'equal counts every pair alike, as published; balanced, which is not published, '
      'gives similar and dissimilar pairs the same total weight.', choices=('equal', 'balanced'))

  def __post_init__(self):
    options_lib.check(self)


@dataclasses.dataclass(frozen=True)
class Options(PairOptions):
  """The options of DPSH."""
  eta: float = options_lib.option(50.0, 'Weight of the quantization loss (its eta).', least=0)


class Targets(NamedTuple):
  """The training rows as the loss sees them.

  labels: 0/1, [m, L].
  weights: the weights of a similar and of a dissimilar pair.
  """
  labels: jax.Array
  weights: tuple[jax.Array, jax.Array]


def make(options: Options, task: base.Task) -> base.DeepMethod:
  """Makes DPSH, which trains on the first sample of rows."""
  c, = task.code_lengths

  def network(make_backbone):
    # Without tanh, which would keep u . u' / 2 below c / 2, too little for few bits.
    return heads.HashNetwork(make_backbone(), heads.LinearHead(c))

  def targets(codes, sampled, epoch):
    del codes, epoch
    labels = task.labels[sampled].astype(np.float32)
    return Targets(labels, similarity.pair_weights(labels, options.pair_weights))

  def loss(outputs, targets, seen):
    (u,), (memory,), (labels, weights) = outputs, seen.memory, targets
    similar = similarity.share_label(labels[seen.position], labels)  # [b, m]
    likelihood = losses.pair_loss(u, memory, similar, weights)
    quantization = options.eta / len(memory) * losses.quantization_loss(
        u, jax.lax.stop_gradient(discrete.sign(u)))
    return likelihood + quantization, {'likelihood': likelihood, 'quantization': quantization}

  return base.DeepMethod(network, targets, loss)


SPEC = base.Spec(make, Options, one_length=True)
