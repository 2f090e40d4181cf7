"""The operator changes the secret key: told what stands under which key, and everything sealed anew."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.kit.listings import sample_listing
from tollway.cli import operator
from tollway.ids import Address, ListingId
from tollway.registry.listing import UpstreamAuth
from tollway.storage.catalog_store import CatalogStore
from tollway.storage.database import ProcessLock, connect_database
from tollway.storage.encryption import Sealer

OLD, NEW, FOREIGN = (sign * 2 + "00112233445566778899aabbccddee" * 2 for sign in ("1a", "2b", "3c"))
URL = "sqlite:///tollway.sqlite3"


class Office:
    def __init__(self) -> None:
        self.is_write_safe = True
        environment = operator.OperatorEnvironment(is_write_safe=lambda: self.is_write_safe)
        self.app, group = typer.Typer(), typer.Typer()
        operator.register_operator(self.app, wallet=typer.Typer(), listing=typer.Typer())
        self.app.add_typer(group, name="secrets")
        operator.register_key_change(group, environment=environment)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(self.app, list(arguments))

    def tell(self, command: str, *, exit_code: int = operator.DONE) -> Any:
        result = self.run("secrets", command)
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)


SetKeys = Callable[..., None]


@pytest.fixture
def set_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetKeys:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLLWAY_RPC_LOCAL", "http://127.0.0.1:1")
    return lambda *keys: monkeypatch.setenv("TOLLWAY_SECRET_KEY", " ".join(keys))


@pytest.fixture
def office(set_keys: SetKeys) -> Office:
    office = Office()
    set_keys(OLD)
    assert office.run("migrate").exit_code == 0
    return office


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


def test_a_change_of_the_key_step_by_step(office: Office, set_keys: SetKeys) -> None:
    publish(OLD, "api_1", "api_2")
    assert office.tell("status") == {"keys": 1, "listingSecrets": count(2), "storedAnswers": count()}
    set_keys(OLD, NEW)
    assert office.tell("status")["listingSecrets"] == count(2)
    set_keys(NEW, OLD)
    assert office.tell("status") == {"keys": 2, "listingSecrets": count(0, 2), "storedAnswers": count()}
    assert office.tell("reseal") == {
        "keys": 2,
        "listingSecrets": count(2),
        "storedAnswers": count(),
        "resealed": 2,
    }
    assert office.tell("reseal")["resealed"] == 0
    set_keys(NEW)
    assert office.tell("status")["listingSecrets"] == count(2)


def test_a_key_that_was_taken_out_too_early_is_told_with_the_listings(
    office: Office, set_keys: SetKeys
) -> None:
    publish(OLD, "api_1")
    publish(FOREIGN, "api_2")
    set_keys(NEW)
    told = office.tell("status", exit_code=operator.FAILED)
    assert told["listingSecrets"] == count(0, 0, "api_1", "api_2")
    set_keys(NEW, OLD)
    told = office.tell("reseal", exit_code=operator.FAILED)
    assert (told["resealed"], told["listingSecrets"]) == (1, count(1, 0, "api_2"))


def test_nothing_is_sealed_beside_a_gateway_where_two_may_not_write(
    office: Office, set_keys: SetKeys
) -> None:
    publish(OLD, "api_1")
    set_keys(NEW, OLD)
    office.is_write_safe = False
    lock = ProcessLock(Path("tollway.sqlite3.lock"))
    assert lock.acquire()
    try:
        assert office.run("secrets", "reseal").exit_code == operator.LATER
        assert office.tell("status")["listingSecrets"] == count(0, 1)
        office.is_write_safe = True
        assert office.tell("reseal")["resealed"] == 1
    finally:
        lock.release()


def test_without_a_key_or_a_database_nothing_is_made(
    set_keys: SetKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office()
    for command in ("status", "reseal"):
        result = office.run("secrets", command)
        assert result.exit_code == operator.FAILED
        assert "no key" in result.stderr
    set_keys(OLD)
    assert office.run("secrets", "status").exit_code == operator.FAILED
    assert list(Path().iterdir()) == []


def test_no_key_is_ever_shown(office: Office, set_keys: SetKeys) -> None:
    publish(OLD, "api_1")
    publish(FOREIGN, "api_2")
    set_keys(NEW, OLD)
    shown = "".join(office.run("secrets", command).output for command in ("status", "reseal", "status"))
    for secret in (OLD, NEW, FOREIGN, "hush"):
        assert secret not in shown
