"""DPSH: the likelihood of pairs, with a memory of the outputs of all training rows.

W.-J. Li, S. Wang and W.-C. Kang, "Feature Learning based Deep Supervised Hashing with Pairwise
Labels", 2016.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from mah_jax import discrete
from mah_jax import losses
from mah_jax import options as options_lib
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.models import heads


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of DPSH."""
  eta: float = options_lib.option(50.0, 'Weight of the quantization loss (its eta).', least=0)

  def __post_init__(self):
    options_lib.check(self)


def make(options: Options, task: base.Task) -> base.DeepMethod:
  """Makes DPSH, which trains on the first sample of rows."""
  c, = task.code_lengths

  def network(make_backbone):
    # Without tanh, which would keep u . u' / 2 below c / 2, too little for few bits.
    return heads.HashNetwork(make_backbone(), heads.LinearHead(c))

  def targets(codes, sampled, epoch):
    del codes, epoch
    return task.labels[sampled].astype(np.float32)  # [m, L]

  def loss(outputs, labels, seen):
    (u,), (memory,) = outputs, seen.memory
    similar = similarity.share_label(labels[seen.position], labels)  # [b, m]
    likelihood = losses.pair_loss(u, memory, similar)
    quantization = options.eta / len(memory) * losses.quantization_loss(
        u, jax.lax.stop_gradient(discrete.sign(u)))
    return likelihood + quantization, {'likelihood': likelihood, 'quantization': quantization}

  return base.DeepMethod(network, targets, loss)


SPEC = base.Spec(make, Options, one_length=True)
