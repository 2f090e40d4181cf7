"""Callers above their limits, against a production process behind a trusted proxy: by wallet, by address with many
wallets, by listing. Each gets the same kind of refusal, and their rows in the tables are counted."""

import json
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import coincurve
import httpx
import pytest
import pytest_asyncio

from tests.kit.fixed_limits import name_variable
from tests.kit.payer import KeyWallet
from tests.kit.upstream import run_upstream
from tests.system.attack.attacked_gateway import free_listing
from tollway.client.wallet import Wallet
from tollway.identity.signatures import eip191_digest
from tollway.rate_limits.limiter import WALLETS_PER_ADDRESS
from tollway.web.http.admission import PROBES_PER_LISTING

URL = "https://gw.example.com"
APIS = "/api/v2/apis"
REGISTRATIONS, EDITS, CHECKS, SIGNED, REQUESTS, NONCES, FREE = 3, 4, 2, 12, 30, 10, 6
LIMITS = {
    "REGISTRATIONS_PER_HOUR": REGISTRATIONS,
    "EDITS_PER_HOUR": EDITS,
    "OWNERSHIP_CHECKS_PER_HOUR": CHECKS,
    "SIGNED_REQUESTS_PER_MINUTE": SIGNED,
    "AUTHENTICATED_REQUESTS_PER_MINUTE": REQUESTS,
    "NONCES_PER_MINUTE": NONCES,
    "FREE_CALLS_PER_MINUTE": FREE,
}
TRIES = 20
"""So many times what is allowed is tried, before it counts as not refused."""

Ask = Callable[[int], Awaitable[httpx.Response]]


@dataclass(frozen=True, slots=True)
class Run:
    """`passed`: how many went through until one was refused, in `took_s`."""

    passed: int
    took_s: float
    refused: httpx.Response | None


@dataclass
class Harness:
    gateway: Any
    http: httpx.AsyncClient
    endpoint: str
    runs: dict[str, Run] = field(default_factory=dict)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    addresses: Any = field(default_factory=lambda: count(1))
    junk: list[int] = field(default_factory=list)

    def somewhere(self) -> str:
        number = next(self.addresses)
        return f"198.51.{number // 250}.{number % 250 + 1}"

    async def sign(
        self, wallet: Wallet, method: str, path: str, members: Any = None, *, address: str
    ) -> httpx.Response:
        body, headers = self.gateway.sign(wallet, method, path, members)
        headers = {**headers, "X-Forwarded-For": address}
        return await self.http.request(method, path, content=body, headers=headers)

    async def publish(self, wallet: Wallet, *, address: str, **more: Any) -> httpx.Response:
        draft = free_listing(self.endpoint, **more)
        return await self.sign(wallet, "POST", APIS, draft, address=address)

    async def open_listing(self, wallet: Wallet, **more: Any) -> str:
        answer = await self.publish(wallet, address=self.somewhere(), **more)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def count_rows(self, table: str) -> int:
        with closing(sqlite3.connect(self.gateway.log.parent / "attacked.sqlite3")) as books:
            found: int = books.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
            return found

    async def run(self, what: str, ask: Ask, *, table: str | None = None) -> None:
        """Asks again and again until it is refused. `table`: where what goes through leaves rows."""
        before = 0 if table is None else self.count_rows(table)
        began_s = time.monotonic()
        passed, refused = 0, None
        for number in range(TRIES * SIGNED * WALLETS_PER_ADDRESS):
            answer = await ask(number)
            if answer.status_code == 429:
                refused = answer
                break
            passed += 1
        self.runs[what] = Run(passed, time.monotonic() - began_s, refused)
        if table is not None:
            self.rows[what] = passed, self.count_rows(table) - before


def new_wallet() -> Wallet:
    return Wallet.from_key(secrets.token_hex(32))


async def attack(harness: Harness) -> None:
    await attack_registry(harness)
    await attack_door(harness)
    await attack_free_calls(harness)


