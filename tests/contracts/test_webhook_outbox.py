"""The contract of `Outbox` and `Webhooks`, on SQLite and on PostgreSQL."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, PAYER, PROVIDER, new_payment
from tests.kit.webhooks import WebhookHarness
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database
from tollway.storage.ledger.payments import PaymentLedgerStore
from tollway.storage.webhooks import webhook_outbox, webhook_pruning
from tollway.storage.webhooks.webhook_events import ACTIVATION_MS, write_events_once
from tollway.storage.webhooks.webhook_outbox import put_message
from tollway.web.http.query import format_time
from tollway.webhooks.endpoints import (
    DeliveryState,
    EndpointState,
    NotRegistered,
    Reason,
    Resent,
    WebhookEndpoint,
)
from tollway.webhooks.events import EventType, NewEvent
from tollway.webhooks.messages import BODY_BYTES_MAX, Echo
from tollway.webhooks.schedule import Response

OK, BROKEN, GONE = Response(status=200), Response(status=500), Response(status=410)
CREDITED = EventType.PAYMENT_CREDITED
SMALL = replace(DEFAULT_LIMITS, webhook_pending_max=10, webhook_events_max=20)
STRANGER = Address(b"\x99" * 20)


@pytest.fixture
async def webhooks(database: Database) -> WebhookHarness:
    """With one payment, which every event is about."""
    (payment,) = await PaymentLedgerStore(database).record_payments([new_payment(100)], now_ms=NOW_MS)
    assert payment.id == 1
    return WebhookHarness(database, limits=SMALL)


def members(body: str) -> list[str]:
    return [one["id"] for one in json.loads(body)["data"]["events"]]


async def test_an_event_alone_has_a_message_of_its_own_id(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    (event_id,) = await webhooks.emit()
    attempt = await webhooks.begin(endpoint)
    assert (attempt.message_id, attempt.attempts) == (event_id, 1)
    body = json.loads(attempt.body)
    assert (body["type"], body["data"]["endpointId"]) == (CREDITED, endpoint.id)


async def test_waiting_events_share_a_message_that_never_changes(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    ids = await webhooks.emit(4)
    first = await webhooks.begin(endpoint)
    assert members(first.body) == ids
    assert first.message_id not in ids
    await webhooks.emit(3)
    # The gateway was killed after its attempt: the next one is begun again when its time is over.
    webhooks.now_ms += webhook_outbox.ATTEMPT_MS
    second = await webhooks.begin(endpoint)
    assert (second.message_id, second.body, second.attempts) == (first.message_id, first.body, 2)
    third = await webhooks.begin(endpoint)
    assert third.message_id != first.message_id
    assert not set(members(third.body)) & set(ids)


async def test_a_batch_is_shorter_than_the_maximum(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    webhooks.outbox._limits = DEFAULT_LIMITS
    ids = await webhooks.emit(300)
    found: list[str] = []
    while len(found) < len(ids):
        attempt = await webhooks.send(endpoint, OK)
        assert len(attempt.body.encode()) < BODY_BYTES_MAX
        found += members(attempt.body)
    assert sorted(found) == sorted(ids)


async def test_two_gateways_at_once_begin_no_message_twice(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit(5)
    begun = await asyncio.gather(*(webhooks.begin(endpoint) for _ in range(6)))
    attempts = [one for one in begun if one is not None]
    assert len({one.message_id for one in attempts}) == len(attempts) == 1


async def test_two_gateways_at_once_copy_an_event_once(webhooks: WebhookHarness) -> None:
    await webhooks.activate()
    await webhooks.write_events(webhooks.make_events())
    counts = await asyncio.gather(*(webhooks.outbox.spread_events() for _ in range(4)))
    assert sum(counts) == 1
    assert len(await webhooks.deliveries()) == 1
    assert await webhooks.new_events() == []


@pytest.mark.parametrize(
    ("response", "next_ms", "state"),
    [
        (OK, None, DeliveryState.DELIVERED),
        (Response(status=204), None, DeliveryState.DELIVERED),
        (BROKEN, NOW_MS + 60_000, DeliveryState.PENDING),
        (Response(status=302), NOW_MS + 60_000, DeliveryState.PENDING),
        (Response(error="timeout"), NOW_MS + 60_000, DeliveryState.PENDING),
        (BROKEN, None, DeliveryState.DEAD),
    ],
)
async def test_the_end_of_an_attempt_is_that_of_its_events(
    webhooks: WebhookHarness, response: Response, next_ms: int | None, state: DeliveryState
) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit(2)
    await webhooks.send(endpoint, response, next_ms=next_ms)
    shown = await webhooks.list_deliveries(endpoint)
    assert [one.state for one in shown] == [state] * 2
    assert {(one.attempts, one.last_status, one.last_error) for one in shown} == {
        (1, response.status, response.error)
    }
    assert {one.next_ms for one in shown} == {next_ms}
    webhooks.now_ms += 30_000
    assert await webhooks.begin(endpoint) is None
    webhooks.now_ms = NOW_MS + 60_000
    assert (await webhooks.begin(endpoint) is not None) is (state is DeliveryState.PENDING)


async def test_a_late_end_of_an_older_attempt_changes_nothing(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit()
    older = await webhooks.begin(endpoint)
    webhooks.now_ms += webhook_outbox.ATTEMPT_MS
    assert (await webhooks.begin(endpoint)).attempts == 2
    await webhooks.end(older, BROKEN)
    assert [row.state for row in await webhooks.messages()] == ["pending"]


async def test_a_receiver_that_is_gone_disables_its_endpoint(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    other = await webhooks.activate(types=(CREDITED,))
    await webhooks.emit(2)
    await webhooks.send(endpoint, GONE)
    await webhooks.emit()
    known = await webhooks.find(endpoint)
    assert (known.state, known.reason) == (EndpointState.DISABLED, Reason.GONE)
    assert (known.pending, known.dead) == (0, 2)
    assert await webhooks.begin(endpoint) is None
    assert (await webhooks.find(other)).pending == 3
    await webhooks.store.refresh()
    assert webhooks.events.is_watched(PROVIDER, CREDITED)


async def test_an_endpoint_with_many_open_messages_makes_no_further_one(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    for _ in range(webhook_outbox.OPEN_MESSAGES_MAX):
        await webhooks.emit()
        await webhooks.send(endpoint, BROKEN, next_ms=webhooks.now_ms + 10**9)
    await webhooks.emit()
    assert await webhooks.outbox.find_due(now_ms=webhooks.now_ms, limit=10) == []
    assert await webhooks.begin(endpoint) is None


# ---- Too many pending events.


async def test_beyond_the_maximum_an_endpoint_stops_and_its_gap_is_known(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit(8)
    stopped_ms = webhooks.now_ms = webhooks.now_ms + 1_000
    await webhooks.emit(5)
    webhooks.now_ms += 1_000
    await webhooks.emit(5)
    known = await webhooks.find(endpoint)
    assert (known.state, known.reason) == (EndpointState.STOPPED, Reason.TOO_MANY_PENDING)
    assert known.pending == 10
    assert (known.gap_from_ms, known.gap_to_ms) == (stopped_ms, None)
    await webhooks.store.refresh()
    assert webhooks.events.is_idle


async def test_a_stopped_endpoint_goes_on_after_half_is_sent_and_is_sent_the_range(
    webhooks: WebhookHarness,
) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit(12)
    began_ms = webhooks.now_ms
    await webhooks.outbox.resume_stopped(now_ms=webhooks.now_ms)
    assert (await webhooks.find(endpoint)).state is EndpointState.STOPPED
    assert len(members((await webhooks.send(endpoint, OK)).body)) == 10
    await webhooks.outbox.resume_stopped(now_ms=webhooks.now_ms)
    known = await webhooks.find(endpoint)
    assert (known.state, known.reason, known.gap_from_ms) == (EndpointState.ACTIVE, None, began_ms)
    assert known.gap_to_ms == known.active_from_ms == webhooks.now_ms + 5_000
    gap = json.loads((await webhooks.begin(endpoint)).body)
    assert gap["type"] == "webhook.gap"
    assert set(gap["data"]) == {"endpointId", "wallet", "from", "to"}
    await webhooks.store.refresh()
    assert webhooks.events.is_watched(PROVIDER, CREDITED)


async def test_a_second_gap_begins_anew(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit(12)
    await webhooks.send(endpoint, OK)
    await webhooks.outbox.resume_stopped(now_ms=webhooks.now_ms)
    await webhooks.store.refresh()
    webhooks.now_ms += 5_000
    await webhooks.emit(12)
    known = await webhooks.find(endpoint)
    assert (known.gap_from_ms, known.gap_to_ms) == (webhooks.now_ms, None)


# ---- Challenges.


async def test_an_endpoint_gets_events_only_after_its_echo(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.register()
    (challenge,) = await webhooks.outbox.find_challenges(now_ms=webhooks.now_ms, limit=10)
    await webhooks.end_challenge(challenge, Echo.NONE, next_ms=webhooks.now_ms + 5_000)
    assert await webhooks.outbox.find_challenges(now_ms=webhooks.now_ms, limit=10) == []
    await webhooks.store.refresh()
    assert webhooks.events.is_idle
    webhooks.now_ms += 5_000
    (again,) = await webhooks.outbox.find_challenges(now_ms=webhooks.now_ms, limit=10)
    assert (again.challenge, again.tries) == (challenge.challenge, 1)
    confirmed_ms = webhooks.now_ms
    await webhooks.end_challenge(again, Echo.CHALLENGE)
    known = await webhooks.find(endpoint)
    assert (known.state, known.active_from_ms) == (EndpointState.ACTIVE, confirmed_ms + 5_000)
    await webhooks.store.refresh()
    webhooks.now_ms += 4_999
    await webhooks.emit()
    assert (await webhooks.find(endpoint)).pending == 0
    webhooks.now_ms += 1
    await webhooks.emit()
    assert (await webhooks.find(endpoint)).pending == 1


async def test_an_endpoint_without_an_echo_is_disabled_after_its_last_try(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.register()
    (challenge,) = await webhooks.outbox.find_challenges(now_ms=webhooks.now_ms, limit=10)
    await webhooks.end_challenge(challenge, Echo.NONE)
    known = await webhooks.find(endpoint)
    assert (known.state, known.reason) == (EndpointState.DISABLED, Reason.NOT_CONFIRMED)
    assert await webhooks.outbox.find_challenges(now_ms=webhooks.now_ms + 10**9, limit=10) == []
    # A late echo of an earlier try does not enable it.
    await webhooks.end_challenge(challenge, Echo.CHALLENGE)
    assert (await webhooks.find(endpoint)).state is EndpointState.DISABLED


@pytest.mark.parametrize(
    ("echo", "state"),
    [(Echo.CHALLENGE, EndpointState.UNCONFIRMED), (Echo.WALLET, EndpointState.ACTIVE)],
    ids=("without the wallet", "with the wallet"),
)
async def test_a_second_wallet_is_active_at_a_url_once_the_receiver_has_named_it(
    webhooks: WebhookHarness, echo: Echo, state: EndpointState
) -> None:
    """A stranger is the first or the second one: a receiver that echoes every challenge names neither."""
    first = await webhooks.register(STRANGER)
    await webhooks.echo(first, Echo.CHALLENGE)
    assert (await webhooks.find(first)).state is EndpointState.ACTIVE
    second = await webhooks.register(PROVIDER)
    await webhooks.echo(second, echo)
    assert (await webhooks.find(second)).state is state
    assert (await webhooks.find(first)).state is EndpointState.ACTIVE


async def test_a_url_is_free_for_another_wallet_once_its_webhook_has_ended(webhooks: WebhookHarness) -> None:
    first = await webhooks.activate(STRANGER)
    refused = partial(webhooks.register, PROVIDER, is_shared=False)
    with pytest.raises(AssertionError, match="url_taken"):
        await refused()
    await webhooks.set_endpoint(first, state="stopped")
    with pytest.raises(AssertionError, match="url_taken"):
        await refused()
    await webhooks.set_endpoint(first, state="disabled")
    second = await refused()
    await webhooks.echo(second, Echo.CHALLENGE)
    assert (await webhooks.find(second)).state is EndpointState.ACTIVE


async def test_of_two_wallets_that_confirm_a_url_at_once_one_is_active(webhooks: WebhookHarness) -> None:
    both = [await webhooks.register(wallet) for wallet in (STRANGER, PROVIDER)]
    await asyncio.gather(*(webhooks.echo(one, Echo.CHALLENGE) for one in both))
    states = sorted([(await webhooks.find(one)).state for one in both])
    assert states == [EndpointState.ACTIVE, EndpointState.UNCONFIRMED]


# ---- For owners.


async def test_the_unconfirmed_endpoints_of_an_address_are_limited_also_at_once(
    webhooks: WebhookHarness,
) -> None:
    async def register(number: int) -> object:
        try:
            return await webhooks.register(Address(bytes([number]) * 20))
        except AssertionError as exc:
            return str(exc).partition("\n")[0]

    most = DEFAULT_LIMITS.webhooks_unconfirmed_max
    registered = await asyncio.gather(*(register(number) for number in range(1, most + 6)))
    refused = [one for one in registered if not isinstance(one, WebhookEndpoint)]
    assert refused == [NotRegistered.ADDRESS_FULL.value] * 5
    await webhooks.register(network="another address")


async def test_an_eleventh_endpoint_is_refused_also_at_once(webhooks: WebhookHarness) -> None:
    async def register() -> bool:
        try:
            await webhooks.register()
        except AssertionError:
            return False
        return True

    assert sum(await asyncio.gather(*(register() for _ in range(14)))) == 10
    assert len(await webhooks.store.list_of(PROVIDER)) == 10
    await webhooks.register(PAYER)


async def test_a_secret_is_encrypted_at_rest(webhooks: WebhookHarness) -> None:
    secret = b"\x42" * 32
    endpoint = await webhooks.activate(secret=secret)
    assert endpoint.has_secret
    await webhooks.emit()
    assert (await webhooks.begin(endpoint)).secret == secret
    tables = [await webhooks.deliveries(), await webhooks.messages()]
    assert secret not in repr(tables).encode()


async def test_another_wallet_finds_nothing_of_an_endpoint(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    (event_id,) = await webhooks.emit()
    await webhooks.send(endpoint, OK)
    store = webhooks.store
    assert await store.list_of(STRANGER) == ()
    assert await store.deliveries_of(STRANGER, endpoint.id, state=None, before=None, limit=9) is None
    assert await store.resend(STRANGER, endpoint.id, event_id, now_ms=webhooks.now_ms) is Resent.UNKNOWN
    assert not await store.remove(STRANGER, endpoint.id)
    assert (await webhooks.find(endpoint)).state is EndpointState.ACTIVE


async def test_deliveries_are_listed_newest_first_by_state_and_page(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    sent = await webhooks.emit(3)
    await webhooks.send(endpoint, OK)
    webhooks.now_ms += 1
    waiting = await webhooks.emit(2)

    async def ids(**query: Any) -> list[str]:
        return [one.event_id for one in await webhooks.list_deliveries(endpoint, **query)]

    everything = [*sent, *waiting][::-1]
    assert await ids() == everything
    assert await ids(limit=2) == everything[:2]
    assert await ids(before=everything[1], limit=2) == everything[2:4]
    assert sorted(await ids(state=DeliveryState.DELIVERED)) == sorted(sent)
    assert sorted(await ids(state=DeliveryState.PENDING)) == sorted(waiting)
    assert await ids(state=DeliveryState.DEAD) == []


@pytest.mark.parametrize("response", [OK, BROKEN], ids=("delivered", "dead"))
async def test_an_event_is_sent_again_with_the_data_of_the_first_time(
    webhooks: WebhookHarness, response: Response
) -> None:
    endpoint = await webhooks.activate()
    ids = await webhooks.emit(2)
    first = json.loads((await webhooks.send(endpoint, response)).body)["data"]["events"]
    at_ms = webhooks.now_ms = webhooks.now_ms + 90_000
    assert await webhooks.store.resend(PROVIDER, endpoint.id, ids[0], now_ms=at_ms) is Resent.QUEUED
    assert await webhooks.store.resend(PROVIDER, endpoint.id, ids[0], now_ms=at_ms) is Resent.PENDING
    again = await webhooks.send(endpoint, OK)
    (member,) = [one for one in first if one["id"] == ids[0]]
    assert again.message_id == ids[0]
    assert {"id": ids[0], **json.loads(again.body)} == member
    assert (again.attempts, again.first_ms) == (1, at_ms)
    states = {row.event_id: row.state for row in await webhooks.deliveries()}
    assert states[ids[0]] == "delivered"
    # Once more: the same bytes.
    assert await webhooks.store.resend(PROVIDER, endpoint.id, ids[0], now_ms=at_ms) is Resent.QUEUED
    assert (await webhooks.begin(endpoint)).body == again.body


async def test_messages_that_were_never_sent_are_pruned_after_a_410_too(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit()
    attempt = await webhooks.begin(endpoint)
    (event_id,) = await webhooks.emit()
    waiting = next(row for row in await webhooks.deliveries() if row.event_id == event_id)
    await webhooks.database.write(
        lambda connection: put_message(
            connection, waiting.endpoint_no, [waiting.event_no], message_id=event_id, now_ms=webhooks.now_ms
        )
    )
    await webhooks.end(attempt, GONE)
    assert len(await webhooks.messages()) == 2
    await webhooks.outbox.prune(now_ms=webhooks.now_ms + webhook_pruning.DEAD_KEPT_MS + 1)
    assert (await webhooks.deliveries(), await webhooks.messages()) == ([], [])


async def test_nothing_is_sent_again_to_a_disabled_endpoint(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    (event_id,) = await webhooks.emit()
    await webhooks.send(endpoint, GONE)
    resent = await webhooks.store.resend(PROVIDER, endpoint.id, event_id, now_ms=webhooks.now_ms)
    assert resent is Resent.DISABLED
    unknown = await webhooks.store.resend(PROVIDER, endpoint.id, "evt_nothing", now_ms=webhooks.now_ms)
    assert unknown is Resent.UNKNOWN


async def test_a_removed_endpoint_gets_nothing_more_and_leaves_no_row(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit(2)
    await webhooks.send(endpoint, OK)
    await webhooks.emit(2)
    assert await webhooks.store.remove(PROVIDER, endpoint.id)
    assert not await webhooks.store.remove(PROVIDER, endpoint.id)
    await webhooks.emit()
    assert await webhooks.outbox.find_due(now_ms=webhooks.now_ms, limit=10) == []
    assert (await webhooks.deliveries(), await webhooks.messages()) == ([], [])
    await webhooks.store.refresh()
    assert webhooks.events.is_idle


async def test_beyond_the_maximum_of_new_events_every_endpoint_stops_until_they_are_gone(
    webhooks: WebhookHarness,
) -> None:
    endpoint = await webhooks.activate()
    first_ms = webhooks.now_ms
    events = webhooks.make_events(SMALL.webhook_events_max)
    await webhooks.write_events(events[1:])
    await webhooks.store.refresh()
    assert webhooks.events.is_watched(PROVIDER, CREDITED)  # one more has room
    await webhooks.write_events(events[:1])
    webhooks.now_ms += 1
    await webhooks.store.refresh()
    assert webhooks.events.is_idle  # no gateway writes further events
    found = await webhooks.find(endpoint)
    assert (found.state, found.reason) == (EndpointState.STOPPED, Reason.TOO_MANY_PENDING)
    assert (found.gap_from_ms, found.gap_to_ms) == (webhooks.now_ms, None)
    await webhooks.outbox.spread_events()
    assert await webhooks.new_events() == []
    await webhooks.outbox.resume_stopped(now_ms=webhooks.now_ms)
    resumed = await webhooks.find(endpoint)
    assert (resumed.state, resumed.gap_from_ms) == (EndpointState.ACTIVE, first_ms)
    assert [row.type for row in await webhooks.deliveries()] == ["webhook.gap"]
    await webhooks.store.refresh()
    assert webhooks.events.is_watched(PROVIDER, CREDITED)


async def test_old_deliveries_are_pruned_and_dead_ones_later(webhooks: WebhookHarness) -> None:
    endpoint = await webhooks.activate()
    await webhooks.emit()
    await webhooks.send(endpoint, OK)
    await webhooks.emit()
    await webhooks.send(endpoint, BROKEN)
    await webhooks.emit()
    for kept_ms, states in (
        (0, ["delivered", "dead", "pending"]),
        (webhook_pruning.DELIVERED_KEPT_MS + 1, ["dead", "pending"]),
        (webhook_pruning.DEAD_KEPT_MS + 1, ["pending"]),
    ):
        await webhooks.outbox.prune(now_ms=webhooks.now_ms + kept_ms)
        assert sorted(row.state for row in await webhooks.deliveries()) == sorted(states)


async def test_an_event_whose_subject_cannot_be_read_is_a_gap_and_holds_up_no_other(
    webhooks: WebhookHarness,
) -> None:
    endpoint = await webhooks.activate()
    lost = [
        NewEvent(
            id=f"evt_{number:026}",
            wallet=PROVIDER,
            type=kind,
            subject=subject,
            state="final",
            units=1,
            at_ms=webhooks.now_ms,
        )
        for number, (kind, subject) in enumerate(
            [(CREDITED, "999"), (CREDITED, "no number"), (EventType.CALL_CHARGED, "call_unknown")]
        )
    ]
    await webhooks.write_events(lost)
    (event_id,) = await webhooks.emit()
    assert await webhooks.new_events() == []
    rows = {row.event_id: row for row in await webhooks.deliveries()}
    assert [rows[event.id].type for event in lost] == ["webhook.gap"] * 3
    at = format_time(webhooks.now_ms)
    assert json.loads(rows[lost[0].id].data) == {"from": at, "to": at}
    assert rows[event_id].type == CREDITED
    assert await webhooks.begin(endpoint) is not None


async def test_an_endpoint_counts_from_a_time_after_every_wait_of_its_write(
    webhooks: WebhookHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its write waits for another one: the other gateways read the new set later too."""
    first, second = await webhooks.register(), await webhooks.activate()
    await webhooks.set_endpoint(
        second, state="stopped", gap_from_ms=webhooks.now_ms, gap_to_ms=None, reason="too_many_pending"
    )
    challenges = await webhooks.outbox.find_challenges(now_ms=webhooks.now_ms, limit=10)
    begun_ms = webhooks.now_ms
    write = webhooks.database.write

    async def write_late(work: Any, **options: Any) -> Any:
        webhooks.now_ms += 4_000
        return await write(work, **options)

    monkeypatch.setattr(webhooks.database, "write", write_late)
    await webhooks.end_challenge(challenges[0], Echo.CHALLENGE)
    assert (await webhooks.find(first)).active_from_ms == webhooks.now_ms + ACTIVATION_MS
    begun_ms = webhooks.now_ms
    await webhooks.outbox.resume_stopped(now_ms=begun_ms)
    resumed = await webhooks.find(second)
    assert resumed.active_from_ms == resumed.gap_to_ms == begun_ms + 4_000 + ACTIVATION_MS


async def test_the_same_event_of_two_gateways_is_one(webhooks: WebhookHarness) -> None:
    """`listing.down` has an id made of its listing and its time."""
    await webhooks.activate()
    event = NewEvent(
        id="evt_same", wallet=PROVIDER, type=CREDITED, subject="1", state="", units=1, at_ms=webhooks.now_ms
    )
    for _ in range(2):
        await webhooks.database.write(lambda connection: write_events_once(connection, [event]))
        await webhooks.outbox.spread_events()
    assert [row.event_id for row in await webhooks.deliveries()] == ["evt_same"]
