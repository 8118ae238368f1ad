"""The trainer: network, method and data of a Config, compiled to be trained and to encode."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import discrete
from mah_jax import errors
from mah_jax import options
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.evaluation import scores
from mah_jax.methods import base
from mah_jax.models import heads as heads_lib
from mah_jax.models import imagenet
from mah_jax.models import perceptron
from mah_jax.train import backbone as backbone_lib
from mah_jax.train import checkpoint
from mah_jax.train import encoder as encoder_lib
from mah_jax.train import features as features_lib
from mah_jax.train import loop
from mah_jax.train import memory
from mah_jax.train import sources as sources_lib
from mah_jax.train import step as step_lib

BACKBONES = ('backbone', 'database_backbone')  # parts of a network that take imported weights


class Programs:
  """What a Trainer compiles. Trainers whose settings differ in their seeds only may share it.

  network: images or features to outputs.
  encoder: it applies the network.
  plain_encoder: the encoder of training, which --mirror does not change.
  optimizer: it changes parameters.
  start: see step.make_start.
  train_step: see step.make_train_step.
  """

  def __init__(self, config: config_lib.Config, method: base.DeepMethod, plan: loop.Plan,
               reads: pipeline.Pixels | pipeline.Maps | pipeline.Vectors,
               devices: step_lib.Devices):
    self.network = network(config, method, devices.platform)
    self.encoder = encoder_lib.Encoder(config, self.network, reads, devices)
    self.plain_encoder = self.encoder if not config.mirror else encoder_lib.Encoder(
        dataclasses.replace(config, mirror=False), self.network, reads, devices)
    self.optimizer = loop.make_optimizer(
        _schedule(config, plan), momentum=config.momentum, weight_decay=config.weight_decay,
        adam=config.optimizer == 'adam', turns=method.turns, steps_per_turn=plan.steps_per_epoch,
        moves=self._moves if config.frozen_stages else None)
    self.start = step_lib.make_start(self.network, self.optimizer, self.encoder.input_shape,
                                     plan.num_sampled)
    self.train_step = step_lib.make_train_step(
        devices, self.encoder.prepare, method.loss, self.encoder.precision,
        average_statistics=config.batch_norm == 'device',
        fixed_statistics=config.batch_norm == 'fixed')

  def _moves(self, params: Mapping[str, Any]) -> dict[str, Any]:
    """Whether training changes the parts of the network; it does not where they are frozen."""
    frozen = self.network.backbone.frozen_parts()
    return {name: {inner: inner not in frozen for inner in part} if name in BACKBONES else True
            for name, part in params.items()}


class Trainer:
  """Everything that a Config says about training a network, ready to train and to encode.

  maps: of the frozen stages, which take the place of images in training; None: images are read.
  labels: of the rows for training, [n, L].
  plan: how long it trains.
  method: what its training and its codes are.
  programs: what it runs on the devices.
  step_bytes: what a step needs on each device, once known; None where devices do not tell.
  """

  def __init__(self, config: config_lib.Config, data: datasets.Dataset,
               pixels: pipeline.Pixels, devices: step_lib.Devices,
               features: features_lib.Features | None = None,
               sources: sources_lib.Sources | None = None):
    """Compiles nothing yet.

    Args:
      config: all settings.
      data: images, labels and protocol.
      pixels: the images that the backbone reads.
      devices: where it runs.
      features: features of the images, which take their place; None: images are read.
      sources: it keeps programs, and rows on the devices, for further runs; None: nothing is kept.
    """
    self.config, self.data, self.pixels, self.devices = config, data, pixels, devices
    self.features = features
    self.maps = None
    reads = pipeline.Maps(pixels) if config.keep_maps else pixels
    if features is not None:
      reads = pipeline.Vectors(features.values.shape[1])
    self.labels = data.labels[data.protocol.training]
    self.plan = loop.make_plan(config, len(self.labels))
    self.method = config.spec.make(config.options, base.Task(
        self.labels, config.code_lengths, self.plan.num_sampled, config.seed,
        None if features is None else lambda: features.values[data.protocol.training]))
    self.key = jax.random.key(config.seed)
    self._keys = [jax.random.fold_in(self.key, use) for use in (loop.INIT, loop.AUGMENT)]
    self._sources = sources or sources_lib.Sources()
    self.programs = self._sources.programs(
        config, lambda: Programs(config, self.method, self.plan, reads, devices))
    self.network, self.train_step = self.programs.network, self.programs.train_step
    self._state, self._outputs = None, {}  # the newest state, and its outputs by their rows
    self.step_bytes = self._room = None  # bytes on each device: of a step, and left for rows

  @property
  def _rows(self) -> Any:
    """What the network reads of each row of the dataset: images, or what takes their place."""
    if self.features is not None:
      return self.features.values
    return self.data.images if self.maps is None else self.maps

  def read_maps(self, state: step_lib.TrainState):
    """Passes the images through the frozen stages of a state, where --keep_maps asks for it."""
    if self.config.keep_maps:
      variables = {name: part['backbone'] for name, part in state.variables.items()}
      self.maps = features_lib.extract_maps(self.config, self.data, self.pixels,
                                            self.network.backbone, variables, self.devices)

  @functools.cached_property
  def _feed(self) -> step_lib.Feed:
    """Brings rows of the dataset to the devices."""
    return self._sources.feed(
        self.config, lambda: self.programs.encoder.feed(self._rows, self._room))

  def new_state(self, backbone: dict[str, Any] | None = None) -> step_lib.TrainState:
    """The state before the first step, on all devices.

    Args:
      backbone: variables of the backbone to start from, by collection; None: random ones.
    """
    state = jax.jit(self.programs.start)(*self._keys).replace(codes=self.method.init_codes())
    for name, start in (backbone or {}).items():
      state = state.replace(**{name: {
          part: jax.tree.map(jnp.copy, start) if part in BACKBONES else values
          for part, values in getattr(state, name).items()}})
    return self.devices.replicate(state)

  def restore(self, checkpoints: checkpoint.Checkpoints, step: int) -> step_lib.TrainState:
    """The state that was saved after so many steps; nothing but its shapes is computed."""
    state = jax.eval_shape(self.programs.start, *self._keys)
    return checkpoints.restore(step, state.replace(codes=checkpoints.shapes(step, 'codes')))

  def fit(self, state: step_lib.TrainState, on_step: Callable[[int], bool],
          history: Sequence[dict[str, float]] = ()) -> Iterator[loop.Pause]:
    """Trains from wherever the state is; see `loop.fit`."""
    self.check_memory(state)
    return loop.fit(
        state, self.plan, self.method, devices=self.devices, train_step=self.train_step,
        feed=self.feed_database, encode=self.database_outputs, key=self.key, on_step=on_step,
        history=history)

  def check_memory(self, state: step_lib.TrainState):
    """Refuses a training step that the devices have too little memory for.

    Where it is known how much they have, rows of the dataset that have no room beside the step
    stream from then on, whatever --resident_mb says.
    """
    limit = memory.limit(self.devices.own)
    if limit is None or self._room is not None:
      return
    needed = self._step_bytes(state)
    if needed > limit:
      remedy = 'lower --batch_size'
      if self.features is None and self.config.precision != 'bf16':
        remedy += ', or take --precision=bf16'
      raise errors.InputError(
          f'A step of --batch_size={self.plan.batch_size} on {len(self.devices.devices)} devices '
          f'needs {needed / memory.MEGABYTE:.0f} MB on each, which has '
          f'{limit / memory.MEGABYTE:.0f} MB: {remedy}.')
    self.step_bytes, self._room = needed, limit - needed

  def _step_bytes(self, state: step_lib.TrainState) -> int:
    """Bytes that a training step needs on each device; it is compiled, and stays so."""
    plan, devices = self.plan, self.devices
    sampled = np.arange(plan.num_sampled)
    targets = devices.replicate(self.method.targets(state.codes, sampled, 0))
    batches = list(itertools.islice(pipeline.batches(sampled, plan.batch_size),
                                    plan.steps_per_call))
    batch = (devices.shard(batches[0]) if plan.steps_per_call == 1 else
             devices.shard_steps(*pipeline.stack(batches, plan.steps_per_call)))
    one = self.programs.encoder.stored(self._rows)
    rows = jax.ShapeDtypeStruct((*batch.row.shape, *one.shape), one.dtype,
                                sharding=batch.row.sharding)
    return memory.needed(self.train_step.lower(state, targets, rows, batch).compile())

  def feed_database(self, batches: Iterable[np.ndarray]) -> Iterator[jax.Array]:
    """Brings batches of training rows to the devices, as a step_lib.Feed."""
    return self._feed(self.data.protocol.training[rows] for rows in batches)

  def database_outputs(self, state: step_lib.TrainState, rows: np.ndarray) -> Any:
    """Outputs for training rows as training asks for them, ([rows, w], ...)."""
    return self.programs.plain_encoder(
        state.variables, self._feed, self.data.protocol.training[rows],
        f'encoding {len(rows)} images')

  def outputs(self, state: step_lib.TrainState, rows: np.ndarray) -> Any:
    """Outputs of the network for rows of the dataset, ([rows, w], ...).

    Outputs of the newest state are kept: the end of a run asks for those that its last round was
    scored by.
    """
    if self._state is not state:
      self._state, self._outputs = state, {}
    key = rows.tobytes()
    if key not in self._outputs:
      self._outputs[key] = self.programs.encoder(state.variables, self._feed, rows,
                                                  f'encoding {len(rows)} images')
    return self._outputs[key]

  def code_updates(self, state: step_lib.TrainState) -> int:
    """How often the codes of a state have been solved for."""
    if self.method.update is None:
      return 0
    plan = self.plan
    return self.method.update.count(
        plan.rounds_before * plan.epochs_per_round + int(state.step) // plan.steps_per_epoch,
        plan.epochs_per_round)

  def learning_rate(self, step: int) -> float:
    """The learning rate of a step, counted from 0."""
    return float(f'{float(_schedule(self.config, self.plan)(step)):.6g}')  # it is a float32

  def codes(self, state: step_lib.TrainState, *,
            always_encode: bool = True) -> tuple[scores.Codes, ...]:
    """The codes of each length.

    A method that trains on a part of the database holds no codes of the rest: none are learned.

    Args:
      state: the network, and the codes that were solved for beside it.
      always_encode: encode the database even where the method holds codes of its own for it.
    """
    method, split = self.method, self.data.protocol
    outputs = self.outputs(state, split.queries)
    among = words(method, state.codes)
    embeddings = tuple(np.asarray(u, np.float32) for u in method.query_embeddings(outputs))
    if not all(np.isfinite(u).all() for u in embeddings):
      raise errors.NotFiniteError(f'The outputs of the network after {int(state.step)} steps are '
                                  'not finite. A lower --learning_rate usually helps.')
    queries = binary(embeddings, among)
    none = (None,) * len(queries)
    weights = method.bit_weights(outputs) or none
    learned = method.learned(state.codes) if split.training_part is None else None
    encoded = none
    if learned is None or always_encode:
      encoded = binary(method.database_embeddings(self.outputs(state, split.database)), among)
    learned = none if learned is None else tuple(map(np.asarray, learned))
    return tuple(scores.Codes(*parts)
                 for parts in zip(queries, learned, encoded, weights, embeddings))


class Progress(NamedTuple):
  """How far the training of a network is.

  seconds: how long training took until now.
  history: metrics of the steps of a round that is not finished.
  """
  trainer: Trainer
  state: step_lib.TrainState
  seconds: float = 0.0
  history: Sequence[dict[str, float]] = ()


def begin(config: config_lib.Config, data: datasets.Dataset, devices: step_lib.Devices,
          sources: sources_lib.Sources | None = None, maps: np.ndarray | None = None) -> Progress:
  """A network before its first step, from --pretrained weights or random ones.

  What runs may share comes from `sources`; None: nothing is shared. Features are made of `maps` of
  the images, see features.extract_maps, where there are any.
  """
  if config.input == 'features':
    sources = sources or sources_lib.Sources()
    features = sources.features(config, data, devices, maps)
    scale = sources.scaling(config, data, devices)
    trainer = Trainer(config, data, features.extractor.pixels, devices, features, sources)
    state = trainer.new_state({'batch_stats': scale._asdict()})
    trainer.check_memory(state)
    return Progress(trainer, state)
  size, channels = encoder_lib.input_size(config, data.images)
  mean, std = ((imagenet.MEAN, imagenet.STD) if config.normalize == 'imagenet'
               else (data.mean, data.std))
  variables = None
  if config.pretrained:
    start = backbone_lib.load(config, backbone_lib.make(config, devices.platform), channels,
                              devices)
    console.say(start.report)
    variables, mean, std = start.variables, start.mean, start.std
  trainer = Trainer(config, data, pipeline.Pixels(size, channels, mean, std), devices)
  state = trainer.new_state(variables)
  trainer.read_maps(state)
  trainer.check_memory(state)
  if config.head_rounds:
    state = _with_trained_heads(trainer, state)
  return Progress(trainer, state)


def _with_trained_heads(trainer: Trainer, state: step_lib.TrainState) -> step_lib.TrainState:
  """The state with heads and codes that were trained on features of its backbone.

  It depends on the settings and the data alone: a run that is stopped here begins anew.
  """
  config = trainer.config
  defaults = {name: options.fields(config)[name].default for name in (
      'head_rounds', 'head_learning_rate', 'head_weight_decay', 'batch_norm', 'frozen_stages',
      'keep_maps', 'augment', 'shift_pixels', 'lr_drop_rounds', 'warmup', 'mirror')}
  before = begin(dataclasses.replace(
      config, **defaults, input='features', hidden=(), num_rounds=config.head_rounds,
      learning_rate=config.head_learning_rate, weight_decay=config.head_weight_decay,
      lr_schedule='triangle'),
      trainer.data, trainer.devices, maps=trainer.maps)
  with console.bar(before.trainer.plan.num_steps, 'training heads') as bar:
    for pause in before.trainer.fit(before.state, bar.update):
      trained = pause.state
  params, scalings = jax.device_get((trained.params, trained.batch_stats))
  folded = {name: heads_lib.fold(getattr(trainer.network, name), part,
                                 **scalings[name.replace('heads', 'backbone')])
            for name, part in params.items()}
  return state.replace(params={**state.params, **trainer.devices.replicate(folded)},
                       codes=trained.codes)


def restore(config: config_lib.Config, data: datasets.Dataset, devices: step_lib.Devices,
            checkpoints: checkpoint.Checkpoints, step: int,
            sources: sources_lib.Sources | None = None) -> Progress:
  """A network as it was after so many steps; `sources` as in `begin`."""
  meta = checkpoints.meta(step)
  config_lib.check_same(config, meta['flags'])
  if meta['protocol'] != data.protocol.id:
    raise errors.InputError(f'The names or labels of the images in {config.data_dir} are not those '
                            f'that the run in {config.workdir} was begun with: restore them, or '
                            'choose another --workdir.')
  features = None
  if config.input == 'features':
    features = (sources or sources_lib.Sources()).features(config, data, devices)
    check_weights(config, features.extractor, meta['weights'])
  trainer = Trainer(config, data, pipeline.Pixels(**meta['pixels']), devices, features, sources)
  state = trainer.restore(checkpoints, step)
  trainer.read_maps(state)
  console.say(f'Restored {config.workdir} after {step} steps.')
  return Progress(trainer, state, meta['seconds'], meta['history'])


def check_weights(config: config_lib.Config, extractor: features_lib.Extractor, weights: str):
  """Refuses an extractor unless the run was trained on features by weights with this hash."""
  if extractor.weights != weights:
    raise errors.InputError(f'The weights in --pretrained={config.pretrained} are not those whose '
                            f'features the run in {config.workdir} was trained on: restore them.')


def save(checkpoints: checkpoint.Checkpoints, trainer: Trainer, pause: loop.Pause,
         seconds: float):
  """Starts saving a checkpoint that `restore` and an encoding can read."""
  about = {}
  if trainer.features is not None:
    about = {'features': trainer.features.values.shape[1],
             'weights': trainer.features.extractor.weights}
  checkpoints.save(pause.state, {
      **about, 'flags': config_lib.to_json(trainer.config), 'pixels': trainer.pixels._asdict(),
      'protocol': trainer.data.protocol.id, 'labels': trainer.labels.shape[1],
      'seconds': seconds, 'history': [] if pause.finished else pause.history})


def network(config: config_lib.Config, method: base.DeepMethod, platform: str) -> nn.Module:
  """The network that a method builds: on the backbone of a Config, or on layers on its features."""
  if config.input == 'features':
    return method.network(lambda: perceptron.Perceptron(config.hidden))
  return method.network(functools.partial(backbone_lib.make, config, platform))


def words(method: base.DeepMethod, codes) -> tuple[np.ndarray, ...] | None:
  """The distinct database codes ([k, c] int8, ...) that images may get, or None for signs.

  Args:
    method: it says which.
    codes: codes of the database, ([n, c] int8, ...).
  """
  if not method.nearest:
    return None
  check_codes(codes)
  return tuple(np.unique(np.asarray(b), axis=0) for b in codes)


def check_codes(codes):
  """Refuses database codes ([n, c], ...) that are still the zeros they began with."""
  if not all(np.all(b) for b in codes):
    raise errors.InputError('The newest checkpoint of this run is from before the first update of '
                            'its codes: go on training first.')


def binary(embeddings, among: tuple[np.ndarray, ...] | None = None) -> tuple[np.ndarray, ...]:
  """Codes of embeddings, ([rows, c] int8, ...): their signs, or the nearest among `words`."""
  if among is None:
    return tuple(np.asarray(discrete.to_codes(u)) for u in embeddings)
  return tuple(discrete.nearest(np.asarray(u), candidates)
               for u, candidates in zip(embeddings, among))


def _schedule(config: config_lib.Config, plan: loop.Plan) -> optax.Schedule:
  """The learning rate of each step."""
  if config.lr_schedule == 'triangle':
    return loop.triangle_schedule(config.learning_rate, plan.num_steps, config.warmup)
  return loop.step_schedule(config.learning_rate, plan.steps_per_round, config.lr_drop_rounds)
