from dataclasses import replace

import pytest
from eth_abi import encode

from tests.kit.chain import MemoryChain
from tollway.chain import tokens
from tollway.chain.port import ContractResult, Log
from tollway.chain.tokens import DomainFault, find_domain_fault
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId
from tollway.money import Asset, TokenDomain

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


def test_topics_and_selectors_are_the_published_constants() -> None:
    assert tokens.TRANSFER_TOPIC.hex() == "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    assert (
        tokens.AUTHORIZATION_USED_TOPIC.hex()
        == "98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"
    )
    assert tokens.ERC1271_MAGIC.hex() == "1626ba7e"


def test_a_transfer_is_read_with_its_parties_and_base_units() -> None:
    assert tokens.parse_transfers((TRANSFER, USED), token=TOKEN) == (
        tokens.TokenTransfer(sender=ALICE, recipient=BOB, base_units=10_000),
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
def test_logs_other_than_transfers_of_the_token_are_left_out(spoof: dict[str, object]) -> None:
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
def test_authorizers_are_the_payers_of_used_authorisations(log: Log, expected: set[Address]) -> None:
    assert tokens.find_authorizers((log,), TOKEN) == expected


@pytest.mark.parametrize("signature", [b"", b"\x01", bytes(range(65)), b"\x07" * 96, b"\x07" * 4096])
def test_signature_calldata_equals_that_of_an_abi_encoder(signature: bytes) -> None:
    expected = tokens.ERC1271_MAGIC + encode(["bytes32", "bytes"], [NONCE, signature])
    assert tokens.encode_is_valid_signature(digest=NONCE, signature=signature) == expected


def test_a_digest_of_another_length_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        tokens.encode_is_valid_signature(digest=b"short", signature=b"")


FIELDS = {
    "payer": ALICE,
    "payee": BOB,
    "base_units": 10_000,
    "valid_after": 5,
    "valid_before": 2**48,
    "nonce": NONCE,
}
FIELD_TYPES = ["address", "address", "uint256", "uint256", "uint256", "bytes32"]
FIELD_VALUES = [str(ALICE), str(BOB), 10_000, 5, 2**48, NONCE]


@pytest.mark.parametrize(("v", "normal"), [(0, 27), (1, 28), (27, 27), (28, 28)])
def test_an_ecdsa_signature_is_passed_in_three_parts_with_v_27_or_28(v: int, normal: int) -> None:
    r, s = b"\x0a" * 32, b"\x0b" * 32
    calldata = tokens.encode_transfer_with_authorization(**FIELDS, signature=r + s + bytes([v]))
    types, values = [*FIELD_TYPES, "uint8", "bytes32", "bytes32"], [*FIELD_VALUES, normal, r, s]
    assert calldata == bytes.fromhex("e3ee160e") + encode(types, values)


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        b"\x01",
        b"\x07" * 64,
        b"\x07" * 64 + b"\x02",
        b"\x07" * 64 + b"\x1d",
        b"\x07" * 66,
        b"\x07" * 4096,
    ],
    ids=["empty", "one byte", "64 bytes", "v of 2", "v of 29", "66 bytes", "4 KiB"],
)
def test_any_other_signature_is_passed_as_bytes(signature: bytes) -> None:
    calldata = tokens.encode_transfer_with_authorization(**FIELDS, signature=signature)
    expected = encode([*FIELD_TYPES, "bytes"], [*FIELD_VALUES, signature])
    assert calldata == bytes.fromhex("cf092995") + expected


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"nonce": bytes(31)}, ValueError),
        ({"base_units": -1}, OverflowError),
        ({"base_units": 2**256}, OverflowError),
        ({"valid_before": 2**256}, OverflowError),
    ],
)
def test_a_field_that_does_not_fit_its_word_is_not_encoded(change: dict[str, object], fault: type) -> None:
    with pytest.raises(fault):
        tokens.encode_transfer_with_authorization(**{**FIELDS, **change}, signature=b"")


def test_the_state_of_an_authorisation_is_read_by_payer_and_nonce() -> None:
    calldata = tokens.encode_authorization_state(payer=ALICE, nonce=NONCE)
    assert calldata == bytes.fromhex("e94a0102") + encode(["address", "bytes32"], [str(ALICE), NONCE])
    with pytest.raises(ValueError, match="32 bytes"):
        tokens.encode_authorization_state(payer=ALICE, nonce=b"short")


def test_the_getters_of_a_domain_have_their_published_selectors() -> None:
    assert tokens.encode_name().hex() == "06fdde03"
    assert tokens.encode_version().hex() == "54fd4d50"
    assert tokens.encode_domain_separator().hex() == "3644e515"


def test_the_domain_separator_of_usdc_equals_that_on_chain() -> None:
    usdc = Address.parse("0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48")
    domain = TokenDomain(name="USD Coin", version="2")
    separator = tokens.compute_domain_separator(domain, chain_id=ChainId(1), contract=usdc)
    assert separator.hex() == "06c37168a7db5138defc7866392bb87a741f9b3d104deb5094588ce041cae335"


