"""The rate of authenticated requests: one quota of a wallet, and one of a client address, whatever the proof."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import coincurve
import httpx
import pytest

from tests.kit.payer import KeyWallet
from tests.kit.routes import PUBLIC_URL
from tests.kit.signed_in import OTHER, READER, RULES, SELLER, THIRD, SignedInHarness, open_signed_in
from tests.kit.waits import until
from tollway.client.wallet import Wallet
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.signatures import eip191_digest
from tollway.identity.siwe import parse_origin
from tollway.limits import DEFAULT_LIMITS
from tollway.rate_limits.limiter import WALLETS_PER_ADDRESS
from tollway.web.http.read_turns import READS_AT_ONCE, ReadTurns

MOST = 4
BOOKS = "/api/v2/history"


@pytest.fixture
async def harness() -> AsyncIterator[SignedInHarness]:
    limits = replace(DEFAULT_LIMITS, authenticated_requests_per_minute=MOST)
    async with open_signed_in(limits) as harness:
        yield harness


async def read_page(harness: SignedInHarness, wallet: KeyWallet) -> httpx.Response:
    """A page with the session of the browser, which `sign_in` opened."""
    return await harness.browser.get("/my/wallets")


async def read_file(harness: SignedInHarness, wallet: KeyWallet) -> httpx.Response:
    return await harness.browser.get("/my/calls.csv")


async def read_with_session(harness: SignedInHarness, wallet: KeyWallet) -> httpx.Response:
    message = await harness.message_for(wallet, None)
    signed = {"message": message, "signature": "0x" + wallet.sign(eip191_digest(message.encode())).hex()}
    opened = await harness.browser.post("/api/v2/auth/session", json=signed)
    headers = {"Authorization": f"Bearer {opened.json()['accessToken']}"}
    return await harness.browser.get(BOOKS, headers=headers)


async def read_signed(harness: SignedInHarness, wallet: KeyWallet) -> httpx.Response:
    request = SignedRequest(method="GET", raw_path=BOOKS.encode(), query=b"", headers=[], body=b"")
    headers = Wallet.from_key(wallet.key.secret.hex()).sign_request(
        request,
        origin=parse_origin(PUBLIC_URL),
        chain_id=RULES.chain_id,
        now_s=harness.services.now_ms // 1000,
        nonce=secrets.token_hex(16),
    )
    return await harness.browser.get(BOOKS, headers=dict(headers))


Read = Callable[[SignedInHarness, KeyWallet], Awaitable[httpx.Response]]
READS: tuple[Read, ...] = (read_page, read_file, read_with_session, read_signed)


@pytest.mark.parametrize("last", READS)
async def test_every_proof_of_a_wallet_counts_in_one_quota(harness: SignedInHarness, last: Read) -> None:
    await harness.sign_in(READER)
    for read in READS:
        assert (await read(harness, READER)).status_code == 200, read.__name__
    refused = await last(harness, READER)
    assert refused.status_code == 429
    assert refused.headers["ratelimit-policy"] == f'"authenticated-requests";q={MOST};w=60'
    assert refused.headers["cache-control"] == "private, no-store"
    assert (await read_with_session(harness, OTHER)).status_code == 200, "another wallet reads on"


async def test_an_address_with_many_wallets_has_a_quota(harness: SignedInHarness) -> None:
    wallets = [READER, OTHER, SELLER, THIRD, KeyWallet(key=coincurve.PrivateKey(b"\x35" * 32))]
    assert len(wallets) == WALLETS_PER_ADDRESS
    for wallet in wallets:
        for _ in range(MOST):
            assert (await read_signed(harness, wallet)).status_code == 200
    refused = await read_signed(harness, KeyWallet(key=coincurve.PrivateKey(b"\x36" * 32)))
    assert refused.status_code == 429
    most = MOST * WALLETS_PER_ADDRESS
    assert refused.headers["ratelimit-policy"] == f'"authenticated-requests-address";q={most};w=60'


async def test_a_request_without_a_valid_proof_counts_for_no_wallet(harness: SignedInHarness) -> None:
    for _ in range(MOST * WALLETS_PER_ADDRESS + 1):
        answer = await harness.browser.get(BOOKS, headers={"Authorization": "Bearer none"})
        assert answer.status_code == 401
    assert (await read_with_session(harness, READER)).status_code == 200


async def test_reads_of_the_api_and_of_pages_wait_for_the_same_turns() -> None:
    turns = ReadTurns()
    async with open_signed_in(read_turns=turns) as harness:
        await harness.sign_in(READER)
        others = [OTHER.address, SELLER.address]
        assert len(others) == READS_AT_ONCE
        for wallet in others:
            await turns.acquire("books", wallet)
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(read(harness, READER)) for read in (read_page, read_signed)]
            await until(lambda: turns.waiting >= len(reads))
            assert not any(read.done() for read in reads)
            for wallet in others:
                turns.release(wallet)
        assert [read.result().status_code for read in reads] == [200, 200]
