"""Refunds on both databases: which calls a transfer refunds, once; what a reorganisation does to it; what can never be spent. Two gateways share the database."""

import asyncio
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from tests.kit.catalogs import open_catalog
from tests.kit.ledger_channels import buy, open_channel
from tests.kit.ledger_records import (
    CHAIN,
    NOW_MS,
    PAYEE,
    PAYER,
    PROVIDER,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    operator_origin,
    tx_hash,
)
from tests.kit.ledger_steps import assert_balanced, pay
from tests.kit.listings import sample_listing
from tests.kit.payer import has_terms
from tests.kit.storage_faults import FaultyLedger, open_faulty_gateways
from tests.kit.upstream import plain, raw
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId, ChainId, ListingId
from tollway.ledger.history import PaymentQuery
from tollway.ledger.ledger import Claim, Claimed, Exhausted, Fenced
from tollway.ledger.records import CallState, NewPayment, PaymentState, RecordedTransaction
from tollway.ledger.refunds import (
    CallsRefunded,
    NotRefundable,
    RefundFault,
    TransferUsed,
    credit_hash,
)
from tollway.ledger.sales import DAY_MS, HOUR_MS, SalesQuery, SpendingQuery
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.engine.database import Database, metadata
from tollway.storage.ledger import refunds as refund_store
from tollway.storage.ledger.call_terms import KnownTerms
from tollway.storage.ledger.closed_periods import ClosedPeriods
from tollway.storage.ledger.ledger_batch import BatchRules, Drop, LedgerBatch
from tollway.storage.ledger.ledger_tables import call_refund_table, call_table
from tollway.storage.ledger.period_books import PeriodBookStore

UNKNOWN = RecordedTransaction(payments=(), is_admitted=False, held_before_ms=None)
_NUMBERS = count()
STRANGER = Address(b"\xee" * 20)


def transfer(value_units: int, name: str = "refund", **fields: Any) -> NewPayment:
    """A transfer from the payee of the calls back to their payer."""
    return new_payment(value_units, name, **{"payer": PAYEE, "payee": PAYER, "is_final": False, **fields})


async def charge(ledger: Any, units: int = 4, *, created_ms: int = NOW_MS, **fields: Any) -> CallId:
    """A charged call of that price, with a payment of its own."""
    of_call = {"provider": fields.pop("provider")} if "provider" in fields else {}
    paid = await pay(ledger, units, f"payment {next(_NUMBERS)}", **fields)
    claim = claim_on(paid, units, created_ms=created_ms, **of_call)
    assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.close(close_of(claim, CallState.CONSUMED))
    return claim.call_id


async def refund(ledger: Any, new: NewPayment, *call_ids: CallId) -> Any:
    return await ledger.record_refund(new, call_ids, based_on=UNKNOWN, now_ms=NOW_MS)


async def refunded_units(ledger: Any, call_id: CallId) -> int | None:
    found = (await ledger.find_call(call_id)).refund
    return None if found is None else found.units


@pytest.fixture
async def ledger(pair: list[FaultyLedger]) -> Any:
    return pair[0].ledger


@pytest.fixture
def catalog(pair: list[FaultyLedger]) -> CatalogStore:
    database: Any = pair[0].database
    return open_catalog(database)


async def test_a_transfer_refunds_calls_of_one_payer_in_the_order_of_the_request(ledger: Any) -> None:
    first, second = await charge(ledger, 4), await charge(ledger, 3)
    assert await refund(ledger, transfer(5), first, second) == CallsRefunded(units=(4, 1))
    assert [await refunded_units(ledger, one) for one in (first, second)] == [4, 1]
    found = (await ledger.find_call(first)).refund
    assert (found.tx_hash, found.is_credit, found.is_final) == (tx_hash("refund"), False, False)
    assert (await ledger.find_call(first)).state is CallState.CONSUMED


async def test_a_repeat_has_the_same_outcome_and_changes_nothing(ledger: Any) -> None:
    first, second = await charge(ledger), await charge(ledger)
    assert await refund(ledger, transfer(8), first, second) == CallsRefunded(units=(4, 4))
    assert await refund(ledger, transfer(8), second, first) == CallsRefunded(units=(4, 4))
    assert await refund(ledger, transfer(8), first) == TransferUsed()
    third = await charge(ledger)
    assert await refund(ledger, transfer(8), first, second, third) == TransferUsed()
    assert await refunded_units(ledger, third) is None


