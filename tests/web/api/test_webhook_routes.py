"""The routes of webhooks: what an owner may register, and that no other wallet finds it."""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, new_payment
from tests.kit.routes import ALICE, BOB, RouteHarness, code_of, places_of
from tests.kit.stores import InlineDatabase
from tests.kit.webhooks import ALL_TYPES, WebhookHarness
from tollway.errors import Code, EndpointNotAllowed
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS
from tollway.outbound.policy import Endpoint
from tollway.storage.ledger.payments import PaymentLedgerStore
from tollway.storage.webhooks.webhook_events import write_events
from tollway.web.api.webhook_routes import webhook_router
from tollway.webhooks.events import EventType
from tollway.webhooks.schedule import Response

PATH = "/api/v2/webhooks"
URL = "https://owner.example/hooks"
BODY: dict[str, Any] = {"url": URL, "types": ["call.charged", "payment.credited"]}
LIMITS = replace(DEFAULT_LIMITS, webhooks_per_hour=30)


class Harness(RouteHarness):
    def __init__(self, webhooks: WebhookHarness, **given: Any) -> None:
        self.webhooks = webhooks
        self.denied_hosts: set[str] = set()
        super().__init__(
            **{
                "webhooks": webhooks.store,
                "check_endpoint": self.check_endpoint,
                "limits": LIMITS,
                "now_ms": webhooks.read_now_ms,
                **given,
            }
        )

    async def register(self, wallet: Address = ALICE, **changes: object) -> dict[str, Any]:
        answer = await self.send("POST", PATH, {**BODY, **changes}, wallet=wallet)
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def check_endpoint(self, endpoint: Endpoint) -> None:
        if endpoint.host in self.denied_hosts:
            raise EndpointNotAllowed

    async def count_rows(self) -> int:
        return len(await self.webhooks.store.list_of(ALICE))


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    database = InlineDatabase()
    harness = Harness(WebhookHarness(database))
    async with harness.open(webhook_router):
        yield harness
    await database.close()


async def test_a_new_webhook_is_unconfirmed_and_has_no_secret(harness: Harness) -> None:
    created = await harness.register()
    assert created == {
        "id": created["id"],
        "url": URL,
        "types": BODY["types"],
        "state": "unconfirmed",
        "reason": None,
        "secret": None,
        "activeFrom": None,
        "gap": None,
        "pending": 0,
        "dead": 0,
        "createdAt": "2027-01-15T08:00:00.000Z",
    }
    assert created["id"].startswith("wh_")
    (challenge,) = await harness.webhooks.outbox.find_challenges(now_ms=NOW_MS, limit=10)
    assert len(challenge.challenge) == 48
    assert challenge.challenge not in (await harness.send("GET", PATH)).text


async def test_a_secret_is_in_the_response_of_its_creation_only(harness: Harness) -> None:
    created = await harness.register(secret="v1")
    value = created["secret"]["value"]
    assert len(base64.b64decode(value.removeprefix("whsec_"))) == 32
    (challenge,) = await harness.webhooks.outbox.find_challenges(now_ms=NOW_MS, limit=10)
    assert challenge.secret == base64.b64decode(value.removeprefix("whsec_"))
    listed = (await harness.send("GET", PATH)).json()
    assert listed["webhooks"][0]["secret"] == {"scheme": "v1", "set": True}
    assert value not in repr(await harness.webhooks.store.list_of(ALICE))
    assert "secret" not in repr(challenge)


async def test_every_type_can_be_named(harness: Harness) -> None:
    assert (await harness.register(types=list(ALL_TYPES)))["types"] == list(ALL_TYPES)


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"types": ["call.lost"]}, ["/types/0"]),
        ({"types": ["call.charged", "call.charged"]}, ["/types/1"]),
        ({"types": []}, ["/types"]),
        ({"types": "call.charged"}, ["/types"]),
        ({"types": ["batch"]}, ["/types/0"]),
        ({"types": [1]}, ["/types/0"]),
        ({"types": ["call.charged"] * 11}, ["/types"]),
        ({"types": None}, ["/types"]),
        ({"url": 5}, ["/url"]),
        ({"url": ""}, ["/url"]),
        ({"url": "https://owner.example/" + "a" * 2_048}, ["/url"]),
        ({"secret": "v1a"}, ["/secret"]),
        ({"secret": True}, ["/secret"]),
        ({"shared": "yes"}, ["/shared"]),
        ({"shared": 1}, ["/shared"]),
        ({"endpoint": URL}, ["/endpoint"]),
    ],
    ids=repr,
)
async def test_a_bad_body_is_refused_at_its_place(
    harness: Harness, changes: dict[str, object], places: list[str]
) -> None:
    answer = await harness.send("POST", PATH, {**BODY, **changes})
    assert (answer.status_code, code_of(answer)) == (422, Code.VALIDATION_FAILED)
    assert places_of(answer) == places
    assert await harness.count_rows() == 0


