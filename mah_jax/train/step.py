"""The programs that run on the devices: training step, encoding, row-wise work.

No other file knows the devices.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
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
from jax import flatten_util
from jax.experimental import multihost_utils

from mah_jax import errors
from mah_jax.methods import base
from mah_jax.models import precision as precision_lib
from mah_jax.train import processes

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
  """The first `num_devices` devices of each process, in the order of processes; 0 means all."""
  try:
    available = jax.local_devices()
    everywhere = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
  except (RuntimeError, AssertionError) as error:
    reason, platforms = str(error).partition(' (')[0], os.environ.get('JAX_PLATFORMS', '')
    wanted = f', as JAX_PLATFORMS={platforms}' if platforms else ''
    remedy = ('unset JAX_PLATFORMS to take what there is, or check the driver' if platforms else
              'check the driver and the variables XLA_FLAGS and JAX_NUM_CPU_DEVICES')
    raise errors.InputError(f'JAX finds no device to run on{wanted}'
                            f'{f" ({reason})" if reason else ""}: {remedy}.') from error
  if num_devices > len(available):
    raise errors.UsageError(
        f'--num_devices={num_devices}, but this machine has {len(available)} '
        f'({available[0].platform}). '
        'On a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=N makes N virtual ones.')
  of_process = [list(devices) for _, devices in itertools.groupby(
      everywhere, lambda device: device.process_index)]
  counts = {len(devices[:num_devices or None]) for devices in of_process}
  if len(counts) > 1:
    raise errors.UsageError(f'The processes have from {min(counts)} to {max(counts)} devices: '
                            f'give --num_devices={min(counts)}, which all of them have.')
  return [device for devices in of_process for device in devices[:num_devices or None]]


def is_out_of_memory(error: jax.errors.JaxRuntimeError) -> bool:
  """Whether a device ended a program because its memory is full."""
  return 'RESOURCE_EXHAUSTED' in str(error)


def round_up(batch_size: int, devices: list[jax.Device]) -> int:
  """The least batch size, not below this one, that the devices can share evenly."""
  return -(-batch_size // len(devices)) * len(devices)


class Devices:
  """The devices of a run, and how arrays are laid over them.

  In Python, an array is of this process: a copy on each of its devices, or its share of a batch.
  Under pmap it is part of what all processes have.

  devices: those of all processes.
  own: those of this process.
  platform: 'cpu', 'gpu' and so on, for which networks choose their layers.
  """

  def __init__(self, devices: list[jax.Device], batch_size: int, platform: str = ''):
    """Takes devices that share a batch; the platform is theirs unless another is given."""
    if batch_size % len(devices):
      raise errors.UsageError(f'--batch_size={batch_size} cannot be shared evenly by '
                              f'{len(devices)} devices: use a multiple of {len(devices)}.')
    self.devices = devices
    self.platform = platform or devices[0].platform
    self.own = [device for device in devices if device.process_index == jax.process_index()]
    self._row_maps: dict[Callable, Callable] = {}  # each compiled once
    self._all = jax.sharding.Mesh(np.array(devices), (AXIS,))
    mesh = jax.sharding.Mesh(np.array(self.own), (AXIS,))
    self._everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    self._spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))
    self._largest = None  # of the last numbers, as it comes from the devices
    if len(self.own) < len(devices):
      self._maximum = self.pmap(lambda x: jax.lax.pmax(x, AXIS), 0, None)
      self._gather = self.pmap(lambda x: jax.lax.all_gather(x, AXIS, tiled=True), 0, None)
      self._connect()

  def _connect(self):
    """Exchanges a first array; it waits for half a minute only, so the processes meet first."""
    processes.gather(None)
    try:
      self.largest(0)
      self.largest(0)
    except jax.errors.JaxRuntimeError as error:
      raise errors.InputError(
          f'The devices of the processes cannot exchange arrays ({str(error).splitlines()[0]}): '
          'on CPUs the name of each machine must lead the others to it, in DNS or /etc/hosts; on '
          'GPUs NCCL_SOCKET_IFNAME names the network to use.') from error

  def replicate(self, tree: Any) -> Any:
    """A copy of each array on every device; shapes stay as they are."""
    return jax.device_put(tree, self._everywhere)

  def abstract(self, tree: Any) -> Any:
    """Shapes of a pytree with a copy on every device, for a checkpoint to be restored to."""
    sharding = jax.sharding.NamedSharding(self._all, jax.sharding.PartitionSpec())
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

  def to_all(self, tree: Any) -> Any:
    """Replicated arrays as arrays of all processes, of which a checkpoint is made."""
    if len(self.own) == len(self.devices):
      return tree
    return multihost_utils.host_local_array_to_global_array(
        tree, self._all, jax.sharding.PartitionSpec())

  def to_own(self, tree: Any) -> Any:
    """Undoes `to_all`."""
    if len(self.own) == len(self.devices):
      return tree
    return multihost_utils.global_array_to_host_local_array(
        tree, self._all, jax.sharding.PartitionSpec())

  def largest(self, number: int) -> int:
    """The largest number of all processes, the same in all.

    Several processes get the largest of their last call, so that none waits for the devices.
    """
    if len(self.own) == len(self.devices):
      return number
    before, self._largest = self._largest, self._maximum(np.full(len(self.own), number))
    return 0 if before is None else int(before)

  def share(self, tree: Any, axis: int = 0) -> Any:
    """The part of a batch that the devices of this process get, cut from an axis d * b."""
    if len(self.own) == len(self.devices):
      return tree
    first = self.devices.index(self.own[0])

    def cut(x):
      b = x.shape[axis] // len(self.devices)
      return x.take(np.arange(first * b, (first + len(self.own)) * b), axis)

    return jax.tree.map(cut, tree)

  def join(self, rows: np.ndarray) -> np.ndarray:
    """The whole batch [d * b, ...] of which each process has its `share`."""
    if len(self.own) == len(self.devices):
      return rows
    return np.asarray(self._gather(self.spread(rows)))

  def spread(self, tree: Any) -> Any:
    """Spreads a `share` over the devices of this process."""
    parts = jax.tree.map(lambda x: x.reshape(len(self.own), -1, *x.shape[1:]), tree)
    return jax.device_put(parts, self._spread)

  def spread_steps(self, tree: Any) -> Any:
    """The same for several steps at once, [steps, d * b, ...] -> [d, steps, b, ...]."""
    parts = jax.tree.map(lambda x: np.swapaxes(
        x.reshape(len(x), len(self.own), -1, *x.shape[2:]), 0, 1), tree)
    return jax.device_put(parts, self._spread)

  def shard(self, tree: Any) -> Any:
    """Spreads the leading axis over the devices: [d * b, ...] -> [d, b, ...]."""
    return self.spread(self.share(tree))

  def shard_steps(self, tree: Any) -> Any:
    """The same for several steps at once: [steps, d * b, ...] -> [d, steps, b, ...]."""
    return self.spread_steps(self.share(tree, axis=1))

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
    if function not in self._row_maps:
      self._row_maps[function] = self.pmap(
          lambda *parts: jax.lax.all_gather(function(*parts), AXIS, tiled=True),
          (0, *[None] * len(rest)), None)
    return self._row_maps[function](self.shard(padded), *self.replicate(rest))[:n]


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
                    average_statistics: bool = False, fixed_statistics: bool = False) -> Callable:
  """Compiles the training step.

  Args:
    devices: where it runs.
    prepare: what turns stored images into those that the network reads, see data/pipeline.py.
    loss: see methods/base.py.
    precision: of backbones; heads and loss are float32.
    average_statistics: whether the running statistics of a network differ from device to device
      and are to be averaged, since no layer of it synchronises them.
    fixed_statistics: whether batch normalisation takes the running statistics, as in an encoding,
      and they stay as they are.

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
    # Every device sees and files every device's outputs, so that the state stays replicated.
    position, valid = _gather_rows(batch)
    count = valid.sum()

    def mean_loss(params):
      outputs, changed = _apply(
          state.apply_fn, {'params': params, 'batch_stats': state.batch_stats}, x, precision,
          train=not fixed_statistics, mutable=['batch_stats'],
          rngs={'dropout': jax.random.fold_in(key, DROPOUT)})
      whole = _gather_heads(outputs)
      slot = jnp.where(valid > 0, position, len(state.memory[0]))  # out of range: dropped
      memory = tuple(h.at[slot].set(jax.lax.stop_gradient(u), mode='drop')
                     for h, u in zip(state.memory, whole))
      seen = base.Seen(batch.position, memory, whole, position, valid, state.step)
      per_image, terms = loss(outputs, targets, seen)
      mean = jax.tree.map(lambda v: jnp.sum(v * batch.valid) / count,
                          {'loss': per_image, **terms})
      return mean['loss'], (mean, memory, changed.get('batch_stats', {}))

    grads, (metrics, memory, batch_stats) = jax.grad(mean_loss, has_aux=True)(state.params)
    if average_statistics:
      shares = jax.tree.map(lambda x: x / len(devices.devices), batch_stats)
      grads, metrics, batch_stats = _total((grads, metrics, shares))
    else:
      grads, metrics = _total((grads, metrics))
    return state.apply_gradients(grads=grads, batch_stats=batch_stats, memory=memory), metrics

  return devices.pmap(steps, (None, None, 0, 0), (None, None), donate=(0,))


