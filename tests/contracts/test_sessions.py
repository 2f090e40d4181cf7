"""The contracts of `SessionStore` and `PageSessionStore`, on SQLite and on PostgreSQL."""

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.kit.chain import MemoryChain
from tests.kit.lookup_counter import LookupCounter
from tests.kit.narrowing import existing
from tests.kit.payer import KeyWallet
from tollway.errors import Code, Refusal
from tollway.identity.page_sessions import PageSession, PageSessionStore
from tollway.identity.sessions import NewSession, Session, SessionStore, SignIn, SignInNonce
from tollway.identity.signatures import SignatureVerifier, eip191_digest
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, ChainId, keccak256
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.accounts.identity_store import SqlPageSessions, SqlSessions
from tollway.storage.engine.database import Database

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


@pytest.fixture
def store(database: Database) -> SessionStore:
    return SqlSessions(database)


async def test_a_nonce_is_taken_once_with_what_was_noted(store: SessionStore) -> None:
    noted = SignInNonce(nonce="b" * 32, uri="https://gw.example.com/api/v2/apis", expires_ms=NOW_MS + 1)
    await store.issue_nonce(noted)
    assert await store.take_nonce(noted.nonce, now_ms=NOW_MS) == noted
    assert await store.take_nonce(noted.nonce, now_ms=NOW_MS) is None


async def test_a_nonce_that_was_not_issued_is_unknown(store: SessionStore) -> None:
    assert await store.take_nonce("c" * 32, now_ms=NOW_MS) is None


ENDS = ((-1, True), (0, False), (1, False))
"""Milliseconds after the expiry -> whether it still counts."""


async def test_a_nonce_ends_at_its_expiry(store: SessionStore) -> None:
    for late_ms, is_good in ENDS:
        nonce = replace(NONCE, nonce=f"{late_ms:032}")
        await store.issue_nonce(nonce)
        taken = await store.take_nonce(nonce.nonce, now_ms=nonce.expires_ms + late_ms)
        assert (taken is not None) is is_good, late_ms


async def test_fifty_racers_for_one_nonce_have_one_winner(store: SessionStore) -> None:
    await store.issue_nonce(NONCE)
    taken = await asyncio.gather(*(store.take_nonce(NONCE.nonce, now_ms=NOW_MS) for _ in range(RACERS)))
    assert [nonce for nonce in taken if nonce is not None] == [NONCE]


async def test_fifty_racers_with_one_login_open_one_session(store: SessionStore) -> None:
    wallet, numbers, opened = KeyWallet.named("racer"), count(1), []

    def entropy(size: int) -> bytes:
        return keccak256(next(numbers).to_bytes(8, "big"))[:size]

    class Watched:
        """A store that records every session put into it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def put_session(self, session: Session) -> None:
            opened.append(session)
            await store.put_session(session)

    sign_in = SignIn(
        Watched(),
        SignatureVerifier(MemoryChain(ChainId(84532)), limits=DEFAULT_LIMITS),
        LookupCounter(),
        origin=parse_origin("https://gw.example.com"),
        limits=DEFAULT_LIMITS,
        now_ms=lambda: NOW_MS,
        entropy=entropy,
    )
    text = (await sign_in.create_challenge()).format_message(address=wallet.address, chain_id=ChainId(84532))
    signature = wallet.sign(eip191_digest(text.encode()))
    outcomes = await asyncio.gather(
        *(
            sign_in.open_session(text=text, signature=signature, client_address=f"192.0.2.{n}")
            for n in range(RACERS)
        ),
        return_exceptions=True,
    )
    (admission,) = [outcome for outcome in outcomes if isinstance(outcome, NewSession)]
    refused = [outcome.problem.code for outcome in outcomes if isinstance(outcome, Refusal)]
    assert refused == [Code.NONCE_REUSED] * (RACERS - 1)
    assert len(opened) == 1
    assert (await sign_in.find_session(admission.token)).address == wallet.address


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


async def test_a_session_ends_at_its_expiry(store: SessionStore) -> None:
    await store.put_session(SESSION)
    for late_ms, is_good in ENDS:
        found = await store.find_session(SESSION.token_hash, now_ms=SESSION.expires_ms + late_ms)
        assert (found is not None) is is_good, late_ms


async def test_pruning_deletes_expired_rows_only(store: SessionStore) -> None:
    await store.issue_nonce(NONCE)
    await store.put_session(SESSION)
    await store.remember_signature_nonce("erc8128:1:0xab", "n", expires_ms=NOW_MS + 1_000)
    assert await store.prune(now_ms=NOW_MS + 999) == 0
    assert not await store.remember_signature_nonce("erc8128:1:0xab", "n", expires_ms=NOW_MS + 1_000)
    assert await store.prune(now_ms=NOW_MS + 1_000) == 3
    assert await store.remember_signature_nonce("erc8128:1:0xab", "n", expires_ms=NOW_MS + 2_000)


PAGE_SESSION = PageSession(
    token_hash=b"\x03" * 32,
    address=Address(b"\x02" * 20),
    chain_id=ChainId(84532),
    created_ms=NOW_MS,
    used_ms=NOW_MS,
    expires_ms=NOW_MS + 1_000,
)


@pytest.fixture
def pages(database: Database) -> PageSessionStore:
    return SqlPageSessions(database)


async def test_a_page_session_is_found_until_it_is_closed(pages: PageSessionStore) -> None:
    await pages.put_page_session(PAGE_SESSION)
    assert await pages.find_page_session(PAGE_SESSION.token_hash) == PAGE_SESSION
    assert await pages.find_page_session(b"\x04" * 32) is None
    await pages.delete_page_session(PAGE_SESSION.token_hash)
    await pages.delete_page_session(PAGE_SESSION.token_hash)
    assert await pages.find_page_session(PAGE_SESSION.token_hash) is None


async def test_the_use_of_a_page_session_never_moves_back(pages: PageSessionStore) -> None:
    await pages.put_page_session(PAGE_SESSION)
    for moment_ms, expected_ms in ((NOW_MS + 5, NOW_MS + 5), (NOW_MS + 3, NOW_MS + 5)):
        await pages.mark_page_session_used(PAGE_SESSION.token_hash, now_ms=moment_ms)
        assert existing(await pages.find_page_session(PAGE_SESSION.token_hash)).used_ms == expected_ms
    await pages.mark_page_session_used(b"\x04" * 32, now_ms=NOW_MS)


async def test_the_pruning_of_sessions_deletes_expired_page_sessions(
    pages: PageSessionStore, store: SessionStore
) -> None:
    await pages.put_page_session(PAGE_SESSION)
    assert await store.prune(now_ms=PAGE_SESSION.expires_ms - 1) == 0
    assert await store.prune(now_ms=PAGE_SESSION.expires_ms) == 1
    assert await pages.find_page_session(PAGE_SESSION.token_hash) is None


async def test_a_page_session_is_no_session_of_the_api(pages: PageSessionStore, store: SessionStore) -> None:
    await pages.put_page_session(PAGE_SESSION)
    await store.put_session(SESSION)
    assert await store.find_session(PAGE_SESSION.token_hash, now_ms=NOW_MS) is None
    assert await pages.find_page_session(SESSION.token_hash) is None
