"""Gateways that are killed with SIGKILL while they record payments and deliver their events: nothing is lost, and no id has two bodies.

The long form (`TORTURE=long`) kills twenty times."""

import asyncio
import contextlib
import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.gateway_process import clean_environment
from tests.kit.upstream import LoopbackUpstream, plain, run_upstream
from tests.kit.waits import kill, until

ROOT = Path(__file__).parents[2]
KILLS = 20 if os.environ.get("TORTURE") == "long" else 3
DEADLINE_S = 120.0


@contextlib.asynccontextmanager
async def run_gateway(folder: Path, database_url: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.app.killed_gateway", str(folder), database_url, url),
        cwd=ROOT,
        env=clean_environment({"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}),
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    try:
        yield process
    finally:
        await kill(process)


class Arrivals:
    """What the receiver got: the bodies of each message id, and the transactions of all members."""

    def __init__(self, receiver: LoopbackUpstream) -> None:
        self.bodies: dict[str, set[bytes]] = defaultdict(set)
        self.data: dict[str, set[str]] = defaultdict(set)
        self.transactions: set[str] = set()
        self.requests = 0
        receiver.answer = self._answer

    async def _answer(self, arrived: Any, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        message = json.loads(arrived.body)
        if message["type"] == "webhook.challenge":
            await plain(b'{"challenge": "echo"}')(arrived, writer)
            return
        message_id = arrived.find("webhook-id") or ""
        self.bodies[message_id].add(bytes(arrived.body))
        for event in message["data"].get("events") or [{"id": message_id, **message}]:
            self.data[event["id"]].add(json.dumps(event["data"]))
            self.transactions.add(event["data"]["transaction"])
        # Some receivers fail, so that there are messages to begin again.
        await plain(status=503 if self.requests % 7 == 0 else 200)(arrived, writer)


@pytest.mark.parametrize(
    ("fixture", "gateways"),
    [("sqlite_url", 1), pytest.param("postgres_url", 2, marks=pytest.mark.postgres)],
    ids=("sqlite", "two gateways on postgresql"),
)
async def test_killed_gateways_lose_no_event_and_change_no_body(
    request: pytest.FixtureRequest, tmp_path: Path, fixture: str, gateways: int, seed: int
) -> None:
    database_url = request.getfixturevalue(fixture)
    rolls = random.Random(seed)
    committed: set[str] = set()

    async def read(process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"0x"):  # not a line of the log
                committed.add(line.decode().strip())

    async with run_upstream() as receiver:
        arrivals = Arrivals(receiver)
        kills = 0
        while kills < KILLS:
            async with contextlib.AsyncExitStack() as stack:
                running = [
                    await stack.enter_async_context(run_gateway(tmp_path, database_url, receiver.url))
                    for _ in range(gateways)
                ]
                reading = [asyncio.get_running_loop().create_task(read(process)) for process in running]
                enough = len(committed) + rolls.randint(3, 120)
                await until(lambda enough=enough: len(committed) >= enough)  # type: ignore[misc]
                for process in running:
                    process.kill()
                    kills += 1
                await asyncio.gather(*reading)
        async with run_gateway(tmp_path, database_url, receiver.url) as last:
            reader = asyncio.get_running_loop().create_task(read(last))
            wanted = set(committed)
            await until(lambda: wanted <= arrivals.transactions)
            reader.cancel()
    assert len(wanted) > KILLS
    assert {message_id for message_id, bodies in arrivals.bodies.items() if len(bodies) > 1} == set()
    assert {event_id for event_id, data in arrivals.data.items() if len(data) > 1} == set()
    print(f"{kills} kills, {len(wanted)} events, {arrivals.requests} requests")
