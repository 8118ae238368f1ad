"""Fitting of features: each code length is fitted by itself."""

from __future__ import annotations

import time
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import discrete
from mah_jax.evaluation import scores
from mah_jax.methods import base
from mah_jax.methods import scaling


class Fit(NamedTuple):
  """A method fitted with one seed.

  codes: the codes of each length.
  states: the hash function of each length.
  seconds: how long fitting took.
  """
  codes: tuple[scores.Codes, ...]
  states: tuple[Any, ...]
  seconds: float


def fit(config: config_lib.Config, queries: np.ndarray, database: np.ndarray, labels: np.ndarray,
        seed: int, training: np.ndarray | None = None) -> Fit:
  """Fits the method of a Config and encodes.

  Args:
    config: the method, its options and its code lengths.
    queries: features, [q, D].
    database: features, [n, D].
    labels: 0/1 labels of the rows that are fitted, [t, L].
    seed: of everything random.
    training: features of the rows that are fitted, [t, D], whose codes are then not the
      database's; None: the database is fitted.
  """
  method, key = config.spec.make(config.options), jax.random.key(seed)
  rows = database if training is None else training
  codes, states, seconds = [], [], 0.0
  with console.bar(len(config.code_lengths), f'{config.method}, seed {seed}',
                   unit='lengths') as bar:
    for c in config.code_lengths:
      began = time.monotonic()
      fitted = jax.block_until_ready(method.fit(rows, labels, c, jax.random.fold_in(key, c)))
      seconds += time.monotonic() - began
      learned = fitted.codes if training is None else None
      of_queries, outputs = encode(method, fitted.state, queries)
      codes.append(scores.Codes(
          of_queries, None if learned is None else np.asarray(learned),
          encode(method, fitted.state, database)[0], outputs=outputs))
      states.append(fitted.state)
      bar.update()
  return Fit(tuple(codes), tuple(states), seconds)


def encode(method: base.ShallowMethod, state: Any,
           features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Codes of any number of points by the hash function, and the outputs whose signs they are.

  [rows, D] -> [rows, c] int8, [rows, c] float32.
  """
  outputs = scaling.by_blocks(lambda rows: method.project(state, rows), features)
  return np.asarray(discrete.to_codes(outputs)), np.asarray(outputs)
