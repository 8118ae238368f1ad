"""Compares the Flax ResNet-50 with one written in plain PyTorch, given the same weights.

The reference is PyTorch in float64. Flax is judged in float32 where it evaluates and in
float64 where it trains: batch norm over few values magnifies rounding, so that there
PyTorch's own float32 misses the tolerance too; both float32 errors are printed.

PYTHONPATH=.:tests python benchmarks/resnet_torch.py

It needs torch beside the packages of the project. It ends with code 1 when a
number is further from PyTorch's than `TOLERANCE` standard deviations of its array.
"""

import argparse
import pathlib
import re
import sys

import jax
import numpy as np
import random_weights
import torch
from flax import traverse_util

from mah_jax.models import resnet

TOLERANCE = 1e-4
REFERENCE = pathlib.Path(random_weights.__file__).parent / 'data/resnet50_reference.npz'
REFERENCE_SEED = 0
REFERENCE_SHAPE = (2, 64, 64, 3)
REFERENCE_POOLED = 256  # stored values per image
REFERENCE_STATISTICS = ('bn1/mean', 'bn1/var', 'layer2_0/downsample_bn/mean',
                        'layer3_0/bn2/var', 'layer4_2/bn3/mean', 'layer4_2/bn3/var')


class Bottleneck(torch.nn.Module):
  """1x1, 3x3, 1x1 with a shortcut; `v1` puts the stride on the first of them."""

  def __init__(self, inputs: int, channels: int, stride: int, v1: bool):
    super().__init__()
    outputs = 4 * channels
    self.conv1 = torch.nn.Conv2d(inputs, channels, 1, stride if v1 else 1, bias=False)
    self.bn1 = torch.nn.BatchNorm2d(channels)
    self.conv2 = torch.nn.Conv2d(channels, channels, 3, 1 if v1 else stride, padding=1,
                                 bias=False)
    self.bn2 = torch.nn.BatchNorm2d(channels)
    self.conv3 = torch.nn.Conv2d(channels, outputs, 1, bias=False)
    self.bn3 = torch.nn.BatchNorm2d(outputs)
    self.downsample = torch.nn.Identity()
    if stride > 1 or inputs != outputs:
      self.downsample = torch.nn.Sequential(
          torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False),
          torch.nn.BatchNorm2d(outputs))

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(self.bn1(self.conv1(x)))
    y = torch.relu(self.bn2(self.conv2(y)))
    return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(torch.nn.Module):
  """ResNet-50 with the names of torchvision; returns pooled features and logits."""

  def __init__(self, v1: bool):
    super().__init__()
    self.conv1 = torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    self.bn1 = torch.nn.BatchNorm2d(64)
    inputs = 64
    for stage, (channels, blocks) in enumerate(
        [(64, 3), (128, 4), (256, 6), (512, 3)], start=1):
      layers = []
      for block in range(blocks):
        stride = 2 if stage > 1 and block == 0 else 1
        layers.append(Bottleneck(inputs, channels, stride, v1))
        inputs = 4 * channels
      self.add_module(f'layer{stage}', torch.nn.Sequential(*layers))
    self.fc = torch.nn.Linear(inputs, 1000)

  def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.relu(self.bn1(self.conv1(images)))
    x = torch.nn.functional.max_pool2d(x, 3, 2, 1)
    for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
      x = stage(x)
    pooled = x.mean(dim=(2, 3))
    return pooled, self.fc(pooled)


def torch_name(path: str) -> str:
  """'params/layer1_0/downsample_conv/kernel' -> 'layer1.0.downsample.0.weight'."""
  name = path.split('/', 1)[1].replace('/', '.')
  name = re.sub(r'^(layer\d)_', r'\1.', name)
  name = name.replace('downsample_conv', 'downsample.0')
  name = name.replace('downsample_bn', 'downsample.1')
  kinds = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias',
           'mean': 'running_mean', 'var': 'running_var'}
  module, kind = name.rsplit('.', 1)
  return f'{module}.{kinds[kind]}'


def make_torch(flat: dict[str, np.ndarray], v1: bool) -> ResNet50:
  """A PyTorch network with the given Flax variables, all of them used."""
  model = ResNet50(v1)
  state = {name: value for name, value in model.state_dict().items()
           if name.endswith('num_batches_tracked')}
  for path, value in flat.items():
    # Height, width, in, out becomes out, in, height, width; a matrix is transposed.
    axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[value.ndim]
    state[torch_name(path)] = torch.from_numpy(value.transpose(axes).copy())
  model.load_state_dict(state, strict=True)
  return model