@pytest.mark.parametrize(
    ("value_units", "fault"),
    [(9, RefundFault.ABOVE_PRICE), (4, RefundFault.BELOW_CALLS)],
)
async def test_a_transfer_fits_the_prices_of_its_calls(
    ledger: Any, value_units: int, fault: RefundFault
) -> None:
    calls = [await charge(ledger), await charge(ledger)]
    outcome = await refund(ledger, transfer(value_units), *calls)
    assert isinstance(outcome, NotRefundable)
    assert outcome.fault is fault
    assert await ledger.find_payments(tx_hash("refund")) == ()
    assert [await refunded_units(ledger, one) for one in calls] == [None, None]


async def test_only_a_charged_call_is_refunded(ledger: Any) -> None:
    payment = await pay(ledger, 12)
    running, released, free = claim_on(payment, 4), claim_on(payment, 4), claim_on(None)
    for claim in (running, released, free):
        assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.close(close_of(released, CallState.RELEASED))
    await ledger.close(close_of(free, CallState.CONSUMED))
    for claim, fault in (
        (running, RefundFault.NOT_CHARGED),
        (released, RefundFault.NOT_CHARGED),
        (free, RefundFault.FREE_CALL),
    ):
        refused = NotRefundable(fault=fault, call_id=claim.call_id)
        assert await refund(ledger, transfer(4), claim.call_id) == refused
        assert await ledger.record_credit(claim.call_id, now_ms=NOW_MS) == refused
    assert await ledger.find_payments(tx_hash("refund")) == ()


async def test_a_hash_on_two_chains_is_two_transfers(ledger: Any) -> None:
    mine, there = await charge(ledger), await charge(ledger, chain_id=ChainId(1))
    refused = NotRefundable(fault=RefundFault.DIFFERENT_PAYERS, call_id=there)
    assert await refund(ledger, transfer(8), mine, there) == refused
    for call_id, chain_id in ((mine, CHAIN), (there, ChainId(1))):
        assert await refund(ledger, transfer(4, chain_id=chain_id), call_id) == CallsRefunded(units=(4,))
    assert len(await ledger.find_payments(tx_hash("refund"))) == 2


async def test_credit_is_worth_what_was_paid_however_often_it_goes_round(ledger: Any) -> None:
    """Also where the first payment leaves its chain: the credit pays that debt, and nothing is left."""
    paid = await pay(ledger, 4, "unfinal", is_final=False)
    claim = claim_on(paid, 4)
    for _ in range(3):
        assert isinstance(await ledger.claim(claim), Claimed)
        await ledger.close(close_of(claim, CallState.CONSUMED))
        for _ in range(2):
            assert await ledger.record_credit(claim.call_id, now_ms=NOW_MS) == CallsRefunded(units=(4,))
        (credit,) = await ledger.find_payments(credit_hash(claim.call_id))
        assert (credit.value_units, credit.remaining_units) == (4, 4)
        claim = claim_on(credit, 4)
    await ledger.mark_gone(paid.id, now_ms=NOW_MS)
    await ledger.continue_moves(CHAIN, now_ms=NOW_MS)
    outcome = await ledger.claim(claim)
    assert not isinstance(outcome, Claimed), outcome
    assert (await ledger.debts(PAYER), (await ledger.find_payments(credit.tx_hash))[0].remaining_units) == (
        (),
        0,
    )
    await assert_balanced(ledger)


def read_tables(connection: Connection) -> dict[str, list[str]]:
    return {
        table.name: sorted(map(repr, connection.execute(select(table)))) for table in metadata.sorted_tables
    }


async def test_a_refund_writes_its_transfer_and_nothing_else(ledger: Any, pair: list[FaultyLedger]) -> None:
    """So neither the state of the call, nor what it counts in a budget, in the quality of its listing or in the standing of a wallet changes."""
    database: Any = pair[0].database
    calls = [await charge(ledger) for _ in range(2)]
    before = await database.read(read_tables)
    await refund(ledger, transfer(4), calls[0])
    await ledger.record_credit(calls[1], now_ms=NOW_MS)
    (payment,) = await ledger.find_payments(tx_hash("refund"))
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    after = await database.read(read_tables)
    assert {name for name, rows in after.items() if rows != before[name]} == {"payment", "call_refund"}
    assert set(before["payment"]) < set(after["payment"]), "no other payment changes"


