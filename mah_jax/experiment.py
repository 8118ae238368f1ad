"""The parts of a run that fit together: data, network, method and what is compiled of them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from mah_jax import config as config_lib
from mah_jax import discrete
from mah_jax import methods
from mah_jax import models
from mah_jax import progress
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.evaluation import metrics as metrics_lib
from mah_jax.train import loop
from mah_jax.train import step as step_lib

TOP_K = 5000  # of precision@k and map@k, as in the paper


class Experiment:
  """Everything that a Config says about a run, made ready to train, encode and score."""

  def __init__(self, config: config_lib.Config, data: datasets.Dataset,
               devices: step_lib.Devices):
    self.data, self.devices = data, devices
    split = data.protocol
    self.labels = data.labels[split.database]
    n = len(split.database)
    self.plan = loop.Plan(
        num_rounds=config.num_rounds, epochs_per_round=config.epochs_per_round,
        batch_size=config.batch_size, num_sampled=min(config.num_sampled or n, n),
        shuffle=config.shuffle, code_update=config.code_update,
        code_embeddings=config.code_embeddings, hold_codes_rounds=config.hold_codes_rounds)
    self.method = methods.METHODS[config.method](config, self.labels)
    self.network = models.make_network(
        config.backbone, config.heads, config.code_lengths, feature=config.feature,
        width=config.width, axis_name=step_lib.AXIS)
    mean, std = ((pipeline.IMAGENET_MEAN, pipeline.IMAGENET_STD)
                 if config.normalize == 'imagenet' else (data.mean, data.std))
    prepare = pipeline.make_prepare(
        image_size=config.image_size, crop=config.crop, mean=mean, std=std,
        augment=config.augment, shift_pixels=config.shift_pixels)
    self.key = jax.random.key(config.seed)
    self.optimizer = loop.make_optimizer(
        self.plan.steps_per_round, learning_rate=config.learning_rate,
        momentum=config.momentum, weight_decay=config.weight_decay,
        drop_rounds=config.lr_drop_rounds)
    self.input_shape = jax.eval_shape(prepare, data.images[:1], None).shape[1:]
    self.train_step = step_lib.make_train_step(devices, prepare, self.method.loss)
    self._encode = step_lib.make_encode(devices, self.network, prepare)
    self.take_database = step_lib.make_take(devices, data.images[split.database])
    self.take_queries = step_lib.make_take(devices, data.images[split.queries])

  def new_state(self) -> step_lib.TrainState:
    """The state before the first step, on all devices."""
    return self.devices.replicate(step_lib.make_state(
        self.network, self.optimizer, self.method.init_codes(), self.input_shape,
        self.plan.num_sampled, key=jax.random.fold_in(self.key, loop.AUGMENT),
        init_key=jax.random.fold_in(self.key, loop.INIT)))

  def encode(self, state: step_lib.TrainState, rows: np.ndarray, take: Callable | None = None,
             name: str = '') -> tuple[np.ndarray, ...]:
    """Embeddings of rows of the database (or of what `take` takes), ([rows, c], ...)."""
    take = take or self.take_database
    parts = []
    steps = pipeline.num_batches(len(rows), self.plan.batch_size)
    with progress.bar(steps, name) as bar:
      for batch in pipeline.batches(rows, self.plan.batch_size):
        outputs = self._encode(state, take(batch.row))
        parts.append([u[batch.valid > 0] for u in outputs])
        bar.update()
    return tuple(np.concatenate(head) for head in zip(*parts))

  def query_codes(self, state: step_lib.TrainState) -> tuple[np.ndarray, ...]:
    """Codes of the queries by Eq. 14, ([q, c] int8, ...)."""
    rows = np.arange(len(self.data.protocol.queries))
    return _binary(self.encode(state, rows, self.take_queries, 'encoding queries'))

  def database_codes(self, state: step_lib.TrainState) -> tuple[np.ndarray, ...]:
    """Codes of the database by the network, as for any other image, ([n, c] int8, ...)."""
    rows = np.arange(len(self.labels))
    return _binary(self.encode(state, rows, name='encoding the database'))

  def scores(self, queries, database) -> list[dict[str, float]]:
    """All metrics of each head's codes, see evaluation/metrics.py."""
    query_labels = self.data.labels[self.data.protocol.queries]
    return [metrics_lib.evaluate(q, b, query_labels, self.labels, k=TOP_K)
            for q, b in zip(queries, database)]


def _binary(embeddings) -> tuple[np.ndarray, ...]:
  return tuple(np.asarray(discrete.sign(u), np.int8) for u in embeddings)
