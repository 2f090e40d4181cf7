"""The contract of `Ledger` for the decisions of providers about calls without an outcome that an authorisation pays."""

import asyncio
from typing import Any

import pytest

from tests.kit.ledger_records import (
    NOW_MS,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    transfer_in,
)
from tests.kit.ledger_steps import assert_balanced, pay, read_state
from tollway.ledger.ledger import AuthorizationTaken, Claimed, Fenced, NotCovered
from tollway.ledger.records import UNKNOWN_DIGEST, CallState, Rail

CHARGE, RELEASE = CallState.CONSUMED, CallState.RELEASED


async def held(ledger: Any, price_units: int = 4, **fields: Any) -> Any:
    """A call without an outcome: its request was sent, and no response came."""
    claim = authorized_claim(authorization_of(price_units), **fields)
    assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.close(close_of(claim, CallState.UNKNOWN, upstream_status=None))
    return claim


async def decide(ledger: Any, claim: Any, outcome: CallState = CHARGE) -> CallState | None:
    moved: CallState | None = await ledger.resolve(claim.call_id, outcome, now_ms=NOW_MS)
    return moved


async def recover_with(ledger: Any, claim: Any, transfer: Any, epoch: int = 1) -> CallState | None:
    """Ends the settlement as settlement recovery does."""
    state: CallState | None = await ledger.conclude(
        claim.call_id, epoch=epoch, transfer=transfer, is_orphaned=True, now_ms=NOW_MS
    )
    return state


async def test_a_charge_settles_the_authorisation_and_takes_nothing_before_the_transfer(ledger: Any) -> None:
    claim = await held(ledger)
    assert await decide(ledger, claim) is CallState.SETTLING
    record = await ledger.find_call(claim.call_id)
    assert (record.state, record.tx_hash, record.completed_ms) == (CallState.SETTLING, None, None)
    found = await ledger.find_authorized_call(claim.authorization.key)
    assert (found.is_orphaned, found.is_public, found.epoch) == (True, True, 1)
    assert [one.call_id for one in await ledger.unsettled(limit=9)] == [claim.call_id]
    assert (await ledger.audit()).held_calls == (claim.call_id,)
    await assert_balanced(ledger)


CALLS: list[dict[str, Any]] = [
    {},
    {"method": "POST"},
    {"digest": UNKNOWN_DIGEST},
    {"idempotency_key": "key"},
]


async def test_a_charged_call_is_consumed_by_its_transfer_and_never_runs_again(ledger: Any) -> None:
    for fields in CALLS:
        claim, transfer = await held(ledger, **fields), transfer_in(str(fields))
        await decide(ledger, claim)
        assert await recover_with(ledger, claim, transfer) is CallState.CONSUMED, fields
        found = await ledger.find_authorized_call(claim.authorization.key)
        assert (found.state, found.is_lost) == (CallState.CONSUMED, False), fields
        assert await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced(), fields
        (payment,) = await ledger.find_payments(transfer.tx_hash)
        assert (payment.value_units, payment.taken_units) == (4, 4), fields
        await assert_balanced(ledger)


async def test_a_charge_without_a_transfer_is_released_and_frees_the_authorisation(ledger: Any) -> None:
    claim = await held(ledger)
    await decide(ledger, claim)
    assert await recover_with(ledger, claim, None) is RELEASE
    assert await decide(ledger, claim) is None
    assert isinstance(await ledger.claim(authorized_claim(claim.authorization)), Claimed)
    await assert_balanced(ledger)


async def test_a_transfer_that_the_provider_did_not_charge_is_no_charge(ledger: Any) -> None:
    """Settlement recovery found the transfer of a call without an outcome: the caller may use the money."""
    lost, unsafe = await held(ledger), await held(ledger, method="POST")
    assert await recover_with(ledger, lost, transfer_in("one")) is CallState.CONSUMED
    assert (await ledger.find_authorized_call(lost.authorization.key)).is_lost is True
    assert await recover_with(ledger, unsafe, transfer_in("two")) is RELEASE
    await assert_balanced(ledger)


@pytest.mark.parametrize("first", [CHARGE, RELEASE])
async def test_a_decision_is_final(ledger: Any, first: CallState) -> None:
    claim = await held(ledger)
    after = await decide(ledger, claim, first)
    for outcome in (CHARGE, RELEASE):
        assert await decide(ledger, claim, outcome) is None
    assert await read_state(ledger, claim) is after