async def test_a_call_is_refunded_once(ledger: Any) -> None:
    call_id, other = await charge(ledger), await charge(ledger)
    assert await refund(ledger, transfer(1), call_id) == CallsRefunded(units=(1,))
    refused = NotRefundable(fault=RefundFault.ALREADY_REFUNDED, call_id=call_id)
    assert await refund(ledger, transfer(3, "again"), call_id) == refused
    assert await refund(ledger, transfer(3, "again"), other, call_id) == refused
    assert await ledger.record_credit(call_id, now_ms=NOW_MS) == refused
    assert await refunded_units(ledger, call_id) == 1


async def test_calls_of_other_payers_need_a_transfer_of_their_own(ledger: Any) -> None:
    mine, foreign = await charge(ledger), await charge(ledger, payer=STRANGER)
    refused = NotRefundable(fault=RefundFault.DIFFERENT_PAYERS, call_id=foreign)
    assert await refund(ledger, transfer(8), mine, foreign) == refused


OTHER = Address(b"\xce" * 20)
"""Another provider."""


async def list_other_with_own_wallet(ledger: Any, catalog: CatalogStore) -> None:
    await catalog.publish(sample_listing(provider=PAYEE, id=ListingId("api_other")))


async def sell_for_other_at_one_payee(ledger: Any, catalog: CatalogStore) -> None:
    await charge(ledger, provider=OTHER)


@pytest.mark.parametrize("share", [list_other_with_own_wallet, sell_for_other_at_one_payee])
async def test_a_transfer_that_may_be_another_providers_refund_refunds_nothing(
    ledger: Any, catalog: CatalogStore, share: Any
) -> None:
    """`payTo` is the wallet of another provider, or is paid for another one's calls by the same payer. The provider's own wallet refunds as ever."""
    call_id = await charge(ledger)
    await share(ledger, catalog)
    refused = NotRefundable(fault=RefundFault.ANOTHER_PROVIDER, call_id=call_id)
    assert await refund(ledger, transfer(4), call_id) == refused
    assert await ledger.find_payments(tx_hash("refund")) == ()
    assert await ledger.find_senders(await ledger.find_call(call_id)) == (PROVIDER,)
    assert await refund(ledger, transfer(4, "own", payer=PROVIDER), call_id) == CallsRefunded(units=(4,))


async def test_a_cold_payee_of_one_provider_refunds(ledger: Any, catalog: CatalogStore) -> None:
    """What another payer, asset or payee has with another provider is no matter; nor is another listing that names this payee and sold nothing."""
    call_id = await charge(ledger)
    await charge(ledger, provider=OTHER, payer=STRANGER)
    await charge(ledger, provider=OTHER, asset="native")
    await charge(ledger, provider=OTHER, payee=OTHER)
    await catalog.publish(sample_listing(provider=OTHER, id=ListingId("api_other"), pay_to=PAYEE))
    assert await ledger.find_senders(await ledger.find_call(call_id)) == (PROVIDER, PAYEE)
    assert await refund(ledger, transfer(4), call_id) == CallsRefunded(units=(4,))


NEW_PAYEE = Address(b"\xdd" * 20)
LISTINGS: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "the listing of the call": ({}, True),
    "whose payTo has changed since": ({"pay_to": NEW_PAYEE}, True),
    "another one of the same payTo": ({"id": ListingId("api_2")}, True),
    "another one of another payTo": ({"id": ListingId("api_2"), "pay_to": NEW_PAYEE}, False),
    "that of another provider": ({"provider": OTHER}, False),
    "a paused one": ({"status": "paused"}, True),
    "a retired one": ({"retired_ms": 5}, False),
    "a suspended one": ({"suspended_ms": 5}, False),
    "of another currency": ({"currency": "EURC"}, False),
    "of another network": ({"networks": (ChainId(1),)}, False),
    "none": (None, False),
}


@pytest.mark.parametrize("which", LISTINGS)
async def test_credit_needs_a_listing_that_takes_it(ledger: Any, catalog: CatalogStore, which: str) -> None:
    fields, is_spendable = LISTINGS[which]
    call_id = await charge(ledger)
    if fields is not None:
        await catalog.publish(sample_listing(**{"provider": PROVIDER, "pay_to": PAYEE, **fields}))
    assert await ledger.is_spendable(await ledger.find_call(call_id)) is is_spendable


