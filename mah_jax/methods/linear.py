"""Linear hash functions: ridge regression on standardised rows, by blocks, and codes."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import discrete
from mah_jax.methods import scaling


class State(NamedTuple):
  """What a method with a linear hash function has learned.

  scale: mean and deviation of the training features.
  projection: W, from standardised features to bits before the sign, [D, c].
  codes: of the training rows, as the method solved for them, [n, c] int8.
  """
  scale: scaling.Scaling
  projection: jax.Array
  codes: jax.Array


def gram(scale: scaling.Scaling, features: np.ndarray) -> np.ndarray:
  """X'X of standardised rows X: [n, D] -> [D, D], blocks summed in float64."""
  return sum(np.asarray(_gram(scale, rows), np.float64) for rows in scaling.blocks(features))


def ridge(scale: scaling.Scaling, features: np.ndarray, targets: np.ndarray, weight: float,
          products: np.ndarray) -> jax.Array:
  """W = (X'X + weight I)^-1 X'T of standardised rows X, solved in float64.

  Args:
    scale: of the rows.
    features: rows before they are standardised, [n, D].
    targets: T, [n, c].
    weight: of |W|^2 against the squared errors.
    products: X'X, see `gram`.

  Returns:
    [D, c].
  """
  pull = sum(np.asarray(_pull(scale, rows, part), np.float64) for rows, part in zip(
      scaling.blocks(features), scaling.blocks(targets), strict=True))
  solved = np.linalg.solve(products + weight * np.eye(len(products)), pull)
  return jnp.asarray(solved, jnp.float32)


@jax.jit
def project(scale: scaling.Scaling, rows: jax.Array, projection: jax.Array) -> jax.Array:
  """XW of standardised rows X, [b, D], [D, c] -> [b, c]."""
  return _product(scaling.apply(scale, rows), projection)


def encode(state: State, features: np.ndarray) -> jax.Array:
  """Codes of rows by the hash function, [b, D] -> [b, c] int8."""
  return scaling.by_blocks(
      lambda rows: codes(project(state.scale, rows, state.projection)), features)


def codes(values: jax.Array) -> jax.Array:
  """Signs as codes, [b, c] -> [b, c] int8."""
  return discrete.sign(values).astype(jnp.int8)


@jax.jit
def _gram(scale, rows):
  x = scaling.apply(scale, rows)
  return _product(x.T, x)


@jax.jit
def _pull(scale, rows, targets):
  x = scaling.apply(scale, rows)
  return _product(x.T, targets.astype(x.dtype))


_product = functools.partial(jnp.matmul, precision='highest')
