"""Command-line flags, one for each setting, and the flagfiles that hold them."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import textwrap
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import flags

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import options
from mah_jax import storage
from mah_jax.runs import folder
from mah_jax.runs import results

# Beside the package in a checkout, inside it when installed.
LAUNCH_FOLDERS = tuple(pathlib.Path(__file__).resolve().parents[i] / 'launch' for i in (1, 0))
QUICKSTART = 'launch/quickstart.cfg'
TITLES = {'method': 'Method', 'network': 'Network', 'data': 'Data', 'training': 'Training',
          'run': 'Run', 'search': 'Search'}


def from_arguments(arguments: Sequence[str]) -> config_lib.Config:
  """Reads command-line arguments, flagfiles included; no arguments at all mean the quickstart.

  Later values win. Modes other than train take the flags of the run in --workdir first, but for
  the number of devices. Raises errors.UsageError for anything that cannot be read.
  """
  arguments = list(arguments) or [f'--flagfile={QUICKSTART}']
  values = _parse(arguments)
  if values.mode != 'train':
    values = _parse([*_saved(values.workdir, values.mode), *arguments])
  return config_lib.make(**{name: _read(field, values[name].value)
                            for name, field in config_lib.all_fields().items()})


def _saved(workdir: str, mode: str) -> list[str]:
  """The flags of the run in a folder as arguments of another mode."""
  saved = config_lib.relevant(results.flags(folder.RunFolder(workdir)) or {})
  unknown = saved.keys() - config_lib.all_fields().keys()
  if unknown:
    raise errors.InputError(f'The run in {workdir} has flags that this version does not know: '
                            f'{", ".join(sorted(unknown))}.')
  saved.pop('num_devices', None)  # the machine may be another
  if mode in config_lib.SEARCH_MODES:
    saved.pop('k', None)  # it counted the rows of scores
  return [f'--{name}={options.text(value)}' for name, value in saved.items()]


def _parse(arguments: Sequence[str]) -> flags.FlagValues:
  values = flags.FlagValues()
  for field in config_lib.all_fields().values():
    _define(field, values)
  try:
    rest = values(['mah_jax', *expand(arguments)])[1:]
  except flags.Error as error:
    raise errors.UsageError(f'{str(error).rstrip(" .")} (--help lists all flags)') from error
  if rest:
    raise errors.UsageError(f'"{rest[0]}" is not a flag: write --name=value.')
  return values


def _define(field: dataclasses.Field, values: flags.FlagValues):
  """Declares the flag of one field; lists arrive as text and are read by `_read`."""
  default, doc, choices = field.default, field.metadata['doc'], options.choices(field)
  if choices:
    flags.DEFINE_enum(field.name, default, choices, doc, flag_values=values)
  elif isinstance(default, tuple):
    flags.DEFINE_list(field.name, list(map(str, default)), doc, flag_values=values)
  else:
    define = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float,
              str: flags.DEFINE_string}[type(default)]
    define(field.name, default, doc, flag_values=values)


def _read(field: dataclasses.Field, value: Any) -> Any:
  if not isinstance(field.default, tuple):
    return value
  kind = type(field.default[0])
  try:
    return tuple(kind(x) for x in value)
  except ValueError:
    raise errors.UsageError(f'--{field.name}={",".join(value)} must be numbers separated by '
                            f'commas, such as {options.text(field.default)}.') from None


def expand(arguments: Sequence[str], inside: tuple[pathlib.Path, ...] = ()) -> list[str]:
  """Replaces each --flagfile=FILE by its lines; files may name further files.

  A file is looked for from the current folder, then among the launch files of this package.
  """
  expanded = []
  for argument in arguments:
    name, _, value = argument.lstrip('-').partition('=')
    if name != 'flagfile':
      expanded.append(argument)
      continue
    if not value:
      raise errors.UsageError('--flagfile needs a file: write --flagfile=launch/NAME.cfg.')
    path = _find(value)
    if path in inside:
      raise errors.UsageError(f'flagfile {value} includes itself.')
    lines = [line.strip() for line in path.read_text(errors='replace').splitlines()]
    lines = [line for line in lines if line and not line.startswith(('#', '//'))]
    expanded += expand(lines, (*inside, path))
  return expanded


def _find(name: str) -> pathlib.Path:
  """The flagfile of this name, by path or among the package's launch files."""
  path = storage.path(name)
  candidates = [path]
  if path.parent in (pathlib.Path(), pathlib.Path('launch')):
    candidates += [launch / path.name for launch in LAUNCH_FOLDERS]
  for candidate in candidates:
    if candidate.is_file():
      return candidate.resolve()
  known = sorted(path.name for launch in LAUNCH_FOLDERS for path in launch.glob('*.cfg'))
  raise errors.UsageError(f'flagfile "{name}" does not exist; launch/ has {", ".join(known)}.')


def help_text() -> str:
  """All flags with their meaning, choices and defaults, in groups."""
  lines = ['Usage: python -m mah_jax.main [--flagfile=launch/NAME.cfg] [--flag=value ...]',
           'Without any flag: the quickstart. Later values win.']
  shared = options.fields(config_lib.Config)
  for group in config_lib.GROUPS:
    lines += _group(TITLES[group], {name: field for name, field in shared.items()
                                    if field.metadata['group'] == group})
  owned = collections.defaultdict(dict)  # methods -> the options that they share
  for name, field in config_lib.all_fields().items():
    if name not in shared:
      owned[tuple(config_lib.owners(name))][name] = field
  for owners, fields in owned.items():
    lines += _group(f'Options of {options.listed(owners)}', fields)
  return '\n'.join(lines)


def _group(title: str, fields: Mapping[str, dataclasses.Field]) -> list[str]:
  lines = ['', f'{title}:']
  for name, field in fields.items():
    value = '|'.join(filter(None, options.choices(field))) or 'VALUE'
    lines.append(f'  --{name}={value}  (default: {options.text(field.default)})')
    lines += textwrap.wrap(field.metadata['doc'], 88, initial_indent=' ' * 6,
                           subsequent_indent=' ' * 6)
  return lines
