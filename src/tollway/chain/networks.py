"""The rules of each network: its assets, the depth that a payment needs, and presets for known networks. Pure data, without RPC URLs."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tollway.chain.port import Quorum
from tollway.ids import Address, ChainId, Network, TxHash, format_network
from tollway.money import LEDGER_DECIMALS_MAX, Asset, TokenDomain

NetworkKind = Literal["main", "test"]

ConfirmationSteps = tuple[tuple[int, int], ...]
"""`(min_value_nano, confirmations)` ascending: from that value on, the depth that a payment needs. Its own block is the first confirmation."""

UNIT_NANO = 10**9

FINALITY_DEPTH = 7_200
"""The default in blocks, for an unknown network: four hours with a block every two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRules:
    """The rules of one configured network. Raises ValueError for inconsistent steps.

    `confirmations` applies to tokens and, where `native_confirmations` is empty, to the native currency too. They are separate
    because a thousand dollars and a thousand ETH are different risks.

    `agreement_above`: by currency, the highest value in nano for which one node is enough. Where it is None or does not name the
    currency, every value needs as many nodes as the network requires.

    `finality_depth`: how many blocks above a block make it final, where nodes have no `finalized` block. At least the confirmations
    of every payment.
    """

    chain_id: ChainId
    kind: NetworkKind
    confirmations: ConfirmationSteps
    assets: tuple[Asset, ...]
    native_confirmations: ConfirmationSteps = ()
    agreement_above: tuple[tuple[str, int], ...] | None = None
    finality_depth: int = FINALITY_DEPTH

    def __post_init__(self) -> None:
        _check_steps(self.confirmations)
        if self.native_confirmations:
            _check_steps(self.native_confirmations)
        deepest = max(depth for _, depth in (*self.confirmations, *self.native_confirmations))
        if self.finality_depth < deepest:
            raise ValueError("finality_depth: at least as many blocks as any payment needs as confirmations")
        if any(asset.chain_id != self.chain_id for asset in self.assets):
            raise ValueError("every asset belongs to the network it is listed under")
        if len({asset.token for asset in self.assets}) != len(self.assets):
            raise ValueError("an asset is listed once")
        unknown = {symbol for symbol, _ in self.agreement_above or ()} - {
            asset.symbol for asset in self.assets
        }
        if unknown:
            raise ValueError(f"agreement_above: {min(unknown)} is no asset of this network")

    @property
    def network(self) -> Network:
        return format_network(self.chain_id)

    def confirmations_for(self, asset: Asset, ledger_units: int) -> int:
        """The depth that a payment of `ledger_units` of `asset` needs before it buys anything; at least 1."""
        steps = self.confirmations
        if asset.token is None and self.native_confirmations:
            steps = self.native_confirmations
        nano = _to_nano(asset, ledger_units)
        return max(confirmations for value_min, confirmations in steps if value_min <= nano)

    @property
    def first_quorum(self) -> Quorum:
        """The quorum of a first read, before the value is known: its result may require a second read."""
        return Quorum.ONE if self.agreement_above else Quorum.AGREED

    def quorum_for(self, asset: Asset, ledger_units: int) -> Quorum:
        above_nano = dict(self.agreement_above or ()).get(asset.symbol)
        if above_nano is None or _to_nano(asset, ledger_units) > above_nano:
            return Quorum.AGREED
        return Quorum.ONE

    def assets_of(self, symbol: str) -> tuple[Asset, ...]:
        return tuple(asset for asset in self.assets if asset.symbol == symbol)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkProfile:
    """Public facts of a network. `native_symbol`, `native_decimals`: None where the settings have no native currency."""

    name: str
    native_symbol: str | None
    native_decimals: int | None
    explorer_url: str | None
    wallet_rpc_url: str | None

    def link_transaction(self, tx_hash: TxHash | str) -> str | None:
        """The page of a transaction at the explorer that the settings name."""
        return self._link(f"tx/{tx_hash}")

    def link_address(self, address: Address | str) -> str | None:
        return self._link(f"address/{address}")

    def _link(self, path: str) -> str | None:
        return f"{self.explorer_url.rstrip('/')}/{path}" if self.explorer_url else None


def _to_nano(asset: Asset, ledger_units: int) -> int:
    nano: int = ledger_units * 10 ** (LEDGER_DECIMALS_MAX - asset.ledger_decimals)
    return nano


def _check_steps(steps: ConfirmationSteps) -> None:
    values = [value_min for value_min, _ in steps]
    depths = [confirmations for _, confirmations in steps]
    if not values or values[0] != 0 or values != sorted(set(values)):
        raise ValueError("confirmation steps start at value 0 and ascend")
    if depths[0] < 1 or depths != sorted(depths):
        raise ValueError("confirmations start at 1 or more and never decrease with the value")


