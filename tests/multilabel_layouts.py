"""Small trees in the official layouts of MIRFlickr-25K and NUS-WIDE."""

import io
import pathlib

import numpy as np
import PIL.Image

from mah_jax.data import multilabel

ROWS = 200  # photographs of MIRFlickr; 2 of them are 1 %
# Image numbers of each annotation file; 199 and 200 have no label.
ANNOTATIONS = {
    'animals': range(1, 61),
    'baby': range(41, 101, 2),
    'baby_r1': range(41, 71, 2),
    'sky': range(50, 199),
}
LINES = 120  # photographs of NUS-WIDE
# Every how manieth line has the label: boats and cars are equally frequent.
CONCEPTS = {'boats': 6, 'animal': 3, 'cars': 6, 'zebra': 5, 'moon': 40}


def use_small_layouts(monkeypatch) -> None:
  """Makes the readers expect these trees."""
  small = {
      'mirflickr': {'images': ROWS, 'label_files': 4, 'kept_images': ROWS, 'kept_labels': 4},
      'nuswide': {'images': LINES, 'label_files': 5, 'kept_images': kept_lines(),
                  'kept_labels': 3},
  }
  for name, numbers in small.items():
    monkeypatch.setitem(
        multilabel.LAYOUTS, name, multilabel.LAYOUTS[name]._replace(**numbers))


def kept_lines() -> int:
  """Lines with animal, boats or zebra, the three labels that are kept."""
  return sum(1 for i in range(LINES) if i % 3 == 0 or i % 6 == 0 or i % 5 == 0)


def jpeg(i: int) -> bytes:
  """A small picture that differs for each i."""
  colour = (i % 256, 255 - i % 256, (7 * i) % 256)
  stream = io.BytesIO()
  PIL.Image.new('RGB', (12, 9), colour).save(stream, 'jpeg')
  return stream.getvalue()


def write_mirflickr(data_dir: pathlib.Path, images: str = 'mirflickr',
                    annotations: str = 'annotations') -> None:
  """Writes im1.jpg to im200.jpg, four label files and a README."""
  for folder in (images, annotations):
    (data_dir / folder).mkdir(parents=True, exist_ok=True)
  for i in range(1, ROWS + 1):
    (data_dir / images / f'im{i}.jpg').write_bytes(jpeg(i))
  for name, numbers in ANNOTATIONS.items():
    lines = ''.join(f'{number}\r\n' for number in numbers)
    (data_dir / annotations / f'{name}.txt').write_text(lines)
  (data_dir / annotations / 'README.txt').write_text('Version 0.80\n')


def mirflickr_labels() -> np.ndarray:
  """What the annotations say, [200, 4]."""
  return np.array([[int(i in numbers) for numbers in ANNOTATIONS.values()]
                   for i in range(1, ROWS + 1)], np.uint8)


def nuswide_name(i: int) -> str:
  """Where line i of the image list points."""
  return f'{("actor", "zoo")[i % 2]}/{i:04d}_{9 * i}.jpg'


def write_nuswide(data_dir: pathlib.Path, images: str = 'Flickr',
                  separator: str = '\\') -> None:
  """Writes the image list, five label files and the photographs."""
  labels = data_dir / 'Groundtruth/AllLabels'
  labels.mkdir(parents=True)
  for name, step in CONCEPTS.items():
    lines = ''.join(f'{int(i % step == 0)}\n' for i in range(LINES))
    (labels / f'Labels_{name}.txt').write_text(lines)
  (data_dir / 'ImageList').mkdir()
  (data_dir / 'ImageList/Imagelist.txt').write_text(
      ''.join(nuswide_name(i).replace('/', separator) + ' \r\n' for i in range(LINES)))
  for i in range(LINES):
    path = data_dir / images / nuswide_name(i)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg(i))


WRITERS = {'mirflickr': write_mirflickr, 'nuswide': write_nuswide}
