"""Precision: the numbers that networks are computed in, by the names of --precision."""

from typing import NamedTuple

import jax.numpy as jnp

EXACT = 'highest'  # of jax.default_matmul_precision: float32 products, on every card


class Precision(NamedTuple):
  """How backbones are computed; all other products are float32.

  dtype: type of their parameters and of what they read.
  products: how exactly they multiply, a name of jax.default_matmul_precision.
  """
  dtype: jnp.dtype
  products: str


FLOAT32 = Precision(jnp.float32, EXACT)
# TF32 has the range of float32 and 10 bits of the mantissa's 23; cards without it use float32.
PRECISIONS = {
    'float32': FLOAT32,
    'tf32': Precision(jnp.float32, 'tensorfloat32'),
    'bf16': Precision(jnp.bfloat16, 'default'),
}
