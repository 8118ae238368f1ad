"""Decoding of every kind of image file, and the finding and checking of files."""

import os
import pathlib
import subprocess
import sys
import threading

import image_files
import numpy as np
import pytest
from PIL import Image

from mah_jax import errors
from mah_jax.data import images

ROOT = pathlib.Path(__file__).parents[1]


def flat(mode, colour, size=(6, 6)):
  return Image.new(mode, size, colour)


def weights(length, resized, i):
  """The triangle filter of output pixel i, written out: {input pixel: weight}."""
  scale = length / resized
  reach = max(scale, 1.0)  # wider than a pixel when shrinking: that is the antialiasing
  centre = (i + 0.5) * scale
  raw = {j: max(0.0, 1.0 - abs(j + 0.5 - centre) / reach) for j in range(length)}
  return {j: w / sum(raw.values()) for j, w in raw.items() if w}


@pytest.mark.parametrize('height, width, side', [
    (9, 14, 6), (14, 9, 6), (5, 8, 12), (7, 7, 3)])
def test_resized_like_a_triangle_filter_then_cropped(height, width, side):
  pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
  shorter = min(height, width)
  tall, wide = side * height // shorter, side * width // shorter
  top, left = (tall - side) // 2, (wide - side) // 2
  expected = np.zeros((side, side, 3))
  for y in range(side):
    for x in range(side):
      for j, wy in weights(height, tall, top + y).items():
        for i, wx in weights(width, wide, left + x).items():
          expected[y, x] += wy * wx * pixels[j, i]
  decoded = images.decode(image_files.encode(pixels), side)
  assert decoded.shape == (side, side, 3)
  assert decoded.dtype == np.uint8
  assert np.abs(decoded - expected).max() <= 1.5  # each of the two passes rounds


def test_an_image_of_the_right_size_is_not_changed():
  pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
  np.testing.assert_array_equal(images.decode(image_files.encode(pixels), 16), pixels)


def stored(shown, orientation):
  """The pixels a camera stores so that this orientation shows `shown`, one by one.

  The EXIF standard says which side of the picture row 0 and column 0 are; here, which pixel
  of the picture (height h, width w) goes to row r, column c.
  """
  h, w = shown.shape[:2]
  source = {
      1: lambda r, c: (r, c),                  # top, left
      2: lambda r, c: (r, w - 1 - c),          # top, right
      3: lambda r, c: (h - 1 - r, w - 1 - c),  # bottom, right
      4: lambda r, c: (h - 1 - r, c),          # bottom, left
      5: lambda r, c: (c, r),                  # left, top
      6: lambda r, c: (c, w - 1 - r),          # right, top
      7: lambda r, c: (h - 1 - c, w - 1 - r),  # right, bottom
      8: lambda r, c: (h - 1 - c, r),          # left, bottom
  }[orientation]
  rows, columns = (h, w) if orientation < 5 else (w, h)
  return np.array([[shown[source(r, c)] for c in range(columns)] for r in range(rows)])


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('format, options, tolerance', [
    ('PNG', {}, 0), ('TIFF', {}, 0), ('WEBP', {'lossless': True}, 0),
    ('JPEG', {'quality': 95, 'subsampling': 0}, 6)])
def test_exif_orientation(orientation, format, options, tolerance):
  shown = image_files.picture(20, 31)
  content = image_files.encode(stored(shown, orientation), format, **options,
                               exif=image_files.exif(orientation))
  expected = images.decode(image_files.encode(shown), 20)
  assert np.abs(images.decode(content, 20).astype(int) - expected).max() <= tolerance


@pytest.mark.filterwarnings('ignore:Corrupt EXIF')  # pytest undoes the filter of the module
@pytest.mark.parametrize('data', [
    b'Exif\0\0rubbish.', b'Exif\0\0MM\0*\0\0\xff\xff', image_files.exif(9).tobytes()])
@pytest.mark.parametrize('format', ['PNG', 'WEBP', 'JPEG'])
def test_broken_exif_data_do_not_matter(data, format):
  content = image_files.encode(image_files.picture(20, 30), format, exif=data)
  plain = image_files.encode(image_files.picture(20, 30), format)
  np.testing.assert_array_equal(images.decode(content, 8), images.decode(plain, 8))


def save(mode, colour, format='PNG', **options):
  return image_files.encode(flat(mode, colour), format, **options)


def save_palette(format='PNG', **options):
  image = flat('P', 1)
  image.putpalette([9, 9, 9, 10, 20, 30, 200, 0, 0])
  return image_files.encode(image, format, **options)


