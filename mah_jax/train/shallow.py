"""Fitting of features: each code length is fitted by itself."""

from __future__ import annotations

import time

import jax
import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax.evaluation import scores
from mah_jax.methods import scaling


def fit(config: config_lib.Config, queries: np.ndarray, database: np.ndarray, labels: np.ndarray,
        seed: int, training: np.ndarray | None = None) -> tuple[tuple[scores.Codes, ...], float]:
  """Fits the method of a Config and encodes.

  Args:
    config: the method, its options and its code lengths.
    queries: features, [q, D].
    database: features, [n, D].
    labels: 0/1 labels of the rows that are fitted, [t, L].
    seed: of everything random.
    training: features of the rows that are fitted, [t, D], whose codes are then not the
      database's; None: the database is fitted.

  Returns:
    The codes of each length, and the seconds that fitting took.
  """
  method, key = config.spec.make(config.options), jax.random.key(seed)
  fitted = database if training is None else training
  codes, seconds = [], 0.0
  with console.bar(len(config.code_lengths), f'{config.method}, seed {seed}') as bar:
    for c in config.code_lengths:
      began = time.monotonic()
      state = jax.block_until_ready(method.fit(fitted, labels, c, jax.random.fold_in(key, c)))
      seconds += time.monotonic() - began
      learned = method.learned(state) if training is None else None
      codes.append(scores.Codes(
          encode(method, state, queries), None if learned is None else np.asarray(learned),
          encode(method, state, database)))
      bar.update()
  return tuple(codes), seconds


def encode(method, state, features: np.ndarray) -> np.ndarray:
  """Codes of any number of points by the hash function, [rows, D] -> [rows, c] int8."""
  return np.asarray(scaling.by_blocks(lambda rows: method.encode(state, rows), features))
