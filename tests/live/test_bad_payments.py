"""Invalid payments by authorisation at a real gateway and a real chain: each has its code and its reason, none
reaches the provider, none is settled, and none prevents a valid one."""

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio
from yarl import URL

from tests.kit.authorization_payer import (
    DIALECTS,
    MPP,
    RECEIPTS,
    V1,
    V2,
    AuthorizationPayer,
    Header,
    Quote,
    bind_nonce,
    dress,
    encode_json,
    encode_text,
    undress,
)
from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.kit.payer import decode_header, encode_header
from tollway.ids import Address

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR_S = 3_600
AT_ONCE = 8
DEADLINE_S = 20.0
STRANGER = Address(b"\x5a" * 20)
_NUMBERS = itertools.count(1)

MALFORMED = (400, "payment_malformed")
MALFORMED_CREDENTIAL = (402, "payment_malformed")
"""Of MPP."""
UNSUPPORTED = (402, "payment_method_unsupported")
EXPIRED = (402, "payment_expired")
FAILED = (402, "payment_verification_failed")
INVALID = (400, "invalid_request")
USED = (409, "payment_already_used")

_EVM = "invalid_exact_evm_payload"
UNREADABLE = "invalid_payload"
BAD_CHALLENGE = "invalid_challenge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """One gateway that can settle, and the balances that must not change."""

    cluster: Any
    gateway: Any
    gas: Any
    provider: Any
    api_id: str

    async def customer(self) -> AuthorizationPayer:
        wallet = await self.cluster.wallet()
        return AuthorizationPayer(
            cluster=self.cluster, gateway=self.gateway, api_id=self.api_id, signer=wallet
        )

    async def balance(self, address: Address) -> int:
        return int(await self.cluster.driver.call(self.cluster.playground.token, "balanceOf", str(address)))

    async def gas_nonces(self) -> tuple[int, int]:
        """The number of mined and of pending transactions."""
        count = "eth_getTransactionCount"
        rpc, address = self.cluster.driver.rpc, str(self.gas.address)
        return int(await rpc(count, address, "latest"), 16), int(await rpc(count, address, "pending"), 16)

    async def what_may_not_move(self, payer: AuthorizationPayer) -> tuple[object, ...]:
        return (
            await payer.balance(),
            await self.balance(self.provider.address),
            await self.gas_nonces(),
            self.cluster.provider.seen_total,
            await self.finished_history(payer),
        )

    async def finished_history(self, payer: AuthorizationPayer) -> list[dict[str, Any]]:
        """The history after the ends of the responses are written, a moment after the responses."""

        async def find() -> tuple[list[dict[str, Any]]] | None:
            calls = await self.cluster.history(self.gateway, payer.signer)
            charged = (call for call in calls if call["payment"]["state"] == "charged")
            return (calls,) if all(call["responseBytes"] is not None for call in charged) else None

        (calls,) = await poll(find, deadline_s=30, what="the end of every answer")
        return calls


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(cluster: Any) -> AsyncIterator[Harness]:
    gas, provider = await cluster.wallets(2)
    settings = {"TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
    async with cluster.gateway(settings=settings) as gateway:
        api_id = await cluster.publish(gateway, provider)
        yield Harness(cluster=cluster, gateway=gateway, gas=gas, provider=provider, api_id=api_id)


def fresh_path() -> str:
    return f"/echo/bad-{next(_NUMBERS)}"


# ---- The rows: what is shown, and what is answered.

Show = Callable[[AuthorizationPayer, Quote], list[Header]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    show: Show
    answer: tuple[int, str]
    reason: str | None


def raw(dialect: str, value: bytes) -> Show:
    return lambda payer, quote: [dress(dialect, value)]


def signed(dialect: str, **changes: Any) -> Show:
    """A payment correctly signed for other values. A callable is called at signing."""

    def show(payer: AuthorizationPayer, quote: Quote) -> list[Header]:
        made = {name: change() if callable(change) else change for name, change in changes.items()}
        return [payer.show(quote, dialect, **made)]

    return show


def edited(dialect: str, *path: str, to: Any) -> Show:
    """A valid payment with one member changed after it was signed. A callable gets the old value; None removes the
    member."""

    def show(payer: AuthorizationPayer, quote: Quote) -> list[Header]:
        content = json.loads(json.dumps(payer.write(quote, dialect)))
        at = content
        for name in path[:-1]:
            at = at[name]
        if to is None:
            del at[path[-1]]
        else:
            at[path[-1]] = to(at[path[-1]]) if callable(to) else to
        return [dress(dialect, encode_header(content, is_urlsafe=dialect == MPP))]

    return show


def both(*dialects: str) -> Show:
    return lambda payer, quote: [payer.show(quote, dialect) for dialect in dialects]


def with_signature(dialect: str, bend: Callable[[bytes], bytes]) -> Show:
    def show(payer: AuthorizationPayer, quote: Quote) -> list[Header]:
        honest = payer.sign(quote, dialect)
        return [payer.show(quote, dialect, **_all_of(honest, bend(bytes.fromhex(honest.signature_hex[2:]))))]

    return show


def _all_of(honest: Any, signature: bytes) -> dict[str, Any]:
    names = ("valid_after", "valid_before", "nonce")
    return {**{name: getattr(honest, name) for name in names}, "signature": signature}


def under_other_domain(dialect: str, **changes: Any) -> Show:
    def show(payer: AuthorizationPayer, quote: Quote) -> list[Header]:
        honest = payer.sign(quote, dialect)
        other = replace(honest, domain={**honest.domain, **changes})
        return [payer.show(quote, dialect, **_all_of(honest, bytes.fromhex(other.signature_hex[2:])))]

    return show


def high_s(signature: bytes) -> bytes:
    """The same signature with the high s, which no wallet makes."""
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    s = order - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes([55 - signature[64]])


def bend_request(**changes: Any) -> Callable[[str], str]:
    """Replaces `request` inside an MPP challenge."""

    def bend(value: str) -> str:
        request = decode_header(value.encode())
        chain_id = changes.pop("chain_id", None)
        if chain_id is not None:
            request["methodDetails"]["chainId"] = chain_id
        return encode_header({**request, **changes}, is_urlsafe=True).decode()

    return bend


def now(offset_s: int) -> Callable[[], int]:
    return lambda: int(time.time()) + offset_s


def swap_last(text: str) -> str:
    return text[:-1] + ("A" if text[-1] != "A" else "B")


def unreadable(dialect: str) -> tuple[int, str]:
    """400 without terms on x402 (its HTTP transport), 402 with terms on MPP."""
    return MALFORMED_CREDENTIAL if dialect == MPP else MALFORMED


def garbage_rows(dialect: str) -> list[Row]:
    """Unreadable payments in every dialect."""
    inside = ("payload",) if dialect == MPP else ("payload", "authorization")
    values = {
        "nothing at all": b"",
        "no base64": b"%%%~~~",
        "base64 of nothing readable": encode_text("\x00\x01 not json"),
        "base64 of a cut object": encode_text('{"x402Version": 2, "payload": {'),
        "base64 of a list": encode_json([1, 2]),
        "base64 of null": encode_json(None),
        "base64 of bytes that are no UTF-8": b"/////w==",
        "a tower of objects": encode_text('{"a":' * 2_000 + "1" + "}" * 2_000),
        "a header of 12 KiB": b"QUFB" * 3_072,
    }
    members: dict[str, tuple[str, Any]] = {
        "no payer": ("from", None),
        "a payer of 19 bytes": ("from", "0x" + "11" * 19),
        "a payer with a wrong checksum": ("from", "0xF39fd6e51aad88F6F4ce6aB8827279cffFb92266"),
        "no recipient": ("to", None),
        "a number for an amount": ("value", PRICE_UNITS),
        "a negative amount": ("value", "-10000"),
        "an amount in hex": ("value", "0x2710"),
        "an amount with a point": ("value", "10000.0"),
        "an amount beyond uint256": ("value", str(2**256)),
        "an amount in other digits": ("value", "１００００"),
        "times that are words": ("validBefore", "tomorrow"),
        "a nonce of 31 bytes": ("nonce", "0x" + "11" * 31),
        "no nonce": ("nonce", None),
    }
    rows = [
        Row(name=name, show=raw(dialect, value), answer=unreadable(dialect), reason=UNREADABLE)
        for name, value in values.items()
    ]
    rows += [
        Row(
            name=name,
            show=edited(dialect, *inside, member, to=to),
            answer=unreadable(dialect),
            reason=UNREADABLE,
        )
        for name, (member, to) in members.items()
    ]
    changes: list[tuple[str, tuple[str, ...], Any]] = [
        ("no payload", ("payload",), None),
        ("a payload that is text", ("payload",), "0x00"),
        ("no signature", ("payload", "signature"), None),
        ("a signature that is no hex", ("payload", "signature"), "0xzz"),
        ("a signature of 5 KiB", ("payload", "signature"), "0x" + "11" * 5_120),
    ]
    return rows + [
        Row(name=name, show=edited(dialect, *path, to=to), answer=unreadable(dialect), reason=UNREADABLE)
        for name, path, to in changes
    ]


def signed_rows(dialect: str) -> list[Row]:
    """Readable payments that do not meet the requirement, in every dialect."""
    signature = f"{_EVM}_signature"
    rows: list[tuple[str, Show, tuple[int, str], str]] = [
        ("another payTo", signed(dialect, to=STRANGER), FAILED, f"{_EVM}_recipient_mismatch"),
        ("a unit less", signed(dialect, value=PRICE_UNITS - 1), FAILED, f"{_EVM}_authorization_value_mismatch"),
        ("a unit more", signed(dialect, value=PRICE_UNITS + 1), FAILED, f"{_EVM}_authorization_value_mismatch"),
        ("no amount", signed(dialect, value=0), FAILED, f"{_EVM}_authorization_value_mismatch"),
        ("expired", signed(dialect, valid_before=now(-1)), EXPIRED, f"{_EVM}_authorization_valid_before"),
        ("expires before it can be settled", signed(dialect, valid_before=now(45)), EXPIRED, f"{_EVM}_authorization_valid_before"),
        ("not yet valid", signed(dialect, valid_after=now(HOUR_S), valid_before=now(2 * HOUR_S)), FAILED, f"{_EVM}_authorization_valid_after"),
        ("valid for ever", signed(dialect, valid_before=2**256 - 1), FAILED, f"{_EVM}_authorization_valid_before_too_large"),
        ("another wallet's name", signed(dialect, payer=STRANGER), FAILED, signature),
        ("signed for another chain", under_other_domain(dialect, chainId=8453), FAILED, signature),
        ("signed for another token", under_other_domain(dialect, verifyingContract=str(STRANGER)), FAILED, signature),
        ("signed for another name", under_other_domain(dialect, name="USD Coin"), FAILED, signature),
        ("a bent signature", with_signature(dialect, lambda s: bytes([s[0] ^ 1]) + s[1:]), FAILED, signature),
        ("a signature in its other form", with_signature(dialect, high_s), FAILED, signature),
        ("a signature without its v", with_signature(dialect, lambda s: s[:64]), FAILED, signature),
        ("a signature with an odd v", with_signature(dialect, lambda s: s[:64] + b"\x05"), FAILED, signature),
        ("a signature of zeros", with_signature(dialect, lambda s: bytes(65)), FAILED, signature),
    ]  # fmt: skip
    return [Row(name=name, show=show, answer=answer, reason=reason) for name, show, answer, reason in rows]


def v2_rows() -> list[Row]:
    network = ("accepted", "network")
    return [
        Row(name="v1 in the v2 header", show=lambda p, q: [(p.show(q, V2)[0], p.show(q, V1)[1])], answer=UNSUPPORTED, reason="invalid_x402_version"),
        Row(name="version as text", show=edited(V2, "x402Version", to="2"), answer=MALFORMED, reason=UNREADABLE),
        Row(name="no version", show=edited(V2, "x402Version", to=None), answer=MALFORMED, reason=UNREADABLE),
        Row(name="no accepted", show=edited(V2, "accepted", to=None), answer=MALFORMED, reason=UNREADABLE),
        Row(name="another network", show=edited(V2, *network, to="eip155:8453"), answer=UNSUPPORTED, reason="invalid_network"),
        Row(name="a network of another kind", show=edited(V2, *network, to="solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"), answer=UNSUPPORTED, reason="invalid_network"),
        Row(name="a network in v1's words", show=edited(V2, *network, to="base-sepolia"), answer=UNSUPPORTED, reason="invalid_network"),
        Row(name="unknown scheme", show=edited(V2, "accepted", "scheme", to="upto"), answer=UNSUPPORTED, reason="unsupported_scheme"),
        Row(name="a token without EIP-3009", show=edited(V2, "accepted", "asset", to=str(STRANGER)), answer=UNSUPPORTED, reason="invalid_exact_evm_eip3009_not_supported"),
        Row(name="Permit2", show=edited(V2, "payload", to={"signature": "0x11", "permit2Authorization": {}}), answer=UNSUPPORTED, reason="unsupported_transfer_method"),
        Row(name="an identifier that is none", show=edited(V2, "extensions", to={"payment-identifier": {"info": {"id": "short"}}}), answer=INVALID, reason="invalid_payment_identifier"),
    ]  # fmt: skip


def v1_rows() -> list[Row]:
    return [
        Row(name="v2 in the v1 header", show=lambda p, q: [(p.show(q, V1)[0], p.show(q, V2)[1])], answer=UNSUPPORTED, reason="invalid_x402_version"),
        Row(name="another network", show=edited(V1, "network", to="base"), answer=UNSUPPORTED, reason="invalid_network"),
        Row(name="a network that nobody knows", show=edited(V1, "network", to="moonbase"), answer=UNSUPPORTED, reason="invalid_network"),
        Row(name="a network in v2's words", show=edited(V1, "network", to="eip155:84532"), answer=UNSUPPORTED, reason="invalid_network"),
        Row(name="unknown scheme", show=edited(V1, "scheme", to="upto"), answer=UNSUPPORTED, reason="unsupported_scheme"),
    ]  # fmt: skip


def mpp_rows() -> list[Row]:
    challenge = ("challenge",)
    rows = [
        Row(name="no challenge", show=edited(MPP, *challenge, to=None), answer=MALFORMED_CREDENTIAL, reason=UNREADABLE),
        Row(name="a challenge whose request is garbage", show=edited(MPP, *challenge, "request", to="%%%"), answer=MALFORMED_CREDENTIAL, reason=UNREADABLE),
        Row(name="another method", show=edited(MPP, *challenge, "method", to="tempo"), answer=UNSUPPORTED, reason="method_unsupported"),
        Row(name="another intent", show=edited(MPP, *challenge, "intent", to="session"), answer=UNSUPPORTED, reason="method_unsupported"),
        Row(name="a transaction for an authorisation", show=edited(MPP, "payload", "type", to="transaction"), answer=UNSUPPORTED, reason="method_unsupported"),
        Row(name="a nonce that is not the challenge's", show=signed(MPP, nonce=lambda: secrets.token_bytes(32)), answer=FAILED, reason="invalid_challenge_nonce"),
    ]  # fmt: skip
    tampered: dict[str, Any] = {
        "id": swap_last,
        "realm": "elsewhere.example",
        "expires": "2099-01-01T00:00:00.000Z",
        "opaque": "e30",
        "digest": "sha-256=:AAAA:",
    }
    rows += [
        Row(
            name=f"{member} was tampered with",
            show=lambda p, q, member=member, to=to: show_tampered(p, q, **{member: to}),
            answer=FAILED,
            reason=BAD_CHALLENGE,
        )
        for member, to in tampered.items()
    ]
    requests: dict[str, dict[str, Any]] = {
        "amount": {"amount": "1"},
        "recipient": {"recipient": str(STRANGER)},
        "currency": {"currency": str(STRANGER)},
        "network": {"chain_id": 8453},
    }
    return rows + [
        Row(
            name=f"{name} of the request was tampered with",
            show=lambda p, q, bend=bend: show_tampered(p, q, request=bend_request(**bend)),
            answer=FAILED,
            reason=BAD_CHALLENGE,
        )
        for name, bend in requests.items()
    ]


def show_tampered(payer: AuthorizationPayer, quote: Quote, **changes: Any) -> list[Header]:
    """Sends a payment whose nonce and signature match the tampered challenge."""
    made = {
        name: change(quote.challenge.get(name, "")) if callable(change) else change
        for name, change in changes.items()
    }
    challenge = {**quote.challenge, **made}
    other = replace(quote, challenge=challenge)
    return [payer.show(other, MPP, nonce=bind_nonce(challenge))]


EXTRA = {
    V2: ("note", "accepted.more", "payload.permit2Authorization", "payload.authorization.chainId"),
    V1: ("accepted", "extensions", "payload.value", "payload.authorization.token"),
    MPP: ("note", "challenge.amount", "payload.token"),
}


def extra_rows(dialect: str) -> list[Row]:
    return [
        Row(
            name=f"an extra member {path}",
            show=edited(dialect, *path.split("."), to={"any": 1}),
            answer=unreadable(dialect),
            reason=UNREADABLE,
        )
        for path in EXTRA[dialect]
    ]


def rail_rows() -> list[Row]:
    rows = {
        "v2 and v1": both(V2, V1),
        "v2 and MPP": both(V2, MPP),
        "v1 and MPP": both(V1, MPP),
        "all three": both(V2, V1, MPP),
        "v2 and the hash of a transaction": lambda p, q: [p.show(q, V2), *plain(p.signer, _SOME_TX)],
        "garbage and a good one": lambda p, q: [dress(V1, b"%%%"), p.show(q, V2)],
    }
    doubled = {"v2 twice": both(V2, V2), "v1 twice": both(V1, V1), "MPP twice": both(MPP, MPP)}
    return [
        Row(name=name, show=show, answer=INVALID, reason=reason)
        for rows, reason in ((rows, "more_than_one_rail"), (doubled, None))
        for name, show in rows.items()
    ]


_SOME_TX: Any = "0x" + "ab" * 32


def all_rows() -> list[Any]:
    by_dialect = {
        V2: garbage_rows(V2) + signed_rows(V2) + v2_rows(),
        V1: garbage_rows(V1) + signed_rows(V1) + v1_rows(),
        MPP: garbage_rows(MPP) + signed_rows(MPP) + mpp_rows(),
    }
    rows = [
        pytest.param(dialect, row, id=f"{dialect}: {row.name}")
        for dialect, rows in by_dialect.items()
        for row in rows + extra_rows(dialect)
    ]
    return rows + [pytest.param(V2, row, id=f"rails: {row.name}") for row in rail_rows()]


@pytest.mark.parametrize(("dialect", "row"), all_rows())
async def test_a_bad_payment_is_refused_with_its_reason_and_moves_nothing(
    harness: Harness, dialect: str, row: Row
) -> None:
    payer, path = await harness.customer(), fresh_path()
    quote = await payer.quote(path)
    before = await harness.what_may_not_move(payer)

    reply = await payer.call(path, row.show(payer, quote))

    assert ((reply.status, reply.code), reply.json.get("reason")) == (row.answer, row.reason), reply.body
    assert await harness.what_may_not_move(payer) == before
    check_terms(reply)
    good = await payer.pay(path, dialect)
    assert (good.status, good.state) == (200, "charged")
    assert RECEIPTS[dialect] in good.headers
    assert harness.cluster.provider.count(path) == 1


def check_terms(reply: Any) -> None:
    """A 402 has the terms in every dialect; every other response requests no payment."""
    assert reply.state == "none"
    assert not any(name in reply.headers for name in ("X-PAYMENT-RESPONSE", "Payment-Receipt"))
    if reply.status != 402:
        assert not reply.asks_for_money
        return
    assert Quote.read(reply).accepted["amount"] == str(PRICE_UNITS)
    assert reply.headers["Cache-Control"] == "no-store"


# ---- What needs more than one header.


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The ways to use a nonce, and the response afterwards."""

    name: str
    spend: Callable[[Harness, AuthorizationPayer, Quote, Header], Awaitable[object]]
    reason: str


