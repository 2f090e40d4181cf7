"""SIGUSR1 to a gateway process: each paid call has its line until the next signal."""

import json
import signal
from typing import Any

import pytest

from tests.kit.gateway_cluster import plain
from tests.kit.gateway_process import poll

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_signal_logs_paid_calls_and_the_next_one_ends_it(cluster: Any) -> None:
    caller, provider = await cluster.wallets(2)
    async with cluster.gateway(settings={"TOLLWAY_LOG_FORMAT": "json"}) as gateway:
        api_id = await cluster.publish(gateway, provider)
        headers = plain(caller, await cluster.send_tokens(caller, provider.address, 10**6))

        def read_events(name: str) -> list[dict[str, Any]]:
            lines = [json.loads(line) for line in gateway.read_log().splitlines() if line.startswith("{")]
            return [line for line in lines if line["event"] == name]

        async def send_signal(level: str, count: int) -> None:
            gateway.process.send_signal(signal.SIGUSR1)

            async def has_changed() -> bool:
                return len(read_events("log_level_changed")) == count

            await poll(has_changed, what="the change of the level")
            assert read_events("log_level_changed")[-1]["now"] == level

        async def call(path: str) -> None:
            assert (await cluster.call(gateway, api_id, path, headers=headers)).status == 200

        await call("/echo/before")
        await send_signal("debug", 1)
        await call("/echo/while")
        await send_signal("info", 2)
        await call("/echo/after")
        (written,) = read_events("call_ended")
        assert (written["level"], written["outcome"]) == ("debug", "charged")
