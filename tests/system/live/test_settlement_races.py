"""Many calls paid by authorisation at once: one authorisation buys one call, a balance buys what it covers, and the
nonce sequences of the gas keys have no gap and no nonce twice. The logs of the upstream and of the chain are the
judge.

Real gateways in their own processes; on PostgreSQL also two on one database with one gas key.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.kit.authorization_payer import V2, AuthorizationPayer, Quote, undress
from tests.kit.gateway_cluster import PRICE_UNITS
from tests.kit.gateway_process import poll
from tests.kit.signed_calls import (
    LONG_LIVED,
    NO_TERMS,
    QUICK,
    PaidListing,
    SignedCall,
    balance_of,
    count_sent,
    find_pending,
    send_dearly,
    unmined,
)
from tollway.ids import TxHash
from tollway.sandbox.chain import START_USDC_UNITS

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS = 50
SETTLEMENTS = 30
WORTH = 7
DEADLINE_S = 60.0
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A listing, and the gas keys that its gateways share."""

    stall: PaidListing
    gas: list[Any]

    @property
    def cluster(self) -> Any:
        return self.stall.cluster

    async def race(self, calls: list[SignedCall]) -> list[Any]:
        """All at once, spread over the gateways."""
        gateways = itertools.cycle(self.stall.gateways)
        return await asyncio.gather(*(call.send(next(gateways)) for call in calls))

    async def count_sent(self) -> list[int]:
        return [await count_sent(self.cluster, key) for key in self.gas]


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        "sqlite, two keys",
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("two on postgresql", marks=pytest.mark.postgres),
    ],
)
async def harness(request: pytest.FixtureRequest, cluster: Any) -> Any:
    kind = request.param
    gas = await cluster.wallets(2 if kind.endswith("two keys") else 1)
    url = None if kind.startswith("sqlite") else await cluster.make_postgres()
    options = {
        "database_url": url,
        "settings": {
            **QUICK,
            **LONG_LIVED,
            "TOLLWAY_GAS_KEYS_SANDBOX": ",".join(key.private_key for key in gas),
        },
    }
    async with contextlib.AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(cluster.gateway(**options))]
        if kind.startswith("two on"):
            second = cluster.gateway(**options, public_url=gateways[0].public_url)
            gateways.append(await stack.enter_async_context(second))
        yield Harness(stall=await PaidListing.open(cluster, gateways), gas=gas)


def fresh(name: str) -> str:
    return f"/echo/{name}-{next(_NUMBERS)}"


async def leave_with(cluster: Any, wallet: Any, worth: int) -> None:
    """The wallet transfers away all but the price of so many calls."""
    stranger = cluster.playground.account("stranger")
    await cluster.send_tokens(wallet, stranger.address, START_USDC_UNITS - worth * PRICE_UNITS)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_one_authorisation_presented_fifty_times_at_once_is_one_call_and_one_transfer(
    harness: Harness, method: str
) -> None:
    body = b"{}" if method == "POST" else None
    call = harness.stall.sign(await harness.cluster.wallet(), fresh("same"), method=method, body=body)
    before = sum(await harness.count_sent())

    replies = await harness.race([call] * CALLERS)

    assert call.seen == 1
    winners = [reply for reply in replies if reply.status == 200]
    losers = [reply for reply in replies if reply.status != 200]
    assert [reply.state for reply in winners] == ["charged"]
    assert {(reply.status, reply.code) for reply in losers} <= NO_TERMS
    assert not any(reply.asks_for_money for reply in losers)
    assert len(await call.transfers()) == 1
    assert sum(await harness.count_sent()) == before + 1
    assert (await call.record(harness.stall.gateways[-1]))["payment"]["state"] == "charged"
    await harness.stall.check_ledger()


async def test_fifty_authorisations_on_a_balance_for_seven_are_seven_calls(harness: Harness) -> None:
    wallet, path = await harness.cluster.wallet(), fresh("seven")
    await leave_with(harness.cluster, wallet, WORTH)
    calls = [harness.stall.sign(wallet, path) for _ in range(CALLERS)]
    before = sum(await harness.count_sent())

    replies = await harness.race(calls)

    told = Counter((reply.status, reply.code) for reply in replies)
    assert told == {(200, None): WORTH, (402, "payment_verification_failed"): CALLERS - WORTH}
    # The balance is read before the simulation of the transfer: a block may come between them.
    reasons = {reply.json["reason"] for reply in replies if reply.status == 402}
    assert reasons <= {"insufficient_balance", "invalid_exact_evm_transaction_simulation_failed"}
    assert calls[0].seen == WORTH, "no upstream works for what is not covered"
    assert len(await calls[0].transfers()) == WORTH
    assert sum(await harness.count_sent()) == before + WORTH, "no settlement fails for want of balance"
    assert await balance_of(harness.cluster, wallet.address) == 0
    await harness.stall.check_ledger()


