"""The form that a hashing method has: its Spec in the registry, and what its `make` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from mah_jax import options as options_lib

Codes = tuple[jax.Array, ...]  # one [rows, c] for each of code_lengths


@dataclasses.dataclass(frozen=True)
class NoOptions:
  """The options of a method that has none."""


class Spec(NamedTuple):
  """The facts about a method that the program asks before it makes one.

  make: (options, Task) -> DeepMethod, or (options) -> ShallowMethod.
  options: frozen dataclass of the method's own options, see options.py.
  trains_network: whether `make` returns a DeepMethod.
  supervised: whether it learns from labels; the others take labels [n, 0] too.
  one_length: whether a network of it has one code length.
  truncates: whether its shorter codes are parts of its longest.
  check: (options, code_lengths) -> None, raises UsageError for those that do not fit together.
  """
  make: Callable[..., DeepMethod | ShallowMethod]
  options: type = NoOptions
  trains_network: bool = True
  supervised: bool = True
  one_length: bool = False
  truncates: bool = False
  check: Callable[[Any, tuple[int, ...]], None] = lambda options, code_lengths: None


class Task(NamedTuple):
  """The task that a deep method is made for.

  labels: of the database, 0/1, [n, L]; n = 0 makes a method that only encodes.
  code_lengths: bits of each code, ascending.
  num_sampled: m, rows of the database that a round trains on.
  seed: of everything random.
  features: () -> features of the database, [n, D]; None where the network reads images.
  """
  labels: np.ndarray
  code_lengths: tuple[int, ...]
  num_sampled: int
  seed: int
  features: Callable[[], np.ndarray] | None = None


class Fitted(NamedTuple):
  """What a shallow method finds for one code length.

  state: the hash function.
  codes: the codes that the method solved for, of the rows it was given, [n, c] int8; None where
    it finds a hash function only.
  """
  state: Any
  codes: jax.Array | None = None


class ShallowMethod(NamedTuple):
  """A method on fixed features, one code length c at a time; train/shallow.py does the rest.

  fit: (features [n, D] float32, labels [n, L] 0/1, c, key) -> Fitted.
  project: (state, features [b, D]) -> the values whose signs are codes, of points never seen,
    [b, c] float32; b is a block of rows, small enough for the device.
  state: the class of states, a NamedTuple of arrays or of other such classes.
  """
  fit: Callable[..., Fitted]
  project: Callable[[Any, jax.Array], jax.Array]
  state: type


class Seen(NamedTuple):
  """The part of a training step that a loss sees beside the outputs of its device's own images.

  position: position of each own image among the sampled rows, [b].
  memory: last outputs of all sampled rows, this step's among them, ([m, w], ...), constant.
  batch: outputs of the images of all devices, ([B, w], ...); gradients flow through them.
  batch_position: their positions among the sampled rows, [B].
  batch_valid: 1, or 0 for a repeated row that must not count, [B].
  step: training steps made before this one.
  """
  position: jax.Array
  memory: tuple[jax.Array, ...]
  batch: tuple[jax.Array, ...]
  batch_position: jax.Array
  batch_valid: jax.Array
  step: jax.Array


class CodeUpdate(NamedTuple):
  """How and when a method changes its codes.

  solve: (codes, outputs ([m, w], ...), sampled rows [m], over_rows) -> codes.
    `over_rows(function, rows, rest)` applies function(rows, *rest) to parts of the rows on
    all devices.
  every: 'round' or 'epoch', after which codes change.
  embeddings: 'training' takes the outputs as the last epoch's steps saw them, 'fresh' computes
    them anew.
  hold_rounds: rounds at the start in which codes stay as they are.
  """
  solve: Callable[..., Codes]
  every: str
  embeddings: str
  hold_rounds: int

  def due(self, round_: int, is_last_epoch: bool) -> bool:
    """Whether codes change after an epoch of a round, which counts from 0."""
    return (self.every == 'epoch' or is_last_epoch) and round_ >= self.hold_rounds

  def count(self, num_epochs: int, epochs_per_round: int) -> int:
    """How often codes have changed after so many epochs."""
    epochs = (divmod(epoch, epochs_per_round) for epoch in range(num_epochs))
    return sum(self.due(r, t == epochs_per_round - 1) for r, t in epochs)


@dataclasses.dataclass(frozen=True)
class CodeOptions:
  """The options of methods that solve for codes beside the network."""
  hold_codes_rounds: int = options_lib.option(
      0, 'Rounds at the start in which the codes B stay as they are.', least=0)
  code_update: str = options_lib.option(
      'round', 'When B is updated: after each round (authors) or after each epoch (Algorithm 1).',
      choices=('round', 'epoch'))
  code_embeddings: str = options_lib.option(
      'training', 'Outputs H in the update of B: as seen while training (authors) or computed '
      'afresh (paper).', choices=('training', 'fresh'))

  def __post_init__(self):
    options_lib.check(self)

  def update(self, solve: Callable[..., Codes]) -> CodeUpdate:
    """The update that these options describe."""
    return CodeUpdate(solve, self.code_update, self.code_embeddings, self.hold_codes_rounds)


def identity(outputs: Any) -> Any:
  """The outputs themselves, for networks whose outputs are already the embeddings."""
  return outputs


class DeepMethod(NamedTuple):
  """A method that trains a network; train/ does the rest. It holds no state.

  network: (make_backbone) -> module, (images, train) -> outputs ([b, w], ...).
    `make_backbone()` gives a new backbone; imported weights go to those that the module has
    under the names backbone and database_backbone.
  targets: (codes, sampled rows [m], epoch) -> a pytree with all that the loss needs of the
    database. It is computed before each epoch, so that a step's cost does not grow with n.
  loss: (outputs, targets, Seen) -> loss per image [b] and its named terms {name: [b]}. It does not
    depend on the seed: runs with other seeds use the same compiled program.
  init_codes: () -> the codes before training, which the method solves for beside the network.
  update: how and when codes change, or None where they never do.
  learned: (codes) -> the database's, ([n, c] int8, ...), or None where it must be encoded.
  query_embeddings, database_embeddings: (outputs) -> values whose signs are codes, ([b, c], ...).
  nearest: whether an image gets the database code that agrees most with its embedding, instead of
    the embedding's signs.
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
  update: CodeUpdate | None = None
  learned: Callable[[Codes], Codes | None] = lambda codes: None
  query_embeddings: Callable[[Any], Codes] = identity
  database_embeddings: Callable[[Any], Codes] = identity
  nearest: bool = False
  bit_weights: Callable[[Any], tuple[np.ndarray, ...] | None] = lambda outputs: None
  resamples: bool = False
  batch_groups: np.ndarray | None = None
  turns: tuple[tuple[str, ...], ...] = ()
