"""Invalid payments by authorisation that a real server or a real token decides: each has its code and its reason, none
reaches the provider, none is settled, and none prevents a valid one. Every other refusal is a row of
`gateway/test_problems_authorizations`, and stands in the transcripts in each dialect."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio
from yarl import URL

from tests.kit.authorization_payer import (
    DIALECTS,
    MPP,
    V2,
    AuthorizationPayer,
    Header,
    Quote,
    undress,
)
from tests.kit.gateway_cluster import PRICE_UNITS
from tests.kit.gateway_process import poll
from tests.kit.waits import DEADLINE_S
from tollway.ids import Address

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_ONCE = 8
STRANGER = Address(b"\x5a" * 20)
_NUMBERS = itertools.count(1)

UNSUPPORTED = (402, "payment_method_unsupported")
FAILED = (402, "payment_verification_failed")
USED = (409, "payment_already_used")

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

        (calls,) = await poll(find, what="the end of every answer")
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


async def test_a_wallet_with_less_than_the_price_is_refused(harness: Harness) -> None:
    payer, path = await harness.customer(), fresh_path()
    await harness.cluster.send_tokens(payer.signer, STRANGER, await payer.balance() - PRICE_UNITS + 1)
    before = await harness.what_may_not_move(payer)

    reply = await payer.pay(path, V2)

    assert ((reply.status, reply.code), reply.json["reason"]) == (FAILED, "insufficient_balance")
    check_terms(reply)
    assert await harness.what_may_not_move(payer) == before
    await harness.cluster.send_tokens(harness.provider, payer.address, 1)
    assert (await payer.pay(path, V2)).status == 200


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


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_one_wallet_buys_the_same_call_many_times_at_once(harness: Harness, dialect: str) -> None:
    """Each request gets its own terms and signs its own authorisation, all within one second."""
    payer, path = await harness.customer(), fresh_path()
    before = await payer.balance()
    replies = await asyncio.gather(*(payer.pay(path, dialect) for _ in range(AT_ONCE)))
    assert [reply.status for reply in replies] == [200] * AT_ONCE
    assert harness.cluster.provider.count(path) == AT_ONCE
    assert await payer.balance() == before - AT_ONCE * PRICE_UNITS
