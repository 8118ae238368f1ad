"""Compiles the programs of launch files for A100s that are not there, and tells what they need.

It needs JAX's CUDA wheels and no card (docs/hardware.md has the commands):

PYTHONPATH=. python benchmarks/deviceless.py [launch/NAME.cfg ..] [--devices=1,8]
    [--programs=step,encode,update,resize,extract] [--FLAG=VALUE ..]

Without names it takes every launch file that trains a network; flags of mah_jax change all of
them. Of equal programs the first is compiled. A line of the table is a program: its memory on each
device as XLA plans it, the collectives in it, the products that are not float32. The exit code is 1
where a program does not compile.
"""

import argparse
import dataclasses
import hashlib
import os
import pathlib
import re
import sys
import time
from typing import NamedTuple

os.environ['JAX_PLATFORMS'] = 'cpu'  # what is computed on the way

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402

from mah_jax import config as config_lib  # noqa: E402
from mah_jax import flags  # noqa: E402
from mah_jax.data import pipeline  # noqa: E402
from mah_jax.methods import base  # noqa: E402
from mah_jax.train import backbone  # noqa: E402
from mah_jax.train import encoder as encoder_lib  # noqa: E402
from mah_jax.train import loop  # noqa: E402
from mah_jax.train import step as step_lib  # noqa: E402
from mah_jax.train import trainer  # noqa: E402

TARGET = pathlib.Path(__file__).with_name('a100.txtpb')
FEATURES = 2048  # of ResNet-50
MEGABYTE = 2**20
BYTES = {'pred': 1, 's8': 1, 'u8': 1, 'bf16': 2, 'f16': 2, 's32': 4, 'u32': 4, 'f32': 4, 's64': 8,
         'f64': 8}
COLLECTIVES = re.compile(
    r'= (.*?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(-start)?\(')
HEADER = ('program', 'devices', 'batch', 'precision', 'MB', 'of which temporary', 'collectives',
          'their MB', 'products not float32', 'seconds', 'of')


class Data(NamedTuple):
  """A dataset as programs see it: the shape of its images, None for photographs."""
  rows: int
  labels: int
  shape: tuple[int, int, int] | None


# MIRFlickr and NUS-WIDE as after preparation; folder is any.
DATA = {'digits': Data(1_697, 10, (8, 8, 1)), 'cifar10': Data(59_000, 10, (32, 32, 3)),
        'mirflickr': Data(24_000, 38, None), 'nuswide': Data(193_734, 21, None),
        'folder': Data(10_000, 10, None)}


class Absent(step_lib.Devices):
  """Devices that programs are compiled for and never run on; it keeps the programs."""

  def __init__(self, count: int, batch_size: int):
    shape = f'1x1x{count}'
    super().__init__(topologies.get_topology_desc(
        f'a100_{shape}', 'cuda', target_config=TARGET.read_text(), topology=shape).devices,
        batch_size)
    self.programs = []

  def pmap(self, *args, **options):
    self.programs.append(super().pmap(*args, **options))
    return self.programs[-1]

  def over_rows(self, function, rows, rest):
    """As step.Devices does it, in a program that goes on."""
    d, n = len(self.devices), len(jax.tree.leaves(rows)[0])
    parts = jax.tree.map(
        lambda x: jax.numpy.pad(x, [(0, -n % d)] + [(0, 0)] * (x.ndim - 1)).reshape(
            d, -1, *x.shape[1:]), rows)
    return self.pmap(
        lambda *own: jax.lax.all_gather(function(*own), step_lib.AXIS, tiled=True),
        (0, *[None] * len(rest)), None)(parts, *rest)[:n]


def labels_of(data: Data) -> np.ndarray:
  """Random labels, one or, of photographs, several a row."""
  rng = np.random.default_rng(0)
  if data.shape or data is DATA['folder']:
    return np.eye(data.labels, dtype=np.uint8)[rng.integers(data.labels, size=data.rows)]
  return (rng.random((data.rows, data.labels)) < 3 / data.labels).astype(np.uint8)


def shapes(tree):
  """The shapes of a pytree of arrays and numbers."""
  return jax.eval_shape(lambda: jax.tree.map(jax.numpy.asarray, tree))


