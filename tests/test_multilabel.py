"""MIRFlickr-25K and NUS-WIDE in their official layouts: labels, names, damages, absences."""

import multilabel_layouts as layouts
import numpy as np
import pytest

from mah_jax import errors
from mah_jax.data import multilabel


@pytest.fixture(autouse=True)
def small_layouts(monkeypatch):
  layouts.use_small_layouts(monkeypatch)


def refused(name, data_dir, message):
  with pytest.raises(errors.InputError, match=message) as caught:
    multilabel.read(name, data_dir)
  assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize('images, annotations', [
    ('mirflickr', 'annotations'),
    ('mirflickr25k', 'mirflickr25k_annotations_v080'),
    ('mirflickr25k/mirflickr', 'mirflickr25k_annotations_v080/annotations'),
    ('mirflickr', 'mirflickr/annotations'),
    ('mirflickr', 'mirflickr'),
    ('.', 'annotations'),
])
def test_mirflickr_has_all_rows_in_order_with_the_labels_of_all_files(
    images, annotations, tmp_path):
  layouts.write_mirflickr(tmp_path, images, annotations)
  listing = multilabel.read('mirflickr', tmp_path)
  assert listing.class_names == ('animals', 'baby', 'baby_r1', 'sky')
  assert listing.names == [f'im{i}.jpg' for i in range(1, 201)]
  np.testing.assert_array_equal(listing.labels, layouts.mirflickr_labels())
  assert listing.labels.dtype == np.uint8
  assert listing.labels[198:].sum() == 0 and listing.labels[:198].any(axis=1).all()
  assert (listing.root / 'im200.jpg').read_bytes() == layouts.jpeg(200)


def test_r1_files_change_no_similarity(tmp_path):
  layouts.write_mirflickr(tmp_path)
  labels = multilabel.read('mirflickr', tmp_path).labels.astype(int)
  without = np.delete(labels, 2, axis=1)
  np.testing.assert_array_equal(labels @ labels.T > 0, without @ without.T > 0)
  assert not np.array_equal(labels @ labels.T, without @ without.T)


def test_the_published_numbers(monkeypatch):
  monkeypatch.undo()
  mirflickr, nuswide = multilabel.LAYOUTS['mirflickr'], multilabel.LAYOUTS['nuswide']
  assert mirflickr[3:] == (25_000, 38, 25_000, 38)
  assert nuswide[3:] == (269_648, 81, 195_834, 21)


@pytest.mark.parametrize('line', ['dog', '0', '201', '-3', '1.5', '7 8'])
def test_mirflickr_line_that_is_no_image_number_is_named(line, tmp_path):
  layouts.write_mirflickr(tmp_path)
  (tmp_path / 'annotations/baby.txt').write_text(f'1\n\n{line}\n2\n')
  refused('mirflickr', tmp_path, f"baby.txt has '{line}' in line 3 instead of .* 1 to 200: ")


def test_an_empty_annotation_file_is_a_label_of_no_image(tmp_path):
  layouts.write_mirflickr(tmp_path)
  (tmp_path / 'annotations/baby.txt').write_text('\n')
  assert multilabel.read('mirflickr', tmp_path).labels.sum(axis=0)[1] == 0


def test_mirflickr_label_files_are_counted(tmp_path):
  layouts.write_mirflickr(tmp_path)
  (tmp_path / 'annotations/sky.txt').rename(tmp_path / 'sky.txt')
  refused('mirflickr', tmp_path, 'annotations has 3 label files instead of the 4 .* 1 missing')
  for name in ('sky', 'tree', 'water'):
    (tmp_path / f'annotations/{name}.txt').write_text('1\n')
  refused('mirflickr', tmp_path, 'has 6 label files instead of the 4 .*, 2 too many')


def test_a_file_that_is_not_text_is_named(tmp_path):
  layouts.write_mirflickr(tmp_path)
  (tmp_path / 'annotations/sky.txt').write_bytes(b'\x89PNG\xff\n')
  refused('mirflickr', tmp_path, 'sky.txt is not a text file')


def test_absent_mirflickr_files_are_named_with_the_folders(tmp_path):
  refused('mirflickr', tmp_path, r'No \*.txt of MIRFlickr-25K .*annotations/, mirflickr25k_')
  layouts.write_mirflickr(tmp_path)
  (tmp_path / 'mirflickr').rename(tmp_path / 'elsewhere')
  refused('mirflickr', tmp_path, r'No im\*.jpg of MIRFlickr-25K .*mirflickr/, mirflickr25k/')


