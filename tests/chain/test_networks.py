import re

import pytest

from tollway.chain.networks import (
    PRESETS,
    ChainRules,
    ConfirmationSteps,
    describe_network,
)
from tollway.chain.port import Quorum
from tollway.ids import Address, ChainId
from tollway.money import Asset, TokenDomain

CHAIN = ChainId(8453)
USDC = Asset(chain_id=CHAIN, token=Address(b"\x01" * 20), symbol="USDC", decimals=6)
COARSE = Asset(chain_id=CHAIN, token=Address(b"\x02" * 20), symbol="USDX", decimals=2)
ETH = Asset(chain_id=CHAIN, token=None, symbol="ETH", decimals=18)
STEPS: ConfirmationSteps = ((0, 1), (100 * 10**9, 12), (10_000 * 10**9, 96))


def make_rules(**changes: object) -> ChainRules:
    members: dict[str, object] = {
        "chain_id": CHAIN,
        "kind": "main",
        "confirmations": STEPS,
        "assets": (USDC, COARSE, ETH),
        "native_confirmations": ((0, 2), (10**9, 50)),
    }
    return ChainRules(**{**members, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asset", "ledger_units", "confirmations"),
    [
        (USDC, 0, 1),
        (USDC, 99_999_999, 1),
        (USDC, 100_000_000, 12),
        (USDC, 9_999_999_999, 12),
        (USDC, 10_000_000_000, 96),
        (USDC, 2**63 - 1, 96),
        (COARSE, 99_99, 1),
        (COARSE, 100_00, 12),
        (ETH, 10**9 - 1, 2),
        (ETH, 10**9, 50),
    ],
)
def test_depth_grows_with_value_for_all_decimals(asset: Asset, ledger_units: int, confirmations: int) -> None:
    assert make_rules().confirmations_for(asset, ledger_units) == confirmations


def test_native_currency_follows_the_common_steps_when_it_has_none_of_its_own() -> None:
    assert make_rules(native_confirmations=()).confirmations_for(ETH, 100 * 10**9) == 12


@pytest.mark.parametrize(
    "steps",
    [
        (),
        ((1, 1),),
        ((0, 0),),
        ((0, 1), (0, 2)),
        ((0, 1), (10, 5), (5, 9)),
        ((0, 5), (10, 1)),
    ],
)
@pytest.mark.parametrize("member", ["confirmations", "native_confirmations"])
def test_refuses_steps_that_leave_a_gap_or_get_shallower(member: str, steps: ConfirmationSteps) -> None:
    if member == "native_confirmations" and not steps:
        return  # none of its own is allowed
    with pytest.raises(ValueError, match="confirmation"):
        make_rules(**{member: steps})


def test_refuses_an_asset_of_another_network_or_listed_twice() -> None:
    foreign = Asset(chain_id=ChainId(1), token=None, symbol="ETH", decimals=18)
    with pytest.raises(ValueError, match="network"):
        make_rules(assets=(foreign,))
    with pytest.raises(ValueError, match="once"):
        make_rules(assets=(USDC, USDC))


def test_assets_are_found_by_currency() -> None:
    assert make_rules().assets_of("USDC") == (USDC,)
    assert make_rules().assets_of("DOGE") == ()


@pytest.mark.parametrize(
    ("name", "chain_id", "kind", "native", "usdc"),
    [
        ("base", 8453, "main", "ETH", "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"),
        ("base-sepolia", 84532, "test", "ETH", "0x036CbD53842c5426634e7929541eC2318f3dCF7e"),
        ("ethereum", 1, "main", "ETH", "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48"),
        ("polygon", 137, "main", "POL", "0x3c499c542cEF5E3811e1192ce70d8cC03d5c3359"),
        ("arbitrum", 42161, "main", "ETH", "0xaf88d065e77c8cC2239327C5EDb3A432268e5831"),
        ("optimism", 10, "main", "ETH", "0x0b2C639c533813f4Aa9D7837CAf62653d097Ff85"),
        ("sandbox", 84532, "test", "ETH", "0x036CbD53842c5426634e7929541eC2318f3dCF7e"),
    ],
)
def test_presets_name_the_published_contracts(
    name: str, chain_id: int, kind: str, native: str, usdc: str
) -> None:
    preset = PRESETS[name]
    token, coin = preset.rules().assets
    assert (preset.chain_id, preset.kind, str(token.token), token.decimals) == (chain_id, kind, usdc, 6)
    assert (coin.token, coin.symbol, coin.decimals) == (None, native, 18)
    assert preset.network == preset.rules().network == f"eip155:{chain_id}"


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        *((name, "USD Coin") for name in ("base", "ethereum", "polygon", "arbitrum", "optimism")),
        *((name, "USDC") for name in ("base-sepolia", "sandbox")),
    ],
)
def test_presets_have_the_eip712_domain_of_their_usdc(name: str, domain: str) -> None:
    token, coin = PRESETS[name].rules().assets
    assert token.domain == TokenDomain(name=domain, version="2")
    assert coin.domain is None


