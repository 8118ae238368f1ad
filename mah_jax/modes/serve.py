"""--mode=serve: a page to search a run by, until it is stopped."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
from types import ModuleType

import numpy as np

from mah_jax import config as config_lib
from mah_jax import console
from mah_jax import errors
from mah_jax import options
from mah_jax.data import pictures
from mah_jax.search import searcher as searcher_lib

LIBRARIES = ('starlette', 'uvicorn')
LOCAL = ('localhost', '127.0.0.1', '[::1]')  # names of this machine for itself
ANYWHERE = ('', '0.0.0.0', '::')             # no browser asks for these
HTTP_PORT = 80                               # which browsers leave out of the name of a host


def serve(config: config_lib.Config):
  """Serves the page of the run in --workdir at --host and --port."""
  page = _page()
  if config.neighbours > page.MAX_K:
    raise errors.UsageError(f'--k={config.k} is more than the page shows: give at most '
                            f'{page.MAX_K}.')
  with (console.StopRequest('The page is closed.') as stop,
        contextlib.closing(_listen(config.host, config.port)) as listener):
    port = listener.getsockname()[1]
    searcher = searcher_lib.Searcher(config)
    searcher.index(config.code_length, config.database)  # refused here if the run has none
    _warm_up(searcher)
    application = page.application(searcher, _hosts(config.host, port))
    console.say(f'{len(searcher):,} images can be searched at http://{_written(config.host)}:{port}'
                '; Ctrl-C ends it.')
    page.server(application, lambda: stop.asked is not None).run(sockets=[listener])
    stop.pause()


def _page() -> ModuleType:
  """The application, whose libraries are an extra."""
  missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
  if missing:
    raise errors.InputError(f'The page needs {options.listed(missing)}: pip install '
                            '"mah-jax[serve]", or pip install -r requirements-serve.txt.')
  from mah_jax.search import serve as page
  return page


def _listen(host: str, port: int) -> socket.socket:
  """A socket that takes connections already, so that no other program gets the port."""
  if host in ANYWHERE:
    raise errors.UsageError(f'--host={host} is no host that a browser can ask for: give the '
                            'address or the name by which others reach this machine.')
  try:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)
  except (OSError, UnicodeError) as error:
    raise errors.UsageError(f'--host={host} --port={port} cannot be listened at ({error}): choose '
                            'others; --port=0 takes a port that is free.') from error


def _warm_up(searcher: searcher_lib.Searcher):
  """Loads the images and the network, and compiles it, so that no request has to wait for it."""
  searcher.hash([pictures.to_png(np.zeros((8, 8, 3), np.uint8))])
  if isinstance(searcher.data.images, np.ndarray):  # their shape is another than that of files
    searcher.hash(searcher.data.images[:1])


def _hosts(host: str, port: int) -> list[str]:
  """What a browser on this machine, or one that asks for `host`, calls the server."""
  names = [*LOCAL, _written(host)]
  return [f'{name}:{port}' for name in names] + (names if port == HTTP_PORT else [])


def _written(host: str) -> str:
  """A host as it is written in an address."""
  return f'[{host}]' if ':' in host else host
