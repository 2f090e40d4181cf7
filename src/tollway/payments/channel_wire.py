"""Parses the payments of x402 scheme `batch-settlement` (payment channels); the reasons of their refusals. Pure.

The content is untrusted. The parser recomputes the channel's id, so a parsed payment never names a channel that its config does not
make. It does not verify signatures: the rail compares the config with the terms, recovers the signer and decides over the ledger.

A payment that is not well-formed has the reason `invalid_payload`, as in scheme `exact`.
Source: x402 specification of `batch-settlement` on EVM.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tollway.chain.channel_contract import CHANNEL_AMOUNT_MAX, WITHDRAW_DELAYS_S, ChannelConfig
from tollway.errors import Code, Problem, Refusal
from tollway.identity.signatures import KEY_SIGNATURE_BYTES, parse_signature
from tollway.ids import ZERO_ADDRESS, ChainId, ChannelId
from tollway.limits import Limits
from tollway.payments.channels import channel_id
from tollway.payments.deployment import is_wrapped
from tollway.payments.wire import (
    AuthorizationReason,
    decode_object,
    explain_authorization,
    find_unknown_member,
    parse_wallet_signature,
    take_address,
    take_object,
    take_text,
    take_whole,
    take_word,
    unreadable,
)
from tollway.payments.x402 import (
    PAYMENT_HEADER,
    check_version,
    find_envelope_fault,
    find_identifier,
    parse_accepted_network,
)

CHANNEL_SCHEME = "batch-settlement"


class ChannelReason(StrEnum):
    """Why a payment by a channel is refused. Public, the strings of the protocol. Clients repeat a call only after `CUMULATIVE_MISMATCH` and
    `BELOW_CLAIMED`."""

    # The payload is of no known kind, or not of this channel.
    PAYLOAD_TYPE = "invalid_batch_settlement_evm_payload_type"
    CHANNEL_ID = "invalid_batch_settlement_evm_channel_id_mismatch"
    TRANSFER_METHOD = "invalid_batch_settlement_evm_erc3009_authorization_required"

    # The config does not meet the terms.
    RECEIVER = "invalid_batch_settlement_evm_receiver_mismatch"
    RECEIVER_AUTHORIZER = "invalid_batch_settlement_evm_receiver_authorizer_mismatch"
    TOKEN = "invalid_batch_settlement_evm_token_mismatch"  # noqa: S105 - a reason, not a secret
    WITHDRAW_DELAY = "invalid_batch_settlement_evm_withdraw_delay_mismatch"
    WITHDRAW_DELAY_RANGE = "invalid_batch_settlement_evm_withdraw_delay_out_of_range"
    TOKEN_DOMAIN = "invalid_batch_settlement_evm_missing_eip712_domain"  # noqa: S105 - a reason, not a secret

    # The voucher.
    VOUCHER_SIGNATURE = "invalid_batch_settlement_evm_voucher_signature"
    CUMULATIVE_MISMATCH = "invalid_batch_settlement_evm_cumulative_amount_mismatch"
    BELOW_CLAIMED = "invalid_batch_settlement_evm_cumulative_below_claimed"
    EXCEEDS_BALANCE = "invalid_batch_settlement_evm_cumulative_exceeds_balance"
    CHARGE_EXCEEDS_CEILING = "invalid_batch_settlement_evm_charge_exceeds_signed_cumulative"
    NOT_FOUND = "invalid_batch_settlement_evm_channel_not_found"

    # The deposit.
    DEPOSIT_SIGNATURE = "invalid_batch_settlement_evm_receive_authorization_signature"
    NOT_YET_VALID = "invalid_batch_settlement_evm_payload_authorization_valid_after"
    EXPIRED = "invalid_batch_settlement_evm_payload_authorization_valid_before"
    INSUFFICIENT_BALANCE = "invalid_batch_settlement_evm_insufficient_balance"
    DEPOSIT_TOO_SMALL = "invalid_batch_settlement_evm_deposit_below_min_deposit"
    DEPOSIT_SIMULATION_FAILED = "invalid_batch_settlement_evm_deposit_simulation_failed"
    DEPOSIT_FAILED = "invalid_batch_settlement_evm_deposit_transaction_failed"

    # The refund.
    REFUND_AMOUNT = "invalid_batch_settlement_evm_refund_amount_invalid"
    REFUND_NO_BALANCE = "invalid_batch_settlement_evm_refund_no_balance"
    REFUND_FAILED = "invalid_batch_settlement_evm_refund_transaction_failed"


def explain_channel(reason: ChannelReason, detail: str | None = None) -> Problem:
    """`detail` replaces the general sentence."""
    code, sentence = _PROBLEMS[reason]
    return Problem(code=code, detail=detail or sentence, reason=reason.value, payment_state="none")


def explain_deposit(problem: Problem) -> Problem:
    """The problem of a deposit whose authorisation is refused, with the reason that channels have for it. `problem`: of the check that single authorisations share; one
    without a counterpart is returned as it is."""
    reason = _DEPOSIT_REASONS.get(problem.reason or "")
    if reason is None:
        return problem
    is_detailed = reason is ChannelReason.DEPOSIT_SIMULATION_FAILED
    return explain_channel(reason, problem.detail if is_detailed else None)


_DEPOSIT_REASONS = {
    AuthorizationReason.SIGNATURE.value: ChannelReason.DEPOSIT_SIGNATURE,
    AuthorizationReason.NOT_YET_VALID.value: ChannelReason.NOT_YET_VALID,
    AuthorizationReason.EXPIRED.value: ChannelReason.EXPIRED,
    AuthorizationReason.INSUFFICIENT_BALANCE.value: ChannelReason.INSUFFICIENT_BALANCE,
    AuthorizationReason.SIMULATION_FAILED.value: ChannelReason.DEPOSIT_SIMULATION_FAILED,
}

_MALFORMED = Code.PAYMENT_MALFORMED
_UNSUPPORTED = Code.PAYMENT_METHOD_UNSUPPORTED
_FAILED = Code.PAYMENT_VERIFICATION_FAILED
_EXPIRED = Code.PAYMENT_EXPIRED
_UNSETTLED = Code.PAYMENT_SETTLEMENT_FAILED

_PROBLEMS: dict[ChannelReason, tuple[Code, str]] = {
    ChannelReason.PAYLOAD_TYPE: (
        _UNSUPPORTED,
        "The type of the payload must be `deposit`, `voucher` or `refund`; send one of them.",
    ),
    ChannelReason.CHANNEL_ID: (
        _FAILED,
        "`channelId` is not the id of `channelConfig` on this network; compute it as the EIP-712 hash of the config.",
    ),
    ChannelReason.TRANSFER_METHOD: (
        _UNSUPPORTED,
        "Only deposits by an EIP-3009 authorisation are accepted; Permit2 deposits are not.",
    ),
    ChannelReason.RECEIVER: (
        _FAILED,
        "The receiver of the channel is not payTo; open a channel whose receiver is payTo.",
    ),
    ChannelReason.RECEIVER_AUTHORIZER: (
        _FAILED,
        "The receiverAuthorizer of the channel is not that of the terms; open a channel with the one in `extra`.",
    ),
    ChannelReason.TOKEN: (
        _FAILED,
        "The token of the channel is not the asset of the terms; open a channel with that asset.",
    ),
    ChannelReason.WITHDRAW_DELAY: (
        _FAILED,
        "The withdrawDelay of the channel is not that of the terms; open a channel with the one in `extra`.",
    ),
    ChannelReason.WITHDRAW_DELAY_RANGE: (
        _FAILED,
        f"withdrawDelay must be {WITHDRAW_DELAYS_S[0]} to {WITHDRAW_DELAYS_S[-1]} seconds; use the one in `extra` of the terms.",
    ),
    ChannelReason.TOKEN_DOMAIN: (
        _UNSUPPORTED,
        "The EIP-712 domain of that token is not known, so that no deposit can be verified; pay another option of the terms.",
    ),
    ChannelReason.VOUCHER_SIGNATURE: (
        _FAILED,
        "The payerAuthorizer of the channel did not make the signature of the voucher; sign it with that key.",
    ),
    ChannelReason.CUMULATIVE_MISMATCH: (
        _FAILED,
        "maxClaimableAmount must be what the channel was charged so far plus the amount of this call; read `channelState` in the terms.",
    ),
    ChannelReason.BELOW_CLAIMED: (
        _FAILED,
        "maxClaimableAmount is not above what was claimed of the channel already; read `channelState` in the terms.",
    ),
    ChannelReason.EXCEEDS_BALANCE: (
        _FAILED,
        "maxClaimableAmount is above the balance of the channel; send a deposit with the voucher.",
    ),
    ChannelReason.CHARGE_EXCEEDS_CEILING: (
        _FAILED,
        "The voucher does not cover the price of this call; sign the amount in the terms.",
    ),
    ChannelReason.NOT_FOUND: (_FAILED, "The channel has no balance; send a deposit with the voucher."),
    ChannelReason.DEPOSIT_SIGNATURE: (
        _FAILED,
        "The payer of the channel did not sign this deposit (EIP-3009 ReceiveWithAuthorization to the deposit collector); sign it with that wallet.",
    ),
    ChannelReason.NOT_YET_VALID: (
        _FAILED,
        "The authorisation of the deposit is not valid yet; sign with an earlier validAfter.",
    ),
    ChannelReason.EXPIRED: (
        _EXPIRED,
        "The authorisation of the deposit has expired, or expires before it can be mined; sign with a later validBefore.",
    ),
    ChannelReason.INSUFFICIENT_BALANCE: (
        _FAILED,
        "The balance of the paying wallet does not cover the deposit; add funds first.",
    ),
    ChannelReason.DEPOSIT_TOO_SMALL: (
        _FAILED,
        "The deposit is too small; deposit at least `minDeposit` of the terms.",
    ),
    ChannelReason.DEPOSIT_SIMULATION_FAILED: (
        _FAILED,
        "The contracts refuse the deposit in simulation; check the paying wallet's balance and that the token does not block it.",
    ),
    ChannelReason.DEPOSIT_FAILED: (
        _UNSETTLED,
        "The deposit failed on the chain and moved no money; sign a new one.",
    ),
    ChannelReason.REFUND_AMOUNT: (
        _FAILED,
        "The amount of the refund must be a positive amount within the balance; leave it out for the whole balance.",
    ),
    ChannelReason.REFUND_NO_BALANCE: (_FAILED, "The channel has no balance to refund."),
    ChannelReason.REFUND_FAILED: (
        _UNSETTLED,
        "The refund failed on the chain and moved no money; request it again.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedVoucher:
    """The voucher of a payment. `ceiling`: base units that the receiver may claim over the life of the channel. `signature`: 65
    bytes with v 27 or 28, the form that the contract accepts."""

    chain_id: ChainId
    config: ChannelConfig
    channel_id: ChannelId
    ceiling: int
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDeposit:
    """The authorisation of a deposit (EIP-3009). `salt`: 32 bytes of its nonce. `signature`: of a key or of a contract wallet."""

    base_units: int
    valid_after: int
    valid_before: int
    salt: bytes
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefundRequest:
    """A request for escrow back. `base_units` None: all of it."""

    base_units: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentedChannelPayment:
    """The parsed channel payment of a request. `request`: what the payload contains beside the voucher; None for a voucher alone.

    `identifier`, `fault`: as in `PresentedAuthorization`.
    """

    voucher: SignedVoucher
    request: SignedDeposit | RefundRequest | None
    identifier: str | None = None
    fault: Problem | None = None


def is_channel_payment(content: Mapping[str, Any]) -> bool:
    """Whether the decoded content of `PAYMENT-SIGNATURE` names scheme `batch-settlement`."""
    accepted = content.get("accepted")
    return isinstance(accepted, dict) and accepted.get("scheme") == CHANNEL_SCHEME


def names_channel(headers: Sequence[tuple[bytes, bytes]], limits: Limits) -> bool:
    """Whether a request has one payment of x402 version 2, and it names scheme `batch-settlement`. Headers that cannot be read name none."""
    values = [value for name, value in headers if name == PAYMENT_HEADER]
    if len(values) != 1:
        return False
    try:
        return is_channel_payment(decode_object(values[0], bytes_max=limits.payment_header_bytes_max))
    except Refusal:
        return False


def parse_channel_payment(content: Mapping[str, Any]) -> PresentedChannelPayment:
    """Parses the decoded content of `PAYMENT-SIGNATURE` (version 2, `wire.decode_object`). Raises `Refusal`."""
    check_version(content, 2)
    accepted = take_object(content, "accepted")
    if take_text(accepted, "scheme") != CHANNEL_SCHEME:
        raise Refusal(explain_authorization(AuthorizationReason.SCHEME))
    chain_id = parse_accepted_network(accepted)
    payload = take_object(content, "payload")
    kind = payload.get("type")
    if not isinstance(kind, str) or kind not in _MEMBERS:
        raise Refusal(explain_channel(ChannelReason.PAYLOAD_TYPE))
    voucher = _parse_voucher(payload, chain_id)
    request: SignedDeposit | RefundRequest | None = None
    if kind == "deposit":
        request = _parse_deposit(take_object(payload, "deposit"))
    elif kind == "refund":
        request = RefundRequest(base_units=_parse_refund_amount(payload))
    return PresentedChannelPayment(
        voucher=voucher,
        request=request,
        identifier=find_identifier(content.get("extensions")),
        fault=find_envelope_fault(content, accepted, scheme=CHANNEL_SCHEME)
        or find_unknown_member(*_list_places(payload, kind)),
    )


_MEMBERS = {
    "voucher": frozenset({"type", "channelConfig", "voucher"}),
    "deposit": frozenset({"type", "channelConfig", "voucher", "deposit"}),
    "refund": frozenset({"type", "channelConfig", "voucher", "amount"}),
}
_CONFIG = frozenset({
    "payer", "payerAuthorizer", "receiver", "receiverAuthorizer", "token", "withdrawDelay", "salt"
})  # fmt: skip
_VOUCHER = frozenset({"channelId", "maxClaimableAmount", "signature"})
_DEPOSIT = frozenset({"amount", "authorization"})
_AUTHORIZATION = frozenset({"erc3009Authorization"})
_SIGNED = frozenset({"validAfter", "validBefore", "salt", "signature"})


def _list_places(
    payload: Mapping[str, Any], kind: str
) -> list[tuple[str, Mapping[str, Any], frozenset[str]]]:
    places: list[tuple[str, Mapping[str, Any], frozenset[str]]] = [
        ("payload", payload, _MEMBERS[kind]),
        ("payload.channelConfig", payload["channelConfig"], _CONFIG),
        ("payload.voucher", payload["voucher"], _VOUCHER),
    ]
    if kind == "deposit":
        deposit = payload["deposit"]
        authorization = deposit["authorization"]
        signed = authorization["erc3009Authorization"]
        places += [
            ("payload.deposit", deposit, _DEPOSIT),
            ("payload.deposit.authorization", authorization, _AUTHORIZATION),
            ("payload.deposit.authorization.erc3009Authorization", signed, _SIGNED),
        ]
    return places


def _parse_voucher(payload: Mapping[str, Any], chain_id: ChainId) -> SignedVoucher:
    config = _parse_config(take_object(payload, "channelConfig"))
    fields = take_object(payload, "voucher")
    channel = channel_id(config, chain_id)
    if take_word(fields, "channelId") != channel:
        raise Refusal(explain_channel(ChannelReason.CHANNEL_ID))
    return SignedVoucher(
        chain_id=chain_id,
        config=config,
        channel_id=channel,
        ceiling=_take_amount(fields, "maxClaimableAmount"),
        signature=_take_voucher_signature(fields),
    )


def _parse_config(fields: Mapping[str, Any]) -> ChannelConfig:
    """A `payerAuthorizer` of zero is refused: the contract would call the payer's wallet (ERC-1271) for each voucher, and a wallet may change
    its mind."""
    authorizer = take_address(fields, "payerAuthorizer")
    if authorizer == ZERO_ADDRESS:
        detail = "A channel with a payerAuthorizer of zero is not accepted; open one whose payerAuthorizer is a key."
        raise Refusal(explain_channel(ChannelReason.VOUCHER_SIGNATURE, detail))
    delay = fields.get("withdrawDelay")
    if type(delay) is not int:
        raise unreadable("`withdrawDelay` must be an integer.")
    if delay not in WITHDRAW_DELAYS_S:
        raise Refusal(explain_channel(ChannelReason.WITHDRAW_DELAY_RANGE))
    return ChannelConfig(
        payer=take_address(fields, "payer"),
        payer_authorizer=authorizer,
        receiver=take_address(fields, "receiver"),
        receiver_authorizer=take_address(fields, "receiverAuthorizer"),
        token=take_address(fields, "token"),
        withdraw_delay=delay,
        salt=take_word(fields, "salt"),
    )


def _take_voucher_signature(fields: Mapping[str, Any]) -> bytes:
    """65 bytes, low s. Libraries that end a signature with 0 or 1 mean 27 and 28; the contract accepts only these."""
    try:
        signature = parse_signature(take_text(fields, "signature"))
    except ValueError as exc:
        raise unreadable(f"`signature` of a voucher {exc}.") from exc
    if len(signature) != KEY_SIGNATURE_BYTES:
        raise unreadable("`signature` of a voucher must be 0x followed by the hex of 65 bytes.")
    return signature[:64] + bytes([27 + signature[64] % 27])


def _parse_deposit(fields: Mapping[str, Any]) -> SignedDeposit:
    authorization = take_object(fields, "authorization")
    if "erc3009Authorization" not in authorization:
        raise Refusal(explain_channel(ChannelReason.TRANSFER_METHOD))
    signed = take_object(authorization, "erc3009Authorization")
    signature = parse_wallet_signature(signed.get("signature"))
    if is_wrapped(signature):
        detail = (
            "A deposit of a wallet that is not deployed (ERC-6492) is not accepted; deploy the wallet first."
        )
        raise Refusal(explain_channel(ChannelReason.DEPOSIT_SIGNATURE, detail))
    return SignedDeposit(
        base_units=_take_amount(fields, "amount"),
        valid_after=take_whole(signed, "validAfter"),
        valid_before=take_whole(signed, "validBefore"),
        salt=take_word(signed, "salt"),
        signature=signature,
    )


def _parse_refund_amount(payload: Mapping[str, Any]) -> int | None:
    if "amount" not in payload:
        return None
    base_units = _take_amount(payload, "amount")
    if base_units == 0:
        raise Refusal(explain_channel(ChannelReason.REFUND_AMOUNT))
    return base_units


def _take_amount(fields: Mapping[str, Any], name: str) -> int:
    base_units = take_whole(fields, name)
    if base_units > CHANNEL_AMOUNT_MAX:
        raise unreadable(f"`{name}` must be a decimal string within uint128.")
    return base_units
