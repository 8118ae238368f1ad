"""What a hashing method is to the rest of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

Codes = tuple[jax.Array, ...]  # one [rows, c] for each of code_lengths


def same(outputs: Any) -> Any:
  """Of networks whose outputs are the embeddings, in the order of code_lengths."""
  return outputs


class Method(NamedTuple):
  """Any of the methods as a run sees it.

  reads: 'images' or 'features', what `x` is: row numbers of images [rows], or features [rows, D].
  fit: (x of the database, labels [n, L] 0/1, seed) -> (state, seconds that fitting took).
  encode: (state, x) -> codes of points as if never seen, as queries, Eq. 14.
  encode_database: likewise, for those that are searched.
  database_codes: (state) -> codes that were solved for, of the database, or None where a method
    has a function only and the database must be encoded.
  bit_weights: (state) -> weight of each bit in a weighted ranking, ([c], ...), or None.
  """
  reads: str
  fit: Callable[..., tuple[Any, float]]
  encode: Callable[[Any, np.ndarray], Codes]
  encode_database: Callable[[Any, np.ndarray], Codes]
  database_codes: Callable[[Any], Codes | None]
  bit_weights: Callable[[Any], tuple[np.ndarray, ...] | None]


class ShallowMethod(NamedTuple):
  """What methods on fixed features differ in, one code length c at a time; see shallow.py.

  fit: (features [n, D] float32, labels [n, L] 0/1, c, key) -> a NamedTuple of arrays: what was
    learned.
  encode: (learned, features [b, D]) -> codes of points never seen, [b, c] int8.
  learned: (learned) -> codes that the method solved for, of the rows it was given, [n, c] int8,
    or None where it has a function only.
  """
  fit: Callable[..., Any]
  encode: Callable[[Any, jax.Array], jax.Array]
  learned: Callable[[Any], jax.Array | None]


class Seen(NamedTuple):
  """What a loss sees of a training step beside the outputs of its device's own images.

  position: place of each own image among the sampled rows, [b].
  memory: last outputs of all sampled rows, this step's among them, ([m, w], ...), constant.
  batch: outputs of the images of all devices, ([B, w], ...); gradients flow through them.
  batch_position: their places among the sampled rows, [B].
  batch_valid: 1, or 0 for a repeated row that must not count, [B].
  step: training steps made before this one.
  """
  position: jax.Array
  memory: tuple[jax.Array, ...]
  batch: tuple[jax.Array, ...]
  batch_position: jax.Array
  batch_valid: jax.Array
  step: jax.Array


class DeepMethod(NamedTuple):
  """What methods that train a network differ in; train/ does the rest. It holds no state.

  network: (make_backbone) -> module, (images, train) -> outputs ([b, w], ...).
    `make_backbone()` gives a new backbone; imported weights go to those that the module has
    under the names backbone and database_backbone.
  targets: (codes, sampled rows [m], epoch) -> a pytree: what the loss needs of the database. It
    is computed before each epoch, so that a step's cost does not grow with n.
  loss: (outputs, targets, Seen) -> loss per image [b] and its named terms {name: [b]}.
  init_codes: () -> codes before training, whatever the method solves for beside the network.
  update_codes: (codes, memory ([m, w], ...), sampled rows [m], over_rows) -> codes.
    `over_rows(function, rows, rest)` applies function(rows, *rest) to parts of the rows on
    all devices. None where codes never change.
  learned: (codes) -> the database's, ([n, c] int8, ...), or None where it must be encoded.
  query_embeddings, database_embeddings: (outputs) -> what the signs are taken of, ([b, c], ...).
  bit_weights: (outputs) -> weight of each bit, ([c], ...), or None.
  resamples: whether each round draws new rows; else the first draw stays the training set.
  batch_groups: number of each database row's group [n], to be spread evenly over the batches of
    an epoch; None: batches are cut from the rows as they come.
  turns: names of parameters that take turns, one epoch each; (): all move in every step.
  """
  network: Callable[[Callable], Any]
  targets: Callable[..., Any]
  loss: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
  init_codes: Callable[[], Codes] = tuple
  update_codes: Callable[..., Codes] | None = None
  learned: Callable[[Codes], Codes | None] = lambda codes: None
  query_embeddings: Callable[[Any], Codes] = same
  database_embeddings: Callable[[Any], Codes] = same
  bit_weights: Callable[[Any], tuple[np.ndarray, ...] | None] = lambda outputs: None
  resamples: bool = False
  batch_groups: np.ndarray | None = None
  turns: tuple[tuple[str, ...], ...] = ()