# 51 of 255 is a fifth, so that 200, 100 and 0 become 40 + 204, 20 + 204 and 0 + 204 on white.
KINDS = {
    'grey': (save('L', 77), (77, 77, 77)),
    'grey jpeg': (save('L', 77, 'JPEG'), (77, 77, 77)),
    'white bit': (save('1', 1), (255, 255, 255)),
    'black bit tiff': (save('1', 0, 'TIFF'), (0, 0, 0)),
    'bmp': (save('RGB', (10, 20, 30), 'BMP'), (10, 20, 30)),
    'webp': (save('RGB', (10, 20, 30), 'WEBP', lossless=True), (10, 20, 30)),
    'rgba opaque': (save('RGBA', (200, 100, 0, 255)), (200, 100, 0)),
    'rgba clear': (save('RGBA', (200, 100, 0, 0)), (255, 255, 255)),
    'rgba fifth': (save('RGBA', (200, 100, 0, 51)), (244, 224, 204)),
    'grey fifth': (save('LA', (100, 51)), (224, 224, 224)),
    'palette': (save_palette(), (10, 20, 30)),
    'palette clear': (save_palette(transparency=1), (255, 255, 255)),
    'palette, other colour clear': (save_palette(transparency=2), (10, 20, 30)),
    'palette fifth': (save_palette(transparency=bytes([255, 51, 255])), (206, 208, 210)),
    'gif clear': (save_palette('GIF', transparency=1), (255, 255, 255)),
    'grey key': (save('L', 77, transparency=77), (255, 255, 255)),
    'rgb key': (save('RGB', (1, 2, 3), transparency=(1, 2, 3)), (255, 255, 255)),
    'cmyk red': (save('CMYK', (0, 255, 255, 0), 'JPEG'), (255, 0, 0)),
    'cmyk grey': (save('CMYK', (0, 0, 0, 155), 'JPEG'), (100, 100, 100)),
    'animated gif': (save('RGB', (200, 0, 0), 'GIF', save_all=True,
                          append_images=[flat('RGB', (0, 0, 200))]), (200, 0, 0)),
    'two pages': (save('RGB', (200, 0, 0), 'TIFF', save_all=True,
                       append_images=[flat('RGB', (0, 0, 200))]), (200, 0, 0)),
    'one pixel': (image_files.encode(flat('RGB', (10, 20, 30), (1, 1))), (10, 20, 30)),
}


@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_of_pixels(kind):
  content, expected = KINDS[kind]
  decoded = images.decode(content, 4)
  assert decoded.shape == (4, 4, 3)
  assert np.abs(decoded - np.array(expected)).max() <= 1
  assert (decoded == decoded[0, 0]).all()


@pytest.mark.parametrize('format', ['PNG', 'TIFF'])
@pytest.mark.parametrize('stored, expected', [
    (0, 0), (385, 1), (386, 2), (25_700, 100), (32_767, 127), (65_535, 255)])
def test_16_bits_are_scaled_and_rounded(format, stored, expected):
  """65,535 is 257 * 255; 385 / 257 = 1.498 and 386 / 257 = 1.502."""
  content = image_files.encode(np.full((6, 6), stored, np.uint16), format)
  assert (images.decode(content, 4) == expected).all()


def test_one_channel_is_luminance():
  content = image_files.encode(flat('RGB', (200, 100, 50)))
  decoded = images.decode(content, 4, channels=1)
  assert decoded.shape == (4, 4, 1)
  assert (decoded == 124).all()  # 0.299 * 200 + 0.587 * 100 + 0.114 * 50 = 124.2


