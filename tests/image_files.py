"""Generated image files of many kinds, whole and damaged, and trees of them."""

import io
import pathlib
import struct
import zlib
from collections.abc import Mapping

import numpy as np
from PIL import ExifTags
from PIL import Image


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
  """Smooth colours of which no two corners are alike, [height, width, 3] uint8."""
  y, x = np.mgrid[:height, :width]
  y, x = y / max(height - 1, 1), x / max(width - 1, 1)
  strength = np.random.default_rng(seed).uniform(0.6, 1.0, 3)
  planes = np.stack([x, y, (1 - x) * (1 - y)], axis=-1)
  return np.rint(255 * strength * planes).astype(np.uint8)


def encode(pixels: np.ndarray | Image.Image, format: str = 'PNG', **options) -> bytes:
  """A file of these pixels; options are those of Pillow's `save`."""
  image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
  buffer = io.BytesIO()
  image.save(buffer, format, **options)
  return buffer.getvalue()


def exif(orientation: int) -> Image.Exif:
  """EXIF data with nothing but an orientation, 1 to 8."""
  data = Image.Exif()
  data[ExifTags.Base.Orientation] = orientation
  return data


def png_bomb(width: int, height: int) -> bytes:
  """A few bytes of a grey PNG that claims to have this size."""
  content = b'\x89PNG\r\n\x1a\n'
  for kind, data in ((b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)),
                     (b'IDAT', zlib.compress(bytes(1000)))):
    content += struct.pack('>I', len(data)) + kind + data
    content += struct.pack('>I', zlib.crc32(kind + data))
  return content


def damaged() -> dict[str, bytes]:
  """Files that cannot be decoded, by names that say why."""
  jpeg, png = (encode(picture(60, 80), format) for format in ('JPEG', 'PNG'))
  return {
      'empty.jpg': b'',
      'text.jpg': b'This is no image.\n',
      'truncated.jpg': jpeg[:-200],  # in the middle of the pixels
      'header_only.jpg': jpeg[:20],
      'corrupt.jpg': b'\xff\xd8' + bytes(len(jpeg)),
      'truncated.png': png[:len(png) // 2],
      'bomb.png': png_bomb(60_000, 60_000),
  }


def class_tree(folder: pathlib.Path, counts: Mapping[str, int],
               size: tuple[int, int] = (30, 40)) -> list[str]:
  """Writes CLASS/0.jpg, CLASS/1.jpg ... and returns their names, sorted.

  Args:
    folder: where; made if need be.
    counts: images of each class.
    size: height and width.
  """
  names = []
  for k, (name, count) in enumerate(counts.items()):
    (folder / name).mkdir(parents=True)
    for i in range(count):
      content = encode(picture(*size, seed=1000 * k + i), 'JPEG')
      (folder / name / f'{i}.jpg').write_bytes(content)
      names.append(f'{name}/{i}.jpg')
  return sorted(names)
