"""The payment options, with amounts in base units."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.listings import sample_listing
from tests.kit.metering import sample_metering
from tollway.ids import Address, ChainId
from tollway.money import Asset, Price, TokenDomain
from tollway.registry.listing import Terms, list_payment_options, list_transaction_options
from tollway.registry.metering import OfferedPrice

PAYEE, TOKEN, OTHER = Address(b"\xaa" * 20), Address(b"\x11" * 20), Address(b"\x22" * 20)
A, B, C = ChainId(1), ChainId(2), ChainId(3)
SIX = Asset(chain_id=A, token=TOKEN, symbol="USDC", decimals=6)
BRIDGED = Asset(chain_id=A, token=OTHER, symbol="USDC", decimals=6)
EIGHTEEN = Asset(chain_id=B, token=TOKEN, symbol="USDC", decimals=18)
TWO = Asset(chain_id=B, token=OTHER, symbol="CENT", decimals=2)
NATIVE = Asset(chain_id=A, token=None, symbol="ETH", decimals=18)
ASSETS = (SIX, NATIVE, EIGHTEEN, TWO, BRIDGED)


def terms_of(**changes: Any) -> Terms:
    return sample_listing(provider=PAYEE, **changes).current_terms(since_ms=0)


def options(price: str, currency: str, *networks: ChainId) -> list[tuple[Asset, int]]:
    terms = terms_of(price=Price.parse("9"), currency=currency, networks=networks)
    found = list_transaction_options(
        terms, Price.parse(price), assets=ASSETS, confirmations_for=lambda asset, units: 7
    )
    assert all((option.rail, option.pay_to, option.confirmations) == ("tx", PAYEE, 7) for option in found)
    return [(option.asset, option.amount_base_units) for option in found]


@pytest.mark.parametrize(
    ("price", "currency", "networks", "expected"),
    [
        ("0.01", "USDC", (A,), [(SIX, 10_000), (BRIDGED, 10_000)]),
        ("0.01", "USDC", (B, A), [(EIGHTEEN, 10**16), (SIX, 10_000), (BRIDGED, 10_000)]),
        ("0.000000001", "USDC", (B,), [(EIGHTEEN, 10**9)]),
        ("1.5", "ETH", (A, B), [(NATIVE, 15 * 10**17)]),
        ("0.001", "CENT", (B,), [(TWO, 1)]),  # never free in a coarser asset
        ("1", "USDC", (C,), []),
        ("1", "DOGE", (A,), []),
        ("0", "USDC", (A,), []),
        ("0.00", "USDC", (A,), []),
    ],
)
def test_options(
    price: str, currency: str, networks: tuple[ChainId, ...], expected: list[tuple[Asset, int]]
) -> None:
    assert options(price, currency, *networks) == expected


def test_confirmations_depend_on_the_value_in_ledger_units() -> None:
    asked: list[tuple[Asset, int]] = []

    def confirmations_for(asset: Asset, units: int) -> int:
        asked.append((asset, units))
        return 1

    terms = terms_of(price=Price.parse("2"), currency="USDC", networks=(A, B))
    list_transaction_options(terms, terms.price, assets=(SIX, EIGHTEEN), confirmations_for=confirmations_for)
    assert asked == [(SIX, 2 * 10**6), (EIGHTEEN, 2 * 10**9)]


def test_an_authorisation_follows_each_asset_that_supports_it_and_can_be_settled() -> None:
    domain = TokenDomain(name="USDC", version="2")
    signed, unsettled = replace(SIX, domain=domain), replace(BRIDGED, domain=domain)
    terms = terms_of(price=Price.parse("9"), currency="USDC", networks=(B, A))
    asked: list[tuple[Asset, int]] = []

    def is_offered(asset: Asset, units: int) -> bool:
        asked.append((asset, units))
        return asset == signed

    found = list_payment_options(
        terms,
        OfferedPrice(Price.parse("0.01")),
        assets=(signed, EIGHTEEN, unsettled),
        confirmations_for=lambda asset, units: 7,
        timeout_s=30,
        is_offered=is_offered,
        channels={},
    )
    assert [(one.rail, one.asset, one.max_timeout_s) for one in found] == [
        ("tx", EIGHTEEN, None),
        ("tx", signed, None),
        ("x402", signed, 90),
        ("tx", unsettled, None),
    ]
    assert {one.amount_base_units for one in found if one.asset == signed} == {10_000}
    assert asked == [(signed, 10_000), (unsettled, 10_000)]  # EIGHTEEN takes no authorisation


@pytest.mark.parametrize(
    ("has_channels", "rails"), [(False, ["tx"]), (True, ["tx", "channel"])], ids=["no channels", "channels"]
)
def test_a_metered_price_is_paid_by_transactions_and_channels_alone(
    *, has_channels: bool, rails: list[str]
) -> None:
    signed = replace(SIX, domain=TokenDomain(name="USD Coin", version="2"))
    found = list_payment_options(
        terms_of(currency="USDC", networks=(A,)),
        OfferedPrice(Price.parse("0.02"), sample_metering()),
        assets=(signed,),
        confirmations_for=lambda asset, units: 7,
        timeout_s=30,
        is_offered=lambda asset, units: True,
        channels={signed: {"minDeposit": "1"}} if has_channels else {},
    )
    assert [(one.rail, one.amount_base_units) for one in found] == [(rail, 20_000) for rail in rails]


def test_a_channel_follows_the_authorisation_of_its_asset() -> None:
    signed = replace(SIX, domain=TokenDomain(name="USDC", version="2"))
    found = list_payment_options(
        terms_of(currency="USDC", networks=(A, B)),
        OfferedPrice(Price.parse("0.01")),
        assets=(signed, EIGHTEEN),
        confirmations_for=lambda asset, units: 7,
        timeout_s=30,
        is_offered=lambda asset, units: True,
        channels={signed: {"minDeposit": "1"}},
    )
    own = [one for one in found if one.asset == signed]
    assert [(one.rail, one.max_timeout_s) for one in own] == [("tx", None), ("x402", 90), ("channel", 90)]
    assert own[-1].channel == {"minDeposit": "1"}
    assert [one.rail for one in found if one.asset == EIGHTEEN] == ["tx"]
