"""Two gateways on one database, and many callers of metered calls, short ones and streams: at the end nothing is held, each payment has lost what its calls took,
and the audit computes each price again."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.long.torture.measures import stopwatch
from tollway.storage.engine.database import connect_database

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1_200)]

SETTINGS = {
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ADDRESS_MAX": "100000",
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ORIGIN_MAX": "100000",
    "TOLLWAY_LOG_LEVEL": "warning",
}
METERING = {
    "base": "0.0001",
    "parts": [{"unit": "byte", "unitPrice": "0.000001", "quantity": {"bytes": True}}],
}
BASE_UNITS = 100
PATHS = ("/quote/ETH?number={}", "/stream?count=3&interval=0&number={}", "/bytes/{}")
"""Priced at the head, at the end of a stream, and by a length that differs."""
BYTES_MAX = 9_000
"""Below the maximum, so that the price of each of these calls is its length."""


@pytest.mark.parametrize(
    ("kind", "gateways"),
    [pytest.param("postgresql", 2, marks=pytest.mark.postgres), ("sqlite", 1)],
    ids=["two-on-postgresql", "one-on-sqlite"],
)
async def test_metered_calls_of_a_crowd_take_what_they_used(
    cluster: Any, torture: Any, kind: str, gateways: int
) -> None:
    payers_count, at_once, calls = torture.pick(short=(4, 16, 240), long=(64, 256, 40_000))
    url = (
        await cluster.make_postgres()
        if kind == "postgresql"
        else f"sqlite:///{cluster.folder}/metered-crowd.sqlite3"
    )
    async with cluster.gateways(gateways, database_url=url, settings=SETTINGS) as processes:
        provider = await cluster.wallet()
        api_id = await cluster.publish(processes[0], provider, metering=METERING)
        payers = await cluster.wallets(payers_count)
        each = calls // payers_count
        hashes = await cluster.pay_in_bulk(payers, provider.address, each=each)
        proofs = [plain(payer, tx_hash) for payer, tx_hash in zip(payers, hashes, strict=True)]
        numbers = iter(range(each * payers_count))
        sizes = 0

        async def call_one_after_the_other() -> None:
            nonlocal sizes
            for number in numbers:
                path = PATHS[number % len(PATHS)].format(number % BYTES_MAX)
                gateway, headers = processes[number % gateways], proofs[number % payers_count]
                reply = await cluster.call(gateway, api_id, path, headers=headers, deadline_s=120.0)
                assert reply.status == 200, reply.body
                sizes += len(reply.body)

        with stopwatch() as elapsed_s:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(call_one_after_the_other())
            seconds = elapsed_s()
        database = connect_database(url)
        try:
            await poll(lambda: _is_measured(database), what="the price of each call")
            taken, dearest = await database.read(
                lambda c: tuple(
                    c.execute(text("SELECT sum(actual_units), max(actual_units) FROM call")).one()
                )
            )
        finally:
            await database.close()
        made = each * payers_count
        assert taken == made * BASE_UNITS + sizes
        assert dearest < PRICE_UNITS
        report = await cluster.audit(processes[0])
        assert (report.wrong, report.held_calls, report.held_payments) == ((), (), ())
        assert report.calls == made
        if torture.pick(short=True, long=False):  # pages of fifty rows
            await cluster.check_exports(processes[0])
        left = [
            await _find_rest(cluster, processes[-1], payer, tx_hash)
            for payer, tx_hash in zip(payers, hashes, strict=True)
        ]
        assert sum(left) == made * PRICE_UNITS - taken
    torture.tell(
        gateways=gateways, calls=made, at_once=at_once, calls_per_s=round(made / seconds), taken=int(taken)
    )


async def _is_measured(database: Any) -> bool:
    count = text("SELECT count(*) FROM call WHERE actual_units IS NULL")
    return bool(await database.read(lambda c: c.execute(count).scalar_one()) == 0)


async def _find_rest(cluster: Any, gateway: Any, payer: Any, tx_hash: Any) -> int:
    """What is left of a payment, in base units."""
    shown = await cluster.payment(gateway, payer, tx_hash)
    assert shown["state"] == "credited", shown
    return int(shown["credit"])
