"""The failure budget: the calls in flight of a caller with and without failures."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, InProcessGateway, open_gateway
from tests.kit.payer import Payer, has_terms
from tests.kit.upstream import Arrived, plain
from tests.kit.waits import until
from tollway.gateway import failure_budget
from tollway.gateway.failure_budget import FailureBudget
from tollway.limits import DEFAULT_LIMITS
from tollway.rate_limits.limiter import RateLimiter

LIMITS = replace(DEFAULT_LIMITS, failed_calls_per_window=3, failed_calls_window_s=60, failed_calls_wait_s=0.0)
ONE, TWO, BOTH = ("one",), ("two",), ("one", "two")
PRICE = 10_000
TARGET = "/quote?x=1"


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def failures(clock: Clock | None = None, **limits: Any) -> FailureBudget:
    return FailureBudget(
        limits=replace(LIMITS, **limits), rate_limiter=RateLimiter(), now_ms=clock or Clock()
    )


async def let_in(harness: FailureBudget, keys: tuple[str, ...] = ONE, *, tries: int = 10) -> int:
    """How many of so many that never end."""
    return sum([await harness.enter(keys) is None for _ in range(tries)])


async def test_bears_so_many_failures_of_a_key_and_no_more() -> None:
    harness = failures()
    for _ in range(3):
        assert await harness.enter(ONE) is None
        harness.record_failed(ONE)
        harness.leave(ONE)
    wait_s = await harness.enter(ONE)
    assert wait_s is not None
    assert 1 < wait_s <= 60
    assert await harness.enter(TWO) is None
    assert await harness.enter(BOTH) is not None


@pytest.mark.parametrize(
    ("budget", "failed", "may_run"),
    [(3, 0, 500), (3, 1, 6), (3, 2, 2), (3, 3, 0), (20, 0, 500), (20, 1, 380), (20, 5, 60), (20, 10, 20), (20, 15, 7),
     (20, 19, 2), (20, 20, 0)],
)  # fmt: skip
async def test_calls_in_flight_count_in_the_measure_of_what_has_failed(
    budget: int, failed: int, may_run: int
) -> None:
    harness = failures(failed_calls_per_window=budget)
    for _ in range(failed):
        harness.record_failed(ONE)
    assert await let_in(harness, tries=500) == may_run
    assert await let_in(harness, TWO, tries=500) == 500


async def test_a_first_failure_ends_a_burst_that_is_in_flight() -> None:
    harness = failures(failed_calls_per_window=20)
    assert await let_in(harness, tries=500) == 500
    harness.record_failed(ONE)
    harness.leave(ONE)
    assert await let_in(harness) == 0


async def test_one_full_key_is_enough_and_the_other_is_not_counted() -> None:
    harness = failures()
    harness.record_failed(BOTH)
    assert await let_in(harness, ONE) == 6
    assert await let_in(harness, BOTH) == 0
    assert await let_in(harness, TWO) == 6


async def test_one_that_ended_makes_room_for_another() -> None:
    harness = failures()
    harness.record_failed(ONE)
    assert await let_in(harness) == 6
    harness.leave(ONE)
    assert await let_in(harness) == 1


async def test_every_paid_call_lets_one_more_run_for_a_while() -> None:
    clock = Clock()
    harness = failures(clock)
    for _ in range(3):
        harness.record_paid(ONE)
    harness.record_failed(ONE)
    assert await let_in(harness) == 9
    clock.now_ms += 60_000
    assert await let_in(harness) == 0
    for _ in range(9):
        harness.leave(ONE)
    assert await let_in(harness) == 9
    clock.now_ms += 60_000
    harness.record_failed(ONE)
    for _ in range(9):
        harness.leave(ONE)
    assert await let_in(harness) == 2


async def test_payments_before_a_long_pause_remove_no_call_in_flight_from_the_count() -> None:
    clock = Clock()
    harness = failures(clock)
    harness.record_paid(ONE)
    clock.now_ms += 120_000
    harness.record_failed(ONE)
    assert await let_in(harness) == 6


async def test_paid_calls_do_not_outweigh_a_budget_that_is_spent() -> None:
    harness = failures()
    for _ in range(9):
        harness.record_paid(ONE)
    for _ in range(3):
        harness.record_failed(ONE)
    assert await let_in(harness) == 0


async def test_waits_for_one_to_end_but_not_for_ever() -> None:
    harness = failures(failed_calls_wait_s=0.01)
    harness.record_failed(ONE)
    assert await let_in(harness, tries=7) == 6
    harness = failures(failed_calls_wait_s=60.0)
    harness.record_failed(ONE)
    await let_in(harness, tries=6)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(harness.enter(keys)) for keys in (ONE, ONE, BOTH, ONE)]
        await asyncio.sleep(0)
        harness.leave(ONE)
        harness.record_paid(ONE)
        harness.leave(ONE)
        await until(lambda: sum(task.done() for task in waiting) == 3)
        assert not waiting[3].done()
        for _ in range(2):
            harness.record_failed(ONE)
        harness.leave(ONE)  # it failed, and with it the last patience
    assert [task.result() is None for task in waiting] == [True, True, True, False]


async def test_a_caller_that_leaves_while_it_waits_counts_for_nothing() -> None:
    harness = failures(failed_calls_wait_s=60.0)
    harness.record_failed(ONE)
    await let_in(harness, tries=6)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(harness.enter(ONE))
        await asyncio.sleep(0)
        waiting.cancel()
    harness.leave(ONE)
    assert await harness.enter(ONE) is None


async def test_a_full_table_drops_no_caller_with_recent_failures_or_running_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failure_budget, "KEYS_MAX", 6)
    harness = failures()
    for _ in range(3):
        harness.record_failed(ONE)
    harness.record_failed(TWO)
    await let_in(harness, TWO)
    for number in range(20):
        crowd = (f"x{number}",)
        assert await harness.enter(crowd) is None
        harness.leave(crowd)
    assert await let_in(harness, TWO) == 0
    assert await let_in(harness, ONE) == 0


# ---------------------------------------------------------------------- at a whole gateway


class Gate:
    """An upstream whose heads wait until they are let go."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.open = asyncio.Event()

    async def __call__(self, arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        await self.open.wait()
        await plain(b"worth something", status=self.status)(arrived, writer)


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(failed_calls_wait_s=5.0) as small:
        await small.publish()
        yield small


@pytest.fixture
def payer(gateway: InProcessGateway) -> Payer:
    return Payer.funded(gateway, 100 * PRICE)


async def hold_many(
    gateway: InProcessGateway, ask: Any, *, runs: int = 100, status: int = 200, change: Any = lambda: None
) -> list[Exchange]:
    """A hundred calls at once to an API so slow that it answers the first of them when it has `runs`."""
    before = gateway.served
    gateway.upstream.answer = held = Gate(status)
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(ask()) for _ in range(100)]
        await until(lambda: gateway.served - before == runs)
        await until(lambda: gateway.shedder.running + sum(call.done() for call in calls) == 100)
        change()
        held.open.set()
    return [call.result() for call in calls]


