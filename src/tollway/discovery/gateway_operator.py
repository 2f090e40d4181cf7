"""The operator of a gateway by its settings, and the check of its logo. Pure.

Every page and the documents of the site name the operator. The values are the operator's own and still checked: a page links to no other scheme than https and
mailto, and the gateway serves no file that a browser could run.
"""

from dataclasses import dataclass

from tollway.limits import KIB

LOGO_BYTES_MAX = 64 * KIB
_PNG, _PNG_END = b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"
_JPEG, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOperator:
    """`name`: one clean line. `url`, `terms_url`, `docs_url` (of the documentation): https. `contact`: `mailto:` or https. None: the settings do not say it."""

    name: str | None = None
    url: str | None = None
    contact: str | None = None
    terms_url: str | None = None
    docs_url: str | None = None

    def to_json(self) -> dict[str, str]:
        """The members that the settings give. The documentation is linked by pages alone."""
        members = {
            "name": self.name,
            "url": self.url,
            "contact": self.contact,
            "termsUrl": self.terms_url,
        }
        return {name: value for name, value in members.items() if value is not None}


UNNAMED = GatewayOperator()


@dataclass(frozen=True, slots=True, kw_only=True)
class Logo:
    """An image that runs no script. `suffix`: of its file name."""

    media_type: str
    suffix: str
    content: bytes


def parse_logo(content: bytes) -> Logo:
    """The logo, by its content and not by the name of its file. The image is the whole file: what follows an image could be read as another type. Raises
    ValueError."""
    if len(content) > LOGO_BYTES_MAX:
        raise ValueError(f"has more than {LOGO_BYTES_MAX // KIB} KiB; save it smaller")
    if content.startswith(_PNG):
        kind, is_whole = ("image/png", ".png"), content.endswith(_PNG_END)
    elif content.startswith(_JPEG):
        kind, is_whole = ("image/jpeg", ".jpg"), content.endswith(_JPEG_END)
    elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        length = int.from_bytes(content[4:8], "little")
        kind, is_whole = ("image/webp", ".webp"), len(content) == length + 8
    elif b"<svg" in content.lower():
        raise ValueError("is an SVG image, which can hold scripts; save it as PNG, JPEG or WebP")
    else:
        raise ValueError("is no PNG, JPEG or WebP image")
    if not is_whole:
        raise ValueError("is cut, or has something behind the image; save it again")
    return Logo(media_type=kind[0], suffix=kind[1], content=content)
