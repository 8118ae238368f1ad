"""Command-line flags, one for each setting, and the flagfiles that hold them."""

from __future__ import annotations

import codecs
import collections
import dataclasses
import difflib
import pathlib
import textwrap
from collections.abc import Iterator
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
from mah_jax.train import processes

# Beside the package in a checkout, inside it when installed.
LAUNCH_FOLDERS = tuple(pathlib.Path(__file__).resolve().parents[i] / 'launch' for i in (1, 0))
KINDS = {int: 'an integer', float: 'a number', bool: 'true or false'}  # what a flag wants
QUICKSTART = 'launch/quickstart.cfg'
TITLES = {'method': 'Method', 'network': 'Network', 'data': 'Data', 'training': 'Training',
          'run': 'Run', 'search': 'Search', 'machines': 'Devices and processes'}


def from_arguments(arguments: Sequence[str]) -> config_lib.Config:
  """Reads command-line arguments, flagfiles included; no arguments at all mean the quickstart.

  Later values win. Modes other than train take the flags of the run in --workdir first, but for
  devices and processes. Raises errors.UsageError for anything that cannot be read.
  """
  arguments = list(arguments) or [f'--flagfile={QUICKSTART}']
  values = _parse(arguments)
  if values.mode != 'train':
    values = _parse([*_saved(values.workdir, values.mode), *arguments])
  return config_lib.make(**{name: _read(field, values[name].value)
                            for name, field in config_lib.all_fields().items()})


def launch(arguments: Sequence[str]) -> processes.Launch:
  """How this process was started, by those arguments that say so; others may be wrong."""
  fields = config_lib.all_fields()
  values = flags.FlagValues()
  for name in processes.Launch._fields:
    _define(fields[name], values)
  try:
    arguments = expand(arguments)
  except errors.UsageError:  # a flagfile is wrong
    arguments = _joined(arguments)
  try:
    for argument in arguments:
      if argument.lstrip('-').partition('=')[0].removeprefix('no') in processes.Launch._fields:
        _parse_one(values, argument, '')
    launch = processes.Launch(*(values[name].value for name in processes.Launch._fields))
    config_lib.Config(**launch._asdict())  # which refuses what cannot be
    return launch
  except errors.UsageError:
    return processes.Launch()  # the same arguments are refused once more


def _saved(workdir: str, mode: str) -> list[str]:
  """The flags of the run in a folder as arguments of another mode."""
  saved = config_lib.relevant(results.flags(folder.RunFolder(workdir)) or {})
  unknown = saved.keys() - config_lib.all_fields().keys()
  if unknown:
    raise errors.InputError(f'The run in {workdir} has flags that this version does not know: '
                            f'{", ".join(sorted(unknown))}.')
  for name, field in config_lib.all_fields().items():
    if field.metadata['group'] == config_lib.MACHINES:
      saved.pop(name, None)  # the machine may be another
  if mode in config_lib.SEARCH_MODES:
    saved.pop('k', None)  # it counted the rows of scores
  return [f'--{name}={options.text(value)}' for name, value in saved.items()]


def _parse(arguments: Sequence[str]) -> flags.FlagValues:
  values = flags.FlagValues()
  for field in config_lib.all_fields().values():
    _define(field, values)
  for argument, place in _expand(arguments):
    _parse_one(values, argument, place)
  return values


def _parse_one(values: flags.FlagValues, argument: str, place: str):
  """Reads one argument; a complaint begins with its place, '' for the command line."""
  name, _, value = argument.lstrip('-').partition('=')
  if not argument.startswith('-'):
    raise errors.UsageError(f'{place}"{argument}" is not a flag: write --name=value.')
  try:
    values(['mah_jax', argument])
  except flags.UnrecognizedFlagError as error:
    raise errors.UsageError(f'{place}{str(error).rstrip(" .")} (--help lists all flags).') from None
  except flags.Error as error:
    field = config_lib.all_fields().get(name)
    if field is None:
      raise errors.UsageError(f'{place}{str(error).rstrip(" .")}.') from None
    allowed = list(filter(None, options.choices(field)))
    wanted = f'one of {", ".join(allowed)}' if allowed else KINDS[type(field.default)]
    raise errors.UsageError(f'{place}--{name}={value} must be {wanted}.') from None


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


