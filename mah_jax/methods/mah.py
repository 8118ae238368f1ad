"""MAH, "Collaborative Learning for Extremely Low Bit Asymmetric Hashing": heads share a network."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import codebook
from mah_jax import discrete
from mah_jax import errors
from mah_jax import losses
from mah_jax import options as options_lib
from mah_jax import similarity
from mah_jax.methods import base
from mah_jax.methods import confusion
from mah_jax.models import heads


@dataclasses.dataclass(frozen=True)
class HeadOptions(base.CodeOptions):
  """The options that concern every head by itself."""
  gamma: float = options_lib.option(
      200.0, 'Weight of the quantization loss (gamma of Eq. 7).', least=0)
  similarity: str = options_lib.option(
      'balanced', 'Values of S for similar and dissimilar pairs: balanced is 1 and -r, so that S '
      'sums to zero; signed is 1 and -1, the paper\'s text; standardized has mean 0 and mean '
      'square 1 for each query, so that queries with few and with many similar images count alike.',
      choices=similarity.SIMILARITIES)
  code_init: str = options_lib.option(
      'zeros', 'Database codes B before training: zeros, random signs, a codebook of '
      'well-separated codewords, one per class, or alike: a codebook in which classes that a '
      'linear classifier confuses, by the features of the images, have near codewords.',
      choices=('zeros', 'random', 'codebook', 'alike'))
  scale_heads: bool = options_lib.option(
      False, 'Divide a head\'s loss by the square of its length c, with which it grows, so that '
      '--code_lengths can be changed alone.')
  dcc_sweeps: int = options_lib.option(1, 'Passes over the bits in one update of B.', least=1)
  binarize: str = options_lib.option(
      'sign', 'How outputs become a code: by their signs, or the learned code that agrees with '
      'them most, for searching learned codes.', choices=('sign', 'nearest'),
      may_change=options_lib.EVALUATION)

  def __post_init__(self):
    super().__post_init__()
    if self.hold_codes_rounds and self.code_init == 'zeros':
      raise errors.UsageError('--hold_codes_rounds needs codes worth holding: use it with '
                              '--code_init=codebook, alike or random.')


@dataclasses.dataclass(frozen=True)
class Options(HeadOptions):
  """The options of MAH."""
  heads: str = options_lib.option(
      'cascaded', 'Structure of the heads: flat is MAH-1 (Eq. 2), cascaded is MAH-2 (Eq. 3).',
      choices=tuple(heads.HEADS))
  head_weights: tuple[float, ...] = options_lib.option(
      (6.0, 2.0, 1.0), 'Weight of each head\'s loss, the shortest first (alpha, beta, 1 of Eq. 7). '
      'The last weight serves all further heads; where there are fewer heads than in the default, '
      'its last weights are left out.')


def check(options: Options, code_lengths: tuple[int, ...]):
  """Refuses weights that are more than the heads, negative or all zero."""
  weights, default = options.head_weights, Options().head_weights
  if not weights or len(weights) > len(code_lengths) and weights != default:
    raise errors.UsageError(f'--head_weights={options_lib.text(weights)} needs a weight for each '
                            f'of --code_lengths={options_lib.text(code_lengths)}.')
  if min(weights) < 0 or max(weights[:len(code_lengths)]) == 0:
    raise errors.UsageError(f'--head_weights={options_lib.text(weights)} must be at least 0, and '
                            'not all of them 0.')


def head_weights(options: Options, code_lengths: tuple[int, ...]) -> list[float]:
  """The factor of each head's loss."""
  last = len(options.head_weights) - 1
  return [options.head_weights[min(i, last)] / (c**2 if options.scale_heads else 1)
          for i, c in enumerate(code_lengths)]


class Targets(NamedTuple):
  """The sums over the database that one head's loss needs, each divided by n.

  gram: B'B, [c, c].
  pull: sum_j S_ij b_j for each sampled row i, [m, c].
  square: sum_j S_ij^2, [m].
  codes: the sampled rows' own codes (not divided), [m, c].
  """
  gram: jax.Array
  pull: jax.Array
  square: jax.Array
  codes: jax.Array


def make(options: Options, task: base.Task) -> base.DeepMethod:
  """Makes MAH: MAH-1 with flat heads, MAH-2 with cascaded ones."""
  labels, code_lengths = task.labels, task.code_lengths
  n, num_labels = labels.shape
  groups = similarity.group_rows(labels)
  of_row, sets = jax.device_put((groups.of_row, groups.sets))
  descend_rows = functools.partial(discrete.descend_rows, sweeps=options.dcc_sweeps)
  weights = head_weights(options, code_lengths)

  def network(make_backbone):
    return heads.HashNetwork(make_backbone(), heads.HEADS[options.heads](code_lengths))

  def init_codes():
    if options.code_init in ('codebook', 'alike'):
      # A network on images takes over the codes of the heads that learned from features first.
      confusions = (confusion.of_classifier(task.features(), labels)
                    if options.code_init == 'alike' and task.features else None)
      books = codebook.codebook(num_labels, code_lengths, task.seed, confusions)
      return tuple(codebook.codes_from_labels(labels, words) for words in books)
    if options.code_init == 'random':
      rng = np.random.default_rng(task.seed)
      return tuple(rng.choice(np.array([-1, 1], np.int8), (n, c)) for c in code_lengths)
    return tuple(np.zeros((n, c), np.int8) for c in code_lengths)

  def targets(codes, sampled, epoch):
    del epoch
    levels = similarity.levels(groups, sampled, options.similarity)
    share = groups.degree / n  # [g]
    square = share * levels.similar**2 + (1.0 - share) * levels.dissimilar**2
    square = np.float32(square[groups.of_row[sampled]])  # [m]
    return tuple(_targets(b, sampled, of_row, sets, levels, square) for b in codes)

  def loss(embeddings, targets, seen):
    total, terms = 0.0, {}
    for c, weight, u, head in zip(code_lengths, weights, embeddings, targets):
      semantic = losses.semantic_loss(
          u, head.gram, head.pull[seen.position], head.square[seen.position])
      quantization = options.gamma / n * losses.quantization_loss(u, head.codes[seen.position])
      total += weight * (semantic + quantization)  # Eq. 7
      terms |= {f'semantic/{c}': semantic, f'quantization/{c}': quantization}
    return total, terms

  def solve(codes, embeddings, sampled, over_rows):
    levels = similarity.levels(groups, sampled, options.similarity)
    new = []
    for b, h in zip(codes, embeddings):
      position, problem = discrete.row_problem(h, sampled, of_row, sets, levels, options.gamma)
      new.append(over_rows(descend_rows, (b, of_row, position), problem))
    return tuple(new)

  return base.DeepMethod(network, targets, loss, init_codes, options.update(solve),
                         learned=base.identity, nearest=options.binarize == 'nearest',
                         resamples=True)


@jax.jit
def _targets(codes, sampled, of_row, sets, levels, square) -> Targets:
  """Targets of one head from its codes [n, c] int8."""
  n = len(codes)
  b = codes.astype(jnp.float32)
  by_set = similarity.database_sums(b, of_row, sets, levels) / n  # [g, c]
  gram = jnp.matmul(b.T, b, precision='highest') / n
  return Targets(gram, by_set[of_row[sampled]], square, b[sampled])


SPEC = base.Spec(make, Options, check=check)
