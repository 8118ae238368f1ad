"""LSH: bits against their formula, and what their expectation promises of angles."""

import math

import jax
import numpy as np
import pytest

from mah_jax.methods import lsh
from mah_jax.train import shallow


def _data(n=40, size=6, seed=0):
  rng = np.random.default_rng(seed)
  return rng.random((n, size), np.float32), np.eye(4, dtype=np.uint8)[rng.integers(4, size=n)]


@pytest.mark.parametrize('degrees', [10, 45, 90, 150])
def test_differing_bits_measure_the_angle(degrees):
  angle = math.radians(degrees)
  x = np.array([[5.0, 0, 0], [math.cos(angle), math.sin(angle), 0]], np.float32)
  bits = 40_000
  method = lsh.make(lsh.Options())
  state = method.fit(x, np.ones((2, 1)), bits, jax.random.key(0)).state
  first, second = shallow.encode(method, state, x)[0]
  share = angle / math.pi
  deviation = math.sqrt(share * (1 - share) / bits)
  assert np.mean(first != second) == pytest.approx(share, abs=4 * deviation)


@pytest.mark.parametrize('center', [False, True])
def test_bits_equal_the_formula(center):
  x, labels = _data()
  queries, _ = _data(seed=1)
  method = lsh.make(lsh.Options(center=center))
  state = method.fit(x, labels, 5, jax.random.key(0)).state
  codes = shallow.encode(method, state, queries)[0]
  assert codes.dtype == np.int8
  mean = x.astype(np.float64).mean(axis=0) if center else np.zeros(6)
  w = np.asarray(state.projection, np.float64)
  for row, code in zip(queries, codes):
    for k in range(5):
      assert code[k] == (1 if sum((row - mean) * w[:, k]) >= 0 else -1)


def test_hyperplanes_pass_through_the_origin_unless_asked():
  x, labels = _data()
  for center, same in ((False, True), (True, False)):
    method = lsh.make(lsh.Options(center=center))
    state = method.fit(x, labels, 32, jax.random.key(0)).state
    codes, scaled = (shallow.encode(method, state, rows)[0] for rows in (x, 9 * x))
    assert np.array_equal(codes, scaled) == same


def test_normals_are_standard_gaussian():
  method = lsh.make(lsh.Options())
  state = method.fit(np.zeros((1, 100)), None, 400, jax.random.key(0)).state
  w = np.asarray(state.projection)
  assert abs(w.mean()) < 0.02
  assert w.std() == pytest.approx(1.0, abs=0.02)


def test_codes_do_not_depend_on_labels_and_none_are_learned():
  x, labels = _data()
  method = lsh.make(lsh.Options())
  fits = [method.fit(x, y, 8, jax.random.key(0)) for y in (labels, 1 - labels)]
  jax.tree.map(np.testing.assert_array_equal, *fits)
  assert fits[0].codes is None
