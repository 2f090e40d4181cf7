"""One idempotency key at two gateways on one database: the upstream's own log counts one call, every caller gets its
answer or hears that it is on its way, and nobody is asked to pay.
"""

import asyncio
import contextlib
import itertools
from typing import Any

import pytest
import pytest_asyncio

from tests.live.signed_calls import QUICK, Stall
from tests.live.street import PRICE_UNITS, bound, plain

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.postgres]

CALLERS = 50
SIGNERS = 16
_NUMBERS = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stall(street: Any) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        gas = await street.wallet()
        options = {
            "database_url": await street.make_postgres(),
            "settings": {**QUICK, "TOLLWAY_GAS_KEYS_LOCAL": gas.private_key},
        }
        first = await stack.enter_async_context(street.gateway(**options))
        second = street.gateway(**options, public_url=first.public_url)
        gateways = [first, await stack.enter_async_context(second)]
        yield await Stall.open(street, gateways)


async def race(stall: Stall, path: str, shown: list[Any]) -> list[Any]:
    """One call for each of `shown`, all at once, at both gateways in turn."""
    gateways = itertools.cycle(stall.gateways)
    return await asyncio.gather(
        *(
            stall.street.call(
                next(gateways), stall.api_id, path, method="POST", headers=headers, content=b'{"order": 1}'
            )
            for headers in shown
        )
    )


async def check_one_call(stall: Stall, path: str, shown: list[Any], *, running: set[Any]) -> str:
    """The same at once, and once more when all is said; returns the call's id. `running`: what losers may hear."""
    replies = await race(stall, path, shown)
    assert stall.street.provider.count(path, method="POST") == 1
    assert not any(reply.asks_for_money for reply in replies)
    others = {(reply.status, reply.code) for reply in replies if reply.status != 200}
    assert others <= running
    replayed = [reply for reply in replies if reply.status == 200 and is_replayed(reply)]
    answered = [reply for reply in replies if reply.status == 200]
    assert len(answered) - len(replayed) == 1

    repeats = await race(stall, path, shown)
    assert all(is_replayed(reply) for reply in repeats)
    assert len({reply.body for reply in [*answered, *repeats]}) == 1
    assert stall.street.provider.count(path, method="POST") == 1
    (call_id,) = {reply.headers["Tollway-Call-Id"] for reply in [*answered, *repeats]}
    return str(call_id)


def is_replayed(reply: Any) -> bool:
    return reply.status == 200 and reply.headers.get("Idempotency-Replayed") == "true"


@pytest.mark.parametrize("is_bound", [False, True], ids=["plain", "bound"])
async def test_fifty_callers_with_one_key_at_two_gateways_make_one_call(stall: Stall, is_bound: bool) -> None:
    street, number = stall.street, next(_NUMBERS)
    path, key = f"/echo/keyed-{number}", ("Idempotency-Key", f"order-{number}")
    caller = await street.wallet()
    tx_hash = await street.send_tokens(caller, stall.provider.address, 3 * PRICE_UNITS)

    def prove() -> Any:
        if not is_bound:
            return plain(caller, tx_hash)
        return bound(
            caller,
            tx_hash,
            stall.gateways[0],
            stall.api_id,
            path,
            chain_id=street.driver.chain_id,
            method="POST",
            body=b'{"order": 1}',
        )

    shown = [[*prove(), key] for _ in range(CALLERS)]
    call_id = await check_one_call(stall, path, shown, running={(409, "idempotency_in_progress")})

    payment = await street.payment(stall.gateways[1], caller, tx_hash)
    assert int(payment["credit"]) == 2 * PRICE_UNITS
    assert [call["id"] for call in await street.history(stall.gateways[1], caller)] == [call_id]
    report = await street.audit(stall.gateways[0])
    assert report.wrong == ()


async def test_authorisations_signed_anew_under_one_key_at_two_gateways_move_money_once(stall: Stall) -> None:
    number = next(_NUMBERS)
    path, key = f"/echo/signed-{number}", ("Idempotency-Key", f"order-{number}")
    wallet = await stall.street.wallet()
    calls = [stall.sign(wallet, path) for _ in range(SIGNERS)]
    shown = [[call.header, key] for call in calls]
    running = {(409, "idempotency_in_progress"), (503, "payment_outcome_unknown")}
    await check_one_call(stall, path, shown, running=running)
    assert len(await calls[0].transfers()) == 1
    report = await stall.street.audit(stall.gateways[0])
    assert report.wrong == ()


async def test_one_key_stands_for_one_request_at_both_gateways(stall: Stall) -> None:
    street, number = stall.street, next(_NUMBERS)
    key = ("Idempotency-Key", f"order-{number}")
    caller = await street.wallet()
    tx_hash = await street.send_tokens(caller, stall.provider.address, 50 * PRICE_UNITS)
    headers = [*plain(caller, tx_hash), key]
    paths = [f"/echo/either-{number}-{side}" for side in range(2)]
    replies = await asyncio.gather(
        *(
            street.call(gateway, stall.api_id, path, headers=headers)
            for gateway in stall.gateways
            for path in paths
            for _ in range(10)
        )
    )
    assert sum(street.provider.count(path) for path in paths) == 1
    refused = {(reply.status, reply.code) for reply in replies if reply.status != 200}
    assert refused <= {(422, "idempotency_key_reused"), (409, "idempotency_in_progress")}
    payment = await street.payment(stall.gateways[0], caller, tx_hash)
    assert int(payment["credit"]) == 49 * PRICE_UNITS