async def test_a_refund_is_no_payment_and_a_payment_is_no_refund(ledger: Any) -> None:
    """Whichever is recorded first. The recipient of a refund sells too, and the sender calls it."""
    call_id = await charge(ledger)
    sold = transfer(4, "payment")
    await ledger.record_payments([sold], now_ms=NOW_MS)
    assert await refund(ledger, sold, call_id) == TransferUsed()
    assert await refund(ledger, transfer(4), call_id) == CallsRefunded(units=(4,))
    (payment,) = await ledger.record_payments([transfer(9)], now_ms=NOW_MS)
    assert (payment.is_refund, payment.value_units, payment.remaining_units) == (True, 4, 0)
    assert isinstance(await ledger.claim(claim_on(payment, 1)), Exhausted)
    for role, wallet in (("payer", PAYEE), ("payee", PAYER)):
        shown = await ledger.read_payments(PaymentQuery(wallet=wallet, role=role))
        assert [one.payment.tx_hash for one in shown] == [tx_hash("payment")]
    assert await ledger.payments_in(PAYEE, tx_hash("refund")) == ()
    (paid,) = await ledger.find_payments(sold.tx_hash)
    await ledger.mark_gone(paid.id, now_ms=NOW_MS)
    assert await refund(ledger, sold, call_id) == TransferUsed()
    assert [one.state for one in await ledger.find_payments(sold.tx_hash)] == [PaymentState.GONE]


async def test_a_reorganisation_takes_refunds_back_and_a_return_brings_them_back(ledger: Any) -> None:
    call_id = await charge(ledger)
    await refund(ledger, transfer(4), call_id)
    (payment,) = await ledger.find_payments(tx_hash("refund"))
    assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == 0
    assert await refunded_units(ledger, call_id) is None
    assert await ledger.find_refunded(payment.id) == ()
    await assert_balanced(ledger)
    assert await ledger.continue_moves(payment.chain_id, now_ms=NOW_MS) == 0
    (again,) = await ledger.record_payments([transfer(4, block_number=101)], now_ms=NOW_MS)
    assert (again.state, again.remaining_units) == (PaymentState.UNFINAL, 0)
    assert await refunded_units(ledger, call_id) == 4
    assert (await ledger.find_call(call_id)).state is CallState.CONSUMED


async def test_the_provider_shows_a_transfer_again_that_left_its_chain(ledger: Any) -> None:
    call_id = await charge(ledger)
    await refund(ledger, transfer(4), call_id)
    (payment,) = await ledger.find_payments(tx_hash("refund"))
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    assert await refund(ledger, transfer(4, block_number=102), call_id) == CallsRefunded(units=(4,))
    assert await refunded_units(ledger, call_id) == 4


