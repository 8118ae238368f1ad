"""The run folder: where its files are, its lock, its settings and the log of its rounds."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
from collections.abc import Iterator
from typing import Any

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import storage
from mah_jax.train import processes
from mah_jax.train import step as step_lib

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
    self._metrics = self.path / 'metrics.jsonl'

  @property
  def has_codes_only(self) -> bool:
    """Whether codes.npz was kept of a run, but no checkpoint."""
    return self.archive.exists() and not any(self.checkpoints.glob('*'))

  def flags(self) -> dict[str, Any] | None:
    """The flags of the run, or None where no run was begun."""
    return config_lib.saved_flags(self.path)

  @contextlib.contextmanager
  def claimed(self, config: config_lib.Config) -> Iterator[None]:
    """Makes the folder this run's while it is entered; refuses one that holds another run."""
    processes.once(lambda: self._claim(config))
    processes.check_shared(self.path)
    with self._locked(shared=False):
      yield

  def _claim(self, config: config_lib.Config):
    self.check_own()
    saved = self.flags()
    if saved is not None and (any(self.checkpoints.glob('*')) or self.results.exists()):
      config_lib.check_same(config, saved)
    if self.has_codes_only and config.spec.trains_network:
      raise errors.InputError(f'{self.path} holds the codes of a run, but no checkpoint to resume: '
                              'score them with --mode=evaluate, or choose another --workdir.')
    try:
      self.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise errors.InputError(f'--workdir={self.path} cannot be written to '
                              f'({error.strerror}): choose another.') from error

  def check_own(self):
    """Refuses a folder that holds something else than a run."""
    if not self.path.is_dir() or self._is_run():
      return
    foreign = sorted(path.name for path in self.path.iterdir()
                     if path != self.checkpoints and not path.name.startswith('.'))
    if foreign:
      raise errors.InputError(f'{self.path} holds something that is not of a run '
                              f'({", ".join(foreign[:3])}): choose another --workdir.')

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
    if not self._metrics.exists():
      return
    lines = self._metrics.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith('\n')]  # a kill may have cut off the last one
    try:
      kept = [line for line in whole if json.loads(line)['round'] <= rounds]
    except (ValueError, KeyError, TypeError):
      raise errors.InputError(f'{self._metrics} is damaged: remove it to resume the run.') from None
    storage.write(self._metrics, ''.join(kept).encode())

  def rounds(self) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    if not self._metrics.exists():
      return []
    try:
      return [json.loads(line) for line in self._metrics.read_text().splitlines()]
    except ValueError:
      raise errors.InputError(f'{self._metrics} is damaged: give the command of its run '
                              'again.') from None

  def add_round(self, metrics: dict[str, Any]):
    """Adds a line to metrics.jsonl."""
    storage.append(self._metrics, json.dumps(metrics))
