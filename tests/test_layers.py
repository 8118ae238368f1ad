"""Networks with the layers tuned for CPUs against networks with Flax's layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_weights
from flax import linen as nn

from mah_jax.models import alexnet
from mah_jax.models import compact
from mah_jax.models import layers
from mah_jax.models import resnet
from mah_jax.models import vgg
from mah_jax.models.cpu import conv
from mah_jax.models.cpu import norm

# Each kind of network has one entry: a module, and the shape of images that are small for it.
NETWORKS = {
    'compact': (compact.Compact(4), (4, 8, 8, 1)),
    'basic': (resnet.ResNet((1, 1), basic_blocks=True), (4, 16, 16, 3)),
    'bottleneck': (resnet.ResNet((1, 1)), (4, 16, 16, 3)),
    'alexnet': (alexnet.AlexNet(), (2, 63, 63, 3)),
    'vgg': (vgg.VGG((1, 1, 1, 1, 1)), (2, 32, 32, 3)),
}
POOLINGS = {'compact': 3, 'basic': 1, 'bottleneck': 1, 'alexnet': 3, 'vgg': 5}
NORMALISED = ('compact', 'basic', 'bottleneck')


def variables_of(module, images_shape):
  """Shapes and types of all variables, and those of the images."""
  images = jax.ShapeDtypeStruct(images_shape, np.float32)
  return jax.eval_shape(
      lambda x: module.init(jax.random.key(0), x, train=False), images), images


def train(module, variables, images):
  """Features and the new statistics."""
  return module.apply(variables, images, train=True, mutable=['batch_stats'])


@pytest.mark.parametrize('platform', ['gpu', 'cuda', 'rocm', 'tpu'])
def test_other_platforms_than_the_cpu_have_the_layers_of_flax(platform):
  chosen = layers.choose(platform)
  assert chosen.Conv is nn.Conv
  assert chosen.BatchNorm(use_running_average=True) == nn.BatchNorm(
      True, momentum=0.9, epsilon=1e-5)
  assert 'reduce_window_max' in str(jax.make_jaxpr(lambda x: chosen.max_pool(x, 3, 1))(
      np.zeros((1, 8, 8, 1))))


@pytest.mark.parametrize('name', NETWORKS)
def test_each_platform_has_its_layers_and_the_same_variables(name):
  module, shape = NETWORKS[name]
  variables, images = variables_of(module, shape)
  for platform in ('cpu', 'gpu'):
    on_platform, called = module.clone(platform=platform), []
    assert variables_of(on_platform, shape)[0] == variables

    def note(call, args, kwargs, context, called=called):
      called.append(context.module)
      return call(*args, **kwargs)

    with nn.intercept_methods(note):
      trace = str(jax.make_jaxpr(functools.partial(on_platform.apply, train=False))(
          variables, images))
    flax = platform == 'gpu'
    assert trace.count('reduce_window_max[') == (POOLINGS[name] if flax else 0)
    convolutions = {made.conv_general_dilated for made in called if isinstance(made, nn.Conv)}
    assert convolutions == {None if flax else conv.convolve}
    kinds = {type(made) for made in called}
    assert (norm.BatchNorm in kinds) == (not flax and name in NORMALISED)
    assert (nn.BatchNorm in kinds) == (flax and name in NORMALISED)


@pytest.mark.parametrize('name', ['compact', 'basic'])
def test_platforms_agree(name):
  module, shape = NETWORKS[name]
  # The numbers are float64, because batch statistics of few values magnify rounding.
  wide = functools.partial(jax.tree.map, lambda x: x.astype(np.float64))
  variables = wide(random_weights.variables(module, shape))
  images = wide(random_weights.images(0, shape))

  def run(module, variables, images):
    def loss(params):
      features, updates = train(module, variables | {'params': params}, images)
      weights = jnp.cos(jnp.arange(features.size)).reshape(features.shape)
      return (features * weights).sum(), (features, updates)

    gradients, trained = jax.grad(loss, has_aux=True)(variables['params'])
    return module.apply(variables, images, train=False), trained, gradients

  with jax.enable_x64(True):
    cpu, gpu = (jax.jit(run, static_argnums=0)(
        module.clone(platform=platform), variables, images) for platform in ('cpu', 'gpu'))
  assert jax.tree.structure(cpu) == jax.tree.structure(gpu)
  for a, b in zip(jax.tree.leaves(cpu), jax.tree.leaves(gpu), strict=True):
    assert random_weights.scaled_error(np.asarray(a), np.asarray(b)) < 1e-9


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
@pytest.mark.parametrize('name', NORMALISED)
def test_devices_share_their_statistics(name, platform):
  module, shape = NETWORKS[name]
  # The module is initialised outside the axis, as a program does before it maps its step.
  spread = module.clone(platform=platform, axis_name='devices')
  variables, images = variables_of(spread, shape)
  shards = jax.ShapeDtypeStruct((2, *shape), np.float32)
  # vmap refuses to return statistics that may differ between devices for the output axis None.
  features, updates = jax.eval_shape(jax.vmap(
      functools.partial(train, spread), (None, 0), (0, None), axis_name='devices'),
      variables, shards)
  assert features.shape[:2] == (2, shape[0])
  assert updates['batch_stats'] == variables['batch_stats']
  jax.eval_shape(functools.partial(spread.apply, train=False), variables, images)


@pytest.mark.parametrize('platform', ['cpu', 'gpu'])
@pytest.mark.parametrize('name', NORMALISED)
def test_bf16_goes_in_and_out_while_statistics_stay_float32(name, platform):
  module, shape = NETWORKS[name]
  module = module.clone(platform=platform)
  variables, images = variables_of(module, shape)
  half = functools.partial(
      jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16))
  features, updates = jax.eval_shape(
      functools.partial(train, module), variables | {'params': half(variables['params'])},
      half(images))
  assert features.dtype == jnp.bfloat16
  assert updates['batch_stats'] == variables['batch_stats']


@pytest.mark.parametrize('platform, target', [('cpu', 'cpu'), ('gpu', 'cuda')])
@pytest.mark.parametrize('name', NETWORKS)
def test_a_network_is_lowered_without_asking_for_the_backend(name, platform, target, monkeypatch):
  module, shape = NETWORKS[name]
  module = module.clone(platform=platform)

  def refuse():
    raise AssertionError('The backend of this machine is not that of the network.')

  variables, images = variables_of(module, shape)
  monkeypatch.setattr(jax, 'default_backend', refuse)
  traced = jax.jit(functools.partial(module.apply, train=False)).trace(variables, images)
  traced.lower(lowering_platforms=(target,))
