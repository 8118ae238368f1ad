"""Algorithm 1 of the paper: sample rows, train on them, update the codes, round after round."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax.data import pipeline
from mah_jax.methods import base
from mah_jax.train import step as step_lib

# A purpose is folded into the root key, then the number of the round or epoch.
INIT, SAMPLE, ORDER, AUGMENT = range(4)
RATE_DROP = 0.1  # as in the authors' script
CALL_ROWS = 8192  # features that steps of one call read, so that Python does not wait on each step


@dataclasses.dataclass(frozen=True)
class Plan:
  """How long to train: K, T, M and m of the paper, see Config; num_rows is n in training.

  rounds_before: rounds that another network has trained the codes in already.
  """
  num_rows: int
  num_rounds: int
  epochs_per_round: int
  batch_size: int
  num_sampled: int
  shuffle: bool
  steps_per_call: int = 1
  rounds_before: int = 0

  @property
  def steps_per_epoch(self) -> int:
    """Batches of one pass over the sampled rows."""
    return pipeline.num_batches(self.num_sampled, self.batch_size)

  @property
  def steps_per_round(self) -> int:
    """Training steps between two draws of rows."""
    return self.epochs_per_round * self.steps_per_epoch

  @property
  def num_epochs(self) -> int:
    """Passes over sampled rows in all."""
    return self.num_rounds * self.epochs_per_round

  @property
  def num_steps(self) -> int:
    """Training steps in all."""
    return self.num_rounds * self.steps_per_round

  def images_after(self, steps: int) -> int:
    """Images that so many steps see; the last batch of an epoch may be filled up by others."""
    epochs, rest = divmod(steps, self.steps_per_epoch)
    return epochs * self.num_sampled + rest * self.batch_size


def make_plan(config: config_lib.Config, num_rows: int) -> Plan:
  """The plan of a Config for so many rows for training."""
  several = max(1, CALL_ROWS // config.batch_size)
  return Plan(num_rows=num_rows, num_rounds=config.num_rounds,
              epochs_per_round=config.epochs_per_round, batch_size=config.batch_size,
              num_sampled=config.sample_size(num_rows), shuffle=config.shuffle,
              steps_per_call=several if config.input == 'features' else 1,
              rounds_before=config.head_rounds)


class Pause(NamedTuple):
  """A point where training can be scored, saved and resumed.

  state: the state after the last step, its codes updated if that was due.
  round: number of the round, from 0.
  finished: whether the round is finished; if not, a stop was asked for.
  history: metrics of each step made in this round.
  """
  state: step_lib.TrainState
  round: int
  finished: bool
  history: list[dict[str, float]]

  @property
  def metrics(self) -> dict[str, float]:
    """Means over the steps made in this round."""
    return {name: float(np.mean([metrics[name] for metrics in self.history]))
            for name in self.history[0]}


def step_schedule(learning_rate: float, steps_per_round: int,
                  drop_rounds: tuple[int, ...]) -> optax.Schedule:
  """A rate that is divided by ten after each drop round, counted from 0."""
  return optax.piecewise_constant_schedule(
      learning_rate, {(r + 1) * steps_per_round: RATE_DROP for r in drop_rounds})


def triangle_schedule(learning_rate: float, num_steps: int, warmup: float) -> optax.Schedule:
  """A rate that rises evenly over a share `warmup` of all steps, then falls evenly.

  No step is wasted: the first has a rate above 0 and so has the last.
  """
  peak = int(warmup * num_steps)

  def schedule(step):
    return learning_rate * jnp.minimum((step + 1) / (peak + 1),
                                       (num_steps - step) / (num_steps - peak))

  return schedule


def make_optimizer(schedule: optax.Schedule, *, momentum: float, weight_decay: float,
                   adam: bool = False, turns: tuple[tuple[str, ...], ...] = (),
                   steps_per_turn: int = 1,
                   moves: Callable[[Any], Any] | None = None) -> optax.GradientTransformation:
  """SGD or AdamW, with weight decay on everything that moves.

  AdamW decays weights beside the gradient, so that the rate alone scales the decay. Where
  parameters take turns, each of `turns` names those that move, while all others stay as they
  are, for `steps_per_turn` steps. `moves` tells for parameters, or for whole branches of their
  tree, whether they move at all; those that do not must have no gradient. None: all move.
  """
  decay = optax.add_decayed_weights(weight_decay)
  direction = optax.chain(optax.scale_by_adam(b1=momentum), decay) if adam else optax.chain(
      decay, optax.trace(momentum) if momentum else optax.identity())
  if turns:
    turn_of = {name: turn for turn, names in enumerate(turns) for name in names}
    direction = optax.partition(
        {turn: _only_in_turn(direction, turn, len(turns), steps_per_turn)
         for turn in range(len(turns))},
        lambda params: {name: jax.tree.map(lambda _, turn=turn_of[name]: turn, part)
                        for name, part in params.items()})
  if moves:
    direction = optax.masked(direction, moves)
  return optax.chain(direction, optax.scale_by_learning_rate(schedule))


def _only_in_turn(direction, turn, turns, steps_per_turn):
  return optax.conditionally_mask(
      direction, lambda step: step // steps_per_turn % turns == turn)


def fit(state: step_lib.TrainState, plan: Plan, method: base.DeepMethod, *,
        devices: step_lib.Devices, train_step: Callable, feed: step_lib.Feed, encode: Callable,
        key: jax.Array, on_step: Callable[[int], bool],
        history: Sequence[dict[str, float]] = ()) -> Iterator[Pause]:
  """Trains from wherever the state is and pauses after every round.

  Args:
    state: new or restored; its step number says what is done already. It is used up.
    plan: how long, and when codes change.
    method: its loss and its update of the codes.
    devices: where it runs.
    train_step: see step.make_train_step.
    feed: batches of training rows [B] -> their images on the devices.
    encode: (state, training rows [m]) -> outputs, for --code_embeddings=fresh.
    key: root of the draws of rows and orders.
    on_step: called with the number of steps that were made, one or more; True asks to stop.
    history: the history of the Pause that is resumed, if its round was not finished.

  Yields:
    A Pause after each round, or at once when asked to stop; then the generator ends.
  """

  @functools.lru_cache(maxsize=1)  # a draw from many rows takes as long as many steps
  def sample(draw: int) -> np.ndarray:
    return pipeline.sample(_fold(key, SAMPLE, draw), plan.num_rows, plan.num_sampled)

  step, metrics = int(state.step), []  # those of the calls that were made in this round
  history = list(history)
  for epoch in range(step // plan.steps_per_epoch, plan.num_epochs):
    r, t = divmod(epoch, plan.epochs_per_round)
    sampled = sample(r if method.resamples else 0)
    targets = devices.replicate(method.targets(state.codes, sampled, epoch))
    order_key = _fold(key, ORDER, epoch) if plan.shuffle else None
    groups = None if method.batch_groups is None else method.batch_groups[sampled]
    batches = list(pipeline.batches(sampled, plan.batch_size, order_key, groups))
    batches = batches[step % plan.steps_per_epoch:]  # the rest of an epoch that was begun
    shard = devices.shard
    if plan.steps_per_call > 1:
      batches, shard = pipeline.stack(batches, plan.steps_per_call), devices.shard_steps
    stop = False
    for batch, images in zip(batches, feed(batch.row for batch in batches)):
      state, of_call = train_step(state, targets, images, shard(batch))
      metrics.append(of_call)
      _check_finite(metrics[-2:][0]['loss'], r)  # waits for all calls but the newest
      made = batch.row.size // plan.batch_size
      step += made
      stop = on_step(made)
      if stop:
        break
    epoch_finished = step == (epoch + 1) * plan.steps_per_epoch
    is_last_epoch = t == plan.epochs_per_round - 1
    update = method.update
    if epoch_finished and update and update.due(plan.rounds_before + r, is_last_epoch):
      outputs = encode(state, sampled) if update.embeddings == 'fresh' else state.memory
      state = state.replace(codes=update.solve(state.codes, outputs, sampled, devices.over_rows))
    round_finished = epoch_finished and is_last_epoch
    if round_finished or stop:
      _check_finite(_norm(state.params) + metrics[-1]['loss'], r)
      yield Pause(state, r, round_finished, history + _by_step(jax.device_get(metrics)))
      history, metrics = [], []
    if stop:
      return


def _by_step(calls: Sequence[dict[str, np.ndarray]]) -> list[dict[str, float]]:
  """The metrics of each step, from those of calls, whose values are one number or [steps]."""
  return [dict(zip(metrics, map(float, values))) for metrics in calls
          for values in zip(*map(np.atleast_1d, metrics.values()))]


def _fold(key: jax.Array, *numbers: int) -> jax.Array:
  for number in numbers:
    key = jax.random.fold_in(key, number)
  return key


_norm = jax.jit(optax.tree.norm)  # of all parameters, in one program


def _check_finite(value: jax.Array | float, round_: int):
  """Refuses a loss or a network that is no longer finite."""
  if not np.all(np.isfinite(value)):
    raise errors.NotFiniteError(f'The loss is not finite in round {round_ + 1}, which is not '
                                'saved. A lower --learning_rate usually helps.')
