"""The page's server: answers equal to the searcher's, hostile and slow clients, many at once."""

import concurrent.futures
import contextlib
import io
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest
import served
from PIL import Image

import mah_jax
from mah_jax import main
from mah_jax.modes import serve as mode

REASON = 'the page needs starlette and uvicorn: pip install -r requirements-serve.txt'
pytest.importorskip('starlette', reason=REASON)
pytest.importorskip('uvicorn', reason=REASON)

from mah_jax.search import guard  # noqa: E402
from mah_jax.search import serve  # noqa: E402

ROOT = pathlib.Path(__file__).parents[1]
REQUESTS = int(os.environ.get('MAH_JAX_REQUESTS', 400))  # of 16 clients together
CLIENTS = 16


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  with served.trained(tmp_path_factory.mktemp('runs')) as made:
    yield made


@pytest.fixture(scope='module')
def searcher(folder):
  return served.open_run(folder)


@pytest.fixture(scope='module')
def port(searcher):
  with served.serving(searcher) as number:
    yield number


@pytest.fixture
def client(port):
  with served.Client(port) as made:
    yield made


@pytest.fixture(scope='module')
def queries(searcher):
  """Some images that are not in the database, as files."""
  rows = searcher.data.protocol.queries[:40]
  return [served.png(searcher.data.images[row]) for row in rows]


def _hits(answer):
  return [(hit['distance'], hit['name'], tuple(hit['labels']), hit['row'])
          for hit in answer['hits']]


def _bits(code):
  return ''.join('1' if bit == 1 else '0' for bit in code)


@pytest.mark.parametrize('length', [4, 8])
@pytest.mark.parametrize('ranking', ['hamming', 'outputs'])
@pytest.mark.parametrize('database', ['learned', 'encoded'])
def test_neighbours_are_those_of_the_searcher(client, searcher, queries, length, ranking, database):
  choice = {'length': length, 'ranking': ranking, 'database': database}
  ending = '&'.join(f'{name}={value}' for name, value in choice.items())
  for k, image in zip((1, 7, 1000), queries):
    expected = searcher.search(image, k, **choice)
    status, _, answer = client.post(f'/api/search?k={k}&{ending}', image)
    assert status == 200 and len(expected) == k
    assert _hits(answer) == [tuple(hit) for hit in expected]
    assert {name: answer[name] for name in choice} == choice
    assert answer['query'] == {'code': _bits(searcher.encode(image, length))}
    assert [hit['code'] for hit in answer['hits']] == [
        _bits(searcher.code(hit.row, length, database)) for hit in expected]


def test_a_row_is_searched_by_its_image(client, searcher):
  row = 5
  pixels = searcher.data.images[searcher.data.protocol.database[row]]
  _, _, answer = client.get(f'/api/search?row={row}&k=9&length=4&database=encoded')
  assert _hits(answer) == [tuple(hit) for hit in searcher.search(
      pixels, 9, length=4, database='encoded')]
  assert answer['query'] == {
      'row': row, 'name': searcher.database.names[row],
      'labels': [str(searcher.data.labels[searcher.data.protocol.database[row]].argmax())],
      'thumbnail': answer['query']['thumbnail'], 'code': _bits(searcher.encode(pixels, 4))}


def test_settings_of_the_command_are_where_the_page_begins(folder, queries):
  settings = {'code_length': 4, 'ranking': 'outputs', 'database': 'encoded', 'k': 3}
  with (served.serving(mah_jax.load(folder, num_devices=1, **settings)) as port,
        served.Client(port) as client):
    start = {'length': 4, 'ranking': 'outputs', 'database': 'encoded', 'k': 3}
    assert client.get('/api/run')[2]['start'] == start
    _, _, answer = client.post('/api/search', queries[0])
  assert len(answer['hits']) == 3
  assert {name: answer[name] for name in ('length', 'ranking', 'database')} == {
      name: start[name] for name in ('length', 'ranking', 'database')}


