"""The payment options as JSON. (Lists and details are tested with their routes.)"""

from dataclasses import replace

from tests.kit.listings import sample_listing
from tests.kit.metering import TOKENS, TOKENS_IN_WORDS, sample_metering
from tests.kit.payer import USDC
from tollway.ids import Address, ListingId
from tollway.money import Price
from tollway.payments.pricing import ChannelOffer, PaymentRequirement
from tollway.registry.catalog import ListingMatch
from tollway.registry.listing import ChargeOn, PaymentOption
from tollway.registry.metering import OfferedPrice
from tollway.registry.quality import UNKNOWN_REPUTATION
from tollway.web.api.listing_json import ListingEncoder, option_json, read_channels

PAYEE = Address(b"\xaa" * 20)
SAME = {
    "network": "eip155:84532",
    "chainId": 84532,
    "asset": "eip155:84532/erc20:0x036cbd53842c5426634e7929541ec2318f3dcf7e",
    "token": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
    "symbol": "USDC",
    "decimals": 6,
    "amount": "10000",
    "payTo": str(PAYEE),
}


def test_a_transaction_of_the_callers_own() -> None:
    option = PaymentOption(rail="tx", asset=USDC, amount_base_units=10_000, pay_to=PAYEE, confirmations=2)
    assert option_json(option) == {
        "rail": "tx",
        **SAME,
        "confirmations": 2,
        "headers": ["X-Payment-Tx", "X-Signature"],
    }


def test_an_authorisation_has_the_same_amounts_and_its_signing_domain() -> None:
    option = PaymentOption(
        rail="x402", asset=USDC, amount_base_units=10_000, pay_to=PAYEE, confirmations=2, max_timeout_s=90
    )
    assert option_json(option) == {
        "rail": "x402",
        "version": 2,
        "header": "PAYMENT-SIGNATURE",
        **SAME,
        "maxTimeoutSeconds": 90,
        "extra": {"name": "USDC", "version": "2"},
    }


def test_a_channel_has_what_a_client_needs_to_open_it() -> None:
    requirement = PaymentRequirement(
        asset=USDC,
        price=Price.parse("0.01"),
        units=10_000,
        pay_to=PAYEE,
        charge_on=ChargeOn.SUCCESS,
        max_timeout_s=90,
        channel=ChannelOffer(authorizer=PAYEE, withdraw_delay=900, deposit_min=250_000),
    )
    exact = replace(requirement, channel=None)
    encoder = replace(SHAPE, find_channels=lambda listing, price: read_channels([exact, requirement]))
    transaction, channel = encoder.options(LISTING, OfferedPrice(Price.parse("0.01")))
    assert transaction["rail"] == "tx"
    assert channel == {
        "rail": "channel",
        "version": 2,
        "header": "PAYMENT-SIGNATURE",
        **SAME,
        "maxTimeoutSeconds": channel["maxTimeoutSeconds"],
        "extra": {
            "name": "USDC",
            "version": "2",
            "minDeposit": "250000",
            "receiverAuthorizer": str(PAYEE),
            "withdrawDelay": 900,
        },
    }


SHAPE = ListingEncoder(
    public_url="https://gw.example.com", assets=(USDC,), confirmations_for=lambda asset, units: 1
)
LISTING = sample_listing(provider=PAYEE, id=ListingId("api_7"), networks=(USDC.chain_id,))


def test_links_name_every_document_of_the_listing() -> None:
    api = "https://gw.example.com/api/v2/apis/api_7"
    assert SHAPE.links(LISTING) == {
        "self": api,
        "gateway": "https://gw.example.com/api/v2/gateway/api_7",
        "discovery": f"{api}/discovery",
        "agent": f"{api}/agent",
        "openapi": f"{api}/openapi.json",
        "llms": f"{api}/llms.txt",
        "mcp": "https://gw.example.com/mcp/api_7",
        "ownership": f"{api}/ownership",
    }


def test_the_link_header_has_a_relation_for_each_document() -> None:
    api = "https://gw.example.com/api/v2/apis/api_7"
    assert SHAPE.link_header(LISTING).split(", ") == [
        f'<{api}/agent>; rel="describedby"; type="application/json"',
        f'<{api}/discovery>; rel="service-meta"; type="application/json"',
        f'<{api}/openapi.json>; rel="service-desc"; type="application/openapi+json"',
        f'<{api}/llms.txt>; rel="service-doc"; type="text/markdown"',
    ]


def test_an_operation_of_another_price_is_paid_in_the_same_ways() -> None:
    (option,) = SHAPE.options(LISTING, OfferedPrice(Price.parse("0.5")))
    assert (option["rail"], option["amount"]) == ("tx", "500000")


METERED_PRICE = {
    "mode": "metered",
    "amount": "0.02",
    "currency": "USDC",
    "formula": TOKENS_IN_WORDS,
    "metering": TOKENS,
}


def test_a_list_says_what_a_metered_call_costs() -> None:
    metered = replace(LISTING, price=Price.parse("0.02"), metering=sample_metering())
    items = [
        SHAPE.item(ListingMatch(listing=one, match=(), reputation=UNKNOWN_REPUTATION), has_match=False)
        for one in (LISTING, metered)
    ]
    assert [item.get("pricing") for item in items] == [None, METERED_PRICE]
    assert [len(item) for item in items] == [7, 8]


def test_the_details_of_a_metered_listing_offer_no_authorisation() -> None:
    encoder = replace(SHAPE, is_offered=lambda asset, units, listing_id: True)
    metered = replace(LISTING, price=Price.parse("0.02"), metering=sample_metering())
    fixed, pricing = (encoder.pricing(one) for one in (LISTING, metered))
    assert [one["rail"] for one in fixed["options"]] == ["tx", "x402"]
    (option,) = pricing.pop("options")
    assert (option["rail"], option["amount"]) == ("tx", "20000")
    assert pricing == METERED_PRICE
    assert encoder.details(metered, UNKNOWN_REPUTATION)["metering"] == TOKENS
