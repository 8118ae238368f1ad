"""Search over runs: second keys, the database that is kept, neighbours, images that are added."""

import csv
import io
import itertools
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import mah_jax
from mah_jax import errors
from mah_jax import main
from mah_jax import storage
from mah_jax.data import datasets
from mah_jax.search import database as database_lib
from mah_jax.search import keys
from mah_jax.search import searcher as searcher_lib

FLAGS = ['--dataset=digits', '--input=features', '--hidden=32', '--code_lengths=4,12',
         '--scale_heads', '--code_init=codebook', '--num_sampled=0', '--shuffle', '--momentum=0.9',
         '--num_rounds=4', '--epochs_per_round=1', '--learning_rate=0.1', '--lr_drop_rounds=',
         '--num_devices=1']


def test_keys_are_coordinates_on_the_principal_axes():
  """The third column varies most, then the first; the others are constant."""
  features = np.full((200, 4), 5.0, np.float32)
  steps = np.linspace(-1, 1, 200, dtype=np.float32)
  features[:, 2] += 127 * steps
  features[:, 0] += 50 * np.cos(9 * steps)  # even, so that it is uncorrelated with the third
  reduction = keys.fit(features, 2)
  got = keys.apply(reduction, features).astype(int)
  expected = np.stack([features[:, 2] - 5, features[:, 0] - features[:, 0].mean()], axis=1)
  expected *= 127 / np.quantile(np.abs(expected), keys.COVERED)
  signs = np.sign(reduction.axes[[2, 0], [0, 1]])
  np.testing.assert_allclose(got, np.clip(expected * signs, -127, 127), atol=0.6)
  far = keys.apply(reduction, features[:1] + 1e6)
  assert far.dtype == np.int8 and np.abs(far.astype(int)).max() == 127
  assert keys.fit(features, 64).axes.shape == (4, 4)  # no more axes than there are
  with pytest.raises(ValueError, match='0 bytes'):
    keys.fit(features, 0)


def _objective(code, h, similarity):
  """The direct sum of Eq. 9 for one code."""
  c = len(code)
  return sum((float(np.dot(code, row)) - c * s) ** 2 for row, s in zip(h, similarity))


def test_labels_that_no_row_has_are_solved_for():
  rng = np.random.default_rng(0)
  sets = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], np.uint8)
  labels = sets[rng.integers(4, size=60)]
  words = rng.choice([-1, 1], (8, 5)).astype(np.int8)
  codes = words[labels @ [1, 2, 4]]
  new = np.array([[0, 1, 1], [1, 1, 1], [0, 1, 1], [1, 0, 1]], np.uint8)
  got = database_lib.codes_of_labels(codes, labels, new)
  similar = labels.astype(int) @ labels.T > 0
  r = similar.sum() / (~similar).sum()
  for row, code in zip(new, got):
    wanted = np.where(labels @ row > 0, 1.0, -r)
    least = _objective(code, codes, wanted)
    for k in range(5):  # no single bit does better
      other = code.copy()
      other[k] = -other[k]
      assert least <= _objective(other, codes, wanted) + 1e-3
  np.testing.assert_array_equal(got[0], got[2])


def test_a_row_gets_the_commonest_code_of_the_rows_with_its_labels():
  words = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]], np.int8)
  classes = np.arange(90) % 3
  labels, codes = np.eye(3, dtype=np.uint8)[classes], words[classes]
  codes[:30] = -codes[:30]  # a third of each class
  np.testing.assert_array_equal(
      database_lib.codes_of_labels(codes, labels, np.eye(3, dtype=np.uint8)), words)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """The folder of a run on the pixels of the digits."""
  workdir = tmp_path_factory.mktemp('runs') / 'digits'
  assert main.main([*FLAGS, f'--workdir={workdir}']) == 0
  return workdir


@pytest.fixture(scope='module')
def data():
  return datasets.load('digits', '', 0)


@pytest.fixture(scope='module')
def searcher(finished):
  return mah_jax.load(finished, num_devices=1)


@pytest.fixture
def copy(finished, searcher, tmp_path):
  """A copy of the run and of its index, to be changed."""
  return shutil.copytree(finished, tmp_path / 'run')


def _pixels(data, rows):
  return data.images[rows].reshape(len(rows), -1).astype(float) / 255


def _expected(searcher, data, queries, level, allowed=None):
  """Rows in the order of (level, second key, row), by brute force over all rows."""
  reduction = searcher.database.reduction
  features = (_pixels(data, rows) for rows in (data.protocol.queries, data.protocol.database))
  q, d = (np.clip(np.rint((x - reduction.mean) @ reduction.axes / reduction.scale), -127, 127)
          for x in features)
  orders = []
  for i in queries:
    second = ((d - q[i]) ** 2).sum(axis=1)
    order = sorted(range(len(d)), key=lambda j: (level[i, j], second[j], j))  # noqa: B023
    orders.append([j for j in order if allowed is None or j in allowed])
  return orders