def expand(arguments: Sequence[str]) -> list[str]:
  """Replaces each --flagfile=FILE by its lines; files may name further files.

  A file is looked for from the current folder, then among the launch files of this package.
  """
  return [argument for argument, _ in _expand(arguments)]


def _expand(arguments: Sequence[str]) -> list[tuple[str, str]]:
  """`expand`, each argument with the place that it stands in, in words."""
  return _expanded([(argument, '') for argument in _joined(arguments)], ())


def _expanded(arguments: Sequence[tuple[str, str]], inside: tuple[pathlib.Path, ...]
              ) -> list[tuple[str, str]]:
  expanded = []
  for argument, place in arguments:
    name, _, value = argument.lstrip('-').partition('=')
    if name != 'flagfile':
      expanded.append((argument, place))
      continue
    if not value:
      raise errors.UsageError(f'{place}--flagfile needs a file: write --flagfile=launch/NAME.cfg.')
    path = _find(value, place)
    if path in inside:
      raise errors.UsageError(f'{place}flagfile {value} includes itself.')
    expanded += _expanded([(line, f'Line {number} of {value}: ')
                           for number, line in _lines(path, value)], (*inside, path))
  return expanded


def _joined(arguments: Sequence[str]) -> list[str]:
  """Arguments as --name=value; '--name value' may stand for it on the command line."""
  joined, rest = [], list(arguments)
  fields = config_lib.all_fields()
  while rest:
    argument = rest.pop(0)
    name = argument.lstrip('-')
    takes_value = name == 'flagfile' or (
        name in fields and not isinstance(fields[name].default, bool))
    if argument.startswith('-') and takes_value and rest:
      argument = f'--{name}={rest.pop(0)}'
    joined.append(argument)
  return joined


def _lines(path: pathlib.Path, name: str) -> Iterator[tuple[int, str]]:
  """The lines of a flagfile that are flags, with their numbers; quotes around values go."""
  content = path.read_bytes()
  try:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
      raise errors.UsageError(f'flagfile {name} is a text in UTF-16: save it as UTF-8.')
    text = content.decode('utf-8-sig')  # with or without a byte order mark
    if '\0' in text:
      raise ValueError
  except errors.UsageError:
    raise
  except ValueError:
    raise errors.UsageError(f'flagfile {name} is no text in UTF-8: give a file of lines '
                            '--name=value.') from None
  for number, line in enumerate(text.splitlines(), start=1):
    line = line.strip()
    if line and not line.startswith(('#', '//')):
      flag, equals, value = line.partition('=')
      if len(value) > 1 and value[0] == value[-1] and value[0] in '"\'':
        value = value[1:-1]  # as a shell would
      elif ' #' in value:
        raise errors.UsageError(f'Line {number} of {name}: a comment needs a line of its own; put '
                                'quotes around a value that holds " #".')
      yield number, flag + equals + value


def _find(name: str, place: str) -> pathlib.Path:
  """The flagfile of this name, by path or among the package's launch files."""
  path = storage.path(name)
  candidates = [path]
  if path.parent in (pathlib.Path(), pathlib.Path('launch')):
    candidates += [launch / path.name for launch in LAUNCH_FOLDERS]
  for candidate in candidates:
    if candidate.is_file():
      return candidate.resolve()
  if path.is_dir():
    raise errors.UsageError(f'{place}flagfile "{name}" is a folder: name a file in it.')
  known = sorted(path.name for launch in LAUNCH_FOLDERS for path in launch.glob('*.cfg'))
  near = difflib.get_close_matches(path.name, known, n=3, cutoff=0.7)
  hint = f'did you mean {" or ".join(near)}?' if near else f'launch/ has {", ".join(known)}.'
  raise errors.UsageError(f'{place}flagfile "{name}" does not exist; {hint}')


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
