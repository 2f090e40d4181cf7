"""The pictures of the documentation: the ones that `make screenshots` writes, and the files that it writes them as."""

import struct
import zlib
from collections import Counter

from tests.system.browser.screenshots import IMAGES, PICTURES, PREVIEW, PREVIEW_HEIGHT, PREVIEW_WIDTH
from tests.system.browser.small_png import choose_palette, write_png


def test_the_documentation_has_the_pictures_that_are_made() -> None:
    assert {path.name for path in IMAGES.iterdir()} == set(PICTURES)


def test_every_picture_is_shown_by_a_page() -> None:
    pages = "".join(path.read_text("utf-8") for path in IMAGES.parent.glob("*.md"))
    assert [name for name in PICTURES if f"(images/{name})" not in pages] == []


def test_a_picture_is_as_wide_as_its_window() -> None:
    for name, (_, width, _) in PICTURES.items():
        assert struct.unpack(">I", (IMAGES / name).read_bytes()[16:20]) == (width,), name


def test_the_picture_of_previews_has_their_size_and_is_light() -> None:
    written = PREVIEW.read_bytes()
    assert struct.unpack(">II", written[16:24]) == (PREVIEW_WIDTH, PREVIEW_HEIGHT)
    assert len(written) <= 32 * 1024


def test_a_small_picture_has_the_pixels_it_was_given() -> None:
    colours = ((255, 255, 255), (12, 94, 74), (12, 94, 74), (0, 0, 0), (255, 255, 255), (9, 8, 7))
    written = write_png(b"".join(bytes((*colour, 255)) for colour in colours), width=3)
    chunks, place = {}, 8
    while place < len(written):
        size, kind = struct.unpack(">I4s", written[place : place + 8])
        content = written[place + 8 : place + 8 + size]
        assert struct.unpack(">I", written[place + 8 + size :][:4]) == (zlib.crc32(kind + content),)
        chunks[kind], place = content, place + 12 + size
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (3, 2)
    rows = zlib.decompress(chunks[b"IDAT"])
    numbers = rows[1:4] + rows[5:8]
    assert [tuple(chunks[b"PLTE"][3 * one : 3 * one + 3]) for one in numbers] == list(colours)


def test_a_colour_too_many_becomes_the_nearest_frequent_one() -> None:
    frequent = Counter({(0, green, 0): 9 for green in range(256)})
    palette, numbers = choose_palette(frequent + Counter({(3, 200, 1): 1}))
    assert len(palette) == 256
    assert palette[numbers[3, 200, 1]] == (0, 200, 0)
