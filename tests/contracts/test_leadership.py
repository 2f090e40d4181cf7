"""Leader election: one gateway leads at a time, another one soon after it is gone or has a larger handicap; on SQLite the only gateway leads."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, cast

import asyncpg
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Executable

from tests.kit.chain import MemoryChain
from tests.kit.fixed_limits import load_with_fixed_limits
from tests.kit.waits import DEADLINE_S, until
from tollway.app.doctor_findings import Finding
from tollway.app.lifecycle import App
from tollway.cli.doctor import examine
from tollway.config.settings import Settings
from tollway.errors import StorageUnavailable
from tollway.limits import DEFAULT_LIMITS
from tollway.observability.telemetry import Metrics
from tollway.storage.engine.database import Database, connect_database
from tollway.storage.engine.leadership import Duty, Leadership, are_sessions_shared, choose_lock, find_leaders
from tollway.storage.engine.postgres import PostgresDatabase
from tollway.storage.engine.statements import FetchScalar, Work

pytestmark = pytest.mark.dialects

QUICK = replace(DEFAULT_LIMITS, leader_poll_s=0.01, leader_lease_s=600.0)
"""A lease that no pause of the machine outlasts. The server ends the session of a leader that stalls after `SHORT_LEASE_S`."""
SHORT_LEASE_S = 1.0
SECRET_KEY = "00112233445566778899aabbccddeeff" * 2

T = TypeVar("T")


class Candidate:
    """A gateway that takes part in the election of the recovery duty."""

    def __init__(self, database: Database, *, duty: Duty = Duty.SWEEPER, owner_id: str = "") -> None:
        self.terms = 0
        self.is_working = False
        self.heard: list[bool] = []
        self.networks_away = 0
        self.looks = 0
        self.leadership = Leadership(
            database,
            duty=duty,
            limits=QUICK,
            on_change=lambda duty, is_leading: self.heard.append(is_leading),
            count_lost=self.count_lost,
            owner_id=owner_id,
        )

    def count_lost(self) -> int:
        """Called at each check of the lead."""
        self.looks += 1
        return self.networks_away

    async def work(self) -> None:
        self.terms += 1
        self.is_working = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_working = False

    @contextlib.asynccontextmanager
    async def standing(self) -> AsyncIterator["Candidate"]:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self.leadership.lead(self.work))
            yield self
            running.cancel()

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator["Candidate"]:
        """It stands, and works already."""
        async with self.standing():
            await until(lambda: self.is_working)
            yield self


class AwayAtFirst(PostgresDatabase):
    """A node that does not respond until the test lets it."""

    is_away = True
    asked = 0

    async def read(self, work: Work[T]) -> T:
        self.asked += 1
        if self.is_away:
            raise StorageUnavailable
        return await super().read(work)


@pytest.fixture
async def databases(postgres_url: str) -> AsyncIterator[list[PostgresDatabase]]:
    """The same database, as three gateways open it."""
    opened = [PostgresDatabase(postgres_url) for _ in range(3)]
    for database in opened:
        await database.open()
    yield opened
    for database in opened:
        await database.close()


def load_without_node(url: str, **given: str) -> Settings:
    required = {"TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1", "TOLLWAY_SECRET_KEY": SECRET_KEY}
    return load_with_fixed_limits({**required, "TOLLWAY_DATABASE_URL": url, **given})


async def leader_process(database: Database, duty: Duty = Duty.SWEEPER) -> int | None:
    leader = (await find_leaders(database)).get(duty)
    return None if leader is None else leader.server_process


async def test_a_single_gateway_leads(database: Database) -> None:
    async with Candidate(database).leading() as one:
        assert one.leadership.is_leading
    assert not one.is_working
    assert one.heard == [True, False]


@pytest.mark.postgres
async def test_one_of_many_leads(databases: list[PostgresDatabase]) -> None:
    everybody = [Candidate(database) for database in databases]
    async with contextlib.AsyncExitStack() as stack:
        for one in everybody:
            await stack.enter_async_context(one.standing())
        await until(lambda: any(one.is_working for one in everybody))
        polled = asyncio.Event()
        asyncio.get_running_loop().call_later(20 * QUICK.leader_poll_s, polled.set)
        while not polled.is_set():
            assert sum(one.is_working for one in everybody) == 1
            await asyncio.sleep(0)


@pytest.mark.postgres
async def test_a_leader_has_the_id_of_its_lease(databases: list[PostgresDatabase]) -> None:
    named, unnamed = Candidate(databases[0], owner_id="a" * 32), Candidate(databases[1], duty=Duty.WATCHER)
    async with named.standing(), unnamed.standing():
        await until(lambda: named.is_working and unnamed.is_working)
        leaders = await find_leaders(databases[2])
        assert (leaders[Duty.SWEEPER].owner_id, leaders[Duty.WATCHER].owner_id) == ("a" * 32, None)


@pytest.mark.postgres
async def test_each_duty_has_a_leader_of_its_own(databases: list[PostgresDatabase]) -> None:
    sweeper, watcher = Candidate(databases[0]), Candidate(databases[1], duty=Duty.WATCHER)
    async with sweeper.standing(), watcher.standing():
        await until(lambda: sweeper.is_working and watcher.is_working)
        assert set(await find_leaders(databases[2])) == {Duty.SWEEPER, Duty.WATCHER}
    async with asyncio.timeout(DEADLINE_S):  # until the server has ended both sessions
        while await find_leaders(databases[2]):
            await asyncio.sleep(0.001)


@pytest.mark.postgres
async def test_a_leader_that_stops_is_followed_at_once(databases: list[PostgresDatabase]) -> None:
    one, two = Candidate(databases[0]), Candidate(databases[1])
    async with contextlib.AsyncExitStack() as stack:
        async with one.leading():
            await stack.enter_async_context(two.standing())
        await until(lambda: two.is_working)
    assert one.heard == two.heard == [True, False]


@pytest.mark.postgres
async def test_another_takes_over_when_the_leader_is_gone(
    databases: list[PostgresDatabase], operator: asyncpg.Connection
) -> None:
    """The kernel closes the connection of a process that was killed; the server does the same to a session that an
    operator ends."""
    one, two = Candidate(databases[0]), Candidate(databases[1])
    async with one.leading(), two.standing():
        await end_session(operator, await leader_process(databases[2]))
        await until(lambda: one.heard[:2] == [True, False])
        await until(lambda: one.is_working or two.is_working)
        assert one.is_working != two.is_working


@pytest.mark.postgres
async def test_a_leader_that_stalls_loses_its_lead_to_another(databases: list[PostgresDatabase]) -> None:
    """Its process and its connection exist, but it does not respond: the server ends its session."""
    duty = Duty.SWEEPER
    stalled = Leadership(
        databases[0],
        duty=duty,
        limits=replace(QUICK, leader_poll_s=3600.0, leader_lease_s=SHORT_LEASE_S),  # it never renews its lead
        on_change=lambda duty, is_leading: None,
    )
    forever = asyncio.Event()

    async def work() -> None:
        await forever.wait()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(stalled.lead(work))
        await until(lambda: stalled.is_leading)
        two = Candidate(databases[1])
        async with two.leading():
            assert stalled.is_leading  # it has not checked yet: two leaders for a moment
        running.cancel()


@pytest.mark.postgres
async def test_a_paused_leader_stops_its_work_at_its_next_check(
    databases: list[PostgresDatabase], operator: asyncpg.Connection
) -> None:
    one = Candidate(databases[0])
    async with one.leading():
        first = await leader_process(databases[2])
        await end_session(operator, first)
        await until(lambda: one.terms == 2 and one.is_working)  # it is the only gateway: it leads again
        assert await leader_process(databases[2]) != first
    assert one.heard == [True, False, True, False]


class Wandering(PostgresDatabase):
    """A session whose statements after the lock is taken go to another session, as behind a pooler."""

    @contextlib.asynccontextmanager
    async def open_session(self) -> AsyncIterator[FetchScalar]:
        asked = 0
        async with super().open_session() as here, super().open_session() as there:

            async def fetch_scalar(question: Executable) -> Any:
                nonlocal asked
                asked += 1
                return await (here if asked <= 3 else there)(question)

            yield fetch_scalar


@pytest.mark.postgres
async def test_a_leader_in_another_session_leads_no_more(postgres_url: str) -> None:
    database = Wandering(postgres_url)
    one = Candidate(database)
    async with one.standing():
        await until(lambda: one.heard[:2] == [True, False])
    await database.close()


@pytest.mark.postgres
async def test_a_leader_keeps_its_lead_by_making_sure(
    databases: list[PostgresDatabase], operator: asyncpg.Connection
) -> None:
    """The server counts the lease of a session from the end of its last statement. Each check of the lead is a statement in that session."""
    one = Candidate(databases[0])
    async with one.leading():
        first = await leader_process(databases[2])
        for _ in range(3):
            before = await read_last_statement(operator, first)
            await looks(one)
            assert await read_last_statement(operator, first) > before
        assert await leader_process(databases[2]) == first
        assert one.heard == [True]


async def read_last_statement(operator: asyncpg.Connection, process: int | None) -> datetime:
    query = "SELECT state_change FROM pg_stat_activity WHERE pid = $1"
    moment: datetime = await operator.fetchval(query, process)
    return moment


@pytest.mark.postgres
async def test_no_gateway_leads_during_an_outage_and_one_leads_after_it(postgres_url: str) -> None:
    database = AwayAtFirst(postgres_url)
    one = Candidate(database)
    async with one.standing():
        await until(lambda: database.asked > 2)
        assert not one.is_working
        database.is_away = False
        await until(lambda: one.is_working)
    await database.close()


@pytest.mark.postgres
async def test_lists_the_leaders_by_duty(databases: list[PostgresDatabase]) -> None:
    assert await find_leaders(databases[0]) == {}
    async with Candidate(databases[0], duty=Duty.WATCHER).leading():
        told = await find_leaders(databases[1])
    assert list(told) == [Duty.WATCHER]


async def test_on_sqlite_no_leaders_are_listed(sqlite_url: str) -> None:
    database = connect_database(sqlite_url)
    await database.open()
    assert await find_leaders(database) == {}
    await database.close()


@pytest.mark.postgres
async def test_sessions_of_a_server_without_a_pooler_are_our_own(databases: list[PostgresDatabase]) -> None:
    assert await are_sessions_shared(databases[0]) is False


def test_each_duty_has_a_lock_of_its_own_within_64_bits() -> None:
    locks = {duty.lock_of(handicap) for duty in Duty for handicap in range(100)}
    assert len(locks) == 100 * len(Duty)
    assert all(0 < lock < 2**63 for lock in locks)
    assert {Metrics(CollectorRegistry()).leading.labels(duty.label) is not None for duty in Duty} == {True}


# ---- A leader without its chain nodes.


CHOICES = (
    # held, wish, others -> the lock to hold; None: give way
    (0, 0, (), 0),
    (0, 1, (), 1),  # the only gateway leads, with any networks lost
    (2, 2, (), 2),
    (1, 0, (), 0),
    (1, 1, (0,), None),
    (2, 2, (1,), None),  # it reads no network, the other gateway reads one of two
    (2, 0, (1,), None),  # it is back too late: the other gateway has begun
    (1, 1, (2,), 1),  # the other gateway will give way
    (1, 0, (2,), 0),
    (0, 1, (1,), 0),  # the other gateway holds the lock that this one needs, and will give way
    (0, 2, (1,), 2),  # gives way at its next check
)


def test_the_gateway_with_the_smallest_handicap_leads() -> None:
    for held, wanted, others, chosen in CHOICES:
        assert choose_lock(held, wanted=wanted, others=others) == chosen, (held, wanted, others)


def test_for_every_set_of_lost_networks_one_gateway_with_the_most_networks_leads() -> None:
    """Three gateways check one after another, from every combination of states to every other."""
    states = list(itertools.product(range(3), repeat=3))
    for before, after in itertools.product(states, states):
        locks: dict[int, int] = {}  # gateway -> the handicap whose lock it holds
        for turn, handicaps in enumerate([before] * 3 + [after] * 3):
            for gateway, wanted in enumerate(handicaps):
                others = [locks[other] for other in locks if other != gateway]
                if gateway in locks:
                    chosen = choose_lock(locks.pop(gateway), wanted=wanted, others=others)
                else:
                    chosen = wanted if all(other > wanted for other in others) else None
                if chosen is not None:
                    locks[gateway] = chosen
                assert locks, (before, after, turn)
                assert len(set(locks.values())) == len(locks)
        assert list(locks.values()) == [min(after)], (before, after)


@pytest.mark.postgres
async def test_a_leader_without_a_network_gives_way_to_a_gateway_with_it(
    databases: list[PostgresDatabase],
) -> None:
    one, two = Candidate(databases[0]), Candidate(databases[1])
    async with one.leading():
        async with two.standing():
            one.networks_away = 1
            await until(lambda: two.is_working and one.heard == [True, False])
            one.networks_away = 0  # and does not take the lead back
            await looks(one, two)
            assert two.is_working
            assert not one.is_working
        await until(lambda: one.is_working)


@pytest.mark.postgres
async def test_no_leader_gives_way_to_an_equal_gateway(databases: list[PostgresDatabase]) -> None:
    """When a network is unavailable to all, or another one to each, they do not alternate."""
    one, two = Candidate(databases[0]), Candidate(databases[1])
    two.networks_away = 1
    async with one.leading(), two.standing():
        one.networks_away = 1
        await until_handicap(databases[2], 1)
        await looks(one, two)
        assert (one.heard, two.heard) == ([True], [])
        one.networks_away = 0
        await until_handicap(databases[2], 0)
        assert one.terms == 1  # its work was not interrupted


@pytest.mark.postgres
async def test_a_gateway_without_any_network_leads_when_it_is_the_only_one(
    databases: list[PostgresDatabase],
) -> None:
    one, two = Candidate(databases[0]), Candidate(databases[1])
    one.networks_away, two.networks_away = 2, 1
    async with one.leading():
        async with two.standing():
            await until(lambda: two.is_working and not one.is_working)
        await until(lambda: one.is_working)
    assert (one.heard, two.heard) == ([True, False, True, False], [True, False])


async def test_the_only_gateway_leads_without_its_nodes(database: Database) -> None:
    one = Candidate(database)
    one.networks_away = 1
    async with one.leading():
        assert one.leadership.is_leading


@pytest.mark.postgres
async def test_a_gateway_process_without_its_nodes_gives_way(
    databases: list[PostgresDatabase], postgres_url: str
) -> None:
    limits = {"TEST_LIMIT_LEADER_POLL_S": "0.01", "TEST_LIMIT_LEADER_LEASE_S": "600"}
    settings = load_without_node(postgres_url, **limits)
    async with App(settings) as app:

        def leads(duty: Duty) -> bool:
            return app.metrics.registry.get_sample_value("tollway_leading", {"duty": duty.label}) == 1

        await until(lambda: all(leads(duty) for duty in Duty))
        others = [Candidate(databases[number % 3], duty=duty) for number, duty in enumerate(Duty)]
        async with AsyncExitStack() as standing:
            for other in others:
                await standing.enter_async_context(other.standing())
            await until(lambda: all(other.is_working for other in others))
            await until(lambda: not any(leads(duty) for duty in Duty))
        await until(lambda: all(leads(duty) for duty in Duty))


async def until_handicap(database: Database, handicap: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (leader := (await find_leaders(database)).get(Duty.SWEEPER)) is None or (
            leader.handicap != handicap
        ):
            await asyncio.sleep(0.001)


async def looks(*everybody: Candidate) -> None:
    """Waits until each gateway has checked several more times."""
    before = [one.looks for one in everybody]
    await until(lambda: all(one.looks > seen + 5 for one, seen in zip(everybody, before, strict=True)))


async def end_session(operator: asyncpg.Connection, process: int | None) -> None:
    await operator.execute("SELECT pg_terminate_backend($1)", process)


async def test_the_statement_that_keeps_a_lock_is_prepared_before_the_lock_is_taken() -> None:
    """A leader that froze between the two messages of its first look would keep the lock for as long as it is frozen."""
    asked: list[str] = []

    async def fetch_scalar(statement: Any) -> int:
        asked.append(str(statement))
        return 7

    leadership = Leadership(
        cast("Any", None), duty=Duty.SWEEPER, limits=DEFAULT_LIMITS, on_change=lambda duty, is_leading: None
    )
    assert await leadership._take_lock(fetch_scalar, 0) == 7
    places = [
        next(place for place, text in enumerate(asked) if part in text)
        for part in ("idle_session_timeout", "THEN pg_backend_pid() END", "pg_try_advisory_lock")
    ]
    assert places == sorted(places) == [0, 1, 2]


# ---- `tollway gateway doctor`.


class Lent(PostgresDatabase):
    """A database behind a pooler, which lends a session for one transaction."""

    @contextlib.asynccontextmanager
    async def open_session(self) -> AsyncIterator[FetchScalar]:
        async def fetch_scalar(question: Executable) -> Any:
            return await self.read(lambda connection: connection.scalar(question))

        yield fetch_scalar


async def examine_leaders(url: str, database: Database) -> Finding:
    async def fetch_nothing(url: str) -> None:
        return None

    found = await examine(
        load_without_node(url),
        database=database,
        chains=MemoryChain(),
        fetch=fetch_nothing,
        now_s=1.0,
    )
    (finding,) = (one for one in found if one.check == "leaders")
    return finding


@pytest.mark.postgres
async def test_the_doctor_names_the_leaders_and_misses_them(
    databases: list[PostgresDatabase], postgres_url: str
) -> None:
    nobody = await examine_leaders(postgres_url, databases[0])
    assert nobody.level == "note"
    assert f"no gateway leads as {' or '.join(duty.label for duty in Duty)}" in nobody.detail
    leaders = {duty: Candidate(databases[number % 2], duty=duty) for number, duty in enumerate(Duty)}
    sweeper = leaders[Duty.SWEEPER]
    async with AsyncExitStack() as standing:
        for leader in leaders.values():
            await standing.enter_async_context(leader.standing())
        await until(lambda: all(leader.is_working for leader in leaders.values()))
        both = await examine_leaders(postgres_url, databases[2])
        sweeper.networks_away = 1
        await until_handicap(databases[2], 1)
        without_nodes = await examine_leaders(postgres_url, databases[2])
    assert both.level == "ok"
    assert "sweeper: " in both.detail
    assert "watcher: " in both.detail
    assert "networks" not in both.detail
    assert without_nodes.level == "note"
    assert "without nodes of 1 of its networks" in without_nodes.detail


@pytest.mark.postgres
async def test_doctor_detects_a_pooler_that_shares_sessions(postgres_url: str) -> None:
    database = Lent(postgres_url)
    await database.open()
    assert await are_sessions_shared(database) is True
    found = await examine_leaders(postgres_url, database)
    await database.close()
    assert found.level == "failed"
    assert "pooler" in found.detail