def test_the_local_preset_is_the_chain_of_development_nodes_with_its_native_currency_alone() -> None:
    rules = PRESETS["local"].rules()
    assert (rules.chain_id, rules.kind, rules.network) == (31337, "test", "eip155:31337")
    assert [(asset.token, asset.symbol) for asset in rules.assets] == [(None, "ETH")]


@pytest.mark.parametrize(
    ("chain_id", "described"),
    [
        (8453, "eip155:8453 (base)"),
        (84532, "eip155:84532 (base-sepolia)"),
        (31337, "eip155:31337 (local)"),
        (9, "eip155:9"),
    ],
)
def test_a_network_is_described_by_its_id_and_preset(chain_id: int, described: str) -> None:
    assert describe_network(ChainId(chain_id)) == described


def test_main_network_presets_need_more_depth_for_large_sums() -> None:
    for preset in PRESETS.values():
        for asset in preset.assets:
            small, large = (
                preset.rules().confirmations_for(asset, n * 10**asset.ledger_decimals) for n in (0, 10**5)
            )
            assert small >= 1
            assert large > small or preset.kind == "test"


@pytest.mark.parametrize(
    ("asset", "ledger_units", "quorum"),
    [
        (USDC, 0, Quorum.ONE),
        (USDC, 100_000_000, Quorum.ONE),
        (USDC, 100_000_001, Quorum.AGREED),
        (COARSE, 5_00, Quorum.ONE),
        (COARSE, 5_01, Quorum.AGREED),
        pytest.param(ETH, 1, Quorum.AGREED, id="a currency that is not named"),
    ],
)
def test_above_the_named_value_nodes_have_to_agree(asset: Asset, ledger_units: int, quorum: Quorum) -> None:
    rules = make_rules(agreement_above=(("USDC", 100 * 10**9), ("USDX", 5 * 10**9)))
    assert rules.quorum_for(asset, ledger_units) is quorum
    assert rules.first_quorum is Quorum.ONE


def test_without_a_threshold_nodes_agree_on_every_amount() -> None:
    rules = make_rules()
    assert (rules.quorum_for(USDC, 0), rules.first_quorum) == (Quorum.AGREED, Quorum.AGREED)


def test_agreement_above_names_currencies_of_the_network() -> None:
    with pytest.raises(ValueError, match="USDT is no asset"):
        make_rules(agreement_above=(("USDT", 1),))


def test_finality_by_depth_is_no_shallower_than_any_payment() -> None:
    assert make_rules(finality_depth=96).finality_depth == 96
    with pytest.raises(ValueError, match="finality_depth"):
        make_rules(finality_depth=95)


def test_a_preset_waits_for_longer_than_its_deepest_payment() -> None:
    for preset in PRESETS.values():
        rules = preset.rules()
        assert rules.finality_depth > max(depth for _, depth in rules.confirmations), preset.name
        assert rules.finality_depth * preset.block_time_s >= 60, preset.name


def test_the_public_urls_of_a_preset_have_no_key() -> None:
    for preset in PRESETS.values():
        urls = (preset.explorer_url, preset.wallet_rpc_url)
        assert all(url is None or re.fullmatch(r"https://[a-z0-9.-]+(/rpc)?", url) for url in urls), urls
        assert [url is None for url in urls] == [not preset.display_name] * 2, preset.name
