"""A small run on the digits, and a real server of its page in a thread of the test."""

import contextlib
import http.client
import io
import json
import socket
import threading
import time

import numpy as np
import pytest
from PIL import Image

import mah_jax
from mah_jax import main

# A network on pixels, which compiles in a moment.
FLAGS = ['--dataset=digits', '--input=features', '--hidden=32', '--image_size=0', '--crop=1.0',
         '--normalize=dataset', '--code_lengths=4,8', '--head_weights=1,1', '--gamma=10',
         '--code_init=codebook', '--batch_size=256', '--num_rounds=2', '--epochs_per_round=2',
         '--num_sampled=0', '--learning_rate=0.02', '--momentum=0.9', '--lr_drop_rounds=',
         '--eval_every=0', '--num_devices=1']


@contextlib.contextmanager
def trained(parent):
  """Trains the run; gives its folder, while the caches are in the parent as well."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(parent / 'cache'))
    folder = parent / 'digits'
    assert main.main([*FLAGS, f'--workdir={folder}']) == 0
    yield folder


def open_run(folder):
  """A searcher of its own."""
  return mah_jax.load(folder, num_devices=1)


@contextlib.contextmanager
def serving(searcher, connections=None):
  """Serves a page while it is entered; gives its port.

  A list of connections gets the set of those that the server has.
  """
  from mah_jax.search import serve
  listener = socket.create_server(('127.0.0.1', 0))
  port = listener.getsockname()[1]
  server = serve.server(serve.application(searcher, [f'127.0.0.1:{port}']))
  if connections is not None:
    connections.append(server.server_state.connections)
  thread = threading.Thread(target=server.run, kwargs={'sockets': [listener]})
  thread.start()
  while not server.started:
    time.sleep(0.01)
  try:
    yield port
  finally:
    server.should_exit = True
    thread.join(15)
    assert not thread.is_alive()


class Client:
  """A client that keeps its connection."""

  def __init__(self, port):
    self._connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self._connection.close()

  def get(self, path):
    """Status, headers and content of an answer; JSON is read."""
    return self._ask('GET', path)

  def post(self, path, body, kind='image/png'):
    return self._ask('POST', path, body, {'Content-Type': kind})

  def _ask(self, *request):
    self._connection.request(*request)
    answer = self._connection.getresponse()
    content = answer.read()
    if answer.headers['Content-Type'] == 'application/json':
      content = json.loads(content)
    return answer.status, answer.headers, content


def empty(searcher):
  """Takes all rows from a searcher."""
  kept = searcher.database
  searcher.database = kept._replace(
      names=[], folder_of=kept.folder_of[:0], labels=kept.labels[:0], keys=kept.keys[:0],
      codes={name: packed[:0] for name, packed in kept.codes.items()})
  return searcher


def png(pixels):
  """Pixels [h, w, 1] or [h, w, 3] as a PNG file, by Pillow itself."""
  buffer = io.BytesIO()
  Image.fromarray(np.squeeze(pixels)).save(buffer, 'PNG')
  return buffer.getvalue()
