"""Times our networks beside the same ones in PyTorch on a CPU, two threads each.

pip install -r requirements-bench.txt  # which says where pip finds it
PYTHONPATH=.:tests python benchmarks/networks.py

Either side runs in a process of its own, and the two take turns, a call each, so that other
work on the machine slows both. float32, channels last, the same shapes on both sides.
"""

import functools
import importlib.util
import multiprocessing
import os
import time

import table

THREADS = 2
LEARNING_RATE, MOMENTUM = 0.05, 0.9
# Network, its width, what it does, batch, pixels, our least ratio, calls that are timed.
WORK = (
    ('compact', 16, 'train', 256, 32, 1.0, 7),
    ('compact', 32, 'train', 256, 32, 1.0, 5),
    ('compact', 64, 'train', 256, 32, 1.0, 3),
    ('resnet50', 0, 'encode', 32, 224, 1.0, 3),
    ('resnet50', 0, 'train', 64, 64, 0.9, 3),
    ('resnet50', 0, 'train', 16, 224, 0.9, 3),
)


def make_ours(network, width, mode, batch, pixels):
  """A function without arguments that makes one call of ours and waits for it."""
  import jax
  import jax.numpy as jnp
  import optax

  from mah_jax import compiling
  from mah_jax.models import compact
  from mah_jax.models import resnet
  compiling.prepare()
  model = compact.Compact(width) if network == 'compact' else resnet.ResNet()
  images = jax.random.normal(jax.random.key(0), (batch, pixels, pixels, 3))
  init = jax.jit(functools.partial(model.init, train=False))
  variables = init(jax.random.key(1), images[:1])
  if mode == 'encode':
    encode = jax.jit(functools.partial(model.apply, train=False))
    return lambda: encode(variables, images).block_until_ready()
  tx = optax.sgd(LEARNING_RATE, momentum=MOMENTUM)

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(variables, momentum, images):
    def loss(params):
      features, changed = model.apply(variables | {'params': params}, images, train=True,
                                      mutable=['batch_stats'])
      return jnp.mean(features ** 2), changed
    gradients, changed = jax.grad(loss, has_aux=True)(variables['params'])
    updates, momentum = tx.update(gradients, momentum)
    return changed | {'params': optax.apply_updates(variables['params'], updates)}, momentum

  state = [variables, tx.init(variables['params'])]

  def call():
    state[:] = jax.block_until_ready(step(*state, images))
  return call


def make_other(network, width, mode, batch, pixels):
  """The same in PyTorch."""
  import torch
  import torch_models
  from torch import nn
  torch.set_num_threads(THREADS)
  torch.manual_seed(0)

  def half(inputs, outputs, pool):
    return (nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), *pool,
            nn.BatchNorm2d(outputs), nn.GELU('tanh'))

  if network == 'compact':
    sizes = (24, width, 4 * width, 4 * width)
    blocks = [layer for inputs, outputs in zip(sizes, sizes[1:]) for layer in (
        *half(inputs, outputs, [nn.MaxPool2d(2)]), *half(outputs, outputs, []))]
    model = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 24, 2, bias=False),
                          nn.GELU('tanh'), *blocks, nn.AdaptiveMaxPool2d(1), nn.Flatten())
  else:
    model = torch_models.ResNet(torch_models.Bottleneck, (3, 4, 6, 3))
  model = model.to(memory_format=torch.channels_last).train(mode == 'train')
  images = torch.randn(batch, 3, pixels, pixels).to(memory_format=torch.channels_last)

  def features():
    outputs = model(images)
    return outputs if network == 'compact' else outputs[0]  # [1] are logits

  if mode == 'encode':
    return torch.inference_mode()(features)
  sgd = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)

  def call():
    sgd.zero_grad()
    (features() ** 2).mean().backward()
    sgd.step()
  return call


def serve(make, work, pipe):
  """Makes one call whenever asked and answers with its wall time."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
  call = make(*work)
  call()  # compiles
  call()
  pipe.send('ready')
  while pipe.recv():
    start = time.perf_counter()
    call()
    pipe.send(time.perf_counter() - start)


def time_both(work, repeats):
  """Wall times of our calls and of theirs, ([repeats], [repeats])."""
  context = multiprocessing.get_context('spawn')  # a fork would share the other's threads
  pipes, times = [], ([], [])
  for make in (make_ours, make_other):
    pipe, theirs = context.Pipe()
    context.Process(target=serve, args=(make, work, theirs), daemon=True).start()
    theirs.close()  # so that a child that dies ends the wait for it
    pipe.recv()
    pipes.append(pipe)
  for _ in range(repeats):
    for pipe, side in zip(pipes, times):
      pipe.send(True)
      side.append(pipe.recv())
  for pipe in pipes:
    pipe.send(False)
  return times


def measure(network, width, mode, batch, pixels, goal, repeats) -> dict:
  """One line of `WORK`."""
  ours, other = time_both((network, width, mode, batch, pixels), repeats)
  work = f'{network}{f" {width}" if width else ""} {mode}, {batch} x {pixels} px'
  return table.row(work, ours, other, goal, 'PyTorch')


def rows() -> list[dict]:
  """All lines of `WORK`, measured; none without PyTorch."""
  if importlib.util.find_spec('torch') is None:
    print('Networks are skipped, and their last rows kept: the CPU build of PyTorch is missing; '
          'requirements-bench.txt says which.')
    return []
  return [measure(*line) for line in WORK]


if __name__ == '__main__':
  print(table.text(rows()))
