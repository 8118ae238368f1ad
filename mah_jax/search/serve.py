"""The page to search a run by, and the API below it: a Starlette application over a Searcher.

    POST /api/search   the body is an image file: its neighbours
    GET  /api/search?row=7              the neighbours of an image of the database
         both with &k=10&length=8&ranking=hamming|outputs&database=learned|encoded, all optional
    POST /api/encode   the body is an image file: its codes and outputs of every length
    GET  /api/encode?row=7              the same of an image of the database
    GET  /api/random?count=24           some images of the database; also length and database
    GET  /api/codebook                  the codeword of each class; also length and database
    GET  /api/run                       what the run is, and what may be asked
    GET  /thumbnails/VERSION/ROW        a picture of a row, under the address that answers give

A search answers

    {"query": IMAGE, "length": 8, "ranking": "hamming", "database": "learned",
     "hits": [IMAGE and "distance", nearest first],
     "milliseconds": {"encode": 12.1, "search": 0.4}}

where an IMAGE is {"row", "name", "labels", "thumbnail", "code"}: its number in the database, its
file, a list, an address and a text of 0 and 1. An image that was sent has a code only. The
distance is that of `searcher.Hit`. Whatever is refused answers {"error": "A sentence."} and a
status from 400 on; 503 says by Retry-After when to ask again.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import logging
import pathlib
import random
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np
import uvicorn
from starlette import applications
from starlette import exceptions
from starlette import requests
from starlette import responses
from starlette import routing

from mah_jax import cores
from mah_jax import errors
from mah_jax.data import images as images_lib
from mah_jax.data import pictures
from mah_jax.evaluation import metrics
from mah_jax.search import guard
from mah_jax.search import searcher as searcher_lib
from mah_jax.train import hasher as hasher_lib

MAX_K = 1000           # neighbours of one answer
MAX_RANDOM = 100       # images of one answer of /api/random
SIDE = 256             # pixels of a thumbnail
CACHED = 2**26         # bytes of thumbnails, and of hashed images, that are kept
UPLOADS = 32           # images that may arrive at once
WAITING = 64           # requests that may wait for the network
ANSWERS = 512          # requests that may wait for a search or a thumbnail
CONNECTIONS = 512
SHUTDOWN_SECONDS = 2   # for answers that are under way
FOLDER = pathlib.Path(__file__).parent / 'page'
FILES = {'/': ('index.html', 'text/html'), '/page.css': ('page.css', 'text/css'),
         '/page.js': ('page.js', 'text/javascript'), '/icon.svg': ('icon.svg', 'image/svg+xml')}


class Cache:
  """What was used last, as far as it has room."""

  def __init__(self, room: int):
    """Takes the number of bytes that there is room for."""
    self._room = room
    self._kept = collections.OrderedDict()  # key: (value, bytes), used last at the end
    self._lock = threading.Lock()

  def get(self, key: Any) -> Any:
    """What was kept under a key, or None."""
    with self._lock:
      if key not in self._kept:
        return None
      self._kept.move_to_end(key)
      return self._kept[key][0]

  def put(self, key: Any, value: Any, size: int):
    """Keeps a value of so many bytes, and drops what was not used for longest."""
    with self._lock:
      if key in self._kept:
        return
      self._kept[key] = value, size
      self._room -= size
      while self._room < 0:
        self._room += self._kept.popitem(last=False)[1][1]


class Choice(NamedTuple):
  """What a request chooses: how many rows, bits of the codes, ranking and kind of codes."""
  k: int
  length: int
  ranking: str
  database: str


class Page:
  """The answers. What takes time runs in threads: the network, searches, thumbnails."""

  def __init__(self, searcher: searcher_lib.Searcher):
    self._searcher, config = searcher, searcher.config
    self._start = Choice(config.neighbours, config.code_length or searcher.code_lengths[-1],
                         config.ranking, config.database or searcher.database.kinds[0])
    self._version = _version(searcher)
    self._network = guard.Queue(1, WAITING)  # it uses all cores by itself
    self._searches = guard.Queue(cores.usable(), ANSWERS)
    self._decoding = guard.Queue(cores.usable(), ANSWERS)
    self._uploads = guard.Gate(UPLOADS)
    self._hashed, self._thumbnails = Cache(CACHED), Cache(CACHED)
    self._codebooks: dict[tuple[int, str], list[dict[str, Any]]] = {}

  def routes(self) -> list[routing.Route]:
    """The addresses and their answers."""
    files = [routing.Route(path, _file(FOLDER / name, kind))
             for path, (name, kind) in FILES.items()]
    return [*files,
            routing.Route('/api/run', self.run),
            routing.Route('/api/random', self.some),
            routing.Route('/api/codebook', self.codebook),
            routing.Route('/api/search', self.search, methods=['GET', 'POST']),
            routing.Route('/api/encode', self.encode, methods=['GET', 'POST']),
            routing.Route('/thumbnails/{version}/{row}', self.thumbnail)]

  async def run(self, request: requests.Request) -> responses.Response:
    """What the run is, and what may be asked."""
    _values(request, ())
    searcher = self._searcher
    return _json({
        'name': searcher.folder.path.resolve().name, 'method': searcher.config.method,
        'dataset': searcher.config.dataset, 'rows': len(searcher),
        'lengths': searcher.code_lengths, 'rankings': searcher_lib.RANKINGS,
        'databases': searcher.database.kinds, 'start': self._start._asdict(),
        'max_k': MAX_K, 'max_bytes': guard.MAX_BYTES})

  async def some(self, request: requests.Request) -> responses.Response:
    """Some images of the database, other ones each time."""
    values = _values(request, ('count', 'length', 'database'))
    count = _number(values, 'count', 24, 1, MAX_RANDOM)
    choice, n = self._choice(values), len(self._searcher)
    rows = random.sample(range(n), min(count, n))
    return _json({'images': [self._row(row, choice) for row in rows]})

  async def codebook(self, request: requests.Request) -> responses.Response:
    """The codeword of each class that has one; none where the database has no labels."""
    choice = self._choice(_values(request, ('length', 'database')))
    key = choice.length, choice.database
    if key not in self._codebooks:
      self._codebooks[key] = await self._searches.run(_codebook, self._searcher, *key)
    return _json({'length': choice.length, 'database': choice.database,
                  'classes': self._codebooks[key]})

  async def search(self, request: requests.Request) -> responses.Response:
    """The neighbours of an image that is sent, or of one of the database."""
    values = _values(request, ('row', *Choice._fields))
    choice = self._choice(values)
    row, hashed, seconds = await self._query(request, values)
    start = time.perf_counter()
    hits = await self._searches.run(self._hits, hashed, choice)
    head = self._searcher.code_lengths.index(choice.length)
    query = {'code': _bits(hashed.codes[head][0])}  # as a query; as a row it may have another
    if row is not None:
      query = self._row(row, choice) | query
    return _json({'query': query, 'length': choice.length, 'ranking': choice.ranking,
                  'database': choice.database, 'hits': hits,
                  'milliseconds': {'encode': _milliseconds(seconds),
                                   'search': _milliseconds(time.perf_counter() - start)}})

  async def encode(self, request: requests.Request) -> responses.Response:
    """The codes of every length of an image that is sent, or of one of the database."""
    _, hashed, seconds = await self._query(request, _values(request, ('row',)))
    lengths = list(map(str, self._searcher.code_lengths))
    return _json({
        'codes': dict(zip(lengths, (_bits(head[0]) for head in hashed.codes))),
        'outputs': dict(zip(lengths, (head[0].tolist() for head in hashed.outputs))),
        'milliseconds': {'encode': _milliseconds(seconds)}})

  async def thumbnail(self, request: requests.Request) -> responses.Response:
    """The picture of a row."""
    _values(request, ())
    row = self._existing(request.path_params)
    if request.path_params['version'] != self._version:
      raise exceptions.HTTPException(404, 'The database has changed: load the page again.')
    kept = self._thumbnails.get(row)
    if kept is None:
      try:
        kept = await self._decoding.run(self._draw, row)
      except errors.InputError:  # its sentence may name a folder, which is not for everybody
        raise exceptions.HTTPException(404, f'The file of image {row} cannot be read.') from None
      self._thumbnails.put(row, kept, len(kept[0]))
    content, kind = kept
    return responses.Response(content, headers={
        'Content-Type': kind, 'Cache-Control': 'private, max-age=31536000, immutable'})

  async def _query(self, request: requests.Request, values: dict[str, str]
                   ) -> tuple[int | None, hasher_lib.Hashed, float]:
    """The row that is asked about, or None for an image that is sent; its hash; the seconds."""
    if request.method == 'POST':
      if 'row' in values:
        raise exceptions.HTTPException(400, 'Send an image, or name a row by GET, not both.')
      with self._uploads.entered():
        content = await guard.read_image(request)
        start = time.perf_counter()
        key = await self._searches.run(lambda: hashlib.sha256(content).digest())
        hashed = await self._hash(key, content)
      return None, hashed, time.perf_counter() - start
    if 'row' not in values:
      raise exceptions.HTTPException(400, 'Name an image by row=NUMBER, or send one by POST.')
    row, start = self._existing(values), time.perf_counter()
    return row, await self._hash(row, None), time.perf_counter() - start

  async def _hash(self, key: int | bytes, content: bytes | None) -> hasher_lib.Hashed:
    """The hash of an image, which is kept under its row or the digest of its content."""
    hashed = self._hashed.get(key)
    if hashed is None:
      hashed = await self._network.run(self._compute, key, content)
    return hashed

  def _compute(self, key: int | bytes, content: bytes | None) -> hasher_lib.Hashed:
    """Calls the network, unless somebody asked for the same while this request waited."""
    hashed = self._hashed.get(key)
    if hashed is not None:
      return hashed
    try:
      image = self._searcher.image(key) if content is None else content
    except errors.InputError:
      raise exceptions.HTTPException(404, f'The file of image {key} cannot be read.') from None
    bad = {}  # 0: reason
    hashed = self._searcher.hash([image], bad.__setitem__)
    if bad:
      raise exceptions.HTTPException(422, f'The image cannot be read: {bad[0]}.')
    heads = (*hashed.codes, *hashed.database_codes, *hashed.outputs, hashed.features)
    self._hashed.put(key, hashed, sum(head.nbytes for head in heads))
    return hashed

  def _hits(self, hashed: hasher_lib.Hashed, choice: Choice) -> list[dict[str, Any]]:
    hits = self._searcher.search_hashed(hashed, choice.k, length=choice.length,
                                        ranking=choice.ranking, database=choice.database)[0]
    return [self._row(hit.row, choice) | {'distance': hit.distance} for hit in hits]

  def _row(self, row: int, choice: Choice) -> dict[str, Any]:
    """An image of the database as answers have it."""
    searcher = self._searcher
    return {'row': row, 'name': searcher.database.names[row],
            'labels': searcher.database.labels_of(row),
            'thumbnail': f'/thumbnails/{self._version}/{row}',
            'code': _bits(searcher.code(row, choice.length, choice.database))}

  def _draw(self, row: int) -> tuple[bytes, str]:
    """The content and the type of a thumbnail: small images would suffer from JPEG."""
    image = self._searcher.image(row)
    if isinstance(image, np.ndarray):
      return pictures.to_png(pictures.square(image, SIDE)), 'image/png'
    return pictures.to_jpeg(images_lib.decode(image, SIDE)), 'image/jpeg'

  def _choice(self, values: dict[str, str]) -> Choice:
    start, searcher = self._start, self._searcher
    lengths = [str(length) for length in searcher.code_lengths]
    return Choice(_number(values, 'k', start.k, 1, MAX_K),
                  int(_one_of(values, 'length', str(start.length), lengths)),
                  _one_of(values, 'ranking', start.ranking, searcher_lib.RANKINGS),
                  _one_of(values, 'database', start.database, searcher.database.kinds))

  def _existing(self, values: dict[str, str]) -> int:
    """The row that is named, if it exists."""
    if not len(self._searcher):
      raise exceptions.HTTPException(404, 'The database of this run has no images.')
    return _number(values, 'row', 0, 0, len(self._searcher) - 1)


def application(searcher: searcher_lib.Searcher, hosts: Iterable[str]) -> guard.Guard:
  """The page of a run.

  Args:
    searcher: its settings are those that the page begins with.
    hosts: values of the Host header that are answered, such as '127.0.0.1:8000'.
  """
  return guard.Guard(applications.Starlette(
      routes=Page(searcher).routes(),
      exception_handlers={exceptions.HTTPException: _refused, Exception: _broken}), hosts)


class Server(uvicorn.Server):
  """A server that leaves signals to the program and ends when `stopped` says so."""

  def __init__(self, config: uvicorn.Config, stopped: Callable[[], bool]):
    super().__init__(config)
    self._stopped = stopped

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    """Captures none."""
    yield

  async def on_tick(self, counter: int) -> bool:
    """Whether the server ends; uvicorn asks ten times a second."""
    return self._stopped() or await super().on_tick(counter)


def server(app: guard.Guard, stopped: Callable[[], bool] = lambda: False) -> Server:
  """The server of a page, which ends once `stopped` is true."""
  return Server(uvicorn.Config(
      app, http=guard.Protocol, ws='none', loop='asyncio', lifespan='off', log_config=None,
      log_level='critical', access_log=False, proxy_headers=False, server_header=False,
      limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=SHUTDOWN_SECONDS), stopped)


async def _refused(request: requests.Request, refusal: Exception) -> responses.Response:
  return guard.refuse(refusal)


async def _broken(request: requests.Request, error: Exception) -> responses.Response:
  logging.getLogger(__name__).error('%s %s', request.method, request.url.path, exc_info=error)
  return guard.refuse(exceptions.HTTPException(500, 'The server made a mistake, which it has '
                                                    'written to its console.'))


def _json(content: Any) -> responses.Response:
  """An answer; a file name that is no valid text keeps its bytes as JSON escapes."""
  return responses.Response(json.dumps(content, allow_nan=False), headers={
      'Content-Type': 'application/json', 'Cache-Control': 'no-store'})


def _file(path: pathlib.Path, kind: str):
  """An endpoint that answers with a file of the page."""
  content = path.read_bytes()

  async def answer(request: requests.Request) -> responses.Response:
    return responses.Response(content, media_type=kind, headers={'Cache-Control': 'no-cache'})

  return answer


def _values(request: requests.Request, names: Collection[str]) -> dict[str, str]:
  """The parameters of a request; each of them once, and no others."""
  values = {}
  for name, value in request.query_params.multi_items():
    if name not in names or name in values:
      raise exceptions.HTTPException(
          400, f'{name[:40]!r} is no parameter of {request.url.path}, or is given twice: it has '
               f'{", ".join(names) or "none"}.')
    values[name] = value
  return values


def _number(values: dict[str, str], name: str, default: int, low: int, high: int) -> int:
  text = values.get(name, str(default))
  # At most nine digits: `int` would take seconds for very many.
  if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
    raise exceptions.HTTPException(
        400, f'{name}={text[:40]!r} must be a whole number from {low} to {high}.')
  return int(text)


def _one_of(values: dict[str, str], name: str, default: str, allowed: Collection[str]) -> str:
  value = values.get(name, default)
  if value not in allowed:
    raise exceptions.HTTPException(
        400, f'{name}={value[:40]!r} must be one of {", ".join(allowed)}.')
  return value


def _bits(code: np.ndarray) -> str:
  """A code [c] in {-1, +1} as a text of 0 and 1."""
  return ''.join('1' if bit > 0 else '0' for bit in code.tolist())


def _milliseconds(seconds: float) -> float:
  return round(1000 * seconds, 2)


def _version(searcher: searcher_lib.Searcher) -> str:
  """A text that changes with the rows of the database, for the addresses of thumbnails."""
  database = searcher.database
  texts = json.dumps([database.made_from, database.folders, database.names])
  return hashlib.sha256(texts.encode() + database.folder_of.tobytes()).hexdigest()[:16]


def _codebook(searcher: searcher_lib.Searcher, length: int, kind: str) -> list[dict[str, Any]]:
  """The classes with rows: name, codeword and number of rows."""
  labels = searcher.database.labels
  if not labels.any():
    return []
  packed = searcher.database.codes[f'{kind}_{length}']
  codes = np.unpackbits(packed, axis=1, count=length).astype(np.int8) * 2 - 1
  words, rows = metrics.codebook(codes, labels)['codewords'], labels.sum(axis=0, dtype=int)
  return [{'name': name, 'code': word, 'rows': count}
          for name, word, count in zip(searcher.class_names, words, rows.tolist()) if word]
