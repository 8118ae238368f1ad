"""The guard of the page: who may ask, how much, for how long, and how many at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import anyio
from anyio import to_thread
from starlette import datastructures
from starlette import exceptions
from starlette import requests
from starlette import responses
from starlette import types
from uvicorn.protocols.http import h11_impl

MAX_BYTES = 20_000_000  # of an image that is sent
BODY_SECONDS = 30       # within which it must have arrived
IDLE_SECONDS = 15       # after which a connection without a whole request is closed
ANSWER_LOOKS = 8        # so many times as long, an answer may take to be made and read
HEADERS = {
    # The page shows an image that was chosen before it is sent: a blob of its own.
    'Content-Security-Policy': "default-src 'self'; img-src 'self' blob:; object-src 'none'; "
                               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    'X-Content-Type-Options': 'nosniff',
    'X-Frame-Options': 'DENY',
    'Referrer-Policy': 'no-referrer',
    'Cross-Origin-Opener-Policy': 'same-origin',
    'Cross-Origin-Resource-Policy': 'same-origin',
}
FOREIGN = ('cross-site', 'same-site')  # another port of the same host is the same site
IMAGE_TYPES = ('image/', 'application/octet-stream')  # which no form of another site can send


class Guard:
  """An application before which requests of other sites and for other hosts end."""

  def __init__(self, application: types.ASGIApp, hosts: Iterable[str]):
    """Takes the values of the Host header that are answered, such as '127.0.0.1:8000'."""
    self._application = application
    self._hosts = frozenset(host.lower() for host in hosts)

  async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send):
    """Answers a request, or refuses it; every answer has the headers that protect the page."""

    async def send_guarded(message: types.Message):
      if message['type'] == 'http.response.start':
        datastructures.MutableHeaders(scope=message).update(HEADERS)
      await send(message)

    refusal = self._refusal(scope)
    if refusal is None:
      await self._application(scope, receive, send_guarded)
    else:
      await refuse(refusal)(scope, receive, send_guarded)

  def _refusal(self, scope: types.Scope) -> exceptions.HTTPException | None:
    headers = datastructures.Headers(scope=scope)
    if headers.get('host', '').lower() not in self._hosts:
      return exceptions.HTTPException(421, f'Ask for {" or ".join(sorted(self._hosts))}: this '
                                           'server answers for no other host.')
    origin = headers.get('origin')
    if origin is not None and origin.lower().removeprefix('http://') not in self._hosts:
      return exceptions.HTTPException(403, 'Another site may not ask this server.')
    opened = scope['path'] == '/' and scope['method'] == 'GET'  # by a link, which any site may have
    if headers.get('sec-fetch-site') in FOREIGN and not opened:
      return exceptions.HTTPException(403, 'Another site may not ask this server.')
    return None


def refuse(refusal: exceptions.HTTPException) -> responses.Response:
  """A refusal as an answer."""
  return responses.JSONResponse({'error': refusal.detail}, refusal.status_code, refusal.headers)


class Gate:
  """Lets in so many requests at once; the others are told to come again."""

  def __init__(self, room: int):
    self._room = room

  @contextlib.contextmanager
  def entered(self) -> Iterator[None]:
    """Takes a place in the room while it is entered."""
    if not self._room:
      raise exceptions.HTTPException(503, 'The server is busy: ask again in a second.',
                                     {'Retry-After': '1'})
    self._room -= 1
    try:
      yield
    finally:
      self._room += 1


class Queue:
  """Calls functions in threads, so that other clients are served meanwhile."""

  def __init__(self, at_once: int, waiting: int):
    """Calls so many at once; so many may wait, the others are refused."""
    self._threads = anyio.CapacityLimiter(at_once)
    self._gate = Gate(at_once + waiting)

  async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function."""
    with self._gate.entered():
      return await to_thread.run_sync(function, *arguments, limiter=self._threads)


async def read_image(request: requests.Request) -> bytes:
  """The image that a request brings as its body; its bytes are counted as they arrive."""
  if not request.headers.get('content-type', '').lower().startswith(IMAGE_TYPES):
    raise exceptions.HTTPException(415, 'Send the file itself as the body, with a Content-Type '
                                        'such as image/jpeg or application/octet-stream.')
  too_large = exceptions.HTTPException(413, f'The image has more than {MAX_BYTES // 10**6} MB, '
                                            'which is the most that is accepted.')
  announced = request.headers.get('content-length', '0')  # which h11 has checked
  if int(announced) > MAX_BYTES:
    raise too_large
  content = bytearray()
  try:
    async with asyncio.timeout(BODY_SECONDS):
      async for part in request.stream():
        content += part
        if len(content) > MAX_BYTES:
          raise too_large
  except TimeoutError:
    raise exceptions.HTTPException(408, f'The image did not arrive within {BODY_SECONDS} '
                                        'seconds.') from None
  except requests.ClientDisconnect:
    raise exceptions.HTTPException(400, 'The image did not arrive whole.') from None
  if not content:
    raise exceptions.HTTPException(400, 'The body is empty: send an image.')
  return bytes(content)


class Protocol(h11_impl.H11Protocol):
  """HTTP as uvicorn speaks it, but clients that send or read too slowly are cut off."""

  def connection_made(self, transport: asyncio.Transport):
    """Begins to look at the connection from time to time."""
    super().connection_made(transport)
    self.loop.call_later(IDLE_SECONDS, self._look, (None, False), 0)

  def _look(self, before: tuple[Any, bool], times: int):
    """Ends a connection that stands still.

    Args:
      before: the request that was there at the last look, and whether it was being answered.
      times: how many looks have seen the same.
    """
    if self.transport.is_closing():
      return
    answering = self.cycle is not None and not self.cycle.response_complete
    now = self.cycle, answering
    times = times + 1 if now == before else 0
    if answering and times >= ANSWER_LOOKS:
      self.transport.abort()  # it would wait for the client to read
    elif not answering and times:
      if self.conn.trailing_data[0]:  # the beginning of a request
        self.transport.write(b'HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n'
                             b'Content-Length: 0\r\n\r\n')
      self.transport.close()
    else:
      self.loop.call_later(IDLE_SECONDS, self._look, now, times)
