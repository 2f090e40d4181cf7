"""PNG files of a page with at most 256 colours: a third of the size of what a browser writes, without a library for images.

The most frequent colours stay as they are; each other one, from the edges of letters, becomes the nearest of them.
"""

import struct
import zlib
from collections import Counter

Colour = tuple[int, int, int]
COLOURS_MAX = 256
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def write_png(pixels: bytes, *, width: int) -> bytes:
    """A PNG file. `pixels`: four bytes each, red, green, blue and an opacity that is left out, row by row."""
    colours = list(zip(pixels[0::4], pixels[1::4], pixels[2::4], strict=True))
    height = len(colours) // width
    palette, numbers = choose_palette(Counter(colours))
    indexes = bytes(map(numbers.__getitem__, colours))
    rows = b"".join(b"\0" + indexes[start : start + width] for start in range(0, width * height, width))
    return SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", b"".join(map(bytes, palette))),
            _chunk(b"IDAT", zlib.compress(rows, 9)),
            _chunk(b"IEND", b""),
        )
    )


def choose_palette(counts: Counter[Colour]) -> tuple[list[Colour], dict[Colour, int]]:
    """The most frequent colours, and for every colour the number of its nearest one there."""
    palette = [colour for colour, _ in counts.most_common(COLOURS_MAX)]
    numbers = {colour: number for number, colour in enumerate(palette)}
    for colour in counts.keys() - numbers.keys():
        numbers[colour] = min(range(len(palette)), key=lambda number: _distance(palette[number], colour))
    return palette, numbers


def _distance(one: Colour, other: Colour) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