async def by_a_call(harness: Harness, payer: AuthorizationPayer, quote: Quote, header: Header) -> None:
    reply = await payer.call(quote_path(quote), [header])
    assert reply.status == 200, reply.body


def quote_path(quote: Quote) -> str:
    return str(quote.required["resource"]["url"]).partition("/gateway/")[2].partition("/")[2].join(("/", ""))


async def by_somebody_else(harness: Harness, payer: AuthorizationPayer, quote: Quote, header: Header) -> None:
    """Another account sends the authorisation to the chain."""
    payload = undress(header)["payload"]
    fields = payload.get("authorization", payload)
    types = "(address,address,uint256,uint256,uint256,bytes32,bytes)"
    values = [fields["from"], fields["to"], *(int(fields[n]) for n in ("value", "validAfter", "validBefore"))]
    arguments = (*values, bytes.fromhex(fields["nonce"][2:]), bytes.fromhex(payload["signature"][2:]))
    token = harness.cluster.playground.token
    tx_hash = await harness.cluster.driver.transact(
        token, "transferWithAuthorization" + types, *arguments, key=harness.provider.key
    )
    assert (await harness.cluster.driver.wait_receipt(tx_hash)).succeeded


USES = [
    Use(name="a call", spend=by_a_call, reason="authorization_used"),
    Use(name="somebody else", spend=by_somebody_else, reason="invalid_exact_evm_nonce_already_used"),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.name)