def lowered_programs(config: config_lib.Config, devices: Absent):
  """Yields the name and the lowered form of each program of a run."""
  data = DATA[config.dataset]
  size = config.image_size or data.shape[0]
  side = pipeline.whole_side(size, config.crop)
  stored = data.shape or (side, side, encoder_lib.CHANNELS)
  channels = stored[2]
  pixels = pipeline.Pixels(size, channels, (0.5,) * channels, (0.3,) * channels)
  images = jax.ShapeDtypeStruct(
      (len(devices.devices), config.batch_size // len(devices.devices), *stored), np.uint8)
  reads = pixels
  if config.input == 'features':
    reads = pipeline.Vectors(FEATURES)
    module = backbone.make(config, devices.platform)
    encoder_lib.Encoder(config, module, pixels, devices)
    variables = jax.eval_shape(lambda: module.init(
        jax.random.key(0), jax.numpy.zeros((1, size, size, channels)), train=False))
    yield f'extract {size} px', devices.programs.pop().lower(devices.abstract(variables), images)
  labels, plan = labels_of(data), loop.make_plan(config, data.rows)
  method = config.spec.make(config.options, base.Task(
      labels, config.code_lengths, plan.num_sampled, config.seed))
  programs = trainer.Programs(config, method, plan, reads, devices)
  encode, train_step = devices.programs[0], devices.programs[-1]
  codes, sampled = method.init_codes(), np.arange(plan.num_sampled)
  state = jax.eval_shape(programs.start, *jax.random.split(jax.random.key(0)))
  state = devices.abstract(state.replace(codes=shapes(codes)))
  if reads is pixels:
    what, batch_shape = f'{size} px', images.shape[:2]
    encoded = images
  else:
    what, batch_shape = 'features', (images.shape[0], plan.steps_per_call, images.shape[1])
    images = jax.ShapeDtypeStruct((*batch_shape, FEATURES), np.float32)
    encoded = jax.ShapeDtypeStruct((images.shape[0], encoder_lib.FEATURES_PER_CALL
                                    // images.shape[0], FEATURES), np.float32)
  batch = pipeline.Batch(*(jax.ShapeDtypeStruct(batch_shape, dtype)
                           for dtype in (np.int32, np.int32, np.float32)))
  for turn in range(max(1, len(method.turns))):
    targets = devices.abstract(shapes(method.targets(codes, sampled, turn)))
    yield f'step {what}', train_step.lower(state, targets, images, batch)
  yield f'encode {what}', encode.lower(state.variables, encoded)
  if method.update:
    yield f'update {data.rows} rows', jax.jit(
        lambda codes, memory: method.update.solve(codes, memory, sampled, devices.over_rows)
    ).lower(state.codes, state.memory)
  if reads is pixels and stored[:2] != (side, side):
    one = jax.ShapeDtypeStruct((config.batch_size, *stored), np.uint8,
                               sharding=jax.sharding.SingleDeviceSharding(devices.devices[0]))
    yield f'resize {stored[0]} -> {side} px', jax.jit(
        lambda x: programs.encoder.prepare(x, None)).lower(one)


def size_of(shape: str) -> int:
  """The bytes of a shape in the text of a program; of the tuple of a start, those of its end."""
  parts = re.findall(r'(\w+)\[([\d,]*)\]', shape)
  return sum(BYTES[kind] * int(np.prod([int(n) for n in dims.split(',') if n]))
             for kind, dims in parts)


def describe(compiled) -> dict:
  """Memory, collectives and products of a compiled program."""
  memory, text = compiled.memory_analysis(), compiled.as_text()
  total = (memory.argument_size_in_bytes + memory.output_size_in_bytes
           - memory.alias_size_in_bytes + memory.temp_size_in_bytes)
  sizes = [size_of(shape) // (2 if start and kind == 'all-gather' else 1)
           for shape, kind, start in COLLECTIVES.findall(text)]
  products = [line for line in text.splitlines()
              if re.search(r' (dot|convolution)\(|__cublas|__cudnn\$conv', line)]
  exact = [line for line in products if line.lower().count('highest') >= 2]
  return {'MB': f'{total / MEGABYTE:,.1f}',
          'of which temporary': f'{memory.temp_size_in_bytes / MEGABYTE:,.1f}',
          'collectives': len(sizes), 'their MB': f'{sum(sizes) / MEGABYTE:,.1f}',
          'products not float32': f'{len(products) - len(exact)} of {len(products)}'}


def main(arguments: list[str]) -> int:
  """Compiles, prints a line of Markdown for each program, returns the exit code."""
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument('files', nargs='*')
  parser.add_argument('--devices', default='1,8')
  parser.add_argument('--programs', default='step,encode,update,resize,extract')
  known, changes = parser.parse_known_args(arguments)
  files = known.files or [str(path) for path in sorted(pathlib.Path('launch').glob('*.cfg'))
                          if not path.name.startswith('profile_')]
  print(f'| {" | ".join(HEADER)} |\n|{"---|" * len(HEADER)}', flush=True)
  seen, failed = set(), 0
  for file in files:
    config = backbone.resolve(flags.from_arguments([f'--flagfile={file}', *changes]), None)
    if not config.spec.trains_network:
      continue
    for count in map(int, known.devices.split(',')):
      batch = -(-config.batch_size // count) * count
      own = dataclasses.replace(config, batch_size=batch)
      for name, lowered in lowered_programs(own, Absent(count, batch)):
        digest = (count, hashlib.sha256(lowered.as_text().encode()).hexdigest())
        if digest in seen or name.split()[0] not in known.programs.split(','):
          continue
        seen.add(digest)
        row = {'program': name, 'devices': count, 'batch': batch, 'precision': own.precision,
               'of': pathlib.Path(file).name}
        began = time.monotonic()
        try:
          row |= describe(lowered.compile())
        except jax.errors.JaxRuntimeError as error:
          failed += 1
          row['MB'] = f'does not compile: {str(error).splitlines()[0][:120]}'
        row['seconds'] = f'{time.monotonic() - began:.0f}'
        print(f'| {" | ".join(str(row.get(key, "")) for key in HEADER)} |', flush=True)
  return 1 if failed else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
