"""Names: parsed once, formatted once, one spelling inside."""

import pytest
from Crypto.Hash import keccak
from hypothesis import given
from hypothesis import strategies as st

from tollway.ids import (
    Address,
    ChainId,
    TxHash,
    format_id,
    format_network,
    is_idempotency_key,
    keccak256,
    parse_network,
    read_id_entropy,
    read_idempotency_key,
    start_keccak256,
)

# The examples of EIP-55.
CHECKSUMMED = [
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
    "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
    "0x52908400098527886E0F7030069857D2E4169EE7",
    "0xde709f2102306220921060314715629080e2fb77",
]


@pytest.mark.parametrize("text", CHECKSUMMED)
def test_an_address_is_shown_in_eip_55_whatever_its_case_was(text: str) -> None:
    for spelling in (text, text.lower(), "0x" + text[2:].upper()):
        assert str(Address.parse(spelling)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "0x", "5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x" + "0" * 39, "0x" + "0" * 41),
        *("0x" + "g" * 40, " 0x" + "0" * 40, "0x" + "0" * 40 + "\n"),
        "0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",  # one letter of the checksum is wrong
    ],
)
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Address.parse(text)


@given(st.binary(min_size=32, max_size=32))
def test_a_transaction_hash_has_one_spelling(raw: bytes) -> None:
    text = "0x" + raw.hex()
    assert str(TxHash.parse(text)) == str(TxHash.parse("0X" + raw.hex().upper())) == text


@pytest.mark.parametrize("text", ["", "0x", "ab" * 32, "0x" + "0" * 63, "0x" + "0" * 65, "0x" + "z" * 64])
def test_anything_else_is_no_transaction_hash(text: str) -> None:
    with pytest.raises(ValueError, match="transaction hash"):
        TxHash.parse(text)


def test_networks_are_caip_2() -> None:
    assert parse_network("eip155:8453") == 8453
    assert format_network(ChainId(8453)) == "eip155:8453"


@pytest.mark.parametrize("text", ["", "8453", "eip155:", "eip155:08453", "eip155:-1", "solana:1", "eip155:٣"])
def test_other_networks_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="eip155"):
        parse_network(text)


@given(st.integers(min_value=0, max_value=2**48 - 2), st.binary(min_size=10, max_size=10))
def test_ids_sort_by_time(now_ms: int, entropy: bytes) -> None:
    earlier = format_id("call", now_ms=now_ms, entropy=b"\xff" * 10)
    later = format_id("call", now_ms=now_ms + 1, entropy=entropy)
    assert earlier < later
    assert len(later) == len("call_") + 26


def test_the_hash_is_keccak_and_not_sha3() -> None:
    assert keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


KECCAK_RATE = 136
"""Bytes of a block of Keccak-256."""


@pytest.mark.parametrize(
    "length", [*range(3), *range(KECCAK_RATE - 2, KECCAK_RATE + 3), 272, 4_096, 1_000_000]
)
def test_a_keccak_is_that_of_another_library(length: int) -> None:
    message = bytes(number % 251 for number in range(length))
    expected = keccak.new(digest_bits=256, data=message).digest()
    assert keccak256(message) == keccak256(TxHash(message)) == expected
    assert keccak256(bytearray(message)) == expected


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_a_keccak_of_parts_is_that_of_the_whole(parts: list[bytes]) -> None:
    running = start_keccak256()
    for part in parts:
        running.update(part)
    assert running.digest() == keccak256(b"".join(parts))


@pytest.mark.parametrize(
    ("value", "key", "is_key"),
    [
        ("k", "k", True),
        ('"k"', "k", True),
        ('"', '"', True),
        ("a b\tc", "a b\tc", True),
        ("é" * 255, "é" * 255, True),
        ("é" * 256, "é" * 256, False),
        ("", "", False),
        ('""', "", False),
    ],
)
def test_an_idempotency_key_is_any_text_of_1_to_255_characters(value: str, key: str, is_key: bool) -> None:
    assert read_idempotency_key(value.encode()) == key
    assert is_idempotency_key(key) == is_key


@given(st.binary(min_size=10, max_size=10), st.integers(0, 2**48 - 1))
def test_reads_the_first_bits_of_the_entropy_of_an_id(entropy: bytes, now_ms: int) -> None:
    assert (
        read_id_entropy(format_id("call", now_ms=now_ms, entropy=entropy))
        == int.from_bytes(entropy[:4], "big") >> 2
    )
