"""The database of a run, ready to be searched: names, labels, codes of every length, second keys.

It is one file, RUN/index/index.npz, made at the first search and sealed by what it was made from.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import discrete
from mah_jax import errors
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import results
from mah_jax.search import keys as keys_lib
from mah_jax.train import features as features_lib
from mah_jax.train import hasher as hasher_lib
from mah_jax.train import step as step_lib

VERSION = 1
LEARNED, ENCODED = KINDS = 'learned', 'encoded'  # codes that were solved for, codes by the network
SAMPLE = 4096   # rows that the axes of second keys are fitted to
CODEWORDS = 2000  # database rows whose codes decide the codes of new rows with labels
SWEEPS = 5      # passes over the bits of such a code
OWN = -1        # in `folder_of`: a row of the run's own dataset


class Database(NamedTuple):
  """The rows that a search may answer.

  names: the file of each row below its folder or, where images are no files, its number in the
    dataset, as a text.
  folder_of: which of `folders` each row is from, or OWN, [n] int32.
  folders: folders whose images were added after training.
  labels: 0/1, [n, L] uint8.
  class_names: [L].
  codes: packed codes by kind and length, such as 'learned_4', [n, ceil(c / 8)] uint8.
  keys: second keys, [n, b] int8; b = 0 where there are none.
  reduction: the map from features to keys, or None.
  made_from: what the file was made from: the hash of the run's codes, and the size of its keys.
  """
  names: list[str]
  folder_of: np.ndarray
  folders: list[str]
  labels: np.ndarray
  class_names: tuple[str, ...]
  codes: dict[str, np.ndarray]
  keys: np.ndarray
  reduction: keys_lib.Reduction | None
  made_from: dict[str, Any]

  @property
  def kinds(self) -> list[str]:
    """The kinds of codes that there are, those that a search takes by default first."""
    return [kind for kind in KINDS if any(name.startswith(f'{kind}_') for name in self.codes)]

  def labels_of(self, row: int) -> tuple[str, ...]:
    """The labels of a row in words."""
    return tuple(self.class_names[i] for i in np.flatnonzero(self.labels[row]))


def path_of(folder: folder_lib.RunFolder) -> pathlib.Path:
  """The file that the database of a run is kept in."""
  return folder.path / 'index' / 'index.npz'


def made_from(folder: folder_lib.RunFolder, config: config_lib.Config) -> dict[str, Any]:
  """What the database of a run is made from."""
  if not folder.archive.exists():
    raise errors.InputError(f'The run in {folder.path} has no codes to search yet: let its '
                            'training end first.')
  results.check_same(folder, config)
  return {'version': VERSION, 'key_bytes': config.key_bytes,
          'codes': hashlib.sha256(storage.read_file(folder.archive)).hexdigest()}


def build(config: config_lib.Config, data: datasets.Dataset, folder: folder_lib.RunFolder,
          devices: step_lib.Devices, hasher: hasher_lib.Hasher | None) -> Database:
  """Makes the database of a run from its codes, and second keys from its images.

  Args:
    config: the run, and --key_bytes.
    data: its dataset.
    folder: its folder.
    devices: where features are computed that nobody has kept.
    hasher: it gives the features of images; None where no keys are asked for.
  """
  source = made_from(folder, config)
  codes, _ = results.kept_codes(folder, config, data)
  packed = {}
  for c, of_length in zip(config.code_lengths, codes[0]):  # of the first seed
    for kind in KINDS:
      array = getattr(of_length, kind)
      if array is not None:
        packed[f'{kind}_{c}'] = np.packbits(array > 0, axis=1)
  rows = data.protocol.database
  keys, reduction = np.zeros((len(rows), 0), np.int8), None
  if config.key_bytes and len(rows):
    keys, reduction = _keys(_features(config, data, devices, hasher), len(rows), config.key_bytes)
  return Database([str(name) for name in data.row_names(rows)],
                  np.full(len(rows), OWN, np.int32), [], data.labels[rows].astype(np.uint8),
                  tuple(data.class_names), packed, keys, reduction, source)


def _features(config: config_lib.Config, data: datasets.Dataset, devices: step_lib.Devices,
              hasher: hasher_lib.Hasher) -> Iterator[np.ndarray]:
  """The features of the database's rows in order, some rows at a time, [b, D]."""
  rows = data.protocol.database
  if config.reads_features:  # they were kept when the run read them
    values = features_lib.extract(config, data, devices).values
    return (np.asarray(values[rows[start:start + SAMPLE]])
            for start in range(0, len(rows), SAMPLE))
  return (part.features for part in hasher.parts(data.images, rows))


def _keys(features: Iterator[np.ndarray], total: int, size: int
          ) -> tuple[np.ndarray, keys_lib.Reduction]:
  """Keys of all rows; the axes are those of the first rows, which come in random order."""
  kept, keys, reduction = [], [], None
  with console.bar(total, 'second keys of the database') as bar:
    for part in features:
      kept.append(part)
      waiting = sum(map(len, kept))
      bar.update(len(part))
      if reduction is None and (waiting >= SAMPLE or waiting == total):
        reduction = keys_lib.fit(np.concatenate(kept), size)
      if reduction is not None:
        keys += [keys_lib.apply(reduction, x) for x in kept]
        kept = []
  return np.concatenate(keys), reduction