async def test_of_two_decisions_at_once_one_counts(ledger: Any) -> None:
    for order in ((CHARGE, RELEASE), (RELEASE, CHARGE), (CHARGE, CHARGE)):
        claim = await held(ledger)
        moved = await asyncio.gather(*(decide(ledger, claim, outcome) for outcome in order))
        (after,) = [one for one in moved if one is not None]
        assert await read_state(ledger, claim) is after, order
        await assert_balanced(ledger)


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_charge_and_a_repeat_at_once_do_not_both_count(ledger: Any, is_first: bool) -> None:
    claim = await held(ledger)
    both = [decide(ledger, claim), ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)]
    outcomes = await asyncio.gather(*(both if is_first else both[::-1]))
    moved, reopened = outcomes if is_first else outcomes[::-1]
    if moved is None:
        assert reopened == Claimed(epoch=2, remaining_units=0, rail=Rail.X402, before=CallState.UNKNOWN)
        assert await read_state(ledger, claim) is CallState.FORWARDING
    else:
        assert (moved, reopened) == (CallState.SETTLING, Fenced())
        assert await read_state(ledger, claim) is CallState.SETTLING
    await assert_balanced(ledger)


@pytest.mark.parametrize("outcome", [CHARGE, RELEASE])
async def test_a_decision_and_settlement_recovery_at_once_end_the_call_once(
    ledger: Any, outcome: CallState
) -> None:
    claim = await held(ledger)
    moved, ended = await asyncio.gather(
        decide(ledger, claim, outcome), recover_with(ledger, claim, transfer_in("found"))
    )
    if outcome is CHARGE and moved is not None:
        assert (moved, ended) == (CallState.SETTLING, CallState.CONSUMED)
    else:
        assert (moved is None) is (ended is not None)
    payments = await ledger.find_payments(transfer_in("found").tx_hash)
    assert sum(one.taken_units for one in payments) <= 4
    await assert_balanced(ledger)


async def test_a_charge_outlives_its_gateway(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await held(one)
    await decide(one, claim)
    await ledgers.bury("one")
    await two.recover(now_ms=NOW_MS)
    assert [call.call_id for call in await two.unsettled(limit=9)] == [claim.call_id]
    assert await recover_with(two, claim, transfer_in("paid")) is CallState.CONSUMED
    await assert_balanced(two)


async def test_the_gateway_of_the_call_neither_ends_nor_opens_what_is_charged(ledger: Any) -> None:
    claim = await held(ledger)
    await decide(ledger, claim)
    assert await ledger.close(close_of(claim)) == Fenced()
    late = close_of(claim, CallState.SETTLING)
    assert await ledger.settle(late, attempt=None, digest=None) == Fenced()
    assert await ledger.mark_orphaned(claim.call_id, epoch=1) is False
    again = await ledger.claim(authorized_claim(claim.authorization))
    assert again == AuthorizationTaken(call_id=claim.call_id, state=CallState.SETTLING)
    assert await ledger.recover(now_ms=NOW_MS + 90_000_000) == 0


async def test_a_charge_counts_against_the_balance_of_the_wallet(ledger: Any) -> None:
    claim = await held(ledger)
    await decide(ledger, claim)
    other = authorized_claim(authorization_of(4), balance_units=7)
    assert await ledger.claim(other) == NotCovered(held_units=4)


async def test_the_authorisation_of_a_call_is_found_by_its_id(ledger: Any) -> None:
    claim = await held(ledger)
    by_id = await ledger.find_call_authorization(claim.call_id)
    assert by_id == await ledger.find_authorized_call(claim.authorization.key)
    payment = await pay(ledger, 9)
    paid = claim_on(payment, 3)
    await ledger.claim(paid)
    assert await ledger.find_call_authorization(paid.call_id) is None
    assert await ledger.find_call_authorization("call_none") is None


async def test_no_other_outcome_is_decided(ledger: Any) -> None:
    claim = await held(ledger)
    for outcome in (CallState.UNKNOWN, CallState.SETTLING, CallState.FORWARDING):
        with pytest.raises(ValueError, match="released or consumed"):
            await decide(ledger, claim, outcome)
        assert await read_state(ledger, claim) is CallState.UNKNOWN, outcome
