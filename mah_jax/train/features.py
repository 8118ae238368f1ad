"""Features of a whole dataset from a pretrained backbone, computed once and kept on disk."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any
from typing import NamedTuple

import jax
import numpy as np
from flax import linen as nn

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.models import perceptron
from mah_jax.train import backbone
from mah_jax.train import encoder as encoder_lib
from mah_jax.train import processes
from mah_jax.train import step as step_lib
from mah_jax.weights import imagenet

SAVE_ROWS = 1024  # rows between two notes of how far an extraction is


class Extractor(NamedTuple):
  """A frozen network whose outputs are features.

  module: (images [b, h, w, ch], train) -> features [b, D].
  variables: its weights, by collection.
  pixels: the images that it reads.
  weights: a hash of its weights; empty where it has none.
  """
  module: nn.Module
  variables: dict[str, Any]
  pixels: pipeline.Pixels
  weights: str


class Features(NamedTuple):
  """The features of a dataset.

  values: [rows, D] float32; features of a backbone are mapped from disk, read-only.
  extractor: the network that they come from.
  """
  values: np.ndarray
  extractor: Extractor


def make_extractor(config: config_lib.Config, size: int, channels: int,
                   devices: step_lib.Devices) -> Extractor:
  """The backbone and weights of a Config for images of `size` pixels; without weights, pixels."""
  if not config.pretrained:
    console.say('No --pretrained weights: the features are the pixels.')
    plain = pipeline.Pixels(size, channels, (0.0,) * channels, (1.0,) * channels)
    return Extractor(perceptron.Flatten(), {'params': {}}, plain, '')
  module = backbone.make(config, devices.platform)
  start = backbone.load(config, module, channels, devices)
  console.say(start.report)
  return Extractor(module, start.variables,
                   pipeline.Pixels(size, channels, start.mean, start.std),
                   _digest(start.variables))


def extract(config: config_lib.Config, data: datasets.Dataset,
            devices: step_lib.Devices) -> Features:
  """Extracts a feature of every row of a dataset, by the backbone and weights of a Config.

  They are kept in the cache under a key made of the weights, the images and how these are
  resized, cropped and normalised; the split into queries and database does not matter.
  An extraction that was cut off goes on where it was. Without --pretrained weights the pixels
  themselves are the features.
  """
  if not config.pretrained:
    values = _pixels(data)
    _, side, _, channels = data.images.shape
    return Features(values, make_extractor(config, side, channels, devices))
  extractor = make_extractor(config, *encoder_lib.input_size(config, data.images), devices)
  module, variables, pixels, weights = extractor
  about = {'dataset': data.name, 'images': _fingerprint(data), 'rows': len(data.images),
           'backbone': config.backbone, 'feature': config.feature,
           'weights': weights, 'crop': config.crop,
           **({} if config.precision == 'float32' else {'precision': config.precision}),
           **({'mirror': True} if config.mirror else {}),
           'pixels': pixels._asdict()}
  folder = storage.cache_folder('features') / _name(about)
  finished = folder / 'features.npy'
  folder.mkdir(parents=True, exist_ok=True)
  with storage.lock(folder, on_busy=lambda: console.say(
      'Another run is extracting the same features: waiting for it.')):
    if not processes.once(finished.exists):
      storage.write_json(folder / 'about.json', about)
      encoder = encoder_lib.Encoder(config, module, pixels, devices)
      shape = jax.eval_shape(lambda x: module.apply(variables, x, train=False),
                             np.zeros((1, *encoder.input_shape), np.float32)).shape
      _fill(finished, encoder, devices.replicate(variables), data.images, shape[1])
  return Features(np.load(finished, mmap_mode='r'), extractor)


def _pixels(data: datasets.Dataset) -> np.ndarray:
  if not isinstance(data.images, np.ndarray):
    raise errors.UsageError(f'Features of photographs need --pretrained weights: {imagenet.HINT}.')
  return data.images.reshape(len(data.images), -1).astype(np.float32) / 255


def _fill(target: pathlib.Path, encoder: encoder_lib.Encoder, variables: dict[str, Any], images,
          width: int):
  """Writes the features of all images, from where an extraction that was cut off was."""
  rows = storage.Rows(target, (len(images), width), SAVE_ROWS)
  done = processes.once(lambda: rows.done)
  feed = encoder.feed(images[done:])
  with console.bar(len(images), 'extracting features', done=done) as bar:
    for outputs in encoder.outputs(variables, feed, np.arange(len(images) - done)):
      rows.add(outputs)
      bar.update(len(outputs))
  processes.once(rows.finish)


def _fingerprint(data: datasets.Dataset) -> str:
  """A text that changes when the images do: a hash of all pixels, or the version of the files."""
  if isinstance(data.images, np.ndarray):
    return hashlib.sha256(np.ascontiguousarray(data.images)).hexdigest()
  return f'{data.protocol.content} {data.images.version}'


def _digest(variables: dict[str, Any]) -> str:
  """sha256 of all weights, in the order of their names."""
  digest = hashlib.sha256()
  for _, leaf in sorted(jax.tree_util.tree_leaves_with_path(variables), key=lambda x: str(x[0])):
    digest.update(np.ascontiguousarray(leaf))
  return digest.hexdigest()


def _name(about: dict[str, Any]) -> str:
  """The name of the folder for features of which this is known."""
  return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
