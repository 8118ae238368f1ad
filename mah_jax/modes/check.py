"""--mode=check: whether the training that the flags describe could start; nothing is changed."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import platform
import shutil
import textwrap
from collections.abc import Callable
from typing import NamedTuple

import jax

import mah_jax
from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import cores
from mah_jax import errors
from mah_jax import options
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.modes import serve
from mah_jax.runs import folder as folder_lib
from mah_jax.search import export as export_lib
from mah_jax.train import backbone
from mah_jax.train import dataset
from mah_jax.train import features
from mah_jax.train import memory
from mah_jax.train import step as step_lib

WIDTH, MARGIN = 100, 16  # columns: of a line, and of what stands before its sentence
FINE, WRONG, ABSENT = 'ok', 'no', '--'  # an absent extra keeps no training from starting


class Extra(NamedTuple):
  """What a part of the program needs that not everybody wants: modules, with pip's names."""
  packages: dict[str, str]
  use: str


EXTRAS = {
    'serve': Extra({name: name for name in serve.LIBRARIES}, '--mode=serve'),
    'export': Extra({kind.library: kind.package for kind in export_lib.FORMATS.values()
                     if kind.library}, 'some formats of --mode=export'),
    'report': Extra({'matplotlib': 'matplotlib'}, 'figures of reports'),
    'tensorboard': Extra({'tensorboardX': 'tensorboardX'}, 'event files for TensorBoard'),
    'browser': Extra({'playwright': 'playwright'}, 'make test-browser'),
}


def check(config: config_lib.Config):
  """Looks at all that a training needs, and says of each part what is there or what to do."""
  config, marks = dataclasses.replace(config, mode='train'), []
  console.say(f'Can this start: {config.method} on {config.dataset}, run folder {config.workdir}?')
  for name, look in LOOKS.items():
    mark, sentence = _attempt(look, config)
    marks.append(mark)
    _say(mark, name, sentence)
  for name, extra in EXTRAS.items():
    _say(*_extra(name, extra))
  if WRONG in marks:
    raise errors.InputError(f'It cannot start yet: do what the lines marked "{WRONG}" say.')
  console.say('It can start.')


def _attempt(look: Callable[[config_lib.Config], str],
             config: config_lib.Config) -> tuple[str, str]:
  """The mark and the sentence of a look."""
  sentences = []
  code, problem = console.attempt(lambda: sentences.append(look(config)))
  return (WRONG, problem) if code else (FINE, *sentences)


def _say(mark: str, name: str, sentence: str):
  """Says a sentence beside its mark and name, in lines that fit a terminal."""
  console.say(textwrap.fill(
      sentence, WIDTH, initial_indent=f'{mark}  {name}'.ljust(MARGIN),
      subsequent_indent=' ' * MARGIN, break_long_words=False, break_on_hyphens=False))


def _versions(config: config_lib.Config) -> str:
  del config
  packages = [f'{name} {importlib.metadata.version(name)}' for name in folder_lib.PACKAGES]
  return (f'mah_jax {mah_jax.__version__}, Python {platform.python_version()} on '
          f'{platform.system()} {platform.machine()}, {", ".join(packages)}.')


def _devices(config: config_lib.Config) -> str:
  devices = step_lib.Devices(step_lib.pick_devices(config.num_devices), config.batch_size)
  limit = memory.limit(devices.own)
  has = '' if limit is None else f' with {_size(limit)} each'
  text = (f'{len(devices.devices)} x {devices.devices[0].device_kind} ({devices.platform}){has}; '
          f'{cores.usable()} cores, {_size(memory.of_machine())} of memory.')
  if devices.platform == 'cpu' and shutil.which('nvidia-smi'):
    text += (' There is nvidia-smi, but JAX sees no card: pip install "jax[cuda13]", for drivers '
             'before 580 or cards before Turing "jax[cuda12]".')
  return text


def _data(config: config_lib.Config) -> str:
  return dataset.find(config)


def _weights(config: config_lib.Config) -> str:
  """Which weights there are, for the backbone that the run would have."""
  if config.reads_features and not config.pretrained:
    features.check_pixels(in_files=datasets.SPECS[config.dataset].has_names)
    return '--pretrained is empty: the features are the pixels.'
  config = backbone.resolve(config, folder_lib.RunFolder(config.workdir).flags())
  channels = len(datasets.SPECS[config.dataset].mean)
  return backbone.find(config, channels, step_lib.pick_devices(0)[0].platform)


def _run_folder(config: config_lib.Config) -> str:
  folder = folder_lib.RunFolder(config.workdir)
  dataset.check_apart(config, 'workdir', folder.path)
  folder.check_own()
  saved = folder.flags()
  folder.check(backbone.resolve(config, saved))
  folder.check_codes()
  if not storage.is_writable(folder.checkpoints):
    raise errors.InputError(f'--workdir={folder.path} cannot be written to: choose another.')
  left = f'{_size(storage.free(folder.path))} are free there.'
  if saved is None:
    return f'{folder.path} would be made; {left}' if not folder.path.exists() else (
        f'{folder.path} is empty; {left}')
  with folder.opened(shared=True):  # which refuses it while another run is at work
    state = 'finished' if folder.results.exists() else 'begun'
  return f'{folder.path} holds a run that is {state}, which would go on; {left}'


def _caches(config: config_lib.Config) -> str:
  """Where what can be computed again is kept, and how much of it there is."""
  folder = storage.cache_folder('features')
  if config.keeps_features and not storage.is_writable(folder):
    raise errors.InputError(f'Features are kept in {folder}, which cannot be written to: set '
                            'XDG_CACHE_HOME to another folder.')
  folders = {'features': folder, 'programs': storage.path(jax.config.jax_compilation_cache_dir)}
  parts = [f'{name} in {folder} ({_size(storage.size(folder))})'
           for name, folder in folders.items()]
  return f'{options.listed(parts)}; {_size(storage.free(folder))} are free there.'


def _size(count: int) -> str:
  """A number of bytes as a person would say it."""
  return f'{count / 1e9:.1f} GB' if count >= 1e9 else f'{count / 1e6:.1f} MB'


def _extra(name: str, extra: Extra) -> tuple[str, str, str]:
  """Mark, name and sentence of an extra."""
  missing = [package for module, package in extra.packages.items()
             if importlib.util.find_spec(module) is None]
  if not missing:
    return FINE, name, f'{options.listed(list(extra.packages.values()))}, for {extra.use}.'
  return ABSENT, name, f'Not installed, for {extra.use}: pip install {" ".join(missing)}'


LOOKS: dict[str, Callable[[config_lib.Config], str]] = {
    'versions': _versions, 'devices': _devices, 'data': _data, 'weights': _weights,
    'run folder': _run_folder, 'caches': _caches}
