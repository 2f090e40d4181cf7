"""The settlement rules of each network: keys, prices, budgets, and their defaults. Pure records.

A network with neither a gas key nor a facilitator accepts no authorisations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tollway.chain.networks import NetworkKind
from tollway.chain.signer import GasKey
from tollway.ids import Address, ChainId
from tollway.money import LEDGER_DECIMALS_MAX, Asset

if TYPE_CHECKING:  # the callers' client loads this module, and nothing of the gateway's limits and ledger
    from tollway.ledger.ledger import CodeRecord
    from tollway.limits import Limits

WEI_PER_COIN = 10**18
NETWORK_BUDGET_FACTOR = 10
"""The default budget of a network is this many times the budget of one listing."""
BLOCK_TIME_S = 2.0
"""The block time of a network without a preset."""
WEI_PER_NANO = 10**9
"""A nano is 10^-9 of a currency; the native currency has 18 decimals on every network with gas keys."""
SETTLEMENT_GAS = 90_000
"""The usual gas of one transfer by authorisation."""
MIN_COST_FACTOR = 10
"""By default a price is offered for settlement only when it is this many times the cost of the settlement."""
WALLET_BUDGET_DIVISOR = 4
"""Payers with code (contract wallets, delegated accounts) can use at most this part of each gas budget: their code can pass every
simulation and revert in every block, and another proxy of the same code is cheap."""
CODE_REVERTS_MAX = 5
CODE_REVERTS_FACTOR = 4
"""Within the window of the budgets, one code may revert `CODE_REVERTS_MAX` times, or in one of `CODE_REVERTS_FACTOR` of its
transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FacilitatorRules:
    """The settings of a facilitator. Headers often hold a token, so the repr omits them."""

    url: str
    verify_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    settle_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRules:
    """The settlement rules of one network. `min_nano`: the lowest price that is settled, in 10^-9 of the listing's currency. A
    minimum set by the operator (`is_min_own`) holds at every gas price; a default rises with the gas price.

    `native_price_nano`: the price of one native coin in 10^-9 of the listing's currency; 0 where gas is free, None where the price
    is unknown.
    `gas_price_max_wei`: above it no price is offered, and no transaction is signed. `gas_floor_wei`: a key with less signs nothing
    new. `listing_budget_wei`: the maximum cost of settling for one listing in 24 hours; `network_budget_wei`: for all listings.
    `block_time_s`: the expected time. `wallet_factories`: those that a transaction may call to deploy the paying wallet (ERC-6492).
    """

    chain_id: ChainId
    gas_keys: tuple[GasKey, ...] = ()
    min_nano: int
    is_min_own: bool = False
    native_price_nano: int | None = None
    gas_price_max_wei: int
    gas_floor_wei: int
    listing_budget_wei: int
    network_budget_wei: int
    block_time_s: float = BLOCK_TIME_S
    wallet_factories: tuple[Address, ...] = ()
    facilitator: FacilitatorRules | None = None

    @property
    def has_rail(self) -> bool:
        return bool(self.gas_keys) or self.facilitator is not None

    def is_worth(self, asset: Asset, units: int, *, gas_price_wei: int) -> bool:
        """Whether a price of `units` ledger units reaches the minimum at this gas price."""
        nano: int = units * 10 ** (LEDGER_DECIMALS_MAX - asset.ledger_decimals)
        return nano >= self.min_nano_at(gas_price_wei)

    def min_nano_at(self, gas_price_wei: int) -> int:
        """The lowest price that is settled at this gas price. A facilitator pays for its own gas."""
        if self.is_min_own or self.facilitator is not None:
            return self.min_nano
        return max(self.min_nano, MIN_COST_FACTOR * self.cost_nano(gas_price_wei))

    def cost_nano(self, gas_price_wei: int, *, gas: int = SETTLEMENT_GAS) -> int:
        """The cost of one settlement, or of other gas, in 10^-9 of the listing's currency, rounded up; 0 without a native price."""
        return -(-gas * gas_price_wei * (self.native_price_nano or 0) // WEI_PER_COIN)

    def wait_s(self, depth: int, *, limits: "Limits") -> float:
        """How long to wait for a settlement that must be `depth` blocks deep: for its own block and the blocks above it."""
        return min(limits.settle_wait_s + (depth - 1) * self.block_time_s, _wait_s_max(limits))

    def is_in_time(self, depth: int, *, limits: "Limits") -> bool:
        return limits.settle_wait_s + (depth - 1) * self.block_time_s <= _wait_s_max(limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementDefaults:
    """The units are those of the settings: the listing's currency, gwei, the native currency. `native_price` None: it is unknown."""

    settlement_min: str
    native_price: str | None
    gas_price_max_gwei: str
    gas_floor: str
    listing_gas_budget: str


def _wait_s_max(limits: "Limits") -> float:
    return max(limits.settle_wait_s, limits.settle_wait_s_max)


_ETHER_PRICE = "3000"
"""Dollars for one ether. The value becomes outdated; the operator sets `native_price`."""
_OTHER = SettlementDefaults(
    settlement_min="0.01",
    native_price=None,
    gas_price_max_gwei="2",
    gas_floor="0.0005",
    listing_gas_budget="0.1",
)
_ROLLUP = replace(_OTHER, native_price=_ETHER_PRICE)
"""A settlement needs some 90,000 gas: about 10^-5 ETH at 0.1 gwei, so the floor pays for fifty settlements."""
_TEST = SettlementDefaults(
    settlement_min="0.001",
    native_price="0",
    gas_price_max_gwei="500",
    gas_floor="0.0005",
    listing_gas_budget="1000",
)
_BY_CHAIN: Mapping[int, SettlementDefaults] = {
    1: SettlementDefaults(
        settlement_min="1",
        native_price=_ETHER_PRICE,
        gas_price_max_gwei="50",
        gas_floor="0.02",
        listing_gas_budget="0.5",
    ),
    10: _ROLLUP,
    137: SettlementDefaults(
        settlement_min="0.01",
        native_price="0.25",
        gas_price_max_gwei="1000",
        gas_floor="1",
        listing_gas_budget="100",
    ),
    8453: _ROLLUP,
    42161: _ROLLUP,
}


def is_code_trusted(record: "CodeRecord | None") -> bool:
    """Whether settlements for payers with this code are allowed: False when it reverts at least `CODE_REVERTS_MAX` times and in too
    large a part of its transactions. None: it has never reverted."""
    if record is None or record.reverted < CODE_REVERTS_MAX:
        return True
    return record.reverted * CODE_REVERTS_FACTOR <= record.signed


def settlement_defaults(chain_id: ChainId, kind: NetworkKind) -> SettlementDefaults:
    return _BY_CHAIN.get(chain_id, _TEST if kind == "test" else _OTHER)


def is_development_key(address: Address) -> bool:
    """Whether the key of this address is public: it is derived from the mnemonic of development chains."""
    return address in _DEVELOPMENT_WALLETS


_DEVELOPMENT_WALLETS = frozenset(
    Address.parse(text)
    for text in (
        "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
        "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
        "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
        "0x90F79bf6EB2c4f870365E785982E1f101E93b906",
        "0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65",
        "0x9965507D1a55bcC2695C58ba16FB37d819B0A4dc",
        "0x976EA74026E726554dB657fA54763abd0C3a0aa9",
        "0x14dC79964da2C08b23698B3D3cc7Ca32193d9955",
        "0x23618e81E3f5cdF7f54C3d65f7FBc0aBf5B21E8f",
        "0xa0Ee7A142d267C1f36714E4a8F75612F20a79720",
        "0xBcd4042DE499D14e55001CcbB24a551F3b954096",
        "0x71bE63f3384f5fb98995898A86B02Fb2426c5788",
        "0xFABB0ac9d68B0B445fB7357272Ff202C5651694a",
        "0x1CBd3b2770909D4e10f157cABC84C7264073C9Ec",
        "0xdF3e18d64BC6A983f673Ab319CCaE4f1a57C7097",
        "0xcd3B766CCDd6AE721141F452C550Ca635964ce71",
        "0x2546BcD3c84621e976D8185a91A922aE77ECEc30",
        "0xbDA5747bFD65F08deb54cb465eB87D40e51B197E",
        "0xdD2FD4581271e230360230F9337D5c0430Bf44C0",
        "0x8626f6940E2eb28930eFb4CeF49B2d1F2C9C1199",
    )
)
