"""Every expression of the alerts and dashboards, asked of a Prometheus server that scraped a gateway with traffic: `make alerts`."""

import asyncio
import json
import os
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.deploy.test_alerts import BOARDS, EXPRESSIONS, RULES
from tests.kit.deploy_programs import need_debian
from tests.kit.gateway_cluster import plain
from tests.kit.gateway_process import poll
from tests.kit.ports import find_low_port
from tests.kit.upstream import run_upstream

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif("ALERTS" not in os.environ, reason="a Prometheus server: run `make alerts`"),
]

MAY_BE_EMPTY = {
    "Refusals by code": "no refusal in the last minutes",
    "Upstreams until the head, p95": "too few calls",
    "Shared rates": "no rate server",
    "Late background tasks": "none is late",
    "Failing background tasks": "none fails",
    "Warnings and errors of the log": "none was written",
    "Storage away by cause": "it was never away",
    "Since the last audit": "no audit yet",
    "Differences of the last audit": "no audit yet",
    "Since the last backup": "no backup yet",
    "Withdrawn rails": "none is withdrawn",
    "Settlement, p95": "no settlement yet",
    "Payments first presented": "a counter that has just begun has no rate",
    "Latency by phase, p95": "a counter that has just begun has no rate",
    "Control plane, p95": "a counter that has just begun has no rate",
    "Calls by outcome": "a counter that has just begun has no rate",
}
"""Panels that have nothing to show here -> why."""
SCRAPES = 3


class Server:
    def __init__(self, cluster: Any, base_url: str) -> None:
        self._cluster, self._base_url = cluster, base_url

    async def get(self, path: str) -> Any:
        reply = await self._cluster.send(self._base_url + path)
        return json.loads(reply.body)

    async def query(self, expression: str) -> list[Any]:
        answer = await self.get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    async def has_scraped(self) -> bool:
        try:
            (found,) = await self.query('count_over_time(up{job="tollway"}[10m])')
        except (OSError, ValueError, AssertionError):
            return False
        return float(found["value"][1]) >= SCRAPES


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    program = need_debian("prometheus")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    admin_port, port = find_low_port(), find_low_port()
    provider, caller, gas = await cluster.wallets(3)
    settings = {
        "TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{admin_port}",
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
    }
    async with (
        run_upstream() as upstream,
        cluster.gateway(database_url=f"sqlite:///{folder}/books.sqlite3", settings=settings) as gateway,
    ):
        api_id = await cluster.publish(gateway, provider, endpoint=upstream.url)
        tx_hash = await cluster.send_tokens(caller, provider.address, 10**6)
        for _ in range(5):
            await cluster.call(gateway, api_id, "/quote/ETH", headers=plain(caller, tx_hash))
            await cluster.call(gateway, api_id, "/quote/ETH")
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES.FOLDER / "alerts.yaml")],
            "scrape_configs": [
                {"job_name": "tollway", "static_configs": [{"targets": [f"127.0.0.1:{admin_port}"]}]}
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        log = (folder / "log").open("wb")
        process = await asyncio.create_subprocess_exec(
            *program,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
        try:
            found = Server(cluster, f"http://127.0.0.1:{port}")
            await poll(found.has_scraped, deadline_s=60.0, what="scrapes of the gateway")
            yield found
        finally:
            process.terminate()
            await process.wait()
            log.close()


@pytest.mark.parametrize("place", EXPRESSIONS)
async def test_an_expression_has_an_answer(server: Server, place: str) -> None:
    found = await server.query(EXPRESSIONS[place])
    panels = {panel.title for board in BOARDS.DASHBOARDS for panel in board.panels}
    title = place.partition(", ")[2]
    if title in panels and title not in MAY_BE_EMPTY and not place.startswith("alert "):
        assert found, f"{place} is empty"


async def test_a_healthy_gateway_raises_no_alert(server: Server) -> None:
    answer = await server.get("/api/v1/rules")
    (group,) = answer["data"]["groups"]
    assert {rule["name"] for rule in group["rules"]} == {alert.name for alert in RULES.ALERTS}
    assert [rule for rule in group["rules"] if rule["health"] == "err"] == []
    assert [rule["name"] for rule in group["rules"] if rule["state"] == "firing"] == []
