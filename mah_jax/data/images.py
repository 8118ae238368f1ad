"""Image files: listed, decoded to squares of one size, checked."""

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

from mah_jax import cores
from mah_jax import errors

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.gif', '.webp', '.tif', '.tiff')
FORMATS = ('JPEG', 'PNG', 'BMP', 'GIF', 'WEBP', 'TIFF')  # Pillow knows others, some unsafe
CHECK_SIDE = 8      # pixels: small enough for JPEGs to be decoded at an eighth of their size
BLOCK = 512         # rows given to the threads at once by `unusable`
MAX_SKIPPED = 0.01  # share of a dataset's files that may be unusable; one may be in any case
SHOWN = 5           # unusable files that an error spells out
DECODER = f'Pillow {PIL.__version__}'  # another version may decode other files

# Values of the EXIF tag that ask for a turn; 1, and any other value, asks for nothing.
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
# have. All threads share the filters, so that `decode` cannot set one for itself.
warnings.filterwarnings('ignore', module=r'PIL\.')


def decode(content: bytes, side: int, channels: int = 3) -> np.ndarray:
  """Decodes a file, resizes its shorter side to `side` and crops the centre.

  EXIF orientation is applied, transparency becomes white, 16-bit grey is scaled; the first of
  several frames is taken.

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

  Only the pixels of the crop are computed: a resized picture of 1 x 3,000 would be huge.
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
  """Images that stay in their files until they are asked for; rows are selected as in an array.

  A row is a number in this selection, 0 to len - 1; a file is a number in the listing that the
  selection is taken from.
  """

  def __init__(self, read: Callable[[int], bytes], names: Sequence[str],
               files: np.ndarray | None = None, version: str = ''):
    """Makes a selection of files.

    Args:
      read: file -> its content.
      names: file -> its name, for all files of the listing.
      files: the file of each row, [rows]; None: all files are rows.
      version: text that changes when the files do.
    """
    self._read, self._names, self.version = read, names, version
    self._files = np.arange(len(names)) if files is None else files

  def __len__(self) -> int:
    return len(self._files)

  def __getitem__(self, rows: slice | np.ndarray) -> Encoded:
    return Encoded(self._read, self._names, self._files[rows], self.version)

  @property
  def names(self) -> list[str]:
    """The file name of each row."""
    return [self._names[file] for file in self._files]

  def read(self, row: int) -> bytes:
    """The content of a row's file; raises InputError with the reason if it cannot be read."""
    try:
      return self._read(int(self._files[row]))
    except OSError as error:
      raise errors.InputError(error.strerror or str(error)) from error

  def decode(self, row: int, side: int, channels: int) -> np.ndarray:
    """The pixels of a row, [side, side, channels] uint8.

    Raises:
      errors.InputError: names the file; its cause is the InputError with the reason alone.
    """
    try:
      return decode(self.read(row), side, channels)
    except errors.InputError as error:
      raise errors.InputError(f'{self._names[self._files[row]]} cannot be decoded ({error}): '
                              'replace the file or take it out of the data.') from error


def find(folder: pathlib.Path) -> list[str]:
  """Image files below a folder, relative to it, sorted; nothing hidden, each folder once."""
  names, visited = [], set()
  for path, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
    real = os.path.realpath(path)
    if real in visited:  # a link that leads back would be followed without end
      folders.clear()
      continue
    visited.add(real)
    folders[:] = sorted(name for name in folders if not name.startswith('.'))
    relative = pathlib.Path(path).relative_to(folder)
    names += [(relative / name).as_posix() for name in files
              if name.lower().endswith(SUFFIXES) and not name.startswith('.')]
  return sorted(names)


def _refuse(error: OSError):
  raise errors.InputError(f'{error.filename} cannot be listed ({error.strerror}): correct the '
                          'path or its permissions.') from error


def unusable(encoded: Encoded, rows: Sequence[int],
             on_image: Callable[[], None]) -> dict[int, str]:
  """Decodes each of these rows once, small, and calls `on_image` after each.

  Returns:
    row -> reason, for each row that cannot be decoded, in the order of `rows`.
  """

  def problem(row: int) -> str:
    try:
      decode(encoded.read(row), CHECK_SIDE)
    except errors.InputError as error:
      return str(error)
    return ''

  reasons = {}
  with futures.ThreadPoolExecutor(cores.usable()) as pool:
    for start in range(0, len(rows), BLOCK):
      block = rows[start:start + BLOCK]
      for row, reason in zip(block, pool.map(problem, block)):
        if reason:
          reasons[row] = reason
        on_image()
  return reasons


def refuse_many(skipped: Mapping[str, str], total: int, remedy: str):
  """Raises InputError if more files of a listing are skipped than is bearable.

  Args:
    skipped: file name -> reason.
    total: files of the listing.
    remedy: what the user can do.
  """
  if len(skipped) > max(MAX_SKIPPED * total, 1):
    raise errors.InputError(f'{len(skipped):,} of {total:,} images cannot be used, more than '
                            f'{MAX_SKIPPED:.0%}: {remedy} ({first(skipped)}).')


def first(skipped: Mapping[str, str]) -> str:
  """The first few of the files that are skipped, with their reasons."""
  return 'first ' + '; '.join(f'{name}: {skipped[name]}' for name in list(skipped)[:SHOWN])
