"""The parts of a run that fit together: data, network, method and what is compiled of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from mah_jax import cache
from mah_jax import config as config_lib
from mah_jax import discrete
from mah_jax import encoder as encoder_lib
from mah_jax import errors
from mah_jax import methods
from mah_jax import models
from mah_jax import progress
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.methods import base
from mah_jax.train import loop
from mah_jax.train import step as step_lib

BACKBONES = ('backbone', 'database_backbone')  # parts of a network that take imported weights
LINES = 8  # of a report on skipped images that are said


class Experiment:
  """Everything that a Config says about training a network, made ready to train and encode."""

  def __init__(self, config: config_lib.Config, data: datasets.Dataset,
               pixels: pipeline.Pixels, devices: step_lib.Devices):
    self.config, self.data, self.pixels, self.devices = config, data, pixels, devices
    self.labels = data.labels[data.protocol.database]
    n = len(self.labels)
    self.plan = loop.Plan(
        num_rows=n, num_rounds=config.num_rounds, epochs_per_round=config.epochs_per_round,
        batch_size=config.batch_size, num_sampled=config.sample_size(n),
        shuffle=config.shuffle, code_update=config.code_update,
        code_embeddings=config.code_embeddings, hold_codes_rounds=config.hold_codes_rounds)
    self.method = methods.DEEP[config.method](config, self.labels)
    self.network = network(config, self.method)
    self.key = jax.random.key(config.seed)
    self.optimizer = loop.make_optimizer(
        _schedule(config, self.plan), momentum=config.momentum,
        weight_decay=config.weight_decay, turns=self.method.turns,
        steps_per_turn=self.plan.steps_per_epoch)
    self._encoder = encoder_lib.Encoder(config, self.network, pixels, devices)
    # Of an update of the codes, which is training: flags of an evaluation do not change it.
    self._plain = self._encoder if not config.mirror else encoder_lib.Encoder(
        dataclasses.replace(config, mirror=False), self.network, pixels, devices)
    self.train_step = step_lib.make_train_step(devices, self._encoder.prepare, self.method.loss,
                                               encoder_lib.DTYPES[config.precision])
    self._feed = self._encoder.feed(data.images)
    self._state, self._outputs = None, {}  # outputs of this state, by their rows

  def new_state(self, backbone: dict[str, Any] | None = None) -> step_lib.TrainState:
    """The state before the first step, on all devices.

    Args:
      backbone: variables of the backbone to start from, by collection; None: random ones.
    """
    state = step_lib.make_state(
        self.network, self.optimizer, self.method.init_codes(), self._encoder.input_shape,
        self.plan.num_sampled, key=jax.random.fold_in(self.key, loop.AUGMENT),
        init_key=jax.random.fold_in(self.key, loop.INIT))
    for name, start in (backbone or {}).items():
      state = state.replace(**{name: {
          part: jax.tree.map(jnp.copy, start) if part in BACKBONES else own
          for part, own in getattr(state, name).items()}})
    return self.devices.replicate(state)

  def feed_database(self, batches: Iterable[np.ndarray]) -> Iterator[jax.Array]:
    """Brings batches of database rows to the devices, as a step_lib.Feed."""
    return self._feed(self.data.protocol.database[rows] for rows in batches)

  def database_outputs(self, state: step_lib.TrainState, rows: np.ndarray) -> Any:
    """Outputs for rows of the database as training asks for them, ([rows, w], ...)."""
    return self._plain(state.variables, self._feed, self.data.protocol.database[rows],
                       f'encoding {len(rows)} images')

  def outputs(self, state: step_lib.TrainState, rows: np.ndarray) -> Any:
    """Outputs of the network for rows of the dataset, ([rows, w], ...).

    Those of the newest state are kept: the end of a run asks for what its last round was scored by.
    """
    if self._state is not state:
      self._state, self._outputs = state, {}
    key = rows.tobytes()
    if key not in self._outputs:
      self._outputs[key] = self._encoder(state.variables, self._feed, rows,
                                         f'encoding {len(rows)} images')
    return self._outputs[key]


def _schedule(config: config_lib.Config, plan: loop.Plan) -> optax.Schedule:
  """The learning rate of each step."""
  if config.lr_schedule == 'triangle':
    return loop.triangle_schedule(config.learning_rate, plan.num_rounds * plan.steps_per_round,
                                  config.warmup)
  return loop.step_schedule(config.learning_rate, plan.steps_per_round, config.lr_drop_rounds)


def load(config: config_lib.Config) -> datasets.Dataset:
  """The dataset, under a progress bar where its images are looked through."""
  with contextlib.ExitStack() as stack:
    data = datasets.load(
        config.dataset, config.data_dir, config.split_seed, protocol=config.protocol,
        query_fraction=config.query_fraction, query_list=config.query_list,
        cache_dir=cache.folder('images'),
        on_start=lambda total: stack.enter_context(progress.bar(total, 'checking images')).update)
  lines = data.report.splitlines()
  for line in lines[:LINES]:
    progress.say(line)
  if len(lines) > LINES:
    progress.say(f'  and {len(lines) - LINES} more, all of them in skipped.txt of the run folder.')
  return data


def backbone(config: config_lib.Config) -> nn.Module:
  """The backbone that a Config describes."""
  return models.make_backbone(config.backbone, feature=config.feature, width=config.width,
                              axis_name=step_lib.AXIS)


def network(config: config_lib.Config, method: base.DeepMethod) -> nn.Module:
  """The network that a method builds on the backbone of a Config."""
  return method.network(functools.partial(backbone, config))


def words(config: config_lib.Config, codes) -> tuple[np.ndarray, ...] | None:
  """The codes among which --binarize=nearest chooses, ([k, c] int8, ...); None for signs.

  Args:
    config: of the run.
    codes: database codes, ([n, c] int8, ...).
  """
  if config.binarize == 'sign':
    return None
  check_codes(codes)
  return tuple(np.unique(np.asarray(b), axis=0) for b in codes)


def check_codes(codes):
  """Refuses database codes ([n, c], ...) that are still the zeros they began with."""
  if not all(np.all(b) for b in codes):
    raise errors.InputError('The newest checkpoint of this run is from before the first update of '
                            'its codes: go on training first.')


def binary(embeddings, among: tuple[np.ndarray, ...] | None = None) -> tuple[np.ndarray, ...]:
  """Codes of embeddings, ([rows, c] int8, ...): signs, or the nearest among `words`."""
  if among is None:
    return tuple(np.asarray(discrete.sign(u), np.int8) for u in embeddings)
  return tuple(discrete.nearest(np.asarray(u), own) for u, own in zip(embeddings, among))
