"""PyTorch files made to do harm: to run something, or to take all the memory."""

import pickle
import tracemalloc

import numpy as np
import pth_layouts as layouts
import pytest

from mah_jax.weights import pth

NUMBERS = {'0': np.arange(6, dtype='<f4').tobytes()}
TENSOR = layouts.tensor(layouts.storage())
each_format = pytest.mark.parametrize('write', layouts.FORMATS.values(), ids=layouts.FORMATS)


def attacks(command):
  """Opcodes that run a shell command when unpickled in the ordinary way."""
  text = layouts.plain(command)
  code = layouts.plain(f'__import__("os").system("{command}")')
  system = layouts.call('os', 'system', text)
  return {
      'reduce': ('os.system', system),
      'posix': ('posix.system', layouts.call('posix', 'system', text)),
      'eval': ('builtins.eval', layouts.call('builtins', 'eval', code)),
      'python 2 eval': ('__builtin__.eval', layouts.call('__builtin__', 'eval', code)),
      'inst': ('os.system', b'(' + text + b'ios\nsystem\n'),
      'obj': ('subprocess.Popen', b'(' + layouts.named('subprocess', 'Popen') +
              layouts.plain(['sh', '-c', command]) + b'o'),
      'stack global': ('os.system', b'\x8c\x02os\x8c\x06system\x93' +
                       layouts.sequence(text) + b'R'),
      'in a tuple': ('os.system', layouts.sequence(layouts.plain(1), system)),
      'as a name': ('os.system', b'}' + system + layouts.plain(1) + b's'),
      'as a state': ('os.system', layouts.call('collections', 'OrderedDict') +
                     layouts.mapping({'_metadata': system}) + b'b'),
      'dropped': ('os.system', system + b'0' + TENSOR),
  }


def carriers(attack):
  """Files with an attack in them."""
  hidden = layouts.mapping({'a': TENSOR, 'b': attack})
  return {
      'zip': layouts.zip_file(hidden, NUMBERS),
      'zip alone': layouts.zip_file(attack, NUMBERS),
      'legacy': layouts.legacy_file(hidden, NUMBERS),
      'legacy magic': layouts.legacy_file(
          layouts.mapping({'a': TENSOR}), NUMBERS, magic=attack),
  }


@pytest.mark.parametrize('carrier', carriers(b''))
@pytest.mark.parametrize('attack', attacks(''))
def test_nothing_in_a_file_is_executed(attack, carrier, tmp_path):
  trace = tmp_path / 'executed'
  name, opcodes = attacks(f'touch {trace}')[attack]
  message = layouts.refusal(tmp_path, carriers(opcodes)[carrier])
  assert f'asks for {name}, ' in message and 'was not executed' in message
  assert not trace.exists()


@pytest.mark.parametrize('attack', attacks(''))
def test_the_attacks_would_work_elsewhere(attack, tmp_path):
  trace = tmp_path / 'executed'

  class Careless(pickle.Unpickler):
    def persistent_load(self, pid):
      return None

  opcodes = attacks(f'touch {trace}')[attack][1].replace(TENSOR, layouts.plain(1))
  path = tmp_path / 'attack.pkl'
  path.write_bytes(layouts.pickled(opcodes))
  with path.open('rb') as file:
    result = Careless(file).load()
  if hasattr(result, 'wait'):
    result.wait()
  assert trace.exists()


@pytest.mark.parametrize('module, name', [
    ('collections', 'Counter'), ('torch', 'load'), ('torch', 'FloatTensor'),
    ('numpy', 'dtype'), ('mah_jax.weights.pth', 'read'), ('builtins', 'getattr')])
def test_only_the_listed_names_are_known(module, name, tmp_path):
  content = layouts.zip_file(layouts.mapping({'a': layouts.named(module, name)}), NUMBERS)
  assert f'asks for {module}.{name}, ' in layouts.refusal(tmp_path, content)


@pytest.mark.parametrize('state', [
    layouts.sequence(layouts.plain(None), layouts.mapping({'function': layouts.plain(1)})),
    layouts.mapping({'function': layouts.plain(1)})])