@pytest.mark.parametrize("text", ["", "USD Coin", "x" * 31, "x" * 32, "Träger" * 20])
def test_parses_text_of_an_abi_encoder(text: str) -> None:
    assert tokens.parse_text(encode(["string"], [text])) == text


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(63),
        encode(["bytes32"], [b"MKR"]) * 2,
        encode(["string"], ["USD Coin"])[:70],
        encode(["string"], ["x" * 257]),
        encode(["bytes"], [b"\xff\xfe"]),
    ],
    ids=["empty", "too short", "a bytes32", "cut off", "too long", "not UTF-8"],
)
def test_refuses_other_payloads_than_text(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"string|codec"):
        tokens.parse_text(payload)


def test_a_bool_is_exactly_zero_or_one() -> None:
    assert tokens.parse_bool(encode(["bool"], [True])) is True
    assert tokens.parse_bool(encode(["bool"], [False])) is False
    for payload in (b"", b"\x01", encode(["uint256"], [2])):
        with pytest.raises(ValueError, match=r"bool|word"):
            tokens.parse_bool(payload)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(USED, ((ALICE, NONCE),), id="as EIP-3009 has it"),
        pytest.param(replace(USED, address=OTHER), (), id="of another contract"),
        pytest.param(replace(USED, removed=True), (), id="removed by a reorg"),
        pytest.param(replace(USED, payload=b"odd"), (), id="an odd payload"),
        pytest.param(replace(USED, topics=USED.topics[:2]), (), id="without its nonce"),
        pytest.param(replace(USED, topics=(*USED.topics, NONCE)), (), id="a topic too many"),
        pytest.param(replace(USED, topics=(USED.topics[0], b"\x01" * 32, NONCE)), (), id="a dirty address"),
        pytest.param(
            replace(USED, topics=(tokens.AUTHORIZATION_CANCELED_TOPIC, *USED.topics[1:])), (), id="cancelled"
        ),
        pytest.param(TRANSFER, (), id="a plain transfer"),
    ],
)
def test_a_used_authorisation_is_parsed_strictly(log: Log, expected: tuple[object, ...]) -> None:
    assert tokens.parse_authorizations_used((log,), token=TOKEN) == expected


OTHER_NONCE = b"\x0c" * 32
CANCELLED = replace(USED, topics=(tokens.AUTHORIZATION_CANCELED_TOPIC, *USED.topics[1:]))
USED_OTHER = replace(USED, topics=(*USED.topics[:2], OTHER_NONCE))
TO_OTHER = replace(TRANSFER, topics=(*TRANSFER.topics[:2], pad(OTHER)))
FOREIGN = replace(TRANSFER, address=OTHER)


@pytest.mark.parametrize(
    ("logs", "is_paid"),
    [
        pytest.param((USED, TRANSFER), True, id="Circle's order"),
        pytest.param((TRANSFER, USED), True, id="the other order"),
        pytest.param((USED, FOREIGN, TRANSFER), True, id="another contract's event between"),
        pytest.param((USED_OTHER, TRANSFER, USED, TRANSFER), True, id="two in one bundle, both paid"),
        pytest.param((TRANSFER,), False, id="no authorisation"),
        pytest.param((USED,), False, id="no transfer"),
        pytest.param((USED_OTHER, TRANSFER), False, id="another nonce"),
        pytest.param((CANCELLED, TRANSFER), False, id="cancelled beside a plain transfer"),
        pytest.param((USED, TO_OTHER), False, id="the nonce used for another payee"),
        pytest.param(
            (USED, replace(TRANSFER, payload=(9_999).to_bytes(32, "big"))), False, id="a smaller amount"
        ),
        pytest.param((USED, replace(TRANSFER, removed=True)), False, id="removed by a reorg"),
        pytest.param((USED, FOREIGN), False, id="another token's transfer"),
        pytest.param(
            (USED, TO_OTHER, USED_OTHER, TRANSFER),
            False,
            id="the transfer belongs to the other authorisation",
        ),
        pytest.param((USED, USED, TRANSFER), False, id="said twice"),
        pytest.param((USED, TRANSFER, USED), False, id="said twice, around its transfer"),
        pytest.param(
            (USED_OTHER, TRANSFER, USED, replace(TO_OTHER, removed=True), TRANSFER),
            True,
            id="a removed event between",
        ),
    ],
)
def test_a_receipt_settles_an_authorisation_by_its_own_transfer_only(
    logs: tuple[Log, ...], is_paid: bool
) -> None:
    settled = tokens.has_settled(logs, token=TOKEN, payer=ALICE, payee=BOB, base_units=10_000, nonce=NONCE)
    assert settled is is_paid


