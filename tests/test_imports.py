"""Who may import whom, and where names of methods, datasets and backbones stand, by the source."""

import ast
import pathlib
import re

import pytest

from mah_jax import methods
from mah_jax import models
from mah_jax.data import datasets

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted((ROOT / 'mah_jax').rglob('*.py'))
# The rooms and single files of the package from the ground up. Each may import those below it;
# what stands in one line may import its neighbours.
LAYERS = [
    ['errors', 'options', 'storage', 'console', 'cores'],
    ['distinct', 'similarity', 'losses', 'discrete', 'codebook', 'evaluation'],
    ['models'],
    ['fetching'],
    ['weights'],
    ['data'],
    ['methods'],
    ['config'],
    ['train'],
    ['runs'],
    ['search'],
    ['modes'],
    ['compiling', 'flags', 'main', 'report', 'paper', '__init__'],
]
HEIGHT = {part: height for height, parts in enumerate(LAYERS) for part in parts}
# Libraries that only some files may know.
KEPT = {'orbax': {'train/checkpoint.py'}, 'absl': {'flags.py'}, 'tqdm': {'console.py'},
        'tensorflow_datasets': {'data/builders.py'}, 'sklearn': set(),
        'PIL': {'data/images.py', 'data/pictures.py'}, 'safetensors': {'weights/files.py'},
        'fcntl': {'storage.py'}, 'matplotlib': {'paper/figures.py'},
        'scipy': {'evaluation/intervals.py'}, 'starlette': {'search/serve.py', 'search/guard.py'},
        'uvicorn': {'search/serve.py', 'search/guard.py'}, 'anyio': {'search/guard.py'},
        'faiss': {'search/export/faiss.py'}, 'pyarrow': {'search/export/parquet.py'},
        'flatbuffers': set(), 'tensorboardX': {'runs/tensorboard.py'}}


def _imports(path):
  """Dotted names of all modules that a file imports."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def _name(path):
  return path.relative_to(ROOT / 'mah_jax').as_posix()


def _part(path):
  """The room, or the single file, that a file belongs to."""
  return _name(path).removesuffix('.py').split('/')[0]


@pytest.mark.parametrize('path', FILES, ids=_name)
def test_a_room_imports_only_rooms_below_it(path):
  used = {name.split('.')[1] for name in _imports(path) if name.startswith('mah_jax.')}
  assert not [part for part in used if HEIGHT[part] > HEIGHT[_part(path)]]


@pytest.mark.parametrize('path', FILES, ids=_name)
def test_libraries_stay_in_their_files(path):
  used = {name.split('.')[0] for name in _imports(path)}
  assert not [library for library, files in KEPT.items()
              if library in used and _name(path) not in files]


def test_only_the_registry_knows_concrete_methods():
  """Beside the makers of methods themselves; scaling is a tool that they share."""
  for path in FILES:
    if _part(path) != 'methods':
      assert {name for name in _imports(path) if name.startswith('mah_jax.methods.')} <= {
          'mah_jax.methods.base', 'mah_jax.methods.scaling'}


@pytest.mark.parametrize('text, files', [
    ('jax.pmap(', {'train/step.py'}),
    ('apply_gradients(', {'train/step.py'}),
    ('psum(', {'train/step.py'}),
    ('default_backend(', set()),
    ('expanduser(', {'storage.py'}),
    ('os.replace(', {'storage.py'}),
])
def test_devices_gradients_and_files_have_one_place(text, files):
  assert {_name(path) for path in FILES if text in path.read_text()} == files


def _texts(path):
  """The string constants of a file that are no docstrings, and its other names."""
  tree = ast.parse(path.read_text())
  documents = {id(node.body[0].value) for node in ast.walk(tree)
               if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body
               and isinstance(node.body[0], ast.Expr)}
  return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)
          and isinstance(node.value, str) and id(node) not in documents]


WORDS = {'folder', 'digits', 'compact', 'classifier'}  # names that are English words as well


@pytest.mark.parametrize('names, rooms', [
    (methods.METHODS, {'methods', 'paper'}),
    (datasets.SPECS, {'data', 'paper'}),
    (models.BACKBONES, {'models', 'weights'}),
], ids=['methods', 'datasets', 'backbones'])
def test_a_name_stands_in_its_own_room_only(names, rooms):
  for path in FILES:
    if _part(path) in rooms:
      continue
    for text in _texts(path):
      assert text not in names, (_name(path), text)
      stray = [name for name in names if name not in WORDS
               and re.search(rf'(?<![\w.]){name}(?!\w|-jax)', text)]  # mah-jax is the package
      assert not stray, (_name(path), text)


@pytest.mark.parametrize('file', ['backbone', 'features', 'hasher', 'trainer'])
def test_networks_are_made_for_the_platform_of_their_devices(file):
  """None of those who make them names one, so that layers for CPUs stay on CPUs."""
  assert not {'cpu', 'gpu', 'cuda', 'tpu'} & set(_texts(ROOT / f'mah_jax/train/{file}.py'))
