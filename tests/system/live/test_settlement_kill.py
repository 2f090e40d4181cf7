"""A gateway is killed while calls paid by authorisation are at every step between the claim and the response. The
next gateway finishes them: one transfer or none, one response, and no terms while a transfer is possible."""

import asyncio
import contextlib
import itertools
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.kit.databases import pass_lease, set_database_clock
from tests.kit.fault_injection import POINTS, RECOVERY_HALTS, find_mark
from tests.kit.gateway_cluster import PRICE_UNITS
from tests.kit.gateway_process import poll
from tests.kit.signed_calls import LEASE_S, QUICK, RENEWS_OFTEN, PaidListing, SignedCall, count_sent

pytestmark = pytest.mark.asyncio(loop_scope="module")

_RUNS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The expected result of a kill at one step. `state`: of the payment at its end; `again`: the response to the
    same request with the same payment; `seen`: requests at the upstream before and after that."""

    state: str
    again: tuple[int, str | None]
    seen: tuple[int, int]
    moved: int = 1
    is_replayed: bool = False
    is_credit: bool = False


SERVED = (200, None)
USED = (409, "payment_already_used")
KEPT = Fate(state="charged", again=SERVED, seen=(1, 1), is_replayed=True)
RUN_AGAIN = Fate(state="charged", again=SERVED, seen=(1, 2))
CREDIT = Fate(state="released", again=USED, seen=(1, 1), is_credit=True)
FATES = {
    ("GET", "claimed"): Fate(state="held", again=SERVED, seen=(0, 1)),
    ("POST", "claimed"): Fate(state="held", again=USED, seen=(0, 0), moved=0),
    ("GET", "at-head"): Fate(state="held", again=SERVED, seen=(1, 2)),
    ("POST", "at-head"): Fate(state="held", again=USED, seen=(1, 1), moved=0),
    ("GET", "stored"): RUN_AGAIN,
    ("POST", "stored"): CREDIT,
    ("GET", "sent"): RUN_AGAIN,
    ("POST", "sent"): CREDIT,
    ("GET", "mined"): RUN_AGAIN,
    ("POST", "mined"): CREDIT,
    # As for a closed call on credit: the caller finds the call in the history and gets no second response.
    ("GET", "concluded"): Fate(state="charged", again=USED, seen=(1, 1)),
    ("POST", "concluded"): Fate(state="charged", again=USED, seen=(1, 1)),
    ("GET", "answer-kept"): KEPT,
    ("POST", "answer-kept"): KEPT,
    ("GET", "adrift"): KEPT,
    ("POST", "adrift"): KEPT,
}
WHILE_MINED = ("claimed", "at-head", "mined", "concluded")
IN_THE_POOL = ("sent", "answer-kept", "adrift")
UNDECIDED = (*IN_THE_POOL, "stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A gateway that will be killed, a gas key, and one call for each case."""

    cluster: Any
    stall: PaidListing
    gas: Any
    settings: dict[str, str]
    url: str
    calls: dict[tuple[str, str], SignedCall]
    behind: SignedCall
    after: SignedCall

    @property
    def doomed(self) -> Any:
        return self.stall.gateways[0]

    def restart(self, **settings: str) -> Any:
        """A gateway on the same database; with `settings` it halts too."""
        return self.cluster.gateway(
            database_url=self.url,
            public_url=self.doomed.public_url,
            settings={**self.settings, **settings, **(POINTS if settings else {})},
        )

    async def wait_halted(self, path: str) -> None:
        await poll(find_mark(self.cluster.folder, path).exists, what=f"a halt at {path}")

    def at(self, *steps: str) -> dict[tuple[str, str], SignedCall]:
        return {key: call for key, call in self.calls.items() if key[1] in steps}

    async def run_to_the_halt(self) -> None:
        """Every call reaches its step, then the gateway is killed. From some point on nothing is mined."""
        driver = self.cluster.driver
        async with asyncio.TaskGroup() as group:
            for steps in (WHILE_MINED, IN_THE_POOL, ("stored",)):
                if steps is IN_THE_POOL:
                    await driver.rpc("evm_setAutomine", False)
                for call in self.at(*steps).values():
                    group.create_task(_lose(call))
                for call in self.at(*steps).values():
                    await self.wait_halted(call.path)
            self.doomed.kill()
            assert await self.doomed.wait_ended() == -signal.SIGKILL

    async def wait_finished(self, gateway: Any) -> None:
        """Returns when no call of the killed gateway is open."""
        for call in self.calls.values():

            async def is_finished(call: SignedCall = call) -> bool:
                return not await self.cluster.history(gateway, call.wallet, "&status=pending")

            await poll(is_finished, what=f"the end of {call.path}")


async def _lose(call: SignedCall) -> None:
    with contextlib.suppress(aiohttp.ClientError, OSError):
        reply = await call.send()
        raise AssertionError(f"{call.path} was answered: {reply.status} {reply.body!r}")


