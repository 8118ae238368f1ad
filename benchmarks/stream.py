"""Measures streaming: images per second, how long steps wait for images, and peak memory.

PYTHONPATH=. python benchmarks/stream.py

Photographs of 500 x 375 pixels, cut from the two inside scikit-learn, are written as JPEG files;
a database of many rows repeats them by hard links. Each database is trained on in a process of
its own, on sampled rows that stream from disk and, in turns with that, by the same steps on images
that are on the device already. What these save is the time that images are waited for and that
decoding takes from the cores that train.
"""

import itertools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
import table
from PIL import Image
from sklearn import datasets as sklearn_datasets

from mah_jax import compiling
from mah_jax import config
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.data import stream
from mah_jax.models import imagenet
from mah_jax.train import step
from mah_jax.train import trainer

DISTINCT = 500
CLASSES = 10
SIZES = (2_000, 200_000)
STEPS = {'compact': 48, 'resnet50': 8}
SETTINGS = {'compact': {'backbone': 'compact', 'width': 16, 'image_size': 64, 'batch_size': 64},
            'resnet50': {'backbone': 'resnet50', 'image_size': 96, 'batch_size': 32}}


def write_photographs(folder: pathlib.Path) -> list[pathlib.Path]:
  """JPEG files of random parts of two photographs."""
  rng = np.random.default_rng(0)
  photographs = sklearn_datasets.load_sample_images().images  # 427 x 640
  paths = []
  for i in range(DISTINCT):
    y, x = rng.integers(0, 52), rng.integers(0, 140)
    part = photographs[i % 2][y:y + 375, x:x + 500]
    paths.append(folder / f'{i}.jpg')
    Image.fromarray(part).save(paths[-1], quality=90)
  return paths


def make_tree(paths: list[pathlib.Path], folder: pathlib.Path, rows: int) -> None:
  """A folder of `rows` files in class folders, all of them links."""
  for k in range(CLASSES):
    (folder / f'class{k}').mkdir(parents=True)
  for i in range(rows):
    os.link(paths[i % len(paths)], folder / f'class{i % CLASSES}' / f'{i}.jpg')


def measure(data_dir: str, cache_dir: str, name: str) -> dict[str, float]:
  """Trains on a folder for a while; what it took."""
  compiling.prepare()
  began = time.monotonic()
  data = datasets.load('folder', data_dir, 0, cache_dir=pathlib.Path(cache_dir))
  checked = time.monotonic() - began
  settings = config.make(dataset='folder', crop=0.875, num_sampled=0, code_init='codebook',
                         resident_mb=0, augment='flip_shift', **SETTINGS[name])
  devices = step.Devices(step.pick_devices(1), settings.batch_size)
  pixels = pipeline.Pixels(settings.image_size, 3, imagenet.MEAN, imagenet.STD)
  made = trainer.Trainer(settings, data, pixels, devices)
  state = made.new_state()
  sampled = pipeline.sample(jax.random.key(0), len(made.labels), STEPS[name] * settings.batch_size)
  targets = devices.replicate(made.method.targets(state.codes, sampled, 0))
  state = state.replace(memory=tuple(h[:len(sampled)] for h in state.memory))
  batches = list(pipeline.batches(sampled, settings.batch_size))

  def train(images):
    """Seconds of all steps, and for how many of them the next images were waited for."""
    nonlocal state
    waited, losses = 0.0, []
    for batch in batches:
      asked = time.monotonic()
      x = next(images)
      if losses:
        waited += time.monotonic() - asked
      else:  # the first images come when the decoder has started, once in an epoch
        began = time.monotonic()
      state, metrics = made.train_step(state, targets, x, devices.shard(batch))
      losses.append(metrics['loss'])
      float(losses[-2:][0])  # as the program does: waits for all but the newest step
    float(losses[-1])
    return time.monotonic() - began, waited

  resident = next(made.feed_database([batches[0].row]))
  train(itertools.repeat(resident))  # compiles
  streamed, waited, kept = [], [], []
  for _ in range(3):
    for times, found in zip((streamed, waited),
                            train(made.feed_database(batch.row for batch in batches))):
      times.append(found)
    kept.append(train(itertools.repeat(resident))[0])
  return {'check_seconds': checked, 'images': len(sampled), 'streamed': streamed,
          'waited': waited, 'kept': kept,
          'peak_megabytes': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def decode_rate(data_dir: str, cache_dir: str, threads: int, side: int = 256) -> float:
  """Images decoded per second when nothing else is done."""
  images = datasets.load('folder', data_dir, 0, cache_dir=pathlib.Path(cache_dir)).images
  batches = np.arange(1024).reshape(16, 64)
  began = time.monotonic()
  for _ in stream.Stream(images, batches, side=side, channels=3, threads=threads):
    pass
  return batches.size / (time.monotonic() - began)


def training_row(name: str, folder: pathlib.Path, cache: pathlib.Path) -> dict:
  """Steps on images that stream from a folder, against steps on images that are there."""
  child = subprocess.run([sys.executable, __file__, str(folder), str(cache), name],
                         check=True, capture_output=True, text=True)
  found = json.loads(child.stdout.splitlines()[-1])
  rate = found['images'] / float(np.median(found['streamed']))
  waited = 100 * np.sum(found['waited']) / np.sum(found['streamed'])
  return table.row(
      f'{name}, training on {folder.name} photographs from disk, against the same on the device',
      found['streamed'], found['kept'], 0.95,
      f'{rate:.0f} images/s; images are waited for {waited:.1f} % of the time (goal: under 5); the '
      f'process peaks at {found["peak_megabytes"]:.0f} MB; the files were checked in '
      f'{found["check_seconds"]:.1f} s')


def rows() -> list[dict]:
  """All measurements."""
  found = []
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    paths = write_photographs(root)
    for size in SIZES:
      make_tree(paths, root / str(size), size)
      found += [training_row(name, root / str(size), root / 'cache') for name in SETTINGS]
    two, one = ([1 / decode_rate(str(root / str(SIZES[0])), str(root / 'cache'), threads)
                 for _ in range(3)] for threads in (2, 1))
  return [*found, table.row('decoding a photograph to 256 px by two threads, against one', two, one,
                            None)]


if __name__ == '__main__':
  if sys.argv[1:]:  # the child of training_row
    print(json.dumps(measure(*sys.argv[1:])))
  else:
    print(table.text(rows()))