@pytest.mark.parametrize('shape', [(3000, 1), (1, 3000)])
def test_a_long_thin_image_keeps_its_middle(shape):
  grey = (np.arange(3000) // 12).astype(np.uint8).reshape(shape)  # 125 from 1500 to 1511
  decoded = images.decode(image_files.encode(grey), 256)
  assert decoded.shape == (256, 256, 3)
  assert set(np.unique(decoded)) == {124, 125}


@pytest.mark.parametrize('side, used', [
    (64, 150), (75, 150), (76, 300), (150, 300), (400, 600)])
def test_large_jpegs_are_decoded_at_no_less_than_twice_the_side(monkeypatch, side, used):
  sizes, resize = [], Image.Image.resize

  def spy(image, *args, **kwargs):
    sizes.append(image.size)
    return resize(image, *args, **kwargs)

  pixels = image_files.picture(600, 800)
  expected = images.decode(image_files.encode(pixels), side)
  content = image_files.encode(pixels, 'JPEG', quality=95)
  monkeypatch.setattr(Image.Image, 'resize', spy)
  decoded = images.decode(content, side)
  assert [min(size) for size in sizes] == [used]
  assert np.abs(decoded.astype(int) - expected).max() <= 4


@pytest.mark.parametrize('name, reason', [
    ('empty.jpg', 'the file is empty'),
    ('text.jpg', 'none of JPEG, PNG'),
    ('truncated.jpg', 'truncated'),
    ('header_only.jpg', 'truncated|damaged'),
    ('corrupt.jpg', 'damaged'),
    ('truncated.png', 'truncated'),
    ('bomb.png', '3600000000 pixels'),
])
def test_damaged_files_give_a_reason(name, reason):
  with pytest.raises(errors.InputError, match=reason) as caught:
    images.decode(image_files.damaged()[name], 8)
  assert '\n' not in str(caught.value)
  assert ' at 0x' not in str(caught.value)


def test_pixels_of_unknown_range_are_refused():
  content = image_files.encode(np.ones((4, 4), np.float32), 'TIFF')
  with pytest.raises(errors.InputError, match='no known range'):
    images.decode(content, 4)


def test_formats_that_run_programs_are_not_tried():
  content = image_files.encode(image_files.picture(8, 8), 'EPS')
  with pytest.raises(errors.InputError, match='none of JPEG'):
    images.decode(content, 4)


def test_nothing_is_printed(tmp_path):
  """Neither for a picture that Pillow thinks large nor for one with broken EXIF data."""
  code = ('import sys, pathlib; from PIL import Image; from mah_jax.data import images; '
          'Image.MAX_IMAGE_PIXELS = 400; '
          '[images.decode(pathlib.Path(name).read_bytes(), 8) for name in sys.argv[1:]]')
  broken = b'Exif\0\0MM\0*\0\0\0\x08\0\x02\x01\x0e\0\x02\0\0\xff\xff\0\0\x99\x99'
  (tmp_path / 'large.png').write_bytes(image_files.encode(image_files.picture(20, 30)))
  (tmp_path / 'exif.jpg').write_bytes(
      image_files.encode(image_files.picture(10, 10), 'JPEG', exif=broken))
  done = subprocess.run([sys.executable, '-c', code, 'large.png', 'exif.jpg'], cwd=tmp_path,
                        env={**os.environ, 'PYTHONPATH': str(ROOT)}, capture_output=True)
  assert (done.returncode, done.stdout, done.stderr) == (0, b'', b'')


def make_encoded(contents):
  names = [f'{row}.png' for row in range(len(contents))]
  return images.Encoded(lambda row: contents[row], names)


def test_encoded_selects_like_an_array():
  pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
  encoded = make_encoded([image_files.encode(p) for p in pixels])
  assert len(encoded) == 6
  for rows in (np.array([4, 1, 1]), np.array([True, False] * 3), slice(2, 5)):
    part, expected = encoded[rows], pixels[rows]
    assert len(part) == len(expected)
    assert part.names == [f'{row}.png' for row in np.arange(6)[rows]]
    for row in range(len(part)):
      np.testing.assert_array_equal(part.decode(row, 8, 3), expected[row])
  again = encoded[np.array([5, 3, 0])][np.array([2, 0])]
  assert again.names == ['0.png', '5.png']
  np.testing.assert_array_equal(again.decode(1, 8, 3), pixels[5])


def test_encoded_names_the_file_it_cannot_decode():
  encoded = make_encoded([image_files.encode(image_files.picture(8, 8)), b'rubbish'])
  with pytest.raises(errors.InputError, match=r'^1\.png cannot be decoded \(it is none of'):
    encoded[np.array([1])].decode(0, 8, 3)


def test_encoded_names_the_file_it_cannot_read(tmp_path):
  encoded = images.Encoded(lambda row: (tmp_path / 'gone.jpg').read_bytes(), ['gone.jpg'])
  with pytest.raises(errors.InputError, match=r'^gone\.jpg .*\(No such file'):
    encoded.decode(0, 8, 3)


def test_find(tmp_path):
  wanted = ['B/x.jpeg', 'a/deep/y.TIFF', 'a/straße, 1.JPG', 'a/z.png', 'b.webp']
  others = ['.hidden.jpg', '.cache/x.jpg', 'a/notes.txt', 'a/jpg', 'a/.z.png']
  for name in wanted + others:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
  assert images.find(tmp_path) == wanted


def test_find_follows_links_but_not_in_circles(tmp_path):
  (tmp_path / 'data' / 'a').mkdir(parents=True)
  (tmp_path / 'elsewhere').mkdir()
  (tmp_path / 'elsewhere' / 'x.jpg').touch()
  (tmp_path / 'data' / 'a' / 'up').symlink_to(tmp_path / 'data')
  (tmp_path / 'data' / 'b').symlink_to(tmp_path / 'elsewhere')
  (tmp_path / 'elsewhere' / 'self').symlink_to(tmp_path / 'elsewhere')
  assert images.find(tmp_path / 'data') == ['b/x.jpg']


def test_find_refuses_a_folder_that_is_not_there(tmp_path):
  with pytest.raises(errors.InputError, match='nowhere cannot be listed'):
    images.find(tmp_path / 'nowhere')


def test_unusable_returns_the_reason_of_every_bad_row(monkeypatch):
  monkeypatch.setattr(images, 'BLOCK', 4)  # several blocks, the last one short
  good = image_files.encode(image_files.picture(8, 8))
  cut = image_files.damaged()['truncated.jpg']
  calls = []
  encoded = make_encoded([good, b'', good, good, good, cut, good])
  reasons = images.unusable(encoded, range(len(encoded)),
                            lambda: calls.append(threading.current_thread()))
  assert list(reasons) == [1, 5]
  assert reasons[1] == 'the file is empty'
  assert 'truncated' in reasons[5]
  assert calls == [threading.main_thread()] * 7
