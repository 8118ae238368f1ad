"""The export of a whole run: its encoder as StableHLO, its index, and a program that uses both.

The encoder is one function, uint8 images to packed codes of every length, which JAX compiles on a
CPU, an NVIDIA card or a TPU. Its network has the layers that every platform compiles, and its
products have the full precision of float32 everywhere, so that the same image gets the same code
on all of them, but for values that rounding moves across 0.
"""

from __future__ import annotations

import io
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from mah_jax import errors
from mah_jax.data import pipeline
from mah_jax.models import layers
from mah_jax.runs import restoring
from mah_jax.search import keys as keys_lib
from mah_jax.search import searcher as searcher_lib
from mah_jax.search.export import content as content_lib
from mah_jax.train import hasher as hasher_lib

PLATFORMS = ('cpu', 'cuda', 'tpu')
PROGRAM = pathlib.Path(__file__).with_name('program.py')  # becomes search.py of an export
# What the program reads.
ENCODER, ROWS, KEYS, INDEX = 'encoder.stablehlo', 'rows.jsonl', 'keys.npy', 'index_{}.npz'

README = """\
# {rows:,} images and their encoder, for a program with JAX and NumPy

`pip install jax numpy flatbuffers` (JAX {jax} or newer, which reads its files by flatbuffers).
Images are uint8 [n, {h}, {w}, {ch}]{hint}; codes of {lengths} bits are packed as by `np.packbits`.
`python search.py IMAGES.npy` prints neighbours. In Python: `import search; run = search.Run()`;
`run.encode(images)`; `distances, rows = run.search(images, k=10)`; `run.rows[rows[0, 0]]`.
"""
PHOTOGRAPH = ', the centres of RGB photographs whose shorter side was resized to {}'


def files(searcher: searcher_lib.Searcher, content: content_lib.Content) -> dict[str, bytes]:
  """The files of the export by name."""
  if not searcher.config.spec.trains_network:
    raise errors.UsageError('--format=stablehlo needs a network: '
                            f'--method={searcher.config.method} has none; the other formats '
                            'export its codes.')
  hasher = restoring.hasher(searcher.config, layers.ANY)
  images, hint = searcher.data.images, ''
  side = pipeline.whole_side(hasher.pixels.size, searcher.config.crop)
  shape = (side, side, hasher.pixels.channels)
  if isinstance(images, np.ndarray):
    shape = images.shape[1:]
  else:
    hint = PHOTOGRAPH.format(side)
  lengths = list(content.codes)
  made = {ENCODER: encoder(searcher, hasher, shape, lengths),
          ROWS: content_lib.json_lines(content), 'search.py': PROGRAM.read_bytes()}
  for c, packed in content.codes.items():
    made[INDEX.format(c)] = _saved(np.savez, **_index(packed))
  if content.keys.shape[1]:
    made[KEYS] = _saved(np.save, content.keys)
  h, w, ch = shape
  readme = README.format(rows=len(content), jax=jax.__version__, h=h, w=w, ch=ch, hint=hint,
                         lengths=', '.join(map(str, lengths)))
  return made | {'README.md': readme.encode()}


def encoder(searcher: searcher_lib.Searcher, hasher: hasher_lib.Hasher,
            shape: tuple[int, int, int], lengths: list[int]) -> bytes:
  """The encoder as JAX serialises it.

  Args:
    searcher: the run, which says how keys are made.
    hasher: its network, for any platform.
    shape: of an image, [h, w, ch].
    lengths: bits of the codes that it returns.

  Returns:
    A function, images [b, h, w, ch] uint8 -> {'codes_4': [b, 1] uint8, ..., 'keys': [b, k] int8}.
  """
  variables = jax.device_get(hasher.variables)
  reduction = searcher.database.reduction

  def encode(images):
    raw = hasher.encoder.forward(variables, images)
    codes = dict(zip(searcher.code_lengths, hasher.codes(raw)))
    hashed = {f'codes_{c}': jnp.packbits(codes[c] > 0, axis=1) for c in lengths}
    if reduction is not None:
      hashed['keys'] = keys_lib.apply(reduction, raw[1])
    return hashed

  batch, = jax_export.symbolic_shape('b')
  images = jax.ShapeDtypeStruct((batch, *shape), np.uint8)
  frames = jax.config.jax_traceback_in_locations_limit
  jax.config.update('jax_traceback_in_locations_limit', 0)  # else paths of this machine are in it
  try:
    with jax.default_matmul_precision('highest'):
      return bytes(jax_export.export(jax.jit(encode), platforms=PLATFORMS)(images).serialize())
  finally:
    jax.config.update('jax_traceback_in_locations_limit', frames)


def _index(packed: np.ndarray) -> dict[str, np.ndarray]:
  """The rows of each distinct code: packed codes [n, B] to codes [g, B], starts [g + 1], rows [n].

  Rows starts[i] to starts[i + 1] - 1 of `rows` are the numbers of those with code i, ascending.
  """
  codes, code_of = np.unique(packed, axis=0, return_inverse=True)
  counts = np.bincount(code_of.ravel(), minlength=len(codes))
  return {'codes': codes, 'starts': np.append(0, np.cumsum(counts)),
          'rows': np.argsort(code_of.ravel(), kind='stable')}


def _saved(save, *arrays, **named) -> bytes:
  buffer = io.BytesIO()
  save(buffer, *arrays, **named)
  return buffer.getvalue()
