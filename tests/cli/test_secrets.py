"""`tollway gateway secrets`: counts values by the key that they are encrypted with, and encrypts them again with the first key."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.kit.listings import sample_listing
from tollway.cli import operator
from tollway.cli.main import make_app
from tollway.ids import Address, ListingId
from tollway.registry.listing import UpstreamAuth
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.engine.database import ProcessLock, connect_database
from tollway.storage.engine.encryption import Sealer

OLD, NEW, FOREIGN = (sign * 2 + "00112233445566778899aabbccddee" * 2 for sign in ("1a", "2b", "3c"))
URL = "sqlite:///tollway.sqlite3"


class CommandLine:
    """The operator's commands; `is_write_safe`: whether SQLite takes a second writer."""

    def __init__(self) -> None:
        self.is_write_safe = True
        self.environment = operator.OperatorEnvironment(is_write_safe=lambda: self.is_write_safe)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(make_app(), ["gateway", *arguments], obj=self.environment)

    def secrets(self, *action: str, exit_code: int = operator.DONE) -> Any:
        result = self.run("secrets", *action)
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)


SetKeys = Callable[..., None]


@pytest.fixture
def set_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetKeys:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLLWAY_RPC_SANDBOX", "http://127.0.0.1:1")
    return lambda *keys: monkeypatch.setenv("TOLLWAY_SECRET_KEY", " ".join(keys))


@pytest.fixture
def commands(set_keys: SetKeys) -> CommandLine:
    commands = CommandLine()
    set_keys(OLD)
    assert commands.run("migrate").exit_code == 0
    return commands


def publish(key: str, *names: str) -> None:
    async def work() -> None:
        database = connect_database(URL)
        await database.open()
        sealer = Sealer(bytes.fromhex(key), entropy=os.urandom)
        catalog = CatalogStore(database, sealer=sealer, now_ms=lambda: 1)
        for name in names:
            auth = UpstreamAuth(location="header", name="X-Key", value="hush")
            await catalog.publish(
                sample_listing(provider=Address(b"p" * 20), id=ListingId(name), upstream_auth=auth)
            )
        await database.close()

    asyncio.run(work())


def count(current: int = 0, older: int = 0, *lost: str) -> dict[str, Any]:
    return {"current": current, "older": older, "lost": len(lost), "lostIds": list(lost)}


def test_a_change_of_the_key_step_by_step(commands: CommandLine, set_keys: SetKeys) -> None:
    publish(OLD, "api_1", "api_2")
    assert commands.secrets() == {"keys": 1, "listingSecrets": count(2), "storedResponses": count()}
    set_keys(OLD, NEW)
    assert commands.secrets()["listingSecrets"] == count(2)
    set_keys(NEW, OLD)
    before = {"keys": 2, "listingSecrets": count(0, 2), "storedResponses": count()}
    assert commands.secrets() == commands.secrets("status") == before
    assert commands.secrets("reencrypt") == {
        "keys": 2,
        "listingSecrets": count(2),
        "storedResponses": count(),
        "reencrypted": 2,
    }
    assert commands.secrets("reencrypt")["reencrypted"] == 0
    set_keys(NEW)
    assert commands.secrets()["listingSecrets"] == count(2)


def test_a_missing_key_fails_and_names_the_listings(commands: CommandLine, set_keys: SetKeys) -> None:
    publish(OLD, "api_1")
    publish(FOREIGN, "api_2")
    set_keys(NEW)
    counted = commands.secrets(exit_code=operator.FAILED)
    assert counted["listingSecrets"] == count(0, 0, "api_1", "api_2")
    set_keys(NEW, OLD)
    done = commands.secrets("reencrypt", exit_code=operator.FAILED)
    assert (done["reencrypted"], done["listingSecrets"]) == (1, count(1, 0, "api_2"))


def test_reencryption_is_refused_beside_a_gateway_where_sqlite_takes_one_writer(
    commands: CommandLine, set_keys: SetKeys
) -> None:
    publish(OLD, "api_1")
    set_keys(NEW, OLD)
    commands.is_write_safe = False
    lock = ProcessLock(Path("tollway.sqlite3.lock"))
    assert lock.acquire()
    try:
        assert commands.run("secrets", "reencrypt").exit_code == operator.LATER
        assert commands.secrets()["listingSecrets"] == count(0, 1)
        commands.is_write_safe = True
        assert commands.secrets("reencrypt")["reencrypted"] == 1
    finally:
        lock.release()


def test_without_a_key_or_a_database_no_file_is_made(
    set_keys: SetKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = CommandLine()
    for action in ((), ("reencrypt",)):
        result = commands.run("secrets", *action)
        assert result.exit_code == operator.FAILED
        assert "no key" in result.stderr
    set_keys(OLD)
    assert commands.run("secrets").exit_code == operator.FAILED
    assert list(Path().iterdir()) == []


def test_an_unknown_action_is_wrong_usage(commands: CommandLine) -> None:
    assert commands.run("secrets", "reseal").exit_code == operator.USAGE


def test_no_key_is_ever_printed(commands: CommandLine, set_keys: SetKeys) -> None:
    publish(OLD, "api_1")
    publish(FOREIGN, "api_2")
    set_keys(NEW, OLD)
    shown = "".join(commands.run("secrets", action).output for action in ("status", "reencrypt", "status"))
    for secret in (OLD, NEW, FOREIGN, "hush"):
        assert secret not in shown
