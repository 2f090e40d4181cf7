"""Settlements without a waiter: orphaned when they are due, and never twice."""

from tests.kit.settlement import ClaimedCall, SettlementHarness
from tollway.ledger.ledger import Closed
from tollway.ledger.records import CallState
from tollway.payments.orphans import ORPHAN_AFTER_S, Orphans


def orphans_of(harness: SettlementHarness) -> Orphans:
    return Orphans(harness.ledger, clock=lambda: harness.read_clock() / 1000)


async def begin(harness: SettlementHarness, *, is_settling: bool) -> ClaimedCall:
    call = await harness.claim()
    if is_settling:
        assert isinstance(await harness.ledger.settle(call.order().close, attempt=None, digest=None), Closed)
    return call


async def is_orphaned(call: ClaimedCall) -> bool:
    held = await call.harness.ledger.find_authorized_call(call.authorization.key)
    assert held is not None
    return held.is_orphaned


async def test_a_settlement_without_a_waiter_is_orphaned_at_once() -> None:
    harness = SettlementHarness()
    call, orphans = await begin(harness, is_settling=True), orphans_of(harness)
    orphans.add(call.order().close, is_waited_for=False)
    await orphans.mark_due()
    assert await is_orphaned(call)


async def test_a_settlement_with_a_waiter_is_orphaned_after_a_delay() -> None:
    harness = SettlementHarness()
    call, orphans = await begin(harness, is_settling=True), orphans_of(harness)
    orphans.add(call.order().close, is_waited_for=True)
    await orphans.mark_due()
    assert not await is_orphaned(call)
    harness.pass_time(ORPHAN_AFTER_S)
    await orphans.mark_due()
    assert await is_orphaned(call)


async def test_a_call_that_never_reached_settling_is_unknown() -> None:
    """The request was sent, and its outcome is unknown."""
    harness = SettlementHarness()
    call, orphans = await begin(harness, is_settling=False), orphans_of(harness)
    orphans.add(call.order().close, is_waited_for=False)
    await orphans.mark_due()
    assert await call.read_state() is CallState.UNKNOWN
    record = await harness.ledger.find_call(call.order().close.call_id)
    assert record is not None
    assert record.error == "outcome_lost"


async def test_a_call_that_ended_meanwhile_is_unchanged() -> None:
    async with SettlementHarness() as harness:
        call, orphans = await harness.claim(), orphans_of(harness)
        orphans.add(call.order().close, is_waited_for=False)
        await call.settle()
        await orphans.mark_due()
        assert await call.read_state() is CallState.CONSUMED
