"""The operator's facts as JSON, and the check of the logo: an image that runs no script and is the whole file."""

import pytest

from tollway.discovery.gateway_operator import LOGO_BYTES_MAX, UNNAMED, GatewayOperator, parse_logo

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20 + b"\x00\x00\x00\x00IEND\xaeB`\x82"
JPEG = b"\xff\xd8\xff" + b"x" * 20 + b"\xff\xd9"
WEBP = b"RIFF" + (16).to_bytes(4, "little") + b"WEBP" + b"x" * 12


@pytest.mark.parametrize(
    ("content", "media_type", "suffix"),
    [(PNG, "image/png", ".png"), (JPEG, "image/jpeg", ".jpg"), (WEBP, "image/webp", ".webp")],
)
def test_a_logo_has_the_type_of_its_content(content: bytes, media_type: str, suffix: str) -> None:
    logo = parse_logo(content)
    assert (logo.media_type, logo.suffix, logo.content) == (media_type, suffix, content)


SCRIPT = b"<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no PNG, JPEG or WebP"),
        (SCRIPT, "no PNG, JPEG or WebP"),
        (b"GIF89a" + SCRIPT, "no PNG, JPEG or WebP"),
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg">' + SCRIPT, "can hold scripts"),
        (b"\xef\xbb\xbf<SVG onload=alert(1)>", "can hold scripts"),
        (PNG[:-1], "is cut"),
        (PNG + SCRIPT, "something behind the image"),
        (JPEG + SCRIPT, "something behind the image"),
        (WEBP + SCRIPT, "something behind the image"),
        (WEBP[:-1], "is cut"),
        (PNG + b"x" * LOGO_BYTES_MAX, "more than 64 KiB"),
    ],
)  # fmt: skip
def test_refuses_what_is_no_image_alone(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_logo(content)


def test_the_json_has_what_the_settings_give() -> None:
    assert UNNAMED.to_json() == {}
    operator = GatewayOperator(name="Rain", terms_url="https://rain.example/terms")
    assert operator.to_json() == {"name": "Rain", "termsUrl": "https://rain.example/terms"}
