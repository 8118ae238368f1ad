"""The networks of torchvision in plain PyTorch, which take the weights of those in Flax."""

import re

import numpy as np
import torch
from torch import nn


class BasicBlock(nn.Module):
  """3x3 and 3x3 with a shortcut."""

  expansion = 1

  def __init__(self, inputs: int, channels: int, stride: int, v1: bool):
    super().__init__()
    self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
    self.bn1 = nn.BatchNorm2d(channels)
    self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    self.bn2 = nn.BatchNorm2d(channels)
    self.downsample = make_shortcut(inputs, channels, stride)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(self.bn1(self.conv1(x)))
    return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
  """1x1, 3x3, 1x1 with a shortcut; `v1` puts the stride on the first of them."""

  expansion = 4

  def __init__(self, inputs: int, channels: int, stride: int, v1: bool):
    super().__init__()
    self.conv1 = nn.Conv2d(inputs, channels, 1, stride if v1 else 1, bias=False)
    self.bn1 = nn.BatchNorm2d(channels)
    self.conv2 = nn.Conv2d(channels, channels, 3, 1 if v1 else stride, padding=1, bias=False)
    self.bn2 = nn.BatchNorm2d(channels)
    self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
    self.bn3 = nn.BatchNorm2d(4 * channels)
    self.downsample = make_shortcut(inputs, 4 * channels, stride)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(self.bn1(self.conv1(x)))
    y = torch.relu(self.bn2(self.conv2(y)))
    return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def make_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
  if stride == 1 and inputs == outputs:
    return nn.Identity()
  return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                       nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
  """Four stages of blocks; returns pooled features and logits, as all networks here."""

  def __init__(self, block: type[BasicBlock] | type[Bottleneck], blocks: tuple[int, ...],
               v1: bool = False):
    super().__init__()
    self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    self.bn1 = nn.BatchNorm2d(64)
    inputs = 64
    for stage, channels in enumerate((64, 128, 256, 512)):
      layers = []
      for i in range(blocks[stage]):
        stride = 2 if stage > 0 and i == 0 else 1
        layers.append(block(inputs, channels, stride, v1))
        inputs = block.expansion * channels
      self.add_module(f'layer{stage + 1}', nn.Sequential(*layers))
    self.fc = nn.Linear(inputs, 1000)

  def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.relu(self.bn1(self.conv1(images)))
    x = nn.functional.max_pool2d(x, 3, 2, 1)
    for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
      x = stage(x)
    pooled = x.mean(dim=(2, 3))
    return pooled, self.fc(pooled)


class AlexNet(nn.Module):

  def __init__(self):
    super().__init__()
    self.features = nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(3, 2))
    self.classifier = nn.Sequential(
        nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(),
        nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, 1000))

  def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = nn.functional.adaptive_avg_pool2d(self.features(images), 6)
    pooled = self.classifier[:6](torch.flatten(x, 1))
    return pooled, self.classifier[6](pooled)


class VGG(nn.Module):

  def __init__(self, layers: tuple[int | str, ...]):
    super().__init__()
    modules, inputs = [], 3
    for layer in layers:
      if layer == 'M':
        modules.append(nn.MaxPool2d(2))
      else:
        modules += [nn.Conv2d(inputs, layer, 3, padding=1), nn.ReLU()]
        inputs = layer
    self.features = nn.Sequential(*modules)
    self.classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(),
        nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(),
        nn.Linear(4096, 1000))

  def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = nn.functional.adaptive_avg_pool2d(self.features(images), 7)
    pooled = self.classifier[:5](torch.flatten(x, 1))
    return pooled, self.classifier[5:](pooled)


VGG_A = (64, 'M', 128, 'M', 256, 256, 'M', 512, 512, 'M', 512, 512, 'M')
VGG_D = (64, 64, 'M', 128, 128, 'M', 256, 256, 256, 'M', 512, 512, 512, 'M',
         512, 512, 512, 'M')
NETWORKS = {
    'resnet18': lambda: ResNet(BasicBlock, (2, 2, 2, 2)),
    'resnet34': lambda: ResNet(BasicBlock, (3, 4, 6, 3)),
    'resnet50': lambda: ResNet(Bottleneck, (3, 4, 6, 3)),
    'resnet50_v1': lambda: ResNet(Bottleneck, (3, 4, 6, 3), v1=True),
    'alexnet': AlexNet,
    'vgg11': lambda: VGG(VGG_A),
    'vgg16': lambda: VGG(VGG_D),
}


def torch_name(path: str) -> str:
  """'params/layer1_0/downsample_conv/kernel' -> 'layer1.0.downsample.0.weight'."""
  name = path.split('/', 1)[1].replace('/', '.')
  name = re.sub(r'^(layer\d|features|classifier)_', r'\1.', name)
  name = name.replace('downsample_conv', 'downsample.0')
  name = name.replace('downsample_bn', 'downsample.1')
  kinds = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias',
           'mean': 'running_mean', 'var': 'running_var'}
  module, kind = name.rsplit('.', 1)
  return f'{module}.{kinds[kind]}'


def make(name: str, flat: dict[str, np.ndarray], dtype: torch.dtype) -> nn.Module:
  """A PyTorch network with the given Flax variables, all of them used."""
  with torch.device('meta'):  # weights that are replaced need no memory
    model = NETWORKS[name]()
  state = {name: torch.tensor(0) for name in model.state_dict()
           if name.endswith('num_batches_tracked')}
  for path, value in flat.items():
    # A kernel [height, width, in, out] becomes [out, in, height, width]; a matrix is transposed.
    axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[value.ndim]
    state[torch_name(path)] = torch.tensor(value.transpose(axes), dtype=dtype)
  model.load_state_dict(state, strict=True, assign=True)
  return model


def run(model: nn.Module, images: np.ndarray) -> dict[str, np.ndarray]:
  """Pooled features and logits of images [b, h, w, 3], in the type and mode of the model."""
  x = torch.from_numpy(images).permute(0, 3, 1, 2).to(next(model.parameters()).dtype)
  with torch.no_grad():
    pooled, logits = model(x)
  return {'pooled': pooled.numpy(), 'logits': logits.numpy()}
