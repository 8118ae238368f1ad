"""A small dataset that a small network learns in seconds: noisy 8x8 patterns, five classes."""

import numpy as np
from flax import linen as nn

from mah_jax import config
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.data import splits
from mah_jax.evaluation import metrics
from mah_jax.methods import base
from mah_jax.train import loop
from mah_jax.train import step
from mah_jax.train import trainer

FLAGS = {'method': 'mah', 'backbone': 'compact', 'width': 4, 'image_size': 0, 'crop': 1.0,
         'normalize': 'dataset', 'dataset': 'digits', 'code_lengths': (3, 5),
         'head_weights': (1.0, 1.0), 'gamma': 10.0, 'code_init': 'codebook', 'batch_size': 64,
         'learning_rate': 0.02, 'momentum': 0.9, 'num_rounds': 2, 'epochs_per_round': 1,
         'num_sampled': 150, 'shuffle': True, 'lr_drop_rounds': (), 'augment': 'shift',
         'shift_pixels': 1}


class Backbone(nn.Module):
  """A backbone that compiles at once, for tests of what is around it."""

  @nn.compact
  def __call__(self, images, train):
    x = nn.Dense(32)(images.reshape(len(images), -1))
    return nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9,
                                axis_name=step.AXIS)(x))


def settings(**changes) -> config.Config:
  """A Config for the toy data; options that the method does not have are left out."""
  flags = config.relevant(FLAGS | {'method': changes.get('method', FLAGS['method'])})
  if changes.get('augment') == 'none':
    flags.pop('shift_pixels', None)
  return config.make(**(flags | changes))


def method(labels, **changes) -> base.DeepMethod:
  """A deep method for a database with 0/1 labels [n, L]."""
  made = settings(**changes)
  return made.spec.make(made.options, base.Task(
      labels, made.code_lengths, made.sample_size(len(labels)), made.seed))


def dataset(rows=400, classes=5, seed=0) -> datasets.Dataset:
  """Rows of `classes` patterns with noise, split into queries and database."""
  rng = np.random.default_rng(seed)
  patterns = rng.integers(0, 256, (classes, 8, 8, 1))
  kind = np.arange(rows) % classes
  images = np.clip(patterns[kind] + rng.normal(0, 40, (rows, 8, 8, 1)), 0, 255).astype(np.uint8)
  labels = np.eye(classes, dtype=np.uint8)[kind]
  return datasets.Dataset(images, labels, tuple('abcde'[:classes]), name='toy', mean=(0.5,),
                          std=(0.3,), protocol=splits.balanced(labels, 10, 0, 'toy'))


def make(num_devices=1, rows=400, labels=None, data=None, **changes) -> trainer.Trainer:
  """A Trainer on the toy data, on other labels of the same images, or on other data."""
  made = settings(**changes)
  data = data or dataset(rows)
  if labels is not None:
    data = data._replace(labels=labels)
  devices = step.Devices(step.pick_devices(num_devices), made.batch_size)
  return trainer.Trainer(made, data, pipeline.Pixels(8, 1, (0.5,), (0.3,)), devices)


def fit(made: trainer.Trainer, state=None, on_step=lambda: False,
        history=()) -> list[loop.Pause]:
  """All pauses of training from a state, or from the start."""
  return list(made.fit(state or made.new_state(), on_step, history))


def scores(made: trainer.Trainer, state) -> list[dict[str, float]]:
  """Scores of each length: of learned codes or, where there are none, of encoded ones."""
  split = made.data.protocol
  labels = made.data.labels[split.queries], made.data.labels[split.database]
  return [metrics.evaluate(codes.queries, codes.database, *labels)
          for codes in made.codes(state, always_encode=False)]
