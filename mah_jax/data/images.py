"""Image files: found, decoded to squares of one size, checked."""

from __future__ import annotations

import io
import os
import pathlib
import warnings
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures

import numpy as np
import PIL
from PIL import ExifTags
from PIL import Image
from PIL import UnidentifiedImageError

from mah_jax import errors

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.gif', '.webp', '.tif', '.tiff')
FORMATS = ('JPEG', 'PNG', 'BMP', 'GIF', 'WEBP', 'TIFF')  # Pillow knows others, some unsafe
CHECK_SIDE = 8  # pixels: small enough for JPEGs to be decoded at an eighth of their size
BLOCK = 512     # rows given to the threads at once by `usable`
MAX_SKIPPED = 0.01  # share of a dataset's images that may be unusable
SHOWN = 5           # unusable images that an error spells out
DECODER = f'Pillow {PIL.__version__}'  # on which it depends what can be decoded

# What each value of the EXIF tag asks for; 1, and anything else, asks for nothing.
ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow warns of large pictures and of broken EXIF data, which photographs from the web often
# have. Filters are common to all threads, so that decoding cannot set one for its own time.
warnings.filterwarnings('ignore', module=r'PIL\.')


def decode(content: bytes, side: int, channels: int = 3) -> np.ndarray:
  """Decodes a file, resizes its shorter side to `side` and crops the centre.

  EXIF orientation is applied, transparency becomes white, 16-bit grey is scaled; of several
  frames the first is taken.

  Args:
    content: the whole file.
    side: height and width of the result.
    channels: 3 for red, green, blue; 1 for luminance.

  Returns:
    pixels [side, side, channels] uint8.

  Raises:
    errors.InputError: Pillow cannot decode it, or refuses its size; the message is the reason.
  """
  mode = {1: 'L', 3: 'RGB'}[channels]
  if not content:
    raise errors.InputError('the file is empty')
  try:
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
      image.draft(None, (2 * side, 2 * side))  # a JPEG is decoded at 1/2, 1/4 or 1/8 if it can
      image.load()
      upright = _turn(_flatten(image, mode), image)
    return np.array(_centre_square(upright, side)).reshape(side, side, channels)
  except errors.InputError:
    raise
  except UnidentifiedImageError:  # its message has the address of a buffer
    raise errors.InputError(
        f'it is none of {", ".join(FORMATS)}, or its header is damaged') from None
  # Damaged files make the many decoders of Pillow raise almost anything.
  except Exception as error:
    reason = ' '.join(str(error).split()) or type(error).__name__
    raise errors.InputError(reason.rstrip('.')) from error


def _flatten(image: Image.Image, mode: str) -> Image.Image:
  """Brings any kind of pixels to 'RGB' or 'L', 8 bits each, on a white ground."""
  if image.mode in ('I', 'F'):
    raise errors.InputError('its pixels of 32 bits have no known range')
  if image.mode.startswith('I;16'):  # which Pillow would clip
    grey = (np.asarray(image).astype(np.uint32) + 128) // 257
    image = Image.fromarray(grey.astype(np.uint8))
  if image.has_transparency_data:
    image = image.convert('RGBA')
    image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
  return image.convert(mode)


def _turn(flat: Image.Image, source: Image.Image) -> Image.Image:
  """Turns or mirrors the pixels as the EXIF data of their source say."""
  try:
    orientation = source.getexif().get(ExifTags.Base.Orientation)
  # Broken EXIF data raise many things, and say nothing against the pixels.
  except Exception:
    return flat
  return flat.transpose(ORIENTATIONS[orientation]) if orientation in ORIENTATIONS else flat


def _centre_square(image: Image.Image, side: int) -> Image.Image:
  """Resizes the shorter side to `side` and crops the centre, in one step.

  Only what the crop keeps is computed: a resized picture of 1 x 3,000 pixels would be huge.
  """
  shorter = min(image.size)
  first, last = [], []  # corners of the crop in the picture, (x, y)
  for length in image.size:
    resized = side * length // shorter
    start = (resized - side) // 2
    first.append(start * length / resized)
    last.append((start + side) * length / resized)
  return image.resize((side, side), Image.Resampling.BILINEAR, box=(*first, *last))


