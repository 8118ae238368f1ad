"""The fetch command and its sources, of which the first that works is used."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import TypeVar

from mah_jax import errors

COMMAND = 'python -m mah_jax.data.fetch'  # takes the name of a dataset or of weights
AUTO = 'auto'  # the --source that stands for the first source that works
Result = TypeVar('Result')


def first_that_works(title: str, sources: Mapping[str, Callable[[], Result]]) -> Result:
  """Calls one source after another until one raises no InputError; returns its result.

  Args:
    title: what the sources have, for the message.
    sources: by the name that the message gives them, in the order of preference.

  Raises:
    errors.InputError: no source works; the message names each failure.
  """
  failures = []
  for name, get in sources.items():
    try:
      return get()
    except errors.InputError as error:
      failures.append(f'{name}: {error}')
  raise errors.InputError(f'No source of {title} works. {" ".join(failures)}')
