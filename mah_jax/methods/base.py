"""What a hashing method is to the rest of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax

Codes = tuple[jax.Array, ...]  # one [rows, c] per head, in the order of code_lengths


class DeepMethod(NamedTuple):
  """The things in which deep methods differ; train/ does the rest. It holds no state.

  init_codes: () -> database codes before training, ([n, c] int8, ...).
  targets: (codes, sampled rows [m]) -> a pytree: what the loss needs of the database. It is
    computed before each epoch, so that a step's cost does not grow with n.
  loss: (embeddings ([b, c], ...), targets, positions [b] among the sampled rows) -> loss per
    image [b] and its named terms {name: [b]}.
  update_codes: (codes, embeddings ([m, c], ...), sampled rows [m], over_rows) -> codes.
    `over_rows(function, rows, rest)` applies function(rows, *rest) to parts of the rows on
    all devices.
  """
  init_codes: Callable[[], Codes]
  targets: Callable[[Codes, jax.Array], Any]
  loss: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
  update_codes: Callable[..., Codes]


class ShallowMethod(NamedTuple):
  """A method that works on fixed features, one code length c at a time. It holds no state.

  fit: (features [n, D] float32, labels [n, L] 0/1, c, key) -> a NamedTuple of arrays: what was
    learned.
  encode: (learned, features [b, D]) -> codes of points never seen, [b, c] int8.
  learned: (learned) -> codes that the method solved for, of the rows it was given, [n, c] int8,
    or None where it has a function only.
  """
  fit: Callable[..., Any]
  encode: Callable[[Any, jax.Array], jax.Array]
  learned: Callable[[Any], jax.Array | None]
