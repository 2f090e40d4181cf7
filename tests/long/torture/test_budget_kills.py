"""SIGKILL for gateways whose callers spend under budgets, while their owner raises, lowers and revokes the policies. At each moment a budget counts what its calls cost, and
never more than its highest limit; and the owner's webhook got one event for each limit of a policy that refused."""

import asyncio
import json
from typing import Any

import pytest

from tests.kit.databases import pass_lease
from tests.kit.gateway_process import poll
from tests.kit.scripted_upstream import ALWAYS, run_scripted_upstream
from tests.kit.signed_calls import LEASE_S
from tests.kit.upstream import run_upstream
from tests.long.torture.budget_load import PROGRESS_DEADLINE_S, BudgetLoad
from tests.long.torture.test_kills import ANSWERS_BETWEEN, IS_LONG, QUICK, child, make_skewed
from tests.long.torture.test_webhook_kills import DEADLINE_S, DELIVERY, Receiver, register

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1_200)]

SETTINGS = {
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ADDRESS_MAX": "100000",
    "TEST_LIMIT_POLICIES_PER_HOUR": "100000",
    "TOLLWAY_LOG_LEVEL": "warning",
}


@pytest.mark.parametrize(
    ("kind", "gateways", "kills", "agents"),
    [
        pytest.param("postgresql", 3, (3, 100), (2, 4), marks=pytest.mark.postgres),
        ("sqlite", 1, (2, 40), (2, 3)),
    ],
    ids=["three-on-postgresql", "one-on-sqlite"],
)
async def test_a_budget_counts_its_calls_and_holds_its_limit_however_often_gateways_are_killed(
    cluster: Any, torture: Any, kind: str, gateways: int, kills: tuple[int, int], agents: tuple[int, int]
) -> None:
    count = torture.pick(short=kills[0], long=kills[1])
    url = (
        await make_skewed(cluster)
        if kind == "postgresql"
        else f"sqlite:///{cluster.folder}/budget-kills.sqlite3"
    )
    async with (
        run_scripted_upstream(turns_default=ALWAYS) as upstream,
        run_upstream() as hooks,
        cluster.gateways(gateways, database_url=url, settings={**SETTINGS, **QUICK, **DELIVERY}) as processes,
    ):
        receiver = Receiver(hooks)
        load = await BudgetLoad.start(
            cluster,
            processes,
            upstream,
            url=url,
            agents=torture.pick(short=agents[0], long=agents[1]),
            dice=child(torture.random),
        )
        await register(cluster, processes[0], load.owner, hooks.url, types=("budget.reached",))
        await blow(load, kills=count, dice=torture.random)
        for process in processes:
            await process.wait_ready()
        if kind == "postgresql" and not IS_LONG:
            await pass_lease(url, lease_s=LEASE_S, renewing=len(processes))
        await load.wait_ended()
        spent_units = await load.look()
        assert (await cluster.audit(processes[0])).wrong == ()
        events = await refuse_all(load, receiver)
    assert spent_units > 0
    assert load.told["200"] > 0
    torture.tell(
        gateways=gateways,
        kills=count,
        answers=load.answered.count,
        policies=dict(load.changed),
        spent_units=spent_units,
        events=events,
        told=dict(load.told),
    )


async def blow(load: BudgetLoad, *, kills: int, dice: Any) -> None:
    """All agents spend, and the owner changes their policies, while gateways are killed."""
    is_over = False
    async with asyncio.TaskGroup() as group:
        for spender in load.spenders:
            for job in (load.call_on, load.call_on, load.change_on):
                group.create_task(job(spender, child(dice), lambda: is_over))
        for _ in range(kills):
            more = ANSWERS_BETWEEN + dice.randrange(ANSWERS_BETWEEN)
            await load.answered.wait_more(more, deadline_s=PROGRESS_DEADLINE_S, what="answers between kills")
            dice.choice(load.processes).kill_and_restart()
        is_over = True


async def refuse_all(load: BudgetLoad, receiver: Receiver) -> int:
    """The last policy of each agent allows nothing: one refused call of each is one event more. Returns the number of events."""
    for spender in load.spenders:
        await load.set_limit(spender, 0)

    async def call(spender: Any) -> None:
        rest = iter((True, True, True, False))
        await load.call_on(spender, load.dice, lambda: not next(rest))

    for spender in load.spenders:
        await call(spender)
    last = {(str(one.budget.agent.address), one.budget.nonce) for one in load.spenders}
    await poll(
        lambda: last <= set(find_refusals(receiver)),
        deadline_s=DEADLINE_S,
        what="an event of the last refusals",
    )
    receiver.check()
    found = [(agent, nonce, *more) for (agent, nonce), more in list_refusals(receiver)]
    assert len(found) == len(set(found)), "a limit of a policy has two events"
    return len(found)


def find_refusals(receiver: Receiver) -> list[tuple[str, int]]:
    return [named for named, _ in list_refusals(receiver)]


def list_refusals(receiver: Receiver) -> list[tuple[tuple[str, int], tuple[Any, ...]]]:
    """Agent and nonce of each event, and what refused."""
    listed = []
    for texts in receiver.events.values():
        data = json.loads(min(texts))["data"]
        more = (data["reason"], data["limit"], data["resetsAt"])
        listed.append(((data["agent"], data["nonce"]), more))
    return listed
