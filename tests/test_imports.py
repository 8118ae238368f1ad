"""Who may import whom, read from the source."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted((ROOT / 'mah_jax').rglob('*.py'))
LEAVES = {'config', 'similarity', 'losses', 'discrete'}
# Parts of the package that each part may import; all may import errors.
ALLOWED = {
    **dict.fromkeys(LEAVES, LEAVES),
    'errors': set(),
    'flags': {'config', 'runfolder'},
    'progress': set(),
    'runfolder': {'config'},
    'models': {'models'},
    'evaluation': {'evaluation'},
    'data': {'data', 'weights'},
    'weights': {'weights'},
    'methods': {'methods', 'models', *LEAVES},
    'train': {'train', 'data', 'methods', *LEAVES},
    'cache': set(),
    'encoder': {'config', 'data', 'progress', 'train'},
    'outcome': {'config', 'data', 'evaluation', 'progress', 'runfolder', 'train'},
    'experiment': {'cache', 'data', 'encoder', 'methods', 'models', 'progress', 'train',
                   *LEAVES},
    'pretrained': {'config', 'train', 'weights'},
    'features': {'cache', 'config', 'data', 'encoder', 'experiment', 'pretrained', 'progress',
                 'runfolder', 'train'},
    'encode': {'config', 'data', 'encoder', 'experiment', 'methods', 'progress', 'runfolder',
               'train'},
    'shallow': {'config', 'methods', 'progress'},
    'deep': {'config', 'data', 'encoder', 'experiment', 'methods', 'outcome', 'pretrained',
             'progress', 'runfolder', 'train'},
    'run': {'config', 'data', 'deep', 'experiment', 'features', 'methods', 'outcome', 'progress',
            'runfolder', 'shallow', 'train'},
    'compiling': {'cache'},
    'main': {'compiling', 'encode', 'flags', 'run'},
    'report': {'config', 'runfolder'},
    '__init__': set(),
}
# Libraries that only some files may know.
KEPT = {'orbax': {'train/checkpoint.py'}, 'absl': {'flags.py'}, 'tqdm': {'progress.py'},
        'tensorflow_datasets': {'data/builders.py'}, 'sklearn': set(),
        'PIL': {'data/images.py'}, 'safetensors': {'weights/files.py'}}


def _imports(path):
  """Dotted names of all modules that a file imports."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def _name(path):
  return path.relative_to(ROOT / 'mah_jax').as_posix()


@pytest.mark.parametrize('path', FILES, ids=_name)
def test_each_part_imports_only_what_it_may(path):
  part = _name(path).removesuffix('.py').split('/')[0]
  used = {name.split('.')[1] for name in _imports(path) if name.startswith('mah_jax.')}
  assert used - {'errors'} <= ALLOWED[part]


@pytest.mark.parametrize('path', FILES, ids=_name)
def test_libraries_stay_in_their_files(path):
  used = {name.split('.')[0] for name in _imports(path)}
  assert not [library for library, files in KEPT.items()
              if library in used and _name(path) not in files]


def test_training_knows_no_concrete_method():
  for path in FILES:
    if _name(path).startswith('train/'):
      assert {name for name in _imports(path) if name.startswith('mah_jax.methods')} <= {
          'mah_jax.methods.base'}


@pytest.mark.parametrize('text, files', [
    ('jax.pmap(', {'train/step.py'}),
    ('apply_gradients(', {'train/step.py'}),
    ('psum(', {'train/step.py'}),
])
def test_devices_and_gradients_have_one_place(text, files):
  assert {_name(path) for path in FILES if text in path.read_text()} == files


def test_files_stay_short():
  assert not [_name(path) for path in FILES if len(path.read_text().splitlines()) > 250]