@pytest.mark.parametrize('length', [4, 12])
@pytest.mark.parametrize('kind', ['learned', 'encoded'])
def test_neighbours_are_those_of_brute_force(searcher, finished, data, length, kind):
  queries = np.load(finished / 'codes' / f'queries_{length}.npy').astype(int)
  with np.load(finished / 'codes.npz') as file:
    packed = file[f'{kind}_{length}'][0]
  codes = np.unpackbits(packed, axis=1, count=length).astype(int) * 2 - 1
  level = (length - queries @ codes.T) // 2
  some, allowed = np.arange(0, 100, 9), set(range(0, len(codes), 3))
  images = data.images[data.protocol.queries[some]]
  found = searcher.search(images, 30, length=length, database=kind)
  for i, hits, order in zip(some, found, _expected(searcher, data, some, level)):
    assert [hit.row for hit in hits] == order[:30]
    assert [hit.distance for hit in hits] == [level[i, j] for j in order[:30]]
  names = json.loads((finished / 'codes' / 'names.json').read_text())['database']
  labels = data.labels[data.protocol.database]
  for hit in found[0]:
    assert hit.name == str(names[hit.row])
    assert hit.labels == tuple(np.array(data.class_names)[labels[hit.row] > 0])
  filtered = searcher.search(images[0], 2000, length=length, database=kind, allowed=sorted(allowed))
  order, = _expected(searcher, data, some[:1], level, allowed)
  assert [hit.row for hit in filtered] == order


def test_outputs_order_codes_finer(searcher, data):
  images = data.images[data.protocol.queries[:20]]
  outputs = searcher.hash(images).outputs[0].astype(float)
  codes = np.stack([searcher.code(row, 4) for row in range(len(searcher))]).astype(int)
  steps = np.rint(np.abs(outputs) / np.abs(outputs).max(axis=1, keepdims=True) * 2**20)
  differ = np.where(outputs >= 0, 1, -1)[:, None] != codes  # [q, n, c]
  level = (steps[:, None] * differ).sum(axis=2)
  orders = _expected(searcher, data, range(20), level)
  for i, hits in enumerate(searcher.search(images, 200, length=4, ranking='outputs')):
    assert [hit.row for hit in hits] == orders[i][:200]
    np.testing.assert_allclose([hit.distance for hit in hits],
                               outputs[i] @ codes[orders[i][:200]].T / 4, atol=1e-5)


def test_an_image_may_be_a_path_bytes_or_pixels(searcher, finished, data, tmp_path):
  rows = data.protocol.queries[:3]
  paths = []
  for row in rows:
    paths.append(tmp_path / f'{row}.png')
    Image.fromarray(data.images[row, :, :, 0]).save(paths[-1])
  expected = np.load(finished / 'codes' / 'queries_12.npy')[:3]
  for images in (data.images[rows], list(data.images[rows]), list(data.images[rows, :, :, 0]),
                 paths, [str(path) for path in paths], [path.read_bytes() for path in paths]):
    np.testing.assert_array_equal(searcher.encode(images), expected)
  np.testing.assert_array_equal(searcher.encode(str(paths[0])), expected[0])
  np.testing.assert_array_equal(searcher.encode(paths[0], packed=True),
                                np.packbits(expected[0] > 0))
  np.testing.assert_array_equal(searcher.encode(paths, length=4),
                                np.load(finished / 'codes' / 'queries_4.npy')[:3])
  for wrong in ([], [3], None):
    with pytest.raises((ValueError, TypeError)):
      searcher.encode(wrong)
  with pytest.raises(errors.UsageError, match='no codes of 5 bits: choose one of 4,12'):
    searcher.encode(paths, length=5)
  with pytest.raises(errors.InputError, match='nowhere.png'):
    searcher.encode('nowhere.png')
  with pytest.raises(ValueError, match='hamming'):
    searcher.search(paths, ranking='cosine')


