"""The walk-through with gateways that respond wrongly. A correct gateway is in tests/cli/test_demo.py."""

from collections.abc import Callable

import aiohttp
import httpx
import pytest

from tollway.ids import ChainId
from tollway.money import Asset
from tollway.sandbox.chain import (
    USDC_ADDRESS,
    ChainDriver,
    Contract,
    Playground,
    load_test_usdc,
    make_account,
)
from tollway.sandbox.tour import Tour, TourEvent, TourFailed, TourPayment

CHAIN = ChainId(84532)
Answer = Callable[[httpx.Request], httpx.Response]


def is_create(request: httpx.Request) -> bool:
    return (request.method, request.url.path) == ("POST", "/api/v2/apis")


FILE = {"wellKnown": {"url": "http://127.0.0.1:3/.well-known/tollway-verification", "content": "a line"}}


def created_then(
    answer: httpx.Response,
    *,
    challenge: object = FILE,
    state: object = "verified",
    found: object = "api_1",
    told: object = "api_1",
) -> Answer:
    """`challenge`, `state`: of the proof. `found`, `told`: the ids in the search and in the agent document."""

    def respond(request: httpx.Request) -> httpx.Response:
        if is_create(request):
            return httpx.Response(201, json={"id": "api_1"})
        if request.url.path == "/api/v2/apis/api_1/ownership":
            return httpx.Response(200, json={"challenge": challenge, "state": state})
        if request.url.path == "/api/v2/apis":
            return httpx.Response(200, json={"apis": [{"id": found}]})
        if request.url.path == "/api/v2/apis/api_1/agent":
            return httpx.Response(200, json={"id": told})
        return answer

    return respond


