"""Codebooks of well-separated codewords, one per label, and the codes of label sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESTARTS = 16     # searches for each length, of which the best is kept
MAX_TAILS = 1024  # ways to lengthen a codeword that a search looks at
PULL = 8.0        # weight of a confusion per bit, chosen on features of CIFAR-10's validation part


def codebook(num_labels: int, code_lengths: Sequence[int], seed: int,
             confusion: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
  """Well-separated codewords for each length, ([L, c], ...) int8.

  A longer codeword begins with the shorter one, so that a cascade can pass it on. Each length
  minimises sum_ab 4^-distance(a, b) by changing one codeword at a time, which first of all
  avoids equal codewords, then distance 1, and so on. With confusions the sum has PULL c / 2^c
  confusion(a, b) distance(a, b) as well, so that labels that are often taken for each other have
  near codewords: a mistake costs few bits, and fewer bits tell labels apart that look alike.

  Args:
    num_labels: L.
    code_lengths: bits of each length, ascending.
    seed: of the searches.
    confusion: how often images of a label are taken for another, 0 to 1, [L, L]; its diagonal does
      not matter. None: never.
  """
  if num_labels < 1 or int(num_labels) != num_labels:
    raise ValueError(f'num_labels={num_labels} must be a whole number, 1 or more.')
  if list(code_lengths) != sorted({int(c) for c in code_lengths if c >= 1}):
    raise ValueError(f'code_lengths={tuple(code_lengths)} must be whole numbers of bits, ascending '
                     'from 1 on.')
  confusion = np.zeros((num_labels, num_labels)) if confusion is None else np.asarray(confusion)
  if confusion.shape != (num_labels, num_labels):
    raise ValueError(f'confusion has shape {confusion.shape}; give a row and a column for each of '
                     f'{num_labels} labels.')
  alike = (confusion + confusion.T) / 2 * (1 - np.eye(num_labels))
  rng = np.random.default_rng(seed)
  words = np.zeros((num_labels, 0), np.int8)
  books = []
  for c in code_lengths:
    pull = PULL * c / 2**c * alike
    tries = [_extend(words, c, pull, rng) for _ in range(RESTARTS)]
    words = min(tries, key=lambda pair: pair[0])[1]
    books.append(words)
  return tuple(books)


def codes_from_labels(labels: np.ndarray, words: np.ndarray) -> np.ndarray:
  """The codes of rows: the sign of the sum of their labels' codewords, ties broken evenly.

  A tie at bit k goes to the codeword of the row's first label where k and the numbers of the row's
  labels have an even sum, and to the codeword of its last label elsewhere. A row without labels
  gets signs that alternate from +1 on. So equal label sets have equal codes, a code of longer
  codewords begins with the code of shorter ones, and of its pairs with other labels a label
  decides about half.

  Args:
    labels: 0/1, [n, L].
    words: a codebook, [L, c].

  Returns:
    [n, c] int8.
  """
  labels, words = np.asarray(labels), np.asarray(words)
  if labels.ndim != 2 or words.ndim != 2 or labels.shape[1] != len(words):
    raise ValueError(f'labels have shape {labels.shape} and codewords {words.shape}; give [n, L] '
                     'and [L, c], a codeword for each label.')
  labels, bits = labels > 0, np.arange(words.shape[1])
  first = np.argmax(labels, axis=1)  # [n]
  last = labels.shape[1] - 1 - np.argmax(labels[:, ::-1], axis=1)
  even = (labels[:, 1::2].sum(axis=1)[:, None] + bits) % 2 == 0  # [n, c]
  favoured = np.where(even, words[first], words[last])
  favoured[~labels.any(axis=1)] = 1 - 2 * (bits % 2)
  sums = labels.astype(np.float32) @ words.astype(np.float32)  # whole numbers, exact
  return np.where(sums == 0, favoured, np.sign(sums)).astype(np.int8)


def _extend(prefix: np.ndarray, c: int, pull: np.ndarray,
            rng: np.random.Generator) -> tuple[float, np.ndarray]:
  """Adds bits to codewords [L, c0] by coordinate descent -> (energy, codewords [L, c]).

  `pull` [L, L] is what a bit in which two codewords differ adds to the energy.
  """
  num_labels, c0 = prefix.shape
  added = c - c0
  if 2**added <= MAX_TAILS:
    tails = np.array(np.meshgrid(*[[-1, 1]] * added)).reshape(added, -1).T.astype(np.int8)
  else:
    tails = rng.choice(np.array([-1, 1], np.int8), (MAX_TAILS, added))
  closeness = 0.25 ** np.arange(c + 1)  # by distance; powers of two, all of them exact
  choice = rng.integers(len(tails), size=num_labels)
  prefixes = closeness[_distances(prefix, prefix)]  # [L, L]
  np.fill_diagonal(prefixes, 0.0)  # a codeword does not see itself
  between = _distances(tails[choice], tails)  # [L, tails]

  def costs(labels):
    """The energy that each tail would give the codewords of some labels, [.., tails]."""
    return prefixes[labels] @ closeness[between] + pull[labels] @ between

  def total():
    return np.sum(costs(slice(None))[np.arange(num_labels), choice])

  energy, before = total(), np.inf
  while energy < before:
    for a in range(num_labels):
      cost = costs(a)
      best = np.flatnonzero(cost <= cost.min() * (1 + 1e-9))
      if choice[a] not in best:
        choice[a] = rng.choice(best)
        between[a] = _distances(tails[choice[a]][None], tails)[0]
    energy, before = total(), energy
  return energy, np.concatenate([prefix, tails[choice]], axis=1)


def _distances(words: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Bits in which words [k, c] and others [l, c] differ, [k, l]."""
  # Products of floats are much faster than products of integers.
  products = words.astype(np.float32) @ others.T.astype(np.float32)
  return ((words.shape[1] - products) / 2).astype(np.intp)
