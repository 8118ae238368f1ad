"""The run folder: where its files are, its lock, its settings and the log of its rounds."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import storage
from mah_jax.runs import tensorboard
from mah_jax.train import checkpoint
from mah_jax.train import processes
from mah_jax.train import step as step_lib

CODES = 'codes of a run'  # what codes/ holds
# The names in a folder codes/ that earlier versions wrote, without a manifest.
EARLIER = r'(queries|database|bit_weights)_\d+\.npy|(query|database)_labels\.npy|names\.json'
# What the folder of a checkpoint may hold: what Orbax writes, its seal, and a seal half written.
CHECKPOINT = ('_CHECKPOINT_METADATA', 'commit_success.txt', 'meta', 'state', checkpoint.SEAL,
              storage.part_of(pathlib.Path(checkpoint.SEAL)).name)
OWN = ('checkpoints', 'codes', 'index', 'codes.npz', 'model.npz', 'config.json',
       'results.json', 'metrics.jsonl', 'skipped.txt')  # its files
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


class RunFolder:
  """The files of one run below `--workdir`, as README.md lists them."""

  def __init__(self, path: str):
    self.path = storage.path(path)
    self.checkpoints = self.path / 'checkpoints'
    self.codes = self.path / 'codes'
    self.archive = self.path / 'codes.npz'
    self.model = self.path / 'model.npz'
    self.results = self.path / 'results.json'
    self.report = self.path / 'report.html'
    self._metrics = self.path / 'metrics.jsonl'
    self._events = self.path / 'events.out.tfevents.mah_jax'

  @property
  def has_codes_only(self) -> bool:
    """Whether the codes and scores of a run were kept, but no checkpoint."""
    return (self.archive.exists() and self.results.exists()
            and not any(self.checkpoints.glob('*')))

  def flags(self) -> dict[str, Any] | None:
    """The flags of the run, or None where no run was begun."""
    return config_lib.saved_flags(self.path)

  @contextlib.contextmanager
  def claimed(self, config: config_lib.Config) -> Iterator[None]:
    """Makes the folder this run's while it is entered; refuses one that holds another run."""
    new = [folder for folder in (self.checkpoints, self.path) if not folder.exists()]
    processes.once(lambda: self._claim(config))
    processes.check_shared(self.path)
    with self._locked(shared=False):
      try:
        yield
      finally:  # a refused command leaves no folder behind that it has made
        storage.remove_empty(*new)

  def _claim(self, config: config_lib.Config):
    self.check(config)
    try:
      self.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise errors.InputError(f'--workdir={self.path} cannot be written to '
                              f'({error.strerror}): choose another.') from error
    self.check_codes()

  def check(self, config: config_lib.Config):
    """Refuses a folder that holds another run, or nothing that this one could go on with."""
    self.check_own()
    saved = self.flags()
    if saved is not None and (any(self.checkpoints.glob('*')) or self.results.exists()
                              or self.archive.exists()):
      config_lib.check_same(config, saved)
    if self.has_codes_only and config.spec.trains_network:
      raise errors.InputError(f'{self.path} holds the codes of a run, but no checkpoint to resume: '
                              'score them with --mode=evaluate, or choose another --workdir.')

  def check_codes(self):
    """Refuses a folder codes/ that must not be replaced, as somebody put something there."""
    storage.check_replaceable(self.codes, CODES, EARLIER)

  def check_own(self):
    """Refuses a folder that holds something else than a run."""
    for path in self.checkpoints.glob('*/*'):
      if path.parent.name.isdigit() and path.name not in CHECKPOINT:  # Orbax would remove it
        raise errors.InputError(f'{path} is not of a checkpoint: move it away, or choose another '
                                '--workdir.')
    if not self.path.is_dir() or self._is_run():
      return
    foreign = sorted(path.name for path in self.path.iterdir()
                     if path != self.checkpoints and not path.name.startswith('.'))
    if foreign:
      raise errors.InputError(f'{self.path} holds something that is not of a run '
                              f'({", ".join(foreign[:3])}): choose another --workdir.')

  def check_output(self, flag: str, output: pathlib.Path):
    """Refuses an output in a place where the run keeps its own files."""
    place = os.path.relpath(os.path.realpath(output), os.path.realpath(self.path)).split(os.sep)[0]
    if place in OWN:
      raise errors.UsageError(f'--{flag}={output} is where the run in {self.path} keeps its own '
                              'files: choose another.')

  def _is_run(self) -> bool:
    """Whether a config.json, or what checkpoints say, makes it the folder of a run."""
    config = self.path / 'config.json'
    if not config.exists():
      return any(self.checkpoints.glob('*'))
    try:
      return 'flags' in storage.read_json(config)
    except (ValueError, TypeError):
      return any(self.checkpoints.glob('*')) or self.archive.exists()  # its config is damaged

  @contextlib.contextmanager
  def opened(self, *, shared: bool = False) -> Iterator[None]:
    """Keeps other runs out of a folder in which a run was begun, or lets in other readers."""
    if self.flags() is None:
      raise errors.InputError(f'{self.path} is not a run folder: it has no config.json.')
    with self._locked(shared):
      if not shared:
        self.check_codes()
      yield

  def _locked(self, shared: bool):
    def refuse():
      raise errors.InputError(f'Another run is at work in {self.path}: wait for its end, or choose '
                              'another --workdir.')
    return storage.lock(self.path, shared=shared, on_busy=refuse)

  def write_config(self, config: config_lib.Config, devices: step_lib.Devices):
    """Writes config.json, once nothing is left that could refuse the run."""
    storage.write_json(self.path / 'config.json', {
        'flags': config_lib.to_json(config),
        'versions': {name: importlib.metadata.version(name) for name in PACKAGES},
        'devices': [f'{device.platform} {device.device_kind}' for device in devices.devices]})

  def write_skipped(self, report: str):
    """Writes skipped.txt: the images of the dataset that cannot be used, and why."""
    storage.write_text(self.path / 'skipped.txt', f'{report}\n')

  def keep_rounds(self, rounds: int):
    """Drops the lines of metrics.jsonl after round number `rounds`; they come again."""
    if self._metrics.exists():
      lines = storage.read_file(self._metrics).splitlines(keepends=True)
      whole = [line for line in lines if line.endswith(b'\n')]  # a kill may have cut off the last
      try:
        kept = [line for line in whole if storage.parse_json(line)['round'] <= rounds]
      except (ValueError, KeyError, TypeError):
        raise errors.InputError(f'{self._metrics} is damaged: remove it to go on with the '
                                'run.') from None
      storage.write(self._metrics, b''.join(kept))

  def write_events(self):
    """Writes the rounds that there are for TensorBoard."""
    tensorboard.write(self._events, self.rounds())

  def rounds(self) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    if not self._metrics.exists():
      return []
    try:
      lines = [storage.parse_json(line) for line in storage.read_file(self._metrics).splitlines(
          keepends=True) if line.endswith(b'\n')]  # one may be half written
      if all(type(line['round']) is int and isinstance(line['metrics'], dict) for line in lines):
        return lines
    except (ValueError, LookupError, TypeError):
      pass
    raise errors.InputError(f'{self._metrics} is damaged: remove it, or copy it again.')

  def add_round(self, metrics: dict[str, Any]):
    """Adds a line to metrics.jsonl."""
    storage.append(self._metrics, storage.json_lines([metrics]))
    tensorboard.append(self._events, metrics)
