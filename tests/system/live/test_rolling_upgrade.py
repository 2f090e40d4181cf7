"""Two releases at one database: new code on the tables of the release before, old code on those of the release after,
both at once while the tables change; and the tables from which this code must not serve.

The release after this one is this code with one more migration (`fault_injection.use_migrations`).
"""

import asyncio
import contextlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.databases import create_database, write_newer_migrations
from tests.kit.fault_injection import MIGRATIONS
from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import TOLLWAY, poll
from tests.kit.ports import find_low_port
from tests.kit.waits import run_program
from tollway.storage.catalog.creation_store import creation_table
from tollway.storage.engine.database import connect_database
from tollway.storage.engine.migrate import list_revisions, upgrade

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]
NEWER_TOLLWAY = "import os; from tests.kit.fault_injection import install; install(os.environ); from tollway.cli import main; main()"
_WORDS = (f"/echo/rolling/{number}" for number in itertools.count(1))


class Harness:
    """A listing and a caller with credit for some calls."""

    def __init__(self, cluster: Any, api_id: str, payer: Any, tx_hash: Any) -> None:
        self.cluster, self.api_id, self.payer, self.tx_hash = cluster, api_id, payer, tx_hash
        self.served = 0

    @classmethod
    async def open(cls, cluster: Any, gateway: Any, *, calls: int) -> "Harness":
        provider, payer = await cluster.wallets(2)
        api_id = await cluster.publish(gateway, provider)
        tx_hash = await cluster.send_tokens(payer, provider.address, calls * PRICE_UNITS)
        return cls(cluster, api_id, payer, tx_hash)

    async def call(self, gateway: Any) -> None:
        """One paid call: the provider sees it once."""
        path = next(_WORDS)
        headers = plain(self.payer, self.tx_hash)
        reply = await self.cluster.call(gateway, self.api_id, path, headers=headers, method="POST")
        assert reply.status == 200, reply.body
        assert sum(seen.path == path for seen in self.cluster.provider.seen) == 1
        self.served += 1

    async def check(self, gateway: Any) -> None:
        """Each call is in the ledger, charged once."""
        shown = await self.cluster.payment(gateway, self.payer, self.tx_hash)
        assert int(shown["amount"]) - int(shown["credit"]) == self.served * PRICE_UNITS
        records = await self.cluster.history(gateway, self.payer)
        assert [call["payment"]["state"] for call in records] == ["charged"] * self.served
        assert (await self.cluster.audit(gateway)).is_balanced


async def create(cluster: Any, gateway: Any, provider: Any, key: str) -> Any:
    more = [("Idempotency-Key", key)]
    return await cluster.control(gateway, provider, "POST", "/apis", cluster.draft(), more=more)


async def operate_newer(gateway: Any, *arguments: str) -> tuple[int, Any]:
    """Runs an operator's command of the release of that gateway: exit code, and its output as JSON."""
    env = {**gateway.env, "PYTHONPATH": str(ROOT)}
    run = await run_program(sys.executable, "-c", NEWER_TOLLWAY, *arguments, "--json", env=env)
    return run.code, json.loads(run.output or run.errors)


ADDS_KEYS = """
from alembic import op

from tollway.storage.catalog.creation_store import creation_table

revision, down_revision = "9001_newer", "{down}"
branch_labels = depends_on = None


def upgrade():
    creation_table.create(op.get_bind())
"""


async def take_keys_out(url: str, migrations: Path) -> None:
    """Makes a database of a release without keys of creations, and the next migration, which adds them."""
    database = connect_database(url)
    await database.open()
    try:
        await upgrade(database)
        await database.write(creation_table.drop)
    finally:
        await database.close()
    (migrations / "versions" / "9001_newer.py").write_text(ADDS_KEYS.format(down=list_revisions()[0]))


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    return Path(write_newer_migrations(tmp_path))


async def prepare(url: str, **options: Any) -> None:
    database = connect_database(url)
    await database.open()
    try:
        await upgrade(database, **options)
    finally:
        await database.close()