# Circle names its contract differently on main and on test networks.
_USD_COIN = TokenDomain(name="USD Coin", version="2")
_TEST_USDC = TokenDomain(name="USDC", version="2")


# Each has the same code at its address on every network that has it. Those of Coinbase deploy one wallet code. Those of Safe
# (`createProxyWithNonce`) deploy a proxy of any contract and make any first call of it, so a payer can run any code within the gas of one
# deployment (docs/gateway-behaviour.md, "Wallets that are not deployed yet").
_WALLET_FACTORIES = tuple(
    Address.parse(text)
    for text in (
        "0x0BA5ED0c6AA8c49038F819E587E2633c4A9F428a",  # Coinbase Smart Wallet 1.0
        "0xBA5ED110eFDBa3D005bfC882d75358ACBbB85842",  # Coinbase Smart Wallet 1.1
        "0xa6B71E26C5e0845f74c812102Ca7114b6a896AB2",  # Safe 1.3.0
        "0xC22834581EbC8527d974F8a1c97E1bEA4EF910BC",  # Safe 1.3.0, deployed with a chain id in its signature
        "0x4e1DCf7AD4e460CfD30791CCC4F9c8a4f820ec67",  # Safe 1.4.1
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPreset:
    """A network that needs only an RPC URL as configuration.

    `usdc` None: the network has no USDC of its own. `usdc_domain`: the EIP-712 domain of its USDC. `display_name`, `explorer_url`,
    `wallet_rpc_url`: for wallets that do not know the network (EIP-3085); the URLs are public services. `block_time_s`: the expected block time, for hints such as Retry-After; no
    decision about money depends on it. `finality_depth`: see `ChainRules`; twice the usual time to finality. `wallet_factories`: those that may deploy a paying wallet (ERC-6492).
    """

    name: str
    chain_id: ChainId
    kind: NetworkKind
    usdc: Address | None
    native_symbol: str
    confirmations: ConfirmationSteps
    native_confirmations: ConfirmationSteps = ()
    block_time_s: float
    finality_depth: int
    usdc_decimals: int = 6
    usdc_domain: TokenDomain = _USD_COIN
    native_decimals: int = 18
    display_name: str = ""
    explorer_url: str | None = None
    wallet_rpc_url: str | None = None
    wallet_factories: tuple[Address, ...] = _WALLET_FACTORIES

    @property
    def network(self) -> Network:
        return format_network(self.chain_id)

    @property
    def assets(self) -> tuple[Asset, ...]:
        """USDC comes first, where there is one."""
        native = Asset(
            chain_id=self.chain_id, token=None, symbol=self.native_symbol, decimals=self.native_decimals
        )
        if self.usdc is None:
            return (native,)
        usdc = Asset(
            chain_id=self.chain_id,
            token=self.usdc,
            symbol="USDC",
            decimals=self.usdc_decimals,
            domain=self.usdc_domain,
        )
        return (usdc, native)

    def rules(self) -> ChainRules:
        return ChainRules(
            chain_id=self.chain_id,
            kind=self.kind,
            confirmations=self.confirmations,
            native_confirmations=self.native_confirmations,
            assets=self.assets,
            finality_depth=self.finality_depth,
        )


def _usdc_steps(small: int, *, from_100: int, from_10_000: int) -> ConfirmationSteps:
    return ((0, small), (100 * UNIT_NANO, from_100), (10_000 * UNIT_NANO, from_10_000))


def _ether_steps(small: int, *, from_a_fiftieth: int, from_2: int) -> ConfirmationSteps:
    """The dollar steps at 5,000 dollars per ether; the operator sets other steps when the price is far from that."""
    return ((0, small), (UNIT_NANO // 50, from_a_fiftieth), (2 * UNIT_NANO, from_2))


_TEST_STEPS: ConfirmationSteps = ((0, 1),)
_BASE_SEPOLIA_USDC = Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e")

# How the depths were chosen. A rollup's sequencer orders its blocks, so one block is enough while the sequencer is honest;
# large sums wait until the batch is final on Ethereum (about twenty minutes). Ethereum loses single blocks every day: two
# blocks for small sums, twelve from 100 dollars, three epochs from 10,000. Polygon's milestones finalise in seconds.
# `finality_depth` counts only where a node names no final block: an hour on a rollup, six epochs on Ethereum.
_PRESETS = (
    NetworkPreset(
        name="base",
        display_name="Base",
        explorer_url="https://basescan.org",
        wallet_rpc_url="https://mainnet.base.org",
        chain_id=ChainId(8453),
        kind="main",
        usdc=Address.parse("0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"),
        native_symbol="ETH",
        confirmations=_usdc_steps(1, from_100=10, from_10_000=600),
        native_confirmations=_ether_steps(1, from_a_fiftieth=10, from_2=600),
        block_time_s=2.0,
        finality_depth=1_800,
    ),
    NetworkPreset(
        name="base-sepolia",
        display_name="Base Sepolia",
        explorer_url="https://sepolia.basescan.org",
        wallet_rpc_url="https://sepolia.base.org",
        chain_id=ChainId(84532),
        kind="test",
        usdc=_BASE_SEPOLIA_USDC,
        usdc_domain=_TEST_USDC,
        native_symbol="ETH",
        confirmations=_TEST_STEPS,
        block_time_s=2.0,
        finality_depth=1_800,
    ),
    NetworkPreset(
        name="ethereum",
        display_name="Ethereum",
        explorer_url="https://etherscan.io",
        wallet_rpc_url="https://ethereum-rpc.publicnode.com",
        chain_id=ChainId(1),
        kind="main",
        usdc=Address.parse("0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48"),
        native_symbol="ETH",
        confirmations=_usdc_steps(2, from_100=12, from_10_000=96),
        native_confirmations=_ether_steps(2, from_a_fiftieth=12, from_2=96),
        block_time_s=12.0,
        finality_depth=192,
    ),
    NetworkPreset(
        name="polygon",
        display_name="Polygon",
        explorer_url="https://polygonscan.com",
        wallet_rpc_url="https://polygon-rpc.com",
        chain_id=ChainId(137),
        kind="main",
        usdc=Address.parse("0x3c499c542cEF5E3811e1192ce70d8cC03d5c3359"),
        native_symbol="POL",
        confirmations=_usdc_steps(3, from_100=16, from_10_000=128),
        block_time_s=2.0,
        finality_depth=512,
    ),
    NetworkPreset(
        name="arbitrum",
        display_name="Arbitrum One",
        explorer_url="https://arbiscan.io",
        wallet_rpc_url="https://arb1.arbitrum.io/rpc",
        chain_id=ChainId(42161),
        kind="main",
        usdc=Address.parse("0xaf88d065e77c8cC2239327C5EDb3A432268e5831"),
        native_symbol="ETH",
        confirmations=_usdc_steps(1, from_100=40, from_10_000=4_800),
        native_confirmations=_ether_steps(1, from_a_fiftieth=40, from_2=4_800),
        block_time_s=0.25,
        finality_depth=14_400,
    ),
    NetworkPreset(
        name="optimism",
        display_name="OP Mainnet",
        explorer_url="https://optimistic.etherscan.io",
        wallet_rpc_url="https://mainnet.optimism.io",
        chain_id=ChainId(10),
        kind="main",
        usdc=Address.parse("0x0b2C639c533813f4Aa9D7837CAf62653d097Ff85"),
        native_symbol="ETH",
        confirmations=_usdc_steps(1, from_100=10, from_10_000=600),
        native_confirmations=_ether_steps(1, from_a_fiftieth=10, from_2=600),
        block_time_s=2.0,
        finality_depth=1_800,
    ),
    # The chain id of anvil, Hardhat and others. It has no token until the operator names its `assets`.
    NetworkPreset(
        name="local",
        wallet_factories=(),
        chain_id=ChainId(31337),
        kind="test",
        usdc=None,
        native_symbol="ETH",
        confirmations=_TEST_STEPS,
        block_time_s=1.0,
        finality_depth=64,
    ),
    # The sandbox's chain has the id and token of Base Sepolia, because stock clients refuse others.
    NetworkPreset(
        name="sandbox",
        wallet_factories=(),
        chain_id=ChainId(84532),
        kind="test",
        usdc=_BASE_SEPOLIA_USDC,
        usdc_domain=_TEST_USDC,
        native_symbol="ETH",
        confirmations=_TEST_STEPS,
        block_time_s=1.0,
        finality_depth=64,
    ),
)

PRESETS = MappingProxyType({preset.name: preset for preset in _PRESETS})
"""The presets by name. `sandbox` and `base-sepolia` have the same chain id, so a gateway uses one of them."""


def find_asset(rules: Mapping[ChainId, ChainRules], chain_id: ChainId, key: str) -> Asset | None:
    """The asset with this ledger key; None where the settings do not have it."""
    assets = rules[chain_id].assets if chain_id in rules else ()
    return next((asset for asset in assets if asset.key == key), None)


def describe_network(chain_id: ChainId) -> str:
    """The CAIP-2 id of a chain with the name of its preset, such as `eip155:8453 (base)`."""
    names = [preset.name for preset in _PRESETS if preset.chain_id == chain_id]
    return f"{format_network(chain_id)} ({names[0]})" if names else format_network(chain_id)
