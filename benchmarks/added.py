"""What new images lose when they are added without labels, or even with them.

PYTHONPATH=. python benchmarks/added.py RUN [--data_dir=...]

RUN was made with a protocol that leaves images of its dataset out (cifar10-validation). These are
the new images: its queries search among them alone. With labels they have the codes that
--mode=index gives to their labels; without, those of the network.
"""

import sys

import numpy as np

import mah_jax
from mah_jax.evaluation import metrics
from mah_jax.search import database as database_lib


def main(folder, **settings):
  searcher = mah_jax.load(folder, **settings)
  data, split = searcher.data, searcher.data.protocol
  new = np.setdiff1d(np.arange(len(data.labels)), np.append(split.queries, split.database))
  hashed, queries = (searcher.hash(data.images[rows]) for rows in (new, split.queries))
  labels = data.labels[split.queries], data.labels[new]
  print(f'{len(new)} new images\nbits  without labels  with labels')
  for head, c in enumerate(searcher.code_lengths):
    learned = np.unpackbits(searcher.database.codes[f'learned_{c}'], axis=1, count=c)
    solved = database_lib.codes_of_labels(learned.astype(np.int8) * 2 - 1,
                                          data.labels[split.database], labels[1])
    scores = [metrics.evaluate(queries.codes[head], codes, *labels)['map']
              for codes in (hashed.database_codes[head], solved)]
    print(f'{c:4}  {scores[0]:14.3f}  {scores[1]:11.3f}')


if __name__ == '__main__':
  main(sys.argv[1], **dict(argument.lstrip('-').split('=', 1) for argument in sys.argv[2:]))
