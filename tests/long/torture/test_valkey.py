"""Two gateways share their rate counts on a Valkey server, which is killed under load and restarted: rates become
those of each gateway, every paid call is served once, and no caller gets a second 402."""

import asyncio
import itertools
import json
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.kit.ports import find_low_ports
from tests.kit.signed_calls import QUICK, PaidListing
from tests.kit.valkey import run_valkey

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.postgres,
    pytest.mark.timeout(600),
]

FREE_PER_MINUTE = 60
SETTINGS = {
    **QUICK,
    "TOLLWAY_LOG_FORMAT": "json",
    "TOLLWAY_LIMIT_HEADER_DEADLINE_S": "120",  # no idle connection is closed
    # Long, because a busy machine is not an outage; a killed server refuses connections at once.
    "TEST_LIMIT_SHARED_RATES_DEADLINE_S": "5",
    "TEST_LIMIT_SHARED_RATES_RETRY_S": "0.1",
}
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two gateways on one database and one name. `admins`: the addresses of their metrics."""

    cluster: Any
    gateways: list[Any]
    admins: list[str]
    server: Any
    stall: PaidListing

    async def wait_shared(self, value: int) -> None:
        """Waits until every gateway reports shared counts (1) or its own (0)."""

        async def is_told() -> bool:
            for admin in self.admins:
                reply = await self.cluster.send(f"{admin}/metrics")
                if f"tollway_shared_rates_up {value}.0" not in reply.body.decode():
                    return False
            return True

        await poll(is_told, what=f"tollway_shared_rates_up {value}")

    def count_told(self, event: str) -> list[int]:
        lines = [line for gateway in self.gateways for line in gateway.read_log().splitlines()]
        assert all(json.loads(line) for line in lines if line.startswith("{"))
        return [len(re.findall(f'"{event}"', gateway.read_log())) for gateway in self.gateways]

    async def call_for_nothing(self, times: int) -> list[int]:
        """Makes so many free calls of one new listing at each gateway, all at once. Returns how many each served."""
        api_id = await self.cluster.publish(self.gateways[0], self.stall.provider, pricePerRequest="0")
        for gateway in self.gateways:
            await poll(lambda gateway=gateway: self._knows(gateway, api_id), what="the listing")

        async def count_passed(gateway: Any) -> int:
            replies = await asyncio.gather(
                *(self.cluster.call(gateway, api_id, "/echo/free") for _ in range(times))
            )
            assert {(reply.status, reply.code) for reply in replies} <= {(200, None), (429, "rate_limited")}
            return sum(reply.status == 200 for reply in replies)

        return list(await asyncio.gather(*(count_passed(gateway) for gateway in self.gateways)))

    async def _knows(self, gateway: Any, api_id: str) -> bool:
        """Reads it without a call, because a call would count."""
        return (await self.cluster.send(f"{gateway.base_url}/api/v2/apis/{api_id}")).status == 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    (gas,) = await cluster.wallets(1)
    admins = [f"127.0.0.1:{port}" for port in find_low_ports(2)]
    with run_valkey(Path(tmp_path_factory.mktemp("valkey"))) as server:
        options = {
            "database_url": await cluster.make_postgres(),
            "settings": {
                **SETTINGS,
                "TOLLWAY_RATE_LIMIT_URL": server.url,
                "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
            },
        }

        def given(admin: str) -> Any:
            return {**options, "settings": {**options["settings"], "TOLLWAY_ADMIN_LISTEN": admin}}

        async with (
            cluster.gateway(**given(admins[0])) as first,
            cluster.gateway(**given(admins[1]), public_url=first.public_url) as second,
        ):
            gateways = [first, second]
            stall = await PaidListing.open(cluster, gateways)
            yield Pair(
                cluster=cluster,
                gateways=gateways,
                admins=[f"http://{admin}" for admin in admins],
                server=server,
                stall=stall,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Paid calls at both gateways, each with its own path. `heard`: the response of each."""

    pair: Pair
    payer: Any
    tx_hash: Any
    wallets: list[Any]
    heard: Counter[tuple[str, int, str | None]]
    paths: list[str]

    async def run(self, rounds: int) -> None:
        await asyncio.gather(*(self._run_one(rounds, wallet) for wallet in self.wallets))

    async def _run_one(self, rounds: int, wallet: Any) -> None:
        cluster, stall = self.pair.cluster, self.pair.stall
        for one, other in itertools.islice(
            itertools.cycle(itertools.permutations(self.pair.gateways)), rounds
        ):
            path = self._path("credit")
            self._note("credit", await cluster.call(one, stall.api_id, path, headers=self._proof()))
            call = stall.sign(wallet, self._path("signed"))
            self._note("signed", await call.send(other))
            path = self._path("keyed")
            headers = [*self._proof(), ("Idempotency-Key", secrets.token_hex(8))]
            for gateway in (one, other):
                reply = await cluster.call(gateway, stall.api_id, path, method="POST", headers=headers)
                self._note("keyed", reply)
            if reply.headers.get("Idempotency-Replayed") == "true":
                self.heard["replayed", 200, None] += 1

    def _path(self, kind: str) -> str:
        path = f"/echo/{kind}-{next(_NUMBERS)}"
        self.paths.append(path)
        return path

    def _proof(self) -> list[tuple[str, str]]:
        return plain(self.payer, self.tx_hash)

    def _note(self, kind: str, reply: Any) -> None:
        self.heard[kind, reply.status, reply.code] += 1


