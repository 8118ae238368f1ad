"""One run as a story: data, fit, encode, evaluate, write the run folder."""

from __future__ import annotations

import importlib.metadata
import time
from typing import Any

import jax
import numpy as np

from mah_jax import config as config_lib
from mah_jax import discrete
from mah_jax import errors
from mah_jax import methods
from mah_jax import models
from mah_jax import progress
from mah_jax import runfolder
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.evaluation import metrics as metrics_lib
from mah_jax.train import checkpoint
from mah_jax.train import loop
from mah_jax.train import step as step_lib

TOP_K = 5000  # of precision@k and map@k, as in the paper
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def run(config: config_lib.Config):
  """Trains or restores, evaluates, writes the run folder and prints its table."""
  stop = progress.StopRequest()
  devices = step_lib.Devices(step_lib.pick_devices(config.num_devices), config.batch_size)
  data = datasets.load(config.dataset, config.data_dir, config.split_seed)
  folder = runfolder.RunFolder(config.workdir)
  folder.open(config, _about(devices))
  experiment = Experiment(config, data, devices)
  checkpoints = checkpoint.Checkpoints(folder.checkpoints, config.max_to_keep)
  state, trained_seconds = _restore(config, experiment, folder, checkpoints)
  if config.mode == 'train':
    state, trained_seconds = _train(
        config, experiment, folder, checkpoints, state, trained_seconds, stop)
  checkpoints.close()
  _finish(config, experiment, folder, state, trained_seconds)


class Experiment:
  """The parts of a run that fit together: data, network, method and compiled steps."""

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

  def encode(self, state: step_lib.TrainState, rows: np.ndarray, take=None,
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


def _restore(config, experiment, folder, checkpoints):
  """The newest whole checkpoint, or a new state; and the seconds trained so far."""
  step, reports = checkpoints.newest()
  for report in reports:
    progress.say(report)
  state = experiment.new_state()
  if step is None:
    if config.mode == 'evaluate':
      raise errors.InputError(f'{folder.path} has no checkpoint to evaluate; train first.')
    return state, 0.0
  meta = checkpoints.meta(step)
  folder.check_same(config, meta['flags'])
  round_ = step // experiment.plan.steps_per_round
  progress.say(f'Restored checkpoint {step} of {folder.path} ({round_} rounds done).')
  return checkpoints.restore(step, state), meta['trained_seconds']


def _train(config, experiment, folder, checkpoints, state, trained_seconds, stop):
  """Fits round after round, saving and scoring; leaves the program when asked to stop."""
  plan, started = experiment.plan, time.monotonic()
  first = int(state.step) // plan.steps_per_round
  folder.keep_rounds(first)
  total = plan.num_rounds * plan.steps_per_round
  with progress.bar(total, 'training', done=int(state.step)) as bar, stop.deferred():

    def on_step():
      bar.update()
      checkpoints.poll()
      return stop.asked

    pauses = loop.fit(
        state, plan, experiment.method, devices=experiment.devices,
        train_step=experiment.train_step, take=experiment.take_database,
        encode=experiment.encode, key=experiment.key, on_step=on_step)
    for pause in pauses:
      state, done = pause.state, pause.round + 1
      seconds = trained_seconds + time.monotonic() - started
      last = done == plan.num_rounds
      if stop.asked or last or done % config.checkpoint_every == 0:
        checkpoints.save(state, {'flags': config_lib.to_json(config),
                                 'trained_seconds': seconds})
      if not pause.finished:
        break
      line = _round_line(pause, config)
      if config.eval_every and (last or done % config.eval_every == 0):
        scores = _learned(experiment, state)
        folder.add_round({'round': pause.round, 'losses': pause.metrics, 'metrics': scores,
                          'seconds': round(seconds, 3)})
        line += _score_text(scores)
      left = (time.monotonic() - started) / (done - first) * (plan.num_rounds - done)
      bar.write(f'{line}  {progress.clock(left)} left')
    if stop.asked:
      checkpoints.close()
      stop.leave(f'Stopped and saved in {folder.path}; the same command goes on from here.')
  return state, trained_seconds + time.monotonic() - started


def _learned(experiment, state) -> dict[str, dict[str, Any]]:
  """Scores of the learned database codes and their codebooks, by code length."""
  database = tuple(np.asarray(b) for b in state.codes)
  scores = experiment.scores(experiment.query_codes(state), database)
  return {str(b.shape[1]): {'learned': s,
                            'codebook': metrics_lib.codebook(b, experiment.labels)}
          for b, s in zip(database, scores)}


def _round_line(pause, config) -> str:
  losses = ' '.join(f'{c}:{pause.metrics[f"semantic/{c}"] + pause.metrics[f"quantization/{c}"]:.3f}'
                    for c in config.code_lengths)
  return f'round {pause.round + 1}/{config.num_rounds}  loss {losses}'


def _score_text(scores) -> str:
  codewords = ' '.join(str(s['codebook']['distinct']) for s in scores.values())
  maps = ' '.join(f'{s["learned"]["map"]:.3f}' for s in scores.values())
  return f'  codewords {codewords}  map {maps}'


def _finish(config, experiment, folder, state, trained_seconds):
  """Scores learned and encoded codes, writes everything, prints the table."""
  started = time.monotonic()
  split = experiment.data.protocol
  learned = tuple(np.asarray(b) for b in state.codes)
  queries = experiment.query_codes(state)
  encoded = experiment.database_codes(state)
  scores = {
      str(c): {'learned': by_learned, 'encoded': by_encoded,
               'codebook': metrics_lib.codebook(b, experiment.labels)}
      for c, b, by_learned, by_encoded in zip(
          config.code_lengths, learned, experiment.scores(queries, learned),
          experiment.scores(queries, encoded))}
  for c, q, b in zip(config.code_lengths, queries, learned):
    folder.write_codes(f'queries_{c}', q)
    folder.write_codes(f'database_{c}', b)
  folder.write_codes('query_labels', experiment.data.labels[split.queries])
  folder.write_codes('database_labels', experiment.labels)
  results = {
      'method': config.method, 'heads': config.heads, 'dataset': config.dataset,
      'protocol': {'name': split.name, 'id': split.id, 'queries': len(split.queries),
                   'database': len(split.database)},
      'seed': config.seed, 'code_lengths': list(config.code_lengths), 'metrics': scores,
      'timing': {'train_seconds': round(trained_seconds, 3),
                 'evaluate_seconds': round(time.monotonic() - started, 3)}}
  folder.write_results(results)
  progress.say(f'\n{runfolder.table(results, TOP_K)}')
  if len(split.database) < TOP_K:
    progress.say(f'The database has {len(split.database)} rows, fewer than {TOP_K}: '
                 f'precision@{TOP_K} is the share of relevant rows in all of it.')
  progress.say(f'Written to {folder.path}.')


def _about(devices: step_lib.Devices) -> dict[str, Any]:
  """Versions and devices, for config.json."""
  kinds = [f'{device.platform} {device.device_kind}' for device in devices.devices]
  return {'versions': {name: importlib.metadata.version(name) for name in PACKAGES},
          'devices': kinds}
