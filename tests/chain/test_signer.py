"""The gas key signs the given fields, and never exposes its secret."""

from collections.abc import Callable
from typing import Any

import pytest
import rlp
from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes
from hypothesis import given
from hypothesis import strategies as st

from tollway.chain.signer import (
    GasKey,
    SignedTransaction,
    TransactionFields,
    decode_item,
    encode_item,
    read_transaction,
)
from tollway.ids import Address, ChainId, keccak256

SECRET = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"
TOKEN = Address(b"\xc3" * 20)


def sign(key: GasKey, **changes: object) -> SignedTransaction:
    fields = {
        "chain_id": ChainId(84532),
        "nonce": 7,
        "to": TOKEN,
        "calldata": b"\x01\x02",
        "gas": 90_000,
        "max_fee_wei": 3_000,
        "tip_wei": 1_000,
    }
    return key.sign(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [SECRET, "0x" + SECRET, SECRET.upper()])
def test_parses_a_key_with_or_without_its_prefix(text: str) -> None:
    assert GasKey.parse(text).address == Address.parse("0x2c7536E3605D9C16a7a3D7b1898e529396a65c23")


@pytest.mark.parametrize(
    "text",
    ["", "0x", SECRET[:-1], SECRET + "0", "g" + SECRET[1:], " " + SECRET[1:], "0" * 64, "f" * 64, "٣" * 64],
    ids=["empty", "prefix", "short", "long", "not hex", "space", "zero", "above the order", "other digits"],
)
def test_an_invalid_key_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="key") as caught:
        GasKey.parse(text)
    assert len(text) < 10 or text not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_key_never_shows_its_secret() -> None:
    key = GasKey.parse(SECRET)
    shown = f"{key} {key!r} {[key]} {sign(key)!r}"
    assert SECRET not in shown.lower()
    assert str(int(SECRET, 16)) not in shown
    assert str(key.address) in repr(key)


def test_a_transaction_has_the_given_fields_and_no_value() -> None:
    key = GasKey.parse(SECRET)
    signed = sign(key)
    fields = TypedTransaction.from_bytes(HexBytes(signed.raw)).as_dict()
    assert (fields["type"], fields["chainId"], fields["nonce"], fields["gas"]) == (2, 84532, 7, 90_000)
    assert (fields["maxFeePerGas"], fields["maxPriorityFeePerGas"]) == (3_000, 1_000)
    assert (fields["value"], bytes(HexBytes(fields["data"]))) == (0, b"\x01\x02")
    assert bytes(fields["to"]) == TOKEN
    assert Account.recover_transaction(signed.raw) == str(key.address)


def test_the_hash_is_known_before_broadcasting() -> None:
    signed = sign(GasKey.parse(SECRET))
    assert signed.tx_hash == keccak256(signed.raw)


def test_the_tip_never_exceeds_the_whole_price() -> None:
    raw = sign(GasKey.parse(SECRET), max_fee_wei=500).raw
    assert TypedTransaction.from_bytes(HexBytes(raw)).as_dict()["maxPriorityFeePerGas"] == 500


def test_signing_is_deterministic() -> None:
    assert sign(GasKey.parse(SECRET)) == sign(GasKey.parse(SECRET))
    assert sign(GasKey.parse(SECRET)).tx_hash != sign(GasKey.parse(SECRET), max_fee_wei=3_001).tx_hash


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nonce": 0, "calldata": b"", "tip_wei": 0},
        {"nonce": 127, "gas": 128, "calldata": bytes(55)},
        {
            "nonce": 2**32,
            "chain_id": ChainId(1),
            "max_fee_wei": 2**70,
            "tip_wei": 2**70,
            "calldata": bytes(56),
        },
        {"calldata": bytes(range(256)) * 5},
    ],
)
def test_a_signed_transaction_equals_that_of_eth_account(changes: dict[str, object]) -> None:
    asked = {
        "chain_id": 84532,
        "nonce": 7,
        "calldata": b"\x01\x02",
        "gas": 90_000,
        "max_fee_wei": 3_000,
        "tip_wei": 1_000,
        **changes,
    }
    expected = Account.from_key(SECRET).sign_transaction(
        {
            "type": 2,
            "chainId": asked["chain_id"],
            "nonce": asked["nonce"],
            "to": bytes(TOKEN),
            "value": 0,
            "data": asked["calldata"],
            "gas": asked["gas"],
            "maxFeePerGas": asked["max_fee_wei"],
            "maxPriorityFeePerGas": asked["tip_wei"],
        }
    )
    signed = sign(GasKey.parse(SECRET), **changes)
    assert signed.raw == bytes(expected.raw_transaction)
    assert signed.tx_hash == bytes(expected.hash)


@pytest.mark.parametrize("calldata", [b"", b"\x01\x02", b"\x00" * 300], ids=len)
def test_reads_back_a_signed_transaction(calldata: bytes) -> None:
    signed = sign(GasKey.parse(SECRET), calldata=calldata, nonce=0)
    assert read_transaction(signed.raw) == TransactionFields(
        nonce=0, to=TOKEN, calldata=calldata, gas=90_000, max_fee_wei=3_000, tip_wei=1_000
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: b"",
        lambda raw: b"\x01" + raw[1:],
        lambda raw: raw[:-1],
        lambda raw: raw + b"\x00",
        lambda raw: b"\x02\x80",
        lambda raw: b"\x02\x8c" + b"\x01" * 12,
        lambda raw: b"\x02\xc2\x01\x02",
        lambda raw: b"\x02\xcc" + b"\xc0" * 12,
    ],
    ids=["nothing", "another type", "cut", "longer", "no list", "twelve bytes", "too few", "lists"],
)
def test_refuses_other_transactions_than_its_own(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match="transaction"):
        read_transaction(spoil(sign(GasKey.parse(SECRET)).raw))


# ---- RLP as other implementations encode it; other encodings are refused.


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
