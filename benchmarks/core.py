"""The database update, the products with S and the training step, beside their alternatives.

PYTHONPATH=. python benchmarks/core.py
"""

import functools
import multiprocessing
import pathlib
import time

import jax
import numpy as np
import table

from mah_jax import compiling
from mah_jax import config
from mah_jax import discrete
from mah_jax import models
from mah_jax import similarity
from mah_jax.data import pipeline
from mah_jax.methods import base
from mah_jax.train import loop
from mah_jax.train import step

LABEL_SETS = pathlib.Path('tests/data/mirflickr_label_sets.npz')
GAMMA = 200.0
REST = 1.0  # seconds after which the threads of NumPy's products no longer spin


def seconds(function, repeats):
  """Wall times of a function, [repeats]."""
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    jax.block_until_ready(function())
    times.append(time.perf_counter() - start)
  return times


def formula(codes, embeddings, labels, sampled):
  """The V step of ADSH and MAH in NumPy, float32, with S written out."""
  v, u, c = codes.copy(), embeddings, codes.shape[1]
  similar = (labels[sampled] @ labels.T > 0).astype(np.float32)  # [m, n]
  r = similar.sum() / (1 - similar).sum()
  s = similar * (1 + r) - r
  bar_u = np.zeros_like(v)
  bar_u[sampled] = u
  q = -2 * c * s.T @ u - 2 * GAMMA * bar_u
  for k in range(c):
    rest = [j for j in range(c) if j != k]
    v[:, k] = -np.sign(2 * v[:, rest] @ (u[:, rest].T @ u[:, k]) + q[:, k])
  return v


def problem(n, m, c):
  """Random codes, embeddings, one-hot labels and sampled rows, as `discrete.dcc` takes them."""
  rng = np.random.default_rng(0)
  labels = np.eye(10, dtype=np.float32)[rng.integers(10, size=n)]
  codes = rng.choice(np.array([-1, 1], np.float32), (n, c))
  embeddings = np.tanh(rng.normal(size=(m, c))).astype(np.float32)
  return codes, embeddings, labels, rng.permutation(n)[:m]


def update_row(c, n=59_000, m=2_000, repeats=9):
  """The database update, label grouping included, against the formula."""
  case = problem(n, m, c)
  new, ours, other = np.asarray(discrete.dcc(*case, gamma=GAMMA)), [], []
  for _ in range(repeats):
    time.sleep(REST)
    ours += seconds(lambda: discrete.dcc(*case, gamma=GAMMA), 5)
    other += seconds(lambda: formula(*case), 1)
  different = int((new != formula(*case)).sum())
  return table.row(f'database update, n={n}, m={m}, {c} bits', ours, other, 500,
                   f'formula in NumPy; {different} bits differ')


def memory(what):
  """Memory of this process in bytes: VmRSS now, VmHWM at its peak."""
  status = pathlib.Path('/proc/self/status').read_text()
  return 1024 * int(status.split(f'{what}:')[1].split()[0])


def update_in_child(n, pipe, m=2_000, c=16):
  """Sends seconds of updates of int8 codes, and the bytes that they need, codes included.

  The bytes are the growth of the process, compilation included, and what XLA plans for.
  """
  compiling.prepare()
  devices = step.Devices(jax.local_devices()[:1], 1)
  descend_rows = functools.partial(discrete.descend_rows, sweeps=1)
  rng = np.random.default_rng(0)
  of_row = jax.device_put(rng.integers(10, size=n, dtype=np.int32))
  codes = jax.device_put(rng.integers(0, 2, (n, c), np.int8) * np.int8(2) - np.int8(1))
  embeddings = np.tanh(rng.normal(size=(m, c))).astype(np.float32)
  sampled = rng.integers(n, size=m).astype(np.int32)
  levels = similarity.Levels(np.ones(10), np.full(10, -1 / 9))
  before = memory('VmRSS')
  pathlib.Path('/proc/self/clear_refs').write_text('5')  # the peak begins anew

  def row_problem():
    position, rest = discrete.row_problem(embeddings, sampled, of_row,
                                          np.eye(10, dtype=np.float32), levels, GAMMA)
    return (codes, of_row, position), rest

  times = seconds(lambda: devices.over_rows(descend_rows, *row_problem()), 6)[1:]
  grown = codes.nbytes + of_row.nbytes + memory('VmHWM') - before
  rows, rest = row_problem()
  plan = discrete.descend_rows.lower(rows, *rest, sweeps=1).compile().memory_analysis()
  pipe.send((times, grown, plan.argument_size_in_bytes + plan.output_size_in_bytes
             + plan.temp_size_in_bytes))


