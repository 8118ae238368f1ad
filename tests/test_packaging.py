"""The package: what an installation holds, what it needs, and that building it leaves no trace."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import mah_jax
from mah_jax import main

ROOT = pathlib.Path(__file__).parents[1]
SOURCE = ('mah_jax', 'launch', 'pyproject.toml', 'setup.py', 'requirements.txt', 'README.md')


def _files(folder):
  return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


@pytest.fixture(scope='module')
def built(tmp_path_factory):
  """A clean copy of the source, its files before a build, and the folder that was installed to."""
  pytest.importorskip('setuptools', minversion='61', reason='a build needs setuptools, which this '
                      'environment has not, and a test may not fetch')
  tree, target = tmp_path_factory.mktemp('tree'), tmp_path_factory.mktemp('target')
  for name in SOURCE:
    copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
    copy(ROOT / name, tree / name)
  for cache in list(tree.rglob('__pycache__')):
    shutil.rmtree(cache)
  before = _files(tree)
  # The parts of what pip does that write files; the rest packs them, and needs more than this.
  ran = subprocess.run(
      [sys.executable, 'setup.py', '-q', 'egg_info', 'install_lib', f'--install-dir={target}'],
      cwd=tree, capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': ''})
  assert ran.returncode == 0, ran.stderr
  return tree, before, target


def test_a_build_leaves_nothing_in_the_tree(built):
  tree, before, _ = built
  assert _files(tree) == before
  assert not (tree / 'build').exists() and not list(tree.glob('*.egg-info'))


def test_an_installation_holds_every_file_of_the_package(built):
  tree, _, target = built
  expected = _files(tree / 'mah_jax') | {f'launch/{name}' for name in _files(tree / 'launch')}
  installed = {name for name in _files(target / 'mah_jax') if '__pycache__' not in name}
  assert installed == expected


def test_an_installation_finds_its_digits_and_launch_files(built):
  _, _, target = built
  code = ('import mah_jax; from mah_jax import flags; from mah_jax.data import digits\n'
          'print(mah_jax.__file__, flags.from_arguments([]).dataset, len(digits.load().images))')
  ran = subprocess.run([sys.executable, '-c', code], cwd=target, capture_output=True, text=True,
                       env={**os.environ, 'PYTHONPATH': str(target)})
  assert ran.stdout.split() == [str(target / 'mah_jax' / '__init__.py'), 'digits', '1797'], ran


def _names(requirements):
  """The packages of a list of requirements, without versions and comments."""
  return {re.split(r'[=<>\[ #]', line, maxsplit=1)[0] for line in requirements
          if line.strip() and not line.startswith(('#', '-'))}


def test_an_extra_needs_what_its_requirements_file_pins():
  extras = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['optional-dependencies']
  assert {'serve', 'export', 'report', 'tensorboard'} <= extras.keys()
  for name, needed in extras.items():
    path = ROOT / f'requirements-{name}.txt'
    if path.exists():  # the CUDA builds of JAX have none
      assert _names(path.read_text().splitlines()) == _names(needed), name


def test_nothing_that_every_run_needs_is_of_an_extra():
  """The set-up of a first run stays small."""
  needed = _names((ROOT / 'requirements.txt').read_text().splitlines())
  extras = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['optional-dependencies']
  for name, packages in extras.items():
    if not name.startswith('cuda'):
      assert not needed & _names(packages), name
  assert 'scikit-learn' not in needed


def test_the_command_says_its_version(capsys):
  assert main.main(['--version']) == 0
  assert capsys.readouterr().out == f'mah-jax {mah_jax.__version__}\n'
