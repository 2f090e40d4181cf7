"""The terms of calls: written once with their first call, known after its commit, shared by all gateways, on both databases."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, delete, event, func, select, text
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from tests.kit.ledger_records import NOW_MS, PAYEE, PAYER, claim_on, close_of, new_payment
from tests.kit.sql_ledger import SqlLedger
from tests.kit.storage_faults import FaultyLedger
from tollway.errors import StorageUnavailable
from tollway.ids import CallId, ListingId
from tollway.ledger.history import HistoryQuery
from tollway.ledger.ledger import Claimed
from tollway.storage.engine.database import Database
from tollway.storage.engine.outage import ValueRefused
from tollway.storage.ledger.call_terms import (
    CallTerms,
    KnownTerms,
    TermsReference,
    reference_of,
    terms_of,
    write_terms,
)
from tollway.storage.ledger.ledger_tables import call_table, call_terms_table

TERMS = terms_of(claim_on(None))


@pytest.fixture
def ledger(faulty_ledger: FaultyLedger) -> FaultyLedger:
    return faulty_ledger


async def count_terms(database: Database) -> int:
    query = select(func.count()).select_from(call_terms_table)
    return await database.read(lambda connection: connection.scalar(query) or 0)


async def test_calls_that_share_everything_share_one_row_and_every_difference_makes_another(
    ledger: FaultyLedger, database: Database
) -> None:
    payment = await ledger.pay(100)
    for _ in range(3):
        assert isinstance(await ledger.ledger.claim(claim_on(payment)), Claimed)
    assert await count_terms(database) == 1
    changes: list[dict[str, Any]] = [
        {"listing_id": ListingId("api_2")},
        {"listing_name": "Quotes, renamed"},
        {"method": "POST"},
        {"price": "0.02"},
        {"currency": "EURC"},
        {"decimals": 18},
    ]
    claims = [claim_on(payment, **change) for change in changes]
    await asyncio.gather(*(ledger.ledger.claim(claim) for claim in claims))
    assert await count_terms(database) == 1 + len(changes)
    for claim in claims:
        record = await ledger.ledger.find_call(claim.call_id)
        names = ("listing_id", "listing_name", "method", "price", "currency", "decimals", "pay_to", "asset")
        assert [getattr(record, name) for name in names] == [getattr(claim, name) for name in names]


async def test_a_free_call_and_a_paid_one_have_terms_of_their_own(
    ledger: FaultyLedger, database: Database
) -> None:
    free, paid = claim_on(None), claim_on(await ledger.pay(10))
    for claim in (free, paid):
        await ledger.ledger.claim(claim)
    records = [await ledger.ledger.find_call(claim.call_id) for claim in (free, paid)]
    assert [(record.chain_id, record.asset, record.pay_to, record.tx_hash) for record in records] == [
        (None, None, None, None),
        (paid.chain_id, paid.asset, PAYEE, paid.tx_hash),
    ]
    assert await count_terms(database) == 2


async def test_terms_are_written_once_and_then_known(ledger: FaultyLedger, database: Any) -> None:
    payment = await ledger.pay(100)
    heard: list[str] = []
    engine = getattr(database, "_write_engine", None) or database._engine
    engine = getattr(engine, "sync_engine", engine)
    event.listen(engine, "before_cursor_execute", lambda _c, _u, sql, *_: heard.append(sql))
    for _ in range(3):
        await ledger.ledger.claim(claim_on(payment))
    assert sum("call_terms" in sql and sql.startswith("INSERT") for sql in heard) == 1


async def test_known_terms_that_the_database_has_lost_are_written_again(
    ledger: FaultyLedger, database: Database
) -> None:
    """As after a restore of the database while this gateway runs."""
    payment = await ledger.pay(100)
    for _ in range(2):  # its sessions are open, so they do not check for a restore
        first = claim_on(payment)
        await ledger.ledger.claim(first)
        await ledger.ledger.close(close_of(first))

    def lose(connection: Connection) -> None:
        connection.execute(delete(call_table))
        connection.execute(delete(call_terms_table))
        connection.execute(text("UPDATE payment SET taken_units = 0"))

    await database.write(lose)
    claim = claim_on(payment)
    assert isinstance(await ledger.ledger.claim(claim), Claimed)
    assert (await ledger.ledger.find_call(claim.call_id)).listing_id == claim.listing_id


class RolledBackOnce:
    """A database that rolls back the first write of a call at its end, as PostgreSQL rolls back one of two
    transactions in a deadlock."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.rolled_back = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, work: Any, **options: Any) -> Any:
        def run(connection: Connection) -> Any:
            outcome = work(connection)
            if not self.rolled_back and connection.scalar(select(func.count()).select_from(call_table)):
                self.rolled_back += 1
                raise Deadlock
            return outcome

        try:
            return await self._database.write(run, **options)
        except Deadlock:
            raise StorageUnavailable from DBAPIError("", None, SqlState("40P01"))


class Deadlock(Exception):
    pass


