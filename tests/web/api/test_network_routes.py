"""`GET /networks` and `GET /status`: what is sold on, what is open now, and since when something is withdrawn."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.routes import NOW_MS, RouteHarness
from tollway.chain.networks import PRESETS, ChainRules, NetworkProfile
from tollway.discovery.gateway_operator import GatewayOperator
from tollway.ids import Address, ChainId
from tollway.money import Asset
from tollway.payments.gas import WithdrawalReason, WithdrawnRail
from tollway.web.api.listing_json import IsOffered
from tollway.web.api.network_routes import network_router

BASE, OTHER = ChainId(8453), ChainId(99)
PLAIN = Asset(chain_id=OTHER, token=Address(b"\x01" * 20), symbol="XYZ", decimals=8)
RULES = {
    BASE: PRESETS["base"].rules(),
    OTHER: ChainRules(chain_id=OTHER, kind="test", confirmations=((0, 3),), assets=(PLAIN,)),
}
PROFILES = {
    BASE: NetworkProfile(
        name="Base",
        native_symbol="ETH",
        native_decimals=18,
        explorer_url="https://basescan.org",
        wallet_rpc_url="https://mainnet.base.org",
    ),
    OTHER: NetworkProfile(
        name="eip155:99", native_symbol=None, native_decimals=None, explorer_url=None, wallet_rpc_url=None
    ),
}
USDC = RULES[BASE].assets[0]


class Harness(RouteHarness):
    def __init__(self, **given: Any) -> None:
        self.away: dict[ChainId, float] = {}
        self.open_rails = {"x402", "mpp"}
        self.withdrawn: dict[WithdrawnRail, int] = {}
        super().__init__(
            rules=RULES,
            profiles=PROFILES,
            away_s=self.away.get,
            settled_rails={rail: self._offer(rail) for rail in ("x402", "mpp")},
            withdrawn_since_ms=lambda: self.withdrawn,
            **given,
        )

    def _offer(self, rail: str) -> IsOffered:
        return lambda asset, units, listing_id: rail in self.open_rails and asset == USDC and units > 1_000

    async def networks(self) -> dict[int, Any]:
        answer = await self.client.get("/api/v2/networks")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "public, max-age=10")
        return {network["chainId"]: network for network in answer.json()["networks"]}

    async def status(self) -> dict[int, Any]:
        answer = await self.client.get("/api/v2/status")
        assert answer.status_code == 200
        content = answer.json()
        assert (content["version"], content["asOf"]) == ("1.2.3", "2026-11-21T05:30:00.000Z")
        return {network["chainId"]: network for network in content["networks"]}


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    async with harness.open(network_router):
        yield harness


async def test_a_network_has_what_a_wallet_and_a_payer_need(harness: Harness) -> None:
    found = await harness.networks()
    base = found[BASE]
    assert {name: base[name] for name in ("network", "name", "kind", "nativeCurrency", "reachable")} == {
        "network": "eip155:8453",
        "name": "Base",
        "kind": "main",
        "nativeCurrency": {"symbol": "ETH", "decimals": 18},
        "reachable": True,
    }
    assert (base["explorerUrl"], base["walletRpcUrl"]) == ("https://basescan.org", "https://mainnet.base.org")
    assert base["rails"] == ["tx", "x402", "mpp"]
    usdc, ether = base["assets"]
    assert usdc == {
        "asset": USDC.caip19,
        "symbol": "USDC",
        "token": str(USDC.token),
        "decimals": 6,
        "domain": {"name": "USD Coin", "version": "2"},
        "rails": ["tx", "x402", "mpp"],
        "confirmations": [
            {"amountMin": "0", "confirmations": 1},
            {"amountMin": "100", "confirmations": 10},
            {"amountMin": "10000", "confirmations": 600},
        ],
    }
    assert (ether["symbol"], ether["rails"]) == ("ETH", ["tx"])
    assert not {"token", "domain"} & set(ether)
    assert ether["confirmations"][1] == {"amountMin": "0.02", "confirmations": 10}
    other = found[OTHER]
    assert (other["nativeCurrency"], other["explorerUrl"], other["walletRpcUrl"]) == (None, None, None)
    assert other["rails"] == ["tx"]


async def test_only_rails_that_settle_now_are_open(harness: Harness) -> None:
    harness.open_rails = {"mpp"}
    assert (await harness.networks())[BASE]["rails"] == ["tx", "mpp"]
    harness.open_rails = set()
    assert (await harness.networks())[BASE]["rails"] == ["tx"]
    assert (await harness.status())[BASE]["rails"] == ["tx"]


@pytest.mark.parametrize(("away_s", "since"), [(90.5, "2026-11-21T05:28:29.500Z"), (float("inf"), None)])
async def test_a_network_whose_nodes_are_away_has_no_open_rail(
    harness: Harness, away_s: float, since: str | None
) -> None:
    harness.away[BASE] = away_s
    network = (await harness.networks())[BASE]
    assert (network["reachable"], network["rails"]) == (False, [])
    assert [asset["rails"] for asset in network["assets"]] == [[], []]
    status = await harness.status()
    assert (status[BASE]["reachable"], status[BASE]["unreachableSince"]) == (False, since)
    assert "unreachableSince" not in status[OTHER]


async def test_the_status_names_the_operator() -> None:
    harness = Harness(operator=GatewayOperator(name="Rain", contact="mailto:ops@rain.example"))
    async with harness.open(network_router) as client:
        named = (await client.get("/api/v2/status")).json()
    assert named["operator"] == {"name": "Rain", "contact": "mailto:ops@rain.example"}
    async with Harness().open(network_router) as client:
        assert "operator" not in (await client.get("/api/v2/status")).json()


async def test_the_status_names_what_is_withdrawn_and_since_when(harness: Harness) -> None:
    harness.withdrawn = {
        WithdrawnRail(BASE, WithdrawalReason.GAS_TOO_DEAR): NOW_MS - 60_000,
        WithdrawnRail(BASE, WithdrawalReason.TOKEN, str(USDC.token)): NOW_MS,
    }
    found = await harness.status()
    assert found[BASE]["withdrawn"] == [
        {"rails": ["x402", "mpp"], "reason": "gas_too_dear", "since": "2026-11-21T05:29:00.000Z"},
        {
            "rails": ["x402", "mpp"],
            "reason": "token_takes_no_authorizations",
            "since": "2026-11-21T05:30:00.000Z",
            "asset": USDC.caip19,
        },
    ]
    assert found[OTHER]["withdrawn"] == []


@pytest.mark.parametrize(
    ("reason", "subject"),
    [
        (WithdrawalReason.LISTING_BUDGET, "api_1"),
        (WithdrawalReason.WALLET_BUDGET, ""),
        (WithdrawalReason.WALLET_CODE, "0xabcd"),
        (WithdrawalReason.NONCE_GAP, "0x" + "11" * 20),
    ],
)
async def test_what_concerns_one_listing_key_or_wallet_is_not_public(
    harness: Harness, reason: WithdrawalReason, subject: str
) -> None:
    harness.withdrawn = {WithdrawnRail(BASE, reason, subject): NOW_MS}
    assert (await harness.status())[BASE]["withdrawn"] == []
