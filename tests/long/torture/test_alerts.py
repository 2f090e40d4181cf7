"""Five failures of a fleet of two gateways, each of which raises exactly its alerts.

The rules run over what the gateways exposed: scrapes are written as series of a `promtool` test. Time is stretched: each scrape of the failure stands for some
minutes, and counters grow evenly between two scrapes. `make alerts` runs this.
"""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.deploy_programs import need_debian
from tests.kit.gateway_process import poll
from tests.kit.ports import find_low_port, find_low_ports
from tests.kit.postgres_pair import run_pair

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.postgres,
    pytest.mark.timeout(300),
    pytest.mark.skipif("ALERTS" not in os.environ, reason="needs promtool: run `make alerts`"),
]

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "alerts.yaml"
HEALTHY_MIN, STRETCHED_MIN = 5, 5
"""Minutes that the scrapes before the failure stand for in all, and each interval between two scrapes of it."""
SCRAPES = 5
QUICK = {
    "TEST_LIMIT_OWNER_RENEW_S": "0.3",
    "TEST_LIMIT_GAS_REFRESH_S": "0.5",
    "TEST_LIMIT_LEADER_POLL_S": "0.3",
    "TEST_LIMIT_LEADER_LEASE_S": "2",
}
Samples = dict[str, float]
"""The samples of one scrape by their selector. Empty where the gateway did not answer."""


class Gate:
    """A TCP proxy before the chain node. `close` ends its connections and refuses further ones."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            back, forth = await asyncio.open_connection(*self._target)
            self._writers |= {writer, forth}
            await asyncio.gather(self._copy(reader, forth), self._copy(back, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while part := await reader.read(65_536):
                writer.write(part)
        writer.close()

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Two gateways on one database, and the scrapes of each so far."""

    cluster: Any
    database: Any
    gate: Gate
    gas: Any
    gateways: Sequence[Any]
    admins: Sequence[str]
    scrapes: list[list[Samples]] = field(default_factory=list)

    async def scrape(self) -> list[Samples]:
        found = await asyncio.gather(*(self._read(number) for number in range(len(self.admins))))
        self.scrapes.append(list(found))
        return list(found)

    async def _read(self, number: int) -> Samples:
        try:
            reply = await self.cluster.send(f"http://{self.admins[number]}/metrics", deadline_s=1.0)
            text = reply.body.decode()
        except (OSError, TimeoutError):
            return {}
        target = {"job": "tollway", "instance": f"gateway-{number}"}
        return {
            format_selector(sample.name, {**sample.labels, **target}): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def find_leader(self) -> int:
        """The gateway that leads as the watcher."""
        found: list[int] = []

        async def has_one() -> bool:
            found[:] = [
                number
                for number, samples in enumerate(await self.scrape())
                if any(
                    name.startswith("tollway_leading{") and 'duty="watcher"' in name and value == 1
                    for name, value in samples.items()
                )
            ]
            self.scrapes.pop()
            return len(found) == 1

        await poll(has_one, what="a leader")
        return found[0]


def format_selector(name: str, labels: dict[str, str]) -> str:
    inside = ", ".join(f"{label}={json.dumps(value)}" for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(cluster: Any) -> AsyncIterator[Fleet]:
    (gas,) = await cluster.wallets(1)
    node = urlsplit(cluster.driver.rpc_url)
    gate = Gate(str(node.hostname), int(node.port or 0))
    await gate.open()
    admins = [f"127.0.0.1:{port}" for port in find_low_ports(2)]
    settings = {**QUICK, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key, "TOLLWAY_RPC_SANDBOX": gate.url}
    async with (
        run_pair(find_low_port) as database,
        mining(cluster),
        cluster.gateways(
            2,
            database_url=database.url,
            settings=settings,
            own_settings=[{"TOLLWAY_ADMIN_LISTEN": admin} for admin in admins],
        ) as gateways,
    ):
        yield Fleet(cluster=cluster, database=database, gate=gate, gas=gas, gateways=gateways, admins=admins)
    gate.close()


@contextlib.asynccontextmanager
async def mining(cluster: Any) -> AsyncIterator[None]:
    """The chain of the tests mines on demand; a chain that stands still would be an alert of its own."""

    async def mine() -> None:
        while True:
            await cluster.driver.rpc("evm_mine")
            await asyncio.sleep(0.5)

    task = asyncio.get_running_loop().create_task(mine())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# ---- From scrapes to a test of promtool.


def write_test(scrapes: Sequence[Sequence[Samples]], healthy: int, expected: set[str]) -> dict[str, Any]:
    """A test in which the first `healthy` scrapes raise nothing, and the later ones exactly these alerts."""
    minutes = [number * HEALTHY_MIN for number in range(healthy)]
    minutes += [minutes[-1] + STRETCHED_MIN * number for number in range(1, len(scrapes) - healthy + 1)]
    series = []
    for gateway in range(len(scrapes[0])):
        points = [scrape[gateway] for scrape in scrapes]
        up = format_selector("up", {"job": "tollway", "instance": f"gateway-{gateway}"})
        points = [{**one, up: float(bool(one))} for one in points]
        for name in sorted(set().union(*points)):
            values = stretch(name, [one.get(name) for one in points], minutes)
            series.append({"series": name, "values": " ".join(values)})
    return {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    expect(minutes[healthy - 1], set()),
                    expect(minutes[-1], expected),
                ],
            }
        ],
    }


