"""The hash functions that a run fitted to features: model.npz, read and written here only."""

from __future__ import annotations

import json
import pathlib
import typing
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import storage
from mah_jax.data import pipeline
from mah_jax.train import features as features_lib

ABOUT = 'about'  # the array of model.npz that is a JSON text


class Model(NamedTuple):
  """What turns images into codes where no network is trained.

  states: the hash function of each code length, see methods/base.py.
  flags: the settings that they were fitted with.
  pixels: the images that the features are of.
  weights: the hash of the weights that make the features, see features.Extractor.
  """
  states: Sequence[Any]
  flags: Mapping[str, Any]
  pixels: pipeline.Pixels
  weights: str


def make(config: config_lib.Config, states: Sequence[Any],
         extractor: features_lib.Extractor) -> Model:
  """The model of a run with these states on the features of an extractor."""
  return Model(states, config_lib.to_json(config), extractor.pixels, extractor.weights)


def write(target: pathlib.Path, model: Model):
  """Writes the file; a state's array `projection` of 4 bits is called `projection_4` there."""
  about = {'flags': model.flags, 'pixels': model.pixels._asdict(), 'weights': model.weights}
  arrays = {ABOUT: np.array(json.dumps(about))}
  for c, state in zip(model.flags['code_lengths'], model.states, strict=True):
    arrays |= {f'{name}_{c}': array for name, array in _arrays(state).items()}
  storage.write_npz(target, arrays)


def read(source: pathlib.Path, config: config_lib.Config) -> Model:
  """Reads the model of a run with these settings; refuses one of other settings."""
  try:
    arrays = storage.read_npz(source)
    about = storage.parse_json(str(arrays[ABOUT]))
    config_lib.check_same(config, about['flags'])
    state = config.spec.make(config.options).state
    states = [_state(state, arrays, f'_{c}') for c in config.code_lengths]
    return Model(states, about['flags'], pipeline.Pixels(**about['pixels']), about['weights'])
  except errors.UsageError:  # of other settings
    raise
  except (OSError, ValueError, LookupError, TypeError) as error:
    raise errors.InputError(f'{source} is missing or damaged: give the training command of its '
                            'run again, which fits anew.') from error


def _arrays(state: Any) -> dict[str, np.ndarray]:
  """The arrays of a state by name, those of an inner one as outer.inner."""
  arrays = {}
  for name, value in state._asdict().items():
    if hasattr(value, '_fields'):
      arrays |= {f'{name}.{inner}': array for inner, array in _arrays(value).items()}
    else:
      arrays[name] = np.asarray(value)
  return arrays


def _state(kind: type, arrays: Mapping[str, np.ndarray], suffix: str, prefix: str = '') -> Any:
  """The state of a class from arrays that `_arrays` named; raises KeyError where one lacks."""
  return kind(**{
      name: _state(field, arrays, suffix, f'{prefix}{name}.') if hasattr(field, '_fields')
      else arrays[f'{prefix}{name}{suffix}']
      for name, field in typing.get_type_hints(kind).items()})
