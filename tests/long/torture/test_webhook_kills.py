"""SIGKILL for gateways that serve paid calls and deliver their events. Every call that the ledger has as charged reached the provider's receiver as
one event id with one body, however often it came; and no event tells of a charge that the ledger does not have."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kit.gateway_process import poll
from tests.kit.scripted_upstream import ALWAYS, run_scripted_upstream
from tests.kit.upstream import Arrived, LoopbackUpstream, plain, run_upstream
from tests.long.torture.kill_load import KillLoad
from tests.long.torture.test_kills import LAST_LOOK_S, QUICK, SETTINGS, blow, child, make_skewed

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1_200)]

DEADLINE_S = 120.0
TYPES = ("call.charged", "call.held", "call.resolved")
DELIVERY = {
    "TEST_LIMIT_WEBHOOK_POLL_S": "0.05",
    "TEST_LIMIT_WEBHOOK_ORIGIN_INTERVAL_S": "0.05",
    "TEST_LIMIT_LEADER_POLL_S": "0.2",
}
FAILS_EACH = 7
"""The receiver refuses one request of so many, so that messages are sent again."""


class Receiver:
    """What arrived at the provider: the bodies of each message id, and the members of each event id."""

    def __init__(self, upstream: LoopbackUpstream) -> None:
        self.bodies: dict[str, set[bytes]] = defaultdict(set)
        self.events: dict[str, set[str]] = defaultdict(set)
        self.requests = 0
        upstream.answer = self._answer

    async def _answer(self, arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        message = json.loads(arrived.body)
        if message["type"] == "webhook.challenge":
            challenge = json.dumps({"challenge": message["data"]["challenge"]})
            await plain(challenge.encode())(arrived, writer)
            return
        message_id = arrived.find("webhook-id") or ""
        self.bodies[message_id].add(bytes(arrived.body))
        members = message["data"]["events"] if message["type"] == "batch" else [{"id": message_id, **message}]
        for event in members:
            self.events[event["id"]].add(json.dumps(event, sort_keys=True))
        await plain(status=503 if self.requests % FAILS_EACH == 0 else 200)(arrived, writer)

    def charges(self) -> Counter[str]:
        """The number of event ids that say of each call that it is charged."""
        found = (json.loads(min(texts)) for texts in self.events.values())
        return Counter(
            event["data"]["callId"] for event in found if event["data"]["payment"]["state"] == "charged"
        )

    def check(self) -> None:
        assert {one for one, bodies in self.bodies.items() if len(bodies) > 1} == set()
        assert {one for one, texts in self.events.items() if len(texts) > 1} == set()


@pytest.mark.parametrize(
    ("kind", "gateways", "kills"),
    [
        pytest.param("postgresql", 2, (2, 20), marks=pytest.mark.postgres),
        ("sqlite", 1, (2, 20)),
    ],
    ids=["two-on-postgresql", "one-on-sqlite"],
)
async def test_every_charged_call_has_one_event_with_one_body_however_often_gateways_are_killed(
    cluster: Any, torture: Any, kind: str, gateways: int, kills: tuple[int, int]
) -> None:
    count = torture.pick(short=kills[0], long=kills[1])
    url = (
        await make_skewed(cluster)
        if kind == "postgresql"
        else f"sqlite:///{cluster.folder}/webhook-kills.sqlite3"
    )
    gas = await cluster.wallet()
    settings = {**SETTINGS, **QUICK, **DELIVERY, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
    async with (
        run_scripted_upstream(turns_default=ALWAYS) as upstream,
        run_upstream() as hooks,
        cluster.gateways(gateways, database_url=url, settings=settings) as processes,
    ):
        receiver = Receiver(hooks)
        load = await KillLoad.start(cluster, processes, upstream, url=url, dice=child(torture.random))
        await register(cluster, processes[0], load.provider, hooks.url)
        await blow(
            load,
            processes,
            lambda: 0.0,
            kills=count,
            callers=1,
            dice=torture.random,
            passes_lease=kind == "postgresql",
        )
        for process in processes:
            await process.wait_ready()
        await load.finish()
        await load.wait_settled(deadline_s=LAST_LOOK_S)
        charged = await load.find_charged()
        await poll(
            lambda: charged <= set(receiver.charges()), deadline_s=DEADLINE_S, what="an event of each charge"
        )
        receiver.check()
        assert receiver.charges() == Counter(charged)
        assert (await cluster.audit(processes[0])).wrong == ()
    assert len(charged) > count
    torture.tell(
        gateways=gateways,
        kills=count,
        charged=len(charged),
        events=len(receiver.events),
        messages=len(receiver.bodies),
        requests=receiver.requests,
    )


async def register(
    cluster: Any, gateway: Any, provider: Any, receiver_url: str, *, types: Sequence[str] = TYPES
) -> None:
    """Registers the receiver for events of calls, or of other types, and waits until its events count."""
    body = {"url": f"{receiver_url}/hooks", "types": list(types)}
    reply = await cluster.control(gateway, provider, "POST", "/webhooks", body)
    assert reply.status == 201, reply.body

    async def has_event() -> bool:
        listed = await cluster.control(gateway, provider, "GET", "/webhooks")
        assert listed.status == 200, listed.body
        (webhook,) = listed.json["webhooks"]
        return webhook["state"] == "active" and webhook["activeFrom"] <= await read_time(cluster, gateway)

    await poll(has_event, deadline_s=DEADLINE_S, what="an active webhook")


async def read_time(cluster: Any, gateway: Any) -> str:
    """The time of the gateway as RFC 3339."""
    reply = await cluster.send(f"{gateway.base_url}/api/v2/status")
    return str(reply.json["asOf"])
