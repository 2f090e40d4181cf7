"""Connections to the first writable server; in an outage one task connects and the others fail at once."""

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.kit.clocks import StoppedClock
from tests.kit.waits import until
from tollway.storage.engine import postgres
from tollway.storage.engine.postgres import (
    COMMAND_TIMEOUT_S,
    RECONNECT_PAUSE_S,
    NoServerAvailable,
    PostgresConnector,
)
from tollway.storage.engine.postgres_address import PostgresAddress


class Servers:
    """A fake of servers by host: a connection raises, waits, or returns the host."""

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


def connector(servers: Servers, clock: StoppedClock | None = None) -> PostgresConnector:
    address = PostgresAddress.parse(f"postgresql://me:secret@{','.join(servers.deeds)}/books")
    return PostgresConnector(address, connect=servers.connect, clock=clock or StoppedClock())


REFUSED = ConnectionRefusedError(111, "refused")
READ_ONLY = asyncpg.TargetServerAttributeNotMatched("no host matches")
STARTING = asyncpg.CannotConnectNowError("the database system is starting up")


@pytest.mark.parametrize(
    "failure", [REFUSED, READ_ONLY, STARTING, TimeoutError(), asyncpg.TooManyConnectionsError("x")]
)
async def test_connects_to_the_next_server_when_one_cannot_be_used(failure: Exception) -> None:
    servers = Servers(one=failure, two=None)
    it = connector(servers)
    assert await it.connect_writable(statement_deadline_s=1) == "two"
    assert await it.connect_writable(statement_deadline_s=1) == "two"
    assert servers.dialled == ["one", "two", "two"]  # the last successful server comes first


async def test_a_silent_server_is_left_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "CONNECT_DEADLINE_S", 0.01)
    assert (
        await connector(Servers(one=asyncio.Event(), two=None)).connect_writable(statement_deadline_s=1)
        == "two"
    )


async def test_the_error_has_every_server_with_its_reason_and_no_secret() -> None:
    odd = asyncpg.UndefinedFunctionError("secret")
    with pytest.raises(NoServerAvailable) as caught:
        await connector(Servers(a=REFUSED, b=READ_ONLY, c=STARTING, d=odd)).connect_writable(
            statement_deadline_s=1
        )
    assert str(caught.value) == (
        "a:5432 refuses connections; b:5432 is read-only; c:5432 is starting up or shutting down; "
        "d:5432 fails with UndefinedFunctionError (42883)"
    )


async def test_requires_a_writable_server_among_several() -> None:
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


async def test_a_paused_session_ends_before_the_lock_timeout_of_others() -> None:
    servers = Servers(one=None)
    await connector(servers).connect_writable(statement_deadline_s=COMMAND_TIMEOUT_S)
    session = servers.options["server_settings"]
    idle_ms = 1_000 * int(session["idle_in_transaction_session_timeout"].removesuffix("s"))
    assert 0 < idle_ms < int(session["lock_timeout"].removesuffix("ms"))


async def test_in_an_outage_one_task_connects_and_the_others_fail_at_once() -> None:
    servers, clock = Servers(one=REFUSED), StoppedClock()
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
        await until(lambda: len(servers.dialled) >= 2)
        with pytest.raises(NoServerAvailable):
            await it.connect_writable(statement_deadline_s=1)
        silent.set()
    assert probe.result() == "one"
    await it.connect_writable(statement_deadline_s=1)  # the outage is over for all
    assert servers.dialled == ["one"] * 3


async def test_after_a_cancelled_probe_another_task_may_connect() -> None:
    servers, clock = Servers(one=REFUSED), StoppedClock()
    it = connector(servers, clock)
    with pytest.raises(NoServerAvailable):
        await it.connect_writable(statement_deadline_s=1)
    servers.deeds["one"] = asyncio.Event()
    clock.s = RECONNECT_PAUSE_S
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(it.connect_writable(statement_deadline_s=1))
        await until(lambda: len(servers.dialled) >= 2)
        probe.cancel()
    servers.deeds["one"] = None
    assert await it.connect_writable(statement_deadline_s=1) == "one"