def test_encode_gives_codes_and_outputs_of_every_length(client, searcher, queries):
  _, _, sent = client.post('/api/encode', queries[0], 'application/octet-stream')
  for head, c in enumerate((4, 8)):
    assert sent['codes'][str(c)] == _bits(searcher.encode(queries[0], c))
    assert sent['outputs'][str(c)] == searcher.hash([queries[0]]).outputs[head][0].tolist()
  pixels = searcher.data.images[searcher.data.protocol.database[3]]
  _, _, of_row = client.get('/api/encode?row=3')
  assert of_row['codes'] == {str(c): _bits(searcher.encode(pixels, c)) for c in (4, 8)}


def test_the_page_is_told_what_the_run_is(client, searcher):
  _, _, answer = client.get('/api/run')
  assert answer == {
      'name': 'digits', 'method': 'mah', 'dataset': 'digits', 'rows': 1697, 'lengths': [4, 8],
      'rankings': ['hamming', 'outputs'], 'databases': ['learned', 'encoded'],
      'start': {'k': 10, 'length': 8, 'ranking': 'hamming', 'database': 'learned'},
      'max_k': 1000, 'max_bytes': 20_000_000}


def test_random_images_are_rows_of_the_database_and_others_each_time(client, searcher):
  draws = [client.get('/api/random?count=30&length=4')[2]['images'] for _ in range(2)]
  rows = [[image['row'] for image in images] for images in draws]
  assert all(len(set(one)) == 30 and set(one) < set(range(1697)) for one in rows)
  assert rows[0] != rows[1]
  assert all(image['code'] == _bits(searcher.code(image['row'], 4)) for image in draws[0])


def test_the_codebook_is_the_majority_of_each_class(client, searcher):
  _, _, answer = client.get('/api/codebook?length=8&database=encoded')
  classes = searcher.data.labels[searcher.data.protocol.database].argmax(axis=1)
  codes = np.stack([searcher.code(row, 8, 'encoded') for row in range(1697)]).astype(int)
  assert answer['classes'] == [
      {'name': str(i), 'rows': int((classes == i).sum()),
       'code': ''.join('1' if codes[classes == i, bit].sum() >= 0 else '0' for bit in range(8))}
      for i in range(10)]


def test_thumbnails_are_pictures_that_a_browser_may_keep(client, searcher):
  _, _, answer = client.get('/api/search?row=8&k=1')
  address = answer['query']['thumbnail']
  for _ in range(2):  # made, then kept
    status, headers, content = client.get(address)
    assert status == 200 and headers['Content-Type'] == 'image/png'
    assert 'immutable' in headers['Cache-Control'] and 'private' in headers['Cache-Control']
    image = Image.open(io.BytesIO(content))
    assert image.format == 'PNG'
    np.testing.assert_array_equal(np.array(image), searcher.picture(8, serve.SIDE))


def test_every_answer_protects_the_page(client):
  for path in ('/', '/page.js', '/page.css', '/icon.svg', '/api/run', '/nothing',
               '/api/search?row=x'):
    _, headers, _ = client.get(path)
    assert headers['X-Content-Type-Options'] == 'nosniff'
    assert "default-src 'self'" in headers['Content-Security-Policy']
    assert "frame-ancestors 'none'" in headers['Content-Security-Policy']
    assert 'Access-Control-Allow-Origin' not in headers
  assert client.get('/')[0] == 200


def test_the_page_fetches_nothing_from_elsewhere():
  for file in serve.FOLDER.iterdir():
    text = file.read_text().replace('http://www.w3.org/2000/svg', '')
    assert '://' not in text and 'url(' not in text and 'style=' not in text


@pytest.fixture
def with_photos(folder, tmp_path):
  """A copy of the run, to whose database two photographs without labels were added."""
  copy = tmp_path / 'copy'
  shutil.copytree(folder, copy)
  photos = tmp_path / 'photos' / 'deep'
  photos.mkdir(parents=True)
  ramp = np.broadcast_to(np.arange(0, 240, 4, dtype=np.uint8)[:, None], (40, 60, 3))
  for name, pixels in (('a.jpg', ramp), ('b <b>ä.jpg', ramp[:, ::-1])):
    Image.fromarray(pixels).save(photos / name)
  assert main.main(['--mode=index', f'--workdir={copy}', f'--images={tmp_path / "photos"}',
                    '--num_devices=1']) == 0
  return served.open_run(copy), photos


