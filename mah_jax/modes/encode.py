"""--mode=encode: what a run has learned hashes any folder of images, Eq. 14."""

from __future__ import annotations

import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax import options
from mah_jax import storage
from mah_jax.data import images as images_lib
from mah_jax.modes import search
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import restoring
from mah_jax.train import dataset
from mah_jax.train import hasher as hasher_lib

INDEX = 'files.jsonl'      # line i names the image of row i
KIND = 'codes of images'
SKIPPED = 'skipped.jsonl'  # images that could not be read, with the reason


def encode(config: config_lib.Config):
  """Writes packed codes of --images in every length, and an index of their files."""
  with console.StopRequest('Stopped; nothing was written.'):
    _encode(config)


def _encode(config: config_lib.Config):
  source, names = search.files_of(config.images)
  output = storage.path(config.output or f'{config.workdir}/encoded')
  if config.output:
    folder_lib.RunFolder(config.workdir).check_output('output', output)
    dataset.check_apart(config, 'output', output)
  hasher = restoring.hasher(config)
  try:
    storage.check_replaceable(output, KIND)  # before the work, not after it
    output.parent.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise errors.InputError(f'--output={output} cannot be made ({error.strerror}): choose '
                            'another.') from error
  images = images_lib.Encoded(lambda row: storage.read_file(source / names[row]), names)
  bad = {}  # row: reason
  hashed = hasher(images, on_bad=bad.__setitem__)
  good = np.setdiff1d(np.arange(len(names)), list(bad))
  if not len(good):
    raise errors.InputError(f'None of the {len(names)} image files in {source} can be read; the '
                            f'first, {names[0]}: {bad[0]}.')
  arrays = _arrays(config.code_lengths, hashed, good)
  console.pause()
  storage.replace_folder(output, {
      **{f'{name}.npy': storage.npy(array) for name, array in arrays.items()},
      INDEX: storage.json_lines(names[row] for row in good),
      SKIPPED: storage.json_lines({'file': names[row], 'reason': bad[row]} for row in sorted(bad))},
      KIND)
  for row in sorted(bad)[:5]:
    console.say(f'Skipped {names[row]}: {bad[row]}.')
  console.say(f'{len(good)} images encoded to {options.text(config.code_lengths)} bits, '
               f'{len(bad)} skipped. Written to {output}.')


def _arrays(code_lengths: tuple[int, ...], hashed: hasher_lib.Hashed,
            good: np.ndarray) -> dict[str, np.ndarray]:
  """Packed codes [rows, bytes] and weights of bits [c] by the names of their files."""
  sides = {'codes': hashed.codes}
  if hashed.database_codes is not hashed.codes:
    sides['database_codes'] = hashed.database_codes
  arrays = {f'{name}_{c}': np.packbits(head[good] > 0, axis=1)
            for name, heads in sides.items() for c, head in zip(code_lengths, heads)}
  return arrays | {f'bit_weights_{c}': w for c, w in zip(code_lengths, hashed.weights or ())}