def add(database: Database, folder: str, names: Sequence[str], labels: np.ndarray | None,
        hashed: hasher_lib.Hashed, code_lengths: Sequence[int]) -> Database:
  """The database with further images.

  An image gets the code that the network gives it. Where database codes are learned and it has
  labels, it gets the code of its labels among these, see `codes_of_labels`.

  Args:
    database: it stays as it is.
    folder: the folder of the images.
    names: their files.
    labels: 0/1, [a, L]; a row without labels has none. None: none has labels.
    hashed: what the run's hasher makes of them.
    code_lengths: bits of each of its codes.
  """
  if labels is None:
    labels = np.zeros((len(names), len(database.class_names)), np.uint8)
  codes = dict(database.codes)
  for c, of_length in zip(code_lengths, hashed.database_codes):
    for kind in database.kinds:
      new, name = of_length, f'{kind}_{c}'
      if kind == LEARNED and labels.any():
        known = labels.any(axis=1)
        new = of_length.copy()
        new[known] = codes_of_labels(_unpack(database.codes[name], c), database.labels,
                                     labels[known])
      codes[name] = np.concatenate([database.codes[name], np.packbits(new > 0, axis=1)])
  keys = (np.zeros((len(names), 0), np.int8) if database.reduction is None else
          keys_lib.apply(database.reduction, hashed.features))
  folders = [*database.folders] if folder in database.folders else [*database.folders, folder]
  return database._replace(
      names=[*database.names, *names], folders=folders,
      folder_of=np.append(database.folder_of,
                          np.full(len(names), folders.index(folder), np.int32)),
      labels=np.concatenate([database.labels, labels]), codes=codes,
      keys=np.concatenate([database.keys, keys]))


def codes_of_labels(codes: np.ndarray, labels: np.ndarray, new_labels: np.ndarray) -> np.ndarray:
  """The codes of rows of which only the labels are known.

  Coordinate descent gave rows with the same labels much the same code: a new row gets their
  commonest. Where no row has its labels, it is solved for (Eq. 12), with the learned codes of
  database rows in the place of their outputs H and the balanced similarity {1, -r} of these rows:
  it wants a code near those of rows that share a label with it, and far from the others.

  Args:
    codes: learned codes of the database, [n, c] int8.
    labels: their labels, 0/1, [n, L].
    new_labels: 0/1, [a, L], a label at least in each row.

  Returns:
    [a, c] int8.
  """
  sample = np.linspace(0, len(codes) - 1, min(len(codes), CODEWORDS)).astype(int)
  h, known = codes[sample].astype(np.float32), labels[sample].astype(np.int32)  # [m, c], [m, L]
  sets, set_of = np.unique(new_labels, axis=0, return_inverse=True)             # [g, L], [a]
  similar = sets.astype(np.int32) @ known.T > 0                                 # [g, m]
  among = known @ known.T > 0
  r = among.sum() / max(1, (~among).sum())
  pull = codes.shape[1] * np.where(similar, 1.0, -r).astype(np.float32) @ h     # [g, c]
  solved = np.array(discrete.descend(np.where(pull >= 0, 1, -1).astype(np.int8), pull, h.T @ h,
                                     sweeps=SWEEPS))
  for one, code in zip(sets, solved):
    rows = (labels == one).all(axis=1)
    if rows.any():
      words, counts = np.unique(codes[rows], axis=0, return_counts=True)
      code[:] = words[counts.argmax()]
  return solved[set_of.ravel()]


def _unpack(packed: np.ndarray, c: int) -> np.ndarray:
  return np.unpackbits(packed, axis=1, count=c).astype(np.int8) * 2 - 1


def save(database: Database, target: pathlib.Path):
  """Writes the database as one file."""
  arrays = {'labels': database.labels, 'folder_of': database.folder_of, 'keys': database.keys,
            **{f'codes/{name}': packed for name, packed in database.codes.items()}}
  if database.reduction is not None:
    arrays |= {f'reduction/{name}': x for name, x in database.reduction._asdict().items()}
  texts = {'names': database.names, 'folders': database.folders,
           'class_names': list(database.class_names), 'made_from': database.made_from}
  arrays['texts'] = np.frombuffer(json.dumps(texts).encode(), np.uint8)
  storage.write_npz(target, arrays)


def load(source: pathlib.Path) -> Database:
  """Reads a database; a damaged file is refused."""
  try:
    arrays = storage.read_npz(source, sealed=True)
    texts = storage.parse_json(arrays.pop('texts').tobytes())
  except (OSError, ValueError, LookupError) as error:
    raise errors.InputError(f'{source} is damaged ({getattr(error, "strerror", None) or error}): '
                            'remove it, and the next search makes it anew; images that were added '
                            'must be added again.') from error
  parts = {'codes': {}, 'reduction': {}}
  for name in [name for name in arrays if '/' in name]:
    group, _, rest = name.partition('/')
    parts[group][rest] = arrays.pop(name)
  reduction = keys_lib.Reduction(**parts['reduction']) if parts['reduction'] else None
  return Database(texts['names'], arrays['folder_of'], texts['folders'], arrays['labels'],
                  tuple(texts['class_names']), parts['codes'], arrays['keys'], reduction,
                  texts['made_from'])
