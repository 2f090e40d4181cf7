"""PostgreSQL is down for 13 s under two gateways that take x402 payments. Afterwards both take them again by
themselves, every background task runs, no call was paid twice, and none was served unpaid."""

import asyncio
import contextlib
import itertools
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.authorization_payer import AuthorizationPayer, Quote
from tests.kit.gateway_cluster import PRICE_UNITS
from tests.kit.gateway_process import poll
from tests.kit.ports import find_low_port, find_low_ports
from tests.kit.postgres_pair import run_pair
from tollway.observability.background import TaskName
from tollway.sandbox.chain import START_USDC_UNITS

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.postgres,
    pytest.mark.timeout(600),
]

AWAY_S = 13.0
CALLERS_EACH = 2
QUICK = {
    "TEST_LIMIT_OWNER_RENEW_S": "0.3",
    "TEST_LIMIT_RECOVERY_INTERVAL_S": "0.5",
    "TEST_LIMIT_SWEEP_INTERVAL_S": "0.5",
    "TEST_LIMIT_GAS_REFRESH_S": "0.5",
    "TEST_LIMIT_WATCH_INTERVAL_S": "0.5",
    "TEST_LIMIT_LEADER_POLL_S": "0.5",
}
AWAY = {"storage_unavailable", "payment_outcome_unknown", "chain_unavailable", "idempotency_in_progress"}
"""What a caller may be told of an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Two gateways on one database. `admins`: the addresses of their metrics."""

    cluster: Any
    database: Any
    gateways: list[Any]
    admins: list[str]
    api_id: str
    served: Counter[int] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    callers: list[tuple[AuthorizationPayer, Counter[str]]] = field(default_factory=list)

    async def call_on(self, number: int, name: str) -> None:
        """One caller at one gateway: it pays for each call with a new authorisation and repeats each until it is
        served."""
        payer = AuthorizationPayer(
            cluster=self.cluster,
            gateway=self.gateways[number],
            api_id=self.api_id,
            signer=await self.cluster.wallet(),
        )
        served = Counter[str]()
        self.callers.append((payer, served))
        for turn in itertools.count():
            path = f"/echo/{name}-{turn}"
            headers: list[tuple[str, str]] = []
            while (reply := await payer.call(path, headers)).status != 200:
                if reply.status == 402 and not headers:
                    headers = [payer.show(Quote.read(reply))]
                    continue
                self.refused[str(reply.code)] += 1
                await asyncio.sleep(0.05)  # a real caller waits for Retry-After
            self.served[number] += 1
            served[path] += 1

    @contextlib.asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self.call_on(number, f"caller-{number}-{each}"))
                for number in range(len(self.gateways))
                for each in range(CALLERS_EACH)
            ]
            yield
            for task in tasks:
                task.cancel()

    async def wait_served(self, *, what: str) -> None:
        """Waits for further calls at each gateway."""
        goals = {number: self.served[number] + 5 for number in range(len(self.gateways))}
        await poll(
            lambda: all(self.served[number] >= goal for number, goal in goals.items()),
            what=what,
        )

    async def read_failures(self, admin: str) -> dict[str, int]:
        """The failed runs in a row, by background task."""
        told = (await self.cluster.send(f"{admin}/metrics")).body.decode()
        assert "tollway_background_tasks_ended 0.0" in told
        rows = re.findall(r'tollway_background_task_failures\{task="(\w+)"\} (\d+)', told)
        return {task: int(failures) for task, failures in rows}

    async def have_failed(self, *names: TaskName) -> bool:
        """Twice in a row, at each gateway."""
        told = [await self.read_failures(admin) for admin in self.admins]
        return all(failures.get(name, 0) >= 2 for failures in told for name in names)

    async def run_well(self) -> bool:
        return not any([any((await self.read_failures(admin)).values()) for admin in self.admins])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(cluster: Any) -> AsyncIterator[Site]:
    (gas,) = await cluster.wallets(1)
    provider = await cluster.wallet()
    admins = [f"127.0.0.1:{port}" for port in find_low_ports(2)]
    given = {**QUICK, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
    async with (
        run_pair(find_low_port) as database,
        cluster.gateway(
            database_url=database.url, settings={**given, "TOLLWAY_ADMIN_LISTEN": admins[0]}
        ) as first,
        cluster.gateway(
            database_url=database.url,
            public_url=first.public_url,
            settings={**given, "TOLLWAY_ADMIN_LISTEN": admins[1]},
        ) as second,
    ):
        yield Site(
            cluster=cluster,
            database=database,
            gateways=[first, second],
            admins=[f"http://{admin}" for admin in admins],
            api_id=await cluster.publish(first, provider),
        )


async def test_x402_returns_after_postgresql_was_down_for_13_s(site: Site, torture: Any) -> None:
    """The short form waits until the check of gas prices has failed twice: this check once stopped for good."""
    away_s = torture.pick(short=0.0, long=AWAY_S)
    rounds = torture.pick(short=1, long=2)
    async with site.calling():
        await site.wait_served(what="calls before the outage")
        for _ in range(rounds):
            await site.database.primary.kill()
            ends_s = time.monotonic() + away_s
            await poll(
                lambda: site.have_failed(
                    TaskName.GAS_CHECK, TaskName.LEASE_RENEWAL, TaskName.WATCHER_ELECTION
                ),
                what="failed runs at both gateways",
            )
            await poll(lambda ends_s=ends_s: time.monotonic() >= ends_s, what="13 s")
            await site.database.primary.start()
            for gateway in site.gateways:
                await gateway.wait_ready()
            await site.wait_served(what="x402 calls after the outage")
            await poll(site.run_well, what="background tasks that run well")
    assert set(site.refused) <= AWAY
    for payer, served in site.callers:
        spent_units = START_USDC_UNITS - await payer.balance()
        # The last call was interrupted. A call with a lost response is repeated and paid once.
        assert served.total() * PRICE_UNITS <= spent_units <= (served.total() + 1) * PRICE_UNITS
    assert (await site.cluster.audit(site.gateways[0])).wrong == ()
    for gateway in site.gateways:
        log = gateway.read_log()
        assert "background_task_failed" in log
        assert "background_task_recovered" in log
        assert "background_task_ended" not in log
        assert "Traceback" not in log
    torture.tell(served=sum(site.served.values()), refused=sum(site.refused.values()), outages=rounds)
