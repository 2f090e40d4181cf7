"""A soak: hours of paid calls at half load in a minute, or in as long as `python -m tests.long.torture.soak` says. Gateways are restarted and killed, their chain
node comes and goes, backups are taken, the secret key changes and the tables become those of the next release. No call and no unit is lost, every sum agrees,
and the memory of the gateways does not grow."""

import os
from typing import Any

import pytest

from tests.kit import small_caches
from tests.kit.databases import set_database_clock
from tests.kit.gateway_process import GatewayProcess
from tests.kit.node_proxy import name_nodes, run_node_proxy
from tests.kit.signed_calls import RENEWS_OFTEN
from tests.long.torture.soak_rounds import DISTURBANCES, Round, Soak

SECONDS = float(os.environ.get("SOAK_SECONDS") or 0)
"""Of load, without the checks between rounds. 0: the tiny form, of eight seconds."""
TINY_S = 8.0
GROWTH_KIB_MAX = 24 * 1024
"""Of a gateway, over the rounds in which no gateway is restarted, from the end of the first of them."""

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1_200 + 3 * SECONDS)]

SETTINGS = {
    "TOLLWAY_CHANNELS": "true",
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ADDRESS_MAX": "100000",
    "TOLLWAY_LOG_LEVEL": "warning",
    "TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "2",
    small_caches.ENTRIES: "500",  # full in the first rounds, so that a growth of later ones is none of a cache
}
QUICK = {
    **RENEWS_OFTEN,
    "TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "0.3",
    "TEST_LIMIT_RECOVERY_INTERVAL_S": "0.2",
    "TEST_LIMIT_SWEEP_INTERVAL_S": "0.2",
    "TOLLWAY_LIMIT_RPC_DEADLINE_S": "2",
}


@pytest.mark.parametrize(
    ("kind", "gateways"),
    [pytest.param("postgresql", 2, marks=pytest.mark.postgres), ("sqlite", 1)],
    ids=["on-postgresql", "on-sqlite"],
)
async def test_nothing_is_lost_through_restarts_outages_backups_a_new_key_and_an_upgrade(
    cluster: Any, torture: Any, kind: str, gateways: int
) -> None:
    is_tiny = not SECONDS
    url = f"sqlite:///{cluster.folder}/soak.sqlite3"
    if kind == "postgresql":
        url = await cluster.make_postgres()
        if is_tiny:
            await set_database_clock(url, skew_s=0)
    gas = await cluster.wallet()
    async with run_node_proxy(cluster.session, cluster.driver.rpc_url) as node:
        settings = {
            **SETTINGS,
            **(QUICK if is_tiny else {}),
            **name_nodes(cluster.folder, [node]),
            "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        }
        async with cluster.gateways(gateways, database_url=url, settings=settings) as processes:
            soak = Soak(
                cluster=cluster,
                processes=processes,
                url=url,
                node=node,
                folder=cluster.folder,
                dice=torture.random,
                callers=1 if is_tiny else 2,
                passes_lease=is_tiny and kind == "postgresql",
            )
            await soak.run(seconds=SECONDS or TINY_S)
            await check_whole(cluster, processes)
    growth_kib = measure_growth(soak.rounds)
    torture.tell(
        database=kind,
        gateways=gateways,
        rounds=len(soak.rounds),
        answers=sum(one.answers for one in soak.rounds),
        full_load_per_s=round(soak.rounds[0].per_s, 1),
        then_per_s=[round(one.per_s, 1) for one in soak.rounds[1:]],
        income_units=sum(one.income_units for one in soak.rounds),
        memory_mib=[[round(kib / 1024, 1) for kib in one.memory_kib] for one in soak.rounds],
        growth_mib=[round(kib / 1024, 1) for kib in growth_kib],
    )
    assert max(growth_kib) <= GROWTH_KIB_MAX, (growth_kib, soak.rounds)


async def check_whole(cluster: Any, processes: list[GatewayProcess]) -> None:
    """The audit finds nothing, the exports of all wallets add up to the ledger, and so do its closed hours."""
    exit_code, told = await cluster.operate(processes[0], "audit")
    assert (exit_code, told["balanced"]) == (0, True), told
    await cluster.check_exports(processes[0])
    assert await cluster.prove_closed_hours(processes[0]) > 0


def measure_growth(rounds: list[Round]) -> list[int]:
    """KiB of each gateway, over the rounds after the last restart."""
    lives = zip(*(one.memory_kib for one in rounds[1 + len(DISTURBANCES) :]), strict=True)
    return [life[-1] - life[0] for life in lives]
