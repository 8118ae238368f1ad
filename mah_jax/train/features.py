"""Features or maps of a dataset from a pretrained backbone, computed once and kept on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
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
LARGE = 10**9  # bytes from which on it is said how many an extraction takes


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


def extract(config: config_lib.Config, data: datasets.Dataset, devices: step_lib.Devices,
            maps: np.ndarray | None = None) -> Features:
  """Extracts a feature of every row of a dataset, by the backbone and weights of a Config.

  They are kept in the cache under a key made of the weights, the images and how these are
  resized, cropped and normalised; the split into queries and database does not matter.
  An extraction that was cut off goes on where it was. Without --pretrained weights the pixels
  themselves are the features. `maps` of all rows, see `extract_maps`, may take the place of images.
  """
  if not config.pretrained:
    values = _pixels(data)
    _, side, _, channels = data.images.shape
    return Features(values, make_extractor(config, side, channels, devices))
  extractor = make_extractor(config, *encoder_lib.input_size(config, data.images), devices)
  module, variables, pixels, weights = extractor
  about = {**_about(config, data, pixels, weights), 'feature': config.feature,
           **({'mirror': True} if config.mirror else {}),
           **({} if maps is None else {'maps': maps.shape[1:]})}
  encoder = encoder_lib.Encoder(
      config, module, pixels if maps is None else pipeline.Maps(pixels), devices)
  return Features(_kept(about, 'extracting features', encoder, devices.replicate(variables),
                        data.images if maps is None else maps, np.float32), extractor)


def extract_maps(config: config_lib.Config, data: datasets.Dataset, pixels: pipeline.Pixels,
                 module: nn.Module, variables: dict[str, Any],
                 devices: step_lib.Devices) -> np.ndarray:
  """What the frozen stages of a backbone make of every row of a dataset and of its mirror image.

  They are kept like features, under a key that has the weights of these stages.

  Args:
    config: all settings.
    data: the images.
    pixels: the images that the backbone reads.
    module: the backbone, which has frozen stages.
    variables: its weights, by collection, on the devices.
    devices: where it runs.

  Returns:
    [rows, 2, h, w, ch] float16, mapped from disk, read-only.
  """
  frozen = {name: {part: values for part, values in of_name.items()
                   if part in module.frozen_parts()} for name, of_name in variables.items()}
  about = {**_about(config, data, pixels, _digest(jax.device_get(frozen))),
           'frozen_stages': config.frozen_stages}
  encoder = encoder_lib.Encoder(dataclasses.replace(config, mirror=False), module, pixels, devices,
                                method='maps')
  return _kept(about, 'passing frozen stages', encoder, variables, data.images, np.float16)


def _about(config: config_lib.Config, data: datasets.Dataset, pixels: pipeline.Pixels,
           weights: str) -> dict[str, Any]:
  """What features and maps depend on."""
  return {'dataset': data.name, 'images': _fingerprint(data), 'rows': len(data.images),
          'backbone': config.backbone, 'weights': weights, 'crop': config.crop,
          **({} if config.precision == 'float32' else {'precision': config.precision}),
          'pixels': pixels._asdict()}


def _kept(about: dict[str, Any], name: str, encoder: encoder_lib.Encoder,
          variables: dict[str, Any], images, dtype: type) -> np.ndarray:
  """The outputs of an encoder for all images, [rows, ...], from the cache or made now.

  Args:
    about: what they depend on.
    name: of the progress bar.
    encoder: it makes them.
    variables: of its module, on the devices.
    images: all rows.
    dtype: the numbers that are kept.
  """
  folder = storage.cache_folder('features') / _name(about)
  finished = folder / 'features.npy'
  folder.mkdir(parents=True, exist_ok=True)
  with storage.lock(folder, on_busy=lambda: console.say(
      'Another run is extracting the same features: waiting for it.')):
    if not processes.once(finished.exists):
      storage.write_json(folder / 'about.json', about)
      one = encoder.stored(images)
      shape = jax.eval_shape(encoder.forward, variables, jax.ShapeDtypeStruct(
          (1, *one.shape), one.dtype)).shape
      size = len(images) * math.prod(shape[1:]) * np.dtype(dtype).itemsize
      if size >= LARGE:
        console.say(f'What is kept of {len(images):,} images takes {size / LARGE:.1f} GB in '
                    f'{folder}.')
      rows = storage.Rows(finished, (len(images), *shape[1:]), SAVE_ROWS, dtype)
      _fill(rows, encoder, variables, images, name)
  return np.load(finished, mmap_mode='r')


def check_pixels(in_files: bool):
  """Refuses pixels as features where images are files, each of a size of its own."""
  if in_files:
    raise errors.UsageError(f'Features of photographs need --pretrained weights: {imagenet.HINT}.')


def _pixels(data: datasets.Dataset) -> np.ndarray:
  check_pixels(in_files=not isinstance(data.images, np.ndarray))
  return data.images.reshape(len(data.images), -1).astype(np.float32) / 255


def _fill(rows: storage.Rows, encoder: encoder_lib.Encoder, variables: dict[str, Any], images,
          name: str):
  """Writes the outputs for all images, from where an extraction that was cut off was."""
  done = processes.once(lambda: rows.done)
  feed = encoder.feed(images[done:])
  with console.bar(len(images), name, done=done) as bar:
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
