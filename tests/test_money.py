"""Money: three units, exact in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollway.ids import Address, ChainId
from tollway.money import UNITS_MAX, Asset, Price, format_decimal, nano_to_units

TOKEN = Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e")
USDC = Asset(chain_id=ChainId(84532), token=TOKEN, symbol="USDC", decimals=6)
ETHER = Asset(chain_id=ChainId(1), token=None, symbol="ETH", decimals=18)


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0", 0),
        ("1", 10**9),
        ("0.01", 10**7),
        ("0.000000001", 1),
        ("10.50", 10_500_000_000),
        ("9223372036.854775807", UNITS_MAX),
    ],
)
def test_a_price_is_read_exactly_and_kept_as_written(text: str, nano: int) -> None:
    price = Price.parse(text)
    assert (price.text, price.nano) == (text, nano)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " 1",
            "1 ",
            "+1",
            "-1",
            "01",
            "1.",
            ".5",
            "1e3",
            "1E3",
            "0x1",
            "NaN",
            "Infinity",
            "1_000",
            "1,5",
        ),
        *("0.0000000001", "9223372036.854775808", "١", "1" * 40),
    ],
)
def test_anything_but_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="price"):
        Price.parse(text)


@given(st.integers(min_value=0, max_value=UNITS_MAX))
def test_a_price_from_nano_reads_back_as_itself(nano: int) -> None:
    assert Price.parse(Price.from_nano(nano).text).nano == nano


@pytest.mark.parametrize(
    ("asset", "text", "units"),
    [(USDC, "0.01", 10_000), (USDC, "0.000001", 1), (ETHER, "0.000000001", 1), (ETHER, "1", 10**9)],
)
def test_a_price_in_ledger_units(asset: Asset, text: str, units: int) -> None:
    assert Price.parse(text).units_in(asset) == units


def test_a_price_finer_than_the_asset_rounds_up_so_that_nothing_becomes_free() -> None:
    assert Price.parse("0.000000001").units_in(USDC) == 1


def test_ledger_units_have_nine_decimals_at_most() -> None:
    assert (USDC.ledger_decimals, ETHER.ledger_decimals) == (6, 9)


@given(st.integers(min_value=0, max_value=2**256 - 1))
def test_base_units_are_floored_once_and_never_credited_beyond(base_units: int) -> None:
    kept = ETHER.to_base_units(ETHER.floor_to_ledger(base_units))
    assert kept <= base_units < kept + 10**9


@pytest.mark.parametrize(
    ("units", "decimals", "text"),
    [(0, 6, "0"), (1, 6, "0.000001"), (12_300, 6, "0.0123"), (10**6, 6, "1"), (-5, 1, "-0.5"), (7, 0, "7")],
)
def test_decimals_are_written_without_needless_zeros(units: int, decimals: int, text: str) -> None:
    assert format_decimal(units, decimals=decimals) == text


def test_names_of_assets() -> None:
    assert USDC.caip19 == "eip155:84532/erc20:0x036cbd53842c5426634e7929541ec2318f3dcf7e"
    assert USDC.key == "0x036cbd53842c5426634e7929541ec2318f3dcf7e"
    assert ETHER.caip19 == "eip155:1/slip44:60"
    assert ETHER.key == "native"


@pytest.mark.parametrize(
    ("nano", "decimals", "units"),
    [(999, 6, 0), (1_000, 6, 1), (1_999, 6, 1), (7, 9, 7), (7, 18, 7), (10**9 - 1, 0, 0), (10**9, 0, 1)],
)
def test_a_maximum_rounds_down_to_the_ledger(nano: int, decimals: int, units: int) -> None:
    assert nano_to_units(nano, decimals=decimals) == units
