"""DAPH, "Deep Asymmetric Pairwise Hashing", Shen, Gao, Liu, Yang, Shen, 2017: two towers."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import discrete
from mah_jax import losses
from mah_jax import options as options_lib
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.methods import dpsh
from mah_jax.models import heads

TURNS = (('backbone', 'heads'), ('database_backbone', 'database_heads'))


@dataclasses.dataclass(frozen=True)
class Options(base.CodeOptions, dpsh.PairOptions):
  """The options of DAPH."""
  towers: str = options_lib.option(
      'asymmetric', 'asymmetric encodes queries by one network and the database by the other, '
      'symmetric both by the latter.', choices=('asymmetric', 'symmetric'),
      may_change=options_lib.EVALUATION)
  quantization: float = options_lib.option(
      10.0, 'Weight of the distance from outputs to codes (alpha).', least=0)
  agreement: float = options_lib.option(
      1.0, 'Weight of the distance between the two codes (gamma); from --quantization on, codes '
      'never change.', least=0)
  independence: float = options_lib.option(
      0.01, 'Weight of the correlation between bits (lambda).', least=0)
  balance: float = options_lib.option(0.1, 'Weight of the unevenness of bits (beta).', least=0)


class Targets(NamedTuple):
  """The training rows as the loss of one tower sees them.

  labels: 0/1, [m, L].
  weights: the weights of a similar and of a dissimilar pair.
  codes: the codes of the tower whose turn it is, [m, c].
  """
  labels: jax.Array
  weights: tuple[jax.Array, jax.Array]
  codes: jax.Array


def make(options: Options, task: base.Task) -> base.DeepMethod:
  """Makes DAPH, which trains on the first sample of m rows.

  With outputs u and z of the towers for the same row and their codes b and h, it minimises

    mean_ij [log(1 + e^t_ij) - s_ij t_ij] + alpha / m mean_i (|u_i - b_i|^2 + |z_i - h_i|^2)
    + gamma / m mean_i |b_i - h_i|^2 + lambda (|U'U / m - I|^2 + |Z'Z / m - I|^2)
    + beta (|mean_i u_i|^2 + |mean_i z_i|^2),   t_ij = u_i . z_j / 2,

  which is the published sum divided by its m^2 pairs, but for the term of lambda, which is a
  mean in itself. In an epoch the parameters of one tower move, while the running statistics of
  both do: j runs over all rows, i and the sums of the last two terms over the batch. Since
  |z| < 1, h keeps its random signs where gamma >= alpha.
  """
  c, = task.code_lengths

  def network(make_backbone):
    return heads.Towers(make_backbone(), heads.FlatHeads((c,)),
                        make_backbone(), heads.FlatHeads((c,)))

  def init_codes():
    rng = np.random.default_rng(task.seed)
    shape = task.num_sampled, c
    return tuple(rng.choice(np.array([-1, 1], np.int8), shape) for _ in TURNS)

  def targets(codes, sampled, epoch):
    turn = epoch % len(TURNS)
    moving = jnp.asarray(codes[turn], jnp.float32)  # a copy: the step uses up those of its state
    # As a key, the turn is known when the step is compiled, and no gradient is computed of the
    # tower that rests.
    labels = task.labels[sampled].astype(np.float32)
    weights = similarity.pair_weights(labels, options.pair_weights)
    return {turn: Targets(labels, weights, moving)}

  def loss(outputs, targets, seen):
    (turn, (labels, weights, codes)), = targets.items()
    moving, resting = outputs[turn], seen.memory[1 - turn]  # [b, c], [m, c]
    similar = similarity.share_label(labels[seen.position], labels)  # [b, m]
    correlation, mean = batch_moments(seen.batch[turn], seen.batch_valid)
    terms = {
        'likelihood': losses.pair_loss(moving, resting, similar, weights),
        'quantization': options.quantization / len(resting) * losses.quantization_loss(
            moving, codes[seen.position]),
        'independence': options.independence * jnp.sum((correlation - jnp.eye(c)) ** 2),
        'balance': options.balance * jnp.sum(mean**2)}
    terms = {name: jnp.broadcast_to(term, len(moving)) for name, term in terms.items()}
    return sum(terms.values()), terms

  def solve(codes, memory, sampled, over_rows):
    del sampled
    (_, h), (u, z) = codes, memory
    weights = options.quantization, options.agreement
    b = over_rows(nearest_codes, (u, h), weights)
    return b, over_rows(nearest_codes, (z, b), weights)

  queries = _database_tower if options.towers == 'symmetric' else _query_tower
  return base.DeepMethod(
      network, targets, loss, init_codes, options.update(solve), query_embeddings=queries,
      database_embeddings=_database_tower, turns=TURNS)


def _query_tower(outputs):
  return outputs[:1]


def _database_tower(outputs):
  return outputs[1:]


def batch_moments(outputs: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
  """U'U / B and the mean of outputs U [B, c], over the rows that count. -> [c, c], [c]."""
  chex.assert_shape(valid, (len(outputs),))
  weighted = outputs * (valid / valid.sum())[:, None]
  return weighted.T @ outputs, weighted.sum(axis=0)


def nearest_codes(rows: tuple[jax.Array, jax.Array], quantization: float,
                  agreement: float) -> jax.Array:
  """Codes b with the least alpha |u - b|^2 + gamma |b - h|^2, of rows (u, h), each [m, c]."""
  outputs, others = rows
  chex.assert_equal_shape([outputs, others])
  return discrete.to_codes(quantization * outputs + agreement * others)


SPEC = base.Spec(make, Options, one_length=True)
