"""Folders of a user's own images: layouts, mistakes, unusable files and the cached check."""

import json
import os

import image_files
import numpy as np
import pytest

from mah_jax import errors
from mah_jax.data import folder
from mah_jax.data import images

CONTENT = image_files.encode(image_files.picture(9, 12), 'JPEG')


class Progress:
  """What a progress bar would be told."""

  def __init__(self):
    self.totals, self.images = [], 0

  def start(self, total):
    self.totals.append(total)
    return self.step

  def step(self):
    self.images += 1


def load(data_dir, progress=None, **more):
  """Loads with a cache beside the data."""
  base = data_dir if data_dir.suffix != '.csv' else data_dir.parent
  return folder.load(data_dir, cache=base.with_name(f'{base.name}-cache'),
                     on_start=(progress or Progress()).start, **more)


def write_files(root, names, content=CONTENT):
  for name in names:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)


def write_csv(root, text, encoding='utf-8'):
  root.mkdir(exist_ok=True)
  (root / 'labels.csv').write_bytes(text.encode(encoding))
  return root


@pytest.fixture(name='root')
def make_root(tmp_path):
  return tmp_path / 'data'


def test_a_class_for_each_sub_folder(root):
  names = image_files.class_tree(root, {'zebra': 2, 'Äffchen': 1, 'big cat, wild': 3})
  write_files(root, ['zebra/deep/er/x y.PNG'], image_files.encode(image_files.picture(7, 5)))
  write_files(root, ['zebra/notes.txt', '.thumbnails/x.jpg', 'zebra/.x.jpg'], b'')
  data = load(root)
  assert data.class_names == ('big cat, wild', 'zebra', 'Äffchen')
  assert data.names == data.images.names == sorted([*names, 'zebra/deep/er/x y.PNG'])
  assert data.labels.dtype == np.uint8
  assert data.labels.shape == (7, 3)
  for name, labels in zip(data.names, data.labels):
    assert labels.tolist() == [name.startswith(f'{c}/') for c in data.class_names]
  for row, name in enumerate(data.names):
    expected = images.decode((root / name).read_bytes(), 8)
    np.testing.assert_array_equal(data.images.decode(row, 8, 3), expected)
  assert data.report == ''


@pytest.mark.parametrize('names, unlabelled', [
    (['b.jpg', 'a.jpg'], False),  # also where sub-folders hold no image
    (['b.jpg', 'a.jpg'], True),
    (['x/b.jpg', 'x/y/a.jpg', 'z/c.jpg'], True),
    (['x/b.jpg', 'a.jpg'], True),
])
def test_images_without_labels(root, names, unlabelled):
  write_files(root, names)
  write_files(root, ['notes/n.txt', '.thumbnails/x.jpg'], b'')
  told, progress = [], Progress()
  data = load(root, progress, unlabelled=unlabelled,
              on_unlabelled=lambda: told.append(progress.images))
  assert told == [0] and progress.images == len(names)  # told once, before the check
  assert data.names == data.images.names == sorted(names)
  assert data.labels.shape == (len(names), 0) and data.labels.dtype == np.uint8
  assert data.class_names == () and not data.is_labelled


def test_labels_that_nobody_asks_for_are_not_read(root):
  """The same files in the same order, even where the labels could not be used."""
  write_files(root, ['b.jpg', 'a.jpg', 'not in the list.jpg'])
  write_csv(root, 'b.jpg,x\na.jpg,x\n')
  data = load(root, unlabelled=True)
  assert data.names == ['b.jpg', 'a.jpg'] and not data.is_labelled


CSV = 'b.jpg,sun;sea\n"über, all.jpg"," sea ; sand ;sea;"\nsub/a.jpg,\n./c d.jpg,sun\n'


@pytest.mark.parametrize('text, encoding', [
    (CSV, 'utf-8'), (CSV, 'utf-8-sig'), ('file,labels\n' + CSV, 'utf-8-sig'),
    (' file , labels \n' + CSV, 'utf-8'), (CSV.replace('\n', '\r\n'), 'utf-8'),
    (CSV.replace('\n', '\n\n'), 'utf-8'), (CSV.rstrip('\n'), 'utf-8')])
