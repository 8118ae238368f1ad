"""ADSH, "Asymmetric Deep Supervised Hashing", Q.-Y. Jiang and W.-J. Li, 2018: MAH with one head."""

import dataclasses

import numpy as np

from mah_jax import config as config_lib
from mah_jax.methods import base
from mah_jax.methods import mah


def make(config: config_lib.Config, labels: np.ndarray) -> base.DeepMethod:
  """Makes ADSH for a database with 0/1 labels [n, L]."""
  return mah.make(dataclasses.replace(config, head_weights=(1.0,)), labels)
