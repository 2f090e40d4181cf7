"""Many callers, one payment: the upstream's log counts the served calls, and no caller that lost gets a 402.

Real gateways in their own processes; on PostgreSQL also two on one database.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import PRICE_UNITS, bound, plain
from tests.kit.signed_calls import LONG_LIVED

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS = 50
_PATHS = (f"/echo/race-{number}" for number in itertools.count(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """One listing at one or more gateways on one database."""

    cluster: Any
    gateways: list[Any]
    provider: Any
    api_id: str

    async def race(self, make_headers: Any, path: str, *, method: str = "GET") -> list[Any]:
        """All callers at the same time, spread over the gateways."""
        gateways = itertools.cycle(self.gateways)
        return await asyncio.gather(
            *(
                self.cluster.call(next(gateways), self.api_id, path, method=method, headers=make_headers())
                for _ in range(CALLERS)
            )
        )

    async def check_ledger(self, payer: Any, tx_hash: Any, *, served: int) -> None:
        """The audit balances and the history names exactly the calls that were served."""
        report = await self.cluster.audit(self.gateways[0])
        assert (report.wrong, report.held_calls) == ((), ())
        calls = await self.cluster.history(self.gateways[-1], payer)
        assert Counter(call["payment"]["state"] for call in calls) == {"charged": served}
        shown = await self.cluster.payment(self.gateways[-1], payer, tx_hash)
        assert int(shown["credit"]) == int(shown["amount"]) - served * PRICE_UNITS


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("two on postgresql", marks=pytest.mark.postgres),
    ],
)
async def harness(request: pytest.FixtureRequest, cluster: Any) -> Any:
    url = None if request.param == "sqlite" else await cluster.make_postgres()
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(cluster.gateway(database_url=url, settings=LONG_LIVED))
        gateways = [first]
        if request.param.startswith("two"):
            second = cluster.gateway(database_url=url, public_url=first.public_url, settings=LONG_LIVED)
            gateways.append(await stack.enter_async_context(second))
        provider = await cluster.wallet()
        api_id = await cluster.publish(first, provider)
        yield Harness(cluster=cluster, gateways=gateways, provider=provider, api_id=api_id)


@pytest.mark.parametrize("known", [False, True], ids=["unseen", "known"])
@pytest.mark.parametrize("worth", [1, 10])
async def test_fifty_callers_get_as_many_calls_as_were_paid(
    harness: Harness, worth: int, known: bool
) -> None:
    cluster, path = harness.cluster, next(_PATHS)
    caller = await cluster.wallet()
    tx_hash = await cluster.send_tokens(caller, harness.provider.address, worth * PRICE_UNITS)
    headers = plain(caller, tx_hash)
    if known:
        refused = await cluster.call(
            harness.gateways[0], harness.api_id, path, headers=[*headers, ("Tollway-Max-Price", "0.001")]
        )
        assert refused.code == "price_above_max"  # the payment is recorded, and nothing is spent

    replies = await harness.race(lambda: headers, path)

    assert cluster.provider.count(path) == worth
    winners = [reply for reply in replies if reply.status == 200]
    losers = [reply for reply in replies if reply.status != 200]
    assert len(winners) == worth
    assert {(reply.status, reply.code) for reply in losers} == {(409, "payment_already_used")}
    assert not any(reply.asks_for_money for reply in losers)
    assert {reply.state for reply in winners} == {"charged"}
    await harness.check_ledger(caller, tx_hash, served=worth)


@pytest.mark.parametrize("worth", [1, 10])
async def test_one_bound_signature_presented_many_times_buys_one_call(harness: Harness, worth: int) -> None:
    cluster, path = harness.cluster, next(_PATHS)
    caller = await cluster.wallet()
    tx_hash = await cluster.send_tokens(caller, harness.provider.address, worth * PRICE_UNITS)
    headers = bound(
        caller, tx_hash, harness.gateways[0], harness.api_id, path, chain_id=cluster.driver.chain_id
    )

    replies = await harness.race(lambda: headers, path)

    assert cluster.provider.count(path) == 1
    assert [reply.status for reply in replies].count(200) == 1
    losers = {(reply.status, reply.code) for reply in replies if reply.status != 200}
    assert losers <= {
        (409, "idempotency_in_progress"),
        (401, "nonce_reused"),
        (409, "payment_already_used"),
    }
    assert not any(reply.asks_for_money for reply in replies if reply.status != 200)
    await harness.check_ledger(caller, tx_hash, served=1)


async def test_fifty_bound_signatures_on_a_payment_worth_ten_buy_ten(harness: Harness) -> None:
    cluster, path = harness.cluster, next(_PATHS)
    caller = await cluster.wallet()
    tx_hash = await cluster.send_tokens(caller, harness.provider.address, 10 * PRICE_UNITS)

    def sign() -> Any:
        first, chain_id = harness.gateways[0], cluster.driver.chain_id
        return bound(caller, tx_hash, first, harness.api_id, path, chain_id=chain_id, method="POST")

    replies = await harness.race(sign, path, method="POST")

    assert cluster.provider.count(path) == 10
    assert [reply.status for reply in replies].count(200) == 10
    losers = {(reply.status, reply.code) for reply in replies if reply.status != 200}
    assert losers == {(409, "payment_already_used")}
    await harness.check_ledger(caller, tx_hash, served=10)


async def test_two_payers_in_one_race_never_pay_for_each_other(harness: Harness) -> None:
    cluster, path = harness.cluster, next(_PATHS)
    one, other = await cluster.wallets(2)
    tx_one = await cluster.send_tokens(one, harness.provider.address, 3 * PRICE_UNITS)
    tx_other = await cluster.send_tokens(other, harness.provider.address, 4 * PRICE_UNITS)
    proofs = itertools.cycle([plain(one, tx_one), plain(other, tx_other)])

    replies = await harness.race(lambda: next(proofs), path)

    assert cluster.provider.count(path) == 7
    assert {reply.code for reply in replies if reply.status != 200} == {"payment_already_used"}
    await harness.check_ledger(one, tx_one, served=3)
    await harness.check_ledger(other, tx_other, served=4)
