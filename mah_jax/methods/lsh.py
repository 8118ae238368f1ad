"""LSH: bits by random hyperplanes.

M. Charikar, "Similarity Estimation Techniques from Rounding Algorithms", 2002.
"""

from __future__ import annotations

import dataclasses

import jax

from mah_jax import options as options_lib
from mah_jax.methods import base
from mah_jax.methods import linear
from mah_jax.methods import scaling


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of LSH."""
  center: bool = options_lib.option(
      False, 'Hyperplanes through the mean of the features instead of the origin, as published; '
      'better, since features are never negative.')

  def __post_init__(self):
    options_lib.check(self)


def make(options: Options) -> base.ShallowMethod:
  """Makes LSH: bits are the sides of random hyperplanes on which a row lies.

  Published baselines lay the hyperplanes through the origin; features that are never negative
  then lie mostly on one side, and `options.center` lays them through the mean instead.
  """

  def fit(features, labels, c, key):
    del labels  # unsupervised
    scale = scaling.center(features) if options.center else scaling.keep(features)
    return base.Fitted(linear.State(scale, jax.random.normal(key, (features.shape[1], c))))

  return base.ShallowMethod(fit, linear.project, linear.State)


SPEC = base.Spec(make, Options, trains_network=False, supervised=False)
