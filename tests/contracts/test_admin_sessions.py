"""Codes and sessions of the operator's pages, on both dialects."""

import asyncio

import pytest

from tests.kit.ledger_records import NOW_MS
from tollway.identity.admin_sessions import CODE_TTL_S, SESSION_TTL_S, AdminSignIn, create_code
from tollway.storage.admin_store import SqlAdminSessions, admin_code_table, admin_session_table
from tollway.storage.database import Database


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


class Entropy:
    """Another byte for each draw."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, size: int) -> bytes:
        self._number += 1
        return bytes([self._number]) * size


class Setup:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = Clock()
        self.entropy = Entropy()
        self.store = SqlAdminSessions(database)
        self.sign_in = AdminSignIn(self.store, now_ms=self.clock, entropy=self.entropy)

    async def make_code(self) -> str:
        return await create_code(self.store, actor="alice@gw-1", now_ms=self.clock.ms, entropy=self.entropy)


@pytest.fixture
def setup(database: Database) -> Setup:
    return Setup(database)


async def test_a_code_opens_one_session_of_its_actor(setup: Setup) -> None:
    code = await setup.make_code()
    token = await setup.sign_in.open_session(code)
    assert token is not None
    session = await setup.sign_in.find_session(token)
    assert session is not None
    assert (session.actor, session.created_ms) == ("alice@gw-1", NOW_MS)
    assert await setup.sign_in.open_session(code) is None
    assert await setup.sign_in.find_session(code) is None
    await setup.sign_in.close_session(session)
    assert await setup.sign_in.find_session(token) is None


async def test_of_many_callers_with_one_code_one_gets_in(setup: Setup) -> None:
    code = await setup.make_code()
    tokens = await asyncio.gather(*(setup.sign_in.open_session(code) for _ in range(8)))
    assert sum(token is not None for token in tokens) == 1


@pytest.mark.parametrize(("late_ms", "counts"), [(-1, True), (0, False), (1, False)])
async def test_a_code_counts_for_five_minutes(setup: Setup, late_ms: int, counts: bool) -> None:
    code = await setup.make_code()
    setup.clock.ms += CODE_TTL_S * 1000 + late_ms
    assert (await setup.sign_in.open_session(code) is not None) is counts


@pytest.mark.parametrize(("late_ms", "is_open"), [(-1, True), (0, False)])
async def test_a_session_lasts_eight_hours(setup: Setup, late_ms: int, is_open: bool) -> None:
    token = await setup.sign_in.open_session(await setup.make_code())
    assert token is not None
    setup.clock.ms += SESSION_TTL_S * 1000 + late_ms
    assert (await setup.sign_in.find_session(token) is not None) is is_open


async def test_a_sign_in_deletes_what_has_expired(setup: Setup) -> None:
    assert await setup.sign_in.open_session(await setup.make_code()) is not None
    await setup.make_code()
    setup.clock.ms += SESSION_TTL_S * 1000
    assert await setup.sign_in.open_session(await setup.make_code()) is not None
    for table, left in ((admin_code_table, 0), (admin_session_table, 1)):
        query = table.select()
        rows = await setup.database.read(lambda connection, query=query: connection.execute(query).all())
        assert len(rows) == left
