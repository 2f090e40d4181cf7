"""The warnings about a valid listing."""

from dataclasses import replace

import pytest

from tests.kit.metering import sample_metering
from tests.kit.narrowing import of_type
from tests.kit.openapi_documents import openapi_document
from tollway.ids import Address, ChainId, ListingId
from tollway.money import Asset, Price
from tollway.registry.draft import Draft, DraftRules, create_listing, parse_draft
from tollway.registry.listing import Listing, Operation
from tollway.registry.listing_warnings import list_warnings

BASE, OPTIMISM = ChainId(8453), ChainId(10)
TOKEN = Address(b"\x11" * 20)
ASSETS = (
    Asset(chain_id=BASE, token=TOKEN, symbol="USDC", decimals=6),
    Asset(chain_id=OPTIMISM, token=TOKEN, symbol="USDC", decimals=6),
    Asset(chain_id=BASE, token=None, symbol="ETH", decimals=18),
)
RULES = DraftRules(
    assets=ASSETS,
    main_networks=frozenset({BASE, OPTIMISM}),
    allow_private_endpoints=False,
    check_endpoint=lambda text: None,
)


def listing(price: str, currency: str = "USDC", networks: tuple[ChainId, ...] = (BASE,)) -> Listing:
    body = {"name": "x", "pricePerRequest": price, "currency": currency, "endpoint": "https://x.example.com"}
    draft = of_type(Draft, parse_draft(body, RULES, previous=None))
    made = create_listing(draft, listing_id=ListingId("api_1"), provider=Address(20), now_ms=0)
    return replace(made, networks=networks)


DEAR_OPERATION = (Operation(method="GET", path="/", price=Price.parse("5")),)


@pytest.mark.parametrize(
    ("subject", "codes"),
    [
        (listing("1"), []),
        (listing("1.000001"), ["price_above_client_default"]),
        (replace(listing("0.01"), operations=DEAR_OPERATION), ["price_above_client_default"]),
        (replace(listing("0"), operations=DEAR_OPERATION), ["price_above_client_default"]),
        (listing("5", "ETH"), ["unusual_currency"]),
        (listing("1", networks=(OPTIMISM,)), ["unusual_currency"]),
        (listing("1", networks=(OPTIMISM, BASE)), []),
        (listing("0", "ETH"), []),
        (replace(listing("5"), metering=sample_metering()), ["metered_by_transaction"]),
        (
            replace(listing("5"), metering=sample_metering(), operations=DEAR_OPERATION),
            ["metered_by_transaction", "price_above_client_default"],
        ),
        (
            replace(listing("1"), operations=(replace(DEAR_OPERATION[0], metering=sample_metering()),)),
            ["metered_by_transaction"],
        ),
    ],
)
def test_warnings(subject: Listing, codes: list[str]) -> None:
    assert [warnings.code for warnings in list_warnings(subject, ASSETS)] == codes


def test_a_warning_names_headers_that_are_not_forwarded() -> None:
    names = ["X-Lang", "x-lang", "Accept", "Range", "X-Known", "X-Payment", "X-Tenant"]
    parameters = [{"name": name, "in": "header"} for name in names]
    operation = {"parameters": parameters}
    document = openapi_document({"/a": {"get": operation, "post": operation}})
    (warnings,) = list_warnings(replace(listing("0"), openapi=document, forward_headers=("x-known",)), ASSETS)
    assert (warnings.code, warnings.pointer) == ("header_not_forwarded", "/forwardHeaders")
    assert warnings.detail.endswith("contain: X-Lang, X-Tenant.")


def test_a_warning_names_response_headers_that_no_caller_gets() -> None:
    promised = {"headers": {"X-Accel-Expires": {}, "ETag": {}, "Content-Length": {}, "Set-Cookie": {}, 7: {}}}
    entry = {
        "get": {"responses": {"200": {"$ref": "#/components/responses/Promised"}}},
        "post": {"responses": {"default": promised, "404": None}},
        "put": {"responses": []},
    }
    document = openapi_document({"/a": entry}, components={"responses": {"Promised": promised}})
    (warning,) = list_warnings(replace(listing("0"), openapi=document), ASSETS)
    assert (warning.code, warning.pointer) == ("header_not_returned", "/openapi")
    assert warning.detail.endswith("gets: x-accel-expires, set-cookie.")
