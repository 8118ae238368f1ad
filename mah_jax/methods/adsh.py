"""ADSH, "Asymmetric Deep Supervised Hashing", Q.-Y. Jiang and W.-J. Li, 2018: MAH with one head."""

import dataclasses

from mah_jax.methods import base
from mah_jax.methods import mah


def make(options: mah.HeadOptions, task: base.Task) -> base.DeepMethod:
  """Makes ADSH."""
  return mah.make(mah.Options(**dataclasses.asdict(options), head_weights=(1.0,)), task)


SPEC = base.Spec(make, mah.HeadOptions, one_length=True)
