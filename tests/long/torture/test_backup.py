"""A database that is restored to an older moment lacks the calls paid since. None of that value is spent again before
the operator frees it, for every way of restoring: the upstream's log is the judge."""

import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.authorization_payer import AuthorizationPayer
from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.kit.ports import find_low_port
from tests.kit.postgres_pair import PostgresNode, run_pair
from tests.kit.signed_calls import QUICK

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

ONLY_LONG = pytest.mark.long_form
HELD = (409, "payment_held")
AWAY = {(503, "storage_unavailable"), (503, "payment_outcome_unknown")}


@dataclass(slots=True, kw_only=True)
class Story:
    """The payments around a backup. `half` was half spent before it and wholly after it; `lost` was sent and spent
    after it; `signed` is an authorisation settled after it."""

    cluster: Any
    provider: Any
    caller: Any
    api_id: str
    settings: dict[str, str]
    half: Any = None
    lost: Any = None
    signed: Any = None

    async def call(self, gateway: Any, payment: Any) -> Any:
        headers = [payment] if isinstance(payment, tuple) else plain(self.caller, payment)
        return await self.cluster.call(gateway, self.api_id, "/echo/restored", headers=headers)

    async def spend_before(self, gateway: Any) -> None:
        self.half = await self.cluster.send_tokens(self.caller, self.provider.address, 2 * PRICE_UNITS)
        assert (await self.call(gateway, self.half)).status == 200

    async def spend_after(self, gateway: Any) -> None:
        payer = AuthorizationPayer(
            cluster=self.cluster, gateway=gateway, api_id=self.api_id, signer=self.caller
        )
        self.lost = await self.cluster.send_tokens(self.caller, self.provider.address, PRICE_UNITS)
        self.signed = payer.show(await payer.quote("/echo/restored"))
        for payment in (self.half, self.lost, self.signed):
            assert (await self.call(gateway, payment)).status == 200

    @property
    def seen(self) -> int:
        return int(self.cluster.provider.count("/echo/restored"))

    async def check_held(self, gateway: Any) -> None:
        """No spent payment buys anything; a new one does."""
        seen = self.seen
        for payment in (self.half, self.lost):
            refused = await self.call(gateway, payment)
            assert (refused.status, refused.code) == HELD
            assert not refused.asks_for_money
        assert (await self.call(gateway, self.signed)).status != 200
        told = await self.cluster.payment(gateway, self.caller, self.half)
        assert told["reason"] == "held_after_restore"
        assert self.seen == seen
        # Block times are in seconds, and the chain's clock may be one second behind.
        later_s = time.time() + 2
        await poll(lambda: time.time() > later_s, what="a block of after the restore")
        fresh = await self.cluster.send_tokens(self.caller, self.provider.address, PRICE_UNITS)
        assert (await self.call(gateway, fresh)).status == 200
        assert self.seen == seen + 1

    async def check_freed(self, gateway: Any) -> None:
        """The operator admits a transfer by its hash and frees all balances at once."""
        assert (await self.operate(gateway, "admit", str(self.lost)))["admitted"]
        assert (await self.call(gateway, self.lost)).status == 200
        report = await self.operate(gateway, "audit")
        assert (report["balanced"], report["heldPayments"]) == (True, [str(self.half)])
        assert (await self.operate(gateway, "audit", "--release"))["released"] == 1
        assert (await self.call(gateway, self.half)).status == 200
        assert (await self.cluster.audit(gateway)).wrong == ()

    async def operate(self, gateway: Any, *arguments: str) -> Any:
        exit_code, told = await self.cluster.operate(gateway, *arguments)
        assert exit_code == 0, told
        return told


