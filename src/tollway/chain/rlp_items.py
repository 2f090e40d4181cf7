"""RLP, the encoding of Ethereum's transactions: byte strings, whole numbers, and lists of them. Pure.

Strict: every item has one encoding, and bytes that are another are refused. Source: Yellow Paper, appendix B. (The package
of that name brings a quarter of a second of imports along, at every start of a gateway.)
"""

from collections.abc import Sequence

Item = bytes | list["Item"]

_SHORT_MAX = 55
_BYTES_PREFIX, _LIST_PREFIX = 0x80, 0xC0


def encode_item(item: bytes | int | Sequence[bytes | int | Sequence[bytes]]) -> bytes:
    """A number is its big-endian bytes without leading zeros; 0 is no bytes."""
    if isinstance(item, int):
        item = item.to_bytes((item.bit_length() + 7) // 8, "big")
    if not isinstance(item, bytes):
        inside = b"".join([encode_item(one) for one in item])
        return _prefix(_LIST_PREFIX, len(inside)) + inside
    if len(item) == 1 and item[0] < _BYTES_PREFIX:
        return item
    return _prefix(_BYTES_PREFIX, len(item)) + item


def decode_item(raw: bytes) -> Item:
    """The one item that the bytes are. Raises ValueError."""
    item, end = _read(raw, 0, len(raw))
    if end != len(raw):
        raise ValueError("there is more than one item")
    return item


def _prefix(kind: int, length: int) -> bytes:
    if length <= _SHORT_MAX:
        return bytes((kind + length,))
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((kind + _SHORT_MAX + len(size),)) + size


def _read(raw: bytes, start: int, limit: int) -> tuple[Item, int]:
    if start >= limit:
        raise ValueError("an item is cut off")
    first = raw[start]
    if first < _BYTES_PREFIX:
        return raw[start : start + 1], start + 1
    kind = _LIST_PREFIX if first >= _LIST_PREFIX else _BYTES_PREFIX
    begin, end = _measure(raw, start, first - kind, limit)
    if kind == _BYTES_PREFIX:
        if end - begin == 1 and raw[begin] < _BYTES_PREFIX:
            raise ValueError("a small byte stands for itself")
        return raw[begin:end], end
    items: list[Item] = []
    while begin < end:
        item, begin = _read(raw, begin, end)
        items.append(item)
    return items, end


def _measure(raw: bytes, start: int, length: int, limit: int) -> tuple[int, int]:
    """Where the inside of an item begins and ends."""
    begin = start + 1
    if length > _SHORT_MAX:
        size = raw[begin : begin + length - _SHORT_MAX]
        begin += len(size)
        length = int.from_bytes(size, "big")
        if length <= _SHORT_MAX or size[0] == 0:
            raise ValueError("a length is written too long")
    if begin + length > limit:
        raise ValueError("an item is cut off")
    return begin, begin + length