async def test_thirty_settlements_at_once_use_each_nonce_once(harness: Harness) -> None:
    """Any gateway may sign them, with any key."""
    wallets = await harness.cluster.wallets(3)
    path = fresh("lane")
    calls = [harness.stall.sign(wallets[number % 3], path) for number in range(SETTLEMENTS)]
    before = await harness.count_sent()

    replies = await harness.race(calls)

    assert Counter((reply.status, reply.code) for reply in replies) == {(200, None): SETTLEMENTS}
    after = await harness.count_sent()
    sent = [now - then for now, then in zip(after, before, strict=True)]
    assert sum(sent) == SETTLEMENTS, "no nonce twice, no hole, none wasted"
    receipts = [undress(("", reply.headers["PAYMENT-RESPONSE"]))["transaction"] for reply in replies]
    moved = [tx_hash for wallet in wallets for tx_hash in await transfers(harness, wallet)]
    assert sorted(receipts) == sorted(map(str, moved))
    assert calls[0].seen == SETTLEMENTS
    await harness.stall.check_ledger()


async def transfers(harness: Harness, wallet: Any) -> list[TxHash]:
    return await harness.stall.sign(wallet, "/").transfers()


# ---- Others on the chain.


async def test_a_settlement_that_was_front_run_is_paid_and_buys_nothing_else(harness: Harness) -> None:
    cluster, stranger = harness.cluster, harness.cluster.playground.account("stranger")
    call = harness.stall.sign(await cluster.wallet(), fresh("front-run"))
    token = cluster.playground.token.address
    async with unmined(cluster.driver), asyncio.TaskGroup() as group:
        task = group.create_task(call.send())
        ours = await poll(lambda: find_waiting(harness), what="our transaction")
        theirs = await send_dearly(cluster, stranger, token, call.calldata)
        await cluster.driver.mine(1)
    reply = task.result()

    assert (reply.status, reply.state) == (200, "charged"), reply.body
    assert await call.transfers() == [theirs]
    assert undress(("", reply.headers["PAYMENT-RESPONSE"]))["transaction"] == str(theirs)
    assert not (await cluster.driver.wait_receipt(ours)).succeeded
    assert (await call.record())["payment"]["transaction"] == str(theirs)
    for tx_hash, code in ((ours, "payment_verification_failed"), (theirs, "payment_already_used")):
        assert (await call.spend(tx_hash)).code == code
    assert call.seen == 1
    await harness.stall.check_ledger()


async def find_waiting(harness: Harness) -> TxHash | None:
    waiting = [await find_pending(harness.cluster, key.address) for key in harness.gas]
    return next(iter(itertools.chain(*waiting)), None)


async def test_a_transfer_by_authorisation_is_no_payment_by_transaction(harness: Harness) -> None:
    """Neither the gateway's own transfers, nor those that the gateway has not recorded."""
    cluster, stranger = harness.cluster, harness.cluster.playground.account("stranger")
    settled = harness.stall.sign(await cluster.wallet(), fresh("shown"))
    assert (await settled.send()).status == 200
    (ours,) = await settled.transfers()
    unknown = harness.stall.sign(await cluster.wallet(), fresh("unknown"))
    theirs = await send_dearly(cluster, stranger, cluster.playground.token.address, unknown.calldata)
    await cluster.driver.wait_receipt(theirs)

    shown, refused = await settled.spend(ours), await unknown.spend(theirs)

    assert (shown.status, shown.code) == (409, "payment_already_used")
    assert (refused.code, refused.json["reason"]) == ("payment_verification_failed", "authorization_transfer")
    late = await unknown.send()
    assert (late.status, late.code, late.asks_for_money) == (409, "payment_already_used", False)
    assert (settled.seen, unknown.seen) == (1, 0)


# ---- Providers and callers who do not wait.


