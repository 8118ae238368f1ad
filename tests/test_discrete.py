"""DCC against the NumPy formula, brute force and its objective; the nearest word; the sign."""

import itertools
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
import reference

from mah_jax import discrete
from mah_jax import similarity

LABEL_SETS = pathlib.Path(__file__).parent / 'data' / 'mirflickr_label_sets.npz'


def test_sign_of_zero_is_plus_one():
  assert discrete.sign(jnp.array([-0.5, 0.0, -0.0, 2.0])).tolist() == [-1, 1, 1, 1]
  assert discrete.sign(jnp.array([-3], jnp.int8)).dtype == jnp.int8
  codes = discrete.to_codes(jnp.array([[-0.5, 0.0]]))
  assert codes.dtype == jnp.int8 and codes.tolist() == [[-1, 1]]


@pytest.mark.parametrize('seed, multi, kind', [
    (0, False, 'balanced'), (1, True, 'signed'), (2, True, 'balanced'), (3, False, 'signed'),
    (2, True, 'standardized')])
def test_dcc_equals_the_formula(seed, multi, kind):
  problem = reference.problem(seed, n=400, m=90, c=2 + 3 * seed, multi=multi)
  codes = discrete.dcc(*problem, gamma=20.0, similarity=kind)
  assert codes.dtype == jnp.int8
  np.testing.assert_array_equal(codes, reference.dcc(*problem, 20.0, kind))


@pytest.mark.parametrize('kind', similarity.SIMILARITIES)
def test_dcc_equals_the_formula_on_real_label_sets(kind):
  labels = np.unpackbits(np.load(LABEL_SETS)['rows'], axis=1, count=38)
  rng = np.random.default_rng(0)
  n, m, c = len(labels), 300, 8
  codes = rng.choice([-1, 1], (n, c)).astype(np.float32)
  embeddings = np.tanh(rng.normal(size=(m, c))).astype(np.float32)
  sampled = rng.permutation(n)[:m]
  new = discrete.dcc(codes, embeddings, labels, sampled, gamma=200.0, similarity=kind)
  expected = reference.dcc(codes, embeddings, labels, sampled, 200.0, kind)
  np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize('block', [1, 7, 399])
def test_blocks_of_rows_change_nothing(block, monkeypatch):
  problem = reference.problem(3, n=400, m=90, c=6)
  monkeypatch.setattr(discrete, 'BLOCK', block)
  discrete.descend_rows.clear_cache()
  codes = discrete.dcc(*problem, gamma=20.0)
  discrete.descend_rows.clear_cache()
  np.testing.assert_array_equal(codes, reference.dcc(*problem, 20.0, 'balanced'))


def test_a_row_is_pulled_by_its_label_set_and_by_its_position_in_the_sample():
  _, embeddings, labels, sampled = reference.problem(4)
  groups = similarity.group_rows(labels)
  position, (set_pull, sampled_pull, gram) = discrete.row_problem(
      embeddings, sampled, groups.of_row, groups.sets,
      similarity.levels(groups, sampled, 'signed'), 3.0)
  pull = 5 * reference.similarity(labels, sampled, 'signed').T @ embeddings  # c = 5
  pull[sampled] += 3.0 * embeddings
  np.testing.assert_allclose(set_pull[groups.of_row] + sampled_pull[position], pull, rtol=1e-4)
  assert position[sampled].tolist() == list(range(20)) and set(position.tolist()) == {*range(21)}
  np.testing.assert_allclose(gram, embeddings.T @ embeddings, rtol=1e-5)


def test_dcc_from_zero_codes_follows_the_pull():
  _, embeddings, labels, sampled = reference.problem(1)
  codes = np.zeros((60, 5), np.int8)
  new = discrete.dcc(codes, embeddings, labels, sampled, gamma=1.0)
  assert set(np.unique(new)) == {-1, 1}
  np.testing.assert_array_equal(
      new, reference.dcc(codes, embeddings, labels, sampled, 1.0, 'balanced'))


@pytest.mark.parametrize('multi, kind', [
    (False, 'balanced'), (True, 'balanced'), (True, 'standardized')])
def test_no_sweep_raises_the_objective(multi, kind):
  codes, embeddings, labels, sampled = reference.problem(7, c=8, multi=multi)
  values = [reference.objective(codes, embeddings, labels, sampled, 3.0, kind)]
  for _ in range(5):
    codes = np.asarray(discrete.dcc(codes, embeddings, labels, sampled, gamma=3.0,
                                    similarity=kind))
    values.append(reference.objective(codes, embeddings, labels, sampled, 3.0, kind))
  assert values[1] < values[0]
  assert all(b <= a + 1e-6 * a for a, b in zip(values, values[1:]))


def test_sweeps_are_repeated_calls():
  codes, embeddings, labels, sampled = reference.problem(8, c=8)
  twice = discrete.dcc(discrete.dcc(codes, embeddings, labels, sampled, gamma=3.0),
                       embeddings, labels, sampled, gamma=3.0)
  np.testing.assert_array_equal(
      discrete.dcc(codes, embeddings, labels, sampled, gamma=3.0, sweeps=2), twice)


def test_one_bit_reaches_the_optimum():
  codes, embeddings, labels, sampled = reference.problem(9, n=9, m=4, c=1)
  new = np.asarray(discrete.dcc(codes, embeddings, labels, sampled, gamma=2.0))
  best = min(reference.objective(np.array(bits)[:, None], embeddings, labels, sampled, 2.0,
                                 'balanced')
             for bits in itertools.product([-1, 1], repeat=9))
  reached = reference.objective(new, embeddings, labels, sampled, 2.0, 'balanced')
  assert reached == pytest.approx(best)


def test_the_nearest_word_is_that_of_a_search(monkeypatch):
  monkeypatch.setattr(discrete, 'AGREEMENTS', 21)  # three rows at a time
  rng = np.random.default_rng(0)
  words = np.array(list(itertools.product((-1, 1), repeat=4)), np.int8)[rng.permutation(16)[:7]]
  embeddings = np.tanh(rng.normal(size=(50, 4))).astype(np.float32)
  expected = [min(words.tolist(), key=lambda word, u=u: sum((a - b) ** 2 for a, b in zip(word, u)))
              for u in embeddings]
  nearest = discrete.nearest(embeddings, words)
  assert nearest.dtype == np.int8 and nearest.tolist() == expected
  assert not np.array_equal(nearest, np.sign(embeddings))  # some signs are no word


def test_the_first_of_equally_near_words_is_taken():
  words = np.array([[1, -1], [-1, 1]], np.int8)
  assert discrete.nearest(np.zeros((2, 2), np.float32), words).tolist() == [[1, -1]] * 2