async def attack_registry(harness: Harness) -> None:
    one, here = new_wallet(), harness.somewhere()
    await harness.run(
        "a wallet's listings", lambda _: harness.publish(one, address=harness.somewhere()), table="listing"
    )
    await harness.run(
        "an address's listings", lambda _: harness.publish(new_wallet(), address=here), table="listing"
    )
    there = harness.somewhere()

    def preview(_: int) -> Awaitable[httpx.Response]:
        draft = free_listing(harness.endpoint)
        return harness.sign(new_wallet(), "POST", f"{APIS}?dryRun=true", draft, address=there)

    await harness.run("an address's looks", preview, table="listing")
    owner = new_wallet()
    place = f"{APIS}/{await harness.open_listing(owner)}"

    def edit(number: int) -> Awaitable[httpx.Response]:
        draft = free_listing(harness.endpoint, name=f"Name {number}", pricePerRequest=f"0.{number + 1}")
        return harness.sign(owner, "PUT", place, draft, address=harness.somewhere())

    await harness.run("a wallet's edits", edit, table="listing_terms")
    checker = new_wallet()
    mine = f"{APIS}/{await harness.open_listing(checker)}/ownership"
    await harness.run(
        "a wallet's checks",
        lambda _: harness.sign(checker, "POST", mine, address=harness.somewhere()),
    )
    owners = [new_wallet() for _ in range(WALLETS_PER_ADDRESS + 1)]
    places = [f"{APIS}/{await harness.open_listing(each)}/ownership" for each in owners]
    asked_from = harness.somewhere()

    def check(number: int) -> Awaitable[httpx.Response]:
        turn = number % len(owners)
        return harness.sign(owners[turn], "POST", places[turn], address=asked_from)

    await harness.run("an address's checks", check)


async def attack_door(harness: Harness) -> None:
    one, here = new_wallet(), harness.somewhere()
    history = "/api/v2/history"
    await harness.run(
        "a wallet's signed requests",
        lambda _: harness.sign(one, "GET", history, address=harness.somewhere()),
        table="signature_nonce",
    )
    await harness.run(
        "an address's signed requests",
        lambda _: harness.sign(new_wallet(), "GET", history, address=here),
        table="signature_nonce",
    )
    token = await open_session(harness)

    def read(_: int) -> Awaitable[httpx.Response]:
        headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": harness.somewhere()}
        return harness.http.get(history, headers=headers)

    await harness.run("a wallet's requests with a session", read)
    forwarded = {"X-Forwarded-For": harness.somewhere()}
    await harness.run(
        "an address's nonces",
        lambda _: harness.http.post("/api/v2/auth/nonce", headers=forwarded),
        table="signin_nonce",
    )
    rubbish = {"message": "Let me in.", "signature": "0x00"}
    before = harness.count_rows("session")
    await harness.run(
        "an address's logins",
        lambda _: harness.http.post("/api/v2/auth/session", json=rubbish, headers=forwarded),
    )
    harness.rows["refused logins"] = 0, harness.count_rows("session") - before
    await forge(harness)


async def open_session(harness: Harness) -> str:
    wallet = KeyWallet(key=coincurve.PrivateKey(secrets.token_bytes(32)))
    headers = {"X-Forwarded-For": harness.somewhere()}
    named = {"address": str(wallet.address), "chainId": 8453}
    answer = await harness.http.post("/api/v2/auth/nonce", json=named, headers=headers)
    message = answer.json()["message"]
    signed = {"message": message, "signature": "0x" + wallet.sign(eip191_digest(message.encode())).hex()}
    answer = await harness.http.post("/api/v2/auth/session", json=signed, headers=headers)
    return str(answer.json()["accessToken"])


async def forge(harness: Harness) -> None:
    """A signature of another wallet than it names, and no signature, which gets a sign-in challenge with each 401."""
    signed_before, nonces_before = harness.count_rows("signature_nonce"), harness.count_rows("signin_nonce")
    here, history = harness.somewhere(), "/api/v2/history"
    for _ in range(SIGNED * 3):
        _, headers = harness.gateway.sign(new_wallet(), "GET", history)
        _, others = harness.gateway.sign(new_wallet(), "GET", history)
        forged = {**headers, **{name: value for name, value in others.items() if name.lower() == "signature"}}
        for shown in (forged, {}):
            answer = await harness.http.get(history, headers={**shown, "X-Forwarded-For": here})
            harness.junk.append(answer.status_code)
    harness.rows["forged requests"] = 0, harness.count_rows("signature_nonce") - signed_before
    harness.rows["invitations"] = NONCES, harness.count_rows("signin_nonce") - nonces_before


