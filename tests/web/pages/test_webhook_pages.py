"""The pages of webhooks: a receiver is added, read, repeated and removed by its wallet alone, and its secret is shown once."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.kit.pages import PageReader
from tests.kit.signed_in import OTHER, SELLER, SignedInHarness, open_signed_in
from tollway.storage.webhooks.webhook_events import write_events
from tollway.webhooks.endpoints import EndpointState, WebhookEndpoint
from tollway.webhooks.events import EventType
from tollway.webhooks.messages import Echo
from tollway.webhooks.schedule import Response

URL = "https://owner.example/hooks?key=1"
HOSTILE = 'https://owner.example/"><script>alert(1)</script>'


@pytest.fixture
async def harness() -> AsyncIterator[SignedInHarness]:
    async with open_signed_in() as harness:
        await harness.sign_in(SELLER)
        yield harness


async def add(harness: SignedInHarness, **changes: str | list[str]) -> httpx.Response:
    fields: dict[str, str | list[str]] = {"url": URL, "types": ["call.charged", "call.held"], "secret": "yes"}
    return await harness.post("/my/webhooks", {**fields, **changes})


async def list_own(harness: SignedInHarness) -> tuple[WebhookEndpoint, ...]:
    return await harness.services.webhooks.store.list_of(SELLER.address)


async def post_one(harness: SignedInHarness, one: str, act: str, **fields: str) -> httpx.Response:
    return await harness.post(f"/my/webhooks/{one}/{act}", fields, route=f"/my/webhooks/{{webhook_id}}/{act}")


async def test_a_receiver_is_added_and_its_secret_is_shown_once(harness: SignedInHarness) -> None:
    answer = await add(harness)
    assert answer.status_code == 200
    (secret,) = set(re.findall(r"whsec_[A-Za-z0-9+/=]+", answer.text))
    assert f'data-copy="Copy: Secret"><code>{secret}</code>' in answer.text
    (one,) = await list_own(harness)
    assert (one.url, one.types, one.has_secret) == (URL, (EventType.CALL_CHARGED, EventType.CALL_HELD), True)
    for path in ("/my/webhooks", f"/my/webhooks/{one.id}"):
        page = await harness.browser.get(path)
        assert secret not in page.text
        assert "not confirmed" in PageReader(page.text).words
        assert page.headers["cache-control"] in ("no-store", "private, no-store")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"url": "http://owner.example/"}, "url", "https"),
        ({"url": ""}, "url", ""),
        ({"url": "javascript:alert(1)"}, "url", ""),
        ({"url": "https://user:secret@owner.example/"}, "url", ""),
        ({"url": HOSTILE}, "url", ""),
        ({"url": "https://owner.example/" + "a" * 9_000}, "url", ""),
        ({"url": "https://10.0.0.1/"}, "url", ""),
        ({"url": "https://gone.example/"}, "url", "resolve"),
        ({"types": []}, "types", "at least one"),
        ({"types": ["call.lost"]}, "types", "one of"),
        ({"types": ["call.held", "call.held"]}, "types", ""),
    ],
)
async def test_a_refused_receiver_has_its_error_at_its_field(
    harness: SignedInHarness, changes: dict[str, str | list[str]], field: str, words: str
) -> None:
    harness.services.addresses["gone.example"] = []
    answer = await add(harness, **changes)
    assert answer.status_code in (400, 403, 422)
    marked = PageReader(answer.text.split(f'id="error-{field}"')[1].split("</p>")[0])
    assert words in marked.words
    assert "<script>alert" not in answer.text
    assert await list_own(harness) == ()


@pytest.mark.parametrize(
    ("response", "echo", "words"),
    [
        (Response(status=200), Echo.WALLET, "HTTP 200 ✓ with the challenge"),
        (Response(status=200), Echo.NONE, "HTTP 200 without the challenge: return it in the body"),
        (Response(status=404), Echo.NONE, "HTTP 404 not a 2xx"),
        (Response(error="timeout"), Echo.NONE, "no response in time"),
        (Response(error="unreachable"), Echo.NONE, "no connection"),
        (Response(error="not_allowed"), Echo.NONE, "an address that this gateway may not call"),
        (Response(error="bad_response"), Echo.NONE, "not an HTTP response"),
    ],
)
async def test_the_page_says_when_the_challenge_was_sent_and_what_answered(
    harness: SignedInHarness, response: Response, echo: Echo, words: str
) -> None:
    webhooks = harness.services.webhooks
    endpoint = await webhooks.register(SELLER.address)
    page = await harness.read(f"/my/webhooks/{endpoint.id}")
    assert "It is not sent yet." in page.words
    await webhooks.echo(endpoint, echo, response)
    page = await harness.read(f"/my/webhooks/{endpoint.id}")
    shown = page.words.partition("Challenge")[2].partition("Deliveries")[0]
    assert "Sent 08:00:10 UTC try 1 of 5" in shown
    assert f"Response {words}" in shown
    is_active = echo is Echo.WALLET
    assert ("Next 08:00:15 UTC" in shown, "Gets events from 08:00:15 UTC" in shown) == (
        not is_active,
        is_active,
    )


async def test_the_page_says_that_an_echo_lacks_the_wallet(harness: SignedInHarness) -> None:
    """Where another wallet has the URL."""
    webhooks = harness.services.webhooks
    await webhooks.confirm(await webhooks.register(OTHER.address))
    endpoint = await webhooks.register(SELLER.address)
    await webhooks.echo(endpoint, Echo.CHALLENGE)
    page = await harness.read(f"/my/webhooks/{endpoint.id}")
    assert "without your wallet: another wallet has this URL" in page.words


async def deliver(harness: SignedInHarness) -> tuple[WebhookEndpoint, str]:
    """An active receiver with a delivery that has failed for good, and its event."""
    webhooks = harness.services.webhooks
    payment = await harness.services.record_payment(10_000)
    endpoint = await webhooks.activate(SELLER.address)
    (event,) = webhooks.events.make_events(
        EventType.PAYMENT_CREDITED,
        (SELLER.address,),
        subject=str(payment.id),
        state="final",
        at_ms=webhooks.now_ms,
        units=10_000,
    )
    await webhooks.database.write(lambda connection: write_events(connection, [event]))
    while await webhooks.outbox.spread_events():
        pass
    attempt = await webhooks.outbox.begin_attempt(endpoint.id, now_ms=webhooks.now_ms)
    assert attempt is not None
    await webhooks.outbox.end_attempt(attempt, Response(status=500), next_ms=None, now_ms=webhooks.now_ms)
    return endpoint, event.id


async def test_a_failed_delivery_is_shown_and_sent_again(harness: SignedInHarness) -> None:
    endpoint, event_id = await deliver(harness)
    page = await harness.read(f"/my/webhooks/{endpoint.id}?state=dead")
    assert event_id in page.words
    assert "a payment arrived" in page.words
    answer = await post_one(harness, endpoint.id, "resend", event=event_id)
    assert answer.headers["location"] == f"/my/webhooks/{endpoint.id}?done=queued"
    page = await harness.read(answer.headers["location"])
    assert "Queued." in page.words
    assert "waiting" in page.words
    again = await post_one(harness, endpoint.id, "resend", event=event_id)
    assert again.status_code == 412


async def test_a_receiver_is_removed_after_a_second_question(harness: SignedInHarness) -> None:
    await add(harness)
    (one,) = await list_own(harness)
    assert (await post_one(harness, one.id, "removal")).status_code == 422
    assert await list_own(harness) == (one,)
    answer = await post_one(harness, one.id, "removal", confirmed="yes")
    assert answer.headers["location"] == "/my/webhooks?done=removed"
    assert await list_own(harness) == ()
    assert "Removed." in (await harness.read("/my/webhooks?done=removed")).words


async def test_a_receiver_of_another_wallet_is_not_found(harness: SignedInHarness) -> None:
    await add(harness)
    (one,) = await list_own(harness)
    await harness.sign_in(OTHER)
    assert (await harness.browser.get(f"/my/webhooks/{one.id}")).status_code == 404
    assert (await post_one(harness, one.id, "removal", confirmed="yes")).status_code == 404
    assert (await post_one(harness, one.id, "resend", event="evt_1")).status_code == 404
    assert one.url not in (await harness.browser.get("/my/webhooks")).text
    assert await list_own(harness) == (one,)


async def test_a_form_without_its_token_changes_nothing(harness: SignedInHarness) -> None:
    harness.token = ""
    assert (await add(harness)).status_code == 400
    assert await list_own(harness) == ()


@pytest.mark.parametrize("query", ["?state=lost", "?before=" + "x" * 999, "?limit=0"])
async def test_a_query_that_is_none_is_refused(harness: SignedInHarness, query: str) -> None:
    await add(harness)
    (one,) = await list_own(harness)
    assert (await harness.browser.get(f"/my/webhooks/{one.id}{query}")).status_code in (400, 422)


async def test_each_state_says_what_to_do(harness: SignedInHarness) -> None:
    await add(harness)
    (one,) = await list_own(harness)
    for state, words in (
        (EndpointState.STOPPED, "Too many events wait"),
        (EndpointState.DISABLED, "add it again"),
    ):
        await harness.services.webhooks.set_endpoint(one, state=state.value)
        assert words in (await harness.read(f"/my/webhooks/{one.id}")).words
