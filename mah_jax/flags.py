"""Command-line flags, one for each field of the Config, and the flagfiles that hold them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

from absl import flags

from mah_jax import config as config_lib
from mah_jax import errors
from mah_jax import runfolder

# Beside the package in a checkout, inside it when installed.
LAUNCH_FOLDERS = tuple(pathlib.Path(__file__).resolve().parents[i] / 'launch' for i in (1, 0))
QUICKSTART = 'launch/quickstart.cfg'


def from_arguments(arguments: Sequence[str]) -> config_lib.Config:
  """Reads command-line arguments, flagfiles included; no arguments at all mean the quickstart.

  Later values win. Modes other than train take the flags of the run in --workdir first. Raises
  errors.UsageError for anything that cannot be read.
  """
  arguments = list(arguments) or [f'--flagfile={QUICKSTART}']
  values = _parse(arguments)
  if values.mode != 'train':
    saved = runfolder.RunFolder(values.workdir).flags() or {}
    unknown = saved.keys() - {field.name for field in dataclasses.fields(config_lib.Config)}
    if unknown:
      raise errors.InputError(f'The run in {values.workdir} has flags that this version does '
                              f'not know: {", ".join(sorted(unknown))}.')
    values = _parse([f'--{name}={config_lib.text(value)}' for name, value in saved.items()] +
                    arguments)
  return config_lib.Config(**{field.name: _read(field, values[field.name].value)
                              for field in dataclasses.fields(config_lib.Config)})


def _parse(arguments: Sequence[str]) -> flags.FlagValues:
  values = flags.FlagValues()
  for field in dataclasses.fields(config_lib.Config):
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
  default, doc = field.default, field.metadata['doc']
  if field.metadata['choices']:
    flags.DEFINE_enum(field.name, default, field.metadata['choices'], doc, flag_values=values)
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
                            f'commas, such as {config_lib.text(field.default)}.') from None


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
  path = pathlib.Path(os.path.expanduser(name))
  places = [path]
  if path.parent in (pathlib.Path(), pathlib.Path('launch')):
    places += [folder / path.name for folder in LAUNCH_FOLDERS]
  for path in places:
    if path.is_file():
      return path.resolve()
  known = sorted(path.name for folder in LAUNCH_FOLDERS for path in folder.glob('*.cfg'))
  raise errors.UsageError(f'flagfile "{name}" does not exist; launch/ has {", ".join(known)}.')


def help_text() -> str:
  """All flags with their meaning, choices and defaults."""
  lines = ['Usage: python -m mah_jax.main [--flagfile=launch/NAME.cfg] [--flag=value ...]',
           'Without any flag: the quickstart. Later values win.', '']
  for field in dataclasses.fields(config_lib.Config):
    choices = field.metadata['choices']
    value = '|'.join(choices) if choices else 'VALUE'
    lines.append(f'  --{field.name}={value}  (default: {config_lib.text(field.default)})')
    lines += textwrap.wrap(field.metadata['doc'], 88, initial_indent=' ' * 6,
                           subsequent_indent=' ' * 6)
  return '\n'.join(lines)
