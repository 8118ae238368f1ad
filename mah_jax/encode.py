"""Codes for any folder of images from the network of a finished or stopped run, Eq. 14."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from mah_jax import config as config_lib
from mah_jax import encoder as encoder_lib
from mah_jax import errors
from mah_jax import experiment
from mah_jax import methods
from mah_jax import progress
from mah_jax import runfolder
from mah_jax.data import images as images_lib
from mah_jax.data import pipeline
from mah_jax.methods import base
from mah_jax.train import checkpoint
from mah_jax.train import step as step_lib

INDEX = 'files.txt'      # line i names the image of row i
SKIPPED = 'skipped.txt'  # images that could not be read, with the reason


def encode(config: config_lib.Config):
  """Writes packed codes of --images in every length, and an index of their files."""
  with progress.StopRequest('Stopped; nothing was written.') as stop:
    _encode(config, stop)


def _encode(config, stop):
  source = pathlib.Path(os.path.expanduser(config.images))
  names = images_lib.find(source)
  if not names:
    raise errors.InputError(f'--images={source} holds no image files '
                            f'({", ".join(sorted(images_lib.SUFFIXES))}).')
  devices = step_lib.Devices(step_lib.pick_devices(config.num_devices), config.batch_size)
  encoder, method, variables, among = _restore(config, devices)
  output = pathlib.Path(os.path.expanduser(config.output or f'{config.workdir}/encoded'))
  try:
    output.mkdir(parents=True, exist_ok=True)  # before the work, not after it
  except OSError as error:
    raise errors.InputError(f'--output={output} cannot be made ({error.strerror}): choose '
                            'another.') from error
  images = images_lib.Encoded(lambda row: (source / names[row]).read_bytes(), names)
  bad = {}  # row: reason
  feed = encoder.stream(images, on_bad=bad.__setitem__)
  outputs = encoder(variables, feed, np.arange(len(names)), 'encoding images')
  good = np.setdiff1d(np.arange(len(names)), list(bad))
  if not len(good):
    raise errors.InputError(f'None of the {len(names)} image files in {source} can be read; the '
                            f'first, {names[0]}: {bad[0]}.')
  sides = {'codes': method.query_embeddings, 'database_codes': method.database_embeddings}
  if method.query_embeddings is method.database_embeddings:
    del sides['database_codes']
  arrays = {f'{name}_{c}': np.packbits(head[good] > 0, axis=1)
            for name, embeddings in sides.items()
            for c, head in zip(config.code_lengths, experiment.binary(embeddings(outputs), among))}
  arrays |= {f'bit_weights_{c}': weights
             for c, weights in zip(config.code_lengths, method.bit_weights(outputs) or ())}
  with stop.deferred():
    _remove(output)
    for name, array in arrays.items():
      runfolder.write(output / f'{name}.npy', runfolder.npy(array))
    runfolder.write_text(output / SKIPPED,
                         ''.join(f'{names[row]}\t{bad[row]}\n' for row in sorted(bad)))
    runfolder.write_text(output / INDEX, ''.join(f'{names[row]}\n' for row in good))
  for row in sorted(bad)[:5]:
    progress.say(f'Skipped {names[row]}: {bad[row]}.')
  progress.say(f'{len(good)} images encoded to {config_lib.text(config.code_lengths)} bits, '
               f'{len(bad)} skipped. Written to {output}.')


def _remove(output: pathlib.Path):
  """Removes what an earlier encoding wrote, the index first: its rows are of other images."""
  (output / INDEX).unlink(missing_ok=True)
  for name in ('codes', 'database_codes', 'bit_weights'):
    for path in output.glob(f'{name}_[0-9]*.npy'):
      path.unlink()


def _restore(config, devices) -> tuple[encoder_lib.Encoder, base.DeepMethod, dict, tuple | None]:
  """The network of the newest checkpoint in --workdir, its method, weights and `words`."""
  folder = runfolder.RunFolder(config.workdir)
  folder.check_claimed()
  with contextlib.closing(checkpoint.Checkpoints(folder.checkpoints)) as checkpoints:
    step, reports = checkpoints.newest()
    for report in reports:
      progress.say(report)
    meta = checkpoints.meta(step)
    folder.check_same(config, meta['flags'])
    no_rows = np.zeros((0, meta['labels']), np.uint8)  # nothing of the database is asked
    method = methods.DEEP[config.method](config, no_rows)
    network = experiment.network(config, method)
    encoder = encoder_lib.Encoder(config, network, pipeline.Pixels(**meta['pixels']), devices)
    variables = jax.eval_shape(functools.partial(network.init, train=False), jax.random.key(0),
                               jnp.zeros((1, *encoder.input_shape)))
    wanted = dict(variables)
    if config.binarize == 'nearest':
      wanted['codes'] = tuple(jax.ShapeDtypeStruct((meta['rows'], c), np.int8)
                              for c in config.code_lengths)
    found = checkpoints.restore_part(step, devices.abstract(wanted))
    among = experiment.words(config, found.pop('codes', ()))
    return encoder, method, found, among