@pytest.mark.parametrize('images', ['Flickr', 'images', '.'])
@pytest.mark.parametrize('separator', ['\\', '/'])
def test_nuswide_keeps_the_frequent_labels_and_the_rows_that_have_one(
    images, separator, tmp_path):
  layouts.write_nuswide(tmp_path, images, separator)
  listing = multilabel.read('nuswide', tmp_path)
  # animal 40, zebra 24, boats 20 and cars 20, moon 3 lines: boats comes before cars by name.
  assert listing.class_names == ('animal', 'boats', 'zebra')
  expected = [(layouts.nuswide_name(i), [int(i % 3 == 0), int(i % 6 == 0), int(i % 5 == 0)])
              for i in range(120) if i % 3 == 0 or i % 5 == 0]
  assert listing.names == [name for name, _ in expected]
  assert listing.labels.tolist() == [row for _, row in expected]
  assert listing.labels.dtype == np.uint8
  assert (listing.root / listing.names[-1]).read_bytes() == layouts.jpeg(117)


@pytest.mark.parametrize('base', ['nuswide', 'NUS-WIDE'])
def test_nuswide_may_lie_in_a_folder_of_its_own(base, tmp_path):
  layouts.write_nuswide(tmp_path / base)
  assert multilabel.read('nuswide', tmp_path).root == tmp_path / base / 'Flickr'


def labels_file(data_dir, name):
  return data_dir / f'Groundtruth/AllLabels/Labels_{name}.txt'


@pytest.mark.parametrize('value', ['2', 'x', '-1', '01'])
def test_nuswide_line_that_is_not_0_or_1_is_named(value, tmp_path):
  layouts.write_nuswide(tmp_path)
  lines = labels_file(tmp_path, 'cars').read_text().splitlines()
  lines[6] = value
  labels_file(tmp_path, 'cars').write_text('\n'.join(lines))
  refused('nuswide', tmp_path, f"Labels_cars.txt has '{value}' in line 7 instead of 0 or 1")


@pytest.mark.parametrize('content, found', [('0\n1\n', '2'), ('', '0'), ('0\n' * 121, '121')])
def test_wrong_number_of_lines_names_both_numbers(content, found, tmp_path):
  layouts.write_nuswide(tmp_path)
  labels_file(tmp_path, 'moon').write_text(content)
  refused('nuswide', tmp_path, f'Labels_moon.txt has {found} lines instead of 120: ')


def test_an_image_list_of_another_length_is_refused(tmp_path):
  layouts.write_nuswide(tmp_path)
  with (tmp_path / 'ImageList/Imagelist.txt').open('a') as file:
    file.write('actor\\one_more.jpg\n')
  refused('nuswide', tmp_path, 'Imagelist.txt has 121 lines instead of 120: ')


def test_nuswide_label_files_are_counted(tmp_path):
  layouts.write_nuswide(tmp_path)
  labels_file(tmp_path, 'moon').unlink()
  refused('nuswide', tmp_path, 'AllLabels has 4 label files instead of the 5 .*, 1 missing')


def test_labels_that_leave_another_number_of_rows_are_refused(tmp_path):
  layouts.write_nuswide(tmp_path)
  labels_file(tmp_path, 'animal').write_text('1\n' * 120)
  refused('nuswide', tmp_path, 'gives 120 images one of the 3 most .* instead of 56: ')


def test_absent_nuswide_files_are_named_with_the_folders(tmp_path):
  refused('nuswide', tmp_path, r'No Labels_\*.txt of NUS-WIDE in .*Groundtruth/AllLabels/')
  layouts.write_nuswide(tmp_path)
  (tmp_path / 'Flickr').rename(tmp_path / 'elsewhere')
  refused('nuswide', tmp_path, 'No image of NUS-WIDE .*actor/0000_0.jpg .*Flickr/, images/')
  (tmp_path / 'ImageList/Imagelist.txt').unlink()
  refused('nuswide', tmp_path, 'No Image.*ist.txt of NUS-WIDE in .*ImageList/')


@pytest.mark.parametrize('name', ['mirflickr', 'nuswide'])
def test_a_dataset_that_is_not_prepared_names_the_command(name, tmp_path):
  command = f'run python -m mah_jax.data.fetch {name} --data_dir={tmp_path}$'
  with pytest.raises(errors.InputError, match=command):
    multilabel.find_prepared(name, tmp_path)


def test_up_to_one_percent_of_the_images_may_be_unusable(tmp_path):
  layouts.write_mirflickr(tmp_path)
  listing = multilabel.read('mirflickr', tmp_path)
  checked = []
  (tmp_path / 'mirflickr/im150.jpg').unlink()
  (tmp_path / 'mirflickr/im7.jpg').write_bytes(layouts.jpeg(7)[:200])
  skipped = multilabel.unusable(listing, lambda: checked.append(1))
  assert list(skipped) == ['im7.jpg', 'im150.jpg'] and len(checked) == 200
  assert 'No such file' in skipped['im150.jpg']
  (tmp_path / 'mirflickr/im8.jpg').write_text('no image')
  with pytest.raises(errors.InputError, match='^3 of 200 .*more than 1%.*im7.jpg: .*; im8'):
    multilabel.unusable(listing, lambda: None)