def cut(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("reset")


STOPS: dict[str, tuple[Answer, str]] = {
    "no answer": (cut, "got no response"),
    "not created": (lambda request: httpx.Response(503), "returned 503 instead of 201"),
    "no JSON": (lambda request: httpx.Response(201, text="hello"), "not JSON"),
    "no object": (lambda request: httpx.Response(201, json=[1]), "not an object"),
    "no id": (lambda request: httpx.Response(201, json={}), "has no id"),
    "nothing to put": (created_then(httpx.Response(402), challenge={}), "names no file"),
    "not proved": (created_then(httpx.Response(402), state="unverified"), "the ownership is unverified"),
    "not found": (created_then(httpx.Response(402), found="api_2"), "does not find the listing"),
    "told of another": (created_then(httpx.Response(402), told="api_2"), "not of the listing"),
    "served unpaid": (created_then(httpx.Response(200, json={})), "returned 200 instead of 402"),
    "no terms": (created_then(httpx.Response(402, json={})), "offers no payment"),
    "another payee": (
        created_then(
            httpx.Response(
                402,
                json={
                    "payment": {
                        "options": [
                            {
                                "rail": "tx",
                                "token": str(USDC_ADDRESS),
                                "amount": "1",
                                "payTo": "0x" + "1" * 40,
                            }
                        ]
                    }
                },
            )
        ),
        "another payTo",
    ),
}


@pytest.mark.parametrize("case", STOPS)
async def test_stops_at_the_first_step_that_goes_wrong_and_pays_nothing(case: str) -> None:
    answer, words = STOPS[case]
    events: list[TourEvent] = []
    files: dict[str, str] = {}
    async with (
        aiohttp.ClientSession() as session,
        httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http,
    ):
        tour = make_tour(events.append, session, http, files)
        with pytest.raises(TourFailed, match=words):
            await tour.run()
    assert not any(isinstance(event, TourPayment) for event in events)
    signed = [event.request.headers.keys() for event in events if isinstance(event, httpx.Response)][:1]
    assert all({"content-digest", "signature-input", "signature"} <= names for names in signed)
    assert files in ({}, {"/.well-known/tollway-verification": "a line\n"})


def make_tour(
    report: Callable[[TourEvent], None],
    session: aiohttp.ClientSession,
    http: httpx.AsyncClient,
    files: dict[str, str],
) -> Tour:
    """The chain of its caller does not respond."""
    playground = Playground(
        rpc_url="http://127.0.0.1:1",
        token=Contract(artifact=load_test_usdc(), address=USDC_ADDRESS),
        usdc=Asset(chain_id=CHAIN, token=USDC_ADDRESS, symbol="USDC", decimals=6),
        native=Asset(chain_id=CHAIN, token=None, symbol="ETH", decimals=18),
        accounts=tuple(make_account(role) for role in ("provider", "visitor")),
    )
    return Tour(
        gateway_url="http://127.0.0.1:2",
        upstream_url="http://127.0.0.1:3",
        put_file=files.__setitem__,
        driver=ChainDriver(session, playground.rpc_url, CHAIN),
        playground=playground,
        http=http,
        report=report,
        claim=claim_nothing,
    )


async def claim_nothing() -> None: ...


def terms_of(tour: Tour, **changes: object) -> httpx.Response:
    option = {
        "rail": "x402",
        "network": "eip155:84532",
        "token": str(USDC_ADDRESS),
        "symbol": "USDC",
        "decimals": 6,
        "amount": "10000",
        "payTo": str(tour._provider.address),
        "maxTimeoutSeconds": 90,
        "extra": {"name": "USDC", "version": "2"},
        **changes,
    }
    return httpx.Response(
        402, json={"payment": {"options": [option]}}, request=httpx.Request("GET", "http://127.0.0.1:2/")
    )


@pytest.mark.parametrize(
    ("changes", "answer", "words", "is_shown"),
    [
        ({"rail": "tx"}, httpx.Response(200), "offers no payment by an authorisation", False),
        ({"token": "0x" + "1" * 40}, httpx.Response(200), "offers no payment by an authorisation", False),
        ({"payTo": "0x" + "1" * 40}, httpx.Response(200), "the x402 terms differ", False),
        ({"amount": "10001"}, httpx.Response(200), "the x402 terms differ", False),
        ({}, httpx.Response(402, json={}), "returned 402 instead of 200", True),
        ({}, httpx.Response(200), "its payment is None", True),
        (
            {},
            httpx.Response(200, headers={"tollway-call-id": "call_1", "tollway-payment-state": "charged"}),
            "no receipt",
            True,
        ),
    ],
)
async def test_signs_no_terms_but_the_listings_and_wants_a_receipt(
    changes: dict[str, object], answer: httpx.Response, words: str, is_shown: bool
) -> None:
    shown: list[str] = []
    events: list[TourEvent] = []

    def keep(request: httpx.Request) -> httpx.Response:
        shown.append(request.headers["payment-signature"])
        return answer

    async with (
        aiohttp.ClientSession() as session,
        httpx.AsyncClient(transport=httpx.MockTransport(keep)) as http,
    ):
        tour = make_tour(events.append, session, http, {})
        with pytest.raises(TourFailed, match=words):
            await tour._call_by_signature("/", terms_of(tour, **changes))
    assert bool(shown) is is_shown
    assert not any(isinstance(event, TourPayment) for event in events)


@pytest.mark.parametrize("changes", [{"payTo": "0x" + "1" * 40}, {"amount": "10001"}])
async def test_pays_no_metered_price_above_that_of_the_listing(changes: dict[str, object]) -> None:
    events: list[TourEvent] = []
    tour: Tour
    async with (
        aiohttp.ClientSession() as session,
        httpx.AsyncClient(
            transport=httpx.MockTransport(lambda _: terms_of(tour, rail="tx", **changes))
        ) as http,
    ):
        tour = make_tour(events.append, session, http, {})
        with pytest.raises(TourFailed, match="differs from the listing"):
            await tour._call_metered("/")
    assert not any(isinstance(event, TourPayment) for event in events)
