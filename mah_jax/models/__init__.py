"""Networks from images to embeddings: backbones by name; heads.py completes them."""

from collections.abc import Callable

from flax import linen as nn

from mah_jax import errors
from mah_jax.models import alexnet
from mah_jax.models import compact
from mah_jax.models import resnet
from mah_jax.models import vgg


def _fixed(network: Callable[..., nn.Module], **settings) -> Callable[..., nn.Module]:
  """Maker of a network that torchvision defines, whose width cannot be chosen."""
  return lambda *, feature, width, axis_name: network(
      feature=feature, axis_name=axis_name, **settings)


def _compact(*, feature: str, width: int, axis_name: str | None) -> compact.Compact:
  """The compact network, which has pooled features only."""
  if feature != 'pooled':
    raise errors.UsageError(
        f'The compact backbone has no {feature!r} feature; use --feature=pooled.')
  return compact.Compact(width=width, axis_name=axis_name)


BACKBONES: dict[str, Callable[..., nn.Module]] = {
    'resnet18': _fixed(resnet.ResNet, stage_sizes=(2, 2, 2, 2), basic_blocks=True),
    'resnet34': _fixed(resnet.ResNet, stage_sizes=(3, 4, 6, 3), basic_blocks=True),
    'resnet50': _fixed(resnet.ResNet, stage_sizes=(3, 4, 6, 3)),
    'resnet50_v1': _fixed(resnet.ResNet, stage_sizes=(3, 4, 6, 3), stride_on_1x1=True),
    'alexnet': _fixed(alexnet.AlexNet),
    'vgg11': _fixed(vgg.VGG, stage_sizes=(1, 1, 2, 2, 2)),
    'vgg16': _fixed(vgg.VGG, stage_sizes=(2, 2, 3, 3, 3)),
    'compact': _compact,
}


def make_backbone(name: str, *, feature: str, width: int, axis_name: str | None) -> nn.Module:
  """A backbone by its name.

  Args:
    name: a key of `BACKBONES`.
    feature: 'pooled' or 'logits', what it returns; the compact network has no logits.
    width: channels of the first block of the compact network.
    axis_name: mapped axis over which training spreads the batch, or None.

  Returns:
    A module, (images [b, h, w, channels], train) -> features [b, D].
  """
  return BACKBONES[name](feature=feature, width=width, axis_name=axis_name)
