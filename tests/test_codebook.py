"""Codebooks are separated, near for confused labels, nested; so are codes of label sets by hand."""

import itertools
import pathlib

import numpy as np
import pytest

from mah_jax import codebook
from mah_jax.methods import confusion

LABEL_SETS = pathlib.Path(__file__).parent / 'data' / 'mirflickr_label_sets.npz'


def _distances(words):
  return [int(np.sum(a != b)) for a, b in itertools.combinations(words, 2)]


@pytest.mark.parametrize('seed', range(5))
def test_codebooks_are_distinct_separated_and_nested(seed):
  books = codebook.codebook(10, (4, 6, 8, 16), seed)
  assert [book.shape for book in books] == [(10, 4), (10, 6), (10, 8), (10, 16)]
  for book, least in zip(books, (1, 2, 3, 6)):
    assert book.dtype == np.int8 and set(np.unique(book)) == {-1, 1}
    assert min(_distances(book)) >= least
  for short, long in itertools.pairwise(books):
    np.testing.assert_array_equal(long[:, :short.shape[1]], short)


@pytest.mark.parametrize('arguments, texts', [
    ((10, (4, 6), 0), ['1011 0111 1110 0100 1000 1111 0001 0000 0010 1101',
                       '101111 011101 111010 010000 100001 111100 000110 000011 001000 110111']),
    ((3, (1, 12), 5), ['1 1 0', '110101110011 111010011101 001100101000']),  # random tails
])
def test_codebooks_are_those_of_earlier_versions(arguments, texts):
  for book, text in zip(codebook.codebook(*arguments), texts, strict=True):
    assert ' '.join(''.join('1' if bit > 0 else '0' for bit in word) for word in book) == text


def _energy(book, shares):
  """What a codebook of [L, c] minimises, pair by pair."""
  c = book.shape[1]
  return sum(0.25 ** np.sum(a != b) + codebook.PULL * c / 2**c * shares[i, j] * np.sum(a != b)
             for i, a in enumerate(book) for j, b in enumerate(book) if i != j)


@pytest.mark.parametrize('seed', range(3))
def test_labels_that_are_confused_have_near_codewords(seed):
  shares = np.zeros((4, 4))
  shares[0, 1] = shares[3, 2] = 0.1
  short, long = codebook.codebook(4, (2, 6), seed, shares)
  best = min(_energy(np.array(book), shares)
             for book in itertools.permutations(itertools.product((-1, 1), repeat=2)))
  assert _energy(short, shares) == pytest.approx(best)
  for book in (short, long):
    distance = np.sum(book[:, None] != book[None], axis=2)
    others = distance[np.ix_([0, 1], [2, 3])]
    assert 0 < max(distance[0, 1], distance[2, 3]) < np.mean(others)
  assert _energy(long, shares) < _energy(codebook.codebook(4, (2, 6), seed)[1], shares)


def test_the_diagonal_of_confusions_does_not_matter():
  books = [codebook.codebook(5, (3, 7), 0, shares) for shares in (np.eye(5), None)]
  for book, plain in zip(*books):
    np.testing.assert_array_equal(book, plain)


def test_confusions_are_those_of_least_squares_on_other_rows():
  rng = np.random.default_rng(0)
  labels = np.eye(4, dtype=np.uint8)[rng.integers(3, size=5000)]  # no image has the last label
  features = (3.0 + rng.normal(size=(5000, 6)) * [1, 5, 1, 1, 1, 1]).astype(np.float32)
  features[:, :3] += labels[:, :3] * [[1.5, 3.0, 1.5]]
  features[:, 5] = 7.0  # which never changes
  x = np.hstack([(features - features.mean(0)) / np.maximum(features.std(0), 1e-3),
                 np.ones((5000, 1))]).astype(np.float64)
  likeliest, part = np.zeros(5000, int), np.arange(5000) % confusion.PARTS
  for i in range(confusion.PARTS):
    ridge = np.sqrt(confusion.RIDGE * np.sum(part != i)) * np.eye(7)
    weights = np.linalg.lstsq(np.vstack([x[part != i], ridge]),
                              np.vstack([labels[part != i], np.zeros((7, 4))]))[0]
    likeliest[part == i] = (x[part == i] @ weights).argmax(axis=1)
  expected = [[np.mean(likeliest[labels[:, a] == 1] == b) if a < 3 else 0 for b in range(4)]
              for a in range(4)]
  np.testing.assert_allclose(confusion.of_classifier(features, labels), expected, atol=2e-3)
  assert 0.05 < expected[0][1] < 0.95