REFUSED_URLS = (
    "http://owner.example/hooks",
    "https://127.0.0.1/hooks",
    "https://[::1]/hooks",
    "https://10.0.0.1/hooks",
    "https://169.254.169.254/latest",
    "https://2130706433/hooks",
    "https://0x7f.1/hooks",
    "https://localhost/hooks",
    "https://intranet/hooks",
    "https://service.internal/hooks",
    "https://owner.example:22/hooks",
    "https://user:pass@owner.example/hooks",
    "https://owner.example/a/../b",
    "https://owner.example/hooks#part",
    "https://owner.example/hooks?a=b c",
    "https://owner.example/hooks?a=\u00e9",
    "https://owner.example/hooks?a#b",
    "ftp://owner.example/hooks",
    "//owner.example/hooks",
    "https://denied.example/hooks",
)


async def test_a_url_that_no_message_may_go_to_is_refused(harness: Harness) -> None:
    harness.denied_hosts.add("denied.example")
    answers = {url: await harness.send("POST", PATH, {**BODY, "url": url}) for url in REFUSED_URLS}
    assert [url for url, answer in answers.items() if answer.status_code != 422] == []
    assert [url for url, answer in answers.items() if code_of(answer) != Code.ENDPOINT_NOT_ALLOWED] == []
    assert [url for url, answer in answers.items() if places_of(answer) != ["/url"]] == []
    assert await harness.count_rows() == 0


async def test_a_url_may_have_a_query(harness: Harness) -> None:
    url = "https://owner.example:8443/hooks?token=a%20b&x=1"
    assert (await harness.register(url=url))["url"] == url


async def test_a_development_gateway_takes_http_and_loopback(harness: Harness) -> None:
    private = Harness(harness.webhooks, allow_private=True)
    async with private.open(webhook_router):
        assert (await private.register(url="http://127.0.0.1:9999/hooks"))["state"] == "unconfirmed"


async def test_an_eleventh_webhook_is_refused(harness: Harness) -> None:
    for _ in range(LIMITS.webhooks_max):
        await harness.register()
    answer = await harness.send("POST", PATH, BODY)
    assert (answer.status_code, code_of(answer)) == (409, Code.WEBHOOK_LIMIT_REACHED)
    assert "at most 10" in answer.json()["detail"]
    await harness.register(BOB)
    listed = (await harness.send("GET", PATH)).json()
    assert (len(listed["webhooks"]), listed["limit"]) == (10, 10)
    assert (await harness.send("DELETE", f"{PATH}/{listed['webhooks'][0]['id']}")).status_code == 204
    await harness.register()


async def test_a_url_that_is_active_for_another_wallet_is_refused_unless_it_is_shared(
    harness: Harness,
) -> None:
    await harness.webhooks.activate(ALICE, url=URL)
    answer = await harness.send("POST", PATH, BODY, wallet=BOB)
    assert (answer.status_code, code_of(answer)) == (409, Code.ALREADY_EXISTS)
    assert "`shared: true`" in answer.json()["detail"]
    assert (await harness.send("GET", PATH, wallet=BOB)).json()["webhooks"] == []
    # Of the same wallet, of another URL, and with the knowledge that it is shared.
    await harness.register()
    await harness.register(BOB, url=URL + "?wallet=bob")
    assert (await harness.register(BOB, shared=True))["state"] == "unconfirmed"


async def test_one_address_has_twenty_unconfirmed_webhooks(harness: Harness) -> None:
    """Of eight wallets with ten each, as many as an address may have are registered."""
    answers = [
        await harness.send(
            "POST", PATH, {**BODY, "url": f"{URL}?{number}"}, wallet=Address(bytes([owner]) * 20)
        )
        for owner in range(1, 9)
        for number in range(10)
    ]
    assert [one.status_code for one in answers] == [201] * 20 + [409] * 60
    assert code_of(answers[-1]) == Code.WEBHOOK_LIMIT_REACHED
    assert "One client address has at most 20 unconfirmed webhooks." in answers[-1].json()["detail"]
    (one, *_) = await harness.webhooks.store.list_of(Address(b"\x01" * 20))
    await harness.webhooks.confirm(one)
    await harness.register(BOB)


async def test_webhooks_per_wallet_and_hour_are_limited(harness: Harness) -> None:
    for _ in range(LIMITS.webhooks_per_hour):
        created = await harness.register()
        await harness.send("DELETE", f"{PATH}/{created['id']}")
    answer = await harness.send("POST", PATH, BODY)
    assert (answer.status_code, code_of(answer)) == (429, Code.RATE_LIMITED)
    assert answer.headers["ratelimit-policy"] == f'"webhooks";q={LIMITS.webhooks_per_hour};w=3600'