async def test_a_balance_that_moves_away_buys_one_burst_and_then_nothing(
    gateway: InProcessGateway, payer: Payer
) -> None:
    """What is in flight before the first failure is bounded by the limits per address and per origin."""
    asked = await payer.quote("POST")
    answers = await hold_many(
        gateway,
        lambda: gateway.ask("POST", TARGET, payer.show(asked)),
        change=lambda: payer.fund(-100 * PRICE),
    )
    told = {(answer.status, answer.problem["code"]) for answer in answers}
    assert told == {(402, "payment_settlement_failed")}
    payer.fund(100 * PRICE)
    refused = await gateway.ask("POST", TARGET, payer.show(asked))
    assert (refused.status, refused.problem["code"]) == (429, "failed_call_budget_exhausted")
    assert not has_terms(refused)
    assert (gateway.served, gateway.earned) == (100, 0)


@pytest.mark.parametrize(("failed", "runs"), [(10, 20), (15, 7)])
async def test_a_caller_with_failed_calls_has_few_in_flight(
    gateway: InProcessGateway, failed: int, runs: int
) -> None:
    proof = gateway.plain_proof((await gateway.pay(200 * PRICE)).tx_hash)
    gateway.upstream.answer = plain(status=500)
    for _ in range(failed):
        assert (await gateway.ask("POST", TARGET, proof)).status == 500
    answers = await hold_many(gateway, lambda: gateway.ask("POST", TARGET, proof), runs=runs, status=500)
    assert [answer.status for answer in answers].count(429) == 100 - runs
    assert gateway.served == failed + runs


async def test_a_hundred_good_calls_at_once_are_all_served(gateway: InProcessGateway, payer: Payer) -> None:
    asked = await payer.quote("POST")
    ends_s = NOW_MS // 1000 + 3_600  # every transfer here makes a block, and every block takes its time
    answers = await hold_many(
        gateway, lambda: gateway.ask("POST", TARGET, payer.show(asked, valid_before=ends_s))
    )
    assert {answer.status for answer in answers} == {200}
    assert gateway.earned == 100 * PRICE


async def test_a_hundred_failing_calls_at_once_on_credit_are_the_last(gateway: InProcessGateway) -> None:
    proof = gateway.plain_proof((await gateway.pay(100 * PRICE)).tx_hash)
    answers = await hold_many(gateway, lambda: gateway.ask("POST", TARGET, proof), status=500)
    assert {answer.status for answer in answers} == {500}
    assert (await gateway.ask("POST", TARGET, proof)).status == 429
    assert gateway.served == 100


async def test_a_hundred_good_calls_at_once_on_credit_are_all_served(gateway: InProcessGateway) -> None:
    proof = gateway.plain_proof((await gateway.pay(100 * PRICE)).tx_hash)
    answers = await hold_many(gateway, lambda: gateway.ask("POST", TARGET, proof))
    assert {answer.status for answer in answers} == {200}


async def test_what_is_not_settled_at_one_listing_counts_at_the_next(
    gateway: InProcessGateway, payer: Payer
) -> None:
    """One wallet, a new listing and a new address for every call: the operator pays for its settlements."""
    last: Exchange | None = None
    for number in range(21):
        name = f"api_{number}"
        await gateway.publish(name)
        where: dict[str, Any] = {"listing": name, "client": f"198.51.100.{number}"}
        shown = payer.show(await payer.quote("POST", **where))
        gateway.upstream.answer = spend(payer)
        last = await gateway.ask("POST", TARGET, shown, **where)
        payer.fund(100 * PRICE - payer.balance)
    assert last is not None
    assert (last.status, last.problem["code"]) == (429, "failed_call_budget_exhausted")
    assert gateway.served == 20


async def test_failing_calls_on_credit_are_bounded_over_all_listings(gateway: InProcessGateway) -> None:
    """One payment, listings of one's own that fail, and a row for each call."""
    proof = gateway.plain_proof((await gateway.pay(PRICE)).tx_hash)
    gateway.upstream.answer = plain(status=500)
    for number in range(7):
        name = f"api_{number}"
        await gateway.publish(name)
        for _ in range(17):
            last = await gateway.ask("GET", TARGET, proof, listing=name)
    assert gateway.served == 100
    assert (last.status, last.problem["code"]) == (429, "failed_call_budget_exhausted")


def spend(payer: Payer) -> Any:
    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        payer.fund(-payer.balance)
        await plain()(arrived, writer)

    return answer
