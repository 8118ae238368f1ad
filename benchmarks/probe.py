"""Shows that imported ImageNet weights are right: linear probe and 10-NN on frozen features.

python -m mah_jax.data.fetch cifar10 --data_dir=data
python -m mah_jax.data.fetch resnet50 --data_dir=data
PYTHONPATH=. python benchmarks/probe.py --data_dir=data

The first 1,000 official training images of CIFAR-10 and the first 1,000 test images pass
through ResNet-50 at 224 px; a logistic regression and a 10-nearest-neighbour vote by cosine read
its pooled features, standardised. The same weights are then put through the strides of v1.5, for
which they were not made. It ends with code 1 when a score of v1 is further than 0.02 from what is
known.
"""

import argparse
import pathlib
import sys
import tempfile

import numpy as np
from sklearn import linear_model
from sklearn import neighbors
from sklearn import preprocessing

from mah_jax import config
from mah_jax.data import cifar10
from mah_jax.data import datasets
from mah_jax.data import splits
from mah_jax.train import features
from mah_jax.train import step
from mah_jax.weights import files

WEIGHTS = 'resnet50_imagenet.safetensors'
KNOWN = {'linear probe': 0.856, '10-NN': 0.804}  # of the same weights in another program
TOLERANCE = 0.02
TRAIN_ROWS = 50_000


def load(data_dir: str, rows: int) -> datasets.Dataset:
  """The first training and the first test images, half and half."""
  images, labels, *_ = cifar10.load(pathlib.Path(data_dir))
  chosen = np.r_[:rows, TRAIN_ROWS:TRAIN_ROWS + rows]
  protocol = splits.chosen(np.arange(rows, 2 * rows), 2 * rows, 0, 'probe')
  spec = datasets.SPECS['cifar10']
  return datasets.Dataset(images[chosen], labels[chosen], cifar10.CLASS_NAMES,
                          name='cifar10-probe', mean=spec.mean, std=spec.std, protocol=protocol)


def scores(vectors: np.ndarray, classes: np.ndarray, rows: int) -> dict[str, float]:
  """Accuracies on the second half of two readers trained on the first half."""
  vectors = preprocessing.StandardScaler().fit(vectors[:rows]).transform(vectors)
  readers = {'linear probe': linear_model.LogisticRegression(C=0.01, max_iter=1000),
             '10-NN': neighbors.KNeighborsClassifier(10, metric='cosine')}
  return {name: float(reader.fit(vectors[:rows], classes[:rows]).score(
      vectors[rows:], classes[rows:])) for name, reader in readers.items()}


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--data_dir', default='data')
  parser.add_argument('--rows', type=int, default=1000)
  arguments = parser.parse_args()
  data = load(arguments.data_dir, arguments.rows)
  classes = data.labels.argmax(axis=1)
  weights = files.read(pathlib.Path(arguments.data_dir) / WEIGHTS)
  devices = step.Devices(step.pick_devices(1), config.Config().batch_size)
  found = {}
  with tempfile.TemporaryDirectory() as folder:
    for backbone in ('resnet50_v1', 'resnet50'):
      path = pathlib.Path(folder) / f'{backbone}.safetensors'
      files.write(path, weights._replace(backbone=backbone))
      settings = config.Config(backbone=backbone, pretrained=str(path), image_size=224, crop=1.0)
      extracted = features.extract(settings, data, devices)
      found[backbone] = scores(extracted.values, classes, arguments.rows)
  found['raw pixels'] = scores(data.images.reshape(2 * arguments.rows, -1) / 255.0, classes,
                               arguments.rows)
  for name, values in found.items():
    print(f'{name}: ' + ', '.join(f'{reader} {value:.3f}' for reader, value in values.items()))
  return int(any(abs(found['resnet50_v1'][name] - value) > TOLERANCE
                 for name, value in KNOWN.items()))


if __name__ == '__main__':
  sys.exit(main())