@contextlib.asynccontextmanager
async def begin(cluster: Any, database_url: str) -> AsyncIterator[tuple[Story, Any]]:
    provider, caller, gas = await cluster.wallets(3)
    settings = {**QUICK, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
    async with cluster.gateway(database_url=database_url, settings=settings) as gateway:
        api_id = await cluster.publish(gateway, provider)
        story = Story(cluster=cluster, provider=provider, caller=caller, api_id=api_id, settings=settings)
        await story.spend_before(gateway)
        yield story, gateway


@pytest.mark.parametrize("how", ["by the command", pytest.param("by hand", marks=ONLY_LONG)])
async def test_what_was_spent_after_a_backup_is_not_spent_again_after_its_restore(
    cluster: Any, how: str
) -> None:
    path = Path(cluster.folder / f"restored-{how[3:6]}.sqlite3")
    url, copy = f"sqlite:///{path}", path.with_suffix(".backup")
    async with begin(cluster, url) as (story, gateway):
        told = await story.operate(gateway, "backup", str(copy))
        assert (told["payments"], told["calls"], told["balanced"]) == (1, 1, True)
        await story.spend_after(gateway)
        exit_code, refusal = await cluster.operate(gateway, "restore", str(copy))
        assert (exit_code, "stop it first" in json.dumps(refusal)) == (3, True)
        assert await gateway.stop() == 0
    if how == "by the command":
        replaced = (await story.operate(gateway, "restore", str(copy)))["replaced"]
        assert Path(replaced).exists()
    else:
        shutil.copyfile(copy, path)
    public_url = gateway.public_url
    async with cluster.gateway(database_url=url, public_url=public_url, settings=story.settings) as after:
        assert ("database_restored" in after.read_log()) is (how == "by hand")
        await story.check_held(after)
        await story.check_freed(after)


# ---- PostgreSQL


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def archived() -> AsyncIterator[Any]:
    """A server that archives its log, as point-in-time recovery needs it."""
    async with run_pair(find_low_port) as pair:
        server, archive = pair.primary, pair.primary.folder.parent / "archive"
        archive.mkdir()
        shutil.chown(archive, server.folder.stat().st_uid, server.folder.stat().st_gid)
        await server.stop()
        with (server.folder / "postgresql.conf").open("a") as config:
            config.write(f"archive_mode = on\narchive_command = 'cp %p {archive}/%f'\n")
            config.write(f"restore_command = 'cp {archive}/%f %p'\n")
        await server.start()
        yield server


async def restore_to(server: PostgresNode, base: Path, moment: str) -> PostgresNode:
    """The base backup recovered to that moment, at the address of the old server, which is stopped."""
    with (base / "postgresql.conf").open("a") as config:
        config.write(f"recovery_target_name = '{moment}'\nrecovery_target_action = 'promote'\n")
        config.write("recovery_target_timeline = 'current'\n")
    (base / "recovery.signal").touch()
    restored = PostgresNode(base, server.port, user=server._user)
    await restored.start()
    return restored


@pytest.mark.postgres
@pytest.mark.parametrize(
    "how", ["under a gateway that lives", pytest.param("while no gateway runs", marks=ONLY_LONG)]
)
async def test_what_was_spent_after_the_target_of_a_recovery_is_not_spent_again(
    cluster: Any, archived: Any, how: str
) -> None:
    name = "lives" if "lives" in how else "stopped"
    server, base = archived, archived.folder.parent / f"base-{name}"
    await server.ask(f"CREATE DATABASE {name} TEMPLATE tollway", "SELECT 1", database="postgres")
    url = f"postgresql://postgres@127.0.0.1:{server.port}/{name}"
    origin = f"host=127.0.0.1 port={server.port} user=postgres"
    restored = None
    try:
        async with begin(cluster, url) as (story, gateway):
            server.run("pg_basebackup", "-d", origin, "-D", str(base), "-c", "fast", "--no-sync")
            await server.ask(f"SELECT pg_create_restore_point('{name}')")
            await story.spend_after(gateway)
            if name == "stopped":
                assert await gateway.stop() == 0
            await server.ask("SELECT pg_switch_wal()")
            await server.stop()  # it waits until the log is archived
            restored = await restore_to(server, base, name)
            if name == "lives":
                await check_found(story, gateway)
                await story.check_held(gateway)
                await story.check_freed(gateway)
        if name == "stopped":
            assert (await story.operate(gateway, "audit", "--restored"))["heldPayments"] == [str(story.half)]
            options = {"public_url": gateway.public_url, "settings": story.settings}
            async with cluster.gateway(database_url=url, **options) as after:
                await story.check_held(after)
                await story.check_freed(after)
    finally:
        if restored is not None:
            await restored.end()
        await server.start()


async def check_found(story: Story, gateway: Any) -> None:
    """From the first request on, the payment is unknown or held."""
    seen, answers = story.seen, []

    async def is_held() -> bool:
        reply = await story.call(gateway, story.half)
        answers.append((reply.status, reply.code))
        return answers[-1] == HELD

    await poll(is_held, what="the hold")
    assert set(answers) <= {HELD, *AWAY}
    assert story.seen == seen
    assert gateway.read_log().count("database_went_back") == 1
    await gateway.wait_ready()
