"""The layers that networks consist of, chosen by the platform that computes them."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
from flax import linen as nn

from mah_jax.models.cpu import conv
from mah_jax.models.cpu import norm
from mah_jax.models.cpu import pool

ANY = 'any'  # a platform that is not known yet: layers that every platform compiles
MOMENTUM = 0.9  # share of the running statistics that a training step keeps; PyTorch's 0.1
EPSILON = 1e-5  # number that batch normalisation adds to variances


class Layers(NamedTuple):
  """The layers of one platform; those of all platforms have the same arguments and parameters.

  Conv: makes an nn.Conv, whose arguments it takes.
  max_pool: (x [b, h, w, c], size, padding=0) -> [b, h', w', c], the maximum of each window of
    size x size pixels, 2 pixels apart; `padding` pixels of minus infinity surround the image.
  BatchNorm: makes a module x [..., c] -> [..., c]; it takes `use_running_average`, `axis_name`
    and `name` as nn.BatchNorm does.
  """

  Conv: Callable[..., nn.Conv]
  max_pool: Callable[..., jax.Array]
  BatchNorm: Callable[..., nn.Module]


def choose(platform: str) -> Layers:
  """Chooses the layers for a platform, which has a name of `jax.Device.platform` or is ANY."""
  return _CPU if platform == 'cpu' else _FLAX


def _max_pool(x, size, padding=0):
  around = (padding, padding)
  return nn.max_pool(x, (size, size), (2, 2), (around, around))


_CPU = Layers(
    functools.partial(nn.Conv, conv_general_dilated=conv.convolve), pool.max_pool,
    functools.partial(norm.BatchNorm, momentum=MOMENTUM, epsilon=EPSILON))
_FLAX = Layers(
    nn.Conv, _max_pool,
    functools.partial(nn.BatchNorm, momentum=MOMENTUM, epsilon=EPSILON))
