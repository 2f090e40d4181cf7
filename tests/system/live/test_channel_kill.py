"""A gateway is killed while calls over channels, their deposits, refunds and claims are at every step. The next gateway finishes them: what was charged is claimed once, what was
refunded is paid back once, a caller signs again at most once, and no response asks for a second payment."""

import asyncio
import contextlib
import itertools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from sqlalchemy import func, select

from tests.kit.channel_calls import DEPOSIT_UNITS, PRICE_UNITS, ChannelCall, ChannelShop, PaidChannel
from tests.kit.databases import pass_lease, set_database_clock
from tests.kit.fault_injection import CLAIMS, POINTS, RESENDS_SOON, find_mark
from tests.kit.gateway_process import poll
from tests.kit.signed_calls import LEASE_S, QUICK, RENEWS_OFTEN
from tollway.storage.engine.database import connect_database
from tollway.storage.ledger.ledger_tables import call_table

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

_RUNS = itertools.count(1)
_BEGINS = itertools.count(1)

Reply = tuple[int, str | None]
SERVED: Reply = (200, None)
CORRECTED: Reply = (402, "payment_verification_failed")
"""The corrective 402: the call of the voucher is charged, and its response is lost."""
USED: Reply = (409, "payment_already_used")
"""The same, with a key: another voucher would pay nothing, because its call has ended."""
REFUNDED: Reply = (429, "rate_limited")
"""A channel is refunded once a day: this refund was."""

