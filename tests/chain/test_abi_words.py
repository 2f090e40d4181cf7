"""Calldata is encoded as eth_abi encodes it."""

import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from tollway.chain.abi_words import (
    Dynamic,
    compute_selector,
    encode_arguments,
    encode_array,
    encode_bytes,
    read_bytes,
    read_number,
    split_array,
    word,
)

ADDRESS, WORD = st.binary(min_size=20, max_size=20), st.binary(min_size=32, max_size=32)
UINT256 = st.integers(0, 2**256 - 1)
BYTES = st.binary(max_size=100)


@given(ADDRESS, WORD, UINT256, BYTES, BYTES)
def test_static_and_dynamic_arguments_stand_in_order(
    address: bytes, one: bytes, number: int, first: bytes, last: bytes
) -> None:
    own = encode_arguments(word(address), encode_bytes(first), one, word(number), encode_bytes(last))
    kinds = ["address", "bytes", "bytes32", "uint256", "bytes"]
    assert own == encode(kinds, [address, first, one, number, last])


@given(st.lists(BYTES, max_size=4), UINT256)
def test_an_array_of_bytes_is_split_again(contents: list[bytes], number: int) -> None:
    own = encode_arguments(encode_array([encode_bytes(content) for content in contents]))
    assert own == encode(["bytes[]"], [contents])
    assert [read_bytes(element, 0) for element in split_array(own)] == contents


@given(st.lists(st.tuples(UINT256, UINT256, BYTES, UINT256), max_size=3))
def test_an_array_of_tuples_holds_static_tuples_in_place(
    elements: list[tuple[int, int, bytes, int]],
) -> None:
    encoded = [
        Dynamic(encode_arguments(word(a) + word(b), encode_bytes(content), word(c)))
        for a, b, content, c in elements
    ]
    theirs = [((a, b), content, c) for a, b, content, c in elements]
    assert encode_arguments(encode_array(encoded)) == encode(
        ["((uint256,uint256),bytes,uint256)[]"], [theirs]
    )


def test_a_selector_is_that_of_the_signature() -> None:
    assert compute_selector("transfer(address,uint256)").hex() == "a9059cbb"


@pytest.mark.parametrize("member", [-1, 2**256, bytes(33)])
def test_what_does_not_fit_a_word_is_refused(member: int | bytes) -> None:
    with pytest.raises((OverflowError, ValueError)):
        word(member)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        word(32),
        word(32) + word(1),
        word(32) + word(2**255),
        word(2**255) + word(0),
        word(32) + word(1) + word(2**200),
    ],
)
def test_a_payload_that_is_too_short_is_no_array_of_bytes(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"too short|longer than"):
        [read_bytes(element, 0) for element in split_array(payload)]


def test_reads_nothing_beyond_the_end() -> None:
    assert read_number(word(7) + word(8), 32) == 8
    for payload, start in ((b"", 0), (word(7), 1), (word(64) + bytes(63), 0)):
        with pytest.raises(ValueError, match="too short"):
            read_bytes(payload, start)
