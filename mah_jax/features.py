"""Features of a whole dataset from a pretrained backbone, computed once and kept on disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from mah_jax import cache
from mah_jax import config as config_lib
from mah_jax import encoder as encoder_lib
from mah_jax import errors
from mah_jax import experiment
from mah_jax import pretrained
from mah_jax import progress
from mah_jax import runfolder
from mah_jax.data import datasets
from mah_jax.data import pipeline
from mah_jax.train import step as step_lib

SAVE_ROWS = 1024  # rows between two notes of how far an extraction is


def extract(config: config_lib.Config, data: datasets.Dataset,
            devices: step_lib.Devices) -> np.ndarray:
  """Features of every row of a dataset, by the backbone and weights of a Config.

  They are kept in the cache under a key made of the weights, the images and how these are
  resized, cropped and normalised; the split into queries and database does not matter.
  An extraction that was cut off goes on where it was. Without --pretrained weights the pixels
  themselves are the features.

  Returns:
    [rows, D] float32; those of a backbone are mapped from disk, read-only.
  """
  if not config.pretrained:
    return _pixels(data)
  size, channels = encoder_lib.input_size(config, data.images)
  module = experiment.backbone(config)
  start = pretrained.load(config, module, channels, devices)
  progress.say(start.report)
  pixels = pipeline.Pixels(size, channels, start.mean, start.std)
  about = {'dataset': data.name, 'images': _fingerprint(data), 'rows': len(data.images),
           'backbone': config.backbone, 'feature': config.feature,
           'weights': _digest(start.variables), 'crop': config.crop,
           **({} if config.precision == 'float32' else {'precision': config.precision}),
           **({'mirror': True} if config.mirror else {}),
           'pixels': json.loads(json.dumps(pixels._asdict()))}
  folder = cache.folder('features') / hashlib.sha256(_json(about)).hexdigest()[:32]
  finished = folder / 'features.npy'
  folder.mkdir(parents=True, exist_ok=True)
  with _alone(folder):
    if not finished.exists():
      runfolder.write(folder / 'about.json', _json(about))
      encoder = encoder_lib.Encoder(config, module, pixels, devices)
      shape = jax.eval_shape(lambda x: module.apply(start.variables, x, train=False),
                             np.zeros((1, *encoder.input_shape), np.float32)).shape
      _fill(folder, encoder, devices.replicate(start.variables), data.images, shape[1])
  return np.load(finished, mmap_mode='r')


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
  """Keeps other runs from the folder, after waiting for one that is at work there."""
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      progress.say('Another run is extracting the same features: waiting for it.')
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
  finally:
    os.close(descriptor)


def _pixels(data: datasets.Dataset) -> np.ndarray:
  if not isinstance(data.images, np.ndarray):
    raise errors.UsageError('Features of photographs need --pretrained weights: python -m '
                            'mah_jax.data.fetch resnet50 gets some.')
  progress.say('No --pretrained weights: the features are the pixels.')
  return data.images.reshape(len(data.images), -1).astype(np.float32) / 255


def _fill(folder: pathlib.Path, encoder: encoder_lib.Encoder, variables: dict[str, Any], images,
          width: int):
  """Writes features.npy; on the way there, part.npy and the number of rows that it has."""
  part, note = folder / 'part.npy', folder / 'rows.json'
  rows = len(images)
  done = json.loads(note.read_text()) if note.exists() and part.exists() else 0
  array = np.lib.format.open_memmap(part, 'r+' if done else 'w+', np.float32, (rows, width))
  feed = encoder.feed(images[done:])
  with progress.bar(rows, 'extracting features', done=done) as bar:
    saved = done
    for outputs in encoder.outputs(variables, feed, np.arange(rows - done)):
      array[done:done + len(outputs)] = outputs
      done += len(outputs)
      bar.update(len(outputs))
      if done - saved >= SAVE_ROWS:
        array.flush()  # before the note, which must never promise more than there is
        runfolder.write(note, _json(done))
        saved = done
  array.flush()
  part.replace(folder / 'features.npy')
  note.unlink(missing_ok=True)


def _fingerprint(data: datasets.Dataset) -> str:
  """Changes when the images do: sha256 of all pixels, or of the files' names and versions."""
  if isinstance(data.images, np.ndarray):
    return hashlib.sha256(np.ascontiguousarray(data.images)).hexdigest()
  return f'{data.protocol.content} {data.images.version}'


def _digest(variables: dict[str, Any]) -> str:
  """sha256 of all weights, in the order of their names."""
  digest = hashlib.sha256()
  for _, leaf in sorted(jax.tree_util.tree_leaves_with_path(variables), key=lambda x: str(x[0])):
    digest.update(np.ascontiguousarray(leaf))
  return digest.hexdigest()


def _json(content: Any) -> bytes:
  return json.dumps(content, sort_keys=True).encode()
