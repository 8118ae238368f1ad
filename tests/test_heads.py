"""Flat and cascaded heads against plain matrix products, and networks made by name."""

import jax
import numpy as np
import pytest
import random_weights

from mah_jax import errors
from mah_jax import models
from mah_jax.models import compact
from mah_jax.models import heads
from mah_jax.models import resnet

D = 7
LENGTHS = [(4,), (4, 6, 8), (2, 3, 5, 8, 16)]


def draw(head_cls, code_lengths):
  """Heads, their random weights {c: (kernel, bias)} and features [3, D]."""
  module = head_cls(code_lengths)
  features = random_weights.uniform('features', (3, D), -1.0, 1.0)
  shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), features))
  params = {head: {kind: random_weights.weight(f'{head}/{kind}', leaf.shape)
                   for kind, leaf in parts.items()}
            for head, parts in shapes['params'].items()}
  weights = {c: (params[f'bits{c}']['kernel'], params[f'bits{c}']['bias'])
             for c in code_lengths}
  assert len(params) == len(code_lengths)
  return module, params, weights, features


@pytest.mark.parametrize('code_lengths', LENGTHS)
def test_flat_heads_are_separate_products(code_lengths):
  module, params, weights, features = draw(heads.FlatHeads, code_lengths)
  embeddings = module.apply({'params': params}, features)
  assert isinstance(embeddings, tuple)
  for c, u in zip(code_lengths, embeddings, strict=True):
    kernel, bias = weights[c]
    assert kernel.shape == (D, c)
    np.testing.assert_allclose(u, np.tanh(features @ kernel + bias), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('code_lengths', LENGTHS)
def test_cascaded_heads_are_one_linear_chain(code_lengths):
  module, params, weights, features = draw(heads.CascadedHeads, code_lengths)
  embeddings = module.apply({'params': params}, features)
  assert isinstance(embeddings, tuple)
  # Each head as one affine map of the feature: the product of all matrices so far.
  product, offset = np.eye(D), np.zeros(D)
  for c, u in reversed(list(zip(code_lengths, embeddings, strict=True))):
    kernel, bias = weights[c]
    product, offset = product @ kernel, offset @ kernel + bias
    assert u.shape == (3, c)
    np.testing.assert_allclose(u, np.tanh(features @ product + offset),
                               rtol=1e-4, atol=1e-5)


def gradients_of_head(head_cls, position):
  """Gradient of the sum of one head's embeddings by all weights, for lengths 4, 6, 8."""
  module, params, _, features = draw(head_cls, (4, 6, 8))
  return jax.jit(jax.grad(
      lambda params: module.apply({'params': params}, features)[position].sum()))(params)


def reached(gradients):
  return {head for head, parts in gradients.items()
          if all(np.any(part != 0) for part in parts.values())}


def untouched(gradients):
  return {head for head, parts in gradients.items()
          if all(np.all(part == 0) for part in parts.values())}


@pytest.mark.parametrize('position, expected', [
    (0, {'bits4', 'bits6', 'bits8'}), (1, {'bits6', 'bits8'}), (2, {'bits8'})])
def test_short_cascaded_heads_teach_the_longer_ones(position, expected):
  gradients = gradients_of_head(heads.CascadedHeads, position)
  assert reached(gradients) == expected
  assert untouched(gradients) == {'bits4', 'bits6', 'bits8'} - expected


@pytest.mark.parametrize('position, expected', [(0, 'bits4'), (1, 'bits6'), (2, 'bits8')])
def test_flat_heads_share_nothing(position, expected):
  gradients = gradients_of_head(heads.FlatHeads, position)
  assert reached(gradients) == {expected}
  assert untouched(gradients) == {'bits4', 'bits6', 'bits8'} - {expected}


def test_network_is_heads_on_backbone():
  shape = (3, 8, 8, 1)
  images = random_weights.images(0, shape)
  network = heads.HashNetwork(compact.Compact(width=2), heads.CascadedHeads((4, 8)))
  variables = random_weights.variables(network, shape)
  assert variables['params'].keys() == {'backbone', 'heads'}

  @jax.jit
  def run(variables, images):
    of_backbone = {kind: tree['backbone'] for kind, tree in variables.items()}
    features = compact.Compact(width=2).apply(of_backbone, images, train=False)
    of_heads = {'params': variables['params']['heads']}
    expected = heads.CascadedHeads((4, 8)).apply(of_heads, features)
    return network.apply(variables, images, train=False), expected

  embeddings, expected = run(variables, images)
  assert [u.shape for u in embeddings] == [(3, 4), (3, 8)]
  for u, v in zip(embeddings, expected, strict=True):
    np.testing.assert_allclose(u, v, rtol=1e-5, atol=1e-6)


def test_towers_are_two_networks():
  shape, names = (3, 8, 8, 1), ('backbone', 'heads')
  images = random_weights.images(0, shape)
  towers = heads.Towers(compact.Compact(width=2), heads.FlatHeads((4,)),
                        compact.Compact(width=2), heads.FlatHeads((4,)))
  variables = random_weights.variables(towers, shape)
  assert len(variables['params']) == 4

  @jax.jit
  def run(variables):
    alone = []
    for prefix in ('', 'database_'):
      of_tower = {kind: {name: tree[prefix + name] for name in names if prefix + name in tree}
                  for kind, tree in variables.items()}
      network = heads.HashNetwork(compact.Compact(width=2), heads.FlatHeads((4,)))
      alone += network.apply(of_tower, images, train=False)
    return towers.apply(variables, images, train=False), alone

  outputs, alone = run(variables)
  assert not np.allclose(*outputs)
  for u, v in zip(outputs, alone, strict=True):
    np.testing.assert_allclose(u, v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('name, feature, expected', [
    ('resnet50', 'pooled', resnet.ResNet((3, 4, 6, 3), False, 'pooled', 'd')),
    ('resnet50', 'logits', resnet.ResNet((3, 4, 6, 3), False, 'logits', 'd')),
    ('resnet50_v1', 'logits', resnet.ResNet((3, 4, 6, 3), True, 'logits', 'd')),
    ('compact', 'pooled', compact.Compact(5, 'd')),
])
def test_backbones_by_name(name, feature, expected):
  assert models.make_backbone(
      name, feature=feature, width=5, axis_name='d', platform='cpu') == expected


def test_the_compact_network_has_no_logits():
  with pytest.raises(errors.UsageError, match="no 'logits' feature; use --feature=pooled"):
    models.make_backbone(
        'compact', feature='logits', width=2, axis_name=None, platform='cpu')
