"""Pretrained weights as variables of our networks, refused unless all of them fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from flax import traverse_util

from mah_jax import errors
from mah_jax.weights import files

TOPS = ('fc.', 'classifier.6.')  # layers of the ImageNet classes, which may stay unused
_KINDS = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias', 'mean': 'running_mean',
          'var': 'running_var'}
_PARTS = {'downsample_conv': 'downsample.0', 'downsample_bn': 'downsample.1'}


def fit(weights: files.Weights, variables: dict[str, Any],
        backbone: str) -> tuple[dict[str, Any], str]:
  """Fills the variables of a backbone from a file.

  Args:
    weights: the content of the file.
    variables: arrays, or their shapes, by collection: 'params' and maybe 'batch_stats'.
    backbone: name of the backbone.

  Returns:
    The variables, of the same structure, and a report of one to three lines.

  Raises:
    errors.InputError: a tensor is missing, has another shape or is not finite, or the file
      is of another network.
  """
  if weights.backbone not in ('', backbone):
    raise errors.InputError(f'{weights.path} holds weights of {weights.backbone}, not of '
                            f'{backbone}: use --backbone={weights.backbone}.')
  expected = traverse_util.flatten_dict(variables)
  names = {path: torchvision_name(path) for path in expected}
  shapes = {names[path]: _to_torch(leaf.shape) for path, leaf in expected.items()}
  _check(weights, shapes, backbone)
  fitted = {path: _to_flax(weights.tensors[name]) for path, name in names.items()}
  return traverse_util.unflatten_dict(fitted), _report(weights, set(shapes), backbone)


def torchvision_name(path: tuple[str, ...]) -> str:
  """('params', 'layer1_0', 'conv1', 'kernel') -> 'layer1.0.conv1.weight'."""
  _, *modules, kind = path
  parts = [_PARTS.get(module) or re.sub(r'_(\d+)$', r'.\1', module) for module in modules]
  return '.'.join([*parts, _KINDS[kind]])


def _to_torch(shape: tuple[int, ...]) -> tuple[int, ...]:
  """Our shape as PyTorch's: [h, w, in, out] -> [out, in, h, w], [in, out] -> [out, in]."""
  return (*shape[:1:-1], *shape[:2]) if len(shape) == 4 else shape[::-1]


def _to_flax(array: np.ndarray) -> np.ndarray:
  """PyTorch's array as ours: [out, in, h, w] -> [h, w, in, out], [out, in] -> [in, out]."""
  return np.ascontiguousarray(array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T)


def _check(weights: files.Weights, shapes: dict[str, tuple[int, ...]], backbone: str) -> None:
  """Raises InputError unless the file has these tensors, and no others but a top layer."""
  in_file = {name: array.shape for name, array in weights.tensors.items()}
  # A deeper network would fit but for its additional layers.
  names = [*shapes, *(name for name in in_file if not name.startswith(TOPS))]
  wrong = [name for name in dict.fromkeys(names) if in_file.get(name) != shapes.get(name)]
  if wrong:
    there, here = (list(table[wrong[0]]) if wrong[0] in table else 'missing'
                   for table in (in_file, shapes))
    remedy = ('use --feature=pooled, which leaves the top layer out'
              if all(name.startswith(TOPS) for name in wrong)
              else 'use the --backbone that the file is of, or another file')
    raise errors.InputError(
        f'{weights.path} does not fit {backbone}: {wrong[0]} is {there} in the file but '
        f'{here} in the network, and {len(wrong) - 1} other tensors differ; {remedy}.')
  for name in shapes:
    if not np.isfinite(weights.tensors[name]).all():
      raise errors.InputError(f'{weights.path} has numbers in {name} that are not finite: get '
                              'the file again.')


def _report(weights: files.Weights, used: set[str], backbone: str) -> str:
  """Says which tensors of the file were used and which were not, a sentence a line."""
  sizes = {name: array.size for name, array in weights.tensors.items()}
  lines = [f'{backbone} starts from {weights.path}: all of its {len(used)} tensors, '
           f'{sum(sizes[name] for name in used):,} numbers, were there.']
  unused = [name for name in sizes if name not in used]
  if unused:
    lines.append(f'{", ".join(unused)} are not used, as the heads read what comes before.')
  if not weights.backbone:
    lines.append(f'The file does not say which network it is of; its tensors fit {backbone}.')
  return '\n'.join(lines)
