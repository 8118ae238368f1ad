"""Side by side: the database update against its NumPy formula, and a step at two database sizes.

PYTHONPATH=. python benchmarks/core.py
"""

import argparse
import time

import jax
import numpy as np

from mah_jax import config
from mah_jax import discrete
from mah_jax import methods
from mah_jax import models
from mah_jax.data import pipeline
from mah_jax.train import loop
from mah_jax.train import step


def seconds(function, repeats):
  """Wall times of a function, [repeats]."""
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    jax.block_until_ready(function())
    times.append(time.perf_counter() - start)
  return np.array(times)


def spread(times):
  """Median and range in milliseconds, as text."""
  low, middle, high = np.quantile(times, [0, 0.5, 1]) * 1e3
  return f'{middle:9.2f} ms ({low:.2f}..{high:.2f})'


def formula(codes, embeddings, labels, sampled, gamma):
  """The V step of ADSH and MAH in NumPy, float32, S and all products written out."""
  v, u, c = codes.copy(), embeddings, codes.shape[1]
  similar = (labels[sampled] @ labels.T > 0).astype(np.float32)  # [m, n]
  r = similar.sum() / (1 - similar).sum()
  s = similar * (1 + r) - r
  bar_u = np.zeros_like(v)
  bar_u[sampled] = u
  q = -2 * c * s.T @ u - 2 * gamma * bar_u
  for k in range(c):
    rest = [j for j in range(c) if j != k]
    v[:, k] = -np.sign(2 * v[:, rest] @ u[:, rest].T @ u[:, k] + q[:, k])
  return v


def time_dcc(n, m, c, repeats):
  """Prints the database update, ours against the formula, on the same problem."""
  rng = np.random.default_rng(0)
  labels = np.eye(10, dtype=np.float32)[rng.integers(10, size=n)]
  codes = rng.choice(np.array([-1, 1], np.float32), (n, c))
  embeddings = np.tanh(rng.normal(size=(m, c))).astype(np.float32)
  problem = codes, embeddings, labels, rng.permutation(n)[:m]

  def ours():
    return discrete.dcc(*problem, gamma=200.0)

  new = np.asarray(ours())
  mine = seconds(ours, 5 * repeats)
  theirs = seconds(lambda: formula(*problem, 200.0), repeats)
  different = int((new != formula(*problem, 200.0)).sum())
  print(f'DCC n={n} m={m} c={c}: ours {spread(mine)}, formula {spread(theirs)}, '
        f'ratio {np.median(theirs) / np.median(mine):.0f}, different bits {different}')


def make_step(n, m):
  """A function that makes one training step on a database of n rows."""
  rng = np.random.default_rng(0)
  labels = np.eye(10, dtype=np.uint8)[rng.integers(10, size=n)]
  settings = config.Config(code_init='codebook', num_sampled=m)
  method = methods.DEEP['mah'](settings, labels)
  devices = step.Devices(jax.local_devices()[:1], settings.batch_size)
  network = method.network(lambda: models.make_backbone(
      'compact', feature='pooled', width=16, axis_name=step.AXIS))
  prepare = pipeline.make_prepare(pipeline.Pixels(8, 1, (0.5,), (0.5,)), crop=1.0,
                                  augment='none', shift_pixels=0)
  optimizer = loop.make_optimizer(100, learning_rate=0.01, momentum=0.9, weight_decay=5e-4,
                                  drop_rounds=())
  state = devices.replicate(step.make_state(
      network, optimizer, method.init_codes(), (8, 8, 1), m, key=jax.random.key(0),
      init_key=jax.random.key(1)))
  feed = step.make_feed(devices, rng.integers(0, 256, (n, 8, 8, 1)).astype(np.uint8))
  train_step = step.make_train_step(devices, prepare, method.loss)
  sampled = pipeline.sample(jax.random.key(2), n, m)
  targets = devices.replicate(method.targets(state.codes, sampled, 0))
  batch = next(pipeline.batches(sampled, settings.batch_size))

  def one_step():
    nonlocal state
    state, metrics = train_step(state, targets, next(feed([batch.row])), devices.shard(batch))
    return metrics

  return one_step


def time_steps(small, large, m, repeats):
  """Prints one training step at two database sizes, in turns."""
  steps = [make_step(n, m or n) for n in (small, large)]
  for one_step in steps:
    seconds(one_step, 5)
  times = [seconds(one_step, 10) for _ in range(repeats) for one_step in steps]
  times = [np.concatenate(times[i::2]) for i in (0, 1)]
  ratio = np.median(times[1]) / np.median(times[0])
  print(f'step, batch 64, {m or "all"} rows sampled: n={small} {spread(times[0])}, '
        f'n={large} {spread(times[1])}, ratio {ratio:.3f}')


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=3)
  arguments = parser.parse_args()
  for c in (4, 8, 16):
    time_dcc(59_000, 2_000, c, arguments.repeats)
  for m in (2_000, 0):
    time_steps(10_000, 1_000_000, m, 10 * arguments.repeats)


if __name__ == '__main__':
  main()
