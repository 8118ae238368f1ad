"""A small dataset that a small network learns in seconds: noisy 8x8 patterns, five classes.

Also a training step's loss without its network, and slopes to compare its gradient with.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
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


def fit(made: trainer.Trainer, state=None, on_step=lambda steps: False,
        history=()) -> list[loop.Pause]:
  """All pauses of training from a state, or from the start."""
  return list(made.fit(state or made.new_state(), on_step, history))


def scores(made: trainer.Trainer, state) -> list[dict[str, float]]:
  """Scores of each length: of learned codes or, where there are none, of encoded ones."""
  split = made.data.protocol
  labels = made.data.labels[split.queries], made.data.labels[split.database]
  return [metrics.evaluate(codes.queries, codes.database, *labels)
          for codes in made.codes(state, always_encode=False)]


class Batch(NamedTuple):
  """A batch for a loss of a few sampled rows: two rows are repeated and do not count.

  labels: 0/1, several or none in a row, of the database, [15, 4].
  sampled: the training rows, [12].
  position: positions of the images of the batch among them, [8].
  valid: 1, or 0 for the repeated ones, [8].
  """
  labels: np.ndarray
  sampled: np.ndarray
  position: np.ndarray
  valid: np.ndarray

  def similar(self) -> list[list[bool]]:
    """Whether two sampled rows share a label, one pair at a time."""
    own = self.labels[self.sampled].tolist()
    return [[any(a and b for a, b in zip(x, y)) for y in own] for x in own]

  def counted(self) -> list[tuple[int, int]]:
    """The place in the batch and the position of each image that counts."""
    return [(i, p) for i, (p, v) in enumerate(zip(self.position, self.valid)) if v]

  def filed(self, memory: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """A memory [12, w] after the images that count have stored their outputs [8, w]."""
    memory = memory.copy()
    for i, position in self.counted():
      memory[position] = outputs[i]
    return memory


def batch(rng: np.random.Generator) -> Batch:
  """A batch of rows with several labels, one without any among them."""
  labels = (rng.random((15, 4)) < 0.3).astype(np.uint8)
  sampled = rng.permutation(15)[:12]
  labels[sampled[9]] = 0
  return Batch(labels, sampled, np.array([4, 9, 0, 11, 3, 7, 4, 9]),
               np.array([1, 1, 1, 1, 1, 1, 0, 0], np.float32))


def step_loss(method: base.DeepMethod, targets, batch: Batch, memory, step=0, devices=1):
  """Makes (outputs ([8, w], ...)) -> the mean loss of a training step, as train/step.py does.

  The memory ([12, w], ...) is that before the step.
  """
  slot = np.where(batch.valid > 0, batch.position, len(batch.sampled))  # the last: dropped

  def loss(outputs):
    filed = tuple(jnp.asarray(h).at[slot].set(jax.lax.stop_gradient(u), mode='drop')
                  for h, u in zip(memory, outputs))
    total = 0.0
    for part in np.split(np.arange(len(slot)), devices):
      seen = base.Seen(batch.position[part], filed, outputs, batch.position, batch.valid, step)
      own = tuple(u[part] for u in outputs)
      total += jnp.sum(method.loss(own, targets, seen)[0] * batch.valid[part])
    return total / batch.valid.sum()

  return loss


def slopes(function, arrays, change=1e-5) -> list[np.ndarray]:
  """The slope of function(arrays) by each number of some arrays: central differences, float64."""
  arrays = [np.array(x, np.float64) for x in arrays]
  found = [np.empty(x.shape) for x in arrays]
  for x, slope in zip(arrays, found):
    for place in np.ndindex(x.shape):
      value = x[place]
      ends = []
      for moved in (value + change, value - change):
        x[place] = moved
        ends.append(function(arrays))
      x[place] = value
      slope[place] = (ends[0] - ends[1]) / (2 * change)
  return found
