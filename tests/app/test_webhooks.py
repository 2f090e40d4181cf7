"""The webhooks of a whole gateway: its own tasks confirm an endpoint, write events and deliver them."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_lifecycle import settings
from tests.kit.ledger_records import PAYEE, PROVIDER, new_payment
from tests.kit.listings import sample_listing
from tests.kit.upstream import LoopbackUpstream, plain, run_upstream
from tests.kit.waits import until
from tollway.app.lifecycle import App
from tollway.app.runtime import now_ms
from tollway.app.webhooks import DOWN_WINDOW_MS
from tollway.ids import Address, ListingId
from tollway.observability.background import TaskName
from tollway.webhooks.endpoints import EndpointState, NewEndpoint, WebhookEndpoint
from tollway.webhooks.events import EventType


@pytest.fixture
async def receiver() -> AsyncIterator[LoopbackUpstream]:
    async with run_upstream() as it:

        async def answer(arrived: Any, writer: asyncio.StreamWriter) -> None:
            data = json.loads(arrived.body)["data"]
            await plain(json.dumps({"challenge": data.get("challenge")}).encode())(arrived, writer)

        it.answer = answer
        yield it


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """The time in which other gateways would read the set of endpoints is short: there is one gateway."""
    monkeypatch.setattr("tollway.storage.webhooks.webhook_outbox.ACTIVATION_MS", 50)
    quick = {"TEST_LIMIT_WEBHOOK_POLL_S": "0.02", "TEST_LIMIT_WEBHOOK_ORIGIN_INTERVAL_S": "0.01"}
    async with App(settings(tmp_path, ALLOW_PRIVATE_ENDPOINTS="yes", **quick)) as it:
        yield it


async def register(app: App, receiver: LoopbackUpstream, wallet: Address = PROVIDER) -> str:
    new = NewEndpoint(
        id=f"wh_{wallet.hex()[:6]}",
        wallet=wallet,
        network="192.0.2.1",
        url=receiver.url + "/hooks",
        origin=receiver.url,
        types=tuple(EventType),
        challenge="echo",
        created_ms=app.ledger.shared_ms(),
    )
    endpoint = await app.webhook_services.store.register(new, count_max=10)
    assert isinstance(endpoint, WebhookEndpoint)
    return endpoint.id


async def is_active(app: App, wallet: Address = PROVIDER) -> bool:
    (endpoint,) = await app.webhook_services.store.list_of(wallet)
    return endpoint.state is EndpointState.ACTIVE


async def wait_active(app: App, wallet: Address = PROVIDER) -> None:
    """Until this gateway writes events of the wallet and the endpoint counts from now on."""
    await until(lambda: is_active(app, wallet))
    await until(lambda: app.events.is_watched(wallet, EventType.PAYMENT_CREDITED))
    (endpoint,) = await app.webhook_services.store.list_of(wallet)
    active_from_ms = endpoint.active_from_ms
    assert active_from_ms is not None
    await until(lambda: app.ledger.shared_ms() >= active_from_ms)


def types_of(receiver: LoopbackUpstream) -> list[str]:
    found = []
    for arrived in receiver.arrived:
        body = json.loads(arrived.body)
        found += [one["type"] for one in body["data"].get("events", [body])]
    return found


async def test_an_event_of_a_confirmed_endpoint_arrives(app: App, receiver: LoopbackUpstream) -> None:
    webhook_id = await register(app, receiver, PAYEE)
    await wait_active(app, PAYEE)
    await app.payments.record_payments([new_payment(100)], now_ms=now_ms())
    await until(lambda: "payment.credited" in types_of(receiver))
    assert types_of(receiver) == ["webhook.challenge", "payment.credited"]
    arrived = receiver.arrived[-1]
    assert json.loads(arrived.body)["data"]["endpointId"] == webhook_id
    assert (arrived.find("signature-input") or "").startswith('tollway=("@method" "@target-uri"')
    assert app.background[TaskName.WEBHOOK_DELIVERY].failures == 0


async def test_the_set_of_active_endpoints_is_read_again_and_again(
    app: App, receiver: LoopbackUpstream
) -> None:
    assert app.events.is_idle
    await register(app, receiver)
    is_watched = partial(app.events.is_watched, PROVIDER, EventType.CALL_CHARGED)
    await until(is_watched)
    (endpoint,) = await app.webhook_services.store.list_of(PROVIDER)
    await app.webhook_services.store.remove(PROVIDER, endpoint.id)
    await until(lambda: app.events.is_idle)


async def test_listings_of_an_origin_that_is_down_have_one_event(
    app: App, receiver: LoopbackUpstream
) -> None:
    down, other = "https://down.example", "https://up.example"
    for number, endpoint in enumerate((f"{down}/v1", f"{down}/v2", f"{other}/v1", f"{down}.example/v1")):
        listing = sample_listing(
            id=ListingId(f"api_{number}"), provider=PROVIDER, endpoint=endpoint, created_ms=number
        )
        await app.catalog.publish(listing)
    await register(app, receiver)
    await wait_active(app)
    # Not at the end of a window of time, where the next one begins.
    await until(lambda: DOWN_WINDOW_MS - app.ledger.shared_ms() % DOWN_WINDOW_MS >= 10_000)
    for _ in range(2):
        for _ in range(app.settings.limits.dial_failures_max):
            app.reputation_services.breaker.record_failed(down)
        assert app.webhook_services._down
        await app.webhook_services._write_down()
        app.reputation_services.breaker.record_reached(down)
    await until(lambda: types_of(receiver).count("listing.down") >= 2)
    (endpoint_of,) = await app.webhook_services.store.list_of(PROVIDER)
    listed = await app.webhook_services.store.deliveries_of(
        PROVIDER, endpoint_of.id, state=None, before=None, limit=10
    )
    assert [one.type for one in listed or ()] == ["listing.down"] * 2
    members = [
        one["data"]["apiId"]
        for arrived in receiver.arrived
        for one in json.loads(arrived.body)["data"].get("events", [json.loads(arrived.body)])
        if one["type"] == "listing.down"
    ]
    assert sorted(members) == ["api_0", "api_1"]