def test_a_csv_of_files_and_labels(root, text, encoding):
  names = ['b.jpg', 'über, all.jpg', 'sub/a.jpg', 'c d.jpg']  # in the order of the lines
  write_files(root, [*names, 'not in the list.jpg'])
  write_csv(root, text, encoding)
  for data_dir in (root, root / 'labels.csv'):
    data = load(data_dir)
    assert data.names == names
    assert data.class_names == ('sand', 'sea', 'sun')
    assert data.labels.tolist() == [[0, 1, 1], [1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert data.images.decode(3, 4, 3).shape == (4, 4, 3)


@pytest.mark.parametrize('text, problem', [
    ('a.jpg,x\nb.jpg,y\n\na.jpg,y\n', r"Line 4 of .*labels\.csv repeats 'a\.jpg' of line 1"),
    ('a.jpg,x\n./a.jpg,y\n', "Line 2 .*repeats 'a.jpg' of line 1"),
    ('a.jpg,x\n,y\n', 'Line 2 .*names no file'),
    ('a.jpg,x\nb, c.jpg,y\n', 'Line 2 .*3 instead of the 2 columns .*quotes'),
    ('a.jpg,x\nb.jpg\n', 'Line 2 .*1 instead of the 2 columns'),
    ('name,tags\na.jpg,x\n', "Line 1 .*'name', neither a file nor the header file,labels"),
    ('x,a.jpg\ny,b.jpg\n', "Line 1 .*'x', neither"),
    ('a.jpg,x\n"b.jpg,y\n', 'Line 2 .*is no CSV'),
    ('a.jpg,x\nb.jpg,"y"z\n', 'Line 2 .*is no CSV'),
    ('', 'names no image'),
    ('file,labels\n', 'names no image'),
    ('a.jpg,x\nb.jpg,x\n', r"two classes or more but has \['x'\]"),
    ('a.jpg,\nb.jpg,\n', r'two classes or more but has \[\]'),
])
def test_mistakes_in_a_csv(root, text, problem):
  write_files(root, ['a.jpg', 'b.jpg'])
  write_csv(root, text)
  with pytest.raises(errors.InputError, match=problem):
    load(root)


@pytest.mark.parametrize('encoding, problem', [
    ('latin-1', 'Line 3 .*is not UTF-8'), ('utf-16', 'Line 1 .*is not UTF-8')])
def test_a_csv_in_another_encoding(root, encoding, problem):
  write_files(root, ['a.jpg', 'b.jpg'])
  write_csv(root, 'file,labels\na.jpg,x\nb.jpg,käse\n', encoding)
  with pytest.raises(errors.InputError, match=problem):
    load(root)


@pytest.mark.parametrize('names, problem', [
    ([], 'holds no image .*sub-folder'),
    (['a/1.jpg', 'b/2.jpg', '1.jpg', '2.jpg'],
     r"outside of any class folder \(2, as '1.jpg'\): move"),
    (['notes.txt', 'a/b.txt'], 'holds no image'),
    (['a/1.jpg', 'b/2.jpg', 'montage.png'],
     r"outside of any class folder \(1, as 'montage.png'\).*--protocol=folder-unlabelled"),
    (['a/1.jpg', 'a/b/2.jpg'],
     r"two classes or more but has \['a'\].*--protocol=folder-unlabelled"),
    (['a/1.jpg', 'b/2.jpg', 'c/notes.txt'], "Class 'c' of .* has no usable image"),
])
def test_mistakes_in_a_folder(root, names, problem):
  root.mkdir()
  write_files(root, names)
  progress = Progress()
  with pytest.raises(errors.InputError, match=problem):
    load(root, progress)
  assert progress.images == 0  # nobody waits for the check only to learn of this


def test_neither_a_folder_nor_a_csv(tmp_path):
  with pytest.raises(errors.InputError, match='no folder .*nowhere'):
    load(tmp_path / 'nowhere')
  write_files(tmp_path, ['x.jpg'])
  with pytest.raises(errors.InputError, match=r'x\.jpg is neither a folder nor a \.csv file'):
    load(tmp_path / 'x.jpg')


def test_unusable_images_are_skipped_and_reported(root):
  names = [f'{i:03}.jpg' for i in range(300)]
  write_files(root, names)
  write_csv(root, ''.join(f'{name},{"ab"[i % 2]}\n' for i, name in enumerate(names)))
  (root / '010.jpg').write_bytes(image_files.damaged()['truncated.jpg'])
  (root / '021.jpg').write_bytes(b'')
  (root / '299.jpg').unlink()
  data = load(root)
  title, first, *others = data.report.splitlines()
  assert title == '3 of 300 images cannot be used and were skipped:'
  assert first.startswith('  010.jpg: ') and 'truncated' in first
  assert others == ['  021.jpg: the file is empty', '  299.jpg: No such file or directory']
  kept = [file for file in range(300) if file not in (10, 21, 299)]
  assert data.names == data.images.names == [names[file] for file in kept]
  assert data.labels.tolist() == [[file % 2 == 0, file % 2 == 1] for file in kept]
  (root / '150.jpg').unlink()  # now more than one in a hundred
  with pytest.raises(errors.InputError, match=(
      r'4 of 300 .*more than 1%: repair .*010\.jpg: .*021\.jpg: the file is empty; 150')):
    load(root)


def test_one_unusable_image_stops_no_small_folder(root):
  image_files.class_tree(root, {'a': 4, 'b': 4})
  write_files(root, ['a/broken.jpg'], b'rubbish')
  assert '1 of 9 images cannot be used' in load(root).report
  write_files(root, ['b/broken.jpg'], b'rubbish')
  with pytest.raises(errors.InputError, match='2 of 10'):
    load(root)


def test_an_error_spells_out_a_few_files_only(root):
  image_files.class_tree(root, {'a': 4, 'b': 4})
  write_files(root, [f'c/{i}.jpg' for i in range(7)], b'rubbish')
  with pytest.raises(errors.InputError, match='7 of 15') as caught:
    load(root)
  assert str(caught.value).count('it is none of') == 5
  reasons = json.loads(next((root.parent / 'data-cache').glob('*.json')).read_text())
  assert list(reasons) == [str(file) for file in range(8, 15)]  # the cache knows all of them


def test_a_class_may_lose_its_last_image(root):
  image_files.class_tree(root, {'a': 99, 'b': 1}, size=(4, 4))
  (root / 'b' / '0.jpg').write_bytes(b'')
  with pytest.raises(errors.InputError, match="Class 'b' of .* has no usable image"):
    load(root)


def test_a_cache_that_cannot_be_written_does_not_matter(root, tmp_path):
  image_files.class_tree(root, {'a': 2, 'b': 2})
  (tmp_path / 'file').write_text('')
  data = folder.load(root, cache=tmp_path / 'file' / 'inside', on_start=Progress().start)
  assert len(data.names) == 4


@pytest.fixture(name='decodes')
def count_decodes(monkeypatch):
  calls, decode = [], images.decode

  def count(content, *args):
    calls.append(len(content))
    return decode(content, *args)

  monkeypatch.setattr(images, 'decode', count)
  return calls


def make_checked(root):
  """A folder of 104 images with one unusable, loaded once."""
  image_files.class_tree(root, {'a': 52, 'b': 52}, size=(4, 4))
  (root / 'b' / '7.jpg').write_bytes(b'')
  return load(root)


def test_a_second_check_decodes_nothing(root, decodes):
  progress = Progress()
  first = make_checked(root)
  assert len(decodes) == 104
  second = load(root, progress)
  assert len(decodes) == 104
  assert (progress.totals, progress.images) == ([], 0)
  assert second.names == first.names
  assert second.report == first.report and '  b/7.jpg: the file is empty' in first.report
  np.testing.assert_array_equal(second.labels, first.labels)


def other_size(root):
  path = root / 'b' / '7.jpg'
  before = path.stat()
  path.write_bytes(CONTENT)
  os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def other_cache(root):
  next(root.with_name('data-cache').glob('*.json')).write_text('{"0": ')


@pytest.mark.parametrize('change', [
    lambda root: os.utime(root / 'a' / '3.jpg', (1, 1)),
    lambda root: (root / 'a' / '3.jpg').rename(root / 'a' / '3-.jpg'),  # sorted as before
    lambda root: (root / 'a' / '3.jpg').unlink(),
    lambda root: write_files(root, ['a/new.jpg']),
    other_size, other_cache,
], ids=['time', 'name', 'removed', 'added', 'size', 'damaged cache'])
def test_a_change_calls_for_another_check(root, decodes, change):
  make_checked(root)
  decodes.clear()
  change(root)
  progress = Progress()
  load(root, progress)
  assert progress.totals == [len(decodes)] == [progress.images]
  assert len(decodes) in (103, 104, 105)


def test_another_folder_has_another_version(root):
  listing = folder.Listing(root, [], [], [])
  assert folder._version(listing) != folder._version(listing._replace(root=root.parent))


def test_query_rows(tmp_path):
  names = ['a/1.jpg', 'a/2 ü.jpg', 'b/x, y.jpg', 'c.jpg']
  path = tmp_path / 'queries.txt'
  path.write_text('\ufeff# the test set\nc.jpg\n\n  a/2 ü.jpg  \r\nb/x, y.jpg', 'utf-8')
  rows = folder.query_rows(names, path)
  assert rows.dtype == np.int64
  assert rows.tolist() == [3, 1, 2]


@pytest.mark.parametrize('text, problem', [
    (b'a.jpg\nx.jpg\n', "Line 2 .*'x.jpg', which is none of"),
    (b'a.jpg\n#\nb.jpg\n\na.jpg\n', "Line 5 .*repeats 'a.jpg' of line 1"),
    (b'# a.jpg\n\n', 'names no image'),
    (b'a.jpg\n\xff.jpg\n', 'Line 2 .*is not UTF-8'),
])
def test_mistakes_in_a_list_of_queries(tmp_path, text, problem):
  path = tmp_path / 'queries.txt'
  path.write_bytes(text)
  with pytest.raises(errors.InputError, match=problem):
    folder.query_rows(['a.jpg', 'b.jpg'], path)


def test_a_list_of_queries_that_is_not_there(tmp_path):
  with pytest.raises(errors.InputError, match='queries.txt cannot be read'):
    folder.query_rows(['a.jpg'], tmp_path / 'queries.txt')