def test_confusions_are_seen_where_a_classifier_could_learn_its_rows_by_heart():
  rng = np.random.default_rng(0)
  labels = np.eye(2, dtype=np.uint8)[rng.integers(2, size=300)]
  shares = confusion.of_classifier(rng.normal(size=(300, 600)).astype(np.float32), labels)
  assert np.all(np.abs(shares - 0.5) < 0.2)  # of noise a half is taken for the other
  alone = confusion.of_classifier(np.ones((1, 3), np.float32), labels[:1])
  assert alone.shape == (2, 2)  # nothing to learn from, and nothing to fail at


def test_more_labels_than_codewords_share_them_evenly():
  book, = codebook.codebook(8, (2,), seed=0)
  assert sorted(np.unique(book, axis=0, return_counts=True)[1]) == [2, 2, 2, 2]


def test_codes_of_label_sets_by_hand():
  words = np.array([[1, 1, -1, 1], [1, -1, -1, -1], [-1, -1, 1, 1]], np.int8)
  labels = np.array([[0, 1, 0], [1, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [0, 0, 0]])
  assert codebook.codes_from_labels(labels, words).tolist() == [
      [1, -1, -1, -1],  # the word of the only label
      [1, -1, -1, 1],   # the majority of three
      # Two labels of an odd sum, 0 + 1: ties at bits 1 and 3 go to the first of them.
      [1, 1, -1, 1],
      # Two labels of an even sum, 0 + 2: ties at bits 0 and 2 go to the first, at 1 to the last.
      [1, -1, -1, 1],
      # Two labels of an odd sum, 1 + 2: ties at bits 0 and 2 go to the last, at 3 to the first.
      [-1, -1, 1, -1],
      [1, -1, 1, -1],   # no label: signs alternate
  ]


@pytest.fixture(scope='module', params=[(24, 0), (24, 1), (38, 0), (38, 1), (38, 2)], ids=str)
def books(request):
  num_labels, seed = request.param
  return codebook.codebook(num_labels, (4, 7, 8, 16), seed)


def test_no_sign_is_favoured_where_two_labels_disagree(books):
  num_labels = len(books[0])
  pairs = itertools.combinations(range(num_labels), 2)
  labels = np.array([np.isin(np.arange(num_labels), pair) for pair in pairs])
  for words in books:
    codes = codebook.codes_from_labels(labels, words)
    assert 0.45 < np.mean(codes > 0) < 0.55
    assert np.all(np.abs(np.mean(codes > 0, axis=0) - 0.5) < 0.1)  # and so is each bit


def test_codes_follow_from_the_label_set_and_longer_ones_begin_with_shorter_ones(books):
  rng = np.random.default_rng(0)
  labels = rng.random((300, len(books[0]))) < 0.1
  codes = [codebook.codes_from_labels(labels.astype(np.uint8), words) for words in books]
  for short, long in itertools.pairwise(codes):
    assert long.dtype == np.int8 and set(np.unique(long)) == {-1, 1}
    np.testing.assert_array_equal(long[:, :short.shape[1]], short)
  order = rng.permutation(300)
  np.testing.assert_array_equal(codebook.codes_from_labels(labels[order], books[0]),
                                codes[0][order])
  np.testing.assert_array_equal(codebook.codes_from_labels(np.eye(len(books[0])), books[-1]),
                                books[-1])


def test_codes_of_real_label_sets_are_balanced():
  labels = np.unpackbits(np.load(LABEL_SETS)['rows'], axis=1, count=38)
  shares = np.array([[[np.mean(codebook.codes_from_labels(rows, words) > 0)
                       for rows in (labels, labels[labels.sum(axis=1) == 2])]
                      for words in codebook.codebook(38, (4, 8), seed)] for seed in range(6)])
  assert np.all(np.abs(shares.mean(axis=(0, 1)) - 0.5) < 0.05)  # of all sets, and of pairs
  assert np.all(np.abs(shares[..., 0] - 0.5) < 0.12)