@contextlib.asynccontextmanager
async def set_scene(cluster: Any, url: str) -> AsyncIterator[Harness]:
    gas, behind, after, *wallets = await cluster.wallets(3 + len(FATES))
    settings = {**QUICK, **RENEWS_OFTEN, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
    doomed = cluster.gateway(
        database_url=url, settings={**settings, **POINTS, "TOLLWAY_LIMIT_SETTLE_WAIT_S": "10"}
    )
    async with doomed as gateway, mined_at_the_end(cluster.driver):
        stall, run = await PaidListing.open(cluster, [gateway]), f"run{next(_RUNS)}"
        calls = {
            (method, step): stall.sign(
                wallet,
                f"/echo/{run}/{method}/halt/{step}",
                method=method,
                body=b"{}" if method == "POST" else None,
            )
            for (method, step), wallet in zip(FATES, wallets, strict=True)
        }
        yield Harness(
            cluster=cluster,
            stall=stall,
            gas=gas,
            settings=settings,
            url=url,
            calls=calls,
            behind=stall.sign(behind, f"/echo/{run}/behind"),
            after=stall.sign(after, f"/echo/{run}/after"),
        )


@contextlib.asynccontextmanager
async def mined_at_the_end(driver: Any) -> AsyncIterator[None]:
    """Lets the chain mine again after each test."""
    try:
        yield
    finally:
        await driver.rpc("evm_setAutomine", True)


async def resume_mining(cluster: Any) -> None:
    await cluster.driver.rpc("evm_setAutomine", True)
    await cluster.driver.mine(1)


async def check_undecided(harness: Harness, gateway: Any) -> None:
    """While the transfer can still be made, no response requests a payment."""
    for call in harness.at(*UNDECIDED).values():
        reply = await call.send(gateway)
        assert (reply.status, reply.code) == (503, "payment_outcome_unknown"), reply.body
        assert not reply.asks_for_money
        assert reply.json["call"].endswith(reply.json["callId"])


async def check_fate(harness: Harness, gateway: Any, key: tuple[str, str]) -> None:
    call, fate = harness.calls[key], FATES[key]
    before = await call.record(gateway)
    assert (key, before["payment"]["state"], call.seen) == (key, fate.state, fate.seen[0])

    reply = await call.send(gateway)

    assert (key, reply.status, reply.code) == (key, *fate.again), reply.body
    assert reply.headers.get("Idempotency-Replayed") == ("true" if fate.is_replayed else None)
    assert (key, call.seen) == (key, fate.seen[1])
    after = await call.record(gateway)  # the same call: a repeat runs under its claim
    assert after["id"] == before["id"]
    moved = await call.transfers()
    assert (key, len(moved)) == (key, fate.moved)
    if fate.again == SERVED:
        assert after["payment"]["state"] == "charged"
        assert after["payment"]["transaction"] == str(moved[0])
        assert "PAYMENT-RESPONSE" in reply.headers
    else:
        assert not reply.asks_for_money
    for tx_hash in moved:
        spent = await call.spend(tx_hash, gateway)
        assert (key, spent.status) == (key, 200 if fate.is_credit else 409), spent.body
        assert (await call.spend(tx_hash, gateway)).code == "payment_already_used"
    assert call.seen == fate.seen[1] + fate.is_credit


async def check_all(harness: Harness, gateway: Any, *, others: int = 0) -> None:
    """`others`: further calls that were settled before."""
    await asyncio.gather(*(check_fate(harness, gateway, key) for key in FATES))

    moved = sum(fate.moved for fate in FATES.values()) + others
    assert await harness.stall.earned() == moved * PRICE_UNITS
    assert await count_sent(harness.cluster, harness.gas) == moved, "no nonce is missing, and none was wasted"
    held = [await call.record(gateway) for key, call in harness.calls.items() if FATES[key].moved == 0]
    report = await harness.cluster.audit(gateway)
    assert (report.wrong, set(report.held_calls)) == ((), {one["id"] for one in held})
    assert {one["payment"]["state"] for one in held} == {"held"}

    assert (await harness.after.send(gateway)).status == 200, "the gas key's lane goes on"
    assert await count_sent(harness.cluster, harness.gas) == moved + 1


async def test_kill_9_at_every_step_of_a_settlement_is_one_transfer_and_one_answer(cluster: Any) -> None:
    """The gateway of settlement recovery is killed too, before it records the transfer."""
    async with set_scene(cluster, f"sqlite:///{cluster.folder}/settling.sqlite3") as harness:
        await harness.run_to_the_halt()
        async with harness.restart(**{RECOVERY_HALTS: "swept"}) as second:
            await check_undecided(harness, second)
            await resume_mining(cluster)
            await harness.wait_halted("/swept")
        async with harness.restart() as third:
            await harness.wait_finished(third)
            await check_all(harness, third)


@pytest.mark.postgres
async def test_a_running_gateway_finishes_the_settlements_of_a_killed_one(cluster: Any) -> None:
    """Both settle with one gas key, so the running one must first fill the nonces of the killed one."""
    url = await cluster.make_postgres()
    await set_database_clock(url, skew_s=0)
    async with set_scene(cluster, url) as harness, harness.restart() as living:
        await harness.run_to_the_halt()
        await check_undecided(harness, living)
        async with asyncio.TaskGroup() as group:
            behind = group.create_task(harness.behind.send(living))
            await poll(lambda: harness.behind.seen, what="a call behind the others")
            await resume_mining(cluster)
        assert behind.result().status == 200
        await pass_lease(harness.url, lease_s=LEASE_S, renewing=1)
        await harness.wait_finished(living)
        await check_all(harness, living, others=1)
