"""The price rules as tables: no edit between quote and call costs the caller."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.kit.metering import sample_metering
from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset, Price, TokenDomain
from tollway.payments.pricing import (
    OperationPrice,
    Payee,
    PaymentRequirement,
    begin_by_heads,
    current_requirements,
    does_credit_count,
    find_assets,
    find_chains,
    find_lowest_price,
    find_payees,
    list_requirements,
)
from tollway.registry.listing import ChargeOn, Terms
from tollway.registry.metering import FORMULAS_MAX

BASE, OTHER, TEST = ChainId(8453), ChainId(10), ChainId(84532)
NOW_S = 1_800_000_000
P, Q, R = (Address(bytes([n]) * 20) for n in (1, 2, 3))
TOKEN = Address(b"\xcc" * 20)
USDC = Asset(chain_id=BASE, token=TOKEN, symbol="USDC", decimals=6)
COARSE = Asset(chain_id=BASE, token=Address(b"\xcd" * 20), symbol="USDC", decimals=2)
ETH = Asset(chain_id=BASE, token=None, symbol="ETH", decimals=18)


def rules(chain_id: ChainId, kind: Any = "main") -> ChainRules:
    assets = (
        Asset(chain_id=chain_id, token=TOKEN, symbol="USDC", decimals=6),
        Asset(chain_id=chain_id, token=None, symbol="ETH", decimals=18),
    )
    return ChainRules(chain_id=chain_id, kind=kind, confirmations=((0, 1),), assets=assets)


RULES = {BASE: rules(BASE), OTHER: rules(OTHER), TEST: rules(TEST, "test")}


def version(since_s: int, until_s: int | None = None, **fields: Any) -> Terms:
    """In force from `since_s` to `until_s`, both in seconds before now."""
    defaults: dict[str, Any] = {
        "price": Price.parse("0.01"),
        "currency": "USDC",
        "networks": (BASE,),
        "pay_to": P,
        "operations": (),
        "other_paths": "serve",
        "methods": (),
        "described": (),
        "status": "active",
        "charge_on": ChargeOn.SUCCESS,
        "since_ms": (NOW_S - since_s) * 1000,
        "until_ms": None if until_s is None else (NOW_S - until_s) * 1000,
    }
    return Terms(**{**defaults, **fields})


def operation_prices(*versions: tuple[str, int, int | None], currency: str = "USDC") -> list[OperationPrice]:
    """(price, since, until) each, newest first."""
    return [
        OperationPrice(terms=version(since, until, currency=currency), price=Price.parse(price))
        for price, since, until in versions
    ]


def due(given: list[OperationPrice], *, block_s: int | None = None, asset: Asset = USDC) -> str | None:
    """`block_s`: seconds before now of a payment that has bought nothing yet."""
    found = find_lowest_price(
        given,
        asset,
        now_ms=NOW_S * 1000,
        limits=DEFAULT_LIMITS,
        first_call_block_s=None if block_s is None else NOW_S - block_s,
    )
    return None if found is None else found.price.text


@pytest.mark.parametrize(
    ("versions", "price"),
    [
        ([("0.01", 9_999, None)], "0.01"),
        ([("0.02", 60, None), ("0.01", 9_999, 60)], "0.01"),  # raised a minute ago
        ([("0.02", 600, None), ("0.01", 9_999, 600)], "0.01"),  # ten minutes ago to the second
        ([("0.02", 601, None), ("0.01", 9_999, 601)], "0.02"),
        ([("0.01", 60, None), ("0.02", 9_999, 60)], "0.01"),  # lowered
        ([("0.03", 10, None), ("0.01", 20, 10), ("0.02", 9_999, 20)], "0.01"),  # a dip between
        (
            [("0.03", 10, None), ("0", 20, 10), ("0.02", 9_999, 20)],
            "0.02",
        ),  # a free moment gives nothing away
        ([("0.02", 60, None), ("0", 9_999, 60)], "0.02"),
    ],
)
def test_a_call_costs_the_lowest_paid_price_of_ten_minutes(versions: Any, price: str) -> None:
    assert due(operation_prices(*versions)) == price


@pytest.mark.parametrize(
    ("raised_s", "block_s", "price"),
    [
        (3_000, 3_600, "0.01"),  # paid before the raise, presented long after
        (3_600, 3_000, "0.01"),  # paid ten minutes after the raise
        (3_601, 3_000, "0.02"),  # paid later than that
        (86_000, 86_400, "0.01"),  # presented at the last moment
        (60, -30, "0.01"),  # a block a little ahead of our clock is as good as now
        (590, -30, "0.01"),
        (630, -30, "0.02"),
    ],
)
def test_the_price_of_a_first_call_is_counted_from_the_payments_block(
    raised_s: int, block_s: int, price: str
) -> None:
    given = operation_prices(("0.02", raised_s, None), ("0.01", 99_999, raised_s))
    assert due(given, block_s=block_s) == price


def test_a_later_price_counts_for_the_first_call_when_it_is_lower() -> None:
    assert due(operation_prices(("0.01", 60, None), ("0.02", 99_999, 60)), block_s=3_600) == "0.01"


def test_another_currency_has_no_price() -> None:
    assert due(operation_prices(("0.01", 9_999, None), currency="ETH")) is None
    assert due(operation_prices(("0.01", 9_999, None), currency="ETH"), asset=ETH) == "0.01"


def test_a_changed_currency_is_remembered_like_a_price() -> None:
    old = operation_prices(("0.01", 9_999, 60))
    new = operation_prices(("0.00001", 60, None), currency="ETH")
    assert due(new + old) == "0.01"
    assert due(new + old, asset=ETH) == "0.00001"
    old = operation_prices(("0.01", 9_999, 3_000))
    assert due(new + old) is None
    assert due(new + old, block_s=3_300) == "0.01"


@pytest.mark.parametrize(
    ("old", "new", "price"),
    [
        ((TEST,), (BASE,), "10"),  # sold on a test network before
        ((OTHER,), (BASE,), "10"),
        ((TEST, BASE), (BASE,), "0.001"),
        ((BASE,), (OTHER,), "0.001"),  # dropped a minute ago: the old quote counts
        ((OTHER,), (TEST,), "10"),  # credit of a network that no version names
    ],
)
@pytest.mark.parametrize("block_s", [None, 70_000])
def test_an_older_version_sets_a_price_only_on_its_networks(
    old: tuple[ChainId, ...], new: tuple[ChainId, ...], price: str, block_s: int | None
) -> None:
    given = [
        OperationPrice(terms=version(60, networks=new), price=Price.parse("10")),
        OperationPrice(terms=version(99_999, 60, networks=old), price=Price.parse("0.001")),
    ]
    assert due(given, block_s=block_s) == price


def test_the_current_version_counts_on_a_network_that_it_dropped_long_ago() -> None:
    given = [
        OperationPrice(terms=version(9_000, networks=(OTHER,)), price=Price.parse("10")),
        OperationPrice(terms=version(99_999, 9_000, networks=(BASE,)), price=Price.parse("0.001")),
    ]
    assert due(given) == "10"


def test_both_rails_have_the_same_lowest_price_on_each_network() -> None:
    """Every combination of networks of the current version and two older ones, on the networks of the current one."""
    domain = TokenDomain(name="USDC", version="2")
    assets = {
        one: Asset(chain_id=one, token=TOKEN, symbol="USDC", decimals=6, domain=domain) for one in RULES
    }
    signed = {
        one: ChainRules(chain_id=one, kind=RULES[one].kind, confirmations=((0, 1),), assets=(assets[one],))
        for one in RULES
    }
    named = [(BASE,), (OTHER,), (TEST,), (BASE, OTHER), (TEST, BASE)]
    for current, before, first in product(named, named, named):
        given = [
            OperationPrice(terms=version(10, networks=current), price=Price.parse("10")),
            OperationPrice(terms=version(500, 10, networks=before), price=Price.parse("0.1")),
            OperationPrice(terms=version(9_000, 500, networks=first), price=Price.parse("0.001")),
        ]
        required = list_requirements(given, signed, timeout_s=30, now_ms=NOW_S * 1000, limits=DEFAULT_LIMITS)
        for chain_id in current:
            lowest = min(one.units for one in required if one.asset.chain_id == chain_id)
            assert Price.parse(due(given, asset=assets[chain_id]) or "0").units_in(assets[chain_id]) == lowest


def test_a_free_listing_has_no_price() -> None:
    assert due(operation_prices(("0", 9_999, None))) is None


def test_no_price_becomes_free_in_a_coarser_asset() -> None:
    found = find_lowest_price(
        operation_prices(("0.001", 60, None)),
        COARSE,
        now_ms=NOW_S * 1000,
        limits=DEFAULT_LIMITS,
        first_call_block_s=None,
    )
    assert found is not None
    assert found.price.units_in(COARSE) == 1


def test_charge_on_is_that_of_the_charged_version() -> None:
    new = OperationPrice(terms=version(60, charge_on=ChargeOn.ANSWERED), price=Price.parse("0.02"))
    old = OperationPrice(terms=version(9_999, 60, charge_on=ChargeOn.SUCCESS), price=Price.parse("0.01"))
    found = find_lowest_price(
        [new, old], USDC, now_ms=NOW_S * 1000, limits=DEFAULT_LIMITS, first_call_block_s=None
    )
    assert found is not None
    assert found.terms.charge_on is ChargeOn.SUCCESS


DAY = 86_400


@pytest.mark.parametrize(
    ("versions", "payees"),
    [
        ([version(9_999_999)], {P: 9_999_999}),
        ([version(60, pay_to=Q), version(9_999, 60)], {Q: 60, P: 9_999}),
        ([version(DAY + 3_600, pay_to=Q), version(999_999, DAY + 3_600)], {Q: DAY + 3_600, P: 999_999}),
        ([version(DAY + 3_601, pay_to=Q), version(999_999, DAY + 3_601)], {Q: DAY + 3_601}),
        ([version(10), version(20, 10, pay_to=Q), version(9_999, 20)], {P: 9_999, Q: 20}),
        ([version(10), version(9_999, 10, price=Price.parse("5"))], {P: 9_999}),
        ([version(9_999, 10, price=Price.parse("5")), version(10)], {P: 9_999}),
    ],
    ids=[
        "one",
        "changed",
        "changed 24 h before the block",
        "changed earlier",
        "there and back",
        "another price",
        "in any order",
    ],
)
def test_a_payee_counts_from_a_day_before_the_block(
    versions: list[Terms], payees: dict[Address, int]
) -> None:
    found = find_payees(versions, block_time_s=NOW_S - 3_600, limits=DEFAULT_LIMITS)
    assert {payee.address: NOW_S - payee.since_s for payee in found} == payees
    assert len(found) == len(payees)
    assert all(isinstance(payee, Payee) for payee in found)


@pytest.mark.parametrize(
    ("head_s", "since_s"), [(None, NOW_S), (NOW_S - 75, NOW_S - 75), (NOW_S, NOW_S), (NOW_S + 500, NOW_S)]
)
def test_a_payee_begins_at_the_head_of_its_network_where_that_is_earlier(
    head_s: int | None, since_s: int
) -> None:
    payees = (Payee(address=P, since_s=NOW_S), Payee(address=Q, since_s=7))
    heads = {} if head_s is None else {P: head_s}
    assert begin_by_heads(payees, heads) == (Payee(address=P, since_s=since_s), payees[1])


def test_assets_are_those_of_the_networks_and_currencies_of_that_time() -> None:
    def assets(*versions: Terms, chain_id: ChainId = BASE) -> list[str]:
        found = find_assets(versions, RULES[chain_id], block_time_s=NOW_S - 3_600, limits=DEFAULT_LIMITS)
        return [asset.symbol for asset in found]

    assert assets(version(999_999)) == ["USDC"]
    assert assets(version(999_999), chain_id=OTHER) == []
    assert assets(version(60, currency="ETH"), version(9_999, 60)) == ["ETH", "USDC"]
    assert assets(version(60, networks=(OTHER,)), version(9_999, 60)) == ["USDC"]
    assert assets(version(60, networks=(OTHER,)), version(9_999, 60), chain_id=OTHER) == ["USDC"]
    long_ago = DAY + 3_601
    assert assets(version(long_ago, networks=(OTHER,)), version(999_999, long_ago)) == []


@pytest.mark.parametrize(
    ("networks", "chains"),
    [
        ([(BASE,)], (BASE,)),
        ([(OTHER, BASE)], (OTHER, BASE)),
        ([(OTHER,), (BASE,)], (OTHER, BASE)),
        ([(BASE,), (TEST,)], (BASE,)),
        ([(TEST,), (BASE,)], (TEST,)),
        ([(BASE, TEST), (OTHER,)], (BASE, TEST, OTHER)),
        ([(ChainId(5),)], ()),
        ([(ChainId(5),), (BASE,)], ()),
        ([(BASE, ChainId(5))], (BASE,)),
    ],
    ids=[
        "one",
        "in order",
        "a removed one still counts",
        "play money never buys what is sold for real now",
        "nor the other way",
        "sold for both",
        "not configured",
        "only the old one is configured",
        "half configured",
    ],
)
def test_candidate_networks(networks: Any, chains: tuple[ChainId, ...]) -> None:
    assert find_chains([version(10 * n, networks=given) for n, given in enumerate(networks)], RULES) == chains


@pytest.mark.parametrize(
    ("versions", "payee", "chain_id", "counts"),
    [
        ([version(60)], P, BASE, True),  # credit is older than the listing, and counts all the same
        ([version(60)], Q, BASE, False),
        ([version(60)], P, OTHER, False),
        ([version(60, pay_to=Q), version(9_999, 60)], P, BASE, True),
        ([version(60, networks=(OTHER,)), version(9_999, 60)], P, BASE, True),
        ([version(DAY + 3_601, pay_to=Q), version(999_999, DAY + 3_601)], P, BASE, False),
        ([version(DAY + 3_600, pay_to=Q), version(999_999, DAY + 3_600)], P, BASE, True),
    ],
)
def test_credit_counts_where_its_payee_is_paid(
    versions: list[Terms], payee: Address, chain_id: ChainId, counts: bool
) -> None:
    block_time_s = NOW_S - 3_600
    assert (
        does_credit_count(
            versions, payee=payee, chain_id=chain_id, block_time_s=block_time_s, limits=DEFAULT_LIMITS
        )
        is counts
    )


# ---- The requirements of an authorisation, each built from one version of a listing's terms.


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


FEE_RULES = {
    A: rules_of(A, USDC_A, NATIVE_A, PLAIN_A, EURC_A, BRIDGED_A),
    B: rules_of(B, USDC_B),
    T: rules_of(T, USDC_T),
}


def test_a_metered_call_has_the_newest_formulas_and_the_least_maximum_of_all() -> None:
    formulas = [sample_metering(base=f"0.000{number}") for number in range(1, 7)]
    maxima = ("0.05", "0.04", "0.04", "0.03", "0.02", "0.03")
    versions = operation_prices(
        *((price, 60 * number + 60, 60 * number or None) for number, price in enumerate(maxima))
    )
    metered = [replace(one, formulas=(formula,)) for one, formula in zip(versions, formulas, strict=True)]
    found = find_lowest_price(
        metered, USDC, now_ms=NOW_S * 1000, limits=DEFAULT_LIMITS, first_call_block_s=None
    )
    assert found is not None
    assert (found.price.text, found.formulas) == ("0.02", tuple(formulas[:FORMULAS_MAX]))
    fixed = [*metered[:4], versions[4]]
    assert due(fixed) == "0.02", "a fixed price is a maximum too"


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
    found = list_requirements(operation_prices, FEE_RULES, timeout_s=30, now_ms=NOW_MS, limits=DEFAULT_LIMITS)
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
    assert current_requirements(operation_price(price, **changes), FEE_RULES, timeout_s=30) == ()


def test_no_authorisation_pays_a_metered_price_and_one_may_pay_the_fixed_price_before() -> None:
    metered = replace(operation_price("0.02", networks=(B,)), formulas=(sample_metering(),))
    assert listed(metered) == []
    assert current_requirements(metered, FEE_RULES, timeout_s=30) == ()
    assert listed(metered, operation_price(until_s_ago=5, networks=(B,))) == [(USDC_B, 10**16, NEW_PAYEE)]


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
    found = list_requirements(versions, FEE_RULES, timeout_s=30, now_ms=NOW_MS, limits=DEFAULT_LIMITS)
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
    quoted = current_requirements(operation_price("0.02", networks=(B, A)), FEE_RULES, timeout_s=5)
    assert [(one.asset, one.units, one.max_timeout_s) for one in quoted] == [
        (USDC_B, 20_000_000, 65),
        (USDC_A, 20_000, 65),
        (BRIDGED_A, 20_000, 65),
    ]
    assert isinstance(quoted[0], PaymentRequirement)
    assert (quoted[0].network, quoted[0].base_units) == ("eip155:10", 2 * 10**16)


def test_no_versions_give_no_requirements() -> None:
    assert listed() == []
