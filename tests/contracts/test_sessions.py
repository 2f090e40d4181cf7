"""What every `SessionStore` promises, kept by the one in memory and by both databases."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tollway.identifiers import Address, ChainId
from tollway.identity.sessions import Session, SessionStore, SignInNonce
from tollway.storage.database import connect_database
from tollway.storage.session_store import SqlSessions
from tollway.testing.memory_sessions import MemorySessions

RACERS = 50
NOW_MS = 1_790_000_000_000
NONCE = SignInNonce(nonce="a" * 32, uri=None, expires_ms=NOW_MS + 1_000)
SESSION = Session(
    token_hash=b"\x01" * 32,
    address=Address(b"\x02" * 20),
    chain_id=ChainId(84532),
    created_ms=NOW_MS,
    expires_ms=NOW_MS + 1_000,
)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SessionStore]:
    if request.param == "memory":
        yield MemorySessions()
        return
    url = request.getfixturevalue({"sqlite": "sqlite_url"}.get(request.param, "postgres_url"))
    database = connect_database(url)
    await database.open()
    try:
        yield SqlSessions(database)
    finally:
        await database.close()


async def test_a_nonce_is_taken_once_with_what_was_noted(store: SessionStore) -> None:
    noted = SignInNonce(nonce="b" * 32, uri="https://gw.example.com/api/v2/apis", expires_ms=NOW_MS + 1)
    await store.issue_nonce(noted)
    assert await store.take_nonce(noted.nonce, now_ms=NOW_MS) == noted
    assert await store.take_nonce(noted.nonce, now_ms=NOW_MS) is None


async def test_a_nonce_that_nobody_issued_is_not_there(store: SessionStore) -> None:
    assert await store.take_nonce("c" * 32, now_ms=NOW_MS) is None


@pytest.mark.parametrize(("late_ms", "is_good"), [(-1, True), (0, False), (1, False)])
async def test_a_nonce_ends_at_its_expiry(store: SessionStore, late_ms: int, is_good: bool) -> None:
    await store.issue_nonce(NONCE)
    taken = await store.take_nonce(NONCE.nonce, now_ms=NONCE.expires_ms + late_ms)
    assert (taken is not None) is is_good


async def test_fifty_racers_for_one_nonce_have_one_winner(store: SessionStore) -> None:
    await store.issue_nonce(NONCE)
    taken = await asyncio.gather(*(store.take_nonce(NONCE.nonce, now_ms=NOW_MS) for _ in range(RACERS)))
    assert [nonce for nonce in taken if nonce is not None] == [NONCE]


async def test_fifty_racers_with_one_signature_have_one_winner(store: SessionStore) -> None:
    first = await asyncio.gather(
        *(store.remember_signature_nonce("erc8128:1:0xab", "n", expires_ms=NOW_MS + 1) for _ in range(RACERS))
    )
    assert first.count(True) == 1


async def test_signature_nonces_of_different_keys_do_not_meet(store: SessionStore) -> None:
    assert await store.remember_signature_nonce("erc8128:1:0xab", "n", expires_ms=NOW_MS)
    assert await store.remember_signature_nonce("erc8128:1:0xac", "n", expires_ms=NOW_MS)
    assert await store.remember_signature_nonce("erc8128:1:0xab", "m", expires_ms=NOW_MS)
    assert not await store.remember_signature_nonce("erc8128:1:0xab", "n", expires_ms=NOW_MS + 9)


async def test_a_session_is_found_until_it_is_closed(store: SessionStore) -> None:
    await store.put_session(SESSION)
    assert await store.find_session(SESSION.token_hash, now_ms=NOW_MS) == SESSION
    assert await store.find_session(b"\x09" * 32, now_ms=NOW_MS) is None
    await store.delete_session(SESSION.token_hash)
    await store.delete_session(SESSION.token_hash)
    assert await store.find_session(SESSION.token_hash, now_ms=NOW_MS) is None


@pytest.mark.parametrize(("late_ms", "is_good"), [(-1, True), (0, False), (1, False)])
async def test_a_session_ends_at_its_expiry(store: SessionStore, late_ms: int, is_good: bool) -> None:
    await store.put_session(SESSION)
    found = await store.find_session(SESSION.token_hash, now_ms=SESSION.expires_ms + late_ms)
    assert (found is not None) is is_good


async def test_pruning_forgets_what_has_expired_and_nothing_else(store: SessionStore) -> None:
    await store.issue_nonce(NONCE)
    await store.put_session(SESSION)
    await store.remember_signature_nonce("erc8128:1:0xab", "n", expires_ms=NOW_MS + 1_000)
    assert await store.prune(now_ms=NOW_MS + 999) == 0
    assert not await store.remember_signature_nonce("erc8128:1:0xab", "n", expires_ms=NOW_MS + 1_000)
    assert await store.prune(now_ms=NOW_MS + 1_000) == 3
    assert await store.remember_signature_nonce("erc8128:1:0xab", "n", expires_ms=NOW_MS + 2_000)