async def test_a_credit_that_is_given_during_a_restore_is_not_recorded(
    ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_id = await charge(ledger)
    read = iter([None, NOW_MS - 1])
    monkeypatch.setattr(refund_store, "held_before_ms", lambda connection: next(read))
    with pytest.raises(StorageUnavailable):
        await ledger.record_credit(call_id, now_ms=NOW_MS)
    assert await refunded_units(ledger, call_id) is None
    assert await ledger.find_payments(credit_hash(call_id)) == ()


async def test_a_call_that_was_refunded_meanwhile_keeps_that_refund(ledger: Any) -> None:
    call_id, other = await charge(ledger), await charge(ledger)
    await refund(ledger, transfer(8), call_id, other)
    (payment,) = await ledger.find_payments(tx_hash("refund"))
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    assert await refund(ledger, transfer(3, "instead"), call_id) == CallsRefunded(units=(3,))
    await ledger.record_payments([transfer(8, block_number=103)], now_ms=NOW_MS)
    assert [await refunded_units(ledger, one) for one in (call_id, other)] == [3, 4]
    assert await ledger.find_refunded(payment.id) == (other,)
    await assert_balanced(ledger)
    (instead,) = await ledger.find_payments(tx_hash("instead"))
    await ledger.mark_gone(instead.id, now_ms=NOW_MS)
    assert [await refunded_units(ledger, one) for one in (call_id, other)] == [4, 4], "it waited"
    await assert_balanced(ledger)


async def test_a_transfer_that_was_verified_before_a_restore_is_not_recorded(ledger: Any) -> None:
    call_id = await charge(ledger)
    await ledger.mark_restored(origin=operator_origin())
    with pytest.raises(StorageUnavailable):
        await refund(ledger, transfer(4), call_id)
    assert await refunded_units(ledger, call_id) is None
    assert await ledger.find_payments(tx_hash("refund")) == ()


async def test_a_call_on_a_channel_gets_no_credit(ledger: Any) -> None:
    """Its price may still be unclaimed, and a credit is final."""
    claim = await buy(ledger, await open_channel(ledger))
    refused = NotRefundable(fault=RefundFault.ON_CHANNEL, call_id=claim.call_id)
    assert await ledger.record_credit(claim.call_id, now_ms=NOW_MS) == refused
    assert await refunded_units(ledger, claim.call_id) is None
    assert await ledger.find_payments(credit_hash(claim.call_id)) == ()


async def test_a_call_of_before_a_restore_gets_no_credit(ledger: Any) -> None:
    """The lost part of the database may have had this credit, spent."""
    call_id = await charge(ledger)
    await ledger.mark_restored(origin=operator_origin())
    refused = NotRefundable(fault=RefundFault.RESTORED, call_id=call_id)
    assert await ledger.record_credit(call_id, now_ms=NOW_MS) == refused
    assert await refunded_units(ledger, call_id) is None
    assert await ledger.find_payments(credit_hash(call_id)) == ()
    later = await charge(ledger, created_ms=NOW_MS + 1)
    assert await ledger.record_credit(later, now_ms=NOW_MS) == CallsRefunded(units=(4,))
    await ledger.release_held(origin=operator_origin())
    assert await ledger.record_credit(call_id, now_ms=NOW_MS) == CallsRefunded(units=(4,))


@pytest.mark.parametrize("round_", range(4))
async def test_of_two_gateways_one_refunds_by_a_transfer(pair: list[FaultyLedger], round_: int) -> None:
    one, two = (it.ledger for it in pair)
    calls = [await charge(one) for _ in range(6)]
    outcomes = await asyncio.gather(
        *(refund((one, two)[number % 2], transfer(4), call_id) for number, call_id in enumerate(calls))
    )
    assert sorted(map(str, outcomes)) == sorted(map(str, [CallsRefunded(units=(4,)), *[TransferUsed()] * 5]))
    units = [await refunded_units(one, call_id) for call_id in calls]
    assert sorted(map(str, units)) == sorted(["4", *["None"] * 5])


@pytest.mark.parametrize("round_", range(4))
async def test_of_two_gateways_one_refunds_a_call(pair: list[FaultyLedger], round_: int) -> None:
    one, two = (it.ledger for it in pair)
    call_id = await charge(one)
    outcomes = await asyncio.gather(
        *(refund((one, two)[number % 2], transfer(4, f"of {number}"), call_id) for number in range(5)),
        two.record_credit(call_id, now_ms=NOW_MS),
    )
    assert sum(isinstance(outcome, CallsRefunded) for outcome in outcomes) == 1
    assert await refunded_units(one, call_id) == 4


async def test_of_two_gateways_a_transfer_is_a_payment_or_a_refund(pair: list[FaultyLedger]) -> None:
    one, two = (it.ledger for it in pair)
    call_id = await charge(one)
    outcome, (payment,) = await asyncio.gather(
        refund(one, transfer(4), call_id), two.record_payments([transfer(4)], now_ms=NOW_MS)
    )
    assert isinstance(outcome, CallsRefunded) == payment.is_refund
    assert payment.remaining_units == (0 if payment.is_refund else 4)


async def test_a_credit_pays_a_call_as_any_payment(ledger: Any) -> None:
    call_id = await charge(ledger)
    for _ in range(2):
        assert await ledger.record_credit(call_id, now_ms=NOW_MS) == CallsRefunded(units=(4,))
    (credit,) = await ledger.find_payments(credit_hash(call_id))
    assert (credit.payer, credit.payee, credit.remaining_units) == (PAYER, PAYEE, 4)
    found = (await ledger.find_call(call_id)).refund
    assert (found.units, found.is_credit, found.tx_hash) == (4, True, credit.tx_hash)
    bought = claim_on(credit, 4)
    assert isinstance(await ledger.claim(bought), Claimed)
    await ledger.close(close_of(bought, CallState.CONSUMED))
    assert isinstance(await ledger.claim(claim_on(credit, 1)), Exhausted)


async def test_the_audit_names_a_refund_above_the_price(ledger: Any, pair: list[FaultyLedger]) -> None:
    call_id = await charge(ledger)
    await refund(ledger, transfer(4), call_id)
    changed = update(call_refund_table)
    await pair[0].database.write(lambda c: c.execute(changed.values(units=5)))
    wrong = (await ledger.audit()).wrong
    assert any(f"the refund of call {call_id}" in line and "gives 5 of 4 back" in line for line in wrong)
    await pair[0].database.write(lambda c: c.execute(changed.values(units=4)))


async def test_sums_show_what_came_back_of_the_charges(ledger: Any, pair: list[FaultyLedger]) -> None:
    """In open hours, in closed ones, and for both sides; a refund that was taken back does not count."""
    database: Any = pair[0].database
    books = PeriodBookStore(database)
    first, second, third = [await charge(ledger) for _ in range(3)]
    await refund(ledger, transfer(7), first, second)
    await ledger.record_credit(third, now_ms=NOW_MS)
    range_ms = {"from_ms": NOW_MS - DAY_MS, "to_ms": NOW_MS + DAY_MS}
    sales = SalesQuery(wallet=PROVIDER, step="day", **range_ms)
    spending = SpendingQuery(wallet=PAYER, step="day", **range_ms)

    async def read() -> list[tuple[int, int, int, int]]:
        rows = [*(await books.sales(sales)).rows, *(await books.spending(spending)).rows]
        return [
            (row.by_state["charged"].units, row.refunded.calls, row.refunded.units, row.total.net_units)
            for row in rows
        ]

    assert await read() == [(12, 3, 11, 1)] * 2
    late_ms = NOW_MS + 2 * HOUR_MS
    closing = ClosedPeriods(database, read_clock=lambda _: late_ms, ledger_ms=lambda: late_ms)
    await closing.write_due()
    assert await read() == [(12, 3, 11, 1)] * 2
    (payment,) = await ledger.find_payments(tx_hash("refund"))
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    assert await read() == [(12, 1, 4, 8)] * 2
    assert (await ledger.audit()).wrong_periods == ()


PRICES = (1, 3, 4)
STEPS = 40


class RefundOracle:
    """What the ledger must hold after any moves: the price of each call, its refund in force (transfer and units), and where each transfer is."""

    def __init__(self) -> None:
        self.prices: dict[CallId, int] = {}
        self.in_force: dict[CallId, tuple[str, int]] = {}
        self.parts: dict[str, dict[CallId, int]] = {}
        self.gone: set[str] = set()

    def refund(self, name: str, value_units: int, call_ids: list[CallId]) -> bool:
        """Whether the transfer refunds these calls."""
        if name in self.parts:
            if set(self.parts[name]) != set(call_ids):
                return False
            if name in self.gone:
                self.mine(name)
            return all(self.in_force.get(call_id, ("", 0))[0] == name for call_id in call_ids)
        prices = [self.prices[call_id] for call_id in call_ids]
        if any(call_id in self.in_force for call_id in call_ids) or not sum(prices[:-1]) < value_units <= sum(
            prices
        ):
            return False
        units = [*prices[:-1], value_units - sum(prices[:-1])]
        self.parts[name] = dict(zip(call_ids, units, strict=True))
        self.in_force |= {call_id: (name, part) for call_id, part in self.parts[name].items()}
        return True

    def credit(self, call_id: CallId) -> bool:
        kind = self.in_force.setdefault(call_id, ("credit", self.prices[call_id]))[0]
        return kind == "credit"

    def leave(self, name: str) -> None:
        self.gone.add(name)
        self.in_force = {call_id: one for call_id, one in self.in_force.items() if one[0] != name}
        for other, parts in self.parts.items():
            if other not in self.gone:
                for call_id in parts.keys() & self.parts[name].keys():
                    self.in_force.setdefault(call_id, (other, parts[call_id]))

    def mine(self, name: str) -> None:
        self.gone.discard(name)
        for call_id, part in self.parts[name].items():
            self.in_force.setdefault(call_id, (name, part))


@pytest.mark.parametrize("number", range(3))
async def test_any_refunds_keep_the_laws(
    ledger: Any, pair: list[FaultyLedger], seed: int, number: int
) -> None:
    """Transfers of any value, repeated, of other calls, taken back and mined again, between credits: each refund is at most its price, each transfer refunds once, each
    call has one refund in force, and the sums of both sides and the audit say the same."""
    database: Any = pair[0].database
    draw, oracle, books = Random((seed << 8) ^ number), RefundOracle(), PeriodBookStore(database)
    values: dict[str, int] = {}
    for _ in range(8):
        units = draw.choice(PRICES)
        oracle.prices[await charge(ledger, units)] = units
    calls = list(oracle.prices)
    for step in range(STEPS):
        name = f"refund {draw.randrange(10)}"
        chosen = draw.sample(calls, draw.randint(1, 3))
        known = [one for one in sorted(oracle.parts) if one not in oracle.gone]
        match draw.randrange(5):
            case 0 if known:
                name = draw.choice(known)
                (payment,) = await ledger.find_payments(tx_hash(name))
                await ledger.mark_gone(payment.id, now_ms=NOW_MS)
                oracle.leave(name)
            case 1 if oracle.gone:
                name = draw.choice(sorted(oracle.gone))
                await ledger.record_payments(
                    [transfer(values[name], name, block_number=100 + step)], now_ms=NOW_MS
                )
                oracle.mine(name)
            case 2 if draw.random() < 0.4:
                outcome = await ledger.record_credit(chosen[0], now_ms=NOW_MS)
                assert isinstance(outcome, CallsRefunded) is oracle.credit(chosen[0])
            case _:
                if name in oracle.parts and draw.random() < 0.5:
                    chosen = list(oracle.parts[name])
                value = values.get(name, draw.randint(1, 9))
                outcome = await refund(ledger, transfer(value, name, block_number=100 + step), *chosen)
                assert isinstance(outcome, CallsRefunded) is oracle.refund(name, value, chosen), step
                if name in oracle.parts:
                    values[name] = value
        found = {call_id: await refunded_units(ledger, call_id) for call_id in calls}
        in_force = {call_id: oracle.in_force.get(call_id, ("", None))[1] for call_id in calls}
        assert found == in_force, step
    await assert_balanced(ledger)
    range_ms = {"from_ms": NOW_MS - DAY_MS, "to_ms": NOW_MS + DAY_MS}
    sales = await books.sales(SalesQuery(wallet=PROVIDER, step="day", **range_ms))
    spending = await books.spending(SpendingQuery(wallet=PAYER, step="day", **range_ms))
    net = sum(oracle.prices.values()) - sum(units for _, units in oracle.in_force.values())
    assert [row.total.net_units for row in (*sales.rows, *spending.rows)] == [net, net]


DIGEST = b"\x07" * 32


async def cut(ledger: Any, **fields: Any) -> Claim:
    """A charged call whose response its upstream cut. The same request repeats it."""
    claim = claim_on(await pay(ledger, 4), 4, digest=DIGEST)
    assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.close(close_of(claim, CallState.CONSUMED))
    await ledger.finish_cut(finish_of(claim, is_cut=True, **fields))
    return claim


@pytest.mark.parametrize(("is_credit", "is_taken_back"), [(False, False), (True, False), (False, True)])
async def test_a_refunded_call_never_runs_again(ledger: Any, is_credit: bool, is_taken_back: bool) -> None:
    """Else a repeat could release it, and its price would come back twice. A transfer that has left its chain may be mined again."""
    claim = await cut(ledger)
    if is_credit:
        await ledger.record_credit(claim.call_id, now_ms=NOW_MS)
    else:
        await refund(ledger, transfer(4), claim.call_id)
    if is_taken_back:
        (payment,) = await ledger.find_payments(tx_hash("refund"))
        await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    assert await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced()
    (paid,) = await ledger.find_payments(tx_hash("tx"))
    again = claim_on(paid, 4, digest=DIGEST, is_separate_call=True)
    assert isinstance(await ledger.claim(again), Exhausted)
    assert (await ledger.find_call(claim.call_id)).state is CallState.CONSUMED
    await assert_balanced(ledger)


async def test_a_call_that_runs_again_is_not_refunded(ledger: Any) -> None:
    claim = await cut(ledger)
    assert isinstance(await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    refused = NotRefundable(fault=RefundFault.NOT_CHARGED, call_id=claim.call_id)
    assert await refund(ledger, transfer(4), claim.call_id) == refused
    assert await ledger.record_credit(claim.call_id, now_ms=NOW_MS) == refused
    await ledger.close(close_of(claim, CallState.RELEASED, epoch=2))
    await assert_balanced(ledger)


@pytest.mark.parametrize("key", [[], [("Idempotency-Key", "one")]], ids=["safe", "keyed"])
async def test_the_repeat_of_a_refunded_call_gets_the_answer_of_a_used_payment(
    database: Database, key: list[tuple[str, str]]
) -> None:
    async with open_faulty_gateways(database, ["one"]) as (one,):
        gateway = one.gateway
        payment = await gateway.pay()
        shown = [*gateway.plain_proof(payment.tx_hash), *key]
        gateway.upstream.answer = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf", close=True)
        assert not (await gateway.ask("GET", "/quote?x=1", shown)).is_ended
        query = select(call_table.c.id).where(call_table.c.rail == "tx")
        (call_id,) = await database.read(lambda c: c.execute(query).scalars().all())
        sent = gateway.sample_payment(payer=payment.payee, payee=payment.payer, is_final=False)
        outcome = await one.ledger.record_refund(
            sent, [CallId(call_id)], based_on=UNKNOWN, now_ms=gateway.now_ms
        )
        assert isinstance(outcome, CallsRefunded)
        gateway.upstream.answer = plain(b"no", status=500)
        again = await gateway.ask("GET", "/quote?x=1", shown)
        assert (again.status, again.problem["code"]) == (409, "payment_already_used")
        assert not has_terms(again)
        assert gateway.served == 1
        assert await gateway.remaining_units(payment) == 0


@pytest.mark.parametrize("round_", range(4))
async def test_of_two_gateways_one_refunds_a_call_or_runs_it_again(
    pair: list[FaultyLedger], round_: int
) -> None:
    one, two = (it.ledger for it in pair)
    claim = await cut(one)
    refunded, reopened = await asyncio.gather(
        refund(one, transfer(4), claim.call_id), two.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    )
    assert isinstance(refunded, CallsRefunded) != isinstance(reopened, Claimed)


def run_drop(connection: Connection, *, drop: Drop) -> Any:
    """The outcome of a batch of the gateway that ran the call."""
    owner_id = connection.scalar(select(call_table.c.owner_id).where(call_table.c.id == drop.call_id))
    rules = BatchRules(
        owner_id=str(owner_id),
        attempts_max=DEFAULT_LIMITS.attempts_max,
        unfinal_max_nano={},
        response_ttl_ms=1_000,
    )
    none: Any = frozenset()
    batch = LedgerBatch(
        connection,
        rules,
        now_ms=NOW_MS,
        ahead_ms=0,
        is_retry=False,
        others=none,
        retried=none,
        accounts=none,
        known_terms=KnownTerms(),
    )
    return batch.run([drop])[0]


@pytest.mark.parametrize("runs", [1, DEFAULT_LIMITS.attempts_max])
async def test_a_refunded_call_whose_response_is_dropped_keeps_its_charge(
    ledger: Any, pair: list[FaultyLedger], runs: int
) -> None:
    """The gateway did not learn that the end was committed, and the provider was faster."""
    claim = await cut(ledger)
    for epoch in range(1, runs):
        assert isinstance(await ledger.reopen(claim.call_id, epoch=epoch, now_ms=NOW_MS), Claimed)
        await ledger.close(close_of(claim, CallState.CONSUMED, epoch=epoch + 1, upstream_status=None))
    await refund(ledger, transfer(4), claim.call_id)
    before = await ledger.find_call(claim.call_id)
    dropped = close_of(claim, CallState.CONSUMED, epoch=runs, error=before.error)
    drop = Drop(call_id=claim.call_id, epoch=runs, close=dropped)
    assert await pair[0].database.write(partial(run_drop, drop=drop)) == Fenced()
    assert await ledger.find_call(claim.call_id) == before


async def test_the_audit_names_a_refund_of_a_call_that_is_not_charged(
    ledger: Any, pair: list[FaultyLedger]
) -> None:
    call_id = await charge(ledger)
    await refund(ledger, transfer(4), call_id)
    for state in CallState:
        changed = update(call_table).values(state=state.value)
        await pair[0].database.write(lambda c, changed=changed: c.execute(changed))
        is_named = any(f"the refund of call {call_id}" in line for line in (await ledger.audit()).wrong)
        assert is_named == (state not in (CallState.CONSUMED, CallState.REORGED)), state
    changed = update(call_table).values(state=CallState.CONSUMED.value)
    await pair[0].database.write(lambda c: c.execute(changed))