def stretch(name: str, values: Sequence[float | None], minutes: Sequence[int]) -> list[str]:
    """A value for each minute: a counter grows evenly between two scrapes, a gauge keeps its last value; absent where it is absent in the scrape."""
    is_counter = name.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket"))
    written = []
    for minute in range(minutes[-1] + 1):
        after = next(number for number, moment in enumerate(minutes) if moment >= minute)
        last, value = values[max(0, after - 1)], values[after]
        if value is not None and last is not None and is_counter and minutes[after] != minute:
            start, end = minutes[after - 1], minutes[after]
            value = last + (value - last) * (minute - start) / (end - start)
        written.append("stale" if value is None else repr(float(value)))
    return written


def expect(minute: int, alerts: set[str]) -> dict[str, Any]:
    return {
        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1.0} for name in sorted(alerts)],
    }


# ---- The failures.


async def stop_database(fleet: Fleet) -> None:
    await fleet.database.primary.end()


async def stop_chain(fleet: Fleet) -> None:
    fleet.gate.close()


async def take_gas(fleet: Fleet) -> None:
    await fleet.cluster.driver.rpc("anvil_setBalance", str(fleet.gas.address), "0x0")


async def kill_leader(fleet: Fleet) -> None:
    fleet.gateways[await fleet.find_leader()].kill()


async def hang_leader(fleet: Fleet) -> None:
    fleet.gateways[await fleet.find_leader()].pause()


FAILURES = {
    "database away": (stop_database, {"StorageAway", "NoLeader"}, 1.0),
    "chain away": (stop_chain, {"ChainAway", "RailWithdrawn"}, 4.0),
    "gas gone": (take_gas, {"GasKeysLow", "RailWithdrawn"}, 1.0),
    "leader killed": (kill_leader, {"TollwayDown"}, 1.5),
    "leader hung": (hang_leader, {"TollwayDown"}, 1.5),
}
"""The failure, its alerts, and the seconds between two scrapes of it. Without its chain the gas of a network is unknown, so its rail is withdrawn too."""


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_raises_exactly_its_alerts(fleet: Fleet, tmp_path: Path, failure: str) -> None:
    fail, expected, interval_s = FAILURES[failure]
    program = need_debian("promtool")
    await fleet.find_leader()
    for _ in range(3):
        await fleet.scrape()
        await asyncio.sleep(1.0)
    healthy = len(fleet.scrapes)
    await fail(fleet)
    await asyncio.sleep(5.0)  # until the fleet has noticed: a lease of a leader, a check of the chain
    for _ in range(SCRAPES):
        await fleet.scrape()
        await asyncio.sleep(interval_s)
    for gateway in fleet.gateways:
        gateway.resume()
    written = tmp_path / "scrapes.yaml"
    written.write_text(json.dumps(write_test(fleet.scrapes, healthy, expected)))  # JSON is YAML
    done = await asyncio.to_thread(
        subprocess.run,
        [*program, "test", "rules", str(written)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{failure}\n{done.stdout}\n{done.stderr}"
