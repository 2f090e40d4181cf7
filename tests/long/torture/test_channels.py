"""Callers who pay over channels while a random gateway is killed again and again, and while blocks with deposits, claims and refunds are replaced. At the end each channel is claimed to
what its payer knows as charged, the provider has that sum and no more, and no deposit or refund was made twice."""

import asyncio
import os
import random
from typing import Any

import pytest

from tests.kit.databases import pass_lease, set_database_clock
from tests.kit.fault_injection import POINTS, RESENDS_SOON
from tests.kit.scripted_upstream import ALWAYS, run_scripted_upstream
from tests.kit.signed_calls import LEASE_S, QUICK, RENEWS_OFTEN
from tests.long.torture.channel_load import ChannelLoad

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1_200)]

IS_LONG = os.environ.get("TORTURE") == "long"
ANSWERS_BETWEEN = 25
"""At most this many responses are waited for between two faults."""
PROGRESS_DEADLINE_S = 120.0
DEPTH_MAX = 3
SETTINGS = {
    "TOLLWAY_CHANNELS": "true",
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ADDRESS_MAX": "100000",
    "TOLLWAY_LOG_LEVEL": "warning",
    "TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "0.3",
    "TEST_LIMIT_WATCH_INTERVAL_S": "0.3",
    "TEST_LIMIT_RESPONSE_READING_S": "0.5",
    **QUICK,
    **RENEWS_OFTEN,
    **POINTS,
    **RESENDS_SOON,
}


@pytest.mark.parametrize(
    ("kind", "gateways", "faults"),
    [
        pytest.param("postgresql", 2, ("kill",), marks=pytest.mark.postgres),
        ("sqlite", 1, ("kill", "reorganisation")),
    ],
    ids=["two-on-postgresql", "one-on-sqlite-with-reorganisations"],
)
async def test_channels_in_a_storm_are_claimed_to_what_was_charged(
    own_chain_cluster: Any, cluster: Any, torture: Any, kind: str, gateways: int, faults: tuple[str, ...]
) -> None:
    count, callers = torture.pick(short=6, long=200), torture.pick(short=3, long=8)
    here = own_chain_cluster if "reorganisation" in faults else cluster
    url = f"sqlite:///{here.folder}/channels.sqlite3"
    if kind == "postgresql":
        url = await here.make_postgres()
        await set_database_clock(url, skew_s=0)
    gas, *wallets = await here.wallets(1 + callers)
    settings = {**SETTINGS, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
    dice = torture.random
    async with (
        run_scripted_upstream(turns_default=ALWAYS) as upstream,
        here.gateways(gateways, database_url=url, settings=settings) as processes,
    ):
        load = await ChannelLoad.start(here, processes, upstream, dice=child(dice))
        await here.driver.mine(DEPTH_MAX)  # what the wallets have stays
        is_over = False
        async with asyncio.TaskGroup() as group:
            for wallet in wallets:
                group.create_task(load.call_on(wallet, child(dice), lambda: is_over))
            for number in range(count):
                more = dice.randrange(1, ANSWERS_BETWEEN)
                await load.answered.wait_more(
                    more, deadline_s=PROGRESS_DEADLINE_S, what="responses between faults"
                )
                if faults[number % len(faults)] == "kill":
                    dice.choice(processes).kill_and_restart()
                else:
                    await here.driver.reorg(dice.randint(1, DEPTH_MAX))
            is_over = True
            if kind == "postgresql":
                await pass_lease(url, lease_s=LEASE_S, renewing=gateways)
        for process in processes:
            await process.wait_ready()
        await load.finish()
        sums = await load.check()
        report = await here.audit(processes[0])
        assert (report.wrong, report.held_calls, report.held_payments) == ((), (), ())
        await here.check_exports(processes[0])
    torture.tell(
        gateways=gateways,
        faults=count,
        channels=len(load.channels),
        answers=load.answered.count,
        **load.told,
        **sums,
    )


def child(dice: random.Random) -> random.Random:
    """A random generator of its own, so that other draws do not change its numbers."""
    return random.Random(dice.getrandbits(64))