def test_the_index_is_kept_and_made_anew_when_codes_change(copy, capsys):
  file = copy / 'index' / 'index.npz'
  before = file.stat().st_mtime_ns
  mah_jax.load(copy)
  assert file.stat().st_mtime_ns == before and 'Index' not in capsys.readouterr().out
  changed = storage.read_npz(copy / 'codes.npz')
  changed['learned_4'] ^= 0xF0
  storage.write_npz(copy / 'codes.npz', changed)
  with pytest.raises(errors.InputError, match='not of the same evaluation'):
    mah_jax.load(copy)
  results = storage.read_json(copy / 'results.json')
  storage.write_json(copy / 'results.json', results | {'sha256': {}})
  capsys.readouterr()
  anew = mah_jax.load(copy)
  said = capsys.readouterr().out
  assert 'made from other codes' in said and 'Index of 1,697 rows' in said
  np.testing.assert_array_equal(anew.database.codes['learned_4'], changed['learned_4'][0])
  plain = mah_jax.load(copy, key_bytes=0)
  assert plain.database.keys.shape == (1697, 0)
  hits = plain.search(anew.data.images[:1], 50, length=4)[0]
  assert [hit[::3] for hit in hits] == sorted(hit[::3] for hit in hits)  # by distance, then row


def test_a_damaged_index_is_refused(copy):
  file = copy / 'index' / 'index.npz'
  content = bytearray(file.read_bytes())
  for place in (len(content) // 2, 200):
    changed = bytearray(content)
    changed[place] ^= 1
    file.write_bytes(changed)
    with pytest.raises(errors.InputError, match='index.npz is damaged'):
      mah_jax.load(copy)


def _digit_files(data, folder, rows):
  folder.mkdir(exist_ok=True)
  for row in rows:
    Image.fromarray(data.images[row, :, :, 0]).save(folder / f'{row:04}.png')
  return folder


def test_search_prints_and_writes_neighbours(finished, searcher, data, tmp_path, capsys):
  rows = sorted(map(int, data.protocol.queries[:3]))
  folder = _digit_files(data, tmp_path / 'new', rows)
  (folder / 'broken.png').write_bytes(b'no image')
  search = ['--mode=search', f'--workdir={finished}', f'--images={folder}', '--num_devices=1']
  table, lines, sheet = tmp_path / 'n.csv', tmp_path / 'n.jsonl', tmp_path / 'sheet.png'
  assert main.main([*search, '--k=7', '--code_length=4', f'--output={table}',
                    f'--sheet={sheet}']) == 0
  printed = capsys.readouterr().out
  expected = searcher.search(data.images[rows], 7, length=4)
  assert 'Skipped broken.png' in printed and f'{rows[0]:04}.png:' in printed
  got = list(csv.DictReader(io.StringIO(table.read_text())))
  wanted = [(f'{row:04}.png', str(i), str(hit.distance), hit.name, ';'.join(hit.labels))
            for row, hits in zip(rows, expected) for i, hit in enumerate(hits, 1)]
  assert [tuple(line.values())[:5] for line in got] == wanted
  with Image.open(sheet) as image:
    assert image.size[0] > 8 * 128 and image.size[1] > 3 * 128
  assert main.main([*search, f'--output={lines}', '--ranking=outputs']) == 0
  for line, row in zip(lines.read_text().splitlines(), rows):
    hits = searcher.search(data.images[row], ranking='outputs')  # of 10, 12 bits
    assert [hit['row'] for hit in json.loads(line)['hits']] == [hit.row for hit in hits]
  assert 'agreement' in capsys.readouterr().out


@pytest.mark.parametrize('flags, words, code', [
    (['--images=no/such'], 'no/such', 1),
    ([], '--images', 2),
    (['--images=EMPTY'], 'holds no image files', 1),
    (['--images=BROKEN'], 'can be read', 1),
    (['--images=BROKEN', '--workdir=no/such/run'], 'is not a run folder', 1),
    (['--images=BROKEN', '--output=x.txt'], '.csv or .jsonl', 2),
    (['--images=BROKEN', '--code_length=7'], '7 bits', 2),
    (['--images=BROKEN', '--mode=evaluate'], '--images belongs to', 2),
    (['--images=BROKEN', '--ranking=cosine'], 'ranking', 2),
])
def test_wrong_use_of_search_gives_one_sentence(finished, searcher, tmp_path, flags, words, code,
                                                capsys):
  for name in ('EMPTY', 'BROKEN'):
    (tmp_path / name).mkdir()
  (tmp_path / 'BROKEN' / 'x.png').write_bytes(b'no image')
  flags = [flag.replace('=EMPTY', f'={tmp_path}/EMPTY').replace('=BROKEN', f'={tmp_path}/BROKEN')
           for flag in flags]
  assert main.main(['--mode=search', f'--workdir={finished}', '--num_devices=1', *flags]) == code
  complaint = capsys.readouterr().err
  assert words in complaint and complaint.startswith('mah_jax: ') and complaint.count('\n') == 1


def test_a_run_without_codes_cannot_be_searched(copy, tmp_path, capsys):
  (copy / 'codes.npz').unlink()
  (tmp_path / 'x.png').write_bytes(b'no image')
  assert main.main(['--mode=search', f'--workdir={copy}', f'--images={tmp_path}/x.png']) == 1
  assert 'no codes to search yet' in capsys.readouterr().err


def test_images_are_added_with_and_without_labels(copy, data, tmp_path, capsys):
  """A query that is added is its own nearest neighbour; with a label it has its class's code."""
  rows = sorted(map(int, data.protocol.queries[:6]))
  folder = _digit_files(data, tmp_path / 'new', rows)
  add = ['--mode=index', f'--workdir={copy}', f'--images={folder}', '--num_devices=1']
  class_of = data.labels.argmax(axis=1)
  labelled = rows[:3]
  (folder / 'labels.csv').write_text(''.join(
      f'{row:04}.png,{data.class_names[class_of[row]]}\n' for row in labelled))
  assert main.main(add) == 0
  assert '6 images added, 3 of them with labels' in capsys.readouterr().out
  searcher = mah_jax.load(copy, num_devices=1)
  assert len(searcher) == 1697 + 6
  labels = data.labels[data.protocol.database]
  for i, row in enumerate(rows, start=1697):
    assert searcher.database.names[i] == f'{row:04}.png'
    encoded = searcher.encode(data.images[row])
    np.testing.assert_array_equal(searcher.code(i, database='encoded'), encoded)
    learned = searcher.code(i, database='learned')
    if row in labelled:
      of_class = [searcher.code(j, database='learned').tolist()
                  for j in np.flatnonzero(labels[:, class_of[row]])]
      assert learned.tolist() == max(of_class, key=of_class.count)
      assert searcher.database.labels_of(i) == (data.class_names[class_of[row]],)
    else:
      np.testing.assert_array_equal(learned, encoded)
    hit = searcher.search(data.images[row], 1, database='encoded')[0]
    assert (hit.row, hit.distance) == (i, 0)
  assert searcher.picture(1697, 32).shape == searcher.picture(0, 32).shape == (32, 32, 3)
  assert main.main(add) == 0
  assert '6 images are in the index already' in capsys.readouterr().out
  assert len(mah_jax.load(copy)) == 1697 + 6
  with pytest.raises(errors.InputError, match='images were added'):
    mah_jax.load(copy, key_bytes=8)
  (folder / 'labels.csv').write_text('9999.png,zebra\n')
  _digit_files(data, folder, [9])
  (folder / '0009.png').rename(folder / '9999.png')
  assert main.main(add) == 1
  assert "the label 'zebra'" in capsys.readouterr().err
  assert len(mah_jax.load(copy)) == 1697 + 6


def test_sub_folders_with_names_of_classes_are_labels_of_added_images(copy, data, tmp_path, capsys):
  rows = sorted(map(int, data.protocol.queries[:3]))
  class_of = data.labels.argmax(axis=1)
  folders = [data.class_names[class_of[rows[0]]], 'holidays', data.class_names[class_of[rows[2]]]]
  for row, name in zip(rows, folders):
    (tmp_path / 'new' / name).mkdir(parents=True, exist_ok=True)
    _digit_files(data, tmp_path / 'new' / name, [row])
  assert main.main(['--mode=index', f'--workdir={copy}', f'--images={tmp_path / "new"}',
                    '--num_devices=1']) == 0
  assert '3 images added, 2 of them with labels' in capsys.readouterr().out
  database = mah_jax.load(copy, num_devices=1).database
  found = {database.names[i]: database.labels_of(i) for i in range(1697, 1700)}
  assert found == {f'{name}/{row:04}.png': () if name == 'holidays' else (name,)
                   for row, name in zip(rows, folders)}


def test_every_answer_is_the_start_of_a_longer_one(searcher, data):
  image = data.images[data.protocol.queries[5]]
  whole = searcher.search(image, 5000)
  assert len(whole) == 1697
  for k, ranking in itertools.product((1, 10, 100), searcher_lib.RANKINGS):
    assert searcher.search(image, k, ranking=ranking) == searcher.search(
        image, 5000, ranking=ranking)[:k]


def test_methods_that_train_no_network_are_searched_too(tmp_path, data):
  run = tmp_path / 'itq'
  assert main.main(['--dataset=digits', '--method=itq', '--code_lengths=6,24', '--num_devices=1',
                    f'--workdir={run}']) == 0
  searcher = mah_jax.load(run, num_devices=1)
  assert searcher.database.kinds == ['encoded']
  rows = data.protocol.database[:5]
  for row, hits in zip(range(5), searcher.search(data.images[rows], 3)):
    assert (hits[0].row, hits[0].distance) == (row, 0)
  with pytest.raises(errors.UsageError, match='no learned codes of its database: choose encoded'):
    searcher.search(data.images[:1], database='learned')
