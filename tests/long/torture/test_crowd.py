"""Four gateways on one PostgreSQL, and payments that many callers present at the same moment: the upstream's log has
exactly one call for each, and every other caller gets a refusal without a 402."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from tests.kit.gateway_cluster import API, bound, plain
from tests.kit.raw_callers import ParallelCallers, RawResponse, write_request
from tests.long.torture.measures import stopwatch

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1_200)]

CHOIRS_MAX = 4
"""Payments that are shown at the same time; each has its own crowd."""
SETTINGS = {
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ADDRESS_MAX": "100000",
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ORIGIN_MAX": "100000",
    "TOLLWAY_LOG_LEVEL": "warning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One payment worth one call, and the ways of all callers to present it at one path."""

    path: str
    payer: Any
    tx_hash: Any
    is_bound: bool

    def present(self, cluster: Any, gateway: Any, api_id: str, times: int) -> list[bytes]:
        """Plain: always the same headers. Bound: each with its own nonce, so that each could be the one that counts."""
        target, port = f"{API}/gateway/{api_id}{self.path}", int(gateway.base_url.rpartition(":")[2])
        if not self.is_bound:
            return [write_request(port, target, plain(self.payer, self.tx_hash))] * times
        chain_id = cluster.driver.chain_id
        return [
            write_request(
                port,
                target,
                bound(self.payer, self.tx_hash, gateway, api_id, self.path, chain_id=chain_id),
            )
            for _ in range(times)
        ]


@pytest.mark.parametrize(
    ("kind", "gateways"),
    [pytest.param("postgresql", 4, marks=pytest.mark.postgres), ("sqlite", 1)],
    ids=["four-on-postgresql", "one-on-sqlite"],
)
async def test_forty_thousand_presentations_of_two_hundred_payments_are_two_hundred_calls(
    cluster: Any, torture: Any, kind: str, gateways: int
) -> None:
    payments, times = torture.pick(short=(6, 40), long=(200, 200))
    url = (
        await cluster.make_postgres() if kind == "postgresql" else f"sqlite:///{cluster.folder}/crowd.sqlite3"
    )
    async with cluster.gateways(gateways, database_url=url, settings=SETTINGS) as processes:
        first, provider = processes[0], await cluster.wallet()
        api_id = await cluster.publish(first, provider)
        payers = await cluster.wallets(payments)
        hashes = await cluster.pay_in_bulk(payers, provider.address)
        tickets = [
            Ticket(path=f"/echo/{kind}/{number}", payer=payer, tx_hash=tx_hash, is_bound=number % 2 == 1)
            for number, (payer, tx_hash) in enumerate(zip(payers, hashes, strict=True))
        ]
        seen_before, commits_before = cluster.provider.seen_total, await count_transactions(url)

        with stopwatch() as elapsed_s:
            heard = await sing(
                cluster, [process.port for process in processes], first, api_id, tickets, times
            )
            seconds = elapsed_s()
        seen, commits = cluster.provider.seen_total - seen_before, await count_transactions(url)

        for ticket in tickets:
            check_answers(ticket, heard[ticket.path], times)
            assert cluster.provider.count(ticket.path) == 1
        assert seen == payments, "nothing else has reached the upstream"
        await cluster.check_exports(first)
        report = await cluster.audit(first)
        assert (report.wrong, report.held_calls, report.held_payments) == ((), (), ())
        assert (report.payments, report.calls) == (payments, payments)
        for ticket in torture.random.sample(tickets, 4):
            shown = await cluster.payment(processes[-1], ticket.payer, ticket.tx_hash)
            assert (shown["state"], shown["credit"], len(shown["calls"])) == ("spent", "0", 1)
    torture.tell(
        gateways=gateways,
        payments=payments,
        presentations=payments * times,
        calls=seen,
        presentations_per_s=round(payments * times / seconds),
        transactions=commits - commits_before,
    )


async def sing(
    cluster: Any, ports: list[int], gateway: Any, api_id: str, tickets: list[Ticket], times: int
) -> dict[str, list[RawResponse]]:
    """Presents each payment that often at one moment, a few payments at a time. Returns the responses by path."""
    heard: dict[str, list[RawResponse]] = {}
    waiting = iter(tickets)

    async def show_one_after_the_other() -> None:
        chorus = ParallelCallers(ports, times)
        try:
            for ticket in waiting:
                heard[ticket.path] = await chorus.ask(ticket.present(cluster, gateway, api_id, times))
        finally:
            chorus.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CHOIRS_MAX):
            group.create_task(show_one_after_the_other())
    return heard


def check_answers(ticket: Ticket, heard: list[RawResponse], times: int) -> None:
    """One is served; all others are refused because the payment is used, without the id of that call."""
    told = Counter((one.status, one.problem["code"] if one.status != 200 else None) for one in heard)
    assert told == {(200, None): 1, (409, "payment_already_used"): times - 1}, (ticket, told)
    for one in heard:
        assert one.status == 200 or "payment" not in one.problem, "a loser was asked for money"


async def count_transactions(url: str) -> int:
    """The transactions that PostgreSQL has begun and ended for this database; not counted for SQLite."""
    if not url.startswith("postgresql"):
        return 0
    connection = await asyncpg.connect(url)
    try:
        counted = (
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(await connection.fetchval(counted))
    finally:
        await connection.close()
