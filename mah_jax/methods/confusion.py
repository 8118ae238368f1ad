"""How often a linear classifier of features takes an image of one label for one of another."""

from __future__ import annotations

import numpy as np

from mah_jax.methods import scaling

RIDGE = 0.01  # added to the mean square of each standardised feature, which is 1


def of_classifier(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Confusions of the least-squares classifier on the very rows that it is fitted to.

  Args:
    features: [n, D].
    labels: 0/1, [n, L].

  Returns:
    [L, L] float64: of the images with label a, the share that is likeliest b. The row of a label
    that no image has is 0.
  """
  features, labels = np.asarray(features), np.asarray(labels, np.float32)
  if features.ndim != 2 or labels.ndim != 2 or len(features) != len(labels):
    raise ValueError(f'features have shape {features.shape} and labels {labels.shape}; give [n, D] '
                     'and [n, L].')
  mean, deviation = map(np.asarray, scaling.standardize(features))

  def scaled(rows):
    """Standardised features and a constant, [b, D + 1]."""
    return np.pad((rows - mean) / deviation, ((0, 0), (0, 1)), constant_values=1.0)

  def products(rows, wanted):
    x = scaled(rows)
    return x.T @ np.concatenate([x, wanted], axis=1)

  both = scaling.sum_over_blocks(products, features, labels)  # [D + 1, D + 1 + L]
  gram, targets = np.split(both, [len(both)], axis=1)
  weights = np.linalg.solve(gram + RIDGE * len(features) * np.eye(len(gram)), targets)
  weights = weights.astype(np.float32)

  def taken(rows, wanted):
    likeliest = np.argmax(scaled(rows) @ weights, axis=1)
    return wanted.T @ (likeliest[:, None] == np.arange(labels.shape[1]))

  return (scaling.sum_over_blocks(taken, features, labels)
          / np.maximum(labels.sum(axis=0), 1)[:, None])
