"""Connections to whichever server takes writes; in an outage one dials and the others are told at once."""

import asyncio
from typing import Any

import asyncpg
import pytest

from tollway.storage import postgres
from tollway.storage.postgres import (
    COMMAND_TIMEOUT_S,
    RECONNECT_PAUSE_S,
    NoServerAvailable,
    PostgresConnector,
)
from tollway.storage.postgres_address import PostgresAddress


class Servers:
    """What each port does when it is dialled: raises, waits, or answers with its own number."""

    def __init__(self, **deeds: Any) -> None:
        self.deeds = deeds
        self.dialled: list[str] = []
        self.options: dict[str, Any] = {}

    async def connect(self, *, host: str, **options: Any) -> Any:
        self.dialled.append(host)
        self.options = options
        deed = self.deeds[host]
        if isinstance(deed, asyncio.Event):
            await deed.wait()
        elif isinstance(deed, BaseException):
            raise deed
        return host


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def connector(servers: Servers, clock: Clock | None = None) -> PostgresConnector:
    address = PostgresAddress.parse(f"postgresql://me:secret@{','.join(servers.deeds)}/books")
    return PostgresConnector(address, connect=servers.connect, clock=clock or Clock())


REFUSED = ConnectionRefusedError(111, "refused")
READ_ONLY = asyncpg.TargetServerAttributeNotMatched("no host matches")
STARTING = asyncpg.CannotConnectNowError("the database system is starting up")


@pytest.mark.parametrize(
    "failure", [REFUSED, READ_ONLY, STARTING, TimeoutError(), asyncpg.TooManyConnectionsError("x")]
)
async def test_takes_the_next_server_when_one_cannot_be_used(failure: Exception) -> None:
    servers = Servers(one=failure, two=None)
    it = connector(servers)
    assert await it.connect_writable(statement_deadline_s=1) == "two"
    assert await it.connect_writable(statement_deadline_s=1) == "two"
    assert servers.dialled == ["one", "two", "two"]  # what took us last comes first


async def test_a_server_that_says_nothing_is_left_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "CONNECT_DEADLINE_S", 0.01)
    assert (
        await connector(Servers(one=asyncio.Event(), two=None)).connect_writable(statement_deadline_s=1)
        == "two"
    )


async def test_names_every_server_with_its_reason_and_no_secret() -> None:
    odd = asyncpg.UndefinedFunctionError("secret")
    with pytest.raises(NoServerAvailable) as caught:
        await connector(Servers(a=REFUSED, b=READ_ONLY, c=STARTING, d=odd)).connect_writable(
            statement_deadline_s=1
        )
    assert str(caught.value) == (
        "a:5432 refuses connections; b:5432 is read-only; c:5432 is starting up or shutting down; "
        "d:5432 fails with UndefinedFunctionError (42883)"
    )


async def test_asks_for_a_server_that_takes_writes_where_there_are_several() -> None:
    servers = Servers(one=None, two=None)
    await connector(servers).connect_writable(statement_deadline_s=4.0)
    assert servers.options["target_session_attrs"] == "read-write"
    assert servers.options["command_timeout"] == 4.0


async def test_no_default_of_the_server_weakens_a_commit() -> None:
    servers = Servers(one=None)
    await connector(servers).connect_writable(statement_deadline_s=4.0)
    assert servers.options["server_settings"]["statement_timeout"] == "0"
    assert servers.options["server_settings"]["synchronous_commit"] == "on"
    assert servers.options["server_settings"]["default_transaction_isolation"] == "read committed"
    assert servers.options["server_settings"]["lock_timeout"] == "3200ms"
    await connector(servers).connect_writable(statement_deadline_s=None)
    assert "lock_timeout" not in servers.options["server_settings"]


async def test_a_session_that_stands_still_ends_before_others_give_up_on_its_locks() -> None:
    servers = Servers(one=None)
    await connector(servers).connect_writable(statement_deadline_s=COMMAND_TIMEOUT_S)
    told = servers.options["server_settings"]
    idle_ms = 1_000 * int(told["idle_in_transaction_session_timeout"].removesuffix("s"))
    assert 0 < idle_ms < int(told["lock_timeout"].removesuffix("ms"))


async def test_in_an_outage_one_dials_and_the_others_are_told_at_once() -> None:
    servers, clock = Servers(one=REFUSED), Clock()
    it = connector(servers, clock)
    with pytest.raises(NoServerAvailable):
        await it.connect_writable(statement_deadline_s=1)
    with pytest.raises(NoServerAvailable, match="refuses"):
        await it.connect_writable(statement_deadline_s=1)
    assert servers.dialled == ["one"]

    servers.deeds["one"] = silent = asyncio.Event()
    clock.s = RECONNECT_PAUSE_S
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(it.connect_writable(statement_deadline_s=1))
        while len(servers.dialled) < 2:
            await asyncio.sleep(0)
        with pytest.raises(NoServerAvailable):
            await it.connect_writable(statement_deadline_s=1)
        silent.set()
    assert probe.result() == "one"
    await it.connect_writable(statement_deadline_s=1)  # the outage is over for all
    assert servers.dialled == ["one"] * 3


async def test_a_probe_that_is_called_off_leaves_the_way_free() -> None:
    servers, clock = Servers(one=REFUSED), Clock()
    it = connector(servers, clock)
    with pytest.raises(NoServerAvailable):
        await it.connect_writable(statement_deadline_s=1)
    servers.deeds["one"] = asyncio.Event()
    clock.s = RECONNECT_PAUSE_S
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(it.connect_writable(statement_deadline_s=1))
        while len(servers.dialled) < 2:
            await asyncio.sleep(0)
        probe.cancel()
    servers.deeds["one"] = None
    assert await it.connect_writable(statement_deadline_s=1) == "one"
