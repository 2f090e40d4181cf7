"""The port between a flow and the world: `CallIo` has every exchange with the gateway, a chain node, the wallet and its store. `Exchange`
(`client/exchange.py`) performs them for both clients; the other records here are what they take and return.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tollway.client.channel_offer import OfferedChannel
from tollway.client.fee_limit import format_fee
from tollway.client.own_channel import OwnChannel, VoucherPlan
from tollway.client.quote import ATTO_DECIMALS
from tollway.client.records import WalletBudget
from tollway.client.x402 import X402Offer
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset, format_decimal


class TransferState(StrEnum):
    """The state of a transfer of this wallet. In all states but the last three it may still have value."""

    STORED = "stored"  # signed and on disk; perhaps broadcast, perhaps mined
    CONFIRMED = "confirmed"  # mined, deep enough; its rest is credit
    REFUSED = "refused"  # mined, but the gateway does not count it; the wallet's owner must decide
    FAILED = "failed"  # mined and reverted: it moved nothing
    REPLACED = "replaced"  # another transaction has its nonce in a final block: it can never be mined
    ABANDONED = "abandoned"  # abandoned by the wallet's owner


UNRESOLVED = frozenset({TransferState.STORED, TransferState.REFUSED})
"""While a payment is in one of these states, its payee is not paid again."""

WORTHLESS = frozenset({TransferState.FAILED, TransferState.REPLACED})
"""States in which nothing was moved, so the payment does not count against the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A payment or a refund that this wallet signed. Amounts in base units of `asset`; `rest`: the unspent part, as far as the client knows."""

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
    """The maximum network fee; None for a transfer of an earlier version."""
    refunds: tuple[str, ...] = ()
    """The ids of the calls that it refunds; empty for a payment. A refund buys nothing: its `rest` is 0."""

    @property
    def chain_id(self) -> ChainId:
        return self.asset.chain_id

    def describe(self) -> str:
        """`0.05 USDC`."""
        return f"{format_decimal(self.amount, decimals=self.asset.decimals)} {self.asset.symbol}"


class AuthorizationState(StrEnum):
    """The state of an authorisation of this wallet. In all states but the last two it counts as spent."""

    OPEN = "open"  # signed and perhaps sent: the same request sends it again
    CHARGED = "charged"  # it has paid
    RELEASED = (
        "released"  # the gateway reports that it moves nothing; until `valid_before` it can still be settled
    )
    ABANDONED = "abandoned"  # abandoned by the wallet's owner
    EXPIRED = "expired"  # a final block after `valid_before` shows its nonce unused: it can never be settled
    UNSENT = "unsent"  # no byte of it was sent, and none will be


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedAuthorization:
    """An EIP-3009 authorisation that this wallet signed for one call, identified by its nonce. `proof`: the value of
    `PAYMENT-SIGNATURE`, which every holder can settle. `amount` in base units, `valid_before` in unix seconds."""

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
        """Its name in texts: `0x` and its nonce in hex."""
        return "0x" + self.nonce.hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnVoucher:
    """A voucher of a channel that this wallet signed for one call: the pending one of `channel`. `deposit`: the authorisation of a deposit that was signed with it."""

    channel: OwnChannel
    deposit: SignedAuthorization | None = None

    @property
    def price(self) -> int:
        """The maximum of the call."""
        return 0 if self.channel.pending is None else self.channel.pending.price

    def describe(self) -> str:
        """`0.05 USDC`."""
        asset = self.channel.asset
        return f"{format_decimal(self.price, decimals=asset.decimals)} {asset.symbol}"

    def name(self) -> str:
        """Its name in texts: the id of its channel."""
        return str(self.channel.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLease:
    """A channel that this call alone uses until its end. `is_own_request`: its pending voucher is that of an earlier run of the same request. `is_uncertain`: only the
    chain can show its balance, because the store does not know it or something is in flight."""

    channel: OwnChannel
    is_own_request: bool = False
    is_uncertain: bool = False


# ---- The gateway.

HeaderPairs = tuple[tuple[str, str], ...]


PROOF_HEADERS = frozenset({"x-payment-tx", "payment-signature"})
"""The headers in which this client shows a payment."""
PRICE_MAX_HEADER = "tollway-price-max"
"""The most that a metered call can cost: in a 402, and in place of `Tollway-Price` while the price is not known."""
PAYMENT_STATES = frozenset({"none", "charged", "released", "held"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayResponse:
    """The head of a response. `problem`: the gateway's own problem document; None for any other body.

    `headers` in lower case. The driver keeps the HTTP response.
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
        """A 402 without a body, as in a response to `HEAD`."""
        return self.status == 402 and self.problem is None

    @property
    def is_relayed(self) -> bool:
        """A response of the upstream: the gateway marks it (RFC 9209 §2.4)."""
        return self.problem is None and "received-status" in self.headers.get("proxy-status", "")

    @property
    def is_402(self) -> bool:
        """A 402 of the gateway itself, with or without its document."""
        return self.status == 402 and not self.is_relayed

    @property
    def is_measured_later(self) -> bool:
        """A response of the upstream to a metered call whose body is still to be measured. Until its end the gateway holds the maximum."""
        is_held = self.headers.get("tollway-payment-state") == "held"
        return self.is_relayed and is_held and PRICE_MAX_HEADER in self.headers

    @property
    def payment_state(self) -> str | None:
        """The payment state in the response: none, charged, released or held."""
        text = self.headers.get("tollway-payment-state") or (self.problem or {}).get("paymentState")
        return text if isinstance(text, str) else None

    @property
    def retry_after_s(self) -> int | None:
        text = self.headers.get("retry-after", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """No response of the gateway arrived. `is_sent` False: no byte of the request was sent."""

    is_sent: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """A request to the control plane. `path`: under the API prefix, encoded, with its query. `is_signed`: by the wallet
    (ERC-8128). `entries`: the member of the response that is a list of objects."""

    method: str
    path: str
    headers: HeaderPairs = ()
    body: bytes = field(default=b"", repr=False)
    is_signed: bool = False
    entries: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResponse:
    """A response of the control plane, of any status. `etag`: its entity tag."""

    status: int
    content: bytes = field(repr=False)
    etag: str | None = None


# ---- A chain node.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    result: object


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeError:
    """The node responded with an error."""

    code: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUnavailable:
    """The node gave no usable response: unreachable, too slow, not JSON-RPC."""

    detail: str


# ---- The wallet and its store.


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentQuote:
    """A payment before its signature. `fee_max_wei`: the maximum fee of its transaction;
    `fee_limit_wei`: the limit. Both are None for an authorisation, which costs the wallet no fee. `deposit`: on a channel, what is deposited with the call, and
    `amount` is taken of; 0 where the balance of the channel covers it. `channel`: before the call. Both are None on other rails."""

    rail: str
    asset: Asset
    amount: int
    pay_to: Address
    fee_max_wei: int | None = None
    fee_limit_wei: int | None = None
    deposit: int | None = None
    channel: OwnChannel | None = None

    @property
    def moved(self) -> int:
        """What counts against a budget."""
        return self.amount if self.deposit is None else self.deposit

    def describe(self) -> str:
        """The payment as one sentence."""
        amount = f"{format_decimal(self.amount, decimals=self.asset.decimals)} {self.asset.symbol}"
        text = f"Pays {amount} to {self.pay_to} on {self.asset.network} by {self.rail}"
        if self.deposit:
            deposit = f"{format_decimal(self.deposit, decimals=self.asset.decimals)} {self.asset.symbol}"
            text = f"{text}, with a deposit of {deposit} for this call and later ones"
        if self.fee_max_wei is None or self.fee_limit_wei is None:
            return f"{text}, without a network fee."
        fee, limit = (format_fee(self.asset.chain_id, wei) for wei in (self.fee_max_wei, self.fee_limit_wei))
        return f"{text}; network fee at most {fee}, limit {limit}."


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentProgress:
    """The progress of one signed payment. A transfer has `confirmations` of the `confirmations_needed`; an authorisation has neither: the gateway
    settles it after the API has answered. `notice`: what keeps the gateway from checking the payment, in its words; the call waits for it.
    `is_accepted`: a response shows that the gateway holds the authorisation; `is_charged`: that it has charged it."""

    payment: "Transfer | SignedAuthorization | OwnVoucher"
    confirmations: int | None = None
    confirmations_needed: int | None = None
    notice: str | None = None
    is_accepted: bool = False
    is_charged: bool = False

    def describe(self) -> str:
        """The progress in one line, such as `paid 0.05 USDC by 0x…, 2 of 10 confirmations`."""
        if self.notice is not None:
            return self.notice
        if isinstance(self.payment, Transfer):
            seen, needed = self.confirmations or 0, self.confirmations_needed
            return (
                f"paid {self.payment.describe()} by {self.payment.tx_hash}, {seen} of {needed} confirmations"
            )
        kind = "voucher" if isinstance(self.payment, OwnVoucher) else "authorisation"
        if not (self.is_accepted or self.is_charged):
            return f"sending the call with {'a' if kind == 'voucher' else 'an'} {kind} of {self.payment.describe()}"
        verb = "paid" if self.is_charged else "settling"
        if kind == "voucher":
            return f"{verb} at most {self.payment.describe()} by the channel {self.payment.name()}"
        return f"{verb} {self.payment.describe()} by the authorisation {self.payment.name()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsignedTransfer:
    """An EIP-1559 transaction before its signature."""

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
class Stored:
    """The payment is on disk and counts as spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidAlready:
    """Nothing was stored: the wallet has an unresolved payment to that payee, or another call has prepaid credit meanwhile.
    `is_reserved`: a running call made the payment for itself."""

    transfer: Transfer
    is_reserved: bool = False


BUDGET = "budget"
"""The limit in the wallet's store, over all processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverBudget:
    """Nothing was stored: with this payment the total would exceed a budget (both in 10^-18). `limit`: its name."""

    spent_atto: int
    budget_atto: int
    limit: str = BUDGET

    def explain(self, payment: "Transfer | SignedAuthorization | PaymentQuote") -> str:
        spent, budget = (
            format_decimal(atto, decimals=ATTO_DECIMALS) for atto in (self.spent_atto, self.budget_atto)
        )
        units = payment.moved if isinstance(payment, PaymentQuote) else payment.amount
        amount = format_decimal(units, decimals=payment.asset.decimals)
        return (
            f"This payment of {amount} {payment.asset.symbol} would exceed the {self.limit}: "
            f"{spent} of {budget} {payment.asset.symbol} is spent."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundedAlready:
    """Nothing was stored: this refund has one of the calls, and it can still be mined, or it is."""

    transfer: Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceTaken:
    """Nothing was stored: another process of this wallet took that nonce first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBinding:
    """The budget to which this wallet is bound. `targets`: what its policy may call the listing of the call; None where they are unknown, or the policy names none."""

    budget: WalletBudget
    targets: frozenset[str] | None = None


NodeOutcome = NodeResult | NodeError | NodeUnavailable
StoreOutcome = Stored | PaidAlready | OverBudget | NonceTaken


class NodeIo(Protocol):
    """The chain nodes."""

    async def query_node(self, chain_id: ChainId, method: str, *params: object) -> NodeOutcome:
        """Sends one JSON-RPC request."""


class CallIo(NodeIo, Protocol):
    """What the flow of one call does outside of itself. Every other rule of the client is in the flow."""

    async def send_call(
        self, headers: HeaderPairs = (), *, method: str | None = None
    ) -> GatewayResponse | NoResponse:
        """Sends the call with these headers added to its own. `method` None: the call's own."""

    async def sleep(self, seconds: float) -> None: ...

    async def report_progress(self, progress: PaymentProgress) -> None:
        """Passes the progress of a payment to the caller."""

    async def approve_payment(self, quote: PaymentQuote) -> OverBudget | None:
        """Checks the payment against the limits of the wallet and the session, then passes it to the caller before it is signed; an exception of
        the caller ends the call unsigned. `OverBudget`: the caller got nothing."""

    async def sign_call(self, transfer: Transfer) -> HeaderPairs:
        """Signs this call for a payment, with a bound signature: a new nonce, validity from the clock."""

    async def sign_request(self) -> HeaderPairs:
        """Signs this call as a request of the wallet (ERC-8128), for a free call. Empty where the wallet is known to have none left here."""

    async def end_free_calls(self, per_s: int | None) -> None:
        """Notes that the wallet has no free call left at this listing, in a period of `per_s` seconds."""

    async def fetch_binding(self) -> PolicyBinding | None:
        """Asks the gateway for the budget to which this wallet is bound. None: it is bound to no owner, or the gateway gives no usable answer."""

    async def sign_transfer(self, unsigned: UnsignedTransfer) -> SignedTransfer:
        """Signs a transaction. Nothing is sent."""

    async def sign_authorization(self, offer: X402Offer, asset: Asset) -> SignedAuthorization:
        """Signs an offer, with a new nonce and times from the clock. `asset`: the offer's token, by another source than the gateway."""

    async def find_payments(self, payees: tuple[Address, ...] = ()) -> tuple[Transfer, ...]:
        """Finds payments of this wallet that can pay this call: at this gateway, to a last known payee of the listing, or to one of
        `payees`. Credit first, the largest rest first, then unresolved ones."""

    async def find_next_nonce(self, chain_id: ChainId, pending: int) -> int:
        """Finds the next nonce on that chain by the wallet's store, where the node reports `pending`; 0 without any."""

    async def find_unsent_transfers(self, chain_id: ChainId) -> tuple[Transfer, ...]:
        """Finds stored payments of this wallet on that chain without a known receipt."""

    async def store_transfer(self, transfer: Transfer, price: int, tried: frozenset[TxHash]) -> StoreOutcome:
        """Stores a signed payment durably, before it is sent. `price`: of one call, in base units. `tried`: payments that this call has
        tried already."""

    async def record_transfer_state(
        self, tx_hash: TxHash, state: TransferState, rest: int | None = None, *, is_served: bool = False
    ) -> None:
        """Records the state of a payment. `rest` None: unchanged; `is_served`: it has paid a call of this wallet."""

    async def count_served_calls(self, tx_hash: TxHash) -> int:
        """Counts the calls of this wallet that a payment has paid, by the store."""

    async def lease_authorization(self) -> SignedAuthorization | OwnChannel | None:
        """Leases an authorisation that an earlier run of the same request left to be sent again, for this call; or the channel, whose pending voucher it left."""

    async def find_lapsed_authorizations(self, nonce: bytes | None = None) -> tuple[SignedAuthorization, ...]:
        """Finds open, released and abandoned authorisations of this wallet whose `valid_before` has passed by the local clock, on chains
        with a node; the oldest first, up to a maximum. `nonce`: only this one."""

    async def store_authorization(self, authorization: SignedAuthorization) -> StoreOutcome:
        """Stores an authorisation durably, before it is sent."""

    async def record_authorization_state(
        self,
        nonce: bytes,
        state: AuthorizationState,
        tx_hash: TxHash | None = None,
        *,
        is_sent_again: bool = False,
    ) -> None:
        """Records the state of an authorisation. `OPEN` leaves it to the next run of the same request. `is_sent_again`: the next run
        sends it again in this state too."""

    async def count_calls(self, pay_to: Address) -> int:
        """Counts the calls that this wallet has paid to a payee, by the store."""

    async def lease_channel(self, offer: OfferedChannel, asset: Asset) -> ChannelLease | None:
        """Takes the channel of an offer until the end of the call. None while another call of this wallet has it."""

    async def sign_voucher(self, offer: OfferedChannel, channel: OwnChannel, plan: VoucherPlan) -> OwnVoucher:
        """Signs a voucher for this call, and a deposit unless one in flight is sent again. Nothing is stored."""

    async def store_voucher(self, voucher: OwnVoucher) -> StoreOutcome:
        """Stores a voucher and its deposit durably, before they are sent."""

    async def drop_voucher(self, voucher: OwnVoucher) -> None:
        """Drops a voucher of which no byte was sent, with the deposit that was signed with it."""

    async def record_channel(
        self,
        channel: OwnChannel,
        *,
        deposit: bytes | None = None,
        tx_hash: TxHash | None = None,
    ) -> None:
        """Records a channel, and the deposit with that nonce as charged."""
