"""Clocks that jump by an hour under load, and gateways an hour apart on one PostgreSQL: no call runs twice, no
payment is requested again, no nonce counts twice, no gateway recovers the call of a running one, and no hold ends
early. Limits by the time of day are refused with that reason and count again when the clock is right
(docs/gateway-behaviour.md, "Clocks")."""

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from eth_account import Account
from eth_account.messages import encode_defunct

from tests.kit.authorization_payer import V2, AuthorizationPayer, Quote
from tests.kit.databases import set_database_clock
from tests.kit.fault_injection import SkewedClock
from tests.kit.gateway_cluster import API, PRICE_UNITS, bound, plain
from tests.kit.gateway_process import GatewayProcess, poll
from tests.kit.scripted_upstream import ALWAYS, REST, ScriptedUpstream, run_scripted_upstream
from tests.kit.signed_calls import LEASE_S, QUICK, RENEWS_OFTEN

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

HOUR_S = 3_600
STEP_S, PASSED_S = LEASE_S // 3, LEASE_S // 3 * 4
"""More than a lease passes in steps of less than half of it (`Harness.pass_lease`)."""
SETTINGS = {
    **QUICK,
    **RENEWS_OFTEN,
    "TEST_LIMIT_UNKNOWN_HOLD_S": str(HOUR_S // 2),  # a clock that jumps would end it at once
    "TOLLWAY_LIMIT_HEADER_DEADLINE_S": "120",
}
PATIENT_S = 300
"""How long a gateway waits for this upstream, which answers once the test lets it."""
VALID_S = 4 * HOUR_S
"""How long an authorisation is good for, so that it is by each of these clocks."""
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skewed:
    gateway: GatewayProcess
    clock: SkewedClock
    skew_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """Gateways on one database and one name, each with its own clock, and one listing."""

    cluster: Any
    database_url: str
    skewed: list[Skewed]
    upstream: ScriptedUpstream
    provider: Any
    api_id: str
    heard: Counter[tuple[str, int, str | None]] = field(default_factory=Counter)
    paths: list[str] = field(default_factory=list)

    @property
    def first(self) -> Any:
        return self.skewed[0].gateway

    @property
    def last(self) -> Any:
        return self.skewed[-1].gateway

    async def pass_lease(self) -> None:
        """Lets more than a lease pass by the clocks of the database, which was that much behind, and of all gateways. Each gateway renews within each step,
        so that at the end it may recover the calls of a dead one, and has looked for them."""
        for passed_s in range(STEP_S, PASSED_S + STEP_S, STEP_S):
            await set_database_clock(self.database_url, skew_s=passed_s - PASSED_S)
            for one in self.skewed:
                one.clock.set(one.skew_s + passed_s)
            for one in self.skewed:
                await one.clock.wait_rounds()
        for one in self.skewed:
            one.clock.set(one.skew_s)

    async def pay(self, calls: int) -> "FundedCredit":
        wallet = await self.cluster.wallet()
        tx_hash = await self.cluster.send_tokens(wallet, self.provider.address, calls * PRICE_UNITS)
        return FundedCredit(harness=self, wallet=wallet, tx_hash=tx_hash)

    async def ask(self, path: str, *, at: Any = None, **options: Any) -> Any:
        return await self.cluster.call(at or self.first, self.api_id, path, **options)

    def seen(self, path: str, method: str = "GET") -> int:
        return self.upstream.heads[method, path.partition("?")[0]]

    def bind(self, credit: "FundedCredit", path: str) -> list[tuple[str, str]]:
        """Signs as a caller with the right time."""
        chain_id = self.cluster.driver.chain_id
        return bound(credit.wallet, credit.tx_hash, self.first, self.api_id, path, chain_id=chain_id)

    def authorize(self, wallet: Any, quote: Quote, *, valid_s: int = VALID_S) -> tuple[str, str]:
        payer = AuthorizationPayer(
            cluster=self.cluster, gateway=self.first, api_id=self.api_id, signer=wallet
        )
        return payer.show(quote, V2, valid_after=0, valid_before=int(time.time()) + valid_s)

    async def check_ledger(self) -> None:
        report = await self.cluster.audit(self.first)
        assert report.wrong == ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FundedCredit:
    harness: Harness
    wallet: Any
    tx_hash: Any

    @property
    def proof(self) -> list[tuple[str, str]]:
        return plain(self.wallet, self.tx_hash)

    async def record(self, path: str, *, at: Any) -> Any:
        """The record at a gateway with the right time."""
        calls = await self.harness.cluster.history(at, self.wallet)
        (call,) = (call for call in calls if call["path"] == path.partition("?")[0])
        return call


@contextlib.asynccontextmanager
async def open_mall(
    cluster: Any, folder: Path, *, database_url: str, skews: list[int]
) -> AsyncIterator[Harness]:
    """The clock of a PostgreSQL database is behind by what `Harness.pass_lease` lets pass."""
    if database_url.startswith("postgresql"):
        await set_database_clock(database_url, skew_s=-PASSED_S)
    (gas,) = await cluster.wallets(1)
    clocks = [SkewedClock(folder / str(number), skew_s=skew_s) for number, skew_s in enumerate(skews)]
    settings = {**SETTINGS, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
    async with (
        run_scripted_upstream(turns_default=ALWAYS) as upstream,
        cluster.gateways(
            len(skews),
            database_url=database_url,
            settings=settings,
            own_settings=[clock.environment for clock in clocks],
        ) as gateways,
    ):
        skewed = [
            Skewed(gateway=gateway, clock=clock, skew_s=skew_s)
            for gateway, clock, skew_s in zip(gateways, clocks, skews, strict=True)
        ]
        provider = await cluster.wallet()
        right = gateways[skews.index(0)]
        api_id = await cluster.publish(right, provider, endpoint=upstream.url, timeoutSeconds=PATIENT_S)
        harness = Harness(
            cluster=cluster,
            database_url=database_url,
            skewed=skewed,
            upstream=upstream,
            provider=provider,
            api_id=api_id,
        )
        for one in gateways:
            await poll(lambda one=one: _knows(harness, one), what="listing")
        yield harness


async def _knows(harness: Harness, gateway: Any) -> bool:
    reply = await harness.cluster.send(f"{gateway.base_url}{API}/apis/{harness.api_id}")
    return reply.status == 200


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgres"])
async def harness(
    request: pytest.FixtureRequest, cluster: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Harness]:
    """One gateway on SQLite, two on PostgreSQL; only the clock of the first jumps."""
    folder = tmp_path_factory.mktemp("clocks")
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{folder}/tollway.sqlite3" if is_sqlite else await cluster.make_postgres()
    skews = [0] if is_sqlite else [0, 0]
    async with open_mall(cluster, folder, database_url=url, skews=skews) as opened:
        if not is_sqlite:
            await opened.pass_lease()
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apart(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Harness]:
    """The first gateway has the right time, the second is an hour ahead, the third an hour behind."""
    folder, url = tmp_path_factory.mktemp("apart"), await cluster.make_postgres()
    skews = [0, HOUR_S, -HOUR_S]
    async with open_mall(cluster, folder, database_url=url, skews=skews) as opened:
        yield opened


# ---- Jumps under load.


async def run_load(
    harness: Harness, credit: FundedCredit, wallet: Any, quote: Quote, ending: asyncio.Event
) -> None:
    """Calls on credit, under an idempotency key with a repeat, and signed; each path is one call."""
    # A turn has four calls and the cycle has three entries, so each kind of call reaches each gateway.
    gateways = itertools.cycle([one.gateway for one in (*harness.skewed, harness.skewed[0])])
    while not ending.is_set():
        number = next(_NUMBERS)
        path = f"/echo/credit-{number}"
        harness.paths.append(path)
        note(harness, "credit", await harness.ask(path, at=next(gateways), headers=credit.proof))
        path = f"/echo/keyed-{number}"
        harness.paths.append(path)
        headers = [*credit.proof, ("Idempotency-Key", secrets.token_hex(8))]
        for _ in range(2):
            reply = await harness.ask(path, at=next(gateways), headers=headers)
            note(harness, "keyed", reply)
        assert reply.headers.get("Idempotency-Replayed") == "true"
        path = f"/echo/signed-{number}"
        harness.paths.append(path)
        shown = harness.authorize(wallet, quote)
        note(harness, "signed", await harness.ask(path, at=next(gateways), headers=[shown]))


def finish(harness: Harness, path: str) -> None:
    """Lets the upstream send its whole response to a call of `/late/`."""
    harness.upstream.let(path)
    harness.upstream.let(path + REST)


def note(harness: Harness, kind: str, reply: Any) -> None:
    harness.heard[kind, reply.status, reply.code] += 1


async def test_a_clock_that_jumps_under_load_loses_no_call_and_fails_none(
    harness: Harness, torture: Any
) -> None:
    cluster, jumps = harness.cluster, torture.pick(short=2, long=8)
    credit, wallets = await harness.pay(2_000), await cluster.wallets(torture.pick(short=2, long=4))
    quote = Quote.read(await harness.ask("/echo/quote"))
    long_one = await harness.pay(1)
    path, ending = "/late/through", asyncio.Event()
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(harness.ask(path, headers=long_one.proof, deadline_s=PATIENT_S))
        await poll(lambda: harness.seen(path), what="the slow call")
        for wallet in wallets:
            group.create_task(run_load(harness, credit, wallet, quote, ending))
        for _ in range(jumps):
            for skew_s in (HOUR_S, -HOUR_S):
                harness.skewed[0].clock.set(skew_s)
                before = len(harness.paths)
                await poll(lambda: len(harness.paths) >= before + 12, what="load")  # noqa: B023
                await harness.skewed[0].clock.wait_rounds(1)
        harness.skewed[0].clock.set(0)
        ending.set()
        finish(harness, path)
    assert {key[1:] for key in harness.heard} == {(200, None)}, harness.heard
    assert Counter(harness.seen(one) for one in harness.paths) == {1: len(harness.paths)}
    assert ((await slow).status, harness.seen(path)) == (200, 1)
    assert (await long_one.record(path, at=harness.last))["status"] == "succeeded"
    await harness.check_ledger()
    torture.tell(jumps=2 * jumps, calls=len(harness.paths))


async def test_what_is_signed_for_a_while_counts_by_the_gateway_s_clock_and_never_twice(
    harness: Harness,
) -> None:
    first, credit = harness.skewed[0], await harness.pay(3)
    used, fresh = "/echo/bound-used", "/echo/bound-fresh"
    harness.upstream.heads.pop(("GET", used), None)
    proofs = {path: harness.bind(credit, path) for path in (used, fresh)}
    assert (await harness.ask(used, headers=proofs[used])).status == 200
    for skew_s in (HOUR_S, -HOUR_S):
        first.clock.set(skew_s)
        for path, headers in proofs.items():
            reply = await harness.ask(path, headers=headers)
            assert (reply.status, reply.code) == (401, "signature_expired")
            assert not reply.asks_for_money
        await first.clock.wait_rounds()
    first.clock.set(0)
    again = await harness.ask(used, headers=proofs[used])
    assert (again.status, again.code) == (401, "nonce_reused")
    assert (await harness.ask(fresh, headers=proofs[fresh])).status == 200
    assert (harness.seen(used), harness.seen(fresh)) == (1, 1)


async def test_a_request_s_nonce_stays_used_while_the_clock_jumps(harness: Harness) -> None:
    """Also when expired rows were pruned between the two requests."""
    cluster, first, wallet = harness.cluster, harness.skewed[0], await harness.cluster.wallet()
    headers = cluster.sign_control(first.gateway, wallet, "GET", "/history")

    async def ask() -> int:
        reply = await cluster.send(f"{first.gateway.base_url}{API}/history", headers=headers)
        return int(reply.status)

    assert await ask() == 200
    for skew_s in (HOUR_S, -HOUR_S, 0):
        first.clock.set(skew_s)
        await first.clock.wait_rounds()
        assert await ask() == 401


async def test_a_session_outlives_an_hour_either_way(harness: Harness) -> None:
    first = harness.skewed[0]
    token = await sign_in(harness, at=first.gateway)
    for skew_s in (HOUR_S, -HOUR_S, 0):
        first.clock.set(skew_s)
        await first.clock.wait_rounds(1)
        for one in harness.skewed:
            assert (await open_history(harness, token, at=one.gateway)).status == 200


async def test_a_payment_with_a_block_time_in_the_future_is_pending_and_gets_no_402(harness: Harness) -> None:
    first, credit = harness.skewed[0], await harness.pay(2)
    path = f"/echo/ahead-{next(_NUMBERS)}"
    first.clock.set(-HOUR_S)
    reply = await harness.ask(path, headers=credit.proof)
    assert (reply.status, reply.code, reply.asks_for_money) == (409, "payment_pending", False)
    first.clock.set(0)
    assert (await harness.ask(path, headers=credit.proof)).status == 200
    first.clock.set(HOUR_S)
    assert (await harness.ask(path, headers=credit.proof)).status == 200
    first.clock.set(0)
    assert harness.seen(path) == 2


async def test_an_authorisation_that_the_clock_finds_late_moves_nothing_and_counts_when_it_is_right(
    harness: Harness,
) -> None:
    first, wallet = harness.skewed[0], await harness.cluster.wallet()
    quote, path = Quote.read(await harness.ask("/echo/quote")), f"/echo/late-{next(_NUMBERS)}"
    shown = harness.authorize(wallet, quote, valid_s=HOUR_S // 2)
    first.clock.set(HOUR_S)
    refused = await harness.ask(path, headers=[shown])
    assert (refused.status, refused.code, harness.seen(path)) == (402, "payment_expired", 0)
    first.clock.set(0)
    assert (await harness.ask(path, headers=[shown])).status == 200
    again = await harness.ask(path, headers=[shown])
    assert (again.asks_for_money, harness.seen(path)) == (False, 1)


async def test_a_hold_ends_neither_early_nor_with_a_jump(harness: Harness) -> None:
    first, credit = harness.skewed[0], await harness.pay(1)
    path = f"/echo/held-{next(_NUMBERS)}"
    call_id = await lose_answer(harness, credit, at=first.gateway)
    for skew_s in (HOUR_S, -HOUR_S, HOUR_S):
        first.clock.set(skew_s)
        for one in harness.skewed:
            await one.clock.wait_rounds()
    first.clock.set(0)
    assert await read_state(harness, credit, call_id) == "unknown"
    reply = await harness.ask(path, headers=credit.proof)
    assert (reply.status, reply.asks_for_money, harness.seen(path)) == (409, False, 0)


async def lose_answer(harness: Harness, credit: FundedCredit, *, at: Any) -> str:
    """A call whose upstream took the request and sent no response."""
    path = f"/close/{next(_NUMBERS)}"
    reply = await harness.ask(path, at=at, method="POST", headers=credit.proof)
    assert (reply.status, reply.state, harness.seen(path, "POST")) == (504, "held", 1), reply.body
    return str(reply.json["callId"])


async def read_state(harness: Harness, credit: FundedCredit, call_id: str) -> str:
    calls = await harness.cluster.history(harness.first, credit.wallet)
    return next(str(call["status"]) for call in calls if call["id"] == call_id)


async def sign_in(harness: Harness, *, at: Any) -> str:
    wallet, kind = await harness.cluster.wallet(), ("Content-Type", "application/json")

    async def post(path: str, content: Any) -> Any:
        url = f"{at.base_url}{API}/auth/{path}"
        return await harness.cluster.send(
            url, method="POST", headers=[kind], content=json.dumps(content).encode()
        )

    invited = await post(
        "nonce", {"address": str(wallet.address), "chainId": harness.cluster.driver.chain_id}
    )
    message = invited.json["message"]
    signature = Account.sign_message(encode_defunct(text=message), wallet.key).signature.hex()
    opened = await post("session", {"message": message, "signature": "0x" + signature.removeprefix("0x")})
    assert opened.status == 201, opened.body
    return str(opened.json["accessToken"])


async def open_history(harness: Harness, token: str, *, at: Any) -> Any:
    return await harness.cluster.send(
        f"{at.base_url}{API}/history", headers=[("Authorization", f"Bearer {token}")]
    )


# ---- Gateways an hour apart.


@pytest.mark.postgres
async def test_gateways_an_hour_apart_do_not_recover_each_other_s_calls_or_end_each_other_s_holds(
    apart: Harness, torture: Any
) -> None:
    """While each gateway has a call under way, longer than a lease passes, so that each could recover the calls of the others."""
    purses = [await apart.pay(2) for _ in apart.skewed]
    slow = [await apart.pay(2) for _ in apart.skewed]
    for credit in (
        *purses,
        *slow,
    ):  # first at the gateway with the right clock: for one that is behind the blocks are in the future
        assert (await apart.ask("/echo/known", headers=credit.proof)).status == 200
    calls = [
        await lose_answer(apart, credit, at=one.gateway)
        for credit, one in zip(purses, apart.skewed, strict=True)
    ]
    paths = [f"/late/apart-{number}" for number in range(len(slow))]
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(apart.ask(path, at=one.gateway, headers=credit.proof, deadline_s=PATIENT_S))
            for path, one, credit in zip(paths, apart.skewed, slow, strict=True)
        ]
        await poll(lambda: all(apart.seen(path) for path in paths), what="the slow calls")
        await apart.pass_lease()
        for path in paths:
            finish(apart, path)
    assert [call.result().status for call in running] == [200] * len(slow)
    assert [apart.seen(path) for path in paths] == [1] * len(slow)
    for path, credit in zip(paths, slow, strict=True):
        assert (await credit.record(path, at=apart.first))["status"] == "succeeded"
    states = [await read_state(apart, *one) for one in zip(purses, calls, strict=True)]
    assert states == ["unknown"] * len(purses)
    await apart.check_ledger()
    torture.tell(gateways=len(apart.skewed), apart_s=2 * HOUR_S, lease_s=LEASE_S)


@pytest.mark.postgres
async def test_gateways_an_hour_apart_know_each_other_s_nonces_keys_and_credit(apart: Harness) -> None:
    cluster, (right, *wrong) = apart.cluster, apart.skewed
    wallet = await cluster.wallet()
    headers = cluster.sign_control(right.gateway, wallet, "GET", "/history")
    token = await sign_in(apart, at=right.gateway)
    statuses = []
    for one in (right, *wrong, right):
        await one.clock.wait_rounds()
        reply = await cluster.send(f"{one.gateway.base_url}{API}/history", headers=headers)
        statuses.append(reply.status)
        assert (await open_history(apart, token, at=one.gateway)).status == 200
    assert statuses == [200, 401, 401, 401]

    credit, path = await apart.pay(1 + len(wrong)), "/echo/credit-apart"
    keyed = [*credit.proof, ("Idempotency-Key", "apart")]
    replies = [await apart.ask("/echo/keyed", at=one.gateway, headers=keyed) for one in apart.skewed]
    assert [reply.headers.get("Idempotency-Replayed") for reply in replies] == [None, "true", "true"]
    replies += [await apart.ask(path, at=one.gateway, headers=credit.proof) for one in wrong]
    assert {reply.status for reply in replies} == {200}
    assert (apart.seen(path), apart.seen("/echo/keyed")) == (len(wrong), 1)
    for one in apart.skewed:
        spent = await apart.ask("/echo/none-left", at=one.gateway, headers=credit.proof)
        assert (spent.status, spent.asks_for_money) == (409, False)


# ---- A chain whose clock is an hour ahead. (One that is behind is the same as a gateway that is ahead.)


async def test_a_chain_an_hour_ahead_takes_nothing_new_and_keeps_what_it_gave(
    own_chain_cluster: Any, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/tollway.sqlite3"
    async with open_mall(own_chain_cluster, tmp_path, database_url=url, skews=[0]) as harness:
        before, wallet = await harness.pay(2), await harness.cluster.wallet()
        assert (await harness.ask("/echo/before", headers=before.proof)).status == 200
        quote = Quote.read(await harness.ask("/echo/quote"))
        await harness.cluster.driver.rpc("evm_increaseTime", HOUR_S)
        after = await harness.pay(1)
        early = await harness.ask("/echo/after", headers=after.proof)
        assert (early.status, early.code, early.asks_for_money) == (409, "payment_pending", False)
        late = await harness.ask(
            "/echo/late", headers=[harness.authorize(wallet, quote, valid_s=HOUR_S // 2)]
        )
        assert (late.status, late.code) == (402, "payment_expired")
        assert (harness.seen("/echo/after"), harness.seen("/echo/late")) == (0, 0)
        good = await harness.ask("/echo/good", headers=[harness.authorize(wallet, quote)])
        on_credit = await harness.ask("/echo/credit", headers=before.proof)
        assert (good.status, on_credit.status) == (200, 200)
        harness.skewed[0].clock.set(HOUR_S)  # an hour has passed
        assert (await harness.ask("/echo/after", headers=after.proof)).status == 200
        await harness.check_ledger()