def test_added_photographs_are_found_shown_and_searched_from(with_photos):
  searcher, photos = with_photos
  content = (photos / 'b <b>ä.jpg').read_bytes()
  with served.serving(searcher) as port, served.Client(port) as client:
    _, _, of_row = client.get('/api/search?row=1698&k=5&database=encoded')
    assert of_row['query']['name'] == 'deep/b <b>ä.jpg' and of_row['query']['labels'] == []
    assert of_row['hits'][0]['row'] == 1698 and of_row['hits'][0]['distance'] == 0
    _, _, sent = client.post('/api/search?k=5&database=encoded', content, 'image/jpeg')
    assert sent['hits'] == of_row['hits']
    status, headers, _ = client.get(of_row['query']['thumbnail'])
    assert (status, headers['Content-Type']) == (200, 'image/jpeg')
    version = of_row['query']['thumbnail'].split('/')[2]

    (photos / 'a.jpg').unlink()
    for path in (f'/thumbnails/{version}/1697', '/api/search?row=1697'):
      status, _, answer = client.get(path)
      assert (status, answer) == (404, {'error': 'The file of image 1697 cannot be read.'})
    (photos / 'a.jpg').write_bytes(content[:300])
    assert client.get(f'/thumbnails/{version}/1697')[0] == 404
    assert client.get('/api/search?row=1697')[0] == 422


def test_a_changed_database_has_other_thumbnails(client, with_photos):
  _, _, before = client.get('/api/search?row=8&k=1')
  with served.serving(with_photos[0]) as port, served.Client(port) as other:
    _, _, after = other.get('/api/search?row=8&k=1')
    assert after['query']['thumbnail'] != before['query']['thumbnail']
    assert other.get(before['query']['thumbnail'])[0] == 404


def test_names_that_are_no_text_and_missing_labels(folder, monkeypatch):
  searcher = served.open_run(folder)
  kept = searcher.database
  names = [os.fsdecode(b'\xff.jpg'), *kept.names[1:]]
  monkeypatch.setattr(searcher, 'database',
                      kept._replace(names=names, labels=np.zeros_like(kept.labels)))
  with served.serving(searcher) as port, served.Client(port) as client:
    _, _, answer = client.get('/api/search?row=0&k=1000')
    assert answer['query']['name'] == '\udcff.jpg' and answer['query']['labels'] == []
    assert client.get('/api/codebook')[2]['classes'] == []


def test_an_empty_database_answers_without_rows(folder, queries):
  with served.serving(served.empty(served.open_run(folder))) as port, served.Client(port) as client:
    assert client.get('/api/run')[2]['rows'] == 0
    assert client.get('/api/random')[2] == {'images': []}
    assert client.get('/api/codebook')[2]['classes'] == []
    status, _, answer = client.post('/api/search', queries[0])
    assert status == 200 and answer['hits'] == [] and len(answer['query']['code']) == 8
    assert client.get('/api/search?row=0')[0] == 404


# Hostile requests.

def _bomb():
  """A PNG file of 60,000 x 60,000 pixels in a few hundred bytes."""
  def chunk(kind, content):
    return (struct.pack('>I', len(content)) + kind + content
            + struct.pack('>I', zlib.crc32(kind + content)))
  header = struct.pack('>IIBBBBB', 60_000, 60_000, 8, 2, 0, 0, 0)
  return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header)
          + chunk(b'IDAT', zlib.compress(bytes(10_000))) + chunk(b'IEND', b''))


def _truncated():
  buffer = io.BytesIO()
  Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(
      buffer, 'JPEG')
  return buffer.getvalue()[:700]


def _other_format():
  buffer = io.BytesIO()
  Image.new('RGB', (8, 8)).save(buffer, 'PPM')  # Pillow reads it, mah_jax does not
  return buffer.getvalue()


def _get(path, *headers):
  return '\r\n'.join([f'GET {path} HTTP/1.1', 'Host: HOST', *headers, '', '']).encode('latin-1')


def _post(body, *headers, path='/api/search', kind='image/png'):
  lines = [f'POST {path} HTTP/1.1', 'Host: HOST', f'Content-Type: {kind}',
           f'Content-Length: {len(body)}', *headers, '', '']
  return '\r\n'.join(lines).encode() + body