DATABASES = [pytest.param("sqlite"), pytest.param("postgresql", marks=pytest.mark.postgres)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What is true after a kill at one step. `state`: of the payment of the call, once recovery is done; `again`: the response to the same request with the same
    payment; `seen`: requests at the upstream before and after that; `calls`: in the history, for that request."""

    state: str
    again: Reply
    seen: tuple[int, int]
    calls: int = 1


# What a call of unknown outcome took is nothing, so its voucher pays its repeat, which is the same call where its method or its key says so.
CLAIMED = Fate(state="held", again=SERVED, seen=(0, 1))
AT_HEAD = Fate(state="held", again=SERVED, seen=(1, 2))
CLAIMED_ANEW = Fate(state="held", again=SERVED, seen=(0, 1), calls=2)
AT_HEAD_ANEW = Fate(state="held", again=SERVED, seen=(1, 2), calls=2)
# The deposit is in the channel, and its call costs nothing: its response reached no caller.
RELEASED = Fate(state="released", again=SERVED, seen=(1, 2), calls=2)
LOST = Fate(state="charged", again=CORRECTED, seen=(1, 1))
LOST_KEYED = Fate(state="charged", again=USED, seen=(1, 1))
FATES = {
    ("voucher", "GET", "claimed"): CLAIMED,
    ("voucher", "POST", "claimed"): CLAIMED_ANEW,
    ("voucher", "POST with a key", "claimed"): CLAIMED,
    ("voucher", "GET", "at-head"): AT_HEAD,
    ("voucher", "POST", "at-head"): AT_HEAD_ANEW,
    ("voucher", "POST with a key", "at-head"): AT_HEAD,
    ("voucher", "GET", "closed"): LOST,
    ("voucher", "POST", "closed"): LOST,
    ("voucher", "POST with a key", "closed"): LOST_KEYED,
    ("deposit", "GET", "claimed"): CLAIMED_ANEW,
    ("deposit", "POST with a key", "claimed"): CLAIMED,
    ("deposit", "GET", "at-head"): AT_HEAD_ANEW,
    ("deposit", "POST with a key", "at-head"): AT_HEAD,
    ("deposit", "GET", "mined"): RELEASED,
    ("deposit", "POST with a key", "mined"): RELEASED,
    ("deposit", "GET", "concluded"): LOST,
    ("deposit", "POST with a key", "concluded"): LOST_KEYED,
    ("deposit", "GET", "sent"): RELEASED,
    ("deposit", "POST", "sent"): RELEASED,
    ("deposit", "GET with a key", "stored"): RELEASED,
    ("deposit", "GET", "stored"): RELEASED,
    ("deposit", "POST", "stored"): RELEASED,
    ("deposit", "POST with a key", "stored"): RELEASED,
}
REFUNDS: dict[str, Reply] = {
    "signed": SERVED,
    "stored": REFUNDED,
    "sent": REFUNDED,
    "mined": REFUNDED,
    "renewed": REFUNDED,
    "ended": REFUNDED,
}
"""Step -> the response to another request for the refund, once recovery is done. Before `stored` there is none."""
CLAIM_STEPS = ("signed", "stored", "sent", "mined", "renewed", "ended")
"""The settle of the receiver is in the transaction of the claim, so it has the same steps."""
UNMINED = ("sent", "stored")
"""In this order: what is sent after `stored` would wait for its nonce."""


@dataclass(slots=True, kw_only=True)
class Harness:
    """Gateways on one database, one after the other, and what the provider is owed."""

    cluster: Any
    url: str
    settings: dict[str, str]
    gateway: Any = None
    shop: ChannelShop = field(init=False)
    channels: list[PaidChannel] = field(default_factory=list)
    begins: str = ""
    """The file with which the claims of the running gateway begin."""
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @property
    def is_shared(self) -> bool:
        return self.url.startswith("postgresql")

    async def start(self) -> None:
        """A gateway on the database, in place of one that was killed. It begins no claim before `begin_claims`."""
        self.begins = f"begin-{next(_BEGINS)}"
        public_url = None if self.gateway is None else self.gateway.public_url
        starting = self.cluster.gateway(
            database_url=self.url, public_url=public_url, settings={**self.settings, CLAIMS: self.begins}
        )
        self.gateway = await self._stack.enter_async_context(starting)

    def begin_claims(self) -> None:
        (self.cluster.folder / self.begins).touch()

    async def kill(self) -> None:
        self.gateway.kill()
        assert await self.gateway.wait_ended() == -signal.SIGKILL

    async def open_channel(self, wallet: Any, *, path: str = "", calls: int = 0) -> PaidChannel:
        channel = self.shop.channel(wallet, path=path)
        self.channels.append(channel)
        for _ in range(calls):
            reply = await channel.pay("/echo/before", self.gateway)
            assert reply.status == 200, reply.body
        return channel

    async def wait_halted(self, path: str) -> None:
        await poll(find_mark(self.cluster.folder, path).exists, what=f"a halt at {path}")

    def let_go_on(self, path: str) -> None:
        """The next gateway does not halt there."""
        find_mark(self.cluster.folder, path).with_suffix(".go").touch()

    async def stop_mining(self) -> None:
        await self.cluster.driver.rpc("evm_setAutomine", False)

    async def resume_mining(self) -> None:
        await self.cluster.driver.rpc("evm_setAutomine", True)
        await self.cluster.driver.mine(1)

    async def charged(self, channel: PaidChannel) -> int:
        """What its calls cost, as its payer reads it."""
        calls = await self.cluster.history(self.gateway, channel.wallet)
        states: list[str] = [call["payment"]["state"] for call in calls]
        return states.count("charged") * PRICE_UNITS

    async def check_books(self) -> None:
        """Every channel is claimed to what its caller knows as charged, once, and all of it is the provider's."""
        self.begin_claims()
        balances = await self.shop.wait_claimed([(channel, channel.charged) for channel in self.channels])
        for channel, balance in zip(self.channels, balances, strict=True):
            assert await self.charged(channel) == channel.charged
            assert balance == await channel.paid_in()
        report = await self.cluster.audit(self.gateway)
        assert (report.wrong, report.held_calls, report.held_payments) == ((), (), ())


@contextlib.asynccontextmanager
async def set_scene(
    cluster: Any, kind: str, *, wallets: int, **settings: str
) -> AsyncIterator[tuple[Harness, Any]]:
    """The scene, and new wallets."""
    gas, *payers = await cluster.wallets(1 + wallets)
    url = f"sqlite:///{cluster.folder}/channel-kill-{next(_RUNS)}.sqlite3"
    if kind == "postgresql":
        url = await cluster.make_postgres()
        await set_database_clock(url, skew_s=0)
    wanted = {
        **QUICK,
        **RENEWS_OFTEN,
        **POINTS,
        **RESENDS_SOON,
        "TOLLWAY_CHANNELS": "true",
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        "TEST_LIMIT_CHANNEL_CLAIM_INTERVAL_S": "0.1",
        # A response that a killed gateway was sending is not said to be on its way any more.
        "TEST_LIMIT_RESPONSE_READING_S": "0.001",
        **settings,
    }
    harness = Harness(cluster=cluster, url=url, settings=wanted)
    async with harness._stack:
        try:
            await harness.start()
            harness.shop = await ChannelShop.open(cluster, [harness.gateway])
            yield harness, iter(payers)
        finally:
            await cluster.driver.rpc("evm_setAutomine", True)


async def _lose(asking: Awaitable[Any]) -> None:
    with contextlib.suppress(aiohttp.ClientError, OSError):
        reply = await asking
        raise AssertionError(f"it was answered: {reply.status} {reply.body!r}")


# ---- Calls, deposits and refunds: one kill for all of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    calls: dict[tuple[str, str, str], ChannelCall]
    refunds: dict[str, PaidChannel]

    def at(self, *steps: str) -> list[tuple[str, Callable[[], Awaitable[Any]]]]:
        """The path of each case at these steps, and its request."""
        return [
            *((call.path, call.send) for key, call in self.calls.items() if key[2] in steps),
            *((one.path, one.refund) for step, one in self.refunds.items() if step in steps),
        ]


async def open_cases(harness: Harness, wallets: Any) -> Cases:
    calls = {}
    for payment, method, step in FATES:
        channel = await harness.open_channel(next(wallets), calls=int(payment == "voucher"))
        verb, *key = method.split(" with a ")
        calls[payment, method, step] = channel.sign(
            f"/echo/{payment}/{method.replace(' ', '-')}/{next(_RUNS)}/halt/{step}",
            method=verb,
            body=b"{}" if verb == "POST" else None,
            key=f"key-of-{payment}-{step}" if key else None,
        )
    refunds = {
        step: await harness.open_channel(next(wallets), path=f"/refund-{next(_RUNS)}/halt/{step}", calls=2)
        for step in REFUNDS
    }
    return Cases(calls=calls, refunds=refunds)


@pytest.mark.parametrize("kind", DATABASES)
async def test_kill_9_at_every_step_of_a_call_and_of_a_refund(cluster: Any, kind: str) -> None:
    count = len(FATES) + len(REFUNDS)
    async with set_scene(cluster, kind, wallets=count, TOLLWAY_LIMIT_SETTLE_WAIT_S="60") as (
        harness,
        wallets,
    ):
        cases = await open_cases(harness, wallets)
        await run_to_the_halt(harness, cases)
        await harness.start()
        await check_undecided(harness, cases)
        await harness.resume_mining()
        if harness.is_shared:
            await pass_lease(harness.url, lease_s=LEASE_S, renewing=1)
        await wait_finished(harness)
        for step, channel in cases.refunds.items():
            await check_refund(harness, step, channel)
        for key in FATES:
            await check_call(harness, key, cases.calls[key])
        for channel in harness.channels:
            before = channel.corrected
            reply = await channel.pay("/echo/after", harness.gateway)
            assert (reply.status, channel.corrected - before) in ((200, 0), (200, 1)), reply.body
        await harness.check_books()


async def run_to_the_halt(harness: Harness, cases: Cases) -> None:
    """Every request reaches its step, then the gateway is killed. From some point on nothing is mined."""
    mined = tuple({key[2] for key in cases.calls} | set(cases.refunds) - set(UNMINED))
    async with asyncio.TaskGroup() as group:
        for steps in (tuple(step for step in mined if step not in UNMINED), *((step,) for step in UNMINED)):
            if steps[0] in UNMINED:
                await harness.stop_mining()
            for _, ask in cases.at(*steps):
                group.create_task(_lose(ask()))
            for path, _ in cases.at(*steps):
                await harness.wait_halted(path)
        await harness.kill()
    for path, _ in cases.at(*mined, *UNMINED):
        harness.let_go_on(path)


async def check_undecided(harness: Harness, cases: Cases) -> None:
    """While a deposit or a refund can still be mined, its channel takes no call, and no response requests a payment."""

    async def check(ask: Callable[..., Awaitable[Any]], code: str) -> None:
        reply = await ask(harness.gateway)
        assert (reply.status, reply.code) == (503, code), reply.body
        assert not reply.asks_for_money

    async with asyncio.TaskGroup() as group:
        for (_, _, step), call in cases.calls.items():
            if step in UNMINED:
                for one in (call, call.channel.sign("/echo/next")):
                    group.create_task(check(one.send, "payment_outcome_unknown"))
        for step in UNMINED:
            next_call = cases.refunds[step].sign("/echo/next")
            group.create_task(check(next_call.send, "channel_busy"))


async def wait_finished(harness: Harness) -> None:
    """Returns when no call of the killed gateway is open."""
    count = select(func.count()).where(call_table.c.state.in_(["forwarding", "settling"]))
    database = connect_database(harness.url)

    async def is_finished() -> bool:
        return await database.read(lambda connection: connection.execute(count).scalar()) == 0

    try:
        await poll(is_finished, what="the end of every call")
    finally:
        await database.close()


async def check_call(harness: Harness, key: tuple[str, str, str], call: ChannelCall) -> None:
    fate = FATES[key]
    (before,) = await call.records(harness.gateway)
    assert (key, before["payment"]["state"], call.seen) == (key, fate.state, fate.seen[0])

    reply = await call.send(harness.gateway)

    assert (key, reply.status, reply.code) == (key, *fate.again), reply.body
    call.channel.take(reply, call)
    after = await call.records(harness.gateway)
    assert (key, call.seen, len(after)) == (key, fate.seen[1], fate.calls)
    states = sorted(one["payment"]["state"] for one in after)
    assert (key, states) == (key, ["charged", "released"][: fate.calls])
    assert (key, await call.channel.paid_in()) == (key, DEPOSIT_UNITS)


async def check_refund(harness: Harness, step: str, channel: PaidChannel) -> None:
    """The channel has paid its calls and nothing else, however often its payer asks."""

    async def ask() -> Any:
        reply = await channel.refund(harness.gateway)
        return None if reply.code == "channel_busy" else reply

    reply = await poll(ask, what="the end of a refund")
    assert (step, reply.status, reply.code) == (step, *REFUNDS[step]), reply.body
    assert (step, await channel.paid_in()) == (step, 2 * PRICE_UNITS)
    assert (step, await channel.read_chain()) == (step, (2 * PRICE_UNITS, 2 * PRICE_UNITS))


# ---- Claims: each of them is killed at one step.


@pytest.mark.parametrize("kind", DATABASES)
async def test_kill_9_at_every_step_of_a_claim(cluster: Any, kind: str) -> None:
    async with set_scene(cluster, kind, wallets=len(CLAIM_STEPS)) as (harness, wallets):
        for step in CLAIM_STEPS:
            path = f"/claim-{next(_RUNS)}/halt/{step}"
            channel = await harness.open_channel(next(wallets), path=path, calls=2)
            if step in UNMINED:
                await harness.stop_mining()
            harness.begin_claims()
            await harness.wait_halted(path)
            await harness.kill()
            harness.let_go_on(path)

            await harness.start()
            # The voucher of a claim is public and buys nothing; the next one does, while the claim is open too.
            assert (step, (await channel.pay("/echo/after", harness.gateway)).status) == (step, 200)
            assert channel.corrected == 0
            await harness.resume_mining()
            await check_claimed_once(harness, step, channel)
        await harness.check_books()


async def check_claimed_once(harness: Harness, step: str, channel: PaidChannel) -> None:
    """The claim that was stored is mined, and no other of the same calls; what was not stored never was a claim."""
    claimed = 0 if step == "signed" else 2 * PRICE_UNITS

    async def is_claimed() -> bool:
        return bool((await channel.read_chain())[1] == claimed)

    await poll(is_claimed, what=f"the claim that was killed at {step}")