def run_torch(flat: dict[str, np.ndarray], images: np.ndarray, v1: bool,
              train: bool, dtype: torch.dtype) -> dict[str, np.ndarray]:
  """Pooled features, logits and, after training mode, the new running statistics.

  PyTorch adds the unbiased batch variance to the running one and Flax the biased one; the
  statistics returned are PyTorch's with (n - 1) / n put on the part that the batch added.
  """
  model = make_torch(flat, v1).to(dtype).train(train)
  counts = {}

  def count(name):
    def hook(module, inputs, output):
      counts[name] = inputs[0].numel() // inputs[0].shape[1]
    return hook

  for name, module in model.named_modules():
    if isinstance(module, torch.nn.BatchNorm2d):
      module.register_forward_hook(count(name))
  with torch.no_grad():
    pooled, logits = model(torch.from_numpy(images).permute(0, 3, 1, 2).to(dtype))
  results = {'pooled': pooled.numpy(), 'logits': logits.numpy()}
  if train:
    state = model.state_dict()
    for path in (p for p in flat if p.startswith('batch_stats/')):
      name = torch_name(path)
      new = state[name].numpy().astype(np.float64)
      if path.endswith('/var'):
        n = counts[name.rsplit('.', 1)[0]]
        kept = 0.9 * flat[path].astype(np.float64)
        new = kept + (new - kept) * (n - 1) / n
      results[path.removeprefix('batch_stats/')] = new
  return results


def run_flax(variables: dict, images: np.ndarray, v1: bool, train: bool,
             dtype: np.dtype) -> dict[str, np.ndarray]:
  """The same quantities from the network of the project."""

  @jax.jit
  def features(variables, images):
    top = resnet.ResNet(stride_on_1x1=v1, feature='logits')
    without_top = resnet.ResNet(stride_on_1x1=v1, feature='pooled')
    logits, updates = top.apply(variables, images, train=train, mutable=['batch_stats'])
    pooled, _ = without_top.apply(variables, images, train=train, mutable=['batch_stats'])
    return pooled, logits, updates['batch_stats'] if train else {}

  with jax.enable_x64(dtype == np.float64):
    inputs = jax.tree.map(lambda x: x.astype(dtype), (variables, images))
    pooled, logits, statistics = features(*inputs)
    results = {'pooled': pooled, 'logits': logits}
    results |= traverse_util.flatten_dict(statistics, sep='/')
    return {name: np.asarray(value) for name, value in results.items()}


def scaled_errors(results: dict, reference: dict) -> dict[str, float]:
  """`random_weights.scaled_error` of each array; both must hold the same ones."""
  if results.keys() != reference.keys():
    raise ValueError(f'different arrays: {sorted(results.keys() ^ reference.keys())}')
  return {name: random_weights.scaled_error(results[name], reference[name])
          for name in reference}


def compare_case(variables: dict, flat: dict[str, np.ndarray], images: np.ndarray,
                 v1: bool, train: bool) -> bool:
  """Prints the errors of one case; True when the judged ones are in the tolerance."""
  reference = run_torch(flat, images, v1, train, torch.float64)
  judged = np.float64 if train else np.float32
  errors = scaled_errors(run_flax(variables, images, v1, train, judged), reference)
  worst = max(errors, key=errors.get)
  print(f'{"v1" if v1 else "v1.5":4} {"train" if train else "eval":5} '
        f'{images.shape[1]:3} px {judged.__name__}: logits {errors["logits"]:.1e}, '
        f'pooled {errors["pooled"]:.1e}, '
        f'worst of {len(errors)}: {worst} {errors[worst]:.1e}')
  if train:
    single = {
        'Flax': run_flax(variables, images, v1, train, np.float32),
        'PyTorch': run_torch(flat, images, v1, train, torch.float32),
    }
    for framework, results in single.items():
      errors32 = scaled_errors(results, reference)
      print(f'  {framework} in float32, not judged: worst {max(errors32.values()):.1e}')
  return errors[worst] <= TOLERANCE


def write_reference(flat: dict[str, np.ndarray]) -> None:
  """Stores PyTorch's outputs for the ordinary tests, which run without PyTorch."""
  images = random_weights.images(REFERENCE_SEED, REFERENCE_SHAPE)
  arrays = {'seed': np.int64(REFERENCE_SEED), 'shape': np.array(REFERENCE_SHAPE)}
  for version, v1 in (('v1.5', False), ('v1', True)):
    results = run_torch(flat, images, v1, False, torch.float64)
    arrays[f'{version}/eval/logits'] = results['logits'].astype(np.float32)
    pooled = results['pooled'][:, :REFERENCE_POOLED]
    arrays[f'{version}/eval/pooled'] = pooled.astype(np.float32)
  results = run_torch(flat, images, False, True, torch.float64)
  for name in ('logits', *REFERENCE_STATISTICS):
    arrays[f'v1.5/train/{name}'] = results[name].astype(np.float32)
  np.savez_compressed(REFERENCE, **arrays)
  print(f'wrote {REFERENCE.name}, {REFERENCE.stat().st_size} bytes')


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--write_reference', action='store_true',
                      help='store the outputs that tests/test_resnet.py compares with')
  arguments = parser.parse_args()
  variables = random_weights.variables(resnet.ResNet(feature='logits'), REFERENCE_SHAPE)
  flat = traverse_util.flatten_dict(variables, sep='/')
  if arguments.write_reference:
    write_reference(flat)
  agree = True
  for pixels, b in ((64, 4), (224, 3)):
    images = random_weights.images(pixels, (b, pixels, pixels, 3))
    for v1 in (False, True):
      for train in (False, True):
        agree &= compare_case(variables, flat, images, v1, train)
  print('agree' if agree else f'DISAGREE: an error is above {TOLERANCE}')
  return 0 if agree else 1


if __name__ == '__main__':
  sys.exit(main())