async def test_a_blocked_wallet_registers_nothing(harness: Harness) -> None:
    harness.blocked.add(ALICE)
    answer = await harness.send("POST", PATH, BODY)
    assert (answer.status_code, code_of(answer)) == (403, Code.WALLET_BLOCKED)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", PATH),
        ("POST", PATH),
        ("DELETE", PATH + "/wh_1"),
        ("GET", PATH + "/wh_1/deliveries"),
        ("POST", PATH + "/wh_1/deliveries/evt_1/resend"),
    ],
)
async def test_every_route_needs_a_wallet(harness: Harness, method: str, path: str) -> None:
    answer = await harness.send(method, path, wallet=None)
    assert (answer.status_code, code_of(answer)) == (401, Code.AUTHENTICATION_REQUIRED)


@pytest.mark.parametrize(
    ("method", "rest"), [("DELETE", ""), ("GET", "/deliveries"), ("POST", "/deliveries/evt_1/resend")]
)
async def test_a_webhook_of_another_wallet_is_not_found(harness: Harness, method: str, rest: str) -> None:
    created = await harness.register()
    path = f"{PATH}/{created['id']}{rest}"
    foreign = await harness.send(method, path, wallet=BOB)
    missing = await harness.send(method, f"{PATH}/wh_nothing{rest}", wallet=BOB)
    assert foreign.status_code == missing.status_code == 404
    assert code_of(foreign) == code_of(missing) == Code.WEBHOOK_NOT_FOUND
    assert foreign.json()["detail"] == missing.json()["detail"]
    assert await harness.count_rows() == 1


async def fail_one(harness: Harness) -> tuple[str, str]:
    """A webhook with one dead letter. Gives both ids."""
    await PaymentLedgerStore(harness.webhooks.database).record_payments([new_payment(5)], now_ms=NOW_MS)
    endpoint = await harness.webhooks.activate(ALICE)
    events = harness.webhooks.events.make_events(
        EventType.PAYMENT_CREDITED,
        (ALICE,),
        subject="1",
        state="final",
        at_ms=harness.webhooks.now_ms,
        units=5,
    )
    await harness.webhooks.database.write(lambda connection: write_events(connection, events))
    await harness.webhooks.outbox.spread_events()
    attempt = await harness.webhooks.outbox.begin_attempt(endpoint.id, now_ms=harness.webhooks.now_ms)
    assert attempt is not None
    await harness.webhooks.outbox.end_attempt(
        attempt, Response(status=500), next_ms=None, now_ms=harness.webhooks.now_ms
    )
    return endpoint.id, events[0].id


async def test_a_dead_letter_is_listed_and_sent_again(harness: Harness) -> None:
    webhook_id, event_id = await fail_one(harness)
    path = f"{PATH}/{webhook_id}/deliveries"
    listed = (await harness.send("GET", f"{path}?state=dead")).json()
    (delivery,) = listed["deliveries"]
    assert delivery == {
        "eventId": event_id,
        "type": "payment.credited",
        "timestamp": "2027-01-15T08:00:05.000Z",
        "state": "dead",
        "messageId": event_id,
        "attempts": 1,
        "nextAttemptAt": None,
        "lastAttemptAt": "2027-01-15T08:00:05.000Z",
        "lastStatus": 500,
        "lastError": None,
    }
    answer = await harness.send("POST", f"{path}/{event_id}/resend")
    assert (answer.status_code, answer.json()) == (202, {"eventId": event_id, "state": "pending"})
    again = await harness.send("POST", f"{path}/{event_id}/resend")
    assert (again.status_code, code_of(again)) == (412, Code.PRECONDITION_FAILED)
    assert again.json()["reason"] == "pending"


async def test_nothing_is_sent_again_to_a_webhook_that_is_not_active(harness: Harness) -> None:
    webhook_id, event_id = await fail_one(harness)
    (endpoint,) = await harness.webhooks.store.list_of(ALICE)
    await harness.webhooks.set_endpoint(endpoint, state="disabled")
    answer = await harness.send("POST", f"{PATH}/{webhook_id}/deliveries/{event_id}/resend")
    assert (answer.status_code, answer.json()["reason"]) == (412, "not_active")


@pytest.mark.parametrize(
    "query", ["state=lost", "limit=0", "limit=201", "limit=x", "before=" + "a" * 65, "page=1", "state="]
)
async def test_a_bad_query_is_refused(harness: Harness, query: str) -> None:
    created = await harness.register()
    answer = await harness.send("GET", f"{PATH}/{created['id']}/deliveries?{query}")
    assert (answer.status_code, code_of(answer)) == (422, Code.VALIDATION_FAILED)


async def test_a_gap_is_shown(harness: Harness) -> None:
    await harness.register()
    (endpoint,) = await harness.webhooks.store.list_of(ALICE)
    await harness.webhooks.set_endpoint(
        endpoint, state="stopped", reason="too_many_pending", gap_from_ms=NOW_MS
    )
    (shown,) = (await harness.send("GET", PATH)).json()["webhooks"]
    assert (shown["state"], shown["reason"]) == ("stopped", "too_many_pending")
    assert shown["gap"] == {"from": "2027-01-15T08:00:00.000Z", "to": None}
