"""Networks from images to embeddings: a backbone by name and the heads on it."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from flax import linen as nn

from mah_jax import errors
from mah_jax.models import compact
from mah_jax.models import heads as heads_lib
from mah_jax.models import resnet


def _resnet50(*, feature: str, width: int, axis_name: str | None) -> resnet.ResNet:
  """ResNet-50 v1.5; its width is fixed."""
  return resnet.ResNet(feature=feature, axis_name=axis_name)


def _resnet50_v1(*, feature: str, width: int, axis_name: str | None) -> resnet.ResNet:
  """ResNet-50 v1; its width is fixed."""
  return resnet.ResNet(stride_on_1x1=True, feature=feature, axis_name=axis_name)


def _compact(*, feature: str, width: int, axis_name: str | None) -> compact.Compact:
  """The compact network, which has pooled features only."""
  if feature != 'pooled':
    raise errors.UsageError(
        f'The compact backbone has no {feature!r} feature; use --feature=pooled.')
  return compact.Compact(width=width, axis_name=axis_name)


BACKBONES: dict[str, Callable[..., nn.Module]] = {
    'resnet50': _resnet50,
    'resnet50_v1': _resnet50_v1,
    'compact': _compact,
}


def _choose(table: Mapping[str, Any], flag: str, name: str) -> Any:
  """The entry `name` of a table, or a sentence that lists the names there are."""
  if name not in table:
    raise errors.UsageError(f'--{flag}={name} is unknown; use one of {", ".join(table)}.')
  return table[name]


def make_network(backbone: str, heads: str, code_lengths: Sequence[int], *, feature: str,
                 width: int, axis_name: str | None) -> heads_lib.HashNetwork:
  """Joins a backbone and heads by their names.

  Args:
    backbone: a key of `BACKBONES`.
    heads: a key of `heads.HEADS`.
    code_lengths: bits per head, ascending.
    feature: 'pooled' or 'logits', what the heads read; only the ResNets have logits.
    width: channels of the first block of the compact network.
    axis_name: mapped axis over which training synchronises batch statistics, or None.

  Returns:
    A module, (images [b, h, w, channels], train) -> embeddings ([b, c], ...).
  """
  make_backbone = _choose(BACKBONES, 'backbone', backbone)
  head_cls = _choose(heads_lib.HEADS, 'heads', heads)
  return heads_lib.HashNetwork(
      backbone=make_backbone(feature=feature, width=width, axis_name=axis_name),
      heads=head_cls(tuple(code_lengths)))