@pytest.mark.parametrize('name', sorted(pth._ALLOWED))
def test_a_file_cannot_change_what_the_next_one_meets(name, state, tmp_path):
  before = dict(pth._ALLOWED)
  layouts.refusal(tmp_path, layouts.zip_file(layouts.named(*name) + state + b'b', NUMBERS))
  assert before == pth._ALLOWED
  layouts.read(tmp_path, layouts.zip_file(layouts.mapping({'a': TENSOR}), NUMBERS))


BAD_TENSORS = {
    'huge': ('more numbers', {'shape': (2**40,), 'strides': (0,)}),
    'huge square': ('more numbers', {'shape': (2**40, 2**40), 'strides': (0, 0)}),
    'one too long': ('a reaches beyond', {'shape': (7,), 'strides': (1,)}),
    'one too far': ('a reaches beyond', {'shape': (2, 3), 'strides': (3, 2)}),
    'offset': ('a reaches beyond', {'offset': 1}),
    'negative offset': ('impossible shape', {'offset': -1}),
    'negative shape': ('impossible shape', {'shape': (-2, -3)}),
    'negative stride': ('impossible shape', {'strides': (-3, 1), 'offset': 5}),
    'float': ('impossible shape', {'shape': (2.0, 3)}),
    'bool': ('impossible shape', {'shape': (True, 3), 'strides': (3, 1)}),
    'text': ('impossible shape', {'shape': ('a', 2**30)}),
    'ranks': ('impossible shape', {'shape': (6,)}),
    'no shape': ('NoneType', {'shape': None}),
    'too many dimensions': ('dimension', {'shape': (1,) * 99, 'strides': (1,) * 99}),
    'stride too large': ('', {'shape': (1, 6), 'strides': (2**70, 1)}),
}


@each_format
@pytest.mark.parametrize('problem, change', BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_impossible_tensors(problem, change, write, tmp_path):
  opcodes = layouts.mapping({'a': layouts.tensor(layouts.storage(), **change)})
  tracemalloc.start()
  assert problem in layouts.refusal(tmp_path, write(opcodes, NUMBERS))
  assert tracemalloc.get_traced_memory()[1] < 2e6
  tracemalloc.stop()


def test_many_tensors_on_one_storage_do_not_add_up(tmp_path):
  def write(count):
    entries = dict.fromkeys(map(str, range(count)), layouts.tensor(
        layouts.storage(size=10**5), (10**5,), (1,)))
    return layouts.zip_file(layouts.mapping(entries), {'0': bytes(4 * 10**5)})

  assert len(layouts.read(tmp_path, write(4))) == 4
  assert 'more numbers than it has bytes' in layouts.refusal(tmp_path, write(5))


BAD_STORAGES = {
    'too large': layouts.storage(size=7),
    'too small': layouts.storage(size=5),
    'huge': layouts.storage(size=2**60),
    'negative': layouts.storage(size=-1),
    'text': layouts.storage(size='6'),
    'absent': layouts.storage(key='1'),
    'other type': layouts.storage(kind='Double'),
    'view': layouts.storage('0', 6, 'Float', layouts.plain(('0', 1, 2))),
    'module': layouts.sequence(layouts.plain('module'), *map(layouts.plain, 'abcd')) + b'Q',
    'number': layouts.plain(1) + b'Q',
    'none': layouts.plain(1),
}


@each_format
@pytest.mark.parametrize('numbers', BAD_STORAGES.values(), ids=BAD_STORAGES)
def test_impossible_storages(numbers, write, tmp_path):
  opcodes = layouts.mapping({'a': layouts.tensor(numbers)})
  layouts.refusal(tmp_path, write(opcodes, NUMBERS))


def test_memory_for_the_memo_is_not_reserved_blindly(tmp_path):
  number = (4_000_000).to_bytes(4, 'little')
  for opcode in (b'r' + number, b'p4000000\n'):
    content = layouts.zip_file(layouts.mapping({'a': TENSOR}) + opcode, NUMBERS)
    tracemalloc.start()
    assert 'object 4000000' in layouts.refusal(tmp_path, content)
    assert tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()


