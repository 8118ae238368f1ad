"""Methods that train a network as a run sees them: fitting goes on from checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mah_jax import config as config_lib
from mah_jax import encoder
from mah_jax import errors
from mah_jax import experiment as experiment_lib
from mah_jax import outcome
from mah_jax import pretrained
from mah_jax import progress
from mah_jax import runfolder
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.methods import base
from mah_jax.train import checkpoint
from mah_jax.train import loop
from mah_jax.train import step as step_lib


class Trained(NamedTuple):
  """How far a run is.

  experiment: what it trains.
  state: of the network.
  seconds: that training took until now.
  history: the steps of a round that is not done.
  """
  experiment: experiment_lib.Experiment
  state: step_lib.TrainState
  seconds: float = 0.0
  history: Sequence[dict[str, float]] = ()


def make(config: config_lib.Config, data: datasets.Dataset, devices: step_lib.Devices,
         folder: runfolder.RunFolder, stop: progress.StopRequest) -> base.Method:
  """Makes the deep method of a Config.

  Its `fit` restores what the run folder has and, in --mode=train, trains on. It leaves the
  program when a stop was asked for.
  """

  def fit(rows, labels, seed):
    del rows, labels, seed  # those of `data` and `config`
    training = config.mode == 'train'
    with contextlib.closing(checkpoint.Checkpoints(
        folder.checkpoints, config.max_to_keep if training else None)) as checkpoints:
      trained = _begin(config, data, devices, folder, checkpoints)
      if training:
        trained = _train(config, folder, checkpoints, trained, stop)
    return trained, trained.seconds

  def bit_weights(trained):
    one = trained.experiment.outputs(trained.state, data.protocol.queries[:1])
    return trained.experiment.method.bit_weights(one)

  return base.Method('images', fit, _queries, _database, _learned, bit_weights)


def _queries(trained: Trained, rows: np.ndarray) -> tuple[np.ndarray, ...]:
  return _codes(trained, rows, trained.experiment.method.query_embeddings)


def _database(trained: Trained, rows: np.ndarray) -> tuple[np.ndarray, ...]:
  return _codes(trained, rows, trained.experiment.method.database_embeddings)


def _codes(trained, rows, embeddings):
  outputs = trained.experiment.outputs(trained.state, rows)
  return experiment_lib.binary(embeddings(outputs), experiment_lib.words(
      trained.experiment.config, trained.state.codes))


def _learned(trained: Trained) -> tuple[np.ndarray, ...] | None:
  codes = trained.experiment.method.learned(trained.state.codes)
  return None if codes is None else tuple(map(np.asarray, codes))


def _begin(config, data, devices, folder, checkpoints) -> Trained:
  """The newest whole checkpoint, or a new state where there is none."""
  step, reports = checkpoints.newest(required=config.mode != 'train')
  for report in reports:
    progress.say(report)
  if step is None:
    return _new(config, data, devices)
  meta = checkpoints.meta(step)
  folder.check_same(config, meta['flags'])
  if meta['protocol'] != data.protocol.id:
    raise errors.InputError(f'The names or labels of the images in {config.data_dir} are not those '
                            f'that the run in {folder.path} was begun with: restore them, or '
                            'choose another --workdir.')
  experiment = experiment_lib.Experiment(config, data, pipeline.Pixels(**meta['pixels']), devices)
  state = checkpoints.restore(step, experiment.new_state())
  if config.mode == 'evaluate':
    experiment_lib.check_codes(state.codes)
  progress.say(f'Restored {folder.path} after {step} steps.')
  return Trained(experiment, state, meta['seconds'], meta['history'])


def _new(config, data, devices) -> Trained:
  """A state before the first step."""
  size, channels = encoder.input_size(config, data.images)
  mean, std = ((pipeline.IMAGENET_MEAN, pipeline.IMAGENET_STD)
               if config.normalize == 'imagenet' else (data.mean, data.std))
  backbone = None
  if config.pretrained:
    start = pretrained.load(config, experiment_lib.backbone(config), channels, devices)
    progress.say(start.report)
    backbone, mean, std = start.variables, start.mean, start.std
  pixels = pipeline.Pixels(size, channels, mean, std)
  experiment = experiment_lib.Experiment(config, data, pixels, devices)
  return Trained(experiment, experiment.new_state(backbone))


def _train(config, folder, checkpoints, trained, stop) -> Trained:
  """Fits round after round, scoring and saving; leaves the program when asked to stop."""
  experiment, state, before, history = trained
  plan, began = experiment.plan, time.monotonic()
  first = int(state.step) // plan.steps_per_round
  total = plan.num_rounds * plan.steps_per_round
  if int(state.step) > total:
    raise errors.UsageError(f'--num_rounds={plan.num_rounds}, but the run in {folder.path} is '
                            f'past {first} rounds already.')
  folder.write_config(config, outcome.about(experiment.devices))
  folder.keep_rounds(first)
  with progress.bar(total, 'training', done=int(state.step)) as bar, stop.deferred():

    def on_step():
      bar.update()
      checkpoints.poll()
      return stop.asked

    def seconds():
      return time.monotonic() - began

    for pause in loop.fit(
        state, plan, experiment.method, devices=experiment.devices,
        train_step=experiment.train_step, feed=experiment.feed_database,
        encode=experiment.database_outputs, key=experiment.key, on_step=on_step,
        history=history):
      state, done = pause.state, pause.round + 1
      last = done == plan.num_rounds
      if pause.finished:
        line = f'round {done}/{plan.num_rounds}  loss {pause.metrics["loss"]:.4f}'
        if last or config.eval_every and done % config.eval_every == 0:
          scores = _scores(Trained(experiment, state))
          # Before the checkpoint: a round is never saved without its line.
          folder.add_round({'round': done, 'losses': pause.metrics, 'metrics': scores,
                            'seconds': round(before + seconds(), 3)})
          line += outcome.score_text(scores)
        left = seconds() / (done - first) * (plan.num_rounds - done)
        progress.say(f'{line}  {progress.clock(left)} left')
      if stop.asked or last or done % config.checkpoint_every == 0:
        checkpoints.save(state, {
            'flags': config_lib.to_json(config), 'pixels': experiment.pixels._asdict(),
            'protocol': experiment.data.protocol.id, 'labels': experiment.labels.shape[1],
            'rows': plan.num_rows,
            'seconds': before + seconds(), 'history': [] if pause.finished else pause.history})
    checkpoints.wait()
    if stop.asked:
      stop.leave(f'Stopped and saved in {folder.path}; the same command goes on from here.')
  return Trained(experiment, state, before + time.monotonic() - began)


def _scores(trained: Trained) -> dict[str, dict]:
  """Scores after a round, by code length: of learned codes or, where there are none, encoded."""
  data, split = trained.experiment.data, trained.experiment.data.protocol
  queries, learned = _queries(trained, split.queries), _learned(trained)
  codes = ([outcome.Codes(q, b, None) for q, b in zip(queries, learned)] if learned else
           [outcome.Codes(q, None, b)
            for q, b in zip(queries, _database(trained, split.database))])
  return outcome.by_length(data, codes)
