"""The programs that run on the devices: training step, encoding, row-wise work.

No other file knows the devices.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state

from mah_jax import errors
from mah_jax.methods import base
from mah_jax.models import precision as precision_lib

AXIS = 'devices'
DROPOUT = 2**32 - 1  # folded into a step's key, where no place in a batch is as large


class TrainState(train_state.TrainState):
  """Everything that a run needs to be resumed, in one pytree.

  batch_stats: running means and variances of the network; empty where it has none.
  codes: what a method solves for beside the network, such as database codes B, ([n, c] int8, ...).
  memory: last outputs H seen of the sampled rows, ([m, w], ...).
  key: root of all randomness inside steps.
  """
  batch_stats: Any
  codes: tuple[jax.Array, ...]
  memory: tuple[jax.Array, ...]
  key: jax.Array

  @property
  def variables(self) -> dict[str, Any]:
    """The variables that the network's `apply` takes."""
    return {'params': self.params, 'batch_stats': self.batch_stats}


def pick_devices(num_devices: int) -> list[jax.Device]:
  """The first `num_devices` devices; 0 means all."""
  try:
    available = jax.local_devices()
  except (RuntimeError, AssertionError) as error:
    raise errors.InputError(f'JAX finds no device to run on ({error}): check the driver and '
                            'the variable JAX_PLATFORMS.') from error
  if num_devices > len(available):
    raise errors.UsageError(
        f'--num_devices={num_devices}, but this machine has {len(available)} '
        f'({available[0].platform}). '
        'On a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=N makes N virtual ones.')
  return available[:num_devices or None]


def is_out_of_memory(error: jax.errors.JaxRuntimeError) -> bool:
  """Whether a device ended a program because its memory is full."""
  return 'RESOURCE_EXHAUSTED' in str(error)


