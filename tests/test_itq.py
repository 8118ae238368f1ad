"""ITQ: principal directions, the best rotation by brute force, descent of the alternation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mah_jax import errors
from mah_jax.methods import base
from mah_jax.methods import itq
from mah_jax.methods import scaling
from mah_jax.train import shallow


def _data(n=60, size=6, seed=0):
  """Rows off the origin whose columns have different spreads and go together."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(n, size)) * np.arange(size, 0, -1) @ rng.normal(size=(size, size)) + 3
  return x.astype(np.float32)


def _fit(x, c, key=0, **numbers):
  method = itq.make(base.NoOptions(), **numbers)
  return method, method.fit(x, None, c, jax.random.key(key)).state


def _error(projected, rotation):
  values = np.asarray(projected, np.float64) @ np.asarray(rotation, np.float64)
  return np.sum((np.where(values >= 0, 1, -1) - values)**2)


def test_principal_directions_equal_the_svd(monkeypatch):
  monkeypatch.setattr(scaling, 'BLOCK', 7)
  x = _data()
  _, state = _fit(x, 3)
  _, _, right = np.linalg.svd(x - x.mean(axis=0, dtype=np.float64))
  axes = np.asarray(state.principal.projection)
  alignment = np.abs(right[:3] @ axes)  # up to sign, in this order
  np.testing.assert_allclose(alignment, np.eye(3), atol=1e-4)


@pytest.mark.parametrize('seed', range(4))
def test_procrustes_equals_brute_force_in_the_plane(seed):
  rng = np.random.default_rng(seed)
  source = rng.normal(size=(20, 2))
  target = rng.choice([-1.0, 1.0], (20, 2))
  if seed % 2:  # a mirror image, which no proper rotation reaches
    target = source @ np.diag([1.0, -1.0]) + 0.1 * rng.normal(size=(20, 2))
  angles = np.linspace(0, 2 * np.pi, 20_000)
  turned = np.stack([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]])
  candidates = np.concatenate([turned, turned * np.array([1, -1])[None, :, None]], axis=2)
  least = np.sum((target - source @ np.moveaxis(candidates, 2, 0))**2, axis=(1, 2)).min()
  rotation = np.asarray(itq.procrustes(jnp.asarray(source), jnp.asarray(target)))
  np.testing.assert_allclose(rotation.T @ rotation, np.eye(2), atol=1e-5)
  assert np.sum((target - source @ rotation)**2) == pytest.approx(least, rel=1e-5)


@pytest.mark.parametrize('seed', range(3))
def test_no_iteration_raises_the_error_and_r_stays_orthogonal(seed):
  rng = np.random.default_rng(seed)
  projected = rng.normal(size=(200, 8)).astype(np.float32)
  rotation = np.linalg.svd(rng.normal(size=(8, 8)))[0].astype(np.float32)
  values = [_error(projected, rotation)]
  for _ in range(20):
    rotation = itq.rotate(projected, rotation, 1)
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(8), atol=1e-5)
    values.append(_error(projected, rotation))
  assert values[1] < values[0]
  assert all(b <= a * (1 + 1e-6) for a, b in itertools.pairwise(values))


def test_iterations_are_repeated_steps():
  rng = np.random.default_rng(0)
  projected = rng.normal(size=(50, 4)).astype(np.float32)
  rotation = start = np.linalg.svd(rng.normal(size=(4, 4)))[0].astype(np.float32)
  for _ in range(5):
    rotation = itq.rotate(projected, rotation, 1)
  np.testing.assert_allclose(itq.rotate(projected, start, 5), rotation, atol=1e-5)


def test_the_start_is_a_random_rotation():
  first, again, other = (_fit(_data(), 4, key, iterations=0)[1] for key in (0, 0, 1))
  np.testing.assert_allclose(first.rotation.T @ first.rotation, np.eye(4), atol=1e-5)
  np.testing.assert_array_equal(first.rotation, again.rotation)
  assert not np.allclose(first.rotation, other.rotation)


def test_bits_equal_the_formula_with_the_training_mean():
  x, queries = _data(), _data(seed=1) + 1
  method, state = _fit(x, 4)
  codes = shallow.encode(method, state, queries)[0]
  assert codes.dtype == np.int8
  w = (np.asarray(state.principal.projection, np.float64)
       @ np.asarray(state.rotation, np.float64))
  expected = (queries - x.astype(np.float64).mean(axis=0)) @ w >= 0
  np.testing.assert_array_equal(codes, np.where(expected, 1, -1))


@pytest.mark.parametrize('key', range(4))
def test_corners_of_a_turned_square_get_their_own_codes(key):
  rng = np.random.default_rng(key)
  corners = np.repeat(list(itertools.product([-1, 1], repeat=2)), 25, axis=0)  # [100, 2]
  plane = np.linalg.qr(rng.normal(size=(7, 2)))[0].T  # any two directions at right angles
  x = (corners @ plane + 5 + 0.01 * rng.normal(size=(100, 7))).astype(np.float32)
  method, state = _fit(x, 2, key)
  codes = shallow.encode(method, state, x)[0]
  assert len({tuple(code) for code in codes[::25]}) == 4
  np.testing.assert_array_equal(codes, np.repeat(codes[::25], 25, axis=0))


def test_more_bits_than_features_are_refused():
  with pytest.raises(errors.UsageError, match='8 bits of 6 features.*--code_lengths'):
    _fit(_data(), 8)


def test_there_are_no_learned_codes():
  method = itq.make(base.NoOptions())
  assert method.fit(_data(), None, 4, jax.random.key(0)).codes is None
