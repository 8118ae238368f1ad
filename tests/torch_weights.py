"""Makes tests/data/weights_*.pth; run by hand where PyTorch is installed."""

import collections
import pathlib

import torch


def state_dict() -> collections.OrderedDict:
  """Tensors of every kind that files hold; test_weights_pth.py knows their values."""
  base = torch.arange(60, dtype=torch.float32) / 8
  module = torch.nn.BatchNorm1d(3)  # its state dict brings a counter and metadata
  state = module.state_dict()
  state |= {
      'plain': base.reshape(3, 4, 5).clone(),
      'transposed': base.reshape(3, 4, 5).clone().permute(2, 0, 1),
      'window': base[7:19:3],
      'rest': base[20:40].reshape(4, 5)[:, 1:3],
      'half': (base[:6] - 2).half(),
      'bfloat16': (base[:6] - 2).bfloat16(),
      'double': (base[:6] - 2).double().reshape(2, 3),
      'parameter': torch.nn.Parameter(base[:4].clone()),
      'scalar': torch.tensor(2.5),
      'empty': torch.zeros(0, 3),
  }
  return state


def main() -> None:
  folder = pathlib.Path(__file__).parent / 'data'
  for name, is_zip in (('zip', True), ('legacy', False)):
    torch.save(state_dict(), folder / f'weights_{name}.pth',
               _use_new_zipfile_serialization=is_zip)


if __name__ == '__main__':
  main()