class Encoded:
  """Images that stay in their files until they are asked for; selects rows like an array."""

  def __init__(self, read: Callable[[int], bytes], names: Sequence[str],
               rows: np.ndarray | None = None, version: str = ''):
    """Makes a selection of images.

    Args:
      read: gives the content of a file by its row.
      names: of all files, by row.
      rows: those that are selected; None: all.
      version: text that changes when the files do.
    """
    self._read, self._names, self.version = read, names, version
    self._rows = np.arange(len(names)) if rows is None else rows

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, rows: slice | np.ndarray) -> Encoded:
    return Encoded(self._read, self._names, self._rows[rows], self.version)

  @property
  def names(self) -> list[str]:
    """File names of the selected rows."""
    return [self._names[row] for row in self._rows]

  def read(self, row: int) -> bytes:
    """The file of a selected row; InputError with the reason if it cannot be read."""
    try:
      return self._read(int(self._rows[row]))
    except OSError as error:
      raise errors.InputError(error.strerror or str(error)) from error

  def decode(self, row: int, side: int, channels: int) -> np.ndarray:
    """Pixels of a selected row, [side, side, channels] uint8.

    Raises:
      errors.InputError: names the file; its cause is the InputError with the reason alone.
    """
    try:
      return decode(self.read(row), side, channels)
    except errors.InputError as error:
      raise errors.InputError(f'{self._names[self._rows[row]]} cannot be decoded ({error}): '
                              'replace the file or take it out of the data.') from error


def find(folder: pathlib.Path) -> list[str]:
  """Image files below a folder, relative to it, sorted; nothing hidden, each folder once."""
  found, seen = [], set()
  for path, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
    real = os.path.realpath(path)
    if real in seen:  # a link that leads back would be followed without end
      folders.clear()
      continue
    seen.add(real)
    folders[:] = sorted(name for name in folders if not name.startswith('.'))
    relative = pathlib.Path(path).relative_to(folder)
    found += [(relative / name).as_posix() for name in files
              if name.lower().endswith(SUFFIXES) and not name.startswith('.')]
  return sorted(found)


def _refuse(error: OSError):
  raise errors.InputError(f'{error.filename} cannot be listed ({error.strerror}): correct the '
                          'path or its permissions.') from error


def cores() -> int:
  """Cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):  # Linux
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def usable(encoded: Encoded, on_image: Callable[[], None]) -> dict[int, str]:
  """Decodes every row once, small; `on_image` is called after each.

  Returns:
    the reason for each row that cannot be decoded.
  """

  def problem(row: int) -> str:
    try:
      decode(encoded.read(row), CHECK_SIDE)
    except errors.InputError as error:
      return str(error)
    return ''

  reasons = {}
  with futures.ThreadPoolExecutor(cores()) as pool:
    for start in range(0, len(encoded), BLOCK):
      rows = range(start, min(start + BLOCK, len(encoded)))
      for row, reason in zip(rows, pool.map(problem, rows)):
        if reason:
          reasons[row] = reason
        on_image()
  return reasons


def refuse_many(skipped: Mapping[str, str], rows: int, remedy: str):
  """Raises InputError if more of a dataset's images are skipped than is bearable.

  Args:
    skipped: name -> reason.
    rows: images in all.
    remedy: what the user can do.
  """
  if len(skipped) > MAX_SKIPPED * rows:
    raise errors.InputError(f'{len(skipped):,} of {rows:,} images cannot be used, more than '
                            f'{MAX_SKIPPED:.0%}: {remedy} ({first(skipped)}).')


def first(skipped: Mapping[str, str]) -> str:
  """The first few of the images that are skipped, with their reasons."""
  return 'first ' + '; '.join(f'{name}: {skipped[name]}' for name in list(skipped)[:SHOWN])