class SqlState(Exception):
    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate
        super().__init__(sqlstate)


async def test_terms_of_a_transaction_that_was_rolled_back_are_not_known(database: Database) -> None:
    behind = RolledBackOnce(database)
    ledger = FaultyLedger(behind)  # type: ignore[arg-type]  # it stands in for a database
    await ledger.ledger.open()
    payment = await ledger.pay(100)
    with capture_logs() as logs:
        assert isinstance(await ledger.ledger.claim(claim_on(payment)), Claimed)
    assert (behind.rolled_back, logs) == (
        1,
        [],
    )  # a call without its terms would be rolled back and tried again
    assert await count_terms(database) == 1
    await ledger.close()


async def test_two_gateways_write_the_same_terms_at_once(database: Database) -> None:
    gateways = [FaultyLedger(database, name) for name in ("one", "two")]
    payments = []
    for number, gateway in enumerate(gateways):
        await gateway.ledger.open()
        payments.append(await gateway.pay(100, f"tx {number}"))
    for round_ in range(5):
        claims = [
            claim_on(payments[number], price=f"0.{round_}{price}") for number in (0, 1) for price in (1, 2, 3)
        ]
        outcomes = await asyncio.gather(
            *(gateways[place // 3].ledger.claim(claim) for place, claim in enumerate(claims))
        )
        assert all(isinstance(outcome, Claimed) for outcome in outcomes)
    assert await count_terms(database) == 15
    for gateway in gateways:
        await gateway.close()


async def test_other_terms_with_the_same_id_are_refused(database: Database) -> None:
    def write(connection: Connection, terms: CallTerms) -> None:
        write_terms(connection, [terms], lambda one: TermsReference(1, 2))

    await database.write(lambda connection: write(connection, TERMS))
    await database.write(lambda connection: write(connection, TERMS))
    with pytest.raises(ValueRefused, match="same id"):
        await database.write(lambda connection: write(connection, TERMS._replace(price="1000")))
    assert await count_terms(database) == 1


def test_an_id_depends_on_every_part_and_on_nothing_else() -> None:
    """A gateway of another release or machine computes the same id, because tables contain it."""
    assert reference_of(TERMS) == TermsReference(1908357035066106454, 1308935768163801860)
    changes: dict[str, Any] = {
        "listing_id": "api_2",
        "listing_name": "",
        "method": "PUT",
        "price": "0.1",
        "currency": "usdc",
        "chain_id": 1,
        "asset": "native",
        "decimals": 0,
        "pay_to": PAYEE,
        "metering": "[]",
    }
    assert set(changes) == set(CallTerms._fields)
    others = {reference_of(TERMS._replace(**{name: value})).terms_id for name, value in changes.items()}
    assert len(others | {reference_of(TERMS).terms_id}) == len(changes) + 1


def test_known_terms_have_a_maximum() -> None:
    known = KnownTerms(at_most=3)
    terms = [TERMS._replace(price=str(price)) for price in range(5)]
    for one in terms:
        known.remember({one: reference_of(one)})
    assert [known.find(one) is not None for one in terms] == [False, False, True, True, True]
    known.forget()
    assert not any(map(known.find, terms))


async def test_calls_of_one_millisecond_are_ordered_by_their_ids_on_every_page(database: Database) -> None:
    ledger: Any = SqlLedger(database, owner_id="one", now_ms=lambda: NOW_MS)
    writing = asyncio.get_running_loop().create_task(ledger.run())
    await ledger.open()
    (payment,) = await ledger.record_payments([new_payment(100)], now_ms=NOW_MS)
    for number in (5, 3, 8, 1, 7, 2, 6, 4, 9):
        created_ms = NOW_MS + (number > 2) + (number > 7)
        await ledger.claim(claim_on(payment, call_id=CallId(f"call_{number}"), created_ms=created_ms))
    expected = [f"call_{number}" for number in range(9, 0, -1)]
    for size in (1, 2, 3, 4, 100):
        by_offset: list[str] = []
        while len(by_offset) < len(expected):
            query = HistoryQuery(wallet=PAYER, limit=size, offset=len(by_offset))
            by_offset += [call.id for call in (await ledger.history(query)).calls]
        by_cursor = [call.id for call in (await ledger.history(HistoryQuery(wallet=PAYER, limit=size))).calls]
        while len(by_cursor) < len(expected):
            query = HistoryQuery(wallet=PAYER, limit=size, before=CallId(by_cursor[-1]))
            by_cursor += [call.id for call in (await ledger.history(query)).calls]
        assert (by_offset, by_cursor) == (expected, expected)
    for status, total in ((None, 9), ("succeeded", 0), ("failed", 0), ("unknown", 0), ("pending", 9)):
        query = HistoryQuery(wallet=PAYER, limit=5, offset=50, status=status)  # type: ignore[arg-type]
        beyond = await ledger.history(query)
        assert (beyond.calls, beyond.total) == ((), total)
    ledger.stop()
    await writing