async def test_a_used_nonce_buys_nothing_and_gets_no_402(harness: Harness, dialect: str, use: Use) -> None:
    """The transfer was made, so no response requests another payment: neither for the same signature nor for another."""
    payer, path = await harness.customer(), fresh_path()
    quote = await payer.quote(path)
    honest = payer.sign(quote, dialect)
    same = {name: getattr(honest, name) for name in ("valid_after", "valid_before", "nonce")}
    header = payer.show(quote, dialect, **same)
    await use.spend(harness, payer, quote, header)
    before = await harness.what_may_not_move(payer)

    later = payer.show(quote, dialect, **{**same, "valid_before": honest.valid_before + 1})
    replies = [await payer.call(path, [shown], method="POST") for shown in (header, later) if dialect != MPP]
    replies += [await payer.call(path, [shown]) for shown in (later,)]

    for reply in replies:
        assert (reply.status, reply.code) == USED, reply.body
        assert reply.json.get("reason") == use.reason
        assert not reply.asks_for_money
    assert await harness.what_may_not_move(payer) == before
    assert (await payer.pay(path, dialect)).status == 200


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_wallet_with_less_than_the_price_is_refused(harness: Harness, dialect: str) -> None:
    payer, path = await harness.customer(), fresh_path()
    await harness.cluster.send_tokens(payer.signer, STRANGER, await payer.balance() - PRICE_UNITS + 1)
    before = await harness.what_may_not_move(payer)

    reply = await payer.pay(path, dialect)

    assert ((reply.status, reply.code), reply.json["reason"]) == (FAILED, "insufficient_balance")
    check_terms(reply)
    assert await harness.what_may_not_move(payer) == before
    await harness.cluster.send_tokens(harness.provider, payer.address, 1)
    assert (await payer.pay(path, dialect)).status == 200


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_listing_in_a_currency_without_authorisations_takes_none(
    harness: Harness, dialect: str
) -> None:
    payer = await harness.customer()
    quote = await payer.quote(fresh_path())
    native = await harness.cluster.publish(
        harness.gateway, harness.provider, name="In ether", currency="ETH", pricePerRequest="0.00000001"
    )
    before = await harness.what_may_not_move(payer)
    reply = await replace(payer, api_id=native).call("/echo", [payer.show(quote, dialect)])
    if dialect == MPP:  # its challenge is of another listing, so nothing else is checked
        assert ((reply.status, reply.code), reply.json["reason"]) == (FAILED, BAD_CHALLENGE)
    else:
        assert ((reply.status, reply.code), reply.json["reason"]) == (UNSUPPORTED, "invalid_network")
    assert "PAYMENT-REQUIRED" not in reply.headers
    assert "WWW-Authenticate" not in reply.headers
    assert [option["rail"] for option in reply.json["payment"]["options"]] == ["tx"]
    assert await harness.what_may_not_move(payer) == before


