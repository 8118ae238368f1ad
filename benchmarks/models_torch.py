"""Compares the Flax backbones with ones written in plain PyTorch, given the same weights.

The reference is PyTorch in float64. Flax is judged in float32 where it evaluates and in
float64 where it trains: batch norm over few values magnifies rounding, so that there
PyTorch's own float32 misses the tolerance too; both float32 errors are printed. Networks
with dropout are compared in evaluation only, for their masks are drawn differently.

PYTHONPATH=.:tests python benchmarks/models_torch.py

It needs torch beside the packages of the project. It ends with code 1 when a
number is further from PyTorch's than `TOLERANCE` standard deviations of its array.
"""

import argparse
import pathlib
import sys

import flax_models
import jax
import numpy as np
import random_weights
import torch
import torch_models
from flax import traverse_util

TOLERANCE = 1e-4
SHAPES = ((4, 64, 64, 3), (2, 96, 128, 3), (3, 224, 224, 3))
FOLDER = pathlib.Path(random_weights.__file__).parent / 'data'
RESNET50 = FOLDER / 'resnet50_reference.npz'
BACKBONES = FOLDER / 'backbones_reference.npz'
STORED_SEED = 0
STORED_POOLED = 256  # values per image
RESNET50_SHAPE = (2, 64, 64, 3)
RESNET50_STATISTICS = ('bn1/mean', 'bn1/var', 'layer2_0/downsample_bn/mean',
                       'layer3_0/bn2/var', 'layer4_2/bn3/mean', 'layer4_2/bn3/var')
BACKBONES_SHAPE = (2, 96, 128, 3)
BACKBONES_STORED = ('resnet18', 'alexnet', 'vgg11')


def draw(name: str) -> tuple[dict, dict[str, np.ndarray]]:
  """Random variables of a network, as a tree and flat by path."""
  variables = random_weights.variables(flax_models.make(name), SHAPES[0])
  return variables, traverse_util.flatten_dict(variables, sep='/')


def run_torch(name: str, flat: dict[str, np.ndarray], images: np.ndarray, train: bool,
              dtype: torch.dtype) -> dict[str, np.ndarray]:
  """Pooled features, logits and, after training mode, the new running statistics.

  PyTorch adds the unbiased batch variance to the running one and Flax the biased one; the
  statistics returned are PyTorch's with (n - 1) / n put on the part that the batch added.
  """
  model = torch_models.make(name, flat, dtype).train(train)
  counts = {}

  def count(name):
    def hook(module, inputs, output):
      counts[name] = inputs[0].numel() // inputs[0].shape[1]
    return hook

  for part, module in model.named_modules():
    if isinstance(module, torch.nn.BatchNorm2d):
      module.register_forward_hook(count(part))
  results = torch_models.run(model, images)
  if train:
    state = model.state_dict()
    for path in (p for p in flat if p.startswith('batch_stats/')):
      key = torch_models.torch_name(path)
      new = state[key].numpy().astype(np.float64)
      if path.endswith('/var'):
        n = counts[key.rsplit('.', 1)[0]]
        kept = 0.9 * flat[path].astype(np.float64)
        new = kept + (new - kept) * (n - 1) / n
      results[path.removeprefix('batch_stats/')] = new
  return results


def run_flax(name: str, variables: dict, images: np.ndarray, train: bool,
             dtype: np.dtype) -> dict[str, np.ndarray]:
  """The same quantities from the network of the project."""
  with jax.enable_x64(dtype == np.float64):
    inputs = jax.tree.map(lambda x: x.astype(dtype), (variables, images))
    return flax_models.run(name, *inputs, train=train)


def scaled_errors(results: dict, reference: dict) -> dict[str, float]:
  """`random_weights.scaled_error` of each array; both must hold the same ones."""
  if results.keys() != reference.keys():
    raise ValueError(f'different arrays: {sorted(results.keys() ^ reference.keys())}')
  return {name: random_weights.scaled_error(results[name], reference[name])
          for name in reference}


def compare_case(name: str, variables: dict, flat: dict[str, np.ndarray],
                 images: np.ndarray, train: bool) -> bool:
  """Prints the errors of one case; True when the judged ones are in the tolerance."""
  reference = run_torch(name, flat, images, train, torch.float64)
  judged = np.float64 if train else np.float32
  errors = scaled_errors(run_flax(name, variables, images, train, judged), reference)
  worst = max(errors, key=errors.get)
  print(f'{name:11} {"train" if train else "eval":5} '
        f'{images.shape[1]:3} x {images.shape[2]:3} px {judged.__name__}: '
        f'logits {errors["logits"]:.1e}, pooled {errors["pooled"]:.1e}, '
        f'worst of {len(errors)}: {worst} {errors[worst]:.1e}', flush=True)
  if train:
    single = {
        'Flax': run_flax(name, variables, images, train, np.float32),
        'PyTorch': run_torch(name, flat, images, train, torch.float32),
    }
    for framework, results in single.items():
      errors32 = scaled_errors(results, reference)
      print(f'  {framework} in float32, not judged: worst {max(errors32.values()):.1e}')
  return errors[worst] <= TOLERANCE


def evaluated(name: str, images: np.ndarray) -> dict[str, np.ndarray]:
  """What the ordinary tests, which run without PyTorch, compare evaluation with."""
  results = run_torch(name, draw(name)[1], images, False, torch.float64)
  return {'logits': results['logits'].astype(np.float32),
          'pooled': results['pooled'][:, :STORED_POOLED].astype(np.float32)}


def write_reference() -> None:
  """Stores PyTorch's outputs for the ordinary tests."""
  images = random_weights.images(STORED_SEED, RESNET50_SHAPE)
  arrays = {'seed': np.int64(STORED_SEED), 'shape': np.array(RESNET50_SHAPE)}
  for version, name in (('v1.5', 'resnet50'), ('v1', 'resnet50_v1')):
    arrays |= {f'{version}/eval/{kind}': values
               for kind, values in evaluated(name, images).items()}
  results = run_torch('resnet50', draw('resnet50')[1], images, True, torch.float64)
  for key in ('logits', *RESNET50_STATISTICS):
    arrays[f'v1.5/train/{key}'] = results[key].astype(np.float32)
  np.savez_compressed(RESNET50, **arrays)

  images = random_weights.images(STORED_SEED, BACKBONES_SHAPE)
  arrays = {'seed': np.int64(STORED_SEED), 'shape': np.array(BACKBONES_SHAPE)}
  for name in BACKBONES_STORED:
    arrays |= {f'{name}/{kind}': values for kind, values in evaluated(name, images).items()}
  np.savez_compressed(BACKBONES, **arrays)
  for path in (RESNET50, BACKBONES):
    print(f'wrote {path.name}, {path.stat().st_size} bytes')


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--write_reference', action='store_true',
                      help='store the outputs that the ordinary tests compare with')
  if parser.parse_args().write_reference:
    write_reference()
  agree = True
  for name in torch_models.NETWORKS:
    variables, flat = draw(name)
    for shape in SHAPES:
      images = random_weights.images(shape[1], shape)
      for train in (False, True) if 'batch_stats' in variables else (False,):
        agree &= compare_case(name, variables, flat, images, train)
    del variables, flat  # those of VGG fill half a gigabyte
  print('agree' if agree else f'DISAGREE: an error is above {TOLERANCE}')
  return 0 if agree else 1


if __name__ == '__main__':
  sys.exit(main())