def scaling_rows():
  """The update at growing n: its time for each row against that of the smallest."""
  found = {}
  for n in (10**5, 10**6, 10**7):
    ours, theirs = multiprocessing.get_context('spawn').Pipe()
    child = multiprocessing.get_context('spawn').Process(target=update_in_child, args=(n, theirs))
    child.start()
    theirs.close()  # so that a child that dies ends the wait for it
    found[n] = ours.recv()
    child.join()
  smallest, fixed, _ = found.pop(10**5)  # the process grows there by compiling, above all
  return [table.row(f'database update, n={n:.0e}, 16 bits, against 1e+05 times {n // 10**5}',
                    times, smallest, 0.9, f'{plan / (16 * n):.2f} bytes per code bit as XLA plans, '
                    f'{(grown - fixed) / (16 * (n - 10**5)):.2f} by the growth of the process '
                    '(goal: under 4)', scale=n / 10**5)
          for n, (times, grown, plan) in found.items()]


def products_row(m=2_000, c=8, repeats=5):
  """S'H on the real label sets of MIRFlickr-25K, each repeated 12 times, against dense S."""
  sets = np.unpackbits(np.load(LABEL_SETS)['rows'], axis=1, count=38)
  labels = np.tile(sets, (12, 1))
  rng = np.random.default_rng(0)
  sampled = rng.permutation(len(labels))[:m]
  h = rng.normal(size=(m, c)).astype(np.float32)
  groups = similarity.group_rows(labels)
  levels = similarity.levels(groups, sampled, 'balanced')
  of_row, label_sets = jax.device_put((groups.of_row, groups.sets))
  floats = jax.device_put(labels.astype(np.float32))

  @jax.jit
  def by_sets(h, sampled, of_row, label_sets):
    return similarity.query_sums(h, of_row[sampled], label_sets, levels)[of_row]

  @jax.jit
  def dense(h, sampled, floats):
    s = jax.numpy.where(floats[sampled] @ floats.T > 0, 1.0, levels.dissimilar[0])  # [m, n]
    return jax.numpy.matmul(s.T, h, precision='highest')

  np.testing.assert_allclose(by_sets(h, sampled, of_row, label_sets), dense(h, sampled, floats),
                             rtol=1e-3, atol=1e-2)
  ours, other = [], []
  for _ in range(repeats):
    ours += seconds(lambda: by_sets(h, sampled, of_row, label_sets), 1)
    other += seconds(lambda: dense(h, sampled, floats), 1)
  return table.row(f"S'H, {len(labels)} rows of {len(sets)} real label sets, m={m}", ours, other,
                   20, 'dense [m, n], also in JAX; same numbers')


class OneDevice(step.Devices):
  """The same step without pmap, for a single device."""

  def pmap(self, function, in_axes, out_axes, donate=()):
    mapped = jax.vmap(function, in_axes, out_axes, axis_name=step.AXIS, axis_size=1)
    return jax.jit(mapped, donate_argnums=donate)


def make_step(n, m, devices_class=step.Devices):
  """A function that makes one training step on a database of n rows."""
  rng = np.random.default_rng(0)
  labels = np.eye(10, dtype=np.uint8)[rng.integers(10, size=n)]
  settings = config.make(code_init='codebook', num_sampled=m)
  method = settings.spec.make(settings.options, base.Task(
      labels, settings.code_lengths, m, settings.seed))
  devices = devices_class(jax.local_devices()[:1], settings.batch_size)
  network = method.network(lambda: models.make_backbone(
      'compact', feature='pooled', width=16, axis_name=step.AXIS,
      platform=jax.local_devices()[0].platform))
  prepare = pipeline.make_prepare(pipeline.Pixels(8, 1, (0.5,), (0.5,)), crop=1.0,
                                  augment='none', shift_pixels=0)
  optimizer = loop.make_optimizer(lambda step: 0.01, momentum=0.9, weight_decay=5e-4)
  start = step.make_start(network, optimizer, (8, 8, 1), m)
  state = devices.replicate(jax.jit(start)(jax.random.key(1), jax.random.key(0)).replace(
      codes=method.init_codes()))
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


def in_turns(steps, repeats=30):
  """Times of several steps, ten calls of each at a time."""
  for one_step in steps:
    seconds(one_step, 5)
  times = [seconds(one_step, 10) for _ in range(repeats) for one_step in steps]
  return [sum(times[i::len(steps)], []) for i in range(len(steps))]


def step_rows():
  """A training step at growing n, and by pmap on one device against plain jit."""
  sizes = (10**4, 10**5, 10**6)
  times = in_turns([make_step(n, 2_000) for n in sizes])
  grown = [table.row(f'step, batch 64, n={n:.0e}, against n=1e+04', own, times[0], 0.9)
           for n, own in zip(sizes[1:], times[1:])]
  mapped, plain = in_turns([make_step(10**4, 2_000), make_step(10**4, 2_000, OneDevice)])
  return [*grown, table.row('step by pmap on one device, against jit', mapped, plain, 0.95)]


def rows() -> list[dict]:
  """All of them."""
  compiling.prepare()
  return [*map(update_row, (4, 8, 16)), *scaling_rows(), products_row(), *step_rows()]


if __name__ == '__main__':
  print(table.text(rows()))
