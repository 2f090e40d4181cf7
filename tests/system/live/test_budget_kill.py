"""A gateway is killed between the claim and the end of a call under a budget. After a restart the budget has counted what its calls cost, and the limit holds."""

import contextlib
import signal
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.kit.budget_owner import BudgetOwner
from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.kit.upstream import run_upstream
from tests.system.live.test_kill import _RUNS, METERING, STREAM, lines, wait_recovered, wallets

__all__ = ["lines", "wallets"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


class Fate(NamedTuple):
    """What is spent after the kill, the response to another call, and the response to the same request: a held one runs again under its claim, which counts already."""

    spent: str
    other: tuple[int, str | None]
    again: tuple[int, str | None]


SERVED, REFUSED = (200, None), (403, "budget_exceeded")
FATES = {
    "before-claim": Fate("0", other=SERVED, again=REFUSED),
    "claimed": Fate("0.01", other=REFUSED, again=SERVED),
    "sent-no-head": Fate("0.01", other=REFUSED, again=SERVED),
    "closed": Fate("0.01", other=REFUSED, again=REFUSED),
}
METERED_FATES = {
    "sent-no-head": Fate("0.01", other=REFUSED, again=SERVED),
    "mid-body": Fate("0.001", other=REFUSED, again=REFUSED),
}
"""The maximum is held, or the base is taken; the limit leaves less than another maximum."""


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("point", FATES)
async def test_kill_9_leaves_the_budget_equal_to_its_calls(
    cluster: Any, wallets: list[Any], lines: Any, database: str, point: str
) -> None:
    line, provider = await lines(database), wallets[0]
    gateway = await line.gateway()
    if not line.api_id:
        line.api_id = await cluster.publish(gateway, provider)
    await check_fate(cluster, line, line.api_id, provider, point, FATES[point])


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("point", METERED_FATES)
async def test_kill_9_of_a_metered_call_counts_its_maximum_or_its_base(
    cluster: Any, wallets: list[Any], lines: Any, database: str, point: str
) -> None:
    line, provider = await lines(database), wallets[0]
    async with run_upstream() as upstream:
        upstream.answer = STREAM
        api_id = await cluster.publish(
            await line.gateway(), provider, endpoint=upstream.url, metering=METERING
        )
        await check_fate(cluster, line, api_id, provider, point, METERED_FATES[point])


async def check_fate(cluster: Any, line: Any, api_id: str, provider: Any, point: str, fate: Fate) -> None:
    gateway = await line.gateway()
    owner, agent = await cluster.wallets(2)
    budget = BudgetOwner(cluster=cluster, owner=owner, agent=agent)
    await budget.bind(gateway, maxTotal="0.01")
    tx_hash = await cluster.send_tokens(agent, provider.address, 3 * PRICE_UNITS)
    path, headers = f"/echo/{next(_RUNS)}/kill/{point}", plain(agent, tx_hash)
    with contextlib.suppress(aiohttp.ClientError, OSError):
        await cluster.call(gateway, api_id, path, headers=headers)
    assert await gateway.wait_ended() == -signal.SIGKILL

    gateway = await line.gateway()
    await line.pass_lease()
    await wait_recovered(cluster, gateway, [agent])

    async def is_counted() -> bool:
        return await budget.read_spent(gateway) == fate.spent

    await poll(is_counted, what=f"what is counted: {fate.spent}")
    assert (await cluster.audit(gateway)).wrong == ()
    for rest, expected in ((f"/echo/{next(_RUNS)}", fate.other), (path, fate.again)):
        reply = await cluster.call(gateway, api_id, rest, headers=headers)
        assert (reply.status, reply.code) == expected, reply.body
        assert not reply.asks_for_money
