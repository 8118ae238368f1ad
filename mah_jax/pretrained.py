"""What a backbone starts from: a file of weights or the network of another run."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax.train import checkpoint
from mah_jax.train import step as step_lib
from mah_jax.weights import files
from mah_jax.weights import fitting


class Pretrained(NamedTuple):
  """Weights for a backbone.

  variables: by collection, 'params' and, where the backbone has them, 'batch_stats'.
  mean, std: how the images were normalised that the weights were trained on.
  report: what was found in the file and what became of it, for a person.
  """
  variables: dict[str, Any]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  report: str


def load(path: str, name: str, backbone: nn.Module, channels: int,
         devices: step_lib.Devices) -> Pretrained:
  """Reads --pretrained weights for the backbone of this name."""
  image = jnp.zeros((1, 224, 224, channels))  # no weight depends on the size of the image
  variables = jax.eval_shape(
      functools.partial(backbone.init, train=False), jax.random.key(0), image)
  place = pathlib.Path(path).expanduser()
  if (place / 'config.json').is_file():
    return _from_run(place, name, variables, devices)
  weights = files.read(place)
  fitted, report = fitting.fit(weights, variables, name)
  return Pretrained(fitted, weights.mean, weights.std, report)


def _from_run(path: pathlib.Path, name: str, variables: dict[str, Any],
              devices: step_lib.Devices) -> Pretrained:
  """The backbone in the newest checkpoint of a run."""
  flags = config_lib.saved_flags(path)
  if flags['backbone'] != name:
    raise errors.InputError(f'The run in {path} has --backbone={flags["backbone"]}, not {name}: '
                            f'use --backbone={flags["backbone"]} or other --pretrained weights.')
  with contextlib.closing(checkpoint.Checkpoints(path / 'checkpoints')) as saved:
    step, _ = saved.newest()
    pixels = saved.meta(step)['pixels']
    template = devices.abstract({name: {'backbone': part} for name, part in variables.items()})
    try:
      restored = saved.restore_part(step, template)
    except ValueError as error:
      raise errors.InputError(f'The network of the run in {path} has another --width or --feature '
                              f'({str(error).splitlines()[0]}).') from error
  found = {name: part['backbone'] for name, part in restored.items()}
  report = f'Starting from the backbone of {path} after {step} steps; the heads are new.'
  return Pretrained(found, tuple(pixels['mean']), tuple(pixels['std']), report)
