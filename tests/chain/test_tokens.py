from dataclasses import replace

import pytest
from eth_abi import encode

from tollway.chain import tokens
from tollway.chain.reader import Log
from tollway.identifiers import Address

TOKEN, OTHER = Address(b"\xc3" * 20), Address(b"\xc4" * 20)
ALICE, BOB = Address(b"\xa1" * 20), Address(b"\xb2" * 20)
NONCE = b"\x09" * 32


def pad(address: bytes) -> bytes:
    return bytes(12) + address


TRANSFER = Log(
    address=TOKEN,
    topics=(tokens.TRANSFER_TOPIC, pad(ALICE), pad(BOB)),
    payload=(10_000).to_bytes(32, "big"),
    removed=False,
)
USED = Log(
    address=TOKEN, topics=(tokens.AUTHORIZATION_USED_TOPIC, pad(ALICE), NONCE), payload=b"", removed=False
)


def test_topics_and_magic_are_the_published_constants() -> None:
    assert tokens.TRANSFER_TOPIC.hex() == "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    assert (
        tokens.AUTHORIZATION_USED_TOPIC.hex()
        == "98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"
    )
    assert tokens.ERC1271_MAGIC.hex() == "1626ba7e"


def test_a_transfer_is_read_with_its_parties_and_base_units() -> None:
    assert tokens.parse_transfers((TRANSFER, USED), token=TOKEN) == (
        tokens.Transfer(sender=ALICE, recipient=BOB, base_units=10_000),
    )


def test_every_transfer_counts_in_the_order_of_the_receipt() -> None:
    back = replace(TRANSFER, topics=(tokens.TRANSFER_TOPIC, pad(BOB), pad(ALICE)), payload=b"\xff" * 32)
    assert [transfer.base_units for transfer in tokens.parse_transfers((TRANSFER, back), token=TOKEN)] == [
        10_000,
        2**256 - 1,
    ]


@pytest.mark.parametrize(
    "spoof",
    [
        pytest.param({"address": OTHER}, id="emitted by another contract"),
        pytest.param({"removed": True}, id="removed by a reorg"),
        pytest.param({"topics": (*TRANSFER.topics, bytes(32))}, id="four topics, an ERC-721"),
        pytest.param({"topics": TRANSFER.topics[:2]}, id="two topics"),
        pytest.param({"topics": ()}, id="anonymous"),
        pytest.param({"topics": (NONCE, *TRANSFER.topics[1:])}, id="another event"),
        pytest.param({"payload": b""}, id="no payload"),
        pytest.param({"payload": bytes(31)}, id="31 bytes"),
        pytest.param({"payload": bytes(33)}, id="33 bytes"),
        pytest.param({"payload": bytes(64)}, id="two words"),
        pytest.param(
            {"topics": (tokens.TRANSFER_TOPIC, b"\x01" + pad(ALICE)[1:], pad(BOB))}, id="dirty sender"
        ),
        pytest.param(
            {"topics": (tokens.TRANSFER_TOPIC, pad(ALICE), bytes(11) + b"\x01" + BOB)}, id="dirty recipient"
        ),
        pytest.param({"topics": (tokens.TRANSFER_TOPIC, bytes(ALICE), pad(BOB))}, id="short topic"),
    ],
)
def test_what_is_not_exactly_a_transfer_of_the_token_is_left_out(spoof: dict[str, object]) -> None:
    assert tokens.parse_transfers((replace(TRANSFER, **spoof),), token=TOKEN) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(USED, {ALICE}, id="as EIP-3009 has it"),
        pytest.param(replace(USED, payload=b"odd"), {ALICE}, id="odd payload does not hide it"),
        pytest.param(replace(USED, topics=USED.topics[:2]), {ALICE}, id="a missing nonce does not hide it"),
        pytest.param(replace(USED, address=OTHER), set(), id="of another contract"),
        pytest.param(replace(USED, topics=(NONCE, *USED.topics[1:])), set(), id="another event"),
        pytest.param(replace(USED, topics=USED.topics[:1]), set(), id="nobody named"),
        pytest.param(TRANSFER, set(), id="a plain transfer"),
    ],
)
def test_authorizers_are_those_whose_authorisation_was_used(log: Log, expected: set[Address]) -> None:
    assert tokens.authorizers((log,), TOKEN) == expected


@pytest.mark.parametrize("signature", [b"", b"\x01", bytes(range(65)), b"\x07" * 96, b"\x07" * 4096])
def test_signature_calldata_is_what_an_abi_encoder_makes(signature: bytes) -> None:
    expected = tokens.ERC1271_MAGIC + encode(["bytes32", "bytes"], [NONCE, signature])
    assert tokens.encode_is_valid_signature(digest=NONCE, signature=signature) == expected


def test_a_digest_of_another_length_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        tokens.encode_is_valid_signature(digest=b"short", signature=b"")


def test_erc20_calldata_is_what_an_abi_encoder_makes() -> None:
    assert tokens.encode_transfer(recipient=BOB, base_units=77) == bytes.fromhex("a9059cbb") + encode(
        ["address", "uint256"], [str(BOB), 77]
    )
    assert tokens.encode_balance_of(BOB) == bytes.fromhex("70a08231") + encode(["address"], [str(BOB)])


@pytest.mark.parametrize("base_units", [-1, 2**256])
def test_an_amount_outside_256_bits_is_not_encoded(base_units: int) -> None:
    with pytest.raises(OverflowError):
        tokens.encode_transfer(recipient=BOB, base_units=base_units)


def test_a_balance_is_exactly_one_word() -> None:
    assert tokens.parse_uint256((5).to_bytes(32, "big")) == 5
    for payload in (b"", bytes(31), bytes(33)):
        with pytest.raises(ValueError, match="one word"):
            tokens.parse_uint256(payload)


@pytest.mark.parametrize(
    ("payload", "is_yes"),
    [
        (tokens.ERC1271_MAGIC + bytes(28), True),
        (tokens.ERC1271_MAGIC + bytes(28) + b"trailing", True),
        (tokens.ERC1271_MAGIC, False),
        (tokens.ERC1271_MAGIC + bytes(27) + b"\x01", False),
        (bytes(28) + tokens.ERC1271_MAGIC, False),
        (b"\x01" * 32, False),
        (bytes(31) + b"\x01", False),
        (b"", False),
    ],
)
def test_only_the_magic_word_means_yes(payload: bytes, is_yes: bool) -> None:
    assert tokens.is_signature_valid(payload) is is_yes
