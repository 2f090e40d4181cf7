"""What settling tells whoever counts it: plain values to callables that the house gives. Pure records.

Nothing here knows what counts them, and nothing about money depends on it. Each callable returns at once and never raises.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tollway.identifiers import Address, ChainId


class OutcomeLabel(StrEnum):
    """Public (a label of the metrics). How a settlement ended while its caller waited, or in settlement recovery later."""

    SETTLED = "settled"
    FAILED = "failed"  # refused before anything was broadcast
    UNDECIDED = "undecided"  # nobody could say in time
    SWEPT = "swept"  # an undecided one that did pay
    RELEASED = "released"  # an undecided one that surely never will


class WithdrawalReason(StrEnum):
    """Public (a label of the metrics, and in the log). Why prices are not offered for settling now."""

    GAS_UNKNOWN = "gas_unknown"  # the chain has not told fees or balances lately
    GAS_TOO_DEAR = "gas_too_dear"
    GAS_KEYS_LOW = "gas_keys_low"
    LANE_STUCK = "lane_stuck"  # of a gas key, or of every key that has gas: what waits is not mined
    FACILITATOR_AWAY = "facilitator_away"
    TOKEN = "token_takes_no_authorizations"  # noqa: S105 - a reason, not a secret
    LISTING_BUDGET = "listing_gas_budget"
    NETWORK_BUDGET = "gas_budget"  # of all listings together
    WALLET_BUDGET = "wallet_gas_budget"  # only for payers with code: of all listings together, or of one
    WALLET_CODE = "wallet_code_reverts"  # only for payers with that code


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementMetrics:
    """`mined`: seconds from a transaction's signature to its receipt. `unmined`: how many transactions of that key are
    signed and not mined yet. `orphaned`: calls that settlement recovery found, its batch at most. `withdrawn`: how many rails of
    that network for that reason."""

    end: Callable[[ChainId, OutcomeLabel], None] = _ignore
    mined: Callable[[ChainId, float], None] = _ignore
    balance: Callable[[ChainId, Address, int], None] = _ignore
    unmined: Callable[[ChainId, Address, int], None] = _ignore
    orphaned: Callable[[int], None] = _ignore
    withdrawn: Callable[[ChainId, WithdrawalReason, int], None] = _ignore


NO_METRICS = SettlementMetrics()
"""Nobody counts."""
