"""docs/running.md runs as printed, as far as it needs neither root nor another machine: settings, start, checks, backup, restore.

Replaced: `/etc/tollway` and `/var/lib/tollway` by a folder, the URL of the node and its network by the chain of the tests, and the port. The blocks of systemd are run by
`tests/long/release/test_units.py` (`make units-test`), those of PostgreSQL by `tests/system/live/test_postgres_restore.py`, the proxies by `tests/system/live/test_edges.py`, and the second gateway by `test_two_gateways_serve_from_the_settings_of_the_page`.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.gateway_process import poll
from tests.kit.page_blocks import Machine, PageBlock, read_blocks
from tests.kit.ports import find_low_ports
from tollway.sandbox.chain import ChainDriver

PAGE = Path(__file__).parents[3] / "docs" / "running.md"
BLOCKS = read_blocks(PAGE.read_text())
OWN_RUN = [block for block in BLOCKS if block.machine == "operator"]


@pytest.fixture
def port() -> int:
    (found,) = find_low_ports(1)
    return found


@pytest.fixture
def machine(tmp_path: Path, port: int) -> Iterator[Machine]:
    machine = Machine(
        folder=tmp_path / "machine",
        env={"TOLLWAY_LISTEN": f"127.0.0.1:{port}", "TOLLWAY_ADMIN_LISTEN": "off"},
    )
    (machine.folder / "etc").mkdir()
    yield machine
    machine.stop()


def adapt(text: str, *, machine: Machine, node: str, port: int) -> str:
    for old, new in {
        "/etc/tollway": str(machine.folder / "etc"),
        "/var/lib/tollway\n": f"{machine.folder}\n",
        "https://node.example": node,
        'preset = "base"': 'preset = "sandbox"',
        "127.0.0.1:8402": f"127.0.0.1:{port}",
    }.items():
        text = text.replace(old, new)
    return text


async def wait_ready(port: int, machine: Machine) -> None:
    async def is_ready() -> bool:
        server = machine.servers[-1]
        assert server.poll() is None, (machine.folder / "server.log").read_text()
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    await poll(is_ready, what="readiness")


async def test_a_reader_runs_backs_up_and_restores_a_gateway(
    machine: Machine, port: int, chain: ChainDriver
) -> None:
    serve = ""
    for block in OWN_RUN:
        text = adapt(block.text, machine=machine, node=chain.rpc_url, port=port)
        if block.keeps_running:
            serve = text.strip()
            machine.start(f"env {serve}")
            await wait_ready(port, machine)
        else:
            if "stopped" in block.mark:
                machine.stop()
            machine.run(text)
    assert (machine.folder / "tollway.backup").stat().st_mode & 0o777 == 0o600
    machine.start(f"env {serve}")
    await wait_ready(port, machine)
    audited = json.loads(machine.run("tollway gateway audit --json"))
    assert (audited["wrong"], audited["heldPayments"]) == ([], []), audited


def test_the_page_has_each_kind_of_block() -> None:
    assert [block.keeps_running for block in OWN_RUN].count(True) == 1
    assert ["stopped" in block.mark for block in OWN_RUN].count(True) == 2
    machines = {"operator", "systemd", "postgres"}
    assert all(
        block.machine in machines or block.why_not_run or "run by" in str(block.mark)
        for block in BLOCKS
        if block.language == "sh"
    )


def settings_of_the_second() -> dict[str, Any]:
    (block,) = (block for block in BLOCKS if block.language == "toml" and is_shared(block))
    return tomllib.loads(block.text)


def is_shared(block: PageBlock) -> bool:
    return "database_url" in block.text


@pytest.mark.postgres
async def test_two_gateways_serve_from_the_settings_of_the_page(
    tmp_path: Path, chain: ChainDriver, postgres_server: Any, postgres_template: str
) -> None:
    from tests.kit.databases import create_database

    url = await create_database(postgres_server, "running_page", template=postgres_template)
    ports, machines = find_low_ports(2), []
    table = settings_of_the_second()
    secret = "5e" * 8 + "0123456789abcdef" * 3
    try:
        for number, port in enumerate(ports):
            machine = Machine(
                folder=tmp_path / f"machine-{number}",
                env={
                    "TOLLWAY_PUBLIC_URL": table["public_url"],
                    "TOLLWAY_TRUSTED_PROXIES": ",".join(table["trusted_proxies"]),
                    "TOLLWAY_DATABASE_URL": url,
                    "TOLLWAY_SECRET_KEY": secret,
                    "TOLLWAY_RPC_SANDBOX": chain.rpc_url,
                    "TOLLWAY_LISTEN": f"127.0.0.1:{port}",
                    "TOLLWAY_ADMIN_LISTEN": "off",
                },
            )
            machines.append(machine)
            machine.run("tollway gateway migrate --json")
            machine.start("tollway gateway serve")
            await wait_ready(port, machine)
        report = json.loads(machines[0].run("tollway gateway doctor --json || true"))
        text = json.dumps(report)
        assert "leads" in text or "leader" in text, text
    finally:
        for machine in machines:
            machine.stop()
