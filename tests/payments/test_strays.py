"""Settlements whose waiter left: adrift when their time has come, and never twice."""

from tests.kit.settlement import ClaimedCall, SettlementHarness
from tollway.ledger.book import Closed
from tollway.ledger.call import CallState
from tollway.payments.strays import PATIENCE_S, Strays


def strays_of(harness: SettlementHarness) -> Strays:
    return Strays(harness.book, clock=lambda: harness.read_clock() / 1000)


async def begin(harness: SettlementHarness, *, is_settling: bool) -> ClaimedCall:
    call = await harness.claim()
    if is_settling:
        assert isinstance(await harness.book.settle(call.order().close, attempt=None, digest=None), Closed)
    return call


async def is_adrift(call: ClaimedCall) -> bool:
    held = await call.harness.book.find_authorized(call.authorization.key)
    assert held is not None
    return held.is_adrift


async def test_one_that_nobody_waits_for_goes_adrift_at_once() -> None:
    harness = SettlementHarness()
    call, strays = await begin(harness, is_settling=True), strays_of(harness)
    strays.note(call.order().close, is_waited_for=False)
    await strays.mend()
    assert await is_adrift(call)


async def test_whoever_stores_the_answer_first_is_given_time() -> None:
    harness = SettlementHarness()
    call, strays = await begin(harness, is_settling=True), strays_of(harness)
    strays.note(call.order().close, is_waited_for=True)
    await strays.mend()
    assert not await is_adrift(call)
    harness.pass_time(PATIENCE_S)
    await strays.mend()
    assert await is_adrift(call)


async def test_one_that_never_got_into_settling_is_unknown() -> None:
    """Its bytes left, and nobody knows more."""
    harness = SettlementHarness()
    call, strays = await begin(harness, is_settling=False), strays_of(harness)
    strays.note(call.order().close, is_waited_for=False)
    await strays.mend()
    assert await call.read_state() is CallState.UNKNOWN
    record = await harness.book.find_call(call.order().close.call_id)
    assert record is not None
    assert record.error == "outcome_lost"


async def test_one_that_is_finished_meanwhile_is_left_alone() -> None:
    async with SettlementHarness() as harness:
        call, strays = await harness.claim(), strays_of(harness)
        strays.note(call.order().close, is_waited_for=False)
        await harness.settlement.settle(call.order())
        await strays.mend()
        assert await call.read_state() is CallState.CONSUMED
