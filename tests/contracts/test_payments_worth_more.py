"""A payment that is recorded again with a larger value, after nodes had left out logs: in memory, on SQLite, on PostgreSQL."""

from typing import Any

import pytest

from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    attempt_of,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    new_payment,
    transfer_in,
)
from tollway.ledger.ledger import Claimed
from tollway.ledger.records import CallState


async def tell(ledger: Any, value_units: int, name: str = "tx", **fields: Any) -> Any:
    (payment,) = await ledger.record_payments(
        [new_payment(value_units, name, **{"is_final": False, **fields})], now_ms=NOW_MS
    )
    (found,) = await ledger.find_payments(payment.tx_hash)
    assert found == payment
    assert (await ledger.audit()).is_balanced
    return payment


async def test_a_payment_has_the_largest_recorded_value(ledger: Any) -> None:
    payment = await tell(ledger, 10)
    assert isinstance(await ledger.claim(claim_on(payment, 10)), Claimed)
    raised = await tell(ledger, 25, is_final=True, block_number=107)
    assert (raised.id, raised.value_units, raised.taken_units) == (payment.id, 25, 10)
    assert (raised.state, raised.block_number) == (payment.state, 100)  # until the next check
    assert isinstance(await ledger.claim(claim_on(payment, 15)), Claimed)
    assert await tell(ledger, 10) == await tell(ledger, 25)


async def test_what_is_final_stays_as_it_is(ledger: Any) -> None:
    """A final payment is not checked again, so a false log would not be detected."""
    await tell(ledger, 10, is_final=True)
    assert (await tell(ledger, 25)).value_units == 10


async def test_what_a_payment_is_raised_by_pays_its_payers_debt_first(ledger: Any) -> None:
    payment = await tell(ledger, 10)
    lost = await tell(ledger, 8, "lost")
    claim = claim_on(lost, 8)
    assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.close(close_of(claim))
    assert isinstance(await ledger.claim(claim_on(payment, 10)), Claimed)
    assert await ledger.mark_gone(lost.id, now_ms=NOW_MS) == 8
    assert (await tell(ledger, 15)).remaining_units == 0
    assert [debt.units for debt in await ledger.debts(PAYER)] == [3]
    assert (await tell(ledger, 20)).remaining_units == 2
    assert await ledger.debts(PAYER) == ()


@pytest.mark.parametrize("is_gone", [False, True])
async def test_what_authorisations_were_for_is_known_from_their_calls(ledger: Any, is_gone: bool) -> None:
    authorization = authorization_of(10)
    claim = authorized_claim(authorization)
    assert isinstance(await ledger.claim(claim), Claimed)
    attempt = attempt_of(claim, name="settled")
    await ledger.settle(close_of(claim, CallState.SETTLING), attempt=attempt, digest=None)
    transfer = transfer_in("settled")
    await ledger.conclude(claim.call_id, epoch=1, transfer=transfer, is_orphaned=False, now_ms=NOW_MS)
    (payment,) = await ledger.find_payments(transfer.tx_hash)
    if is_gone:
        await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    told = await tell(ledger, 25, "settled", asset=payment.asset)
    assert (told.id, told.value_units) == (payment.id, 10)
