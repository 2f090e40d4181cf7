"""The clients that agents use, unmodified and with their default settings, pay a listing of a running gateway.

A recording proxy stands between them and the gateway; the provider's log counts the served calls, and the chain shows
the payments.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.clients import stock_clients as stock
from tests.kit.gateway_cluster import API, PRICE_UNITS, plain
from tests.kit.signed_calls import LONG_LIVED
from tests.kit.waits import run_program
from tollway.ids import Address, TxHash, keccak256

pytestmark = pytest.mark.asyncio(loop_scope="module")


SHOWN_AT_ONCE = 50
TRANSFER = keccak256(b"Transfer(address,address,uint256)")
AUTHORIZATION_USED = keccak256(b"AuthorizationUsed(address,bytes32)")
_NUMBERS = itertools.count(1)

each_client = pytest.mark.parametrize("client", stock.CLIENTS, ids=lambda client: client.name)
each_dialect = pytest.mark.parametrize("client", stock.ONE_OF_EACH_DIALECT, ids=lambda client: client.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A gateway that can settle, behind the recording proxy."""

    cluster: Any
    gateway: Any
    tap: Any
    provider: Any
    api_id: str

    def target(self, rest: str) -> str:
        return f"{API}/gateway/{self.api_id}{rest}"

    async def pay(self, client: Any, payer: Any, rest: str, **options: Any) -> tuple[Any, list[Any]]:
        """The output of the client, and the recorded exchanges."""
        target = self.target(rest)
        told = await stock.pay(client.script, self.tap.url + target, key=payer.private_key, **options)
        exchanges = self.tap.take(target)
        keep_transcript(client, exchanges, told)
        return told, exchanges

    async def capture(self, client: Any, payer: Any, rest: str, **options: Any) -> list[tuple[str, str]]:
        """The header of a payment that the client signed and that the gateway has not received."""
        self.tap.withholds_payments = True
        try:
            _, exchanges = await self.pay(client, payer, rest, **options)
        finally:
            self.tap.withholds_payments = False
        return [exchanges[-1].shown_payment]

    async def balance(self, address: Address) -> int:
        token = self.cluster.playground.token
        return int(await self.cluster.driver.call(token, "balanceOf", str(address)))

    async def check_transfer(self, tx_hash: str, payer: Any) -> None:
        """On chain: one authorised transfer of exactly the price from the payer to the listing's wallet."""
        receipt = await self.cluster.driver.wait_receipt(TxHash.parse(tx_hash))
        token = self.cluster.playground.token.address
        assert receipt.succeeded
        assert {log.address for log in receipt.logs} == {token}
        moved = [log for log in receipt.logs if log.topics[0] == TRANSFER]
        used = [log for log in receipt.logs if log.topics[0] == AUTHORIZATION_USED]
        assert [(log.topics[1][12:], log.topics[2][12:]) for log in moved] == [
            (payer.address, self.provider.address)
        ]
        assert [int.from_bytes(log.payload, "big") for log in moved] == [PRICE_UNITS]
        assert [log.topics[1][12:] for log in used] == [payer.address]

    async def check_ledger(self) -> None:
        report = await self.cluster.audit(self.gateway)
        assert (report.wrong, report.held_calls) == ((), ())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(cluster: Any) -> AsyncIterator[Harness]:
    gas = await cluster.wallet()
    async with contextlib.AsyncExitStack() as stack:
        tap = await stack.enter_async_context(stock.run_wiretap(cluster.session))
        gateway = await stack.enter_async_context(
            cluster.gateway(
                public_url=tap.url, settings={**LONG_LIVED, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
            )
        )
        tap.upstream = gateway.base_url
        provider = await cluster.wallet()
        api_id = await cluster.publish(gateway, provider, tags=["quotes"])
        yield Harness(cluster=cluster, gateway=gateway, tap=tap, provider=provider, api_id=api_id)


def keep_transcript(client: Any, exchanges: list[Any], told: Any) -> None:
    """Writes one file for each call, for readers of a test run."""
    folder = os.environ.get("STOCK_CLIENT_TRANSCRIPTS")
    if folder:
        name = "".join(letter if letter.isalnum() else "-" for letter in client.name).strip("-")
        path = Path(folder) / f"{name}-{next(_NUMBERS)}.txt"
        path.write_text(stock.write_transcript(client, exchanges, told))


def fresh(path: str) -> str:
    """A path below the provider's echo that no other test calls."""
    return f"/echo/{path}-{next(_NUMBERS)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """A GET that a client has paid. `before`, `after`: the balances of payer and provider."""

    client: Any
    payer: Any
    path: str
    target: str
    told: Any
    exchanges: list[Any]
    before: tuple[int, int]
    after: tuple[int, int]

    @property
    def shown(self) -> list[tuple[str, str]]:
        return [self.exchanges[-1].shown_payment]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=stock.CLIENTS, ids=lambda client: client.name
)
async def purchase(harness: Harness, request: pytest.FixtureRequest) -> Purchase:
    """One of each client, for all tests that look at it: a client takes seconds to start."""
    payer, path = await harness.cluster.wallet(), fresh("get")
    target = f"{path}?city=Wien%20Mitte"

    async def balances() -> tuple[int, int]:
        return await harness.balance(payer.address), await harness.balance(harness.provider.address)

    before = await balances()
    told, exchanges = await harness.pay(request.param, payer, target)
    return Purchase(
        client=request.param,
        payer=payer,
        path=path,
        target=target,
        told=told,
        exchanges=exchanges,
        before=before,
        after=await balances(),
    )


async def test_a_get_is_paid_answered_and_receipted(harness: Harness, purchase: Purchase) -> None:
    told, client = purchase.told, purchase.client
    assert (told.error, told.status) == (None, 200)
    assert json.loads(told.body)["target"] == purchase.target
    await harness.check_transfer(told.transaction, purchase.payer)
    assert purchase.after == (purchase.before[0] - PRICE_UNITS, purchase.before[1] + PRICE_UNITS)

    asked, paid = purchase.exchanges
    assert (asked.status, asked.shown_payment) == (402, None)
    assert paid.shown_payment[0] == client.payment_header
    assert paid.receipts == [client.receipt_header], "the answer speaks the dialect that paid"
    assert paid.answer_headers["Tollway-Payment-State"] == "charged"
    assert harness.cluster.provider.count(purchase.path) == 1
    (call,) = await harness.cluster.history(harness.gateway, purchase.payer)
    assert (call["payment"]["state"], call["payment"]["rail"]) == ("charged", client.rail)
    assert call["payment"]["transaction"] == told.transaction
    await harness.check_ledger()


async def test_the_receipt_names_payer_and_network_in_its_dialect(purchase: Purchase) -> None:
    told, client = purchase.told, purchase.client
    if client.rail == "mpp":
        challenge = stock.decode_header(purchase.exchanges[-1].shown_payment[1])["challenge"]
        assert (told.receipt["status"], told.receipt["method"]) == ("success", "evm")
        assert told.receipt["challengeId"] == challenge["id"]
    else:
        network = "base-sepolia" if client is stock.FETCH_V1 else "eip155:84532"
        assert (told.receipt["success"], told.receipt["network"]) == (True, network)
        assert Address.parse(told.receipt["payer"]) == purchase.payer.address


async def test_the_provider_sees_neither_payment_nor_sign_in(purchase: Purchase) -> None:
    shown = {name.lower() for name, _ in json.loads(purchase.told.body)["headers"]}
    assert not shown & {name.lower() for name in (*stock.PAYMENT_HEADERS, "Payment-Retry", "Accept-Payment")}


async def test_a_payment_presented_again_buys_nothing_and_gets_no_402(
    harness: Harness, purchase: Purchase
) -> None:
    path, target, headers = purchase.path, purchase.target, purchase.shown
    other = await harness.cluster.publish(
        harness.gateway, harness.provider, name="As dear, and paid to the same wallet"
    )

    replies = [
        await harness.cluster.call(harness.gateway, harness.api_id, target, headers=headers),
        await harness.cluster.call(harness.gateway, harness.api_id, path + "/elsewhere", headers=headers),
        await harness.cluster.call(
            harness.gateway, harness.api_id, target, method="POST", headers=headers, content=b"x"
        ),
        await harness.cluster.call(harness.gateway, other, target, headers=headers),
    ]

    assert not any(reply.asks_for_money for reply in replies)
    assert {(reply.status, reply.code) for reply in replies} == {(409, "payment_already_used")}
    assert [harness.cluster.provider.count(path + rest) for rest in ("", "/elsewhere")] == [1, 0]
    assert await harness.balance(purchase.payer.address) == purchase.after[0]


async def test_the_transfer_of_an_authorisation_is_no_tx_payment(
    harness: Harness, purchase: Purchase
) -> None:
    path, headers = fresh("as-tx"), plain(purchase.payer, TxHash.parse(purchase.told.transaction))
    reply = await harness.cluster.call(harness.gateway, harness.api_id, path, headers=headers)
    assert reply.status != 200
    assert harness.cluster.provider.count(path) == 0


@each_client
async def test_a_post_arrives_once_with_its_body(harness: Harness, client: Any) -> None:
    payer, path = await harness.cluster.wallet(), fresh("post")
    body = json.dumps({"city": "Wien", "text": "ä" * 5_000}, ensure_ascii=False)

    told, _ = await harness.pay(client, payer, path, method="POST", body=body)

    assert (told.error, told.status) == (None, 200)
    answer = json.loads(told.body)
    assert answer["method"] == "POST"
    assert answer["body"] == {"bytes": len(body.encode()), "sha256": sha256(body.encode()).hexdigest()}
    assert harness.cluster.provider.count(path) == 1
    await harness.check_transfer(told.transaction, payer)


@each_client
async def test_an_upstream_failure_costs_nothing(harness: Harness, client: Any) -> None:
    payer = await harness.cluster.wallet()
    before = await harness.balance(payer.address)
    served = harness.cluster.provider.count("/status/500")

    told, exchanges = await harness.pay(client, payer, f"/status/500?number={next(_NUMBERS)}")

    assert (told.error, told.status, told.receipt) == (None, 500, None)
    assert json.loads(told.body) == {"status": 500}
    assert len(exchanges) == 2
    assert exchanges[-1].answer_headers["Tollway-Payment-State"] == "released"
    assert harness.cluster.provider.count("/status/500") == served + 1
    assert await harness.balance(payer.address) == before
    (call,) = await harness.cluster.history(harness.gateway, payer)
    assert (call["payment"]["state"], call["payment"]["transaction"]) == ("released", None)
    await harness.check_ledger()


@each_client
async def test_a_wallet_without_balance_reaches_no_provider(harness: Harness, client: Any) -> None:
    payer, path = await harness.cluster.wallet(), fresh("poor")
    everything = await harness.balance(payer.address)
    await harness.cluster.send_tokens(payer, harness.provider.address, everything - PRICE_UNITS + 1)

    told, exchanges = await harness.pay(client, payer, path)

    assert (told.status, told.receipt) == (402, None) or told.error is not None
    assert [exchange.status for exchange in exchanges] == [402] * (1 + client.signs_in_vain)
    assert harness.cluster.provider.count(path) == 0
    assert await harness.balance(payer.address) == PRICE_UNITS - 1
    assert await harness.cluster.history(harness.gateway, payer) == []


@each_dialect
async def test_fifty_of_one_authorisation_at_once_are_one_call_and_one_transfer(
    harness: Harness, client: Any
) -> None:
    payer, path = await harness.cluster.wallet(), fresh("fifty")
    before = await harness.balance(payer.address)
    headers = await harness.capture(client, payer, path)
    assert harness.cluster.provider.count(path) == 0

    replies = await asyncio.gather(
        *(
            harness.cluster.call(harness.gateway, harness.api_id, path, headers=headers)
            for _ in range(SHOWN_AT_ONCE)
        )
    )

    assert harness.cluster.provider.count(path) == 1
    assert [reply.status for reply in replies].count(200) == 1
    assert not any(reply.asks_for_money for reply in replies if reply.status != 200)
    assert {reply.status for reply in replies} <= {200, 409, 503}
    assert await harness.balance(payer.address) == before - PRICE_UNITS
    await harness.check_ledger()


@each_dialect
async def test_a_payment_signed_for_one_listing_is_refused_by_a_dearer_one(
    harness: Harness, client: Any
) -> None:
    payer, path = await harness.cluster.wallet(), fresh("cheap")
    before = await harness.balance(payer.address)
    dearer = await harness.cluster.publish(
        harness.gateway, harness.provider, name="Dearer", pricePerRequest="0.02"
    )
    headers = await harness.capture(client, payer, path)

    reply = await harness.cluster.call(harness.gateway, dearer, path, headers=headers)

    assert reply.status == 402
    assert harness.cluster.provider.count(path) == 0
    assert await harness.balance(payer.address) == before


async def test_an_mpp_challenge_of_another_route_is_refused(harness: Harness) -> None:
    """The challenge names its route; x402 signs none."""
    payer, path = await harness.cluster.wallet(), fresh("route")
    headers = await harness.capture(stock.MPPX, payer, path)
    reply = await harness.cluster.call(harness.gateway, harness.api_id, path + "/other", headers=headers)
    assert reply.status == 402
    assert harness.cluster.provider.count(path + "/other") == 0


async def test_an_idempotency_key_brings_the_same_answer_for_one_payment(harness: Harness) -> None:
    """The client signs a new payment for each 402; the repeat of a paid request gets the stored response."""
    payer, path = await harness.cluster.wallet(), fresh("idempotent")
    key = {"Idempotency-Key": "order-0001"}
    told, exchanges = await harness.pay(stock.FETCH, payer, path, headers=key)
    headers = [exchanges[-1].shown_payment, *key.items()]
    reply = await harness.cluster.call(harness.gateway, harness.api_id, path, headers=headers)
    assert (reply.status, reply.headers.get("Idempotency-Replayed")) == (200, "true")
    assert reply.body == told.body.encode()
    assert harness.cluster.provider.count(path) == 1


async def test_a_client_signs_in_when_the_402_has_a_sign_in_challenge(harness: Harness) -> None:
    payer = await harness.cluster.wallet()
    paid, _ = await harness.pay(stock.FETCH, payer, fresh("history"))
    target = f"/x402/history?limit=5&apiId={harness.api_id}"

    told = await stock.pay("pay_x402_siwx.mjs", harness.tap.url + target, key=payer.private_key)

    assert (told.error, told.status, told.receipt) == (None, 200, None)
    assert [call["payment"]["transaction"] for call in json.loads(told.body)["calls"]] == [paid.transaction]
    asked, signed_in = harness.tap.take(target)
    assert (asked.status, signed_in.shown_payment) == (402, None)
    assert "SIGN-IN-WITH-X" in signed_in.headers


@pytest.mark.parametrize("script", ["browse_bazaar.mjs", "browse_bazaar.py"])
async def test_a_bazaar_client_finds_the_listing_with_the_terms_of_its_402(
    harness: Harness, script: str
) -> None:
    word = f"Zwetschke{next(_NUMBERS)}"
    api_id = await harness.cluster.publish(harness.gateway, harness.provider, name=f"Quotes of {word}")
    base = f"{harness.tap.url}/x402"
    target = f"{API}/gateway/{api_id}"
    asked = await harness.cluster.call(harness.gateway, api_id)
    offered = stock.decode_header(asked.headers["PAYMENT-REQUIRED"])["accepts"]

    listed = await stock.run_script(script, base, "list", json.dumps({"type": "http", "limit": 100}))
    searched = await stock.run_script(script, base, "search", json.dumps({"query": word}))

    assert (listed["error"], searched["error"]) == (None, None)
    everything, found = listed["found"]["items"], searched["found"]["resources"]
    assert found[0]["resource"] == harness.tap.url + target  # names of other listings may be similar
    assert harness.tap.url + target in {entry["resource"] for entry in everything}
    assert {entry["type"] for entry in everything} == {"http"}
    assert found[0]["accepts"] == offered


async def test_the_conformance_suite_finds_no_fault_in_a_402(harness: Harness) -> None:
    """`x402-conformance`, unmodified: all its checks of an unpaid GET pass."""
    url = harness.tap.url + harness.target(fresh("get"))
    run = await run_program(sys.executable, "-m", "x402conf", "resource", url, "--fail-on-error")
    (resource,) = json.loads(run.output)["results"]
    assert run.code == 0
    assert resource["http"] == 402
    checks = [check["check"] for check in resource["checks"]]
    assert len(checks) >= 7
    assert [check["check"] for check in resource["checks"] if not check["pass"]] == []
