"""Networks from images to embeddings: backbones by name, which heads.py completes."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from flax import linen as nn

from mah_jax import errors
from mah_jax.models import alexnet
from mah_jax.models import compact
from mah_jax.models import resnet
from mah_jax.models import vgg

DEFAULT = 'resnet50'  # the backbone of a run that names none


class Backbone(NamedTuple):
  """A backbone as the rest of the program sees it.

  make: (feature, axis_name, platform) -> module; takes `width` too where that can be chosen.
  has_width: True if the width can be chosen, False if torchvision defines it.
  has_batch_norm: whether it normalises by statistics of the batch.
  stages: how many parts it has one after another, the first of which can be frozen; 0: none can.
  """

  make: Callable[..., nn.Module]
  has_width: bool = False
  has_batch_norm: bool = True
  stages: int = 0


def _make_compact(*, feature: str, width: int, axis_name: str | None,
                  platform: str) -> compact.Compact:
  """The compact network, which has pooled features only."""
  if feature != 'pooled':
    raise errors.UsageError(
        f'The compact backbone has no {feature!r} feature; use --feature=pooled.')
  return compact.Compact(width=width, axis_name=axis_name, platform=platform)


BACKBONES: dict[str, Backbone] = {
    'resnet18': Backbone(functools.partial(
        resnet.ResNet, stage_sizes=(2, 2, 2, 2), basic_blocks=True), stages=4),
    'resnet34': Backbone(functools.partial(
        resnet.ResNet, stage_sizes=(3, 4, 6, 3), basic_blocks=True), stages=4),
    'resnet50': Backbone(functools.partial(resnet.ResNet, stage_sizes=(3, 4, 6, 3)), stages=4),
    'resnet50_v1': Backbone(functools.partial(
        resnet.ResNet, stage_sizes=(3, 4, 6, 3), stride_on_1x1=True), stages=4),
    'alexnet': Backbone(alexnet.AlexNet, has_batch_norm=False),
    'vgg11': Backbone(functools.partial(vgg.VGG, stage_sizes=(1, 1, 2, 2, 2)),
                      has_batch_norm=False),
    'vgg16': Backbone(functools.partial(vgg.VGG, stage_sizes=(2, 2, 3, 3, 3)),
                      has_batch_norm=False),
    'compact': Backbone(_make_compact, has_width=True),
}


def make_backbone(name: str, *, feature: str, width: int, axis_name: str | None,
                  platform: str, synchronise: bool = True, frozen_stages: int = 0) -> nn.Module:
  """A backbone by its name.

  Args:
    name: a key of `BACKBONES`.
    feature: 'pooled' or 'logits', the features that it returns; the compact network has no logits.
    width: channels of the first block; only a backbone whose width can be chosen reads it.
    axis_name: mapped axis over which training spreads the batch, or None.
    platform: the platform that computes it, a name of `jax.Device.platform`; see `layers.choose`.
    synchronise: normalise by statistics of the whole batch, not by those of a device's part.
    frozen_stages: so many of its `Backbone.stages`, the first ones, pass no gradient.

  Returns:
    A module, (images [b, h, w, channels], train) -> features [b, D].
  """
  backbone = BACKBONES[name]
  chosen = {'width': width} if backbone.has_width else {}
  if backbone.stages:
    chosen['frozen_stages'] = frozen_stages
  if backbone.has_batch_norm and not synchronise:
    axis_name = None  # such backbones need it for nothing else
  return backbone.make(feature=feature, axis_name=axis_name, platform=platform, **chosen)
