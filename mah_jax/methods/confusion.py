"""How often a linear classifier of features takes an image of one label for one of another."""

from __future__ import annotations

import numpy as np

from mah_jax.methods import scaling

RIDGE = 0.01  # added to the mean square of each standardised feature, which is 1
PARTS = 5     # each part of the rows is judged by a classifier of the others


def of_classifier(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Confusions of least-squares classifiers on rows that they were not fitted to.

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

  parts = [(features[i::PARTS], labels[i::PARTS]) for i in range(PARTS)]
  sums = [scaling.sum_over_blocks(products, *part) for part in parts]  # [D + 1, D + 1 + L] each
  counts = np.zeros((labels.shape[1],) * 2)
  for part, own in zip(parts, sums):
    gram, targets = np.split(sum(sums) - own, [len(own)], axis=1)
    ridge = RIDGE * max(1, len(features) - len(part[0])) * np.eye(len(gram))
    weights = np.linalg.solve(gram + ridge, targets).astype(np.float32)

    def taken(rows, wanted, weights=weights):
      likeliest = np.argmax(scaled(rows) @ weights, axis=1)
      return wanted.T @ (likeliest[:, None] == np.arange(labels.shape[1]))

    counts += scaling.sum_over_blocks(taken, *part)
  return counts / np.maximum(labels.sum(axis=0), 1)[:, None]
