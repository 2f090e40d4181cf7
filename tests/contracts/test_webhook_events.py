"""The events of webhooks in the transactions that make them true, on SQLite and on PostgreSQL: which move is which event, for which wallet."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.kit.ledger_records import (
    NOW_MS,
    PAYEE,
    PAYER,
    PROVIDER,
    attempt_of,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    transfer_in,
    wait_finished,
)
from tests.kit.sql_ledger import SqlLedger
from tests.kit.webhooks import WebhookHarness
from tollway.ids import Address
from tollway.ledger.records import CallState, RecordedTransaction, Usage
from tollway.money import Price
from tollway.registry.metering import (
    Measured,
    MeteredPart,
    Metering,
    QuantitySource,
    write_formulas,
    write_measured,
)
from tollway.storage.engine.database import Database
from tollway.storage.webhooks.webhook_events import STALE_S, EventLog
from tollway.webhooks.events import EventType

STRANGER = Address(b"\x99" * 20)
HELD = {"http_status": 504, "upstream_status": None, "error": "upstream_timeout"}


class Ledger:
    """The ledger of one gateway and its webhooks."""

    def __init__(self, database: Database) -> None:
        self.webhooks = WebhookHarness(database)
        self.books: Any = SqlLedger(
            database,
            owner_id="one",
            now_ms=self.webhooks.read_now_ms,
            shared_clock=lambda connection, now_ms: self.webhooks.now_ms,
            events=self.webhooks.events,
        )

    async def pay(self, name: str = "tx", **fields: Any) -> Any:
        (payment,) = await self.books.record_payments(
            [new_payment(100, name, **fields)], now_ms=self.webhooks.now_ms
        )
        return payment

    async def claim(self, payment: Any, **fields: Any) -> Any:
        claim = claim_on(payment, **fields)
        claimed = await self.books.claim(claim)
        assert claimed.epoch == 1
        return claim

    async def open_call(self, **fields: Any) -> Any:
        """A claim on a new payment, whose credit is taken."""
        claim = await self.claim(await self.pay(), **fields)
        await self.take()
        return claim

    async def take(self) -> list[tuple[str, Address, str | None]]:
        """The events since the last look: type, wallet, state."""
        found = [
            (event.type, Address(event.wallet), event.state) for event in await self.webhooks.new_events()
        ]
        await self.webhooks.outbox.spread_events()
        return sorted(found)


@contextlib.asynccontextmanager
async def open_ledger(database: Database) -> AsyncIterator[Ledger]:
    it = Ledger(database)
    await it.webhooks.store.refresh()
    writing = asyncio.get_running_loop().create_task(it.books.run())
    await it.books.open()
    try:
        yield it
    finally:
        it.books.stop()
        await writing


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[Ledger]:
    async with open_ledger(database) as it:
        yield it


def ends(claim: Any, after: CallState = CallState.CONSUMED, **fields: Any) -> Any:
    return close_of(claim, after, provider=claim.provider, payer=claim.payer, **fields)


async def charge(ledger: Ledger) -> None:
    claim = await ledger.open_call()
    await ledger.books.close(ends(claim))


async def charge_without_a_plain_end(ledger: Ledger) -> None:
    """No statement of plain ends takes this one, so the batch locks the rows of the call."""
    claim = await ledger.open_call()
    await ledger.books.close(ends(claim, upstream_status=None))


FORMULA = Metering(
    base=Price.parse("0"),
    absent="max",
    shows_header=True,
    parts=(MeteredPart(unit="byte", unit_price_atto=10**12, per=1, source=QuantitySource(is_bytes=True)),),
)


async def charge_a_metered_call(ledger: Ledger) -> None:
    """The head makes no event: the price is not known yet."""
    metering = write_formulas((FORMULA,))
    claim = await ledger.open_call(price_units=9, metering=metering)
    await ledger.books.close(ends(claim, is_metered=True))
    assert await ledger.take() == []
    usage = Usage(actual_units=4, quantities=write_measured(Measured(((4,),))))
    ledger.books.finish(finish_of(claim, usage=usage))
    await wait_finished(ledger.books, claim.call_id)


async def charge_the_repeat_of_a_metered_call(ledger: Ledger) -> None:
    """The response of the first run was dropped before it had a price, so its charge made no event."""
    metering = write_formulas((FORMULA,))
    claim = await ledger.open_call(price_units=9, metering=metering)
    await ledger.books.close(ends(claim, is_metered=True))
    await ledger.books.finish_cut(finish_of(claim, is_cut=True))
    assert await ledger.books.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    assert await ledger.take() == []
    usage = Usage(actual_units=4, quantities=write_measured(Measured(((4,),))))
    await ledger.books.close(
        ends(claim, epoch=2, is_metered=True, finish=finish_of(claim, epoch=2, usage=usage))
    )


async def release(ledger: Ledger) -> None:
    claim = await ledger.open_call()
    await ledger.books.close(ends(claim, CallState.RELEASED, upstream_status=500))


async def hold(ledger: Ledger) -> Any:
    claim = await ledger.open_call()
    await ledger.books.close(ends(claim, CallState.UNKNOWN, **HELD))
    return claim


async def hold_and_take(ledger: Ledger) -> Any:
    claim = await hold(ledger)
    await ledger.take()
    return claim


async def resolve_as(ledger: Ledger, after: CallState) -> None:
    claim = await hold_and_take(ledger)
    assert await ledger.books.resolve(claim.call_id, after, now_ms=ledger.webhooks.now_ms)


async def release_by_the_clock(ledger: Ledger) -> None:
    await hold_and_take(ledger)
    ledger.webhooks.now_ms += 25 * 3_600_000
    await ledger.books.renew_ownership(now_ms=ledger.webhooks.now_ms)
    assert await ledger.books.recover(now_ms=ledger.webhooks.now_ms) == 1


async def charge_a_repeat(ledger: Ledger) -> None:
    claim = await hold_and_take(ledger)
    assert await ledger.books.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    await ledger.books.close(ends(claim, epoch=2))


async def release_a_repeat(ledger: Ledger) -> None:
    claim = await hold_and_take(ledger)
    assert await ledger.books.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    await ledger.books.close(ends(claim, CallState.RELEASED, epoch=2, upstream_status=500))


async def settle(ledger: Ledger) -> None:
    claim = authorized_claim(authorization_of(10))
    await ledger.books.claim(claim)
    close = ends(claim, CallState.SETTLING)
    await ledger.books.settle(close, attempt=attempt_of(claim), digest=None)
    await ledger.take()
    await ledger.books.conclude(
        claim.call_id, epoch=1, transfer=transfer_in(), is_orphaned=False, now_ms=ledger.webhooks.now_ms
    )


async def charge_by_authorisation(ledger: Ledger, *, is_moved: bool = True) -> None:
    """The provider charges a held call, and settlement recovery ends it."""
    claim = authorized_claim(authorization_of(10))
    await ledger.books.claim(claim)
    await ledger.books.close(ends(claim, CallState.UNKNOWN, **HELD))
    await ledger.take()
    moved = await ledger.books.resolve(claim.call_id, CallState.CONSUMED, now_ms=ledger.webhooks.now_ms)
    assert moved is CallState.SETTLING
    assert await ledger.take() == []
    transfer = transfer_in() if is_moved else None
    await ledger.books.conclude(
        claim.call_id, epoch=1, transfer=transfer, is_orphaned=True, now_ms=ledger.webhooks.now_ms
    )


async def charge_what_cannot_settle(ledger: Ledger) -> None:
    await charge_by_authorisation(ledger, is_moved=False)


async def credit(ledger: Ledger) -> None:
    await ledger.pay()


async def credit_twice(ledger: Ledger) -> None:
    await ledger.pay()
    await ledger.take()
    await ledger.pay()


async def reorg(ledger: Ledger) -> None:
    payment = await ledger.pay(is_final=False)
    claim = await ledger.claim(payment)
    await ledger.books.close(ends(claim))
    await ledger.take()
    await ledger.books.mark_gone(payment.id, now_ms=ledger.webhooks.now_ms)


async def call_free(ledger: Ledger) -> None:
    claim = await ledger.claim(None, payer=PAYER)
    await ledger.books.close(ends(claim))


CHARGED, HELD_TYPE, RESOLVED = EventType.CALL_CHARGED, EventType.CALL_HELD, EventType.CALL_RESOLVED
CREDITED, REORGED = EventType.PAYMENT_CREDITED, EventType.PAYMENT_REORGED

MOVES: dict[Callable[[Ledger], Awaitable[Any]], list[tuple[str, str | None]]] = {
    charge: [(CHARGED, "consumed")],
    charge_without_a_plain_end: [(CHARGED, "consumed")],
    charge_a_metered_call: [(CHARGED, "consumed")],
    charge_the_repeat_of_a_metered_call: [(CHARGED, "consumed")],
    release: [],
    hold: [(HELD_TYPE, "unknown")],
    release_by_the_clock: [(RESOLVED, "released")],
    charge_by_authorisation: [(RESOLVED, "consumed")],
    charge_what_cannot_settle: [(RESOLVED, "released")],
    charge_a_repeat: [(CHARGED, "consumed")],
    release_a_repeat: [(RESOLVED, "released")],
    settle: [(CHARGED, "consumed")],
    call_free: [],
}


@pytest.mark.parametrize(("move", "expected"), MOVES.items(), ids=lambda one: getattr(one, "__name__", ""))
@pytest.mark.parametrize("wallet", [PROVIDER, PAYER], ids=("provider", "payer"))
async def test_a_move_of_a_call_is_one_event_of_its_wallets(
    ledger: Ledger, move: Callable[[Ledger], Awaitable[Any]], expected: list[tuple[str, str]], wallet: Address
) -> None:
    calls = (CHARGED, HELD_TYPE, RESOLVED)
    await ledger.webhooks.activate(wallet, types=calls)
    await move(ledger)
    assert await ledger.take() == [(kind, wallet, state) for kind, state in expected]


@pytest.mark.parametrize("after", [CallState.CONSUMED, CallState.RELEASED])
async def test_a_provider_that_decides_a_held_call_resolves_it(ledger: Ledger, after: CallState) -> None:
    await ledger.webhooks.activate()
    await resolve_as(ledger, after)
    assert await ledger.take() == [(RESOLVED, PROVIDER, after.value)]


@pytest.mark.parametrize("wallet", [PAYEE, PAYER], ids=("payee", "payer"))
@pytest.mark.parametrize(
    ("move", "expected"),
    [(credit, [(CREDITED, "final")]), (credit_twice, []), (reorg, [(REORGED, "gone")])],
    ids=("credit", "credit_twice", "reorg"),
)
async def test_a_payment_is_one_event_of_its_payee_and_its_payer(
    ledger: Ledger,
    move: Callable[[Ledger], Awaitable[None]],
    expected: list[tuple[str, str]],
    wallet: Address,
) -> None:
    await ledger.webhooks.activate(wallet, types=(CREDITED, REORGED))
    await move(ledger)
    assert await ledger.take() == [(kind, wallet, state) for kind, state in expected]


@pytest.mark.parametrize("move", [charge, hold, reorg], ids=lambda one: one.__name__)
async def test_a_wallet_without_an_endpoint_of_that_type_has_no_row(
    ledger: Ledger, move: Callable[[Ledger], Awaitable[Any]]
) -> None:
    await ledger.webhooks.activate(STRANGER)
    await ledger.webhooks.activate(PROVIDER, types=(EventType.LISTING_DOWN,))
    await move(ledger)
    assert await ledger.take() == []


async def test_both_wallets_of_a_call_have_an_event_with_an_id_of_its_own(ledger: Ledger) -> None:
    for wallet in (PROVIDER, PAYER):
        await ledger.webhooks.activate(wallet, types=(CHARGED,))
    await charge(ledger)
    first, second = await ledger.webhooks.new_events()
    assert first.id != second.id
    assert {Address(first.wallet), Address(second.wallet)} == {PROVIDER, PAYER}


async def charge_many(ledger: Ledger) -> list[Any]:
    payment = await ledger.pay()
    claims = await asyncio.gather(*(ledger.claim(payment) for _ in range(12)))
    await asyncio.gather(*(ledger.books.close(ends(claim)) for claim in claims))
    return claims


async def test_many_ends_of_one_batch_have_an_event_each(ledger: Ledger) -> None:
    await ledger.webhooks.activate(types=(CHARGED,))
    claims = await charge_many(ledger)
    events = await ledger.webhooks.new_events()
    assert sorted(event.subject for event in events) == sorted(claim.call_id for claim in claims)


async def test_a_fenced_end_has_no_event(ledger: Ledger) -> None:
    await ledger.webhooks.activate(types=(CHARGED,))
    claim = await ledger.claim(await ledger.pay())
    await ledger.books.close(ends(claim, epoch=7))
    assert await ledger.take() == []


@pytest.mark.parametrize("move", [charge, charge_many, hold, credit], ids=lambda one: one.__name__)
async def test_a_gateway_that_has_not_read_the_endpoints_lately_writes_events_of_active_endpoints_only(
    ledger: Ledger, move: Callable[[Ledger], Awaitable[Any]]
) -> None:
    other = WebhookHarness(ledger.webhooks.database)
    for wallet in (PROVIDER, PAYEE):
        await other.activate(wallet)  # this gateway does not know them
    ledger.webhooks.now_ms = other.now_ms
    ledger.webhooks.clock.s += STALE_S + 1
    await move(ledger)
    assert {wallet for _, wallet, _ in await ledger.take()} <= {PROVIDER, PAYEE}
    assert await ledger.webhooks.deliveries() != []


async def test_a_gateway_that_has_not_read_the_endpoints_lately_writes_no_event_without_an_endpoint(
    ledger: Ledger,
) -> None:
    await ledger.webhooks.register(PROVIDER)
    ledger.webhooks.clock.s += STALE_S + 1
    await charge_many(ledger)
    await hold(ledger)
    assert await ledger.webhooks.new_events() == []


def test_a_log_that_was_never_filled_is_not_idle() -> None:
    assert not EventLog(clock=lambda: 0.0).is_idle


async def test_a_refund_has_an_event_of_each_wallet_when_it_counts_and_when_it_does_not(
    ledger: Ledger,
) -> None:
    """Once for a repeat; again where a reorganisation takes it back, and where it returns. Each names the refund."""
    kinds = (EventType.CALL_REFUNDED, EventType.CALL_REFUND_REVERSED)
    endpoints = [await ledger.webhooks.activate(wallet, types=kinds) for wallet in (PROVIDER, PAYER)]
    claim = await ledger.open_call(price_units=4)
    await ledger.books.close(ends(claim))
    ledger.webhooks.now_ms += 60_000  # the endpoints are active by then
    transfer = new_payment(3, "refund", payer=PAYEE, payee=PAYER, is_final=False)
    unseen = RecordedTransaction(payments=(), is_admitted=False, held_before_ms=None)

    async def refund() -> None:
        await ledger.books.record_refund(
            transfer, [claim.call_id], based_on=unseen, now_ms=ledger.webhooks.now_ms
        )

    async def take_back() -> None:
        (payment,) = await ledger.books.find_payments(transfer.tx_hash)
        await ledger.books.mark_gone(payment.id, now_ms=ledger.webhooks.now_ms)

    async def mine_again() -> None:
        await ledger.books.record_payments([transfer], now_ms=ledger.webhooks.now_ms)

    for move, (kind, state) in (
        (refund, ("call.refunded", "refunded")),
        (take_back, ("call.refund_reversed", "reversed")),
        (mine_again, ("call.refunded", "refunded")),
        (take_back, ("call.refund_reversed", "reversed")),
        (refund, ("call.refunded", "refunded")),
    ):
        for _ in range(2):
            await move()
        assert await ledger.take() == sorted((kind, wallet, state) for wallet in (PROVIDER, PAYER))
    for endpoint in endpoints:
        message = json.loads((await ledger.webhooks.begin(endpoint)).body)
        parts = message["data"]["events"]
        assert [one["type"] for one in parts] == [
            *("call.refunded", "call.refund_reversed") * 2,
            "call.refunded",
        ]
        for one in parts:
            assert one["data"]["callId"] == claim.call_id
            assert one["data"]["payment"]["state"] == "charged"
            assert one["data"]["refund"] == {
                "amount": "3",
                "transaction": str(transfer.tx_hash),
                "isCredit": False,
            }
