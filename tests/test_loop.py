"""Algorithm 1: when rows are drawn, rates drop, codes change and runs end."""

import jax
import numpy as np
import optax
import pytest
import toy

from mah_jax import discrete
from mah_jax import errors
from mah_jax.methods import base
from mah_jax.train import backbone
from mah_jax.train import loop

DEFAULT = (10, 20, 30, 40, 50)


@pytest.fixture(autouse=True)
def small_backbone(monkeypatch):
  """The loop is the same for every backbone; this one compiles at once."""
  monkeypatch.setattr(backbone, 'make', lambda config, platform: toy.Backbone())


def _plan(**changes):
  settings = {'num_rows': 400, 'num_rounds': 4, 'epochs_per_round': 3, 'batch_size': 64,
              'num_sampled': 150, 'shuffle': True}
  return loop.Plan(**(settings | changes))


def test_steps_of_a_round():
  plan = _plan()
  assert (plan.steps_per_epoch, plan.steps_per_round, plan.num_steps) == (3, 9, 36)


def test_when_codes_are_updated():
  def updates(**options):
    update = base.CodeOptions(**options).update(None)
    due = [(r, t) for r in range(3) for t in range(3) if update.due(r, t == 2)]
    assert [update.count(epochs, 3) for epochs in range(10)] == [
        sum(3 * r + t < epochs for r, t in due) for epochs in range(10)]
    return due
  assert updates() == [(0, 2), (1, 2), (2, 2)]
  assert updates(hold_codes_rounds=2) == [(2, 2)]
  assert updates(code_update='epoch', hold_codes_rounds=2) == [(2, 0), (2, 1), (2, 2)]


def test_the_rate_drops_after_the_named_rounds():
  """Rounds 0 to 10 at 1e-3, 11 to 20 at 1e-4, as the authors' script has it."""
  rates = _rates(loop.step_schedule(1e-3, 5, (10, 20)), 22 * 5)
  by_round = np.array(rates).reshape(22, 5)
  np.testing.assert_allclose(by_round[:11], 1e-3, rtol=1e-5)
  np.testing.assert_allclose(by_round[11:21], 1e-4, rtol=1e-5)
  np.testing.assert_allclose(by_round[21], 1e-5, rtol=1e-5)


def test_the_rate_of_a_triangle_rises_and_falls_evenly():
  """Two of eight steps rise to 0.6; by hand, as the last of the eight still moves."""
  rates = _rates(loop.triangle_schedule(0.6, 8, 0.25), 8)
  np.testing.assert_allclose(rates, [0.2, 0.4, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], rtol=1e-5)
  rates = _rates(loop.triangle_schedule(0.6, 3, 0.0), 3)
  np.testing.assert_allclose(rates, [0.6, 0.4, 0.2], rtol=1e-5)


def test_a_triangle_that_only_rises_still_ends_at_its_highest():
  np.testing.assert_allclose(_rates(loop.triangle_schedule(0.6, 3, 0.9), 3), [0.2, 0.4, 0.6],
                             rtol=1e-5)


def test_the_flags_choose_the_schedule():
  """Two rounds of two epochs of three batches: twelve steps."""
  flags = {'num_rounds': 2, 'epochs_per_round': 2, 'learning_rate': 0.7}

  def rates(**changes):
    optimizer = toy.make(**flags, **changes).programs.optimizer
    params = {'w': np.zeros(1, np.float32)}
    state, found = optimizer.init(params), []
    for step in range(12):
      gradient = np.float32(step == 0)  # momentum makes 0.9 ** step of it
      updates, state = optimizer.update({'w': np.array([gradient])}, state, params)
      found.append(-float(updates['w'][0]) / 0.9**step)
    return found

  np.testing.assert_allclose(rates(lr_schedule='triangle', lr_drop_rounds=DEFAULT, warmup=0.5),
                             [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.7 * 5 / 6, 0.7 * 4 / 6,
                              0.7 * 3 / 6, 0.7 * 2 / 6, 0.7 / 6], rtol=1e-4)
  np.testing.assert_allclose(rates(lr_drop_rounds=(0,)), [0.7] * 6 + [0.07] * 6, rtol=1e-4)


