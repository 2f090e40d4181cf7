"""A page session: opened by a message for the sign-in page alone, ended by its age, by disuse and by its reader."""

from dataclasses import replace

import pytest

from tests.identity.conftest import CHAIN, NOW_MS, PUBLIC_URL
from tests.kit.narrowing import existing, problem_of
from tests.kit.stores import InlineDatabase
from tollway.errors import Code
from tollway.identity.page_sessions import USE_INTERVAL_MS, PageSignIn
from tollway.identity.signatures import eip191_digest
from tollway.identity.siwe import parse_origin
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.accounts.identity_store import SqlPageSessions, page_session_table

TTL_MS = DEFAULT_LIMITS.page_session_ttl_s * 1000
IDLE_MS = DEFAULT_LIMITS.page_session_idle_s * 1000


@pytest.fixture
def database() -> InlineDatabase:
    return InlineDatabase()


@pytest.fixture
def pages(harness, database) -> PageSignIn:
    return PageSignIn(
        SqlPageSessions(database),
        harness.sign_in,
        origin=parse_origin(PUBLIC_URL),
        limits=DEFAULT_LIMITS,
        now_ms=harness.clock,
        entropy=lambda size: b"\x07" * size,
    )


async def signed_for(challenge, wallet) -> dict:
    text = challenge.format_message(address=wallet.address, chain_id=CHAIN)
    return {
        "text": text,
        "signature": wallet.sign(eip191_digest(text.encode())),
        "client_address": "192.0.2.1",
    }


async def opened(pages: PageSignIn, wallet) -> str:
    return (await pages.open_session(**await signed_for(await pages.create_challenge(), wallet))).token


async def test_a_message_for_the_sign_in_page_opens_a_session_that_can_be_closed(pages, wallet) -> None:
    challenge = await pages.create_challenge()
    assert challenge.uri == f"{PUBLIC_URL}/signin"
    session = await pages.open_session(**await signed_for(challenge, wallet))
    assert (session.address, session.expires_in_s) == (wallet.address, 12 * 3600)
    found = existing(await pages.find_session(session.token))
    assert (found.address, found.chain_id) == (wallet.address, CHAIN)
    await pages.close_session(session.token)
    assert await pages.find_session(session.token) is None
    await pages.close_session(session.token)


async def test_a_message_opens_one_session(pages, wallet) -> None:
    proof = await signed_for(await pages.create_challenge(), wallet)
    await pages.open_session(**proof)
    assert (await problem_of(pages.open_session(**proof))).code is Code.NONCE_REUSED


@pytest.mark.parametrize("uri", [None, f"{PUBLIC_URL}/api/v2/auth/session", f"{PUBLIC_URL}/my"])
async def test_a_message_for_the_api_opens_no_page_session(pages, harness, wallet, uri) -> None:
    proof = await signed_for(await harness.sign_in.create_challenge(uri), wallet)
    assert (await problem_of(pages.open_session(**proof))).reason == "invalid_siwx_uri_mismatch"


async def test_a_message_for_the_sign_in_page_opens_no_session_of_the_api(pages, harness, wallet) -> None:
    proof = await signed_for(await pages.create_challenge(), wallet)
    assert (await problem_of(harness.sign_in.open_session(**proof))).reason == "invalid_siwx_uri_mismatch"


async def test_a_message_for_the_sign_in_page_proves_no_read_of_the_api(pages, harness, wallet) -> None:
    proof = await signed_for(await pages.create_challenge(), wallet)
    message = await harness.sign_in.prove(**proof, uris=(f"{PUBLIC_URL}/signin",))
    again = replace(message, nonce=(await pages.create_challenge()).nonce)
    problem = await problem_of(harness.sign_in.spend_nonce(again, uris=None, now_ms=NOW_MS))
    assert problem.reason == "invalid_siwx_uri_mismatch"


async def test_a_token_of_a_page_is_no_token_of_the_api_and_the_other_way_round(
    pages, harness, wallet
) -> None:
    token = await opened(pages, wallet)
    assert (await problem_of(harness.sign_in.find_session(token))).code is Code.SESSION_EXPIRED
    proof = await signed_for(await harness.sign_in.create_challenge(), wallet)
    session = await harness.sign_in.open_session(**proof)
    assert await pages.find_session(session.token) is None


@pytest.mark.parametrize(
    ("uses_ms", "now_ms", "is_good"),
    [
        ((), IDLE_MS - 1, True),
        ((), IDLE_MS, False),
        ((IDLE_MS - 1,), 2 * IDLE_MS - 2, True),
        ((IDLE_MS - 1,), 2 * IDLE_MS - 1, False),
        (tuple(range(IDLE_MS - 1, TTL_MS, IDLE_MS - 1)), TTL_MS - 1, True),
        (tuple(range(IDLE_MS - 1, TTL_MS, IDLE_MS - 1)), TTL_MS, False),
    ],
    ids=(
        "in use",
        "unused for two hours",
        "used again",
        "unused after a use",
        "in use to its end",
        "after twelve hours",
    ),
)
async def test_a_session_ends_by_disuse_and_by_age(pages, harness, wallet, uses_ms, now_ms, is_good) -> None:
    token = await opened(pages, wallet)
    for moment in uses_ms:
        harness.clock.now_ms = NOW_MS + moment
        assert await pages.find_session(token) is not None
    harness.clock.now_ms = NOW_MS + now_ms
    assert (await pages.find_session(token) is not None) is is_good


async def test_uses_within_a_minute_are_one_write(pages, harness, wallet, database) -> None:
    token = await opened(pages, wallet)
    written = database.writes
    for moment in range(0, USE_INTERVAL_MS, 1_000):
        harness.clock.now_ms = NOW_MS + moment
        await pages.find_session(token)
    assert database.writes == written
    harness.clock.now_ms = NOW_MS + USE_INTERVAL_MS
    await pages.find_session(token)
    assert database.writes == written + 1


async def test_the_token_is_kept_only_as_its_hash(pages, wallet, database) -> None:
    token = await opened(pages, wallet)
    rows = await database.read(lambda connection: connection.execute(page_session_table.select()).all())
    assert token.encode() not in b"".join(repr(row).encode() for row in rows)
    assert len(rows) == 1


@pytest.mark.parametrize("token", ["", "x", "a" * 43, "ä" * 43])
async def test_no_other_text_is_a_token(pages, wallet, token) -> None:
    await opened(pages, wallet)
    assert await pages.find_session(token) is None
