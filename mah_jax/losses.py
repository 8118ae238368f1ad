"""Loss terms per example; the cost of `semantic_loss` does not grow with the database's n."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

Scalar = jax.Array | float


def semantic_loss(embeddings: jax.Array, gram: jax.Array, pull: jax.Array,
                  square: jax.Array) -> jax.Array:
  """Semantic preservation between queries and the whole database, Eq. 5, factored.

  sum_j (u . b_j - c s_j)^2 / n = u' G u - 2 c u . p + c^2 |s|^2 / n, with the G and p below.

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
  """Squared distance of each embedding to its code, Eq. 6. [b, c], [b, c] -> [b]."""
  chex.assert_equal_shape([embeddings, codes])
  return jnp.sum((codes - embeddings) ** 2, axis=1)


def pair_loss(outputs: jax.Array, memory: jax.Array, similar: jax.Array,
              weights: tuple[Scalar, Scalar] = (1.0, 1.0)) -> jax.Array:
  """Mean negative log-likelihood of similarities, where p(similar) = sigmoid(u_i . u_j / 2).

  Args:
    outputs: u_i, [b, c].
    memory: u_j, [m, c].
    similar: whether i and j are similar, [b, m].
    weights: w of a similar and of a dissimilar pair, see similarity.pair_weights.

  Returns:
    For each i the mean over j of w (log(1 + e^t) - s t) with t = u_i . u_j / 2, [b].
  """
  b, c = outputs.shape
  chex.assert_shape([memory, similar], [(len(memory), c), (b, len(memory))])
  t = 0.5 * outputs @ memory.T
  # log(1 + e^t) - t = log(1 + e^-t): no cancellation, and the weights cost nothing.
  return jnp.mean(jnp.where(similar, *weights) * jax.nn.softplus(jnp.where(similar, -t, t)), axis=1)