async def test_a_server_killed_under_load_loosens_rates_and_changes_no_charge(
    pair: Pair, torture: Any
) -> None:
    cluster, rounds = pair.cluster, torture.pick(short=3, long=8)
    workers = torture.pick(short=3, long=6)
    calls = rounds * workers
    (payer, *wallets) = await cluster.wallets(1 + workers)
    tx_hash = await cluster.send_tokens(payer, pair.stall.provider.address, 3 * 2 * calls * PRICE_UNITS)
    load = Load(pair=pair, payer=payer, tx_hash=tx_hash, wallets=wallets, heard=Counter(), paths=[])
    await pair.wait_shared(1)

    together = await pair.call_for_nothing(FREE_PER_MINUTE)
    assert sum(together) == FREE_PER_MINUTE

    async with asyncio.TaskGroup() as group:  # killed while calls run
        running = group.create_task(load.run(rounds))
        before = len(load.paths)
        await poll(lambda: len(load.paths) - before >= calls, deadline_s=120, what="half of the load")
        assert not running.done()
        pair.server.kill()
    await pair.wait_shared(0)
    alone = await pair.call_for_nothing(FREE_PER_MINUTE + 5)
    assert alone == [FREE_PER_MINUTE, FREE_PER_MINUTE]
    assert pair.count_told("shared_rates_away") == [1, 1]

    async with asyncio.TaskGroup() as group:  # restarted while calls run
        group.create_task(load.run(rounds))
        pair.server.start()
    await pair.wait_shared(1)
    again = await pair.call_for_nothing(FREE_PER_MINUTE)
    assert sum(again) == FREE_PER_MINUTE
    assert pair.count_told("shared_rates_up") == [2, 2]

    paid = 2 * calls
    assert load.heard == {
        ("credit", 200, None): paid,
        ("signed", 200, None): paid,
        ("keyed", 200, None): 2 * paid,
        ("replayed", 200, None): paid,
    }
    assert Counter(cluster.provider.count(path) for path in load.paths) == {1: 3 * paid}
    await pair.stall.check_ledger()
    torture.tell(
        paid_calls=3 * paid, keyed_repeats=paid, free_together=together, free_alone=alone, free_again=again
    )


async def test_a_server_that_hangs_delays_no_call_on_credit(pair: Pair, torture: Any) -> None:
    """Its connections stay open. A caller without a rate of its own is not delayed."""
    cluster, calls = pair.cluster, torture.pick(short=20, long=400)
    payer = await cluster.wallet()
    tx_hash = await cluster.send_tokens(payer, pair.stall.provider.address, calls * PRICE_UNITS)
    await pair.wait_shared(1)
    pair.server.halt()
    try:
        paths = [f"/echo/calm-{next(_NUMBERS)}" for _ in range(calls)]
        gateways = itertools.cycle(pair.gateways)
        replies = await asyncio.gather(
            *(
                cluster.call(next(gateways), pair.stall.api_id, path, headers=plain(payer, tx_hash))
                for path in paths
            )
        )
    finally:
        pair.server.go_on()
    assert Counter(reply.status for reply in replies) == {200: calls}
    assert Counter(cluster.provider.count(path) for path in paths) == {1: calls}
    await pair.wait_shared(1)
    torture.tell(paid_calls=calls)
