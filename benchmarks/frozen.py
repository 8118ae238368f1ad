"""Times a ResNet-50 with two frozen stages: maps beside images, bfloat16 beside float32.

PYTHONPATH=. python benchmarks/frozen.py

The sides take turns, a call each, in one process.
"""

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import table
from flax import traverse_util

from mah_jax import compiling
from mah_jax import models

STAGES, BATCH, PIXELS, REPEATS = 2, 64, 96, 5
MAPS_IN_BF16, MAPS, IMAGES = SIDES = (True, 'bfloat16'), (True, 'float32'), (False, 'float32')


def make_calls(from_maps: bool, dtype: str) -> dict[str, Callable]:
  """A call that trains the stages that are not frozen, with Adam, and one that encodes."""
  model = models.make_backbone('resnet50_v1', feature='pooled', width=64, axis_name=None,
                               platform='cpu', frozen_stages=STAGES)
  images = jax.random.normal(jax.random.key(0), (BATCH, PIXELS, PIXELS, 3))
  variables = jax.jit(functools.partial(model.init, train=False))(jax.random.key(1), images[:1])
  stages = functools.partial(model.apply, train=False, stages=STAGES)
  reads = jax.jit(stages)(variables, images) if from_maps else images
  frozen = model.frozen_parts()
  flat = traverse_util.flatten_dict(variables['params'])
  kept = {name: value for name, value in flat.items() if name[0] in frozen}
  adam = optax.adam(1e-4)

  def features(trained, kept, reads):
    params = jax.tree.map(lambda p: p.astype(dtype), traverse_util.unflatten_dict(kept | trained))
    return model.apply(variables | {'params': params}, reads.astype(dtype), train=False)

  def loss(*args):
    return (features(*args).astype(jnp.float32) ** 2).mean()

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(trained, moments, *args):
    gradients = jax.grad(loss)(trained, *args)
    updates, moments = adam.update(gradients, moments)
    return optax.apply_updates(trained, updates), moments

  trained = {name: value for name, value in flat.items() if name[0] not in frozen}
  encode = functools.partial(jax.jit(features), trained, kept, reads)
  state = [jax.tree.map(jnp.copy, trained), adam.init(trained)]  # steps overwrite them

  def train():
    state[:] = step(*state, kept, reads)
    return state
  return {'train': train, 'encode': encode}


def rows() -> list[dict]:
  """Training and encoding on maps in bfloat16 beside float32, then in float32 beside images."""
  compiling.prepare()
  calls = {side: make_calls(*side) for side in SIDES}
  found = []
  for mode in ('train', 'encode'):
    times = {side: [] for side in SIDES}
    for _ in range(REPEATS + 1):  # the first compiles
      for side in SIDES:
        start = time.perf_counter()
        jax.block_until_ready(calls[side][mode]())
        times[side].append(time.perf_counter() - start)
    times = {side: seconds[1:] for side, seconds in times.items()}
    work = f'ResNet-50, {STAGES} stages frozen, {mode}, {BATCH} x {PIXELS} px'
    found += [table.row(f'{work}, maps in bfloat16', times[MAPS_IN_BF16], times[MAPS], None,
                        'float32'),
              table.row(f'{work}, maps', times[MAPS], times[IMAGES], None, 'images')]
  return found


if __name__ == '__main__':
  print(table.text(rows()))
