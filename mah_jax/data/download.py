"""Downloads that end as a whole, verified file or as no file."""

import hashlib
import http.client
import os
import pathlib
import urllib.request
from collections.abc import Callable

from mah_jax import errors

TIMEOUT = 5.0     # seconds without an answer or without data
CHUNK = 1 << 20   # bytes


def probe(url: str) -> None:
  """Raises InputError unless the server of `url` answers within seconds."""
  request = urllib.request.Request(url, method='HEAD')
  try:
    urllib.request.urlopen(request, timeout=TIMEOUT).close()
  except (OSError, http.client.HTTPException) as error:
    raise _unreachable(url, error) from error


def download(url: str, target: pathlib.Path, sha256: str,
             progress: Callable[[int, int], None]) -> None:
  """Downloads `url` to `target`, which appears only once its sha256 is right.

  Args:
    url: http or https address.
    target: final file; until then the bytes are in a file of that name plus '.part'.
    sha256: expected hex digest.
    progress: called with (bytes so far, bytes in all or 0 if unknown).
  """
  part = target.with_name(target.name + '.part')
  try:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
      _write(response, part, progress)
    install(part, target, sha256)
  except (OSError, http.client.HTTPException) as error:
    raise _unreachable(url, error) from error
  finally:
    part.unlink(missing_ok=True)


def _write(response: http.client.HTTPResponse, part: pathlib.Path,
           progress: Callable[[int, int], None]) -> None:
  total, done = int(response.headers.get('Content-Length', 0)), 0
  with part.open('wb') as file:
    while chunk := response.read(CHUNK):
      done += file.write(chunk)
      progress(done, total)


def install(source: pathlib.Path, target: pathlib.Path, sha256: str) -> None:
  """Moves `source` to `target` in one step if its sha256 is right, else InputError."""
  check(source, sha256, 'nothing was kept, so try again or use another --source')
  os.replace(source, target)


def check(path: pathlib.Path, sha256: str, remedy: str) -> None:
  """Raises InputError with both digests and the remedy unless they are equal."""
  with path.open('rb') as file:
    found = hashlib.file_digest(file, 'sha256').hexdigest()
  if found != sha256:
    raise errors.InputError(f'{path.name} ({path.stat().st_size:,} bytes) has sha256 '
                            f'{found} instead of {sha256}: {remedy}.')


def _unreachable(url: str, error: Exception) -> errors.InputError:
  return errors.InputError(
      f'{url} could not be downloaded ({error}): check the network, or put the file into '
      'the data folder by hand.')
