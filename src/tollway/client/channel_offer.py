"""x402 scheme `batch-settlement` for the client: parses the offers of channels, the corrective 402 and what a response charged, and writes the payloads. Pure.

The gateway writes all of it. Amounts are base units of the token.
Source: x402 specification of `batch-settlement` on EVM.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic_core import from_json

from tollway.chain.channel_contract import CHANNEL_AMOUNT_MAX, WITHDRAW_DELAYS_S
from tollway.client.x402 import JsonMembers, X402Offer, decode_header, encode_payload, read_required
from tollway.identity.signatures import parse_signature
from tollway.ids import ZERO_ADDRESS, Address, ChannelId
from tollway.payments.channels import ChannelConfig

CHANNEL_SCHEME = "batch-settlement"
_HEALING = ("cumulative_amount_mismatch", "cumulative_below_claimed")
_UNITS = re.compile(r"0|[1-9][0-9]{0,38}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedChannel:
    """An offer to pay a call by a voucher of a channel. `terms`: as of an authorisation; its `amount` is the maximum of the call. `deposit_min`: the deposit that
    the gateway proposes; None without one. `authorizer`: signs the claims. `withdraw_delay`: in seconds."""

    terms: X402Offer
    deposit_min: int | None
    authorizer: Address
    withdraw_delay: int

    def build_config(self, payer: Address, salt: bytes) -> ChannelConfig:
        """The channel of this offer. Its payer signs the vouchers too."""
        return ChannelConfig(
            payer=payer,
            payer_authorizer=payer,
            receiver=self.terms.pay_to,
            receiver_authorizer=self.authorizer,
            token=self.terms.token,
            withdraw_delay=self.withdraw_delay,
            salt=salt,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVoucher:
    """The last voucher that the gateway accepted, by its report."""

    ceiling: int
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelReport:
    """A channel by the gateway's report. `charged`: the sum of all charges; None where it names none."""

    channel_id: ChannelId
    balance: int
    total_claimed: int
    charged: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCorrection:
    """A 402 that asks for another signature over money that is in the channel already. `report`, `voucher`: None where they are missing or cannot be read."""

    offer: OfferedChannel
    report: ChannelReport | None
    voucher: ShownVoucher | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCharge:
    """What a successful response charged. `charged`: for this call; None where it names nothing. `total`: the sum of all charges by the gateway."""

    charged: int | None
    total: int | None
    balance: int | None


# ---- Parsing.


def read_channel_offers(headers: Mapping[str, str], problem: JsonMembers) -> tuple[OfferedChannel, ...]:
    """The channel offers of a 402, in the gateway's order: those of `PAYMENT-REQUIRED`, since the body names no authorizer."""
    offers = read_required(headers, problem, scheme=CHANNEL_SCHEME, rail="channel")
    return tuple(offer for terms in offers if (offer := _read_offer(terms)) is not None)


def _read_offer(terms: X402Offer) -> OfferedChannel | None:
    extra = from_json(terms.accepted)["extra"]
    delay, deposit_min = extra.get("withdrawDelay"), _read_units(extra.get("minDeposit"))
    try:
        authorizer = Address.parse(str(extra.get("receiverAuthorizer")))
    except ValueError:
        return None
    if type(delay) is not int or delay not in WITHDRAW_DELAYS_S or authorizer == ZERO_ADDRESS:
        return None
    is_proposed = deposit_min is not None and deposit_min >= terms.amount
    return OfferedChannel(
        terms=terms,
        deposit_min=deposit_min if is_proposed else None,
        authorizer=authorizer,
        withdraw_delay=delay,
    )


def read_correction(headers: Mapping[str, str]) -> ChannelCorrection | None:
    """The corrective 402 in these headers; None for every other response. One with `PAYMENT-RESPONSE` reports a failed settlement."""
    required = decode_header(headers.get("payment-required", ""))
    error = None if required is None else required.get("error")
    if not isinstance(error, str) or not error.endswith(_HEALING) or "payment-response" in headers:
        return None
    offers = read_channel_offers(headers, {})
    if len(offers) != 1:
        return None
    extra = from_json(offers[0].terms.accepted)["extra"]
    return ChannelCorrection(
        offer=offers[0],
        report=_read_report(extra.get("channelState")),
        voucher=_read_voucher(extra.get("voucherState")),
    )


