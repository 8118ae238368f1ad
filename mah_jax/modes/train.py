"""--mode=train: a network is trained, or features are fitted; then codes are scored and written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import results
from mah_jax.runs import run_page
from mah_jax.runs import table
from mah_jax.train import backbone
from mah_jax.train import checkpoint
from mah_jax.train import dataset
from mah_jax.train import model as model_lib
from mah_jax.train import outlook
from mah_jax.train import processes
from mah_jax.train import shallow
from mah_jax.train import sources as sources_lib
from mah_jax.train import step as step_lib
from mah_jax.train import trainer as trainer_lib

SILENT = 10.0  # seconds: short rounds that are not scored are told of no more often


def train(config: config_lib.Config):
  """Trains or fits, from where the run folder is, and fills the folder."""
  kept = ('the same command goes on from the last checkpoint.' if config.spec.trains_network else
          'features that were extracted are kept, fits are not.')
  with console.StopRequest(f'Stopped; {kept}') as stop:
    folder = folder_lib.RunFolder(config.workdir)
    dataset.check_apart(config, 'workdir', folder.path)
    processes.once(folder.check_own)
    config = backbone.resolve(config, folder.flags())
    devices = step_lib.Devices(step_lib.pick_devices(config.num_devices), config.batch_size)
    with folder.claimed(config):
      _train(config, devices, folder, stop)


def _train(config: config_lib.Config, devices: step_lib.Devices, folder: folder_lib.RunFolder,
           stop: console.StopRequest):
  sources = sources_lib.Sources()
  data = sources.dataset(config)
  if data.report:
    folder.write_skipped(data.report)
  outcome = fit(config, devices, folder, stop, sources)
  console.pause()
  if outcome.model is not None:
    model_lib.write(folder.model, outcome.model)
  table.say(results.write(folder, config, data, outcome))
  if config.report:
    processes.once(lambda: run_page.write(folder, data))
  console.say(f'Written to {folder.path}.')


def fit(config: config_lib.Config, devices: step_lib.Devices, folder: folder_lib.RunFolder,
        stop: console.StopRequest, sources: sources_lib.Sources,
        say: Callable[[str], None] = console.say) -> results.Outcome:
  """Trains or fits, from where the run folder is; `say` is told about every round or seed."""
  work = _train_network if config.spec.trains_network else _fit_features
  return work(config, devices, folder, stop, sources, say)


def _train_network(config: config_lib.Config, devices: step_lib.Devices,
                   folder: folder_lib.RunFolder, stop: console.StopRequest,
                   sources: sources_lib.Sources, say: Callable[[str], None]) -> results.Outcome:
  """Trains from the newest checkpoint, or from the start where there is none."""
  began = time.monotonic()
  with contextlib.closing(checkpoint.Checkpoints(
      folder.checkpoints, devices, config.max_to_keep)) as checkpoints:
    step, reports = checkpoints.newest(required=False)
    for report in reports:
      console.say(report)
    if step is None and folder.results.exists():
      raise errors.InputError(f'{folder.path} holds the results of a run, but no checkpoint that '
                              'can be used: choose another --workdir, or remove the folder.')
    if step is None:
      progress = trainer_lib.begin(config, sources.dataset(config), devices, sources)
    else:
      progress = trainer_lib.restore(config, sources.dataset(config), devices, checkpoints, step,
                                     sources)
    progress = _train_rounds(progress, folder, checkpoints, stop, say)
  return network_outcome(progress, began)


def _train_rounds(progress: trainer_lib.Progress, folder: folder_lib.RunFolder,
                  checkpoints: checkpoint.Checkpoints, stop: console.StopRequest,
                  say: Callable[[str], None]) -> trainer_lib.Progress:
  """Trains round after round, scoring and saving; leaves the program when asked to stop."""
  trainer, state, before, history = progress
  config, plan, began = trainer.config, trainer.plan, time.monotonic()
  first = int(state.step) // plan.steps_per_round
  # A run that left a checkpoint when it was stopped must not end with that one as its newest.
  saves = config.checkpoint_every or (plan.num_rounds if int(state.step) else 0)
  if int(state.step) > plan.num_steps:
    raise errors.UsageError(f'--num_rounds={plan.num_rounds}, but the run in {folder.path} is '
                            f'past {first} rounds already.')
  folder.keep_rounds(first)  # which may refuse what is there
  folder.write_config(config, trainer.devices)  # from now on it is the folder of a run
  folder.write_events()
  if int(state.step) < plan.num_steps:
    trainer.check_memory(state)
    say(outlook.of_network(trainer, state, folder.path))
  pace = outlook.Pace(config, plan, len(trainer.data.images), trainer.devices.platform, say)
  with (console.bar(plan.images_after(plan.num_steps), 'training',
                    done=plan.images_after(int(state.step))) as bar,
        stop.deferred()):

    stopping = 0  # the signal that all processes stop for
    step = start = int(state.step)

    def on_step(steps):
      nonlocal stopping, step
      step += steps
      (bar.update if pace.note(step) else bar.skip)(plan.images_after(step) - bar.n)
      checkpoints.poll()
      stopping = trainer.devices.largest(stop.asked or 0)
      return stopping > 0

    def seconds():
      return before + time.monotonic() - began

    said = resumed = time.monotonic()  # when a round was last told of, and the last pause ended
    trained = step  # where it ended
    for pause in trainer.fit(state, on_step, history):
      state, done = pause.state, pause.round + 1
      images = (plan.images_after(step) - plan.images_after(trained)) / (
          time.monotonic() - resumed)
      last = done == plan.num_rounds
      if pause.finished:
        line = f'round {done}/{plan.num_rounds}  loss {pause.metrics["loss"]:.4f}'
        scored = last or config.eval_every > 0 and done % config.eval_every == 0
        if scored:
          scores = results.score(config, trainer.data, trainer.codes(state, always_encode=False),
                                 trainer.code_updates(state))
          # Before the checkpoint: a round is never saved without its line.
          folder.add_round({'round': done, 'losses': pause.metrics, 'metrics': scores,
                            'seconds': round(seconds(), 3), 'images_per_second': round(images, 1),
                            'learning_rate': trainer.learning_rate(int(state.step) - 1)})
          line += table.line(scores)
        if scored or time.monotonic() - said >= SILENT:
          left = outlook.seconds_left(seconds() - before, start, step, plan.num_steps)
          say(f'{line}  {console.clock(left)} left')
          said = time.monotonic()
      if stopping or saves and (last or done % saves == 0):
        trainer_lib.save(checkpoints, trainer, pause, seconds())
      resumed, trained = time.monotonic(), step
    checkpoints.wait()
    if stopping:
      stop.ask(stopping)
      stop.leave(f'Stopped and saved in {folder.path}; the same command goes on from here.')
  return trainer_lib.Progress(trainer, state, seconds())


def network_outcome(progress: trainer_lib.Progress, began: float) -> results.Outcome:
  """The codes and scores of a network as far as it is trained, at work since `began`."""
  trainer, state = progress.trainer, progress.state
  codes, updates = trainer.codes(state), trainer.code_updates(state)
  metrics = results.score(trainer.config, trainer.data, codes, updates)
  step = int(state.step)
  return results.Outcome(
      [codes], [metrics], [trainer.config.seed],
      {'fit_seconds': progress.seconds, 'seconds': time.monotonic() - began},
      {'step': step, 'round': step // trainer.plan.steps_per_round, 'code_updates': updates})


def _fit_features(config: config_lib.Config, devices: step_lib.Devices,
                  folder: folder_lib.RunFolder, stop: console.StopRequest,
                  sources: sources_lib.Sources, say: Callable[[str], None]) -> results.Outcome:
  """Fits each code length to the features of the rows for training, for each seed."""
  del stop  # which ends a fit at once
  data = sources.dataset(config)
  x, extractor = sources.features(config, data, devices)
  split = data.protocol
  queries, database = x[split.queries], x[split.database]  # copies, made once
  training = None if split.training_part is None else x[split.training]
  folder.write_config(config, devices)
  say(outlook.of_fit(config, data, x.shape[1], devices, folder.path))
  seeds = range(config.seed, config.seed + config.num_seeds)
  fits, metrics, began = [], [], time.monotonic()
  for seed in seeds:
    fitted = shallow.fit(config, queries, database, data.labels[split.training], seed, training)
    fits.append(fitted if not fits else fitted._replace(states=()))  # only the first encodes
    metrics.append(results.score(config, data, fitted.codes, code_updates=None))
    if len(seeds) > 1:
      say(f'seed {seed}{table.line(metrics[-1])}')
  return results.Outcome(
      [fit.codes for fit in fits], metrics, seeds,
      {'fit_seconds': sum(fit.seconds for fit in fits), 'seconds': time.monotonic() - began}, {},
      model_lib.make(config, fits[0].states, extractor))
