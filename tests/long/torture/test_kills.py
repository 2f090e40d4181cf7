"""Two hundred times SIGKILL for a random gateway under load, each restarted at once. The upstream's log has no call
twice, no response is without a record, and soon every payment is spent, spendable, or held with a reason that its
payer can read; what channels were charged is claimed, and no more."""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import pytest

from tests.kit.databases import pass_lease, set_database_clock
from tests.kit.gateway_process import GatewayProcess
from tests.kit.scripted_upstream import ALWAYS, run_scripted_upstream
from tests.kit.signed_calls import LEASE_S, RENEWS_OFTEN
from tests.kit.waits import DEADLINE_S
from tests.long.torture.channel_load import ChannelLoad
from tests.long.torture.kill_load import KINDS, KillLoad
from tests.long.torture.measures import stopwatch

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1_200)]

IS_LONG = os.environ.get("TORTURE") == "long"
SETTLED_WITHIN_S = 60.0 if IS_LONG else DEADLINE_S
"""After the last kill, while the callers finish what they are about: a minute, held where the machine has nothing else to do."""
LAST_LOOK_S = 10.0 if IS_LONG else DEADLINE_S
"""After their last requests, when no gateway is killed any more."""
ANSWERS_BETWEEN = 25
"""At most this many answers are waited for between two kills; none at all is a kill while another one starts."""
PROGRESS_DEADLINE_S = 120.0
SETTINGS = {
    "TOLLWAY_CHANNELS": "true",
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ADDRESS_MAX": "100000",
    "TOLLWAY_LOG_LEVEL": "warning",
    "TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "2",
}
QUICK = {
    **RENEWS_OFTEN,
    "TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "0.3",
    "TEST_LIMIT_RECOVERY_INTERVAL_S": "0.2",
    "TEST_LIMIT_SWEEP_INTERVAL_S": "0.2",
}


@pytest.mark.parametrize(
    ("kind", "gateways", "kills", "callers"),
    [
        pytest.param("postgresql", 3, (4, 200), (1, 4), marks=pytest.mark.postgres),
        ("sqlite", 1, (2, 40), (1, 3)),
    ],
    ids=["three-on-postgresql", "one-on-sqlite"],
)
async def test_kill_9_under_load_repeats_no_call_loses_no_record_and_leaves_no_payment_without_a_state(
    cluster: Any,
    torture: Any,
    kind: str,
    gateways: int,
    kills: tuple[int, int],
    callers: tuple[int, int],
) -> None:
    count, crowd = (
        torture.pick(short=kills[0], long=kills[1]),
        torture.pick(short=callers[0], long=callers[1]),
    )
    url = await make_skewed(cluster) if kind == "postgresql" else f"sqlite:///{cluster.folder}/kills.sqlite3"
    gas, *channel_wallets = await cluster.wallets(1 + crowd)
    settings = {**SETTINGS, **torture.pick(short=QUICK, long={}), "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
    async with (
        run_scripted_upstream(turns_default=ALWAYS) as upstream,
        cluster.gateways(gateways, database_url=url, settings=settings) as processes,
    ):
        channels = await ChannelLoad.start(cluster, processes, upstream, dice=child(torture.random))
        load = await KillLoad.start(cluster, processes, upstream, url=url, dice=child(torture.random))
        with stopwatch() as storm_s:
            last_kill_s, settled_s = await blow(
                load,
                processes,
                storm_s,
                on_channels=[partial(channels.call_on, wallet) for wallet in channel_wallets],
                kills=count,
                callers=crowd,
                dice=torture.random,
                passes_lease=kind == "postgresql" and not IS_LONG,
            )
        for process in processes:
            await process.wait_ready()
        await load.finish()
        await channels.finish()
        await load.wait_settled(deadline_s=LAST_LOOK_S)
        states = await load.check_upstream()
        fates = await load.check_payers(processes[-1])
        settled = await load.check_chain()
        in_channels = await channels.check()
        assert (await cluster.audit(processes[0])).wrong == ()
        sums = await cluster.check_exports(processes[0])
        assert await cluster.prove_closed_hours(processes[0]) > 0
    torture.tell(
        gateways=gateways,
        kills=count,
        errands=len(load.errands),
        answers=load.answered.count,
        upstream=upstream.heads.total(),
        kills_per_s=round(count / last_kill_s, 2),
        settled_s=round(settled_s, 1),
        transfers=settled,
        channels=len(channels.channels),
        channel_calls=dict(channels.told),
        **in_channels,
        calls=dict(states),
        payments=dict(fates),
        exported={f"{state} {asset}": units for (state, asset), units in sums.items()},
    )


async def make_skewed(cluster: Any) -> str:
    """A PostgreSQL database whose clock a test sets."""
    url: str = await cluster.make_postgres()
    await set_database_clock(url, skew_s=0)
    return url


async def blow(
    load: KillLoad,
    processes: list[GatewayProcess],
    elapsed_s: Callable[[], float],
    *,
    kills: int,
    callers: int,
    dice: random.Random,
    passes_lease: bool,
    on_channels: Sequence[Callable[[random.Random, Callable[[], bool]], Coroutine[Any, Any, None]]] = (),
) -> tuple[float, float]:
    """All callers call while gateways are killed; at the end every caller has finished its call. Returns the moment
    of the last kill, and the time from then until no call was open. `passes_lease`: by the clock of the database; else
    it ends by itself, and on SQLite recovery waits for none. `on_channels`: callers beside those of the load."""
    is_over, last_kill_s = False, 0.0
    async with asyncio.TaskGroup() as group:
        for kind in KINDS:
            for _ in range(callers):
                group.create_task(load.call_on(kind, child(dice), lambda: is_over))
        for call_on in on_channels:
            group.create_task(call_on(child(dice), lambda: is_over))
        for _ in range(kills):
            more = dice.randrange(ANSWERS_BETWEEN)
            await load.answered.wait_more(more, deadline_s=PROGRESS_DEADLINE_S, what="answers between kills")
            dice.choice(processes).kill_and_restart()
            last_kill_s = elapsed_s()
        is_over = True
        if passes_lease:
            await pass_lease(load.url, lease_s=LEASE_S, renewing=len(processes))
        await load.wait_settled(deadline_s=SETTLED_WITHIN_S)
        settled_s = elapsed_s() - last_kill_s
    return last_kill_s, settled_s


def child(dice: random.Random) -> random.Random:
    """A random generator of its own, so that other draws do not change its numbers."""
    return random.Random(dice.getrandbits(64))
