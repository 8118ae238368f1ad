"""Slow and obvious versions of the formulas, in NumPy and float64."""

import itertools

import numpy as np

from mah_jax.methods import base


def similarity(labels, sampled, kind):
  """S [m, n] in {1, -r} or {1, -1}, or with standardized rows, from 0/1 labels [n, L]."""
  similar = labels[sampled].astype(int) @ labels.T.astype(int) > 0
  if kind == 'standardized':
    apart = similar - similar.mean(axis=1, keepdims=True)
    deviation = similar.std(axis=1, keepdims=True)
    return np.where(deviation > 0, apart / np.where(deviation > 0, deviation, 1.0), 0.0)
  r = similar.sum() / (~similar).sum() if kind == 'balanced' else 1.0
  return np.where(similar, 1.0, -r)


def dcc(codes, embeddings, labels, sampled, gamma, kind):
  """The V step of ADSH and MAH as published: one sweep, with the whole of S."""
  v, u = codes.astype(np.float64), embeddings.astype(np.float64)
  n, c = v.shape
  bar_u = np.zeros((n, c))
  bar_u[sampled] = u
  q = -2 * c * similarity(labels, sampled, kind).T @ u - 2 * gamma * bar_u
  for k in range(c):
    rest = [j for j in range(c) if j != k]
    value = -(2 * v[:, rest] @ (u[:, rest].T @ u[:, k]) + q[:, k])
    v[:, k] = np.where(value >= 0, 1, -1)
  return v


def objective(codes, embeddings, labels, sampled, gamma, kind):
  """Eq. 8: ||H B' - c S||^2 + gamma ||B_Omega - H||^2."""
  c = codes.shape[1]
  s = similarity(labels, sampled, kind)
  semantic = np.sum((embeddings @ codes.T.astype(float) - c * s) ** 2)
  return semantic + gamma * np.sum((codes[sampled] - embeddings) ** 2)


def problem(seed, n=60, m=20, c=5, num_labels=4, multi=False):
  """A random database: codes, embeddings, labels, sampled rows."""
  rng = np.random.default_rng(seed)
  labels = np.eye(num_labels, dtype=np.uint8)[rng.integers(num_labels, size=n)]
  if multi:
    labels = (rng.random((n, num_labels)) < 0.3).astype(np.uint8)
  codes = rng.choice([-1, 1], (n, c)).astype(np.int8)
  embeddings = np.tanh(rng.normal(size=(m, c))).astype(np.float32)
  return codes, embeddings, labels, rng.permutation(n)[:m]


def seen(outputs, position, memory=None, step=0):
  """The `Seen` of a loss on a single device, all of whose images count."""
  return base.Seen(position, outputs if memory is None else memory, outputs, position,
                   np.ones(len(position), np.float32), step)


def plain_ap(relevant, k=None):
  """AP of one ranked list of 0/1 over its first k, divided by the hits among them."""
  hits, total = 0, 0.0
  for rank, hit in enumerate(relevant[:k], start=1):
    if hit:
      hits += 1
      total += hits / rank
  return total / hits if hits else 0.0


def all_tie_orders(distance):
  """Every ranking of the rows that sorts by distance, as tuples of row numbers."""
  ties = [np.flatnonzero(distance == d) for d in np.unique(distance)]
  for parts in itertools.product(*map(itertools.permutations, ties)):
    yield [row for part in parts for row in part]
