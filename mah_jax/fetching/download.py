"""Downloads that end as a whole, verified file or as no file."""

import hashlib
import http.client
import pathlib
import urllib.request

from mah_jax import console
from mah_jax import errors
from mah_jax import storage

TIMEOUT = 5.0     # seconds without an answer or without data
CHUNK = 1 << 20   # bytes read at once: the progress bar counts megabytes


def probe(url: str) -> None:
  """Raises InputError unless the server of `url` answers within seconds."""
  request = urllib.request.Request(url, method='HEAD')
  try:
    urllib.request.urlopen(request, timeout=TIMEOUT).close()
  except (OSError, http.client.HTTPException) as error:
    raise _unreachable(url, error) from error


def download(url: str, target: pathlib.Path, sha256: str) -> None:
  """Downloads `url` under a progress bar; `target` appears only once its sha256 is right.

  Args:
    url: http or https address.
    target: the final file; until then the bytes are in a hidden file beside it.
    sha256: expected hex digest.

  Raises:
    errors.InputError: the server does not answer, or sends other bytes.
  """
  part = target.with_name(f'.{target.name}.part')
  try:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
      _write(response, part)
    check(part, sha256, 'nothing was kept, so try again or use another --source',
          name=target.name)
    storage.install(part, target)
  except (OSError, http.client.HTTPException) as error:
    raise _unreachable(url, error) from error
  finally:
    part.unlink(missing_ok=True)


def _write(response: http.client.HTTPResponse, part: pathlib.Path) -> None:
  """Writes the answer of a server to a file."""
  size = int(response.headers.get('Content-Length', 0))  # 0: the server does not say
  with part.open('wb') as file, console.bar(-(-size // CHUNK), 'downloading', unit='MB') as bar:
    while chunk := response.read(CHUNK):
      file.write(chunk)
      bar.update()


def is_there(path: pathlib.Path, sha256: str) -> bool:
  """Whether a file is there; raises InputError if it is, but with another sha256."""
  if path.is_file():
    check(path, sha256, 'delete it and fetch again')
  return path.is_file()


def check(path: pathlib.Path, sha256: str, remedy: str, name: str = '') -> None:
  """Raises InputError with both digests and the remedy unless a file has this sha256.

  Args:
    path: the file.
    sha256: expected hex digest.
    remedy: what the user can do, for the message.
    name: what the message calls the file; empty: its path.
  """
  with path.open('rb') as file:
    digest = hashlib.file_digest(file, 'sha256').hexdigest()
  if digest != sha256:
    raise errors.InputError(f'{name or path} ({path.stat().st_size:,} bytes) has sha256 '
                            f'{digest} instead of {sha256}: {remedy}.')


def _unreachable(url: str, error: Exception) -> errors.InputError:
  return errors.InputError(
      f'{url} could not be downloaded ({error}): check the network, or put the file into '
      'the data folder by hand.')
