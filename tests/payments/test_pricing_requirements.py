"""The requirements of an authorisation, each built from one version of a listing's terms."""

from typing import Any

import pytest

from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset, Price, TokenDomain
from tollway.payments.pricing import (
    OperationPrice,
    PaymentRequirement,
    current_requirements,
    list_requirements,
)
from tollway.registry.listing import ChargeOn, Terms

NOW_MS = 1_800_000_000_000
A, B, T = ChainId(8453), ChainId(10), ChainId(84532)
NEW_PAYEE, OLD_PAYEE = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
DOMAIN = TokenDomain(name="USDC", version="2")


def asset(
    chain_id: ChainId, byte: int, symbol: str = "USDC", *, has_domain: bool = True, decimals: int = 6
) -> Asset:
    return Asset(
        chain_id=chain_id,
        token=Address(bytes([byte]) * 20),
        symbol=symbol,
        decimals=decimals,
        domain=DOMAIN if has_domain else None,
    )


USDC_A, BRIDGED_A, PLAIN_A = asset(A, 1), asset(A, 2), asset(A, 3, has_domain=False)
EURC_A, USDC_B, USDC_T = asset(A, 4, "EURC"), asset(B, 5, decimals=18), asset(T, 6)
NATIVE_A = Asset(chain_id=A, token=None, symbol="ETH", decimals=18)


def rules_of(chain_id: ChainId, *assets: Asset) -> ChainRules:
    kind = "test" if chain_id == T else "main"
    return ChainRules(chain_id=chain_id, kind=kind, confirmations=((0, 1),), assets=assets)  # type: ignore[arg-type] # a literal


RULES = {
    A: rules_of(A, USDC_A, NATIVE_A, PLAIN_A, EURC_A, BRIDGED_A),
    B: rules_of(B, USDC_B),
    T: rules_of(T, USDC_T),
}


def operation_price(price: str = "0.01", *, until_s_ago: int | None = None, **given: Any) -> OperationPrice:
    fields: dict[str, Any] = {
        "price": Price.parse("9"),
        "currency": "USDC",
        "networks": (A, B),
        "pay_to": NEW_PAYEE,
        "operations": (),
        "other_paths": "serve",
        "methods": (),
        "described": (),
        "status": "active",
        "charge_on": ChargeOn.SUCCESS,
        "since_ms": 0,
        "until_ms": None if until_s_ago is None else NOW_MS - until_s_ago * 1000,
    }
    return OperationPrice(terms=Terms(**{**fields, **given}), price=Price.parse(price))


def listed(*operation_prices: OperationPrice) -> list[tuple[Asset, int, Address]]:
    found = list_requirements(operation_prices, RULES, timeout_s=30, now_ms=NOW_MS, limits=DEFAULT_LIMITS)
    assert all(one.max_timeout_s == 90 for one in found)
    return [(one.asset, one.base_units, one.pay_to) for one in found]


def test_the_listings_networks_come_in_its_order_then_their_assets() -> None:
    assert listed(operation_price(networks=(B, A))) == [
        (USDC_B, 10**16, NEW_PAYEE),
        (USDC_A, 10_000, NEW_PAYEE),
        (BRIDGED_A, 10_000, NEW_PAYEE),
    ]


@pytest.mark.parametrize(
    ("changes", "price"),
    [
        ({}, "0"),
        ({"currency": "ETH"}, "0.01"),
        ({"currency": "DOGE"}, "0.01"),
        ({"networks": (ChainId(137),)}, "0.01"),
        ({"networks": ()}, "0.01"),
    ],
)
def test_no_requirement_where_no_authorisation_can_pay(changes: dict[str, Any], price: str) -> None:
    assert listed(operation_price(price, **changes)) == []
    assert current_requirements(operation_price(price, **changes), RULES, timeout_s=30) == ()


def test_every_version_of_the_last_ten_minutes_counts_the_current_one_first() -> None:
    older = operation_price("0.02", until_s_ago=600, pay_to=OLD_PAYEE, networks=(B,))
    ended = operation_price("0.03", until_s_ago=601)
    assert listed(operation_price(networks=(A,)), older, ended) == [
        (USDC_A, 10_000, NEW_PAYEE),
        (BRIDGED_A, 10_000, NEW_PAYEE),
        (USDC_B, 2 * 10**16, OLD_PAYEE),
    ]


def test_versions_are_never_mixed() -> None:
    """The cheap price of one version with the payee of another is no requirement of either."""
    found = listed(
        operation_price("0.05", networks=(A,)),
        operation_price("0.01", until_s_ago=5, pay_to=OLD_PAYEE, networks=(A,)),
    )
    assert (USDC_A, 50_000, NEW_PAYEE) in found
    assert (USDC_A, 10_000, OLD_PAYEE) in found
    assert (USDC_A, 10_000, NEW_PAYEE) not in found
    assert (USDC_A, 50_000, OLD_PAYEE) not in found


def test_equal_versions_count_once_with_the_rule_of_the_newest() -> None:
    versions = (
        operation_price(charge_on=ChargeOn.ANSWERED, networks=(B,)),
        operation_price(until_s_ago=5, networks=(B,)),
        operation_price(until_s_ago=60, networks=(B,)),
    )
    found = list_requirements(versions, RULES, timeout_s=30, now_ms=NOW_MS, limits=DEFAULT_LIMITS)
    assert [one.charge_on for one in found] == [ChargeOn.ANSWERED]


def test_a_free_version_does_not_hide_a_paid_one() -> None:
    assert listed(
        operation_price("0", networks=(B,)), operation_price("0.01", until_s_ago=5, networks=(B,))
    ) == [(USDC_B, 10**16, NEW_PAYEE)]


def test_test_money_does_not_buy_calls_of_a_main_network() -> None:
    assert listed(operation_price(networks=(B,)), operation_price(until_s_ago=5, networks=(T,))) == [
        (USDC_B, 10**16, NEW_PAYEE)
    ]


def test_a_quote_is_of_the_given_version_alone() -> None:
    quoted = current_requirements(operation_price("0.02", networks=(B, A)), RULES, timeout_s=5)
    assert [(one.asset, one.units, one.max_timeout_s) for one in quoted] == [
        (USDC_B, 20_000_000, 65),
        (USDC_A, 20_000, 65),
        (BRIDGED_A, 20_000, 65),
    ]
    assert isinstance(quoted[0], PaymentRequirement)
    assert (quoted[0].network, quoted[0].base_units) == ("eip155:10", 2 * 10**16)


def test_no_versions_give_no_requirements() -> None:
    assert listed() == []
