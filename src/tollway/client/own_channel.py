"""A payment channel of this wallet as its store has it, and the rules of its next voucher. Pure.

    balance    deposits that landed, less refunds and withdrawals, as far as the client knows
    charged    the sum that the gateway has announced as charged
    ceiling    the highest sum that the wallet may have signed: more is never claimed without another signature

A voucher is a signature over a ceiling: `charged` and the maximum of its call. So the gateway can claim at most what it has charged and the maximum of one
call. Where the two differ about `charged`, as after a lost response, a corrective 402 states the gateway's sum; it counts only with proof, and a voucher of
the same call is no proof. Amounts are base units of the token.
"""

from dataclasses import dataclass, field, replace

from tollway.chain.port import EscrowState
from tollway.client.channel_offer import ChannelCharge, ChannelCorrection
from tollway.identity.signatures import recover
from tollway.ids import ChannelId
from tollway.money import Asset, format_decimal
from tollway.payments.channels import ChannelConfig, voucher_digest

CHANNEL_SALT = bytes(32)
"""One channel for each payee and token: after a loss of the store the same channel is found again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDeposit:
    """A signed deposit that is not known to have landed. `nonce`: of its authorisation, a row of the store too. `document`: the member `deposit` of a payload, as JSON."""

    nonce: bytes
    amount: int
    valid_before: int
    document: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingVoucher:
    """A voucher that was stored before it was sent, and whose outcome is not known. `request`: the digest of its call. `proof`: the value of `PAYMENT-SIGNATURE`.
    `price`: the maximum of the call. `signed_before`: the highest ceiling before it. `has_deposit`: the proof carries the deposit too."""

    request: bytes
    proof: str = field(repr=False)
    ceiling: int
    price: int
    signed_before: int
    has_deposit: bool

    @property
    def charged_before(self) -> int:
        return self.ceiling - self.price


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """A withdrawal that began on the chain. `ready_s`: when it can be finalized, in unix seconds. Both are 0 where only the gateway has reported it."""

    amount: int
    ready_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnChannel:
    """See the module. `calls`: those that a response has answered. `returned`: what refunds and withdrawals have moved back, by the wallet's own node."""

    id: ChannelId
    config: ChannelConfig
    asset: Asset
    gateway: str
    balance: int = 0
    charged: int = 0
    ceiling: int = 0
    calls: int = 0
    returned: int = 0
    deposit: HeldDeposit | None = None
    pending: PendingVoucher | None = None
    withdrawal: Withdrawal | None = None

    @property
    def left(self) -> int:
        """What further calls can cost."""
        return max(0, self.balance - self.charged)

    @property
    def is_certain(self) -> bool:
        """Whether nothing is in flight: neither a voucher nor a deposit."""
        return self.pending is None and self.deposit is None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoucherPlan:
    """The next voucher. `deposit`: what is deposited with it; 0 where the balance covers it. `is_resent`: by the deposit in flight."""

    ceiling: int
    deposit: int = 0
    is_resent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoucherRefused:
    """Why no voucher is signed: a clause."""

    reason: str


def plan_voucher(
    channel: OwnChannel, *, price: int, deposit_min: int | None, deposit_max: int
) -> VoucherPlan | VoucherRefused:
    """The voucher for a call of at most `price`. A deposit in flight is sent again where it is enough; else another is signed beside it, and both can land."""
    ceiling = channel.charged + price
    missing = ceiling - channel.balance
    if missing <= 0:
        return VoucherPlan(ceiling=ceiling)
    held = channel.deposit
    if held is not None and held.amount >= missing:
        return VoucherPlan(ceiling=ceiling, deposit=held.amount, is_resent=True)
    if missing > deposit_max:
        return VoucherRefused(
            reason=f"the channel needs a deposit of {_format(missing, channel.asset)}, and max_deposit allows {_format(deposit_max, channel.asset)}"
        )
    return VoucherPlan(ceiling=ceiling, deposit=min(max(missing, deposit_min or 0), deposit_max))


