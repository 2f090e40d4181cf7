"""What receipts read of the ledger: when the state of a call was written, and the credit that was joined for it."""

from typing import Any

from tests.kit.ledger_records import (
    NOW_MS,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
    transfer_in,
    tx_hash,
    wait_finished,
)
from tests.kit.ledger_steps import pay
from tollway.ids import Address, CallId
from tollway.ledger.history import JoinedCredit
from tollway.ledger.ledger import Claimed, Closed
from tollway.ledger.records import CallRecord, CallState

LATER_MS = NOW_MS + 90_000


async def find(ledger: Any, claim: Any) -> CallRecord:
    found: CallRecord = await ledger.find_call(claim.call_id)
    return found


async def settle(ledger: Any, now_ms: int) -> Any:
    claim = authorized_claim(authorization_of(4))
    assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.settle(close_of(claim, CallState.SETTLING), attempt=None, digest=None)
    transfer = transfer_in("settled")
    ended = await ledger.conclude(claim.call_id, epoch=1, transfer=transfer, is_orphaned=False, now_ms=now_ms)
    assert ended is CallState.CONSUMED
    return claim


async def test_a_settled_call_has_exactly_the_time_that_its_gateway_signs(ledger: Any) -> None:
    now_ms = ledger.shared_ms() + 12_345
    claim = await settle(ledger, now_ms)
    assert (await find(ledger, claim)).moved_ms == now_ms
    known = await ledger.find_authorized_call(claim.authorization.key)
    assert known.moved_ms == now_ms


async def test_a_close_returns_the_time_that_it_writes(ledger: Any) -> None:
    """Of a call whose transfer happened before its answer came: the receipt in that answer has this time."""
    claim = authorized_claim(authorization_of(4))
    await ledger.claim(claim)
    closed = await ledger.close(close_of(claim, CallState.RELEASED))
    assert isinstance(closed, Closed)
    assert closed.moved_ms == (await find(ledger, claim)).moved_ms


async def test_the_end_of_a_body_does_not_move_the_time_of_the_charge(ledger: Any) -> None:
    claim = claim_on(await pay(ledger, 10), 4)
    await ledger.claim(claim)
    await ledger.close(close_of(claim, CallState.CONSUMED))
    moved_ms = (await find(ledger, claim)).moved_ms
    ledger.finish(finish_of(claim, completed_ms=LATER_MS))
    await wait_finished(ledger, claim.call_id)
    assert (await find(ledger, claim)).moved_ms == moved_ms


async def test_a_reorganisation_and_its_payment_are_written_with_their_times(ledger: Any) -> None:
    payment = await pay(ledger, 4, is_final=False)
    claim = claim_on(payment, 4)
    await ledger.claim(claim)
    await ledger.close(close_of(claim, CallState.CONSUMED))
    await ledger.mark_gone(payment.id, now_ms=LATER_MS)
    gone = await find(ledger, claim)
    assert (gone.state, gone.moved_ms) == (CallState.REORGED, LATER_MS)


async def test_a_transfer_that_moved_to_another_transaction_has_a_later_time(ledger: Any) -> None:
    claim = await settle(ledger, NOW_MS)
    transfer = transfer_in("elsewhere", block_number=105, block_hash=b"\x09" * 32)
    assert await ledger.move_transfer(
        claim.call_id, before=tx_hash("settled"), transfer=transfer, now_ms=LATER_MS
    )
    call = await find(ledger, claim)
    assert (call.state, call.tx_hash) == (CallState.CONSUMED, tx_hash("elsewhere"))
    assert call.moved_ms == LATER_MS


JOINED: list[tuple[tuple[int, ...], int, int, list[tuple[int, int]]]] = [
    ((9,), 4, 9, []),
    ((4, 3, 9), 6, 9, [(1, 2)]),
    ((2, 3, 4), 9, 9, [(1, 3), (2, 4)]),
    ((2, 3, 4), 9, 1, [(1, 3)]),
]
"""Values of the payments, price, limit -> which payments were joined, with how many units."""


async def test_lists_the_joined_credit_of_a_call(ledger: Any) -> None:
    for number, (values, price, limit, expected) in enumerate(JOINED, start=1):
        payer = Address(bytes([number]) * 20)
        payments = [
            await pay(ledger, value, f"{number} tx{place}", block_number=100 + place, payer=payer)
            for place, value in enumerate(values)
        ]
        claim = claim_on(payments[0], price)
        assert isinstance(await ledger.claim(claim), Claimed)
        joined = await ledger.joined_credit(claim.call_id, limit=limit)
        assert joined == tuple(
            JoinedCredit(tx_hash=payments[place].tx_hash, units=units) for place, units in expected
        ), values
        call = await find(ledger, claim)
        assert (call.payer, call.tx_hash) == (payer, payments[0].tx_hash)


async def test_an_unknown_call_has_no_joined_credit(ledger: Any) -> None:
    claim = claim_on(await pay(ledger, 10), 4)
    await ledger.claim(claim)
    assert await ledger.joined_credit(CallId("call_none"), limit=9) == ()
