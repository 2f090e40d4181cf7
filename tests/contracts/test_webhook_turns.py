"""The order of due endpoints, by index on both databases, and the rows that events of many endpoints cost."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, insert

from tests.kit.ledger_records import NOW_MS, PAYER, PROVIDER, new_payment
from tests.kit.query_plans import as_if_large, plans_of, settle_down
from tests.kit.webhooks import WebhookHarness
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database
from tollway.storage.ledger.payments import PaymentLedgerStore
from tollway.storage.webhooks import webhook_outbox
from tollway.storage.webhooks.webhook_tables import delivery_table, endpoint_table, event_table, message_table
from tollway.storage.webhooks.webhook_turns import find_challenged, find_sending
from tollway.webhooks.endpoints import NONE_TAKEN, Taken
from tollway.webhooks.events import EventType
from tollway.webhooks.schedule import Response

CREDITED = EventType.PAYMENT_CREDITED
LIMIT = 256


@pytest.fixture
async def webhooks(database: Database) -> WebhookHarness:
    """With one payment, which every event is about."""
    await PaymentLedgerStore(database).record_payments([new_payment(100)], now_ms=NOW_MS)
    return WebhookHarness(database)


def wallet(number: int) -> Address:
    return Address(number.to_bytes(20, "big"))


async def register(webhooks: WebhookHarness, owner: int, number: int = 0, **fields: Any) -> None:
    """An unconfirmed endpoint `owner.number`, of an origin and a network of its own."""
    name = f"{owner}.{number}"
    place = {"id": name, "origin": f"https://{name}.example", "network": f"network of {name}"}
    await webhooks.register(wallet(owner), url=f"https://{name}.example/", **{**place, **fields})


async def find(webhooks: WebhookHarness, *, limit: int = LIMIT, **taken: Any) -> list[str]:
    due = await webhooks.outbox.find_challenges(
        now_ms=webhooks.now_ms, limit=limit, taken=Taken(**taken) if taken else NONE_TAKEN
    )
    return [one.endpoint_id for one in due]


async def test_wallets_have_turns_and_their_longest_waiting_endpoint_is_first(
    webhooks: WebhookHarness,
) -> None:
    for number in range(3):
        await register(webhooks, 1, number, created_ms=NOW_MS - number)
    await register(webhooks, 2)
    await register(webhooks, 3, created_ms=NOW_MS + 1)  # not due yet
    assert await find(webhooks) == ["1.2", "2.0", "1.1", "1.0"]
    assert await find(webhooks, limit=2) == ["1.2", "2.0"]


async def test_the_turns_go_on_behind_the_wallet_at_which_the_last_round_ended(
    webhooks: WebhookHarness,
) -> None:
    for owner in (1, 2, 3):
        await register(webhooks, owner)
    assert await find(webhooks, after=wallet(1)) == ["2.0", "3.0", "1.0"]
    assert await find(webhooks, after=wallet(3)) == ["1.0", "2.0", "3.0"]


async def test_a_slow_endpoint_is_behind_the_others(webhooks: WebhookHarness) -> None:
    for owner in (1, 2):
        for number in range(2):
            await register(webhooks, owner, number)
    (slow,) = [one for one in await webhooks.store.list_of(wallet(1)) if one.id == "1.0"]
    await webhooks.set_endpoint(slow, is_slow=True)
    assert await find(webhooks) == ["1.1", "2.0", "2.1", "1.0"]


@pytest.mark.parametrize(
    ("shared", "most"),
    [
        ({"owner": 1}, DEFAULT_LIMITS.webhook_in_flight_per_wallet_max),
        ({"origin": "https://one.example"}, DEFAULT_LIMITS.webhook_in_flight_per_origin_max),
        ({"network": "one network"}, DEFAULT_LIMITS.webhook_in_flight_per_address_max),
    ],
    ids=("wallet", "origin", "network"),
)
async def test_no_more_rows_are_returned_than_may_run_at_once(
    webhooks: WebhookHarness, shared: dict[str, Any], most: int
) -> None:
    for number in range(10):
        fields = {"owner": 10 + number, "number": number, **shared}
        await register(webhooks, **fields)
    assert len(await find(webhooks)) == most


async def test_what_has_no_free_slot_is_left_out(webhooks: WebhookHarness) -> None:
    for owner in (1, 2):
        await register(webhooks, owner)
    assert await find(webhooks, origins=frozenset({"https://1.0.example"})) == ["2.0"]
    assert await find(webhooks, wallets=frozenset({wallet(1)})) == ["2.0"]
    assert await find(webhooks, networks=frozenset({"network of 1.0"})) == ["2.0"]


async def test_an_endpoint_is_due_while_it_has_something_to_send(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()

    async def is_due() -> bool:
        found = await webhooks.outbox.find_due(now_ms=webhooks.now_ms, limit=LIMIT)
        assert bool(found) is await webhooks.outbox.has_work(now_ms=webhooks.now_ms)
        return bool(found)

    assert not await is_due()
    await webhooks.emit(100)  # more than one message
    assert await is_due()
    attempts = [await webhooks.begin(endpoint) for _ in range(2)]
    assert None not in attempts
    while await is_due():
        attempts.append(await webhooks.begin(endpoint))
    assert await webhooks.begin(endpoint) is None
    assert attempts[0] is not None
    failed = Response(status=500)
    await webhooks.outbox.end_attempt(attempts[0], failed, next_ms=NOW_MS + 20_000, now_ms=webhooks.now_ms)
    assert not await is_due()
    webhooks.now_ms = NOW_MS + 20_000
    assert await is_due()
    for attempt in (*attempts[1:], await webhooks.begin(endpoint)):
        assert attempt is not None
        await webhooks.end(attempt, Response(status=200))
    webhooks.now_ms += 10**9
    assert not await is_due()


@pytest.mark.parametrize(
    ("response", "is_slow"),
    [
        (Response(error="timeout"), True),
        (Response(error="unreachable"), True),
        (Response(status=500), False),
        (Response(error="bad_response"), False),
    ],
    ids=lambda one: str(one),
)
async def test_an_endpoint_without_a_response_is_slow_until_it_responds(
    webhooks: WebhookHarness, response: Response, is_slow: bool
) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit()
    for ended, expected in ((response, is_slow), (Response(status=503), False)):
        await webhooks.send(endpoint, ended, next_ms=webhooks.now_ms)
        (due,) = await webhooks.outbox.find_due(now_ms=webhooks.now_ms, limit=LIMIT)
        assert due.is_slow is expected


# ---- What an event of many endpoints costs.


async def test_the_data_of_an_event_stands_once_and_its_deliveries_are_references(
    webhooks: WebhookHarness,
) -> None:
    """A payment whose payer and whose payee have ten endpoints each."""
    endpoints = [
        await webhooks.activate(owner, network=f"{number}", origin=f"https://{number}.example")
        for number in range(10)
        for owner in (PAYER, PROVIDER)
    ]
    await webhooks.write_events(webhooks.make_events(1, PAYER, PROVIDER))
    assert await webhooks.count_rows() == {"webhook_event": 2, "webhook_delivery": 0, "webhook_message": 0}
    await webhooks.outbox.spread_events()
    assert await webhooks.count_rows() == {"webhook_event": 2, "webhook_delivery": 20, "webhook_message": 0}
    sent = [await webhooks.send(endpoint, Response(status=200)) for endpoint in endpoints]
    bodies = [json.loads(attempt.body)["data"] for attempt in sent]
    assert [(one["endpointId"], one["wallet"]) for one in bodies] == [
        (endpoint.id, str(endpoint.wallet)) for endpoint in endpoints
    ]
    assert await webhooks.count_rows() == {"webhook_event": 2, "webhook_delivery": 20, "webhook_message": 20}
    for table in (delivery_table, message_table):
        (row, *_) = await webhooks._read(table.select())
        texts = [value for value in row if isinstance(value, str)]
        assert sum(map(len, texts)) < 60, texts


async def test_a_transaction_takes_fifty_events(webhooks: WebhookHarness) -> None:
    for number in range(10):
        await webhooks.activate(network=f"{number}")
    await webhooks.write_events(webhooks.make_events(120))
    assert [await webhooks.outbox.spread_events() for _ in range(4)] == [50, 50, 20, 0]
    assert len(await webhooks.deliveries()) == 1_200


# ---- Plans.

ROWS = 2_000


async def fill(database: Database) -> None:
    """Many endpoints of which few are due, with many settled deliveries and messages."""
    endpoints, events, deliveries, messages = [], [], [], []
    for number in range(1, ROWS + 1):
        state = ("active", "unconfirmed", "disabled")[number % 3]
        is_due = number % 100 < 2
        waits_ms = NOW_MS - number if is_due else NOW_MS + number
        endpoints.append(
            {
                "number": number,
                "id": f"wh_{number}",
                "wallet": bytes(wallet(number // 5)),
                "network": f"192.0.2.{number // 9}",
                "url": f"https://host{number}.example/",
                "origin": f"https://host{number}.example",
                "types": "call.charged",
                "state": state,
                "challenge": "echo",
                "tries": 0,
                "due_ms": None if state == "disabled" else waits_ms,
                "is_slow": number % 2 == 0,
                "created_ms": NOW_MS,
                "active_from_ms": NOW_MS,
            }
        )
        events.append(
            {
                "number": number,
                "id": f"evt_{number}",
                "wallet": bytes(wallet(number // 5)),
                "type": "call.charged",
                "subject": "call_1",
                "at_ms": NOW_MS,
                "data": "{}" if number < ROWS - 20 else None,
            }
        )
        pending = number > ROWS - 40
        shared = {"endpoint_no": number % 50 + 1, "state": "pending" if pending else "delivered"}
        settled = None if pending else NOW_MS
        deliveries.append(
            {
                **shared,
                "event_no": number,
                "message_no": number if number % 2 else None,
                "settled_ms": settled,
            }
        )
        attempts = {"attempts": 1, "first_ms": NOW_MS, "due_ms": NOW_MS, "last_ms": settled}
        messages.append({**shared, **attempts, "number": number, "id": f"evt_{number}"})

    def work(connection: Connection) -> None:
        for table, rows in (
            (endpoint_table, endpoints),
            (event_table, events),
            (delivery_table, deliveries),
            (message_table, messages),
        ):
            connection.execute(insert(table), rows)

    await database.write(work, is_long=True)


def find_turns(find: Callable[..., Any]) -> Callable[[Connection], Any]:
    taken = Taken(origins=frozenset({"https://host1.example"}), after=wallet(7))
    return lambda connection: find(connection, limits=DEFAULT_LIMITS, now_ms=NOW_MS, limit=LIMIT, taken=taken)


QUERIES: dict[str, tuple[Callable[[Connection], Any], str]] = {
    "challenges": (find_turns(find_challenged), "ix_webhook_endpoint_due"),
    "messages": (find_turns(find_sending), "ix_webhook_endpoint_due"),
    "has work": (
        lambda connection: connection.execute(webhook_outbox._HAS_WORK._statement, {"now_ms": NOW_MS}),
        "ix_webhook_endpoint_due",
    ),
    "schedule": (
        lambda connection: webhook_outbox.schedule_endpoint(connection, 3, now_ms=NOW_MS),
        "ix_webhook_message_open",
    ),
    "url": (
        lambda connection: webhook_outbox.is_active_for_another(connection, "https://host3.example/", wallet(1)),
        "ix_webhook_endpoint_url",
    ),
    "mark due": (
        lambda connection: webhook_outbox._mark_due(connection, range(1, 30), now_ms=NOW_MS),
        "ix_webhook_message_open",
    ),
    "pending": (lambda connection: webhook_outbox._count_pending(connection, 3), "ix_webhook_delivery_"),
    "new events": (
        lambda connection: connection.execute(webhook_outbox.NEW_EVENTS),
        "ix_webhook_event_new",
    ),
}  # fmt: skip


async def test_the_sender_reads_indexes(database: Database, url: str) -> None:
    await fill(database)
    await settle_down(url)

    def explain(connection: Connection, work: Callable[[Connection], Any]) -> list[str]:
        as_if_large(connection)
        return plans_of(connection, work)

    for name, (work, index) in QUERIES.items():
        plans = await database.write(partial(explain, work=work))
        assert any(index in plan for plan in plans), (name, plans)
        for plan in plans:
            assert "Seq Scan on webhook_endpoint" not in plan, name
            assert "Seq Scan on webhook_message" not in plan, name
            assert "Seq Scan on webhook_delivery" not in plan, name
            scans = [part for part in plan.split("; ") if part.startswith("SCAN webhook_")]
            bare = [part for part in scans if "webhook_generation" not in part and "USING" not in part]
            assert bare == [], name
