"""Every expression of the alerts and dashboards, asked of a Prometheus server that scraped a gateway before, between and after its traffic: `make alerts`.

The traffic: calls paid by a transaction and by a signed authorisation, calls without a payment, pages of the control plane, an audit and a backup. Each call is traced, to
a collector that is away.
"""

import asyncio
import json
import math
import os
import re
import time
import urllib.parse
from asyncio.subprocess import STDOUT
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
from tests.kit.signed_calls import PaidListing
from tests.kit.waits import bounded, run_program

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif("ALERTS" not in os.environ, reason="a Prometheus server: run `make alerts`"),
]

MAY_BE_EMPTY = {
    "Shared rates": "no rate server",
    "Late background tasks": "none is late",
    "Failing background tasks": "none fails",
    "Storage away by cause": "it was never away",
    "Withdrawn rails": "none is withdrawn",
}
"""Panels that have nothing to show here -> why."""
MUST_GROW = {
    "Calls by outcome",
    "Refusals by code",
    "Payments first presented",
    "Settlements by outcome",
    "Commits a second",
}
"""Panels whose rate is above 0 here."""
LINT_FAULTS = 3
"""The exit code of `promtool check metrics` with a fault."""
LINT_ACCEPTED = {
    'tollway_sales_hours_behind use base unit "seconds" instead of "hours"': "it counts hours of sales",
}
ROUNDS, CALLS_PER_ROUND = 3, 3
COMPARISON = re.compile(r" (?:[<>]|==) ")


class Server:
    def __init__(self, cluster: Any, base_url: str, metrics_url: str) -> None:
        self._cluster, self._base_url, self._metrics_url = cluster, base_url, metrics_url

    async def fetch_metrics(self) -> bytes:
        body: bytes = (await self._cluster.send(self._metrics_url)).body
        return body

    async def get(self, path: str) -> Any:
        reply = await self._cluster.send(self._base_url + path)
        return json.loads(reply.body)

    async def query(self, expression: str) -> list[Any]:
        answer = await self.get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    async def count_scrapes(self) -> int:
        try:
            (found,) = await self.query('count_over_time(up{job="tollway"}[10m])')
        except (OSError, ValueError, AssertionError):
            return 0
        return int(found["value"][1])

    async def wait_scrape(self) -> None:
        """Until a scrape that began after this call is stored."""
        before = await self.count_scrapes()

        async def has_next() -> bool:
            return await self.count_scrapes() >= before + 2

        await poll(has_next, what="a scrape of the gateway")

    async def wait_series(self, name: str) -> None:
        async def has_series() -> bool:
            return bool(await self.query(name))

        await poll(has_series, what=name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    program = need_debian("prometheus")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    admin_port, port = find_low_port(), find_low_port()
    caller, gas = await cluster.wallets(2)
    settings = {
        "TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{admin_port}",
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        "TOLLWAY_CHANNELS": "true",
        "TOLLWAY_TRACING": "otlp",
        "TOLLWAY_TRACE_RATIO": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{find_low_port()}",
    }
    async with cluster.gateway(
        database_url=f"sqlite:///{folder}/books.sqlite3", settings=settings
    ) as gateway:
        listing = await PaidListing.open(cluster, [gateway])
        metered_id = await cluster.publish(gateway, listing.provider, metering=METERING)
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
            "--enable-feature=exemplar-storage",
            stdout=log,
            stderr=log,
        )
        try:
            found = Server(cluster, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}/metrics")
            await found.wait_scrape()
            for number in range(ROUNDS):
                await send_traffic(listing, caller, number, metered_id)
                await found.wait_scrape()
            for command in (("audit",), ("backup", str(folder / "tollway.backup"))):
                code, printed = await cluster.operate(gateway, *command)
                assert (code, printed["recorded"]) == (0, True), printed
            await found.wait_series("tollway_audit_last_seconds")
            await found.wait_series("tollway_backup_last_seconds")
            yield found
        finally:
            process.terminate()
            await bounded(process.wait())
            log.close()


METERING = {"parts": [{"unit": "byte", "unitPrice": "0.000001", "quantity": {"bytes": True}}]}


async def send_traffic(listing: PaidListing, caller: Any, number: int, metered_id: str) -> None:
    cluster, (gateway,) = listing.cluster, listing.gateways
    tx_hash = await cluster.send_tokens(caller, listing.provider.address, 10**6)
    for position in range(CALLS_PER_ROUND):
        path = f"/echo/{number}-{position}"
        bought = await cluster.call(gateway, listing.api_id, path, headers=plain(caller, tx_hash))
        assert bought.status == 200, bought.body
        refused = await cluster.call(gateway, listing.api_id, path)
        assert refused.status == 402
    metered = await cluster.call(gateway, metered_id, f"/echo/{number}", headers=plain(caller, tx_hash))
    assert metered.status == 200, metered.body
    signed = await listing.sign(await cluster.wallet(), f"/echo/signed-{number}").send()
    assert signed.status == 200, signed.body
    assert (await cluster.send(gateway.base_url + "/api/v2/apis")).status == 200


PANELS = {panel.title for board in BOARDS.DASHBOARDS for panel in board.panels}


@pytest.mark.parametrize("place", EXPRESSIONS)
async def test_an_expression_has_an_answer(server: Server, place: str) -> None:
    found = await server.query(EXPRESSIONS[place])
    title = place.partition(", ")[2]
    if title in PANELS and title not in MAY_BE_EMPTY:
        values = [float(one["value"][1]) for one in found]
        assert any(math.isfinite(value) for value in values), f"{place} is empty: {found}"
        assert title not in MUST_GROW or max(values) > 0, place


@pytest.mark.parametrize("place", [place for place in EXPRESSIONS if place.startswith("alert ")])
async def test_what_an_alert_compares_is_there(server: Server, place: str) -> None:
    """An alert over a series that no gateway exposes never fires. What stands before the first comparison is asked."""
    compared = COMPARISON.split(EXPRESSIONS[place])[0]
    values = [float(one["value"][1]) for one in await server.query(compared)]
    assert any(math.isfinite(value) for value in values), (compared, values)


async def test_promtool_finds_no_fault_in_the_series(server: Server) -> None:
    reply = await server.fetch_metrics()
    run = await run_program(*need_debian("promtool"), "check", "metrics", stdin=reply.decode(), stderr=STDOUT)
    assert [line for line in run.output.splitlines() if line not in LINT_ACCEPTED] == []
    assert run.code == (LINT_FAULTS if run.output else 0)


async def test_the_server_keeps_the_traces_of_buckets(server: Server) -> None:
    answer = await server.get(
        "/api/v1/query_exemplars?"
        + urllib.parse.urlencode(
            {
                "query": "tollway_call_duration_seconds_bucket",
                "start": time.time() - 600,
                "end": time.time() + 60,
            }
        )
    )
    found = [exemplar for series in answer["data"] for exemplar in series["exemplars"]]
    assert found
    assert {len(exemplar["labels"]["trace_id"]) for exemplar in found} == {32}


async def test_a_healthy_gateway_raises_no_alert(server: Server) -> None:
    answer = await server.get("/api/v1/rules")
    (group,) = answer["data"]["groups"]
    assert {rule["name"] for rule in group["rules"]} == {alert.name for alert in RULES.ALERTS}
    assert [rule for rule in group["rules"] if rule["health"] == "err"] == []
    assert [rule["name"] for rule in group["rules"] if rule["state"] == "firing"] == []
