"""The operator's records and the readiness of the gateways: in memory, in SQLite and in PostgreSQL."""

from typing import Any

from tests.kit.ledger_records import NOW_MS, claim_on, new_payment, operator_origin, tx_hash
from tollway.ledger.ledger import Claimed, Unspendable


async def paid(ledger: Any, value_units: int, name: str = "tx") -> Any:
    (payment,) = await ledger.record_payments([new_payment(value_units, name)], now_ms=NOW_MS)
    return payment


async def test_balances_are_held_after_a_restore_until_released(ledger: Any) -> None:
    payment = await paid(ledger, 10)
    assert (await ledger.find_transaction(tx_hash("a"))).held_before_ms is None
    await ledger.mark_restored(origin=operator_origin())
    assert (await ledger.find_transaction(tx_hash("a"))).held_before_ms == NOW_MS
    assert await ledger.claim(claim_on(payment)) == Unspendable(is_held=True)
    assert (await ledger.audit()).held_payments == (str(payment.tx_hash),)
    later = await paid(ledger, 10, "later")
    assert isinstance(await ledger.claim(claim_on(later)), Claimed)
    assert await ledger.release_held(origin=operator_origin()) == 1
    assert (await ledger.find_transaction(tx_hash("a"))).held_before_ms is None
    assert isinstance(await ledger.claim(claim_on(payment)), Claimed)


async def test_an_admitted_transaction_is_remembered(ledger: Any) -> None:
    await ledger.admit(tx_hash("a"), origin=operator_origin())
    await ledger.admit(tx_hash("a"), origin=operator_origin())
    assert (await ledger.find_transaction(tx_hash("a"))).is_admitted
    assert not (await ledger.find_transaction(tx_hash("b"))).is_admitted


async def test_downtime_is_the_time_between_notes_that_are_far_apart(ledger: Any) -> None:
    assert await ledger.downtime_ms(since_ms=0, now_ms=NOW_MS) == 0
    for ms in (0, 60_000, 160_000, 160_001, 100):
        await ledger.mark_ready(now_ms=NOW_MS + ms)
    at = {"now_ms": NOW_MS + 200_000}
    assert await ledger.downtime_ms(since_ms=NOW_MS - 1, **at) == 100_000
    assert await ledger.downtime_ms(since_ms=NOW_MS + 100_000, **at) == 60_000
    assert await ledger.downtime_ms(since_ms=NOW_MS + 170_000, **at) == 0
    assert await ledger.downtime_ms(since_ms=NOW_MS + 150_000, now_ms=NOW_MS + 300_001) == 10_000 + 140_000