def apply_charge(channel: OwnChannel, charge: ChannelCharge) -> OwnChannel:
    """The channel after a successful response to its pending voucher. A charge above the maximum of the call, or one that differs from the gateway's own sum, is
    not counted: the corrective 402 of the next call has to prove it."""
    pending = channel.pending
    assert pending is not None
    own = charge.charged or 0
    total = pending.charged_before + own
    is_counted = own <= pending.price and charge.total in (None, total)
    landed = channel.deposit.amount if pending.has_deposit and channel.deposit is not None else 0
    return replace(
        channel,
        charged=total if is_counted else channel.charged,
        balance=channel.balance + landed,
        calls=channel.calls + 1,
        deposit=None if pending.has_deposit else channel.deposit,
        pending=None,
    )


def heal_channel(
    channel: OwnChannel, correction: ChannelCorrection, totals: EscrowState | None, *, is_doubtful: bool
) -> OwnChannel | VoucherRefused:
    """The channel by a corrective 402 to its pending voucher. `totals`: by the wallet's own node, where there is one. `is_doubtful`: the gateway may have charged that
    voucher before; otherwise it proves nothing, or the gateway would get the price of one call twice."""
    charged = _read_charged(channel, correction, totals, is_doubtful=is_doubtful)
    if isinstance(charged, VoucherRefused):
        return charged
    report, voucher = correction.report, correction.voucher
    balance = channel.balance
    if totals is not None:
        balance = totals.balance
    elif report is not None:
        if report.balance < channel.balance:
            return VoucherRefused(
                reason=f"it reports a balance of {_format(report.balance, channel.asset)}, and {_format(channel.balance, channel.asset)} was "
                "deposited; only the chain can show that less is left: add a node to rpc_urls (--rpc, TOLLWAY_RPC)"
            )
        balance = report.balance
    held = channel.deposit
    has_landed = held is not None and balance >= channel.balance + held.amount
    return replace(
        channel,
        charged=charged,
        balance=balance,
        ceiling=max(channel.ceiling, voucher.ceiling if voucher is not None else 0, charged),
        deposit=None if has_landed else held,
        pending=None,
    )


def _read_charged(
    channel: OwnChannel, correction: ChannelCorrection, totals: EscrowState | None, *, is_doubtful: bool
) -> int | VoucherRefused:
    """The charged sum, with its proof: the chain, or a voucher of this wallet that covers it."""
    report, voucher, pending = correction.report, correction.voucher, channel.pending
    assert pending is not None
    if report is None or report.charged is None or report.channel_id != channel.id:
        if totals is None:
            return VoucherRefused(
                reason="it does not state what it has charged; add a node to rpc_urls (--rpc, TOLLWAY_RPC)"
            )
        return totals.total_claimed
    charged = report.charged
    claimed = report.total_claimed if totals is None else totals.total_claimed
    if charged < claimed:
        return VoucherRefused(reason="it reports a charged sum below what was claimed on the chain")
    if charged <= channel.charged:  # no more than this wallet knows of
        return charged
    if voucher is None:
        if totals is None:
            return VoucherRefused(
                reason="it shows no voucher for what it has charged; add a node to rpc_urls (--rpc, TOLLWAY_RPC)"
            )
        return totals.total_claimed
    if charged > voucher.ceiling:
        return VoucherRefused(reason="it has charged more than its voucher covers")
    digest = voucher_digest(channel.asset.chain_id, channel.id, voucher.ceiling)
    if recover(digest, voucher.signature) != channel.config.payer_authorizer:
        return VoucherRefused(reason="this wallet did not sign the voucher that it shows")
    is_own = voucher.ceiling == pending.ceiling and charged > pending.signed_before
    if is_own and not is_doubtful:
        return VoucherRefused(reason="it refuses the voucher of this call and reports it as charged")
    return charged


def _format(units: int, asset: Asset) -> str:
    return f"{format_decimal(units, decimals=asset.decimals)} {asset.symbol}"