@pytest.mark.postgres
async def test_new_code_serves_from_the_tables_of_the_release_before(
    cluster: Any, postgres_server: str, newer: Path
) -> None:
    """All but what those tables cannot store: that fails closed, and works after the migration."""
    url = await create_database(postgres_server, "rolling", template=None)
    await take_keys_out(url, newer)
    async with cluster.gateway(database_url=url, settings={MIGRATIONS: str(newer)}) as gateway:
        assert "schema_serviceable" in gateway.read_log()
        harness = await Harness.open(cluster, gateway, calls=4)
        provider = await cluster.wallet()
        await harness.call(gateway)
        refused = await create(cluster, gateway, provider, "k")
        assert (refused.status, refused.code) == (503, "storage_unavailable")
        await harness.call(gateway)
        code, told = await operate_newer(gateway, "doctor")
        (found,) = [finding for finding in told["findings"] if finding["check"] == "database"]
        assert (code, found["level"]) == (0, "warning")
        assert "run tollway gateway migrate" in found["detail"]
        assert await operate_newer(gateway, "migrate") == (
            0,
            {"before": "serviceable", "now": "current"},
        )
        await harness.call(gateway)
        created = await create(cluster, gateway, provider, "k")
        again = await create(cluster, gateway, provider, "k")
        assert (created.status, again.status) == (201, 201)
        assert again.body == created.body
        assert again.headers["Idempotency-Replayed"] == "true"
        await harness.check(gateway)


@pytest.mark.postgres
async def test_old_and_new_code_serve_while_the_tables_change_under_them(cluster: Any, newer: Path) -> None:
    url = await cluster.make_postgres()
    public_url = "http://127.0.0.1:1"
    async with cluster.gateway(database_url=url, public_url=public_url) as old:
        harness = await Harness.open(cluster, old, calls=900)
        is_done = asyncio.Event()

        async def call_on(gateway: Any) -> None:
            while not is_done.is_set():
                await harness.call(gateway)
                await cluster.send(
                    f"{cluster.provider.base_url}/slow?seconds=0.1"
                )  # it limits the rate of the callers

        async with contextlib.AsyncExitStack() as gateways:
            async with asyncio.TaskGroup() as group:
                group.create_task(call_on(old))
                await prepare(url, migrations=newer)
                before = harness.served
                await poll(lambda: harness.served > before + 3, what="service on newer tables")
                shared = {"database_url": url, "public_url": public_url}
                beside = cluster.gateway(settings={MIGRATIONS: str(newer)}, **shared)
                new = await gateways.enter_async_context(beside)
                late = await gateways.enter_async_context(cluster.gateway(**shared))
                assert "schema_ahead" in late.read_log()
                for gateway in (new, late):
                    await harness.call(gateway)
                is_done.set()
            for gateway in (old, new, late):
                await harness.check(gateway)


async def test_old_code_serves_from_newer_tables_in_a_file(cluster: Any, newer: Path, tmp_path: Path) -> None:
    """A release that is rolled back: the newer one has migrated the file."""
    url = f"sqlite:///{tmp_path}/books.sqlite3"
    async with cluster.gateway(database_url=url) as gateway:
        harness = await Harness.open(cluster, gateway, calls=4)
        await harness.call(gateway)
        await gateway.stop()
    async with cluster.gateway(database_url=url, settings={MIGRATIONS: str(newer)}) as gateway:
        await harness.call(gateway)
        await gateway.stop()
    async with cluster.gateway(database_url=url) as gateway:
        assert "schema_ahead" in gateway.read_log()
        await harness.call(gateway)
        await harness.check(gateway)
        code, told = await cluster.operate(gateway, "doctor")
        (found,) = [finding for finding in told["findings"] if finding["check"] == "database"]
        assert (code, found["level"]) == (0, "warning")
        await gateway.stop()


@pytest.mark.parametrize("make", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def test_tables_whose_floor_is_above_this_code_stop_its_start(
    cluster: Any, tmp_path: Path, make: str
) -> None:
    url = await cluster.make_postgres() if make == "postgres" else f"sqlite:///{tmp_path}/books.sqlite3"
    await prepare(url, migrations=write_newer_migrations(tmp_path, floor="9001_newer"))
    env = cluster.environment(database_url=url, public_url="http://127.0.0.1:1", port=find_low_port())
    run = await run_program(*TOLLWAY, "serve", env=env, cwd=tmp_path)
    assert run.code == 2
    assert "needs a newer version of Tollway" in run.errors
