"""--mode=index: images are added to the database of a run, without training anew."""

from __future__ import annotations

import os

import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.data import folder as folder_data
from mah_jax.data import images as images_lib
from mah_jax.modes import search
from mah_jax.search import database as database_lib
from mah_jax.search import searcher as searcher_lib
from mah_jax.train import hasher as hasher_lib


def index(config: config_lib.Config):
  """Adds --images to the database of the run in --workdir."""
  with console.StopRequest('Stopped; the index is what it was.'):
    folder, names = search.files_of(config.images)
    searcher = searcher_lib.Searcher(config)
    names, known = _new(searcher, str(folder.resolve()), names)
    if known:
      console.say(f'{known} images are in the index already: left as they are.')
    if not names:
      return
    labels = _labels(folder, names, searcher.class_names)
    bad = {}  # row: reason
    images = images_lib.Encoded(lambda row: storage.read_file(folder / names[row]), names)
    hashed = searcher.hash(images, bad.__setitem__)
    good = np.setdiff1d(np.arange(len(names)), list(bad))
    for row in sorted(bad):
      console.say(f'Skipped {names[row]}: {bad[row]}.')
    if not len(good):
      raise errors.InputError(f'None of the new images in {config.images} can be read.')
    console.pause()
    searcher.add(folder, [names[row] for row in good], hasher_lib.select(hashed, good),
                 None if labels is None else labels[good])
    labelled = 0 if labels is None else int(labels[good].any(axis=1).sum())
    console.say(f'{len(good)} images added, {labelled} of them with labels, {len(bad)} skipped; '
                f'{len(searcher):,} rows can be found now.')


def _new(searcher: searcher_lib.Searcher, folder: str, names: list[str]) -> tuple[list[str], int]:
  """The names of files that are not in the database yet, and how many are."""
  database, config = searcher.database, searcher.config
  own = os.path.realpath(storage.path(config.data_dir))
  if not os.path.isdir(own):
    own = os.path.dirname(own)  # of a list of files
  if not datasets.SPECS[config.dataset].has_names:
    own = ''
  there = {os.path.join(own if of == database_lib.OWN else database.folders[of], name)
           for name, of in zip(database.names, database.folder_of)}
  new = [name for name in names if os.path.join(folder, name) not in there]
  return new, len(names) - len(new)


def _labels(folder, names: list[str], class_names: tuple[str, ...]) -> np.ndarray | None:
  """The labels that a labels.csv in the folder gives these images, [a, L].

  Without one, an image in a sub-folder with the name of a class has this label, as in training;
  None where no image has any.
  """
  labels = np.zeros((len(names), len(class_names)), np.uint8)
  number = {name: i for i, name in enumerate(class_names)}
  file = folder / folder_data.CSV
  if not os.path.lexists(file):
    for row, name in enumerate(names):
      of_folder, is_below, _ = name.partition('/')
      if is_below and of_folder in number:
        labels[row, number[of_folder]] = 1
    return labels if labels.any() else None
  of_name = folder_data.read_labels(file)
  for name in of_name:
    if not os.path.lexists(folder / name):
      raise errors.InputError(f'{file} names {name}, which is not there: correct the name, or '
                              'remove its line.')
  for row, name in enumerate(names):
    for label in of_name.get(name, ()):
      if label not in number:
        raise errors.InputError(f'{file} gives {name} the label {label!r}, which the run does not '
                                f'know: choose among {", ".join(class_names[:20])}.')
      labels[row, number[label]] = 1
  return labels
