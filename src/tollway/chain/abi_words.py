"""Encodes and splits calldata and results of contracts, in words of 32 bytes. Pure.

Arguments stand in order: a static one as its words, a dynamic one as the offset of its content. The contents follow the last argument.
Source: Solidity's contract ABI, "Formal Specification of the Encoding".
"""

from collections.abc import Sequence

from tollway.ids import keccak256

WORD = 32


class Dynamic(bytes):
    """The content of a dynamic argument (`bytes`, `string`, an array, a tuple with one of them)."""


def compute_selector(signature: str) -> bytes:
    """The first four bytes of calldata. `signature`: the canonical text of the function, such as `transfer(address,uint256)`."""
    return keccak256(signature.encode())[:4]


def word(member: int | bytes) -> bytes:
    """An unsigned integer, an address or 32 bytes, as one word. Raises OverflowError or ValueError for what does not fit."""
    if isinstance(member, int):
        return member.to_bytes(WORD, "big")
    if len(member) > WORD:
        raise ValueError("a word is 32 bytes")
    return member.rjust(WORD, b"\0")


def encode_arguments(*arguments: bytes) -> bytes:
    """Each argument: the words of a static one, or a `Dynamic`."""
    heads_length = sum(WORD if isinstance(one, Dynamic) else len(one) for one in arguments)
    heads, contents = b"", b""
    for one in arguments:
        if isinstance(one, Dynamic):
            heads += word(heads_length + len(contents))
            contents += one
        else:
            heads += one
    return heads + contents


def encode_bytes(content: bytes) -> Dynamic:
    """A `bytes` argument."""
    return Dynamic(word(len(content)) + content + bytes(-len(content) % WORD))


def encode_array(elements: Sequence[bytes]) -> Dynamic:
    """An array of elements of one type; each as in `encode_arguments`."""
    return Dynamic(word(len(elements)) + encode_arguments(*elements))


def split_array(payload: bytes) -> list[bytes]:
    """The elements of the only argument of the payload, an array of a dynamic type; each begins at its offset and ends with the payload.
    Raises ValueError for other payloads."""
    array = payload[read_number(payload, 0) :]
    count = read_number(array, 0)
    elements = array[WORD:]
    if count * WORD > len(elements):
        raise ValueError("the array is longer than the payload")
    return [elements[read_number(elements, place * WORD) :] for place in range(count)]


def read_bytes(payload: bytes, start: int) -> bytes:
    """The content of a `bytes` whose length stands at `start`. Raises ValueError where the payload is too short."""
    return read_slice(payload, start + WORD, read_number(payload, start))


def read_number(payload: bytes, start: int) -> int:
    """The unsigned integer of the word at `start`. Raises ValueError where the payload is too short."""
    return int.from_bytes(read_slice(payload, start, WORD), "big")


def read_slice(payload: bytes, start: int, length: int) -> bytes:
    if start + length > len(payload):
        raise ValueError("the payload is too short")
    return payload[start : start + length]