# Devices, and hosts even more, pay for each exchange: all that goes together is made one array.
# One device exchanges nothing, and joining arrays would only take time.
def _total(tree: Any) -> Any:
  """The sums of arrays over all devices."""
  if jax.lax.axis_size(AXIS) == 1:
    return jax.lax.psum(tree, AXIS)
  flat, unravel = flatten_util.ravel_pytree(tree)
  return unravel(jax.lax.psum(flat, AXIS))


def _gather_rows(batch) -> tuple[jax.Array, jax.Array]:
  """Positions and `valid` of the whole batch, [B] each."""
  if jax.lax.axis_size(AXIS) == 1:
    return jax.lax.all_gather((batch.position, batch.valid), AXIS, tiled=True)
  both = jax.lax.all_gather(2 * batch.position + (batch.valid > 0), AXIS, tiled=True)
  return both // 2, (both % 2).astype(batch.valid.dtype)


def _gather_heads(outputs: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
  """Outputs ([b, c], ...) of all devices, ([B, c], ...)."""
  if jax.lax.axis_size(AXIS) == 1:
    return jax.lax.all_gather(outputs, AXIS, tiled=True)
  whole = jax.lax.all_gather(jnp.concatenate(outputs, axis=1), AXIS, tiled=True)
  return tuple(jnp.split(whole, np.cumsum([u.shape[1] for u in outputs])[:-1], axis=1))


def make_forward(network: nn.Module, prepare: Callable,
                 precision: precision_lib.Precision = precision_lib.FLOAT32,
                 mirror: bool = False, method: str | None = None) -> Callable:
  """Makes forward(variables, images [b, h, w, ch]) -> outputs of the network, each [b, c].

  Backbones have this precision; with `mirror` an output is the mean of the outputs for the image
  and for its mirror image. `method` names a method of the network that is called in the place of
  the network itself.
  """

  def outputs(variables, images, mirrored):
    x = prepare(images, None, mirrored)
    return _apply(network.apply, variables, x, precision, train=False, method=method)

  def forward(variables, images):
    if not mirror:
      return outputs(variables, images, False)
    return jax.tree.map(lambda u, v: (u + v) / 2, outputs(variables, images, False),
                        outputs(variables, images, True))

  return forward


def make_encode(devices: Devices, forward: Callable) -> Callable:
  """Compiles encode(variables, images [d, b, h, w, ch]) -> what `forward` returns, in NumPy.

  Each output [b, c] becomes [d * b, c], in every process.
  """

  def gathered(variables, images):
    return jax.lax.all_gather(forward(variables, images), AXIS, tiled=True)

  mapped = devices.pmap(gathered, (None, 0), None)

  def encode(variables: dict[str, Any], images: jax.Array) -> Any:
    return jax.tree.map(np.asarray, mapped(variables, images))

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
    waiting, spreads = None, collections.deque()  # how batches that are being read will be spread

    def noted():
      for rows in batches:
        spreads.append(devices.spread if rows.ndim == 1 else devices.spread_steps)
        yield devices.share(rows, axis=rows.ndim - 1)

    for images in read(noted()):
      sent = spreads.popleft()(images)
      if waiting is not None:
        yield waiting
      waiting = sent
    if waiting is not None:
      yield waiting

  return feed
