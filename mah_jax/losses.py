"""Every loss term, pure and per example, in the factored form: cost O(c^2), whatever n is."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def semantic_loss(embeddings: jax.Array, gram: jax.Array, pull: jax.Array,
                  square: jax.Array) -> jax.Array:
  """Semantic preservation between queries and the whole database, Eq. 5, factored.

  sum_j (u . b_j - c s_j)^2 = u' G u - 2 c u . p + c^2 |s|^2, each divided by n by the caller.

  Args:
    embeddings: tanh outputs u of a batch of queries, [b, c].
    gram: G = B'B / n, [c, c].
    pull: p = sum_j s_j b_j / n for each query, [b, c].
    square: |s|^2 / n for each query, [b].

  Returns:
    The mean over the database of (u_i . b_j - c S_ij)^2 for each query i, [b].
  """
  b, c = embeddings.shape
  chex.assert_shape([gram, pull, square], [(c, c), (b, c), (b,)])
  quadratic = jnp.sum(embeddings @ gram * embeddings, axis=1)
  return quadratic - 2.0 * c * jnp.sum(embeddings * pull, axis=1) + c**2 * square


def quantization_loss(embeddings: jax.Array, codes: jax.Array) -> jax.Array:
  """Squared distance of each embedding to its own code, Eq. 6. [b, c], [b, c] -> [b]."""
  chex.assert_equal_shape([embeddings, codes])
  return jnp.sum((codes - embeddings) ** 2, axis=1)