def _rates(schedule, steps):
  """How far a parameter with gradient 1 moves in each step."""
  optimizer = loop.make_optimizer(schedule, momentum=0.0, weight_decay=0.0)
  params = {'w': np.ones(1, np.float32)}
  state, rates = optimizer.init(params), []
  for _ in range(steps):
    updates, state = optimizer.update({'w': np.ones(1, np.float32)}, state, params)
    rates.append(-float(updates['w'][0]))
  return rates


def test_momentum_and_weight_decay_are_those_of_sgd():
  optimizer = loop.make_optimizer(lambda step: 0.1, momentum=0.9, weight_decay=0.5)
  w, v = np.float32(2.0), 0.0
  params = {'w': w}
  state = optimizer.init(params)
  for gradient in (1.0, -2.0, 0.5):
    updates, state = optimizer.update({'w': np.float32(gradient)}, state, params)
    v = 0.9 * v + gradient + 0.5 * w
    w = w - 0.1 * v
    params = optax.apply_updates(params, updates)
    assert float(params['w']) == pytest.approx(w, rel=1e-5)


def test_each_round_draws_rows_anew_and_each_epoch_reorders_them():
  made = toy.make(num_rounds=2, epochs_per_round=2)
  feed, rows = made.feed_database, []
  made.feed_database = lambda batches: feed(rows.append(row) or row for row in batches)
  toy.fit(made)
  epochs = np.stack(rows).reshape(4, -1)[:, :150]  # three batches of 64, the last filled up
  drawn = [set(epoch.tolist()) for epoch in epochs]
  assert len(drawn[0]) == 150
  assert drawn[0] == drawn[1] != drawn[2] == drawn[3]
  assert not np.array_equal(epochs[0], epochs[1])


def test_held_codes_stay_and_others_change():
  start = toy.make(code_init='random').method.init_codes()
  held = toy.fit(toy.make(code_init='random', hold_codes_rounds=2))[-1].state.codes
  free = toy.fit(toy.make(code_init='random'))[-1].state.codes
  for a, b, c in zip(start, held, free):
    np.testing.assert_array_equal(a, b)
    assert np.mean(a != np.asarray(c)) > 0.1


@pytest.mark.parametrize('kind', ['training', 'fresh'])
def test_codes_are_updated_by_dcc_with_the_right_embeddings(kind):
  made = toy.make(2, num_rounds=1, code_embeddings=kind, shuffle=False)
  key = jax.random.fold_in(jax.random.fold_in(made.key, loop.SAMPLE), 0)
  start = made.method.init_codes()
  state = toy.fit(made)[-1].state
  sampled = np.asarray(jax.random.permutation(key, len(start[0])))[:150]
  outputs = state.memory if kind == 'training' else made.database_outputs(state, sampled)
  for before, after, h in zip(start, state.codes, outputs):
    expected = discrete.dcc(before, h, made.labels, sampled, gamma=toy.FLAGS['gamma'])
    np.testing.assert_array_equal(after, expected)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_round():
  with pytest.raises(errors.InputError, match=r'not finite in round 1.*--learning_rate'):
    toy.fit(toy.make(learning_rate=1e30))


def test_a_network_that_breaks_in_the_last_step_of_a_round_is_not_handed_out():
  """One step a round: its loss is still finite, its parameters are not."""
  with pytest.raises(errors.InputError, match='round 1'):
    toy.fit(toy.make(learning_rate=1e38, num_sampled=64))


def test_equal_seeds_give_equal_bits_and_others_do_not():
  one, two, other = (toy.fit(toy.make(seed=seed))[-1].state for seed in (1, 1, 2))
  leaves = [jax.tree.leaves(state.params) for state in (one, two, other)]
  assert all(np.array_equal(x, y) for x, y in zip(*leaves[:2]))
  assert not all(np.array_equal(x, y) for x, y in zip(*leaves[1:]))
