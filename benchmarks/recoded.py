"""The classes that a classifier named, coded by the codewords of another run, and scored.

PYTHONPATH=. python benchmarks/recoded.py CLASSIFIER OTHER OUTPUT

A classifier gives an image the codeword of the class that it names, so that its codes tell the
class. OUTPUT gets the codes that it would have had with the codewords of OTHER, a run on the same
images with the same code lengths and one codeword for each class, and their scores: which part of a
difference between the two runs lies in the codewords, and which in the network. --mode=evaluate
scores OUTPUT again.
"""

import argparse
import pathlib
import shutil

import numpy as np

from mah_jax import config as config_lib
from mah_jax import flags
from mah_jax.evaluation import scores
from mah_jax.runs import folder as folder_lib
from mah_jax.runs import results
from mah_jax.runs import table
from mah_jax.train import dataset


def opened(path: str) -> tuple[folder_lib.RunFolder, config_lib.Config]:
  return folder_lib.RunFolder(path), flags.from_arguments(['--mode=evaluate', f'--workdir={path}'])


def codewords(codes: list[scores.Codes], labels: np.ndarray) -> list[np.ndarray]:
  """The codeword of each class, [L, c] for each length; labels one-hot, [n, L]."""
  books = []
  for of_length in codes:
    words = of_length.learned[labels.argmax(axis=0)]  # of the first row of each class
    if not np.array_equal(words[labels.argmax(axis=1)], of_length.learned):
      raise SystemExit('A class has several codewords.')
    books.append(words)
  return books


def named(codes: np.ndarray, words: np.ndarray) -> np.ndarray:
  """The class whose codeword each row has: [rows, c], [L, c] -> [rows]."""
  equal = (codes[:, None] == words[None]).all(axis=2)
  if not (equal.sum(axis=1) == 1).all():
    raise SystemExit('A code is not the codeword of exactly one class.')
  return equal.argmax(axis=1)


def recode(classifier: str, other: str, output: str) -> dict:
  """Writes the folder OUTPUT and returns its results."""
  (source, config), (words_of, other_config) = opened(classifier), opened(other)
  data = dataset.load(config)
  labels = data.labels[data.protocol.database]
  outcome = results.read_codes(source, config, data)
  (mine,), (theirs,) = outcome.codes, results.kept_codes(words_of, other_config, data)[0]
  books = codewords(theirs, labels)
  longest, words = mine[-1], codewords(mine, labels)[-1]
  queries, encoded = named(longest.queries, words), named(longest.encoded, words)
  coded = [scores.Codes(book[queries], book[labels.argmax(axis=1)], book[encoded])
           for book in books]
  folder = folder_lib.RunFolder(output)
  folder.path.mkdir(parents=True)
  shutil.copy(pathlib.Path(classifier) / 'config.json', folder.path)
  return results.write_packed(folder, config, data, outcome._replace(codes=[coded], metrics=[
      results.score(config, data, coded, outcome.progress.get('code_updates'))]))


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  for name in ('classifier', 'other', 'output'):
    parser.add_argument(name)
  table.say(recode(**vars(parser.parse_args())))


if __name__ == '__main__':
  main()
