"""The parts of a run that fit together: data, network, method and what is compiled of them."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np

from mah_jax import cache
from mah_jax import config as config_lib
from mah_jax import discrete
from mah_jax import encoder as encoder_lib
from mah_jax import methods
from mah_jax import models
from mah_jax import progress
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.train import loop
from mah_jax.train import step as step_lib

LINES = 8  # of a report on skipped images that are said


class Experiment:
  """Everything that a Config says about a run, made ready to train, encode and score."""

  def __init__(self, config: config_lib.Config, data: datasets.Dataset,
               pixels: pipeline.Pixels, devices: step_lib.Devices):
    self.data, self.pixels, self.devices = data, pixels, devices
    split = data.protocol
    self.labels = data.labels[split.database]
    n = len(split.database)
    self.plan = loop.Plan(
        num_rounds=config.num_rounds, epochs_per_round=config.epochs_per_round,
        batch_size=config.batch_size, num_sampled=min(config.num_sampled or n, n),
        shuffle=config.shuffle, code_update=config.code_update,
        code_embeddings=config.code_embeddings, hold_codes_rounds=config.hold_codes_rounds)
    self.method = methods.METHODS[config.method](config, self.labels)
    self.network = network(config)
    self.key = jax.random.key(config.seed)
    self.optimizer = loop.make_optimizer(
        self.plan.steps_per_round, learning_rate=config.learning_rate,
        momentum=config.momentum, weight_decay=config.weight_decay,
        drop_rounds=config.lr_drop_rounds)
    self._encoder = encoder_lib.Encoder(config, self.network, pixels, devices)
    self.train_step = step_lib.make_train_step(devices, self._encoder.prepare, self.method.loss)
    self.feed_database = self._encoder.feed(data.images[split.database])
    self.feed_queries = self._encoder.feed(data.images[split.queries])

  def new_state(self, backbone: dict[str, Any] | None = None) -> step_lib.TrainState:
    """The state before the first step, on all devices.

    Args:
      backbone: variables of the backbone to start from, by collection; None: random ones.
    """
    state = step_lib.make_state(
        self.network, self.optimizer, self.method.init_codes(), self._encoder.input_shape,
        self.plan.num_sampled, key=jax.random.fold_in(self.key, loop.AUGMENT),
        init_key=jax.random.fold_in(self.key, loop.INIT))
    if backbone is not None:
      state = state.replace(**{name: getattr(state, name) | {'backbone': part}
                               for name, part in backbone.items()})
    return self.devices.replicate(state)

  def encode(self, state: step_lib.TrainState, rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Embeddings of rows of the database, ([rows, c], ...)."""
    return self._encoder(state.variables, self.feed_database, rows, 'encoding')

  def query_codes(self, state: step_lib.TrainState) -> tuple[np.ndarray, ...]:
    """Codes of the queries by Eq. 14, ([q, c] int8, ...)."""
    rows = np.arange(len(self.data.protocol.queries))
    return binary(self._encoder(state.variables, self.feed_queries, rows, 'encoding queries'))

  def database_codes(self, state: step_lib.TrainState) -> tuple[np.ndarray, ...]:
    """Codes of the database by the network, as for any other image, ([n, c] int8, ...)."""
    rows = np.arange(len(self.labels))
    return binary(self._encoder(state.variables, self.feed_database, rows,
                                'encoding the database'))


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


def network(config: config_lib.Config):
  """The network that a Config describes."""
  return models.make_network(
      config.backbone, config.heads, config.code_lengths, feature=config.feature,
      width=config.width, axis_name=step_lib.AXIS)


def binary(embeddings) -> tuple[np.ndarray, ...]:
  """Codes of embeddings, ([rows, c] int8, ...)."""
  return tuple(np.asarray(discrete.sign(u), np.int8) for u in embeddings)
