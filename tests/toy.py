"""A small dataset that a small network learns in seconds: noisy 8x8 patterns, five classes."""

import numpy as np
from flax import linen as nn

from mah_jax import config
from mah_jax import experiment
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.data import splits
from mah_jax.evaluation import metrics
from mah_jax.train import loop
from mah_jax.train import step

FLAGS = {'backbone': 'compact', 'width': 4, 'image_size': 0, 'crop': 1.0, 'normalize': 'dataset',
         'dataset': 'digits', 'code_lengths': (3, 5), 'head_weights': (1.0, 1.0), 'gamma': 10.0,
         'code_init': 'codebook', 'batch_size': 64, 'learning_rate': 0.02, 'momentum': 0.9,
         'num_rounds': 2, 'epochs_per_round': 1, 'num_sampled': 150, 'shuffle': True,
         'lr_drop_rounds': (), 'augment': 'shift', 'shift_pixels': 1}


class Backbone(nn.Module):
  """A backbone that compiles at once, for tests of what is around it."""

  @nn.compact
  def __call__(self, images, train):
    x = nn.Dense(32)(images.reshape(len(images), -1))
    return nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9,
                                axis_name=step.AXIS)(x))


def settings(**changes) -> config.Config:
  """A Config for the toy data."""
  return config.Config(**(FLAGS | changes))


def dataset(rows=400, classes=5, seed=0) -> datasets.Dataset:
  """Rows of `classes` patterns with noise, split into queries and database."""
  rng = np.random.default_rng(seed)
  patterns = rng.integers(0, 256, (classes, 8, 8, 1))
  kind = np.arange(rows) % classes
  images = np.clip(patterns[kind] + rng.normal(0, 40, (rows, 8, 8, 1)), 0, 255).astype(np.uint8)
  labels = np.eye(classes, dtype=np.uint8)[kind]
  return datasets.Dataset('toy', images, labels, tuple('abcde'[:classes]), (0.5,), (0.3,),
                          splits.balanced(labels, 10, 0, 'toy'))


def make(num_devices=1, rows=400, labels=None, **changes) -> experiment.Experiment:
  """An Experiment on the toy data, or on other labels of the same images."""
  made = settings(**changes)
  data = dataset(rows)
  if labels is not None:
    data = data._replace(labels=labels)
  devices = step.Devices(step.pick_devices(num_devices), made.batch_size)
  pixels = pipeline.Pixels(8, 1, (0.5,), (0.3,))
  return experiment.Experiment(made, data, pixels, devices)


def fit(made: experiment.Experiment, state=None, on_step=lambda: False,
        history=()) -> list[loop.Pause]:
  """All pauses of training from a state, or from the start."""
  state = state or made.new_state()
  return list(loop.fit(
      state, made.plan, made.method, devices=made.devices, train_step=made.train_step,
      feed=made.feed_database, encode=made.database_outputs, key=made.key, on_step=on_step,
      history=history))


def scores(made: experiment.Experiment, state) -> list[dict[str, float]]:
  """Scores of each length: of learned codes or, where there are none, of encoded ones."""
  method, split = made.method, made.data.protocol
  queries, encoded = (experiment.binary(embeddings(made.outputs(state, rows)))
                      for embeddings, rows in ((method.query_embeddings, split.queries),
                                               (method.database_embeddings, split.database)))
  labels = made.data.labels[split.queries], made.data.labels[split.database]
  return [metrics.evaluate(q, np.asarray(b), *labels)
          for q, b in zip(queries, method.learned(state.codes) or encoded)]
