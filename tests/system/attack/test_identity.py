"""Authentication at a production process: one sign-in sent fifty times at once, one signed request sent fifty times
at once, and callers that forge their address."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tollway.client.wallet import Wallet
from tollway.identity.http_signatures import SignedRequest
from tollway.identity.signatures import eip191_digest
from tollway.identity.siwe import parse_origin
from tollway.ids import ChainId
from tollway.limits import DEFAULT_LIMITS

RACERS = 50
URL = "https://gw.example.com"
CHAIN = ChainId(8453)


@dataclass
class Report:
    logins: Counter[tuple[int, str]] = field(default_factory=Counter)
    requests: Counter[tuple[int, str]] = field(default_factory=Counter)
    nonces: Counter[int] = field(default_factory=Counter)
    refused: httpx.Response | None = None


def _name(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, "" if answer.is_success else str(answer.json()["code"])


async def _attack(url: str) -> Report:
    report, wallet = Report(), Wallet.from_key(secrets.token_hex(32))
    bounds = httpx.Limits(max_connections=RACERS)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, limits=bounds) as client:
        named = {"address": str(wallet.address), "chainId": CHAIN}
        text = (await client.post("/api/v2/auth/nonce", json=named)).json()["message"]
        signature = wallet.sign_digest(eip191_digest(text.encode())).hex()
        login = {"message": text, "signature": "0x" + signature.removeprefix("0x")}
        racers = (client.post("/api/v2/auth/session", json=login) for _ in range(RACERS))
        report.logins.update(map(_name, await asyncio.gather(*racers)))

        bare = SignedRequest(method="GET", raw_path=b"/api/v2/history", query=b"", headers=[], body=b"")
        signed = wallet.sign_request(
            bare, origin=parse_origin(URL), chain_id=CHAIN, now_s=int(time.time()), nonce="once"
        )
        racers = (client.get("/api/v2/history", headers=dict(signed)) for _ in range(RACERS))
        report.requests.update(map(_name, await asyncio.gather(*racers)))

        for number in range(DEFAULT_LIMITS.nonces_per_minute + 20):
            elsewhere = f"198.51.100.{number}"
            told = {"X-Forwarded-For": elsewhere, "Forwarded": f"for={elsewhere}", "X-Real-IP": elsewhere}
            answer = await client.post("/api/v2/auth/nonce", headers=told)
            report.nonces[answer.status_code] += 1
            report.refused = answer if answer.status_code == 429 else report.refused
    return report


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def report(tmp_path_factory: pytest.TempPathFactory, run_gateway: Any) -> AsyncIterator[Report]:
    folder = tmp_path_factory.mktemp("identity")
    async with run_gateway(folder, public_url=URL, environment={}) as gateway:
        yield await _attack(gateway.base_url)


def test_one_sign_in_sent_by_fifty_at_once_opens_one_session(report: Report) -> None:
    assert report.logins == {(201, ""): 1, (401, "nonce_reused"): RACERS - 1}


def test_one_signed_request_sent_by_fifty_at_once_counts_once(report: Report) -> None:
    assert report.requests == {(200, ""): 1, (401, "nonce_reused"): RACERS - 1}


def test_a_forged_forwarding_header_does_not_change_the_counted_address(report: Report) -> None:
    """A minute may end in between; then a few more are let in."""
    assert report.nonces[429] >= 1
    assert report.refused is not None
    wait_s = int(report.refused.headers["retry-after"])
    most = DEFAULT_LIMITS.nonces_per_minute
    assert 1 <= wait_s <= 60
    assert report.refused.headers["ratelimit-policy"] == f'"signin-nonce";q={most};w=60'
    assert report.refused.headers["ratelimit"] == f'"signin-nonce";r=0;t={wait_s}'
