"""A web server on this machine that stands in for those of the outside."""

import contextlib
import http.server
import pathlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def serve(folder: pathlib.Path) -> Iterator[tuple[str, list]]:
  """Serves a folder while it is entered; gives its address and a list that grows with requests."""
  requests = []

  class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args):
      super().__init__(*args, directory=str(folder))

    def log_message(self, *args):
      requests.append(args)

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  server.handle_error = lambda *unused: None  # a client that hangs up early is no news
  threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
  try:
    yield f'http://127.0.0.1:{server.server_port}', requests
  finally:
    server.shutdown()
    server.server_close()


REFUSED = 'http://127.0.0.1:1'  # nothing listens at this address