def round_up(batch_size: int, devices: list[jax.Device]) -> int:
  """The least batch size, not below this one, that the devices can share evenly."""
  return -(-batch_size // len(devices)) * len(devices)


class Devices:
  """The devices of a run, and how arrays are laid over them.

  platform: 'cpu', 'gpu' and so on, for which networks choose their layers.
  """

  def __init__(self, devices: list[jax.Device], batch_size: int, platform: str = ''):
    """Takes devices that share a batch; the platform is theirs unless another is given."""
    if batch_size % len(devices):
      raise errors.UsageError(f'--batch_size={batch_size} cannot be shared evenly by '
                              f'{len(devices)} devices: use a multiple of {len(devices)}.')
    self.devices = devices
    self.platform = platform or devices[0].platform
    self._row_maps: dict[Callable, Callable] = {}  # each compiled once
    mesh = jax.sharding.Mesh(np.array(devices), (AXIS,))
    self._everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    self._spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))

  def replicate(self, tree: Any) -> Any:
    """A copy of each array on every device; shapes stay as they are."""
    return jax.device_put(tree, self._everywhere)

  def abstract(self, tree: Any) -> Any:
    """Shapes of a pytree as `replicate` would lay it out, for a checkpoint to be restored to."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype,
                                                       sharding=self._everywhere), tree)

  def shard(self, tree: Any) -> Any:
    """Spreads the leading axis over the devices: [d * b, ...] -> [d, b, ...]."""
    d = len(self.devices)
    parts = jax.tree.map(lambda x: x.reshape(d, -1, *x.shape[1:]), tree)
    return jax.device_put(parts, self._spread)

  def shard_steps(self, tree: Any) -> Any:
    """The same for several steps at once: [steps, d * b, ...] -> [d, steps, b, ...]."""
    d = len(self.devices)
    parts = jax.tree.map(
        lambda x: np.swapaxes(x.reshape(len(x), d, -1, *x.shape[2:]), 0, 1), tree)
    return jax.device_put(parts, self._spread)

  def pmap(self, function: Callable, in_axes, out_axes, donate=()) -> Callable:
    """jax.pmap over these devices; a product that asks for nothing else is float32."""

    @functools.wraps(function)
    def exact(*args):  # while it is traced: cards would multiply in TF32 by themselves
      with jax.default_matmul_precision(precision_lib.EXACT):
        return function(*args)

    return jax.pmap(exact, axis_name=AXIS, devices=self.devices, in_axes=in_axes,
                    out_axes=out_axes, donate_argnums=donate)

  def over_rows(self, function: Callable, rows: Any, rest: tuple) -> jax.Array:
    """function(rows, *rest) with the rows [n, ...] of a pytree spread over the devices."""
    if len(self.devices) == 1:  # without the copies that spreading makes
      return self.replicate(function(rows, *rest))
    n = len(jax.tree.leaves(rows)[0])
    missing = -n % len(self.devices)
    padded = jax.tree.map(lambda x: jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), rows)
    mapped = self._row_maps.setdefault(
        function, self.pmap(function, (0, *[None] * len(rest)), 0))
    result = mapped(self.shard(padded), *self.replicate(rest))
    return self.replicate(result.reshape(n + missing, *result.shape[2:])[:n])


def make_start(network: nn.Module, tx: optax.GradientTransformation, image_shape,
               m: int) -> Callable[[jax.Array, jax.Array], TrainState]:
  """Makes start(init_key, key) -> the state before the first step, without any codes.

  It is for images of `image_shape` [h, w, ch] and m sampled rows. Under jit the parameters of the
  network are computed and nothing else of it.
  """

  def start(init_key, key):
    outputs, variables = network.init_with_output(init_key, jnp.zeros((1, *image_shape)),
                                                  train=False)
    return TrainState.create(
        apply_fn=network.apply, params=variables['params'], tx=tx,
        batch_stats=variables.get('batch_stats', {}), codes=(),
        memory=tuple(jnp.zeros((m, u.shape[1])) for u in outputs), key=key)

  return start


def _apply(apply: Callable, variables: dict[str, Any], x: jax.Array,
           precision: precision_lib.Precision, **options):
  """Applies a network, its backbones in this precision; everything it returns is float32."""
  params = dict(variables['params'])
  backbones = [name for name in params if 'backbone' in name]
  for name in backbones or params:  # the network may itself be a backbone
    params[name] = jax.tree.map(lambda p: p.astype(precision.dtype), params[name])
  paths = [(name,) for name in backbones] or [()]

  def multiply(call, args, kwargs, context):
    if context.module.path not in paths:
      return call(*args, **kwargs)
    with jax.default_matmul_precision(precision.products):  # of gradients too
      return call(*args, **kwargs)

  with nn.intercept_methods(multiply):
    result = apply(variables | {'params': params}, x.astype(precision.dtype), **options)
  return jax.tree.map(lambda y: y.astype(jnp.float32), result)


def make_train_step(devices: Devices, prepare: Callable, loss: Callable,
                    precision: precision_lib.Precision = precision_lib.FLOAT32,
                    as_encoding: bool = False) -> Callable:
  """Compiles the training step.

  Args:
    devices: where it runs.
    prepare: (images, keys) -> what the network reads, see data/pipeline.py.
    loss: see methods/base.py.
    precision: of backbones; heads and loss are float32.
    as_encoding: compute outputs as an encoding does: batch normalisation by its running
      statistics, which stay as they are, and no dropout.

  Returns:
    step(state, targets, images [d, b, h, w, ch], batch with leaves [d, b]) -> (state, metrics),
    the state donated; metrics are means over the batch. Images and leaves that have a number of
    steps as their second axis make so many steps, and metrics have one number of each.
  """

  def steps(state: TrainState, targets, images, batch):
    if batch.valid.ndim == 1:
      return step(state, targets, images, batch)
    return jax.lax.scan(lambda state, x: step(state, targets, *x), state, (images, batch))

  def step(state: TrainState, targets, images, batch):
    key = jax.random.fold_in(state.key, state.step)
    # A place in the whole batch decides how its image is augmented, whatever the number of devices.
    place = jax.lax.axis_index(AXIS) * len(images) + jnp.arange(len(images))
    x = prepare(images, jax.vmap(jax.random.fold_in, (None, 0))(key, place))
    count = jax.lax.psum(batch.valid.sum(), AXIS)

    def mean_loss(params):
      outputs, changed = _apply(
          state.apply_fn, {'params': params, 'batch_stats': state.batch_stats}, x, precision,
          train=not as_encoding, mutable=['batch_stats'],
          rngs={'dropout': jax.random.fold_in(key, DROPOUT)})
      # Every device sees and files every device's outputs, so that the state stays replicated.
      whole, position, valid = jax.lax.all_gather(
          (outputs, batch.position, batch.valid), AXIS, tiled=True)
      slot = jnp.where(valid > 0, position, len(state.memory[0]))  # out of range: dropped
      memory = tuple(h.at[slot].set(jax.lax.stop_gradient(u), mode='drop')
                     for h, u in zip(state.memory, whole))
      seen = base.Seen(batch.position, memory, whole, position, valid, state.step)
      per_image, terms = loss(outputs, targets, seen)
      mean = jax.tree.map(lambda v: jnp.sum(v * batch.valid) / count,
                          {'loss': per_image, **terms})
      return mean['loss'], (mean, memory, changed.get('batch_stats', {}))

    grads, (metrics, memory, batch_stats) = jax.grad(mean_loss, has_aux=True)(state.params)
    grads, metrics = jax.lax.psum((grads, metrics), AXIS)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats, memory=memory), metrics

  return devices.pmap(steps, (None, None, 0, 0), (None, None), donate=(0,))


def make_forward(network: nn.Module, prepare: Callable,
                 precision: precision_lib.Precision = precision_lib.FLOAT32,
                 mirror: bool = False, method: str | None = None) -> Callable:
  """Makes forward(variables, images [b, h, w, ch]) -> outputs of the network, each [b, c].

  Backbones have this precision; with `mirror` an output is the mean of the outputs for the image
  and for its mirror image. `method` names a method of the network that is called in the place of
  the network itself.
  """

  def forward(variables, images):
    x = prepare(images, None)
    outputs = _apply(network.apply, variables, x, precision, train=False, method=method)
    if not mirror:
      return outputs
    mirrored = _apply(network.apply, variables, x[:, :, ::-1], precision, train=False,
                      method=method)
    return jax.tree.map(lambda u, v: (u + v) / 2, outputs, mirrored)

  return forward


def make_encode(devices: Devices, forward: Callable) -> Callable:
  """Compiles encode(variables, images [d, b, h, w, ch]) -> what `forward` returns, in NumPy.

  Each output [b, c] becomes [d * b, c].
  """
  mapped = devices.pmap(forward, (None, 0), 0)

  def encode(variables: dict[str, Any], images: jax.Array) -> Any:
    outputs = mapped(variables, images)
    return jax.tree.map(lambda u: np.asarray(u).reshape(-1, u.shape[-1]), outputs)

  return encode


# Batches of rows, [B] or [steps, B], -> what they hold, [d, b, ...] or [d, steps, b, ...].
Feed = Callable[[Iterable[np.ndarray]], Iterator[jax.Array]]


def make_feed(devices: Devices, images: np.ndarray) -> Feed:
  """Puts images [n, h, w, ch] on the devices; feed(batches of rows) yields those rows there.

  Batches are rows [B] or, for several steps at once, [steps, B].
  """
  resident = jax.block_until_ready(devices.replicate(images))  # so that a full device shows here
  gather = devices.pmap(lambda images, rows: images[rows], (None, 0), 0)

  def feed(batches):
    for rows in batches:
      yield gather(resident, (devices.shard if rows.ndim == 1 else devices.shard_steps)(rows))

  return feed


def make_streaming_feed(devices: Devices, read: Callable[[Iterable], Iterator[np.ndarray]]) -> Feed:
  """Feeds what read(batches of rows) yields, [B, ...] or [steps, B, ...]; one is sent ahead."""

  def feed(batches):
    waiting, shards = None, collections.deque()  # how batches that are being read will be spread

    def noted():
      for rows in batches:
        shards.append(devices.shard if rows.ndim == 1 else devices.shard_steps)
        yield rows

    for images in read(noted()):
      sent = shards.popleft()(images)
      if waiting is not None:
        yield waiting
      waiting = sent
    if waiting is not None:
      yield waiting

  return feed