async def test_a_caller_pays_the_quoted_price_to_the_quoted_wallet(harness: Harness) -> None:
    cluster, gateways = harness.cluster, harness.stall.gateways
    stall = await PaidListing.open(cluster, gateways)
    call = stall.sign(await cluster.wallet(), fresh("quoted"))
    other = await cluster.wallet()
    edited = await cluster.control(
        gateways[0],
        stall.provider,
        "PUT",
        f"/apis/{stall.api_id}",
        cluster.draft(pricePerRequest="0.02", payTo=str(other.address)),
    )
    assert edited.status == 200, edited.body
    quote = Quote.read(await cluster.call(gateways[-1], stall.api_id, call.path))
    assert (quote.accepted["amount"], quote.accepted["payTo"]) == (str(2 * PRICE_UNITS), str(other.address))

    reply = await call.send(gateways[-1])

    assert (reply.status, reply.headers["Tollway-Price"]) == (200, "0.01 USDC"), reply.body
    assert await stall.earned() == PRICE_UNITS
    mixed = AuthorizationPayer(cluster=cluster, gateway=gateways[-1], api_id=stall.api_id, signer=call.wallet)
    shown = mixed.show(quote, V2, base_units=PRICE_UNITS)  # the old price was never quoted for the new wallet
    assert (await call.send(headers=[shown])).status == 402
    assert (await balance_of(cluster, other.address), call.seen) == (START_USDC_UNITS, 1)
    await harness.stall.check_ledger()


async def leave(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def wait_state(call: SignedCall, gateway: Any) -> Any:
    """The record of a call after its end."""

    async def find() -> Any:
        records = await call.payer.cluster.history(gateway, call.wallet)
        return records and records[0]["status"] not in ("pending",) and records[0]

    return await poll(find, what="the call's end")


async def test_a_caller_that_leaves_before_the_head_pays_by_it(harness: Harness) -> None:
    gateway = harness.stall.gateways[-1]
    call = harness.stall.sign(await harness.cluster.wallet(), fresh("gone"))
    before = call.seen
    async with asyncio.TaskGroup() as group, harness.cluster.holding():
        task = group.create_task(call.send(gateway))
        await poll(lambda: call.seen > before, what="a call under way")
        await leave(task)
    record = await wait_state(call, gateway)
    assert (record["status"], record["payment"]["state"]) == ("succeeded", "charged")
    assert len(await call.transfers()) == 1
    again = await call.send(gateway)
    assert (again.status, again.code) in NO_TERMS | {(200, None)}
    assert len(await call.transfers()) == 1
    await harness.stall.check_ledger()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_caller_that_leaves_during_the_settlement_gets_the_stored_response(
    harness: Harness, method: str
) -> None:
    cluster, gateway = harness.cluster, harness.stall.gateways[-1]
    body = b"{}" if method == "POST" else None
    call = harness.stall.sign(await cluster.wallet(), fresh("left"), method=method, body=body)
    async with unmined(cluster.driver), asyncio.TaskGroup() as group:
        task = group.create_task(call.send(gateway))
        await poll(lambda: find_waiting(harness), what="our transaction")
        await leave(task)
        repeat = await call.send(gateway)
        assert (repeat.status, repeat.code) in NO_TERMS
        assert not repeat.asks_for_money
    record = await wait_state(call, gateway)
    (moved,) = await call.transfers()
    assert record["payment"]["transaction"] == str(moved)
    again = await call.send(gateway)
    if record["payment"]["state"] == "charged":
        assert (again.status, again.code) in {(200, None), (409, "payment_already_used")}
    else:
        assert (await call.spend(moved, gateway)).status == 200, "its money is its credit"
    assert await call.transfers() == [moved]
    await harness.stall.check_ledger()


async def test_a_caller_that_leaves_after_the_head_pays_once(harness: Harness) -> None:
    cluster, gateway = harness.cluster, harness.stall.gateways[-1]
    path = f"/stream?count=1000&interval=0.05&n={next(_NUMBERS)}"
    call = harness.stall.sign(await cluster.wallet(), path)
    url = f"{gateway.base_url}/api/v2/gateway/{harness.stall.api_id}{path}"
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with cluster.session.get(url, headers=[call.header], timeout=timeout) as response:
        assert response.status == 200
        assert await response.content.readany()
        response.close()
    record = await wait_state(call, gateway)
    assert (record["payment"]["state"], len(await call.transfers())) == ("charged", 1)
    again = await call.send(gateway)
    assert (again.status, again.code, again.asks_for_money) == (409, "payment_already_used", False)
    await harness.stall.check_ledger()