def _chunked(size):
  """A body of many pieces whose size is not announced."""
  piece = b'%x\r\n%s\r\n' % (10**6, bytes(10**6))
  return (b'POST /api/search HTTP/1.1\r\nHost: HOST\r\nContent-Type: image/png\r\n'
          b'Transfer-Encoding: chunked\r\n\r\n' + piece * (size // 10**6) + b'0\r\n\r\n')


HOSTILE = {
    'a path out of the folder': (404, _get('/../../../../etc/passwd')),
    'the same in percents': (404, _get('/%2e%2e/%2e%2e/%2e%2e/etc/passwd')),
    'a file of the source': (404, _get('/../serve.py')),
    'a thumbnail out of the folder': (404, _get('/thumbnails/VERSION/../../../etc/passwd')),
    'a thumbnail with a slash in percents': (404, _get('/thumbnails/VERSION/..%2f..%2fpasswd')),
    'a thumbnail by name': (400, _get('/thumbnails/VERSION/passwd')),
    'a thumbnail before the first': (400, _get('/thumbnails/VERSION/-1')),
    'a thumbnail after the last': (400, _get('/thumbnails/VERSION/1697')),
    'a thumbnail of many digits': (400, _get('/thumbnails/VERSION/' + '9' * 5000)),
    'a thumbnail with a zero byte': (400, _get('/thumbnails/VERSION/0%00')),
    'a thumbnail of another database': (404, _get('/thumbnails/0123456789abcdef/0')),
    'a row that is a path': (400, _get('/api/search?row=/etc/passwd')),
    'a row as a float': (400, _get('/api/search?row=1e3')),
    'a row below 0': (400, _get('/api/search?row=-1')),
    'a row in other digits': (400, _get('/api/search?row=%EF%BC%91')),
    'no row': (400, _get('/api/search')),
    'an encoding of no row': (400, _get('/api/encode')),
    'k that is no number': (400, _get('/api/search?row=1&k=NaN')),
    'k of 0': (400, _get('/api/search?row=1&k=0')),
    'k below 0': (400, _get('/api/search?row=1&k=-5')),
    'a huge k': (400, _get('/api/search?row=1&k=1000000000000')),
    'k above the most': (400, _get('/api/search?row=1&k=1001')),
    'k twice': (400, _get('/api/search?row=1&k=5&k=6')),
    'an unknown length': (400, _get('/api/search?row=1&length=5')),
    'an unknown ranking': (400, _get('/api/search?row=1&ranking=__class__')),
    'an unknown database': (400, _get('/api/search?row=1&database=../codes')),
    'an unknown parameter': (400, _get('/api/search?row=1&path=/etc/passwd')),
    'too many random images': (400, _get('/api/random?count=101')),
    'bytes that are no text': (400, _get('/api/search?row=%ff%fe')),
    'a foreign host': (421, _get('/').replace(b'HOST', b'evil.example')),
    'the right host at a foreign port': (421, _get('/').replace(b'HOST', b'127.0.0.1:1')),
    'no host': (400, b'GET / HTTP/1.1\r\n\r\n'),
    'no host, HTTP/1.0': (421, b'GET / HTTP/1.0\r\n\r\n'),
    'two hosts': (400, _get('/', 'Host: evil.example')),
    'a foreign host in the target': (404, _get('http://evil.example/')),
    'a question of another site': (403, _get('/api/run', 'Origin: http://evil.example')),
    'an upload from another site': (403, _post(b'x', 'Origin: http://evil.example')),
    'an upload from a sandbox': (403, _post(b'x', 'Origin: null')),
    'an upload that the browser calls foreign': (403, _post(b'x', 'Sec-Fetch-Site: cross-site')),
    'an upload from another port': (403, _post(b'x', 'Sec-Fetch-Site: same-site')),
    'a thumbnail in another site': (403, _get('/thumbnails/VERSION/0',
                                              'Sec-Fetch-Site: cross-site')),
    'a form': (415, _post(b'a=b', kind='application/x-www-form-urlencoded')),
    'a form with a file': (415, _post(b'--x--', kind='multipart/form-data; boundary=x')),
    'text': (415, _post(b'x', kind='text/plain')),
    'no image': (400, _post(b'')),
    'no image at all': (422, _post(b'GIF but not really')),
    'half an image': (422, _post(_truncated())),
    'a bomb': (422, _post(_bomb())),
    'a format that is not read': (422, _post(_other_format())),
    'an image and a row': (400, _post(b'x', path='/api/search?row=1')),
    'an announced terabyte': (413, _post(b'').replace(b'Content-Length: 0',
                                                     b'Content-Length: 1000000000000')),
    'too much': (413, _post(bytes(20_000_001))),
    'too much in pieces': (413, _chunked(30 * 10**6)),
    'a length below 0': (400, _post(b'').replace(b'Content-Length: 0', b'Content-Length: -1')),
    'two lengths': (400, _post(b'x', 'Content-Length: 2')),
    'another method': (405, _get('/api/search').replace(b'GET', b'DELETE')),
    'a search that is put': (405, _post(b'x').replace(b'POST', b'PUT')),
    'a post to the page': (405, _post(b'x', path='/')),
    'a post to a question': (405, _post(b'x', path='/api/run')),
    'a trace': (405, _get('/').replace(b'GET', b'TRACE')),
    'endless headers': (400, _get('/', 'X: ' + 'x' * 200_000)),
    'no HTTP': (400, b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n'),
}


def _raw(port, request, seconds=30):
  """The status and the text of the answer to bytes."""
  with socket.create_connection(('127.0.0.1', port), seconds) as connection:
    received = []

    def receive():
      with contextlib.suppress(ConnectionError):
        while part := connection.recv(2**16):
          received.append(part)
          head, _, rest = b''.join(received).partition(b'\r\n\r\n')
          for line in head.lower().split(b'\r\n'):
            if line.startswith(b'content-length:') and len(rest) >= int(line[15:]):
              return

    reader = threading.Thread(target=receive)
    reader.start()
    with contextlib.suppress(ConnectionError):  # it may be closed before all is read
      connection.sendall(request)
    reader.join(seconds)
    assert not reader.is_alive(), 'no answer'
  text = b''.join(received).decode('latin-1')
  return int(text.split()[1]), text


@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_requests_are_refused_and_the_server_lives(port, client, name, caplog):
  status, request = HOSTILE[name]
  version = client.get('/api/search?row=0&k=1')[2]['query']['thumbnail'].split('/')[2]
  request = request.replace(b'HOST', b'127.0.0.1:%d' % port).replace(b'VERSION', version.encode())
  answered, text = _raw(port, request)
  assert answered == status, text
  assert 400 <= answered < 500 and 'root:' not in text and 'Traceback' not in text
  with served.Client(port) as other:
    assert other.get('/api/run')[0] == 200
  assert not [record for record in caplog.records if record.levelname == 'ERROR']  # of its own


def test_links_of_other_sites_open_the_page_only(port):
  host = b'127.0.0.1:%d' % port
  request = _get('/?row=1', 'Sec-Fetch-Site: cross-site', 'Sec-Fetch-Mode: navigate')
  assert _raw(port, request.replace(b'HOST', host))[0] == 200
  own = _post(served.png(np.zeros((8, 8), np.uint8)), 'Sec-Fetch-Site: same-origin',
              f'Origin: http://127.0.0.1:{port}')
  assert _raw(port, own.replace(b'HOST', host))[0] == 200


def test_slow_clients_are_cut_off_and_stop_nobody(searcher, queries, monkeypatch):
  searcher.search(queries[0])  # loads the network
  monkeypatch.setattr(guard, 'BODY_SECONDS', 1.0)
  monkeypatch.setattr(guard, 'IDLE_SECONDS', 1.0)
  with served.serving(searcher) as port:
    host = b'127.0.0.1:%d' % port
    body = _post(b'').replace(b'Content-Length: 0', b'Content-Length: 1000').replace(b'HOST', host)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
      slow = [pool.submit(_raw, port, body) for _ in range(10)]
      slow += [pool.submit(_raw, port, b'GET / HTTP/1.1\r\nHost: ') for _ in range(10)]
      start = time.monotonic()
      with served.Client(port) as client:
        for image in queries[:3]:
          assert client.post('/api/search', image)[0] == 200
      # Nobody waited for the slow ones, unless the machine is too slow to tell.
      assert not any(one.done() for one in slow) or time.monotonic() - start > 1
      assert [one.result()[0] for one in slow] == [408] * 20
    with socket.create_connection(('127.0.0.1', port), 10) as connection:  # says nothing at all
      assert connection.recv(1) == b''
    with socket.create_connection(('127.0.0.1', port)) as connection:
      connection.sendall(body + b'half')  # and leaves
    with served.Client(port) as client:
      assert client.get('/api/run')[0] == 200


def test_a_client_that_does_not_read_is_cut_off(searcher, monkeypatch):
  searcher.search(searcher.image(1))  # loads the network
  monkeypatch.setattr(guard, 'IDLE_SECONDS', 0.2)
  monkeypatch.setattr(guard, 'ANSWER_LOOKS', 3)
  connections = []
  with served.serving(searcher, connections) as port:
    request = _get('/api/search?row=1&k=1000').replace(b'HOST', b'127.0.0.1:%d' % port)
    with socket.create_connection(('127.0.0.1', port), 20) as connection:
      connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
      connection.sendall(request * 200)  # whose answers are more than any buffer has room for
      deadline = time.monotonic() + 60
      while not connections[0]:
        time.sleep(0.01)
      while connections[0]:
        time.sleep(0.05)
        assert time.monotonic() < deadline
    with served.Client(port) as client:
      assert client.get('/api/run')[0] == 200


def test_a_long_queue_is_refused_and_other_answers_go_on(folder, queries, monkeypatch):
  searcher = served.open_run(folder)
  entered, leave, at_once = threading.Semaphore(0), threading.Event(), []
  original = searcher.hash

  def slow(images, on_bad):
    at_once.append(1)
    assert sum(at_once) == 1  # the network is called by one thread at a time
    entered.release()
    leave.wait(30)
    at_once.append(-1)
    return original(images, on_bad)

  monkeypatch.setattr(searcher, 'hash', slow)
  monkeypatch.setattr(serve, 'WAITING', 2)

  def ask(image):
    with served.Client(port) as client:
      return client.post('/api/search?k=1', image)

  with served.serving(searcher) as port, concurrent.futures.ThreadPoolExecutor(8) as pool:
    waiting = [pool.submit(ask, queries[0])]
    assert entered.acquire(timeout=20)
    others = [pool.submit(ask, image) for image in queries[1:6]]
    done, deadline = (), time.monotonic() + 20
    while len(done) < 3 and time.monotonic() < deadline:  # one works and two wait: three too many
      done, still = concurrent.futures.wait(others, 0.1)
    assert len(done) == 3
    for one in done:
      status, headers, answer = one.result()
      assert status == 503 and headers['Retry-After'] == '1' and 'busy' in answer['error']
    with served.Client(port) as client:
      assert client.get('/api/random')[0] == 200
    leave.set()
    assert [one.result()[0] for one in (*waiting, *still)] == [200] * 3


def test_many_clients_at_once_lose_nothing_and_get_nothing_wrong(searcher, queries):
  """Uploads, searches from rows and thumbnails in random order; MAH_JAX_REQUESTS asks for more."""
  rows = list(range(0, 200, 5))
  sent = [[tuple(hit) for hit in searcher.search(image, 10)] for image in queries]
  of_row = [[tuple(hit) for hit in searcher.search(searcher.image(row), 10)] for row in rows]
  pixels = [searcher.picture(row, serve.SIDE) for row in rows]
  with served.serving(searcher) as port:
    with served.Client(port) as client:
      version = client.get('/api/random')[2]['images'][0]['thumbnail'].split('/')[2]

    def work(number):
      rng, answered = random.Random(number), 0
      with served.Client(port) as client:
        for _ in range(REQUESTS // CLIENTS):
          i, kind = rng.randrange(40), rng.randrange(3)
          if kind == 0:
            status, _, answer = client.post('/api/search?k=10', queries[i])
            right = _hits(answer) == sent[i]
          elif kind == 1:
            status, _, answer = client.get(f'/api/search?k=10&row={rows[i]}')
            right = _hits(answer) == of_row[i]
          else:
            status, _, answer = client.get(f'/thumbnails/{version}/{rows[i]}')
            right = np.array_equal(np.array(Image.open(io.BytesIO(answer))), pixels[i])
          assert status == 200 and right
          answered += 1
      return answered

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
      assert sum(pool.map(work, range(CLIENTS))) == REQUESTS // CLIENTS * CLIENTS


def test_the_cache_keeps_what_was_used_last():
  cache = serve.Cache(10)
  for key, size in (('a', 4), ('b', 4)):
    cache.put(key, key.upper(), size)
  assert cache.get('a') == 'A'
  cache.put('c', 'C', 4)  # 12 bytes: b was not used for longest
  assert [cache.get(key) for key in 'abc'] == ['A', None, 'C']
  cache.put('a', 'other', 4)  # which somebody else has made meanwhile
  cache.put('d', 'D', 11)  # more than there is room for
  assert [cache.get(key) for key in 'acd'] == [None, None, None]
  cache.put('e', 'E', 10)
  assert cache.get('e') == 'E'


# The command.

@pytest.mark.parametrize('number, code', [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_command_serves_until_a_signal(folder, number, code):
  """Also while a client is slow: the server does not wait for it."""
  process = subprocess.Popen(
      [sys.executable, '-m', 'mah_jax.main', '--mode=serve', f'--workdir={folder}', '--port=0'],
      cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'})
  try:
    line = next(line for line in process.stdout if 'searched at' in line)
    assert line.startswith('1,697 images can be searched at http://127.0.0.1:')
    port = int(line.split(';')[0].rsplit(':', 1)[1])
    with (served.Client(port) as client,
          socket.create_connection(('127.0.0.1', port)) as slow):
      assert client.get('/api/search?row=1')[0] == 200
      slow.sendall(_post(b'').replace(b'Content-Length: 0', b'Content-Length: 9').replace(
          b'HOST', b'127.0.0.1:%d' % port))
      start = time.monotonic()
      process.send_signal(number)
      output, complaints = process.communicate(timeout=30)
    assert time.monotonic() - start < 10
    assert process.returncode == code
    assert output == 'The page is closed.\n' and 'Stopping' in complaints
  finally:
    process.kill()


def _complaint(capsys, *arguments):
  code = main.main(['--mode=serve', *arguments])
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 1
  return code, lines[0]


def test_missing_libraries_are_one_sentence_before_any_work(folder, capsys, monkeypatch):
  find = mode.importlib.util.find_spec
  monkeypatch.setattr(mode.importlib.util, 'find_spec',
                      lambda name: None if name == 'uvicorn' else find(name))
  monkeypatch.setattr(mode.searcher_lib, 'Searcher', None)
  code, line = _complaint(capsys, f'--workdir={folder}')
  assert code == 1 and 'uvicorn' in line and 'starlette' not in line.split(':')[1]
  assert 'pip install "mah-jax[serve]"' in line and 'requirements-serve.txt' in line


def test_what_cannot_be_served_is_one_sentence(folder, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(serve, 'server', None)  # nothing is served
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
    code, line = _complaint(capsys, f'--workdir={folder}', f'--port={port}')
    assert code == 2 and str(port) in line and '--port=0' in line
  for flags, words in [(['--host=0.0.0.0'], '--host=0.0.0.0'), (['--host='], '--host='),
                       (['--host=no.such.host.invalid'], 'no.such.host.invalid'),
                       (['--port=65536'], '65535'), (['--port=-1'], '--port=-1'),
                       (['--k=1001'], '1000'), (['--code_length=5'], '5 bits')]:
    code, line = _complaint(capsys, f'--workdir={folder}', '--num_devices=1', '--port=0', *flags)
    assert code == 2 and words in line
  assert _complaint(capsys, f'--workdir={tmp_path}')[0] == 1


def test_hosts_are_written_as_browsers_do():
  local = ['localhost', '127.0.0.1', '[::1]']
  assert mode._hosts('x', 8000) == [f'{name}:8000' for name in (*local, 'x')]
  assert set(mode._hosts('x', 80)) > {*local, 'x'}  # browsers leave port 80 out
  assert '[fe80::1]:8000' in mode._hosts('fe80::1', 8000)
