"""A small Keras ResNet in TensorFlow.js format, and Keras's way to evaluate such a model."""

import io
import json
import pathlib
import tarfile

import numpy as np
import random_weights

BLOCKS = ('2a', '2b', '3a')  # of our ResNet with stage_sizes=(2, 1)
NUM_SHARDS = 3


class Graph:
  """Layers added one by one, with the configurations that the evaluation needs."""

  def __init__(self):
    self.layers, self.arrays, self.channels = [], {}, {}

  def add(self, class_name, name, inputs, **config):
    self.layers.append({'class_name': class_name, 'name': name,
                        'config': {'name': name, **config},
                        'inbound_nodes': [[[i, 0, 0, {}] for i in inputs]] if inputs else []})
    self.channels[name] = self.channels[inputs[0]] if inputs else 3
    return name

  def weight(self, layer, kind, shape, low, high):
    name = f'{layer}/{kind}'
    self.arrays[name] = random_weights.uniform(name, shape, low, high)

  def conv(self, name, x, filters, size, strides, padding='valid'):
    bound = (6 / (size * size * self.channels[x])) ** 0.5
    self.weight(name, 'kernel', (size, size, self.channels[x], filters), -bound, bound)
    self.weight(name, 'bias', (filters,), -0.5, 0.5)
    self.add('Conv2D', name, [x], filters=filters, kernel_size=[size, size],
             strides=[strides, strides], padding=padding, use_bias=True)
    self.channels[name] = filters
    return name

  def norm(self, name, x):
    for kind, low, high in (('gamma', 0.5, 1.5), ('beta', -0.5, 0.5),
                            ('moving_mean', -0.5, 0.5), ('moving_variance', 0.05, 0.5)):
      self.weight(name, kind, (self.channels[x],), low, high)
    epsilon = 0.01 + 0.02 * (len(self.layers) % 7)  # large and different: a wrong one shows
    return self.add('BatchNormalization', name, [x], epsilon=epsilon)

  def relu(self, x):
    return self.add('Activation', f'activation_{len(self.layers)}', [x], activation='relu')


def make(width: int = 64, num_classes: int = 1000) -> tuple[list[dict], dict[str, np.ndarray]]:
  """Layers and arrays of a ResNet whose names and strides are those of Keras's ResNet-50."""
  g = Graph()
  x = g.add('InputLayer', 'input_1', [])
  x = g.add('ZeroPadding2D', 'conv1_pad', [x], padding=[[3, 3], [3, 3]])
  x = g.relu(g.norm('bn_conv1', g.conv('conv1', x, width, 7, 2)))
  x = g.add('ZeroPadding2D', 'pool1_pad', [x], padding=[[1, 1], [1, 1]])
  x = g.add('MaxPooling2D', 'max_pooling2d', [x], pool_size=[3, 3], strides=[2, 2])
  for block in BLOCKS:
    filters = width * 2 ** (int(block[0]) - 2)
    first, strides = block[1] == 'a', 2 if block == '3a' else 1

    def unit(branch, x, filters, size, strides, padding='valid', block=block):
      conv = g.conv(f'res{block}_branch{branch}', x, filters, size, strides, padding)
      return g.norm(f'bn{block}_branch{branch}', conv)

    y = g.relu(unit('2a', x, filters, 1, strides))
    y = g.relu(unit('2b', y, filters, 3, 1, 'same'))
    y = unit('2c', y, 4 * filters, 1, 1)
    x = unit('1', x, 4 * filters, 1, strides) if first else x
    x = g.relu(g.add('Add', f'add_{block}', [y, x]))
  x = g.add('GlobalAveragePooling2D', 'avg_pool', [x])
  g.weight('fc1000', 'kernel', (g.channels[x], num_classes), -0.2, 0.2)
  g.weight('fc1000', 'bias', (num_classes,), -0.5, 0.5)
  g.add('Dense', 'fc1000', [x], units=num_classes, activation='softmax')
  return g.layers, g.arrays


def files(width: int = 64, num_classes: int = 1000) -> dict[str, bytes]:
  """model.json and its shards; a shard ends anywhere, even inside a number."""
  layers, arrays = make(width, num_classes)
  arrays = dict(sorted(arrays.items()))
  content = b''.join(array.tobytes() for array in arrays.values())
  size = -(-len(content) // NUM_SHARDS) | 1
  names = [f'group1-shard{i + 1}of{NUM_SHARDS}.bin' for i in range(NUM_SHARDS)]
  specs = [{'name': name, 'shape': list(array.shape), 'dtype': 'float32'}
           for name, array in arrays.items()]
  description = {
      'format': 'layers-model',
      'modelTopology': {'model_config': {'class_name': 'Model', 'config': {'layers': layers}}},
      'weightsManifest': [{'paths': names, 'weights': specs}]}
  shards = {name: content[i * size:(i + 1) * size] for i, name in enumerate(names)}
  return {**shards, 'model.json': json.dumps(description).encode()}


def write_archive(path: pathlib.Path, contents: dict[str, bytes]) -> None:
  """The registry's tarball: the shards come before model.json, among other files."""
  others = {'package/package.json': b'{}', 'package/assets/labels.json': b'[]'}
  inside = {f'package/ResNet50/{name}': content for name, content in contents.items()}
  with tarfile.open(path, 'w:gz', compresslevel=1) as tar:
    for name, content in (others | inside).items():
      member = tarfile.TarInfo(name)
      member.size = len(content)
      tar.addfile(member, io.BytesIO(content))


def evaluate(layers: list[dict], arrays: dict[str, np.ndarray], images: np.ndarray) -> dict:
  """Outputs of every layer by name, in float64, for what Keras would be given [b, h, w, 3]."""
  outputs = {}
  for layer in layers:
    inputs = [outputs[node[0]] for node in layer['inbound_nodes'][0]] if outputs else [
        np.asarray(images, np.float64)]
    kinds = {name.split('/')[1]: np.asarray(array, np.float64)
             for name, array in arrays.items() if name.split('/')[0] == layer['name']}
    outputs[layer['name']] = EVALUATE[layer['class_name']](*inputs, layer['config'], kinds)
  return outputs


def _conv(x, config, a):
  if config['padding'] == 'same':  # of a 3 x 3 convolution with stride 1
    x = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
  windows = np.lib.stride_tricks.sliding_window_view(x, config['kernel_size'], axis=(1, 2))
  step = config['strides'][0]
  return np.einsum('nyxchw,hwco->nyxo', windows[:, ::step, ::step], a['kernel'],
                   optimize=True) + a['bias']


def _norm(x, config, a):
  deviation = np.sqrt(a['moving_variance'] + config['epsilon'])
  return a['gamma'] * (x - a['moving_mean']) / deviation + a['beta']


def _max_pool(x, config, a):
  windows = np.lib.stride_tricks.sliding_window_view(x, config['pool_size'], axis=(1, 2))
  return windows[:, ::2, ::2].max(axis=(-1, -2))


EVALUATE = {
    'InputLayer': lambda x, config, a: x,
    'ZeroPadding2D': lambda x, config, a: np.pad(x, [(0, 0), *config['padding'], (0, 0)]),
    'Conv2D': _conv,
    'BatchNormalization': _norm,
    'Activation': lambda x, config, a: np.maximum(x, 0),
    'MaxPooling2D': _max_pool,
    'Add': lambda x, y, config, a: x + y,
    'GlobalAveragePooling2D': lambda x, config, a: x.mean(axis=(1, 2)),
    'Dense': lambda x, config, a: x @ a['kernel'] + a['bias'],  # the logits of its softmax
}
