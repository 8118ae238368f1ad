"""Methods on fixed features as a run sees them: each of the code lengths is fitted by itself."""

from __future__ import annotations

import time

import jax
import numpy as np

from mah_jax import config as config_lib
from mah_jax import methods
from mah_jax import progress
from mah_jax.methods import base


def make(config: config_lib.Config) -> base.Method:
  """Makes the shallow method of a Config."""
  own = methods.SHALLOW[config.method](config)

  def fit(features, labels, seed):
    began, key = time.monotonic(), jax.random.key(seed)
    states = []
    with progress.bar(len(config.code_lengths), f'{config.method}, seed {seed}') as bar:
      for c in config.code_lengths:
        states.append(own.fit(features, labels, c, jax.random.fold_in(key, c)))
        bar.update()
    return tuple(jax.block_until_ready(states)), time.monotonic() - began

  def encode(states, features):
    return tuple(np.asarray(own.encode(state, features)) for state in states)

  def database_codes(states):
    codes = [own.learned(state) for state in states]
    return None if codes[0] is None else tuple(map(np.asarray, codes))

  return base.Method('features', fit, encode, encode, database_codes,
                     bit_weights=lambda states: None)
