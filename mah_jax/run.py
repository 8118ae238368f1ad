"""One run as a story: data, fit, encode, evaluate, write the run folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any
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
from mah_jax.data import pipeline
from mah_jax.train import checkpoint
from mah_jax.train import loop
from mah_jax.train import step as step_lib


def run(config: config_lib.Config):
  """Trains or restores, evaluates, writes the run folder and prints its table."""
  with progress.StopRequest('Stopped; the same command goes on from the last checkpoint.') as stop:
    _run(config, stop)


def _run(config, stop):
  devices = step_lib.Devices(step_lib.pick_devices(config.num_devices), config.batch_size)
  folder = runfolder.RunFolder(config.workdir)
  training = config.mode == 'train'
  if training:
    folder.claim(config, outcome.about(devices))
  else:
    folder.check_claimed()
  data = experiment_lib.load(config)
  if training and data.report:
    folder.write_skipped(data.report)
  with contextlib.closing(checkpoint.Checkpoints(
      folder.checkpoints, config.max_to_keep if training else None)) as checkpoints:
    trained, experiment = _begin(config, data, devices, folder, checkpoints)
    if training:
      trained = _train(config, experiment, folder, checkpoints, trained, stop)
  _finish(config, experiment, folder, trained)


class Trained(NamedTuple):
  """How far a run is: its state, the time it took, and the steps of a round that is not done."""
  state: step_lib.TrainState
  seconds: float = 0.0
  history: Sequence[dict[str, float]] = ()


def _begin(config, data, devices, folder, checkpoints):
  """(Trained, Experiment) from the newest whole checkpoint, or new where there is none."""
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
  if config.mode == 'evaluate' and not all(np.all(b) for b in state.codes):
    raise errors.InputError(f'The checkpoint in {folder.path} is from before the first update '
                            'of its codes: go on training first.')
  progress.say(f'Restored {folder.path} after {step} steps.')
  return Trained(state, meta['seconds'], meta['history']), experiment


def _new(config, data, devices):
  """(Trained, Experiment) before the first step."""
  size, channels = encoder.input_size(config, data.images)
  mean, std = ((pipeline.IMAGENET_MEAN, pipeline.IMAGENET_STD)
               if config.normalize == 'imagenet' else (data.mean, data.std))
  backbone = None
  if config.pretrained:
    network = experiment_lib.network(config)
    start = pretrained.load(config, network.backbone, channels, devices)
    progress.say(start.report)
    backbone, mean, std = start.variables, start.mean, start.std
  pixels = pipeline.Pixels(size, channels, mean, std)
  experiment = experiment_lib.Experiment(config, data, pixels, devices)
  return Trained(experiment.new_state(backbone)), experiment


def _train(config, experiment, folder, checkpoints, trained, stop) -> Trained:
  """Fits round after round, scoring and saving; leaves the program when asked to stop."""
  plan, state, began = experiment.plan, trained.state, time.monotonic()
  first = int(state.step) // plan.steps_per_round
  total = plan.num_rounds * plan.steps_per_round
  if int(state.step) > total:
    raise errors.UsageError(f'--num_rounds={plan.num_rounds}, but the run in {folder.path} is '
                            f'past {first} rounds already.')
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
        encode=experiment.encode, key=experiment.key, on_step=on_step,
        history=trained.history):
      state, done = pause.state, pause.round + 1
      last = done == plan.num_rounds
      if pause.finished:
        line = _round_line(pause, config)
        if last or config.eval_every and done % config.eval_every == 0:
          scores = _scores(experiment, experiment.query_codes(state), state.codes)
          # Before the checkpoint: a round is never saved without its line.
          folder.add_round({'round': done, 'losses': pause.metrics, 'metrics': scores,
                            'seconds': round(trained.seconds + seconds(), 3)})
          line += _score_text(scores)
        left = seconds() / (done - first) * (plan.num_rounds - done)
        progress.say(f'{line}  {progress.clock(left)} left')
      if stop.asked or last or done % config.checkpoint_every == 0:
        checkpoints.save(state, {
            'flags': config_lib.to_json(config), 'pixels': experiment.pixels._asdict(),
            'protocol': experiment.data.protocol.id, 'seconds': trained.seconds + seconds(),
            'history': [] if pause.finished else pause.history})
    checkpoints.wait()
    if stop.asked:
      stop.leave(f'Stopped and saved in {folder.path}; the same command goes on from here.')
  return Trained(state, trained.seconds + time.monotonic() - began)


def _scores(experiment, queries, learned) -> dict[str, dict[str, Any]]:
  """Scores of the learned database codes and their codebooks, by code length."""
  codes = [outcome.Codes(q, np.asarray(b), None) for q, b in zip(queries, learned)]
  return {str(c.queries.shape[1]): outcome.scores(experiment.data, c) for c in codes}


def _round_line(pause, config) -> str:
  """What a person reads after a round: its number and the loss of each head."""
  means = pause.metrics
  losses = ' '.join(f'{c}:{means[f"semantic/{c}"] + means[f"quantization/{c}"]:.3f}'
                    for c in config.code_lengths)
  return f'round {pause.round + 1}/{config.num_rounds}  loss {losses}'


def _score_text(scores) -> str:
  codewords = ' '.join(str(s['codebook']['distinct']) for s in scores.values())
  maps = ' '.join(f'{s["learned"]["map"]:.3f}' for s in scores.values())
  return f'  codewords {codewords}  map {maps}'


def _finish(config, experiment, folder, trained):
  """Scores learned and encoded codes, writes everything, prints the table."""
  began = time.monotonic()
  state = trained.state
  codes = [outcome.Codes(q, np.asarray(b), encoded) for q, b, encoded in zip(
      experiment.query_codes(state), state.codes, experiment.database_codes(state))]
  found = {str(c): outcome.scores(experiment.data, own)
           for c, own in zip(config.code_lengths, codes)}
  outcome.write(config, experiment.data, folder, codes, found, {
      'timing': {'train_seconds': round(trained.seconds, 3),
                 'evaluate_seconds': round(time.monotonic() - began, 3)}})
