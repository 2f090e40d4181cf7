"""Backup and restore on PostgreSQL as docs/running.md prints them, with `pg_dump` of the server's own version: the blocks that are marked `postgres`.

Replaced: `sudo -u postgres` by the superuser of the tests' server, the question for a password by none, and folders by those of the test.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.kit.databases import database_url
from tests.kit.gateway_cluster import PRICE_UNITS, GatewayCluster, plain
from tests.kit.page_blocks import Machine, PageBlock, read_blocks
from tests.kit.postgres_programs import POSTGRES_PROGRAMS

PAGE = Path(__file__).parents[3] / "docs" / "running.md"
BLOCKS = [block for block in read_blocks(PAGE.read_text()) if block.machine == "postgres"]
NAME = "tollway"

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.postgres]


def block_with(text: str) -> PageBlock:
    (block,) = [block for block in BLOCKS if text in block.text]
    return block


@pytest.fixture
def machine(tmp_path: Path, postgres_server: str) -> Machine:
    """Root of the machine of the database."""
    server = make_url(postgres_server)
    machine = Machine(
        folder=tmp_path / "machine",
        env={"PGHOST": str(server.query["host"]), "PGUSER": str(server.username)},
    )
    machine.run(f"export PATH={POSTGRES_PROGRAMS}:$PATH")
    return machine


def run_block(machine: Machine, block: PageBlock) -> str:
    text = block.text
    for old, new in {
        "sudo -u postgres ": "",
        "--pwprompt ": "",
        "/var/backups": str(machine.folder),
        ". /etc/tollway/operator.sh\n": "",
    }.items():
        text = text.replace(old, new)
    return machine.run(text)


async def test_a_dump_is_restored_held_and_released(
    cluster: GatewayCluster, machine: Machine, postgres_server: str, tmp_path: Path
) -> None:
    async def run(block: PageBlock) -> str:
        return await asyncio.to_thread(run_block, machine, block)

    await run(block_with("createuser"))
    url = make_url(database_url(postgres_server, NAME)).set(username=NAME)
    given = url.render_as_string(hide_password=False)
    settings = cluster.environment(database_url=given, public_url="http://127.0.0.1:1", port=1)
    names = ("TOLLWAY_DATABASE_URL", "TOLLWAY_SECRET_KEY", "TOLLWAY_RPC_SANDBOX")
    operator = Machine(folder=tmp_path / "operator", env={name: settings[name] for name in names})
    await asyncio.to_thread(operator.run, "tollway gateway migrate --json")

    provider, caller = await cluster.wallets(2)
    tx_hash = await cluster.send_tokens(caller, provider.address, 10 * PRICE_UNITS)
    headers = plain(caller, tx_hash)

    async def call(gateway: Any, api_id: str) -> tuple[int, str | None]:
        reply = await cluster.call(gateway, api_id, "/quote/ETH", headers=headers)
        return reply.status, reply.state if reply.status == 200 else reply.code

    async with cluster.gateway(database_url=given) as gateway:
        api_id = await cluster.publish(gateway, provider)
        assert await call(gateway, api_id) == (200, "charged")
        await run(block_with("pg_dump"))
        for _ in range(2):
            assert await call(gateway, api_id) == (200, "charged")
        before = await cluster.payment(gateway, caller, tx_hash)
        assert await gateway.stop() == 0
    await run(block_with("pg_restore"))
    text = block_with("--restored").text.replace(". /etc/tollway/operator.sh\n", "").strip()
    await asyncio.to_thread(operator.run, f"{text} --json")
    async with cluster.gateway(database_url=given) as gateway:
        assert (await call(gateway, api_id))[1] == "payment_held"
        assert (await cluster.operate(gateway, "audit"))[1]["heldPayments"] == [str(tx_hash)]
        exit_code, released = await cluster.operate(gateway, "audit", "--release")
        assert (exit_code, released["released"], released["wrong"]) == (0, 1, [])
        assert await call(gateway, api_id) == (200, "charged")
        after = await cluster.payment(gateway, caller, tx_hash)
        # The two calls after the dump are forgotten; calls are listed newest first.
        assert (len(before["calls"]), len(after["calls"])) == (3, 2)
        assert after["calls"][-1] == before["calls"][-1]
        assert (await cluster.operate(gateway, "audit"))[1]["heldPayments"] == []


async def test_every_block_of_the_page_is_run() -> None:
    texts = ("createuser", "pg_dump", "pg_restore", "--restored")
    assert [block for block in BLOCKS if not any(text in block.text for text in texts)] == []