@pytest.mark.parametrize(
    ("log", "is_over"),
    [
        pytest.param(USED, True, id="used"),
        pytest.param(CANCELLED, True, id="cancelled"),
        pytest.param(USED_OTHER, False, id="another nonce"),
        pytest.param(replace(USED, address=OTHER), False, id="another token"),
        pytest.param(replace(USED, removed=True), False, id="removed by a reorg"),
        pytest.param(TRANSFER, False, id="a transfer"),
    ],
)
def test_an_authorisation_ends_by_its_use_or_its_cancellation(log: Log, is_over: bool) -> None:
    assert tokens.has_ended((log,), token=TOKEN, payer=ALICE, nonce=NONCE) is is_over


def test_erc20_calldata_equals_that_of_an_abi_encoder() -> None:
    assert tokens.encode_balance_of(BOB) == bytes.fromhex("70a08231") + encode(["address"], [str(BOB)])


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
def test_only_the_magic_word_confirms_a_signature(payload: bytes, is_yes: bool) -> None:
    assert tokens.is_signature_valid(payload) is is_yes


# ---- Compares the configured EIP-712 domain with that of the token.


CHAIN = ChainId(84532)
USDC_TOKEN = Address(b"\xc3" * 20)
DOMAIN = TokenDomain(name="USDC", version="2")
ASSET = Asset(chain_id=CHAIN, token=USDC_TOKEN, symbol="USDC", decimals=6, domain=DOMAIN)
SEPARATOR = tokens.compute_domain_separator(DOMAIN, chain_id=CHAIN, contract=USDC_TOKEN)
STATE = tokens.encode_authorization_state(payer=Address(20), nonce=bytes(32))
HONEST = {
    STATE: encode(["bool"], [False]),
    tokens.encode_domain_separator(): SEPARATOR,
    tokens.encode_name(): encode(["string"], ["USDC"]),
    tokens.encode_version(): encode(["string"], ["2"]),
}


def make_chain(**changes: bytes | None) -> MemoryChain:
    """`state`, `separator`, `name`, `version`: another result, or None for a function that the token lacks."""
    names = dict(zip(("state", "separator", "name", "version"), HONEST, strict=True))
    answers = {**HONEST, **{names[name]: answer for name, answer in changes.items()}}

    def token(calldata: bytes) -> ContractResult:
        answer = answers.get(calldata)
        return ContractResult(reverted=answer is None, payload=answer or b"")

    chain = MemoryChain(CHAIN)
    chain.deploy(CHAIN, USDC_TOKEN, token)
    return chain


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        pytest.param({}, None, id="as claimed"),
        pytest.param({"separator": b"\x01" * 32}, DomainFault.OTHER_DOMAIN, id="another separator"),
        pytest.param({"separator": None}, None, id="no separator, name and version as claimed"),
        pytest.param({"separator": b"short"}, None, id="an odd separator counts as none"),
        pytest.param(
            {"separator": None, "name": encode(["string"], ["USD Coin"])},
            DomainFault.OTHER_DOMAIN,
            id="another name",
        ),
        pytest.param(
            {"separator": None, "version": encode(["string"], ["1"])},
            DomainFault.OTHER_DOMAIN,
            id="another version",
        ),
        pytest.param({"separator": None, "name": None, "version": None}, None, id="it tells nothing"),
        pytest.param({"state": None}, DomainFault.NO_AUTHORIZATIONS, id="without EIP-3009"),
        pytest.param({"state": b""}, DomainFault.NO_AUTHORIZATIONS, id="a fallback that answers nothing"),
        pytest.param({"state": b"\x01" * 32}, DomainFault.NO_AUTHORIZATIONS, id="an answer that is no bool"),
    ],
)
async def test_the_configured_domain_is_compared_with_the_tokens(
    changes: dict[str, bytes | None], fault: DomainFault | None
) -> None:
    assert await find_domain_fault(make_chain(**changes), ASSET, deadline_s=60.0) is fault


async def test_an_address_without_code_takes_no_authorisations() -> None:
    fault = await find_domain_fault(MemoryChain(CHAIN), ASSET, deadline_s=60.0)
    assert fault is DomainFault.NO_AUTHORIZATIONS


@pytest.mark.parametrize(
    "asset",
    [
        Asset(chain_id=CHAIN, token=None, symbol="ETH", decimals=18),
        Asset(chain_id=CHAIN, token=USDC_TOKEN, symbol="DAI", decimals=18),
    ],
)
async def test_an_asset_without_a_domain_is_not_checked(asset: Asset) -> None:
    chain = make_chain()
    assert await find_domain_fault(chain, asset, deadline_s=60.0) is None
    assert chain.request_count == 0


async def test_an_unavailable_chain_raises_for_the_token() -> None:
    chain = make_chain()
    chain.disconnect(CHAIN)
    with pytest.raises(ChainUnavailable):
        await find_domain_fault(chain, ASSET, deadline_s=60.0)
