"""What a payer's flow may ask for, and what it is told: the closed unions between the pure flow and its drivers.

A flow yields one `Step` and is sent the matching outcome. Nothing here does anything.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from tollway.client.fee_limit import format_fee
from tollway.client.quote import ATTO_DECIMALS
from tollway.client.x402 import X402Offer
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset, format_decimal

T = TypeVar("T")


class TransferState(StrEnum):
    """What we know of a payment of our own. Everything but the last three may still be worth money."""

    STORED = "stored"  # signed and on disk; perhaps broadcast, perhaps mined
    CONFIRMED = "confirmed"  # mined, deep enough; its rest is credit
    REFUSED = "refused"  # mined, yet the gateway does not count it; a person has to look
    FAILED = "failed"  # mined and reverted: it moved nothing
    REPLACED = "replaced"  # its nonce is finally taken by another transaction: it can never be mined
    ABANDONED = "abandoned"  # given up by the wallet's owner


UNRESOLVED = frozenset({TransferState.STORED, TransferState.REFUSED})
"""While a payment is in one of these, its payee is not paid again."""

WORTHLESS = frozenset({TransferState.FAILED, TransferState.REPLACED})
"""These moved nothing, so they do not count against the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A payment that this wallet signed. Amounts in base units of `asset`; `rest` is what we believe is unspent."""

    tx_hash: TxHash
    raw: bytes = field(repr=False)
    asset: Asset
    payer: Address
    pay_to: Address
    gateway: str
    amount: int
    rest: int
    nonce: int
    confirmations: int
    state: TransferState
    fee_max_wei: int | None = None
    """The most that it may cost in network fees; None for one of an earlier version."""

    @property
    def chain_id(self) -> ChainId:
        return self.asset.chain_id

    def describe(self) -> str:
        """`0.05 USDC`."""
        return f"{format_decimal(self.amount, decimals=self.asset.decimals)} {self.asset.symbol}"


class AuthorizationState(StrEnum):
    """What we know of an authorisation of our own. All but the last two count as spent."""

    OPEN = "open"  # signed and perhaps sent: the same request sends it again
    CHARGED = "charged"  # it has paid
    RELEASED = "released"  # the gateway says that it moves nothing; until `valid_before` the gateway can still cash it
    ABANDONED = "abandoned"  # given up by the wallet's owner
    EXPIRED = "expired"  # a final block after `valid_before` shows its nonce unused: it can never be cashed
    UNSENT = "unsent"  # no byte of it left this machine, and none will


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedAuthorization:
    """An EIP-3009 authorisation that this wallet signed for one call, known by its nonce. `proof`: the value of
    `PAYMENT-SIGNATURE`, a promise to whoever holds it. `amount` in base units, `valid_before` in unix seconds."""

    nonce: bytes
    proof: str = field(repr=False)
    asset: Asset
    payer: Address
    pay_to: Address
    gateway: str
    amount: int
    valid_before: int
    state: AuthorizationState = AuthorizationState.OPEN
    tx_hash: TxHash | None = None

    def describe(self) -> str:
        """`0.05 USDC`."""
        return f"{format_decimal(self.amount, decimals=self.asset.decimals)} {self.asset.symbol}"

    def name(self) -> str:
        """`0x` and its nonce in hex: how people name it."""
        return "0x" + self.nonce.hex()


# ---- Steps to the gateway.

HeaderPairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCall:
    """Send the call with these headers on top of its own. `method` None: the call's own. -> `GatewayResponse` | `NoResponse`."""

    headers: HeaderPairs = field(default=(), repr=False)
    method: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayResponse:
    """The head of an answer; `problem` is the gateway's own problem document, None for everything else.

    `headers` in lower case. The driver keeps the real response.
    """

    status: int
    headers: Mapping[str, str]
    problem: Mapping[str, object] | None = None

    @property
    def code(self) -> str | None:
        """The stable code of the gateway's own refusal."""
        code = self.problem.get("code") if self.problem is not None else None
        return code if isinstance(code, str) else None

    @property
    def is_bare_402(self) -> bool:
        """A 402 without its document, as `HEAD` gets it."""
        return self.status == 402 and self.problem is None

    @property
    def is_relayed(self) -> bool:
        """It came from the upstream: the gateway marks those (RFC 9209 §2.4)."""
        return self.problem is None and "received-status" in self.headers.get("proxy-status", "")

    @property
    def is_402(self) -> bool:
        """The gateway's own demand for a payment, with or without its document."""
        return self.status == 402 and not self.is_relayed

    @property
    def payment_state(self) -> str | None:
        """Which payment state the answer names: none, charged, released or held."""
        text = self.headers.get("tollway-payment-state") or (self.problem or {}).get("paymentState")
        return text if isinstance(text, str) else None

    @property
    def retry_after_s(self) -> int | None:
        text = self.headers.get("retry-after", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """No answer came. `is_sent` False: surely no byte of the request left."""

    is_sent: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignCall:
    """Sign this very call, bound, for a payment: fresh nonce, validity from the clock. -> `HeaderPairs`."""

    chain_id: ChainId
    tx_hash: TxHash


# ---- Steps to a chain node.


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryNode:
    """One JSON-RPC request. -> `NodeResult` | `NodeError` | `NodeUnavailable`."""

    chain_id: ChainId
    method: str
    params: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    result: object


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeError:
    """The node answered with an error."""

    code: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUnavailable:
    """No usable answer: unreachable, too slow, not JSON-RPC."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Wait. -> None."""

    seconds: float


# ---- Steps to the wallet and its store.


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentQuote:
    """A payment that is about to be signed. `fee_max_wei`: the most that its transaction may cost the wallet in fees,
    `fee_limit_wei`: the limit; both None for an authorisation, which costs the wallet none."""

    rail: str
    asset: Asset
    amount: int
    pay_to: Address
    fee_max_wei: int | None = None
    fee_limit_wei: int | None = None

    def describe(self) -> str:
        """One sentence."""
        amount = f"{format_decimal(self.amount, decimals=self.asset.decimals)} {self.asset.symbol}"
        text = f"Pays {amount} to {self.pay_to} on {self.asset.network} by {self.rail}"
        if self.fee_max_wei is None or self.fee_limit_wei is None:
            return f"{text}, without a network fee."
        fee, limit = (format_fee(self.asset.chain_id, wei) for wei in (self.fee_max_wei, self.fee_limit_wei))
        return f"{text}; network fee at most {fee}, allowed {limit}."


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovePayment:
    """Show the caller what is about to be signed; an exception of the caller's ends the call unsigned. -> None."""

    quote: PaymentQuote


@dataclass(frozen=True, slots=True, kw_only=True)
class SignTransfer:
    """Sign an EIP-1559 transaction. -> `SignedTransfer`. Nothing is sent."""

    chain_id: ChainId
    nonce: int
    to: Address
    value: int
    calldata: bytes
    gas: int
    fee_max_wei: int
    tip_wei: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTransfer:
    tx_hash: TxHash
    raw: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindPayments:
    """Our payments that may buy this call: of this gateway, to a payee of this listing as last seen, or to one of
    `payees`. Credit first, the largest rest in front, then unresolved ones. -> `tuple[Transfer, ...]`."""

    payees: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindNextNonce:
    """The next nonce by our own store on that chain, where the node's is `pending`; 0 without any. -> int."""

    chain_id: ChainId
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindUnsentTransfers:
    """Our own stored payments on that chain that no receipt is known of. -> `tuple[Transfer, ...]`."""

    chain_id: ChainId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTransfer:
    """Put a signed payment on disk, durably, before anybody else may see it. -> `Stored` and its kind.

    `price`: of one call, in base units. `tried`: payments that this call has tried already.
    """

    transfer: Transfer
    price: int
    tried: frozenset[TxHash] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """It is on disk and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidAlready:
    """Nothing was stored: we have an unresolved payment to that payee, or credit that somebody prepaid meanwhile.
    `is_reserved`: a call that is running now made it for itself."""

    transfer: Transfer
    is_reserved: bool = False


BUDGET = "budget"
"""The limit that the wallet's store keeps, over all processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverBudget:
    """Nothing was stored: with this payment the total would exceed the budget (both in 10^-18). `limit`: which one."""

    spent_atto: int
    budget_atto: int
    limit: str = BUDGET

    def explain(self, payment: "Transfer | SignedAuthorization") -> str:
        spent, budget = (
            format_decimal(atto, decimals=ATTO_DECIMALS) for atto in (self.spent_atto, self.budget_atto)
        )
        return (
            f"This payment of {payment.describe()} would exceed the {self.limit}: "
            f"{spent} of {budget} {payment.asset.symbol} is spent."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceTaken:
    """Nothing was stored: another process of this wallet took that nonce first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTransferState:
    """Write down what became of a payment. `rest` None leaves the belief as it is; `is_served`: it bought a call of
    ours. -> None."""

    tx_hash: TxHash
    state: TransferState
    rest: int | None = None
    is_served: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CountServedCalls:
    """How many calls of ours a payment has bought, by our own store. -> int."""

    tx_hash: TxHash


# ---- Steps about authorisations.


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAuthorization:
    """An open authorisation that an earlier run of this very request left behind; it is this call's from now on.
    -> `SignedAuthorization` | None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindReleasedAuthorizations:
    """Released authorisations of this wallet whose `valid_before` has passed by our clock, on chains with a node; the
    oldest first, so many at most. -> `tuple[SignedAuthorization, ...]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignAuthorization:
    """Sign an offer, with a fresh nonce and times from the clock. -> `SignedAuthorization`. Nobody sees it yet.

    `asset`: what the offer's token is, by somebody else's word than the gateway's.
    """

    offer: X402Offer
    asset: Asset


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAuthorization:
    """Put it on disk, durably, before anybody sees it. -> `Stored` | `OverBudget`."""

    authorization: SignedAuthorization


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAuthorizationState:
    """Write down what became of it. `OPEN` leaves it to the next run of the same request. -> None."""

    nonce: bytes
    state: AuthorizationState
    tx_hash: TxHash | None = None


Step = (
    SendCall
    | SignCall
    | QueryNode
    | Pause
    | ApprovePayment
    | SignTransfer
    | FindPayments
    | FindNextNonce
    | FindUnsentTransfers
    | StoreTransfer
    | RecordTransferState
    | CountServedCalls
    | LeaseAuthorization
    | FindReleasedAuthorizations
    | SignAuthorization
    | StoreAuthorization
    | RecordAuthorizationState
)  # every driver handles all of them
NodeOutcome = NodeResult | NodeError | NodeUnavailable
StoreOutcome = Stored | PaidAlready | OverBudget | NonceTaken
StepOutcome = (
    GatewayResponse
    | NoResponse
    | HeaderPairs
    | NodeOutcome
    | SignedTransfer
    | SignedAuthorization
    | tuple[Transfer, ...]
    | tuple[SignedAuthorization, ...]
    | int
    | StoreOutcome
    | None
)
Flow = Generator[Step, StepOutcome, T]
"""A flow that ends in a T."""
