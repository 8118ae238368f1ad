"""Programs for GPUs and TPUs, lowered without one: products are float32, no layer is a CPU's.

A program is lowered to StableHLO, what XLA compiles; its operations say where they come from.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np
import pytest
import toy
from jaxlib.mlir import ir

from mah_jax import methods
from mah_jax.data import pipeline
from mah_jax.train import step
from mah_jax.train import trainer

PLATFORMS = ('cuda', 'tpu')
PRODUCTS = ('stablehlo.dot_general', 'stablehlo.convolution')
HIGHEST, HIGH, DEFAULT = (f'[{name}, {name}]' for name in (
    f'#stablehlo<precision {level}>' for level in ('HIGHEST', 'HIGH', 'DEFAULT')))
EXCHANGES = ('stablehlo.all_reduce', 'stablehlo.all_gather', 'stablehlo.reduce_scatter')
SAMPLED = 96


class Product(NamedTuple):
  """A product or convolution: how exact it is asked to be, its numbers, whether of a backbone."""
  precision: str
  dtype: str
  in_backbone: bool


class Pretended(step.Devices):
  """Two virtual CPU devices that pass for those of another platform; it keeps its programs."""

  def __init__(self, platform):
    super().__init__(step.pick_devices(2), 8)
    self.platform, self.programs = platform, []

  def pmap(self, *args, **options):
    self.programs.append(super().pmap(*args, **options))
    return self.programs[-1]


def _shapes(tree):
  return jax.eval_shape(lambda: jax.tree.map(jax.numpy.asarray, tree))


@functools.cache
def _traced(name, precision, platform='gpu', batch_norm='global'):
  """The step and the encoding of a network with batches of 8, traced without computing anything."""
  data = toy.dataset()
  size, channels, flags = 8, 1, {}
  if name == 'resnet50':
    size, channels, flags = 48, 3, {'backbone': name, 'width': 64, 'image_size': 48, 'crop': 0.75}
    data = data._replace(images=np.zeros((len(data.images), 12, 12, 3), np.uint8))
  config = toy.settings(batch_size=8, num_sampled=SAMPLED, precision=precision,
                        batch_norm=batch_norm, **flags)
  devices = Pretended(platform)
  made = trainer.Trainer(config, data, pipeline.Pixels(size, channels, (0.5,) * channels,
                                                       (0.3,) * channels), devices)
  encode, train_step = devices.programs
  codes = made.method.init_codes()
  state = jax.eval_shape(made.programs.start, *made._keys).replace(codes=_shapes(codes))
  targets = _shapes(made.method.targets(codes, np.arange(SAMPLED), 0))
  images = jax.ShapeDtypeStruct((2, 4, *data.images.shape[1:]), np.uint8)
  batch = pipeline.Batch(*(jax.ShapeDtypeStruct((2, 4), dtype)
                           for dtype in (np.int32, np.int32, np.float32)))
  return {'step': jax.jit(train_step).trace(state, targets, images, batch),
          'encode': jax.jit(encode).trace(state.variables, images)}


@functools.cache
def _update(method):
  """The targets and the code update of a method as one traced program."""
  data = toy.dataset()
  lengths = (5,) if methods.METHODS[method].one_length else (3, 5)
  made = toy.method(data.labels, method=method, code_lengths=lengths, num_sampled=SAMPLED)
  codes = _shapes(made.init_codes())
  outputs = tuple(jax.ShapeDtypeStruct((SAMPLED, u.shape[1]), np.float32) for u in codes)

  def update(codes, outputs):
    sampled = np.arange(SAMPLED)
    new = codes if made.update is None else made.update.solve(
        codes, outputs, sampled, lambda function, rows, rest: function(rows, *rest))
    return new, made.targets(new, sampled, 0)

  return jax.jit(update).trace(codes, outputs)


def _operations(traced, platform):
  """All operations of a program as it is lowered for a platform."""
  found = []

  def visit(operation):
    found.append(operation)
    return ir.WalkResult.ADVANCE

  lowered = traced.lower(lowering_platforms=(platform,))
  lowered.compiler_ir('stablehlo').operation.walk(visit)
  return found


def _products(operations):
  for operation in operations:
    if operation.name in PRODUCTS:
      yield Product(str(operation.attributes['precision_config']),
                    str(operation.operands[0].type.element_type),
                    'backbone' in str(operation.location))


def _files(operations):
  return ' '.join(str(operation.location) for operation in operations)


@pytest.mark.parametrize('platform', PLATFORMS)
@pytest.mark.parametrize('name', ['compact', 'resnet50'])
@pytest.mark.parametrize('part', ['step', 'encode'])
def test_networks_are_float32_and_have_nothing_of_a_cpu(platform, name, part):
  operations = _operations(_traced(name, 'float32')[part], platform)
  assert 'stablehlo.custom_call' not in {operation.name for operation in operations}
  products = list(_products(operations))
  assert {product.precision for product in products} == {HIGHEST}
  assert {product.in_backbone for product in products} == {True, False}
  files = _files(operations)
  assert 'models/cpu' not in files and 'train/step.py' in files


def test_a_program_for_cpus_has_its_own_layers():
  """What the test above looks for is there to be found."""
  files = _files(_operations(_traced('compact', 'float32', 'cpu')['step'], 'cpu'))
  assert all(f'models/cpu/{layer}.py' in files for layer in ('conv', 'norm', 'pool'))


@pytest.mark.parametrize('name, layers, platform, lowered_for', [
    ('compact', 6, 'cpu', 'cpu'), ('compact', 6, 'gpu', 'cuda'), ('resnet50', 53, 'gpu', 'cuda')])
def test_a_step_exchanges_arrays_as_seldom_as_it_can(name, layers, platform, lowered_for):
  """Batch rows, outputs and gradients once; each batch norm once forward and once backward."""
  for batch_norm, expected in (('global', 2 * layers + 3), ('device', 3)):
    operations = _operations(
        _traced(name, 'float32', platform, batch_norm)['step'], lowered_for)
    exchanges = [operation.name for operation in operations if operation.name in EXCHANGES]
    assert len(exchanges) == expected
    assert exchanges.count('stablehlo.all_gather') == 2


@pytest.mark.parametrize('part', ['step', 'encode'])
@pytest.mark.parametrize('precision, in_backbone', [('tf32', (HIGH, 'f32')),
                                                    ('bf16', (DEFAULT, 'bf16'))])
def test_other_precisions_are_those_of_backbones_alone(precision, in_backbone, part):
  products = set(_products(_operations(_traced('compact', precision)[part], 'cuda')))
  assert products == {Product(*in_backbone, True), Product(HIGHEST, 'f32', False)}


@pytest.mark.parametrize('method', [name for name, spec in methods.METHODS.items()
                                    if spec.trains_network])
def test_updates_of_codes_and_targets_are_float32(method):
  for platform in PLATFORMS:
    operations = _operations(_update(method), platform)
    assert 'stablehlo.custom_call' not in {operation.name for operation in operations}
    assert {product.precision for product in _products(operations)} <= {HIGHEST}


def test_the_update_of_mah_has_products():
  assert list(_products(_operations(_update('mah'), 'cuda')))


class Plain(step.Devices):
  """Devices whose programs do not ask for a precision."""

  def pmap(self, function, in_axes, out_axes, donate=()):
    return jax.pmap(function, axis_name=step.AXIS, devices=self.devices, in_axes=in_axes,
                    out_axes=out_axes, donate_argnums=donate)


def test_asking_for_float32_changes_no_bit_on_a_cpu():
  found = []
  for devices in (step.Devices, Plain):
    config = toy.settings(num_rounds=1)
    made = trainer.Trainer(config, toy.dataset(), pipeline.Pixels(8, 1, (0.5,), (0.3,)),
                           devices(step.pick_devices(1), config.batch_size))
    pause, = toy.fit(made)
    found.append((jax.device_get((pause.state.params, pause.state.codes)),
                  made.database_outputs(pause.state, np.arange(64))))
  jax.tree.map(np.testing.assert_array_equal, *found)
