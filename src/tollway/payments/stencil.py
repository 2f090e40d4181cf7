"""JSON that is the same each time but for a few places: encoded once, filled in as often as needed. Pure.

It knows nothing of what is written in the places: whoever fills one hands in JSON.
"""

from collections.abc import Iterator, Mapping, Sequence

from tollway.payments.authorization_wire import encode_json


class TemplateSlot(str):
    """Stands where a value is not known yet, in any content. Its text is its name."""

    __slots__ = ()


class JsonTemplate:
    """Made from content with slots in it. May be filled by many at once."""

    __slots__ = ("_fixed_bytes", "_names", "_pieces")

    def __init__(self, content: object) -> None:
        pieces: list[bytes | TemplateSlot] = []
        for piece in _walk(content):
            if pieces and not isinstance(piece, TemplateSlot) and isinstance(last := pieces[-1], bytes):
                pieces[-1] = last + piece
            else:
                pieces.append(piece)
        self._pieces = tuple(pieces)
        self._names = tuple(piece for piece in pieces if isinstance(piece, TemplateSlot))
        self._fixed_bytes = sum(len(piece) for piece in pieces if isinstance(piece, bytes))

    @property
    def slots(self) -> int:
        return len(self._names)

    def fill(self, values: Mapping[str, bytes]) -> bytes:
        """The whole. `values`: JSON for each slot, by its name; others are passed over."""
        return b"".join([piece if isinstance(piece, bytes) else values[piece] for piece in self._pieces])

    def count(self, values: Mapping[str, bytes]) -> int:
        """How many bytes `fill` would give."""
        return self._fixed_bytes + sum([len(values[name]) for name in self._names])


def _walk(content: object) -> Iterator[bytes | TemplateSlot]:
    """As `encode_json` writes it, piece by piece."""
    if isinstance(content, TemplateSlot):
        yield content
    elif isinstance(content, Mapping):
        yield b"{"
        for number, (name, value) in enumerate(content.items()):
            yield (b"," if number else b"") + encode_json(name) + b":"
            yield from _walk(value)
        yield b"}"
    elif isinstance(content, Sequence) and not isinstance(content, str):
        yield b"["
        for number, value in enumerate(content):
            if number:
                yield b","
            yield from _walk(value)
        yield b"]"
    else:
        yield encode_json(content)
