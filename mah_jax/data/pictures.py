"""Pictures for people: squares of pixels, thumbnails and contact sheets."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from PIL import ImageDraw
from PIL import ImageFont
from PIL import PngImagePlugin

from mah_jax import errors

GAP = 8        # pixels between the tiles of a sheet
LINE = 14      # height of a line of text
MARK = b'Software\0mah_jax'  # by which a contact sheet is known
INK, PAPER, FRAME = (32, 32, 32), (255, 255, 255), (200, 30, 30)


class Tile(NamedTuple):
  """A picture of a contact sheet.

  pixels: [side, side, 3] uint8.
  lines: the text below it.
  framed: whether it has a frame, as queries have.
  """
  pixels: np.ndarray
  lines: Sequence[str]
  framed: bool = False


def square(pixels: np.ndarray, side: int) -> np.ndarray:
  """Pixels [h, w, ch] uint8, grey or colour, as a person sees them, [side, side, 3] uint8.

  Small images are enlarged without being blurred.
  """
  image = Image.fromarray(_colour(pixels))
  enlarged = side > max(image.size)
  method = Image.Resampling.NEAREST if enlarged else Image.Resampling.BILINEAR
  return np.array(image.resize((side, side), method))


def to_png(pixels: np.ndarray) -> bytes:
  """Pixels [h, w] or [h, w, ch] uint8 as the content of a PNG file."""
  return _save(Image.fromarray(_colour(pixels)), 'PNG')


def to_jpeg(pixels: np.ndarray) -> bytes:
  """Pixels [h, w, ch] uint8 as the content of a JPEG file."""
  return _save(Image.fromarray(_colour(pixels)), 'JPEG')


def sheet(rows: Sequence[Sequence[Tile]]) -> bytes:
  """A contact sheet as the content of a PNG file: a row of tiles for each query."""
  side = len(rows[0][0].pixels)
  text = max(len(tile.lines) for row in rows for tile in row) * LINE
  across = max(map(len, rows))
  height, width = side + text + GAP, side + GAP
  page = Image.new('RGB', (across * width + GAP, len(rows) * height + GAP), PAPER)
  draw, font = ImageDraw.Draw(page), ImageFont.load_default(LINE - 3)
  for i, row in enumerate(rows):
    for j, tile in enumerate(row):
      x, y = GAP + j * width, GAP + i * height
      page.paste(Image.fromarray(tile.pixels), (x, y))
      if tile.framed:
        draw.rectangle((x - 3, y - 3, x + side + 2, y + side + 2), outline=FRAME, width=3)
      for number, line in enumerate(tile.lines):
        draw.text((x, y + side + 2 + number * LINE), _fitting(line, side, font), INK, font)
  about = PngImagePlugin.PngInfo()
  about.add_text(*MARK.decode().split('\0'))
  return _save(page, 'PNG', pnginfo=about)


def _fitting(line: str, width: int, font) -> str:
  """As much of the end of a line as the width has room for; file names differ at their end."""
  line = line.encode(errors='replace').decode()
  while line and font.getlength(line) > width:
    line = '…' + line.lstrip('…')[1:] if len(line) > 1 else ''
  return line


def _colour(pixels: np.ndarray) -> np.ndarray:
  """Pixels [h, w], [h, w, 1] or [h, w, 3] as [h, w, 3]."""
  pixels = np.asarray(pixels)
  if pixels.ndim == 2:
    pixels = pixels[..., None]
  if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or pixels.dtype != np.uint8:
    raise errors.InputError(f'Pixels of shape {pixels.shape} and type {pixels.dtype} are no image: '
                            'give [h, w], [h, w, 1] or [h, w, 3] of uint8.')
  return np.broadcast_to(pixels, (*pixels.shape[:2], 3)).copy()


def _save(image: Image.Image, form: str, **options) -> bytes:
  buffer = io.BytesIO()
  image.save(buffer, form, **options)
  return buffer.getvalue()
