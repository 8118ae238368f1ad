"""The hasher: what a run has learned, without its dataset, turns any images into codes, Eq. 14."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import discrete
from mah_jax.data import images as images_lib
from mah_jax.data import pipeline
from mah_jax.methods import base
from mah_jax.models import perceptron
from mah_jax.train import checkpoint
from mah_jax.train import encoder as encoder_lib
from mah_jax.train import features as features_lib
from mah_jax.train import model as model_lib
from mah_jax.train import processes
from mah_jax.train import shallow
from mah_jax.train import step as step_lib
from mah_jax.train import trainer as trainer_lib

WITH_FEATURES = 'with_features'  # the method of networks that returns outputs and features

Heads = tuple[np.ndarray, ...]  # one array for each code length


class Hashed(NamedTuple):
  """What a hasher makes of images.

  codes: their codes as queries, ([rows, c] int8, ...).
  database_codes: their codes as rows of a database, ([rows, c] int8, ...): other ones where a
    method has two networks, else `codes` itself.
  outputs: the values whose signs are `codes`, or that are nearest to them, ([rows, c], ...).
  features: the features that the outputs are made from, [rows, D].
  weights: weights of the bits in a weighted ranking, ([c], ...); None where there are none.
  """
  codes: Heads
  database_codes: Heads
  outputs: Heads
  features: np.ndarray
  weights: Heads | None = None


class Hasher(NamedTuple):
  """It turns images into codes and knows no dataset.

  encoder: images to what `finish` reads.
  variables: of the encoder's module.
  finish: what the encoder returns for some images -> Hashed.
  pixels: the images that it reads.
  codes: what the encoder returns -> their codes as queries, ([b, c] int8, ...), as `finish` makes
    them, in JAX, so that a program of both can be exported; None where that cannot be.
  """
  encoder: encoder_lib.Encoder
  variables: dict[str, Any]
  finish: Callable[[Any], Hashed]
  pixels: pipeline.Pixels
  codes: Callable[[Any], tuple[jax.Array, ...]] | None = None

  def parts(self, images: np.ndarray | images_lib.Encoded, rows: np.ndarray,
            on_bad: Callable[[int, str], None] | None = None) -> Iterator[Hashed]:
    """Hashes rows of images, [n, h, w, ch] uint8 or files, a batch at a time, in order.

    A file that cannot be decoded is told to on_bad(row, reason) and hashed as if it were black,
    or raises errors.InputError where on_bad is None.
    """
    feed = self.encoder.stream(images, on_bad=on_bad)
    return map(self.finish, self.encoder.outputs(self.variables, feed, rows,
                                                 self.encoder.small_batch(len(rows))))

  def __call__(self, images: np.ndarray | images_lib.Encoded,
               on_bad: Callable[[int, str], None] | None = None) -> Hashed:
    """Hashes all images under a progress bar; see `parts`."""
    parts, bad = [], {}  # row: reason, of the share of this process
    with console.bar(len(images), 'encoding images') as bar:
      for part in self.parts(images, np.arange(len(images)), on_bad and bad.__setitem__):
        parts.append(part)
        bar.update(len(part.features))
    for row, reason in sorted(itertools.chain(*processes.gather(list(bad.items())))):
      on_bad(row, reason)
    return join(parts)


def join(parts: Sequence[Hashed]) -> Hashed:
  """The parts of a set of images as one."""
  first = parts[0]
  codes, outputs = (tuple(map(np.concatenate, zip(*heads))) for heads in (
      [part.codes for part in parts], [part.outputs for part in parts]))
  database = codes
  if first.database_codes is not first.codes:
    database = tuple(map(np.concatenate, zip(*[part.database_codes for part in parts])))
  features = np.concatenate([part.features for part in parts])
  return Hashed(codes, database, outputs, features, first.weights)


def select(hashed: Hashed, rows: np.ndarray) -> Hashed:
  """Some of the images that were hashed."""
  codes, outputs = (tuple(head[rows] for head in heads) for heads in (
      hashed.codes, hashed.outputs))
  database = codes if hashed.database_codes is hashed.codes else tuple(
      head[rows] for head in hashed.database_codes)
  return Hashed(codes, database, outputs, hashed.features[rows], hashed.weights)


def of_network(config: config_lib.Config, devices: step_lib.Devices,
               checkpoints: checkpoint.Checkpoints, step: int) -> Hasher:
  """The network as it was after so many steps, without what only training needs."""
  meta = checkpoints.meta(step)
  config_lib.check_same(config, meta['flags'])
  no_rows = np.zeros((0, meta['labels']), np.uint8)
  method = config.spec.make(config.options,
                            base.Task(no_rows, config.code_lengths, 0, config.seed))
  module = trainer_lib.network(config, method, devices.platform)
  pixels = pipeline.Pixels(**meta['pixels'])
  reads = pipeline.Vectors(meta['features']) if config.input == 'features' else pixels
  encoder = encoder_lib.Encoder(config, module, reads, devices, WITH_FEATURES)
  template = dict(jax.eval_shape(functools.partial(module.init, train=False), jax.random.key(0),
                                 jnp.zeros((1, *encoder.input_shape))))
  if method.nearest:
    template['codes'] = checkpoints.shapes(step, 'codes')
  restored = checkpoints.restore_part(step, template)
  among = trainer_lib.words(method, restored.pop('codes', ()))
  if config.input == 'features':
    encoder, restored = _before_features(config, module, restored, pixels, meta, devices)
  return Hasher(encoder, restored, functools.partial(_finish, method, among), pixels,
                functools.partial(_codes, method, among))


def _finish(method: base.DeepMethod, among: Heads | None, raw: tuple[Any, np.ndarray]) -> Hashed:
  """The codes of outputs, by their signs or the nearest among words."""
  outputs, features = raw
  embeddings = tuple(map(np.asarray, method.query_embeddings(outputs)))
  codes = trainer_lib.binary(embeddings, among)
  database = codes
  if method.database_embeddings is not method.query_embeddings:
    database = trainer_lib.binary(method.database_embeddings(outputs), among)
  return Hashed(codes, database, embeddings, features, method.bit_weights(outputs))


def of_features(config: config_lib.Config, devices: step_lib.Devices,
                model: model_lib.Model) -> Hasher:
  """The hash functions of a model, and the backbone before them."""
  extractor, config = _extraction(config, model.pixels, model.weights, devices)
  encoder = encoder_lib.Encoder(config, extractor.module, model.pixels, devices)
  method, states = config.spec.make(config.options), jax.device_put(tuple(model.states))

  def finish(features):
    codes, outputs = zip(*(shallow.encode(method, state, features) for state in states))
    return Hashed(codes, codes, outputs, features)

  def codes(features):
    return tuple(discrete.to_codes(method.project(state, features)) for state in model.states)

  return Hasher(encoder, devices.replicate(extractor.variables), finish, model.pixels, codes)


def _extraction(config: config_lib.Config, pixels: pipeline.Pixels, weights: str,
                devices: step_lib.Devices) -> tuple[features_lib.Extractor, config_lib.Config]:
  """The extractor of features by weights with this hash, and how it is given its images."""
  extractor = features_lib.make_extractor(config, pixels.size, pixels.channels, devices)
  trainer_lib.check_weights(config, extractor, weights)
  if not config.pretrained:  # pixels that are features are taken as they are
    config = dataclasses.replace(config, crop=1.0, mirror=False)
  return extractor, config


def _codes(method: base.DeepMethod, among: Heads | None, raw: tuple[Any, jax.Array]
           ) -> tuple[jax.Array, ...]:
  """The codes of outputs as queries, in JAX."""
  embeddings = method.query_embeddings(raw[0])
  if among is None:
    return tuple(map(discrete.to_codes, embeddings))
  return tuple(discrete.to_nearest(u, jnp.asarray(words)) for u, words in zip(embeddings, among))


def _before_features(config: config_lib.Config, module: nn.Module, variables: dict[str, Any],
                     pixels: pipeline.Pixels, meta: dict[str, Any], devices: step_lib.Devices
                     ) -> tuple[encoder_lib.Encoder, dict[str, Any]]:
  """Puts the backbone before a network on its features: an encoder of images, its variables."""
  extractor, config = _extraction(config, pixels, meta['weights'], devices)
  joined = perceptron.OnFeatures(extractor.module, module, config.mirror)
  encoder = encoder_lib.Encoder(dataclasses.replace(config, mirror=False), joined, pixels,
                                devices, WITH_FEATURES)
  return encoder, {
      name: {'backbone': devices.replicate(extractor.variables.get(name, {})), 'network': part}
      for name, part in variables.items()}
