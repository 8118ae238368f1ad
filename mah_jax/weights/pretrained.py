"""The weights that a backbone starts from, read from a file and fitted to it."""

from __future__ import annotations

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from mah_jax import errors
from mah_jax import storage
from mah_jax.weights import files
from mah_jax.weights import fitting
from mah_jax.weights import imagenet

IMAGE_SIDE = 224  # any side that all backbones accept, as no weight depends on it


class Pretrained(NamedTuple):
  """Weights for a backbone.

  variables: by collection, 'params' and, where the backbone has them, 'batch_stats'.
  mean, std: how the images were normalised that the weights were trained on.
  report: what the file held and what became of it, for a person.
  """
  variables: dict[str, Any]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  report: str


def load(path: str, backbone: str, module: nn.Module, channels: int) -> Pretrained:
  """Reads a file of weights for a backbone.

  Args:
    path: anything that `files.read` accepts, `~` allowed.
    backbone: name of the backbone.
    module: the backbone itself, (images, train) -> features.
    channels: channels of the images that it reads.

  Raises:
    errors.InputError: the file is absent, damaged, or of another network.
  """
  file = storage.path(path)
  if file.exists() and not (file.is_file() or file.is_dir()):
    raise errors.InputError(f'--pretrained={path} is no file, but a pipe or a device: name a file '
                            'of weights.')
  if not file.exists():
    raise errors.InputError(
        f'--pretrained={path} does not exist: correct the path; {imagenet.HINT}.')
  weights = files.read(path)
  variables, report = fitting.fit(weights, variables_of(module, channels), backbone)
  return Pretrained(variables, weights.mean, weights.std, report)


def variables_of(module: nn.Module, channels: int) -> dict[str, Any]:
  """Shapes and types of a backbone's variables, by collection; nothing is computed.

  Args:
    module: (images [b, h, w, channels], train) -> features [b, D].
    channels: channels of the images that it reads.
  """
  image = jax.ShapeDtypeStruct((1, IMAGE_SIDE, IMAGE_SIDE, channels), jnp.float32)
  return jax.eval_shape(functools.partial(module.init, train=False), jax.random.key(0), image)
