"""`GET /channels/{network}/{token}/{payTo}/{authorizer}`: what a client finds there, what is refused, and a refund over SQLite and a chain in memory."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from eth_account import Account

from tests.kit.channel_payer import ChannelPayer
from tests.kit.channel_refunds import DEPOSIT, DUE, FUNDS, TOKEN, RefundHarness
from tests.kit.databases import open_database
from tests.kit.payer import PAY_TO, USDC
from tests.kit.routes import PUBLIC_URL, code_of, make_app, make_context, open_client
from tollway.ids import Address, keccak256
from tollway.payments.channel_wire import ChannelReason
from tollway.web.api.channel_routes import RefundParts, channel_router

Json = dict[str, Any]
STRANGER = Account.from_key(keccak256(b"a stranger"))


class Routes:
    """The route over one channel of `payer`."""

    def __init__(self, refunds: RefundHarness) -> None:
        self.refunds = refunds
        self.payer = refunds.payer
        self.path = f"/api/v2/channels/{USDC.network}/{TOKEN}/{PAY_TO}/{self.payer.authorizer.address}"
        context = make_context(rules=refunds.rules, now_ms=refunds.read_clock)
        parts = RefundParts(ledger=refunds.ledger, networks=refunds.networks, refunds=refunds.refunds)
        self.client = open_client(make_app(context, channel_router(context, parts)))

    async def get(self, payment: Json | str | None = None, *, path: str | None = None) -> httpx.Response:
        headers = {}
        if payment is not None:
            shown = payment if isinstance(payment, str) else json.dumps(payment)
            headers["payment-signature"] = base64.b64encode(shown.encode()).decode()
        return await self.client.get(path or self.path, headers=headers)

    def refund_payment(self, ceiling: int, *, payer: ChannelPayer | None = None, **given: Any) -> Json:
        payer = payer or self.payer
        return payer.payment(payer.refund(ceiling=ceiling, **given))


@pytest.fixture
async def routes(sqlite_url: str) -> AsyncIterator[Routes]:
    async with open_database(sqlite_url) as database, RefundHarness(database).running() as refunds:
        it = Routes(refunds)
        async with it.client:
            yield it


def content_of(answer: httpx.Response, header: str) -> Json:
    content: Json = json.loads(base64.b64decode(answer.headers[header]))
    return content


async def unchanged(routes: Routes) -> bool:
    return (routes.refunds.sent_count, await routes.refunds.list_open()) == (0, ())


# ---- What is there.


async def test_without_a_payment_the_terms_offer_this_channel_alone(routes: Routes) -> None:
    answer = await routes.get()
    assert (answer.status_code, code_of(answer)) == (402, "payment_required")
    terms = content_of(answer, "payment-required")
    (entry,) = terms["accepts"]
    assert terms["resource"]["url"] == PUBLIC_URL + routes.path
    assert (entry["scheme"], entry["network"], entry["amount"]) == ("batch-settlement", USDC.network, "1")
    assert (entry["asset"], entry["payTo"]) == (str(TOKEN), str(PAY_TO))
    extra = entry["extra"]
    assert extra["receiverAuthorizer"] == routes.payer.authorizer.address
    assert extra["withdrawDelay"] == routes.payer.withdraw_delay
    assert not {"channelState", "voucherState"} & extra.keys()


@pytest.mark.parametrize(
    "parts",
    [
        ("eip155:1", None, None, None),
        ("solana:x", None, None, None),
        (None, str(Address(b"\x01" * 20)), None, None),
        (None, "0x12", None, None),
        (None, None, "nowhere", None),
        (None, None, None, STRANGER.address),
    ],
    ids=["network", "no network", "token", "no token", "no payTo", "authorizer"],
)
async def test_there_is_no_channel_of_another(routes: Routes, parts: tuple[str | None, ...]) -> None:
    own = (USDC.network, str(TOKEN), str(PAY_TO), routes.payer.authorizer.address)
    path = "/".join(given or known for given, known in zip(parts, own, strict=True))
    answer = await routes.get(routes.refund_payment(0), path=f"/api/v2/channels/{path}")
    assert (answer.status_code, code_of(answer)) == (404, "route_not_found")
    assert await unchanged(routes)


# ---- What is refused.


REFUSED: dict[str, tuple[Callable[[ChannelPayer], Json], ChannelReason]] = {
    "a voucher": (lambda p: p.payment(p.voucher(300)), ChannelReason.PAYLOAD_TYPE),
    "a deposit": (lambda p: p.payment(p.deposit(500, ceiling=300)), ChannelReason.PAYLOAD_TYPE),
    "another scheme": (
        lambda p: _with(p.payment(p.refund(ceiling=300)), scheme="exact"),
        ChannelReason.PAYLOAD_TYPE,
    ),
    "a part of it": (lambda p: p.payment(p.refund(ceiling=300, base_units=5)), ChannelReason.REFUND_AMOUNT),
    "an amount of 0": (lambda p: p.payment(p.refund(ceiling=300, base_units=0)), ChannelReason.REFUND_AMOUNT),
    "another receiver": (
        lambda p: _refund_of(replace(p, receiver=Address(b"\x02" * 20))),
        ChannelReason.CHANNEL_ID,
    ),
    "another authorizer": (lambda p: _refund_of(replace(p, authorizer=STRANGER)), ChannelReason.CHANNEL_ID),
    "another delay": (lambda p: _refund_of(replace(p, withdraw_delay=901)), ChannelReason.CHANNEL_ID),
    "a channel that is not known": (
        lambda p: _refund_of(replace(p, salt=b"\x09" * 32)),
        ChannelReason.NOT_FOUND,
    ),
}


def _refund_of(payer: ChannelPayer) -> Json:
    return payer.payment(payer.refund(ceiling=300))


def _with(payment: Json, **fields: Any) -> Json:
    return payment | {"accepted": payment["accepted"] | fields}


@pytest.mark.parametrize("name", REFUSED)
async def test_every_other_payment_is_refused(routes: Routes, name: str) -> None:
    await routes.refunds.buy(300)
    make, reason = REFUSED[name]
    answer = await routes.get(make(routes.payer))
    assert (answer.status_code, answer.json()["reason"]) == (402, reason.value)
    assert {"payment-required", "payment-response"}.isdisjoint(answer.headers)
    assert await unchanged(routes)


async def test_only_the_payer_refunds(routes: Routes) -> None:
    """The signature of another voucher is that of another key to this one."""
    await routes.refunds.buy(300)
    payment = routes.refund_payment(300)
    payment["payload"]["voucher"]["signature"] = "0x" + routes.payer.sign_voucher(299).hex()
    answer = await routes.get(payment)
    assert answer.json()["reason"] == ChannelReason.VOUCHER_SIGNATURE.value
    assert await unchanged(routes)


@pytest.mark.parametrize("payment", ["", "{", "[]"])
async def test_a_payment_that_cannot_be_read_is_refused(routes: Routes, payment: str) -> None:
    assert (await routes.get(payment)).status_code in (400, 402)
    assert await unchanged(routes)


@pytest.mark.parametrize("ceiling", [0, 299, 301])
async def test_a_voucher_over_another_sum_is_corrected(routes: Routes, ceiling: int) -> None:
    await routes.refunds.buy(300)
    answer = await routes.get(routes.refund_payment(ceiling))
    assert (answer.status_code, answer.json()["reason"]) == (402, ChannelReason.CUMULATIVE_MISMATCH.value)
    assert "payment-response" not in answer.headers
    terms = content_of(answer, "payment-required")
    (entry,) = terms["accepts"]
    assert terms["error"] == ChannelReason.CUMULATIVE_MISMATCH.value
    state = entry["extra"]["channelState"]
    assert (state["channelId"], state["chargedCumulativeAmount"]) == (str(routes.payer.channel_id), "300")
    assert ("voucherState" in entry["extra"]) is (ceiling > 0)
    assert await unchanged(routes)


async def test_a_public_voucher_is_shown_to_every_asker(routes: Routes) -> None:
    """The chain shows it already, and a client that has lost it trusts the announced sum by it."""
    await routes.refunds.buy(DUE)
    for _ in range(2):
        await routes.refunds.claims.run_once()
    answer = await routes.get(routes.refund_payment(0))
    (entry,) = content_of(answer, "payment-required")["accepts"]
    assert entry["extra"]["voucherState"]["signedMaxClaimable"] == str(DUE)


# ---- The refund.


async def test_a_refund_pays_back_what_the_channel_holds_beyond_its_calls(routes: Routes) -> None:
    await routes.refunds.buy(300)
    answer = await routes.get(routes.refund_payment(300))
    assert answer.status_code == 200
    assert answer.json() == {
        "message": "Refund acknowledged",
        "channelId": str(routes.payer.channel_id),
    }
    assert answer.headers["cache-control"] == "no-store"
    receipt = content_of(answer, "payment-response")
    assert (receipt["success"], receipt["network"]) == (True, USDC.network)
    assert (receipt["payer"], receipt["amount"]) == (str(routes.payer.address), str(DEPOSIT - 300))
    state = receipt["extra"]["channelState"]
    assert (state["balance"], state["totalClaimed"], state["refundNonce"]) == ("300", "300", "1")
    assert routes.refunds.wallet_units == FUNDS - 300


async def test_a_second_refund_on_that_day_names_its_rate(routes: Routes) -> None:
    await routes.refunds.buy(300)
    await routes.get(routes.refund_payment(300))
    answer = await routes.get(routes.refund_payment(300))
    assert (answer.status_code, code_of(answer)) == (429, "rate_limited")
    assert answer.headers["retry-after"] == "86400"
    assert answer.headers["ratelimit-policy"] == '"refunds";q=1;w=86400'


async def test_a_channel_that_a_call_has_is_busy(routes: Routes) -> None:
    await routes.refunds.buy(300)
    running = await routes.refunds.open_call()
    answer = await routes.get(routes.refund_payment(300))
    assert (answer.status_code, code_of(answer), answer.headers["retry-after"]) == (503, "channel_busy", "5")
    await routes.refunds.end(running)