async def attack_free_calls(harness: Harness) -> None:
    plain = f"/api/v2/gateway/{await harness.open_listing(new_wallet())}"
    limited = f"/api/v2/gateway/{await harness.open_listing(new_wallet(), rateLimit={'calls': 2, 'perSeconds': 86_400})}"
    for what, path in (("free calls", plain), ("free calls with a rate of their own", limited)):
        forwarded = {"X-Forwarded-For": harness.somewhere()}

        def call(_: int, path: str = path, told: dict[str, str] = forwarded) -> Awaitable[httpx.Response]:
            return harness.http.get(path, headers=told)

        await harness.run(f"an address's {what}", call)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory, run_gateway: Any) -> AsyncIterator[Harness]:
    folder: Path = tmp_path_factory.mktemp("rates")
    settings = {name_variable(name): str(most) for name, most in LIMITS.items()}
    settings |= {"TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true", "TOLLWAY_TRUSTED_PROXIES": "127.0.0.1"}
    async with (
        run_gateway(folder, public_url=URL, environment=settings) as gateway,
        run_upstream() as upstream,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=60) as http,
    ):
        harness = Harness(gateway, http, upstream.url + "/")
        await attack(harness)
        yield harness


def of_address(amount: int) -> int:
    return amount * WALLETS_PER_ADDRESS


RATES = [
    ("a wallet's listings", "registrations", REGISTRATIONS, 3_600),
    ("an address's listings", "registrations-address", of_address(REGISTRATIONS), 3_600),
    ("an address's looks", "endpoint-probes", REGISTRATIONS * PROBES_PER_LISTING, 3_600),
    ("a wallet's edits", "edits", EDITS, 3_600),
    ("a wallet's checks", "ownership-checks", CHECKS, 3_600),
    ("an address's checks", "ownership-checks-address", of_address(CHECKS), 3_600),
    ("a wallet's signed requests", "signed-requests", SIGNED, 60),
    ("an address's signed requests", "signed-requests-address", of_address(SIGNED), 60),
    ("a wallet's requests with a session", "authenticated-requests", REQUESTS, 60),
    ("an address's nonces", "signin-nonce", NONCES, 60),
    ("an address's logins", "signin-session", NONCES, 60),
    ("an address's free calls", "free-calls", FREE, 60),
    ("an address's free calls with a rate of their own", "listing", 2, 86_400),
]


@pytest.mark.parametrize(("what", "policy", "most", "window_s"), RATES)
def test_so_many_and_no_more(harness: Harness, what: str, policy: str, most: int, window_s: int) -> None:
    """As many again for each window that has passed meanwhile."""
    run = harness.runs[what]
    assert most <= run.passed <= most * (1 + int(run.took_s // window_s))
    assert run.refused is not None


@pytest.mark.parametrize(("what", "policy", "most", "window_s"), RATES)
def test_a_refusal_names_its_rate_three_times(
    harness: Harness, what: str, policy: str, most: int, window_s: int
) -> None:
    refused = harness.runs[what].refused
    assert refused is not None
    told, wait_s = refused.json(), int(refused.headers["retry-after"])
    assert 1 <= wait_s <= window_s
    assert refused.headers["ratelimit-policy"] == f'"{policy}";q={most};w={window_s}'
    assert refused.headers["ratelimit"] == f'"{policy}";r=0;t={wait_s}'
    assert told["rateLimit"] == {"policy": policy, "limit": most, "windowSeconds": window_s}
    assert (told["code"], told["retryAfterSeconds"]) == ("rate_limited", wait_s)
    assert refused.headers["content-type"] == "application/problem+json"
    assert json.dumps(told).isascii()


def test_what_goes_through_leaves_its_rows_and_what_is_refused_leaves_none(harness: Harness) -> None:
    rows = {**harness.rows, "an address's looks": (0, harness.rows["an address's looks"][1])}
    for what, (most, found) in rows.items():
        assert found <= most, what
    assert harness.rows["an address's listings"][1] == of_address(REGISTRATIONS)
    assert set(harness.junk) <= {401, 429, 503}, (
        "another signature might be a contract's, and no chain answers here"
    )
