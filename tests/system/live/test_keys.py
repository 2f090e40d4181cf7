"""One idempotency key at two gateways on one database: the upstream's log has one call, every caller gets its
response or learns that it is running, and no caller gets a 402."""

import asyncio
import contextlib
import itertools
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import PRICE_UNITS, bound, plain
from tests.kit.signed_calls import LONG_LIVED, QUICK, PaidListing

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.postgres]

CALLERS = 50
SIGNERS = 16
_NUMBERS = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stall(cluster: Any) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        gas = await cluster.wallet()
        options = {
            "database_url": await cluster.make_postgres(),
            "settings": {**QUICK, **LONG_LIVED, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key},
        }
        first = await stack.enter_async_context(cluster.gateway(**options))
        second = cluster.gateway(**options, public_url=first.public_url)
        gateways = [first, await stack.enter_async_context(second)]
        yield await PaidListing.open(cluster, gateways)


async def race(stall: PaidListing, path: str, shown: list[Any]) -> list[Any]:
    """One call for each of `shown`, all at once, at both gateways in turn."""
    gateways = itertools.cycle(stall.gateways)
    return await asyncio.gather(
        *(
            stall.cluster.call(
                next(gateways), stall.api_id, path, method="POST", headers=headers, content=b'{"order": 1}'
            )
            for headers in shown
        )
    )


async def check_one_call(stall: PaidListing, path: str, shown: list[Any], *, running: set[Any]) -> str:
    """Sends the calls at once, and again after all have ended; returns the call's id. `running`: the codes that the
    losers may get."""
    replies = await race(stall, path, shown)
    assert stall.cluster.provider.count(path, method="POST") == 1
    assert not any(reply.asks_for_money for reply in replies)
    others = {(reply.status, reply.code) for reply in replies if reply.status != 200}
    assert others <= running
    replayed = [reply for reply in replies if reply.status == 200 and is_replayed(reply)]
    answered = [reply for reply in replies if reply.status == 200]
    assert len(answered) - len(replayed) == 1

    repeats = await race(stall, path, shown)
    assert all(is_replayed(reply) for reply in repeats)
    assert len({reply.body for reply in [*answered, *repeats]}) == 1
    assert stall.cluster.provider.count(path, method="POST") == 1
    (call_id,) = {reply.headers["Tollway-Call-Id"] for reply in [*answered, *repeats]}
    return str(call_id)


def is_replayed(reply: Any) -> bool:
    return reply.status == 200 and reply.headers.get("Idempotency-Replayed") == "true"


@pytest.mark.parametrize("is_bound", [False, True], ids=["plain", "bound"])
async def test_fifty_callers_with_one_key_at_two_gateways_make_one_call(
    stall: PaidListing, is_bound: bool
) -> None:
    cluster, number = stall.cluster, next(_NUMBERS)
    path, key = f"/echo/keyed-{number}", ("Idempotency-Key", f"order-{number}")
    caller = await cluster.wallet()
    tx_hash = await cluster.send_tokens(caller, stall.provider.address, 3 * PRICE_UNITS)

    def prove() -> Any:
        if not is_bound:
            return plain(caller, tx_hash)
        return bound(
            caller,
            tx_hash,
            stall.gateways[0],
            stall.api_id,
            path,
            chain_id=cluster.driver.chain_id,
            method="POST",
            body=b'{"order": 1}',
        )

    shown = [[*prove(), key] for _ in range(CALLERS)]
    call_id = await check_one_call(stall, path, shown, running={(409, "idempotency_in_progress")})

    payment = await cluster.payment(stall.gateways[1], caller, tx_hash)
    assert int(payment["credit"]) == 2 * PRICE_UNITS
    assert [call["id"] for call in await cluster.history(stall.gateways[1], caller)] == [call_id]
    report = await cluster.audit(stall.gateways[0])
    assert report.wrong == ()


async def test_authorisations_signed_anew_under_one_key_at_two_gateways_pay_once(
    stall: PaidListing,
) -> None:
    number = next(_NUMBERS)
    path, key = f"/echo/signed-{number}", ("Idempotency-Key", f"order-{number}")
    wallet = await stall.cluster.wallet()
    calls = [stall.sign(wallet, path) for _ in range(SIGNERS)]
    shown = [[call.header, key] for call in calls]
    running = {(409, "idempotency_in_progress"), (503, "payment_outcome_unknown")}
    await check_one_call(stall, path, shown, running=running)
    assert len(await calls[0].transfers()) == 1
    report = await stall.cluster.audit(stall.gateways[0])
    assert report.wrong == ()


async def test_one_key_names_one_request_at_both_gateways(stall: PaidListing) -> None:
    cluster, number = stall.cluster, next(_NUMBERS)
    key = ("Idempotency-Key", f"order-{number}")
    caller = await cluster.wallet()
    tx_hash = await cluster.send_tokens(caller, stall.provider.address, 50 * PRICE_UNITS)
    headers = [*plain(caller, tx_hash), key]
    paths = [f"/echo/either-{number}-{side}" for side in range(2)]
    replies = await asyncio.gather(
        *(
            cluster.call(gateway, stall.api_id, path, headers=headers)
            for gateway in stall.gateways
            for path in paths
            for _ in range(10)
        )
    )
    assert sum(cluster.provider.count(path) for path in paths) == 1
    refused = {(reply.status, reply.code) for reply in replies if reply.status != 200}
    assert refused <= {(422, "idempotency_key_reused"), (409, "idempotency_in_progress")}
    payment = await cluster.payment(stall.gateways[0], caller, tx_hash)
    assert int(payment["credit"]) == 49 * PRICE_UNITS
