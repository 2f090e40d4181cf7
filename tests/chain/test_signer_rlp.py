"""RLP as other implementations encode it; other encodings are refused."""

from typing import Any

import pytest
import rlp
from hypothesis import given
from hypothesis import strategies as st

from tollway.chain.signer import decode_item, encode_item

ITEMS = st.recursive(
    st.binary(max_size=70) | st.binary(min_size=250, max_size=260),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=12,
)


@given(ITEMS)
def test_encodes_and_decodes_as_the_package_does(item: Any) -> None:
    raw = encode_item(item)
    assert raw == rlp.encode(item)
    assert decode_item(raw) == item


@given(st.integers(0, 2**256))
def test_a_number_is_its_bytes_without_leading_zeros(number: int) -> None:
    assert encode_item(number) == rlp.encode(number)


@given(st.binary(max_size=80))
def test_refuses_what_the_package_refuses(raw: bytes) -> None:
    try:
        expected = rlp.decode(raw)
    except rlp.exceptions.DecodingError:
        with pytest.raises(ValueError):
            decode_item(raw)
        return
    read = decode_item(raw)
    assert encode_item(read) == raw
    assert rlp.encode(expected) == raw


@pytest.mark.parametrize(
    "raw",
    [
        "",  # nothing
        "8100",  # a small byte with a prefix
        "817f",
        "b80161",  # a long length for what is short
        "b8376161",
        "b90038" + "61" * 56,  # a length with a leading zero
        "83616263" + "61",  # more than one item
        "836162",  # cut off
        "c3" + "836162",  # an item that leaves its list
        "f80180",
        "b8",
        "bf" + "ff" * 8,  # longer than anything
    ],
)
def test_every_item_has_one_encoding(raw: str) -> None:
    with pytest.raises(ValueError):
        decode_item(bytes.fromhex(raw))