def read_charge(headers: Mapping[str, str]) -> ChannelCharge | None:
    """The charge in `PAYMENT-RESPONSE`; None without a successful one. `amount` there is the deposit, never the charge."""
    settled = decode_header(headers.get("payment-response", ""))
    if settled is None or settled.get("success") is not True:
        return None
    extra = settled.get("extra")
    members = extra if isinstance(extra, Mapping) else {}
    report = _read_report(members.get("channelState"))
    return ChannelCharge(
        charged=_read_units(members.get("chargedAmount")),
        total=None if report is None else report.charged,
        balance=None if report is None else report.balance,
    )


def _read_report(raw: object) -> ChannelReport | None:
    if not isinstance(raw, Mapping):
        return None
    balance, total_claimed = _read_units(raw.get("balance")), _read_units(raw.get("totalClaimed"))
    if balance is None or total_claimed is None:
        return None
    try:
        return ChannelReport(
            channel_id=ChannelId.parse(str(raw.get("channelId"))),
            balance=balance,
            total_claimed=total_claimed,
            charged=_read_units(raw.get("chargedCumulativeAmount")),
        )
    except ValueError:
        return None


def _read_voucher(raw: object) -> ShownVoucher | None:
    if not isinstance(raw, Mapping):
        return None
    ceiling = _read_units(raw.get("signedMaxClaimable"))
    try:
        signature = parse_signature(str(raw.get("signature")))
    except ValueError:
        return None
    return None if ceiling is None else ShownVoucher(ceiling=ceiling, signature=signature)


def _read_units(raw: object) -> int | None:
    if not isinstance(raw, str) or not _UNITS.fullmatch(raw):
        return None
    units = int(raw)
    return units if units <= CHANNEL_AMOUNT_MAX else None


# ---- Writing.


def encode_voucher(
    offer: OfferedChannel,
    config: ChannelConfig,
    channel: ChannelId,
    *,
    ceiling: int,
    signature: bytes,
    deposit: JsonMembers | None = None,
) -> str:
    """The value of `PAYMENT-SIGNATURE` with a voucher, and with a deposit where one is given."""
    payload = _build_payload(config, channel, ceiling, signature)
    if deposit is None:
        return encode_payload(offer.terms, {"type": "voucher", **payload})
    return encode_payload(offer.terms, {"type": "deposit", **payload, "deposit": deposit})


def encode_refund(
    offer: OfferedChannel, config: ChannelConfig, channel: ChannelId, *, ceiling: int, signature: bytes
) -> str:
    """The value of `PAYMENT-SIGNATURE` that asks for all that is left in a channel. `ceiling`: what was charged."""
    return encode_payload(
        offer.terms, {"type": "refund", **_build_payload(config, channel, ceiling, signature)}
    )


def build_deposit(
    *, amount: int, valid_after: int, valid_before: int, salt: bytes, signature: bytes
) -> dict[str, object]:
    """The member `deposit` of a payload."""
    signed = {
        "validAfter": str(valid_after),
        "validBefore": str(valid_before),
        "salt": "0x" + salt.hex(),
        "signature": "0x" + signature.hex(),
    }
    return {"amount": str(amount), "authorization": {"erc3009Authorization": signed}}


def _build_payload(
    config: ChannelConfig, channel: ChannelId, ceiling: int, signature: bytes
) -> dict[str, object]:
    return {
        "channelConfig": {
            "payer": str(config.payer),
            "payerAuthorizer": str(config.payer_authorizer),
            "receiver": str(config.receiver),
            "receiverAuthorizer": str(config.receiver_authorizer),
            "token": str(config.token),
            "withdrawDelay": config.withdraw_delay,
            "salt": "0x" + config.salt.hex(),
        },
        "voucher": {
            "channelId": str(channel),
            "maxClaimableAmount": str(ceiling),
            "signature": "0x" + signature.hex(),
        },
    }
