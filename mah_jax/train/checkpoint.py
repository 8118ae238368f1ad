"""Checkpoints of a run: Orbax writes them, and a hash of every file seals them."""

from __future__ import annotations

import hashlib
import pathlib
import shutil
from typing import Any

import jax
import orbax.checkpoint as ocp

from mah_jax import errors
from mah_jax import storage
from mah_jax.train import processes
from mah_jax.train import step as step_lib

SEAL = 'sha256.json'  # in each checkpoint's folder, written when Orbax is done with it
SAVED = ('step', 'params', 'batch_stats', 'opt_state', 'codes', 'memory', 'key')


class Checkpoints:
  """The checkpoints in one folder, named by the number of training steps.

  Saving goes on in the background. A checkpoint counts once it is sealed: a file with the
  sha256 of each of its files, since Orbax restores a damaged file without a word. A checkpoint
  that is unsealed or differs from its seal is passed over.
  """

  def __init__(self, folder: pathlib.Path, devices: step_lib.Devices,
               max_to_keep: int | None = None):
    """Opens the folder for as many checkpoints as given, or for reading only."""
    self._folder, self._devices = folder.absolute(), devices
    if max_to_keep is None:
      options = {'read_only': True, 'create': False, 'save_interval_steps': 0}
    else:
      options = {'preservation_policy': ocp.checkpoint_managers.LatestN(max_to_keep)}
      # Orbax would do so in the background, and complain if the program ends meanwhile.
      processes.once(self._remove_unfinished)
    self._manager = ocp.CheckpointManager(
        self._folder, options=ocp.CheckpointManagerOptions(**options))
    self._unsealed: int | None = None

  def save(self, state: step_lib.TrainState, meta: dict[str, Any]):
    """Starts saving the state with JSON `meta`; returns as soon as the state may change."""
    self.wait()
    step = int(state.step)
    for old in self._manager.all_steps():
      if old >= step:  # passed over at restore, so of no use, and Orbax only goes forward
        self._manager.delete(old)
    self._manager.save(step, args=ocp.args.Composite(
        state=ocp.args.StandardSave(self._devices.to_all(_tree(state))),
        meta=ocp.args.JsonSave(meta)))
    self._unsealed = step

  def _remove_unfinished(self):
    for unfinished in self._folder.glob('*.orbax-checkpoint-tmp*'):
      shutil.rmtree(unfinished, ignore_errors=True)

  def poll(self):
    """Seals the checkpoint that was being saved if that is done; returns at once."""
    if self._unsealed is not None and not self._manager.is_saving_in_progress():
      self.wait()

  def wait(self):
    """Waits for the checkpoint that is being saved, and seals it."""
    self._manager.wait_until_finished()
    if self._unsealed is not None:
      _seal(self._folder / str(self._unsealed))
      self._unsealed = None

  def close(self):
    """Waits and lets go of the folder."""
    self.wait()
    self._manager.close()

  def newest(self, required: bool = True) -> tuple[int | None, list[str]]:
    """The newest checkpoint that is whole, and a sentence on each newer one that is not.

    Raises errors.InputError when sealed checkpoints are there but none is whole, or when there
    is none although one is required.
    """
    step, reports = processes.once(lambda: self._newest(required))
    return step, reports

  def _newest(self, required: bool) -> tuple[int | None, list[str]]:
    steps = sorted(self._manager.all_steps(), reverse=True)
    reports = []
    for step in steps:
      damage = _damage(self._folder / str(step))
      if damage is None:
        return step, reports
      reports.append(f'Checkpoint {step} cannot be used: {damage}.')
    sealed = [step for step in steps if (self._folder / str(step) / SEAL).exists()]
    if sealed:
      raise errors.InputError(f'{" ".join(reports)} No other is left in {self._folder}; remove '
                              'that folder to start the run anew.')
    if required:
      raise errors.InputError(f'{self._folder} has no checkpoint; train first.')
    return None, reports

  def meta(self, step: int) -> dict[str, Any]:
    """The JSON saved with a checkpoint."""
    args = ocp.args.Composite(meta=ocp.args.JsonRestore())
    return self._manager.restore(step, args=args).meta

  def shapes(self, step: int, name: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and types of the arrays that a part of the state was saved with."""
    saved = ocp.PyTreeCheckpointHandler().metadata(self._folder / str(step) / 'state').tree
    return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in saved.get(name) or ())

  def restore(self, step: int, template: step_lib.TrainState) -> step_lib.TrainState:
    """The saved state on all devices, with the shapes of `template`."""
    args = ocp.args.Composite(state=ocp.args.StandardRestore(
        self._devices.abstract(_tree(template))))
    return template.replace(**self._devices.to_own(self._manager.restore(step, args=args).state))

  def restore_part(self, step: int, template: Any) -> Any:
    """Part of what was saved, on all devices: the leaves that `template` has, with their shapes."""
    template = self._devices.abstract(template)
    args = ocp.args.PyTreeRestore(
        item=template, partial_restore=True,
        restore_args=ocp.checkpoint_utils.construct_restore_args(template))
    return self._devices.to_own(
        self._manager.restore(step, args=ocp.args.Composite(state=args)).state)


def _tree(state: step_lib.TrainState) -> dict[str, Any]:
  return {name: getattr(state, name) for name in SAVED}


def _hashes(folder: pathlib.Path) -> dict[str, str]:
  """sha256 of each file below a checkpoint's folder, without its seal."""
  return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
          for path in sorted(folder.rglob('*')) if path.is_file() and path.name != SEAL}


def _seal(folder: pathlib.Path):
  storage.write_json(folder / SEAL, _hashes(folder))


def _damage(folder: pathlib.Path) -> str | None:
  """The damage of a checkpoint in words, or None."""
  seal = folder / SEAL
  if not seal.exists():
    return 'the run was cut off while it was being saved'
  try:
    expected = storage.read_json(seal)
  except ValueError:
    return f'its file {SEAL} is damaged'
  actual = _hashes(folder)
  wrong = sorted(name for name in expected.keys() | actual.keys()
                 if expected.get(name) != actual.get(name))
  return f'its file {wrong[0]} is missing or damaged' if wrong else None
