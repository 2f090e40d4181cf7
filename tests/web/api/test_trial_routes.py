"""Trial calls: only the provider makes them, they reach the upstream as paid calls do, and nothing is left in the ledger."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from pydantic_core import to_json

from tests.kit.gateway import HOST, PROVIDER, PUBLIC_URL, InProcessGateway, open_gateway
from tests.kit.listings import find_block_in
from tests.kit.metering import sample_metering
from tests.kit.routes import RouteHarness, code_of, places_of
from tests.kit.upstream import Answerer, hang_up, plain, raw, say_nothing
from tollway.client.provider import ForwardedVerifier
from tollway.gateway.trial import RESPONSE_BYTES_MAX, TrialCalls, store_nothing
from tollway.ids import Address, ListingId
from tollway.ledger.history import HistoryQuery
from tollway.limits import Limits
from tollway.money import Price
from tollway.outbound.client import HttpClient
from tollway.registry.listing import ChargeOn, Listing, Operation, UpstreamAuth
from tollway.web.api.trial_routes import trial_router

STRANGER = Address(b"\xdd" * 20)
PATH = "/api/v2/apis/api_quotes/trial"
LIMITS = Limits(trials_per_hour=3)
SECRET = UpstreamAuth(location="header", name="X-Key", value="s3cret")


class Harness(RouteHarness):
    def __init__(self, gateway: InProcessGateway, *, only_verified: bool = False) -> None:
        self.gateway = gateway
        self.verified: set[ListingId] = set()
        proxy = gateway._make_proxy()
        proxy._store_response = store_nothing
        trials = TrialCalls(
            host=HOST,
            allow_private=True,
            proxy=proxy,
            ledger=gateway.ledger,
            access=gateway.access,
            limits=gateway.limits,
            clock=gateway.claim_clock,
            is_verified=self.is_verified if only_verified else None,
        )
        super().__init__(
            catalog=gateway.catalog,
            trials=trials,
            find_block=find_block_in(gateway.blocked),
            limits=LIMITS,
            now_ms=lambda: gateway.now_ms,
        )

    async def is_verified(self, listing_id: ListingId) -> bool:
        return listing_id in self.verified

    async def try_call(
        self,
        body: object = None,
        *,
        wallet: Address | None = PROVIDER,
        path: str = PATH,
        raw_body: bytes | None = None,
    ) -> httpx.Response:
        return await self.send("POST", path, body or {}, wallet=wallet, raw=raw_body)

    async def check_nothing_recorded(self) -> None:
        """No call of the provider in any role, no payment, no measured quality."""
        for role in ("payer", "provider"):
            page = await self.gateway.ledger.history(
                HistoryQuery(wallet=PROVIDER, role=role, limit=10, offset=0)  # type: ignore[arg-type]  # a literal of two
            )
            assert page.calls == ()
        report = await self.gateway.ledger.audit()
        assert (report.is_balanced, report.calls, report.payments) == (True, 0, 0)
        assert not self.gateway.tally.take_counts()


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    options: dict[str, Any] = getattr(request, "param", {})
    async with open_gateway() as gateway:
        if options.get("refuses_private"):
            await gateway.http_client.close()
            gateway.http_client = HttpClient(limits=gateway.limits, allow_private=False)
        harness = Harness(gateway, only_verified=options.get("only_verified", False))
        async with harness.open(trial_router):
            yield harness


# ---- The way to the upstream.


async def test_a_trial_with_a_key_brings_a_key_to_an_api_that_names_it(harness: Harness) -> None:
    await harness.gateway.publish(forward_headers=("Idempotency-Key",))
    for _ in range(2):
        answer = await harness.try_call(
            {"method": "POST", "body": "{}", "headers": {"Idempotency-Key": "k1"}}
        )
        assert answer.status_code == 200, answer.text
    first, second = (arrived.find("idempotency-key") for arrived in harness.gateway.upstream.arrived)
    assert first is not None
    assert first == second
    await harness.check_nothing_recorded()


async def test_a_trial_reaches_the_upstream_as_a_paid_call_does(harness: Harness) -> None:
    gateway = harness.gateway
    await gateway.publish(upstream_auth=SECRET)
    gateway.upstream.answer = plain(b'{"rate": 3}', headers=("Content-Type: application/json",))
    sent = {
        "method": "POST",
        "path": "/quote/%45TH?days=3",
        "headers": {"Content-Type": "application/json", "X-Unnamed": "1"},
        "body": '{"q": "\u00e9"}',
    }
    answer = await harness.try_call(sent)
    assert answer.status_code == 200, answer.text
    (arrived,) = gateway.upstream.arrived
    assert (arrived.method, arrived.target) == ("POST", "/base/quote/%45TH?days=3")
    assert bytes(arrived.body).decode() == sent["body"]
    assert (arrived.find("x-key"), arrived.find("content-type")) == ("s3cret", "application/json")
    assert "x-unnamed" not in arrived.names
    verifier = ForwardedVerifier(
        gateway=PUBLIC_URL,
        endpoint=gateway.upstream.url + "/base",
        api_ids=["api_quotes"],
        fetch=lambda url: to_json(gateway.signer.describe()),
        now_s=lambda: gateway.now_ms / 1000,
    )
    forwarded = verifier.verify(arrived.method, arrived.target, arrived.headers, bytes(arrived.body))
    shown = answer.json()
    assert (forwarded.payer, forwarded.covers) == (str(PROVIDER), "digest")
    assert forwarded.call_id == shown["callId"]
    assert (shown["status"], shown["body"], shown["isCut"]) == (200, '{"rate": 3}', False)
    assert shown["headers"]["content-type"] == "application/json"
    assert not [name for name in shown["headers"] if name.startswith("tollway-")]
    await harness.check_nothing_recorded()


@pytest.mark.parametrize(
    ("changes", "path", "status", "would_charge", "price"),
    [
        ({}, "/a", 200, True, "0.01"),
        ({}, "/a", 404, False, "0.01"),
        ({"charge_on": ChargeOn.ANSWERED}, "/a", 404, True, "0.01"),
        ({}, "/a", 500, False, "0.01"),
        ({"price": Price.parse("0")}, "/a", 200, False, "0"),
        (
            {"operations": (Operation(method="GET", path="/b/{id}", price=Price.parse("2")),)},
            "/b/7",
            200,
            True,
            "2",
        ),
    ],
)
async def test_says_what_a_caller_would_pay(
    harness: Harness, changes: dict[str, Any], path: str, status: int, would_charge: bool, price: str
) -> None:
    await harness.gateway.publish(**changes)
    harness.gateway.upstream.answer = plain(b"ok", status=status)
    shown = (await harness.try_call({"path": path})).json()
    assert (shown["status"], shown["wouldCharge"], shown["price"]) == (status, would_charge, price)
    assert shown["currency"] == "USDC"
    await harness.check_nothing_recorded()


def uses(prompt: object, *, padding: int = 0) -> Answerer:
    usage = {"prompt_tokens": prompt, "completion_tokens": 10}
    content = json.dumps({"usage": usage, "text": "x" * padding}).encode()
    return plain(content, headers=("Content-Type: application/json",))


NAMED = [{"unit": "prompt token", "quantity": 20}, {"unit": "completion token", "quantity": 10}]


@pytest.mark.parametrize(
    ("answer", "price", "quantities"),
    [
        (uses(20), "0.00022", NAMED),
        (uses(10**9), "0.01", [{**NAMED[0], "quantity": 10**9}, NAMED[1]]),
        (uses(-1), "0.01", None),
        (uses(20, padding=RESPONSE_BYTES_MAX), "0.01", None),
    ],
    ids=["measured", "more than the maximum", "absent", "longer than a trial reads"],
)
async def test_says_what_a_metered_response_costs(
    harness: Harness, answer: Answerer, price: str, quantities: object
) -> None:
    await harness.gateway.publish(metering=sample_metering())
    harness.gateway.upstream.answer = answer
    shown = (await harness.try_call()).json()
    assert (shown["wouldCharge"], shown["price"], shown["priceMax"]) == (True, price, "0.01")
    assert shown["quantities"] == quantities
    await harness.check_nothing_recorded()


async def test_names_each_header_that_no_caller_gets(harness: Harness) -> None:
    await harness.gateway.publish()
    harness.gateway.upstream.answer = plain(
        b"ok", headers=("X-Accel-Redirect: /my/wallets", "X-Any: 1", 'WWW-Authenticate: Basic realm="x"')
    )
    shown = (await harness.try_call()).json()
    assert shown["headers"]["x-any"] == "1"
    assert not {"x-accel-redirect", "www-authenticate"} & set(shown["headers"])
    assert [(one["code"], one["pointer"]) for one in shown["warnings"]] == [
        ("header_not_returned", "/headers/x-accel-redirect"),
        ("header_not_returned", "/headers/www-authenticate"),
    ]
    assert shown["warnings"][0]["detail"] == (
        "No caller gets the response header x-accel-redirect: a proxy or a cache in front of the gateway would obey it."
    )


async def test_a_paused_listing_can_be_tried(harness: Harness) -> None:
    await harness.gateway.publish(status="paused")
    assert (await harness.try_call()).json()["status"] == 200
    assert (await harness.gateway.ask("GET", "")).status == 503  # callers wait


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (plain(b"\xff\x00"), {"bodyBase64": base64.b64encode(b"\xff\x00").decode(), "isCut": False}),
        (plain(b"x" * (RESPONSE_BYTES_MAX + 1)), {"body": "x" * RESPONSE_BYTES_MAX, "isCut": True}),
        (
            plain(b"<script>", headers=("Content-Type: text/html",)),
            {"body": "<script>", "isCut": False},
        ),
        (
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
            {"body": "ab", "isCut": False},
        ),
    ],
)
async def test_the_response_is_a_member_of_json(
    harness: Harness, answer: Answerer, shown: dict[str, Any]
) -> None:
    await harness.gateway.publish()
    harness.gateway.upstream.answer = answer
    response = await harness.try_call()
    assert response.headers["content-type"] == "application/json"
    assert shown.items() <= response.json().items()


# ---- Refusals.


async def suspend(gateway: InProcessGateway, listing: Listing) -> None:
    await gateway.revise(listing, suspended_ms=1)


async def retire(gateway: InProcessGateway, listing: Listing) -> None:
    await gateway.revise(listing, retired_ms=1)


async def block(gateway: InProcessGateway, listing: Listing) -> None:
    gateway.blocked.add(PROVIDER)


async def leave(gateway: InProcessGateway, listing: Listing) -> None:
    return None


@pytest.mark.parametrize(
    ("prepare", "wallet", "path", "status", "code"),
    [
        (leave, None, PATH, 401, "authentication_required"),
        (leave, STRANGER, PATH, 403, "not_provider"),
        (leave, PROVIDER, PATH.replace("api_quotes", "api_none"), 404, "api_not_found"),
        (leave, PROVIDER, PATH + "?x=1", 422, "validation_failed"),
        (retire, PROVIDER, PATH, 410, "api_retired"),
        (suspend, PROVIDER, PATH, 503, "api_paused"),
        (block, PROVIDER, PATH, 403, "wallet_blocked"),
    ],
)
async def test_refuses_before_anything_is_sent(
    harness: Harness,
    prepare: Callable[..., Any],
    wallet: Address | None,
    path: str,
    status: int,
    code: str,
) -> None:
    await prepare(harness.gateway, await harness.gateway.publish())
    answer = await harness.try_call(wallet=wallet, path=path)
    assert (answer.status_code, code_of(answer)) == (status, code)
    assert harness.gateway.served == 0


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({"method": "get"}, ["/method"]),
        ({"method": "CONNECT"}, ["/method"]),
        ({"method": 1}, ["/method"]),
        ({"path": "quote"}, ["/path"]),
        ({"path": "https://other.example.com/"}, ["/path"]),
        ({"path": "/" + "x" * 2048}, ["/path"]),
        ({"headers": []}, ["/headers"]),
        ({"headers": {"Host": "other.example.com"}}, ["/headers/Host"]),
        ({"headers": {"X-Payment-Tx": "0x00"}}, ["/headers/X-Payment-Tx"]),
        ({"headers": {"Content-Length": "9"}}, ["/headers/Content-Length"]),
        ({"headers": {"a": "b\r\nX-Key: c"}}, ["/headers/a"]),
        ({"headers": {"a b": "c"}}, ["/headers/a b"]),
        ({"headers": {"accept": 1}}, ["/headers/accept"]),
        ({"body": 1}, ["/body"]),
        ({"body": "x" * 65_537}, ["/body"]),
        ({"url": "https://other.example.com"}, ["/url"]),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_refuses_a_body_with_every_pointer(
    harness: Harness, body: dict[str, Any], pointers: list[str]
) -> None:
    await harness.gateway.publish()
    answer = await harness.try_call(body)
    assert (answer.status_code, places_of(answer)) == (422, pointers)
    assert harness.gateway.served == 0


@pytest.mark.parametrize("path", ["/../admin", "/%2e%2e/admin", "/a b", "/a#b"])
async def test_a_path_stays_below_the_endpoint(harness: Harness, path: str) -> None:
    await harness.gateway.publish()
    answer = await harness.try_call({"path": path})
    assert (answer.status_code, code_of(answer)) == (400, "invalid_request")
    assert harness.gateway.served == 0


@pytest.mark.parametrize(
    ("changes", "body", "code"),
    [
        ({"methods": ("GET",)}, {"method": "POST"}, "method_not_allowed"),
        (
            {
                "other_paths": "refuse",
                "operations": (Operation(method="GET", path="/b", price=Price.parse("2")),),
            },
            {"path": "/a"},
            "route_not_found",
        ),
        (
            {
                "openapi": {
                    "openapi": "3.1.0",
                    "paths": {"/a": {"post": {"requestBody": {"required": True, "content": {}}}}},
                }
            },
            {"method": "POST", "path": "/a"},
            "validation_failed",
        ),
        ({}, {"headers": {"via": "1.1 x"}}, "validation_failed"),
    ],
)
async def test_refuses_what_a_call_would_be_refused(
    harness: Harness, changes: dict[str, Any], body: dict[str, Any], code: str
) -> None:
    await harness.gateway.publish(**changes)
    assert code_of(await harness.try_call(body)) == code
    assert harness.gateway.served == 0


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (hang_up, 504, "upstream_timeout"),
        (raw(b"rubbish\r\n\r\n", close=True), 502, "upstream_bad_response"),
        (plain(b"pay me", status=402), 502, "upstream_payment_required"),
    ],
)
async def test_a_failing_upstream_is_explained(
    harness: Harness, answer: Answerer, status: int, code: str
) -> None:
    await harness.gateway.publish()
    harness.gateway.upstream.answer = answer
    refused = await harness.try_call()
    assert (refused.status_code, code_of(refused)) == (status, code), refused.text
    assert {"callId", "call"}.isdisjoint(refused.json())
    assert refused.json()["paymentState"] == "none"
    await harness.check_nothing_recorded()


async def test_a_silent_upstream_is_a_timeout(harness: Harness) -> None:
    await harness.gateway.publish(timeout_s=1)
    harness.gateway.upstream.answer = say_nothing
    refused = await harness.try_call()
    assert (refused.status_code, code_of(refused)) == (504, "upstream_timeout")
    assert {"callId", "call"}.isdisjoint(refused.json())
    await harness.check_nothing_recorded()


async def test_an_upstream_that_is_down_is_unreachable(harness: Harness) -> None:
    await harness.gateway.publish(endpoint="http://127.0.0.1:1/")
    assert code_of(await harness.try_call()) == "upstream_unreachable"
    await harness.check_nothing_recorded()


@pytest.mark.parametrize("harness", [{"refuses_private": True}], indirect=True)
async def test_the_address_guard_holds(harness: Harness) -> None:
    """The endpoint is a name that leads into the private network, as after a change of its DNS record."""
    port = harness.gateway.upstream.port
    await harness.gateway.publish(endpoint=f"http://localhost:{port}/")
    refused = await harness.try_call()
    assert code_of(refused) in ("endpoint_not_allowed", "upstream_unreachable")
    assert (harness.gateway.served, harness.gateway.upstream.accepted) == (0, 0)


@pytest.mark.parametrize("harness", [{"only_verified": True}], indirect=True)
async def test_an_unproved_endpoint_gets_no_trial_where_proof_is_required(harness: Harness) -> None:
    listing = await harness.gateway.publish()
    assert code_of(await harness.try_call()) == "ownership_unverified"
    assert harness.gateway.served == 0
    harness.verified.add(listing.id)
    assert (await harness.try_call()).status_code == 200


# ---- Rates.


async def test_trials_per_wallet_and_hour_are_limited(harness: Harness) -> None:
    await harness.gateway.publish()
    for _ in range(4):
        assert (await harness.try_call({"method": "get"})).status_code == 422  # counts for nothing
    statuses = [(await harness.try_call()).status_code for _ in range(LIMITS.trials_per_hour)]
    answer = await harness.try_call()
    assert statuses == [200] * LIMITS.trials_per_hour
    assert (answer.status_code, code_of(answer)) == (429, "rate_limited")
    assert answer.headers["ratelimit-policy"] == f'"trials";q={LIMITS.trials_per_hour};w=3600'
    assert harness.gateway.served == LIMITS.trials_per_hour


async def test_an_endless_response_is_cut(harness: Harness) -> None:
    await harness.gateway.publish()
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    harness.gateway.upstream.answer = raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[chunk] * 4
    )
    shown = (await harness.try_call()).json()
    assert (shown["isCut"], len(shown["body"])) == (True, RESPONSE_BYTES_MAX)
