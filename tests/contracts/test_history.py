"""The contract of `CallHistory`: the calls and payments of a wallet."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    PROVIDER,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    operator_origin,
    tx_hash,
    wait_finished,
)
from tests.kit.sql_ledger import SqlLedger
from tollway.ids import Address, CallId
from tollway.ledger.history import HistoryQuery, PaymentPlace, PaymentQuery
from tollway.ledger.records import CallState, Delivery, Payment, PaymentState, Rail
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database

STRANGER = Address(b"\x09" * 20)


async def pay(ledger: Any, name: str = "tx", **fields: Any) -> Any:
    (payment,) = await ledger.record_payments([new_payment(1000, name, **fields)], now_ms=NOW_MS)
    return payment


async def payments(ledger: Any, query: PaymentQuery) -> list[Payment]:
    return [one.payment for one in await ledger.read_payments(query)]


async def ids(ledger: Any, query: HistoryQuery) -> list[str]:
    return [call.id for call in (await ledger.history(query)).calls]


@pytest.fixture
async def calls(ledger: Any) -> dict[str, str]:
    """One call of each kind, oldest first; two of them in the same millisecond."""
    payment = await pay(ledger)
    unfinal = await pay(ledger, "unfinal", is_final=False)
    ends: list[tuple[str, CallState | None, dict[str, Any], dict[str, Any]]] = [
        ("running", None, {}, {}),
        ("good", CallState.CONSUMED, {"upstream_status": 204}, {"listing_id": "api_2"}),
        ("refused", CallState.CONSUMED, {"upstream_status": 404}, {}),
        ("released", CallState.RELEASED, {"upstream_status": 200}, {}),
        ("unknown", CallState.UNKNOWN, {"upstream_status": None}, {}),
        ("reorged", CallState.CONSUMED, {"upstream_status": 200}, {"payment_id": unfinal.id}),
    ]
    names = {}
    for number, (name, after, closing, claiming) in enumerate(ends):
        created_ms = NOW_MS + max(number, 1) * 10
        claim = claim_on(payment, 5, **{"created_ms": created_ms, "call_id": f"call_{number}", **claiming})
        await ledger.claim(claim)
        if after is not None:
            await ledger.close(close_of(claim, after, **closing))
        names[name] = claim.call_id
    await ledger.mark_gone(unfinal.id, now_ms=NOW_MS)
    stranger = await pay(ledger, "other", payer=STRANGER)
    await ledger.claim(claim_on(stranger, provider=PAYER))
    await ledger.claim(claim_on(None))
    return names


FILTERS = [
    ({}, ["reorged", "unknown", "released", "refused", "good", "running"]),
    ({"status": "pending"}, ["running"]),
    ({"status": "succeeded"}, ["reorged", "good"]),
    ({"status": "failed"}, ["released", "refused"]),
    ({"status": "unknown"}, ["unknown"]),
    ({"listing_id": "api_2"}, ["good"]),
    ({"listing_id": "api_3"}, []),
    ({"from_ms": NOW_MS + 40}, ["reorged", "unknown"]),
    ({"to_ms": NOW_MS + 10}, ["good", "running"]),
    ({"from_ms": NOW_MS + 20, "to_ms": NOW_MS + 20}, ["refused"]),
    ({"status": "failed", "to_ms": NOW_MS + 20}, ["refused"]),
]


async def test_filters_the_history(ledger: Any, calls: dict[str, str]) -> None:
    for wanted, expected in FILTERS:
        query = HistoryQuery(wallet=PAYER, **wanted)
        page = await ledger.history(query)
        assert [call.id for call in page.calls] == [calls[name] for name in expected], wanted
        assert (page.total, page.is_lower_bound) == (len(expected), False), wanted
        after = await ledger.history(replace(query, offset=len(expected) + 1))
        assert (after.calls, after.total) == ((), len(expected)), wanted


async def test_pages_by_offset_and_by_the_last_call_seen(ledger: Any, calls: dict[str, str]) -> None:
    query = HistoryQuery(wallet=PAYER, limit=2)
    everything = await ids(ledger, replace(query, limit=50))
    assert everything == sorted(calls.values(), reverse=True)
    assert await ids(ledger, query) == everything[:2]
    assert await ids(ledger, replace(query, offset=4)) == everything[4:]
    assert await ids(ledger, replace(query, offset=9)) == []
    assert (await ledger.history(replace(query, offset=9))).total == 6
    for number, call_id in enumerate(everything):
        page = await ledger.history(replace(query, before=call_id))
        assert [call.id for call in page.calls] == everything[number + 1 : number + 3]
        assert page.total == 6
    assert await ids(ledger, replace(query, before="call_nowhere")) == []


async def test_a_page_knows_the_place_of_the_newer_page(ledger: Any, calls: dict[str, str]) -> None:
    for wanted, expected in FILTERS:
        everything = [calls[name] for name in expected]
        for size in (1, 2, 3):
            for number, call_id in enumerate(everything):
                query = HistoryQuery(wallet=PAYER, limit=size, before=CallId(call_id), **wanted)
                place = await ledger.find_newer_place(query)
                assert place == (everything[number - size] if number >= size else None), query
    assert await ledger.find_newer_place(HistoryQuery(wallet=PAYER, before=CallId("call_nowhere"))) is None
    assert await ledger.find_newer_place(HistoryQuery(wallet=PAYER)) is None


async def test_a_provider_sees_the_calls_to_its_listings(ledger: Any, calls: dict[str, str]) -> None:
    provided = await ledger.history(HistoryQuery(wallet=PROVIDER, role="provider"))
    assert provided.total == 7  # all but the call of the other payer, which went to PAYER's own listing
    assert await ids(ledger, HistoryQuery(wallet=PROVIDER)) == []
    assert len(await ids(ledger, HistoryQuery(wallet=PAYER, role="provider"))) == 1
    assert len(await ids(ledger, HistoryQuery(wallet=STRANGER))) == 1


async def test_a_record_has_every_field_of_the_call(ledger: Any) -> None:
    payment = await pay(ledger)
    claim = claim_on(payment, 5, idempotency_key="k", method="POST", path="/a/b")
    await ledger.claim(claim)
    await ledger.close(close_of(claim, http_status=201, upstream_status=201, upstream_latency_ms=9))
    ledger.finish(finish_of(claim, delivery=Delivery.PARTIAL))
    await wait_finished(ledger, claim.call_id)
    record = await ledger.find_call(claim.call_id)
    assert (record.method, record.path, record.listing_name) == ("POST", "/a/b", "Quotes")
    assert (record.state, record.rail, record.delivery) == (CallState.CONSUMED, Rail.TX, Delivery.PARTIAL)
    assert (record.http_status, record.upstream_status, record.upstream_latency_ms) == (201, 201, 9)
    assert (record.price, record.price_units, record.currency, record.decimals) == ("0.01", 5, "USDC", 6)
    assert (record.chain_id, record.asset, record.tx_hash, record.pay_to) == (
        payment.chain_id,
        payment.asset,
        payment.tx_hash,
        payment.payee,
    )
    assert (record.request_bytes, record.response_bytes) == (3, 1000)
    assert (record.created_ms, record.completed_ms) == (claim.created_ms, NOW_MS + 50)
    assert (record.idempotency_key, record.request_id, record.error) == ("k", claim.request_id, None)
    assert await ledger.find_call("call_nowhere") is None


async def test_a_free_call_has_no_payment_in_its_record(ledger: Any) -> None:
    claim = claim_on(None)
    await ledger.claim(claim)
    record = await ledger.find_call(claim.call_id)
    assert (record.payer, record.asset, record.tx_hash, record.chain_id, record.pay_to) == (None,) * 5
    assert (record.rail, record.price_units) == (Rail.NONE, 0)


async def test_lists_the_payments_of_a_wallet_newest_first(ledger: Any) -> None:
    old = await pay(ledger, "old", block_time=1)
    new = await pay(ledger, "new", block_time=3)
    middle = await pay(ledger, "middle", block_time=2)
    stranger = await pay(ledger, "new", payer=STRANGER)
    assert await payments(ledger, PaymentQuery(wallet=PAYER)) == [new, middle, old]
    assert await payments(ledger, PaymentQuery(wallet=PAYER, limit=1, offset=1)) == [middle]
    assert await ledger.payments_in(PAYER, tx_hash("new")) == (new,)
    assert await ledger.payments_in(STRANGER, tx_hash("new")) == (stranger,)
    assert await ledger.payments_in(STRANGER, tx_hash("old")) == ()


async def test_pages_payments_by_the_place_of_the_last_one(ledger: Any) -> None:
    """Two of them are in one transaction; one payment was recorded too late for the set."""
    for name, block_time, payee in (
        ("a", 1, PROVIDER),
        ("b", 2, PROVIDER),
        ("b", 2, STRANGER),
        ("c", 3, PROVIDER),
    ):
        await pay(ledger, name, block_time=block_time, payee=payee)
    later = NOW_MS + 5
    await ledger.record_payments([new_payment(9, "late", block_time=2)], now_ms=later)
    query = PaymentQuery(wallet=PAYER, to_ms=later - 1)
    everything = await payments(ledger, query)
    assert [one.tx_hash for one in everything] == [tx_hash(name) for name in "cbba"]
    for number in range(1, 4):
        last = await ledger.find_last_payment(replace(query, limit=number))
        assert last.payment == everything[number - 1]
        place = PaymentPlace.parse(str(last.place))
        assert place == last.place
        assert await payments(ledger, replace(query, before=place)) == everything[number:]
        assert await payments(ledger, replace(query, after=last.payment)) == everything[number:]
    assert await ledger.find_last_payment(replace(query, limit=4)) is None
    places = [(await ledger.find_last_payment(replace(query, limit=number))).place for number in range(1, 4)]
    for size in (1, 2, 3):
        for number, place in enumerate(places):
            newer = await ledger.find_newer_payment_place(replace(query, before=place, limit=size))
            assert newer == (places[number - size] if number >= size else None)
    assert await ledger.find_newer_payment_place(query) is None
    whole = PaymentPlace(tx_hash=tx_hash("b"))
    assert await payments(ledger, replace(query, before=whole)) == everything[3:]
    for nowhere in (PaymentPlace(tx_hash=tx_hash("b"), number=2), PaymentPlace(tx_hash=tx_hash("x"))):
        assert await payments(ledger, replace(query, before=nowhere)) == []
    assert len(await payments(ledger, PaymentQuery(wallet=PAYER, from_ms=later))) == 1


async def test_a_payee_lists_the_payments_that_it_received(ledger: Any) -> None:
    mine = await pay(ledger, "mine", payee=PROVIDER)
    await pay(ledger, "other", payee=STRANGER)
    assert await payments(ledger, PaymentQuery(wallet=PROVIDER, role="provider")) == [mine]
    assert await payments(ledger, PaymentQuery(wallet=PROVIDER)) == []


async def test_a_listed_payment_says_why_it_is_held(ledger: Any) -> None:
    payment = await pay(ledger)
    claim = claim_on(payment, 5)
    await ledger.claim(claim)
    await ledger.close(close_of(claim, CallState.UNKNOWN, upstream_status=None))
    (listed,) = await ledger.read_payments(PaymentQuery(wallet=PAYER))
    assert (listed.has_unknown_call, listed.is_restored, listed.recorded_ms) == (True, False, NOW_MS)
    await ledger.mark_restored(origin=operator_origin())
    (listed,) = await ledger.read_payments(PaymentQuery(wallet=PAYER))
    assert (listed.has_unknown_call, listed.is_restored) == (True, True)
    assert listed.payment.state is PaymentState.FINAL


async def test_the_last_call_of_a_page_is_known_before_its_rows_are_read(
    ledger: Any, calls: dict[str, str]
) -> None:
    for wanted, expected in FILTERS:
        query = HistoryQuery(wallet=PAYER, **wanted)
        everything = [calls[name] for name in expected]
        for number in range(1, len(everything)):
            last = await ledger.find_last_call(replace(query, limit=number))
            assert last.id == everything[number - 1], wanted
        if everything:
            assert await ledger.find_last_call(replace(query, limit=len(everything))) is None, wanted
        assert [one.id for one in await ledger.read_calls(query)] == everything, wanted


async def test_a_filtered_total_stops_at_ten_thousand(database: Database) -> None:
    """SQL only: the model in memory counts a list."""
    told = {"provider": PAYER, "state": "released"}
    first = call_record_row(1, created_ms=1, **told)
    same = (
        "terms_id, listing_key, provider, payer, path, digest, state, rail, price_units, taken_units, request_id, owner_id, epoch,"
        " attempts, cut, clock_releases, moved_ms"
    )
    others = text(
        f"INSERT INTO call (id, created_ms, {same})"
        " WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 10005)"
        f" SELECT 'call_' || i, i, {same} FROM n, call WHERE call.id = 'call_1'"
    )

    def write(connection: Connection) -> None:
        insert_calls(connection, [first])
        connection.execute(others)

    await database.write(write)
    ledger = SqlLedger(database, owner_id="one", now_ms=lambda: NOW_MS)
    page = await ledger.history(HistoryQuery(wallet=PAYER, limit=2))
    assert (page.total, page.is_lower_bound, len(page.calls)) == (10_005, False, 2)
    page = await ledger.history(HistoryQuery(wallet=PAYER, limit=2, status="failed"))
    assert (page.total, page.is_lower_bound, len(page.calls)) == (10_000, True, 2)
    page = await ledger.history(HistoryQuery(wallet=PAYER, limit=2, from_ms=6))
    assert (page.total, page.is_lower_bound) == (10_000, False)


async def test_an_unknown_call_names_the_time_that_releases_it(ledger: Any, calls: dict[str, str]) -> None:
    found = {call.id: call.held_until_ms for call in (await ledger.history(HistoryQuery(wallet=PAYER))).calls}
    unknown = await ledger.find_call(calls["unknown"])
    released_ms = found.pop(calls["unknown"])
    assert released_ms == unknown.held_until_ms
    assert (
        0 <= released_ms - DEFAULT_LIMITS.unknown_hold_s * 1000 - NOW_MS <= 60_000
    )  # since its state is unknown
    assert set(found.values()) == {None}