ROUTES: dict[str, tuple[str, str, bool]] = {
    "another path": ("GET", "/elsewhere", False),
    "another query": ("GET", "?city=Wien", False),
    "another method": ("POST", "", False),
    "another listing": ("GET", "", True),
}


@pytest.mark.parametrize("route", ROUTES, ids=str)
async def test_a_challenge_is_good_for_its_own_route_alone(harness: Harness, route: str) -> None:
    payer, path = await harness.customer(), fresh_path()
    method, more, is_elsewhere = ROUTES[route]
    header = payer.show(await payer.quote(path), MPP)
    shown_to = payer
    if is_elsewhere:
        twin = await harness.cluster.publish(
            harness.gateway, harness.provider, name="As dear, to the same wallet"
        )
        shown_to = replace(payer, api_id=twin)
    before = await harness.what_may_not_move(payer)

    reply = await shown_to.call(path + more, [header], method=method)

    assert ((reply.status, reply.code), reply.json["reason"]) == (FAILED, BAD_CHALLENGE)
    assert await harness.what_may_not_move(payer) == before
    assert (await payer.call(path, [header])).status == 200, "where it belongs it is as good as before"


@pytest.mark.parametrize("credential", ["", " ", "%%%", 'id="x", realm="y"', "AAAA AAAA", "e30", "\xff\xfe"])
async def test_a_credential_that_is_garbage_is_a_402_with_terms(harness: Harness, credential: str) -> None:
    """Never 401, because clients would request a password, and never 500."""
    payer, path = await harness.customer(), fresh_path()
    before = await harness.what_may_not_move(payer)
    for scheme in ("Payment", "payment", "PAYMENT"):
        reply = await payer.call(path, [("Authorization", f"{scheme} {credential}")])
        assert ((reply.status, reply.code), reply.json["reason"]) == (MALFORMED_CREDENTIAL, UNREADABLE), (
            reply.body
        )
        check_terms(reply)
    assert await harness.what_may_not_move(payer) == before
    assert (await payer.pay(path, MPP)).status == 200


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"Authorization: Payment \xff\xfe", 402),
        (b"PAYMENT-SIGNATURE: \xff\xfe", 400),
        (b"X-PAYMENT: \xc3", 400),
    ],
)
async def test_a_payment_that_is_no_text_is_unreadable(harness: Harness, line: bytes, status: int) -> None:
    """Written by hand, because client libraries would encode it."""
    payer, path = await harness.customer(), fresh_path()
    before = await harness.what_may_not_move(payer)
    base = URL(harness.gateway.base_url)
    reader, writer = await asyncio.open_connection(base.host, base.port)
    try:
        target = f"/api/v2/gateway/{harness.api_id}{path}"
        writer.write(f"GET {target} HTTP/1.1\r\nHost: {base.authority}\r\nConnection: close\r\n".encode())
        writer.write(line + b"\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    problem = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])
    assert int(head.split(b" ")[1]) == status
    assert (problem["code"], problem["reason"]) == ("payment_malformed", UNREADABLE)
    assert ("payment" in problem, b"payment-required:" in head.lower()) == (status == 402,) * 2
    assert await harness.what_may_not_move(payer) == before


CLAIMS: dict[str, Callable[[dict[str, Any]], object]] = {
    V2: lambda content: (
        content["accepted"].update(
            amount="1", payTo=str(STRANGER), maxTimeoutSeconds=9_999, extra={"name": "x", "more": [None]}
        ),
        content.update(extensions={"nobody-knows": {"info": {}}}, resource={"url": "https://elsewhere.example"}),
    ),
    MPP: lambda content: (
        content.update(source="did:pkh:eip155:1:0x0"),
        content["challenge"].update(description="x"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dialect", CLAIMS)
async def test_unsigned_fields_decide_nothing(harness: Harness, dialect: str) -> None:
    """Later clients use the open members, and callers can write anything there: only the signed values are paid,
    once."""
    payer, path = await harness.customer(), fresh_path()
    before = await payer.balance(), await harness.balance(harness.provider.address)
    reply = await payer.pay(path, dialect, edit=CLAIMS[dialect])
    assert (reply.status, reply.state) == (200, "charged"), reply.body
    assert harness.cluster.provider.count(path) == 1
    after = await payer.balance(), await harness.balance(harness.provider.address)
    assert after == (before[0] - PRICE_UNITS, before[1] + PRICE_UNITS)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_one_wallet_buys_the_same_call_many_times_at_once(harness: Harness, dialect: str) -> None:
    """Each request gets its own terms and signs its own authorisation, all within one second."""
    payer, path = await harness.customer(), fresh_path()
    before = await payer.balance()
    replies = await asyncio.gather(*(payer.pay(path, dialect) for _ in range(AT_ONCE)))
    assert [reply.status for reply in replies] == [200] * AT_ONCE
    assert harness.cluster.provider.count(path) == AT_ONCE
    assert await payer.balance() == before - AT_ONCE * PRICE_UNITS
