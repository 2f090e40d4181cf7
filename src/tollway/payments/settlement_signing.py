"""The transaction that carries an authorisation to its token: calldata from the signed fields, gas, fees, signature.

A transaction that is replaced keeps its nonce: at most one of the two can be mined.

Pure but for the key that signs. Nothing that a payer composed goes into it: every byte is made here, and `value` is 0.
"""

from dataclasses import dataclass, replace

from tollway.chain.gas_key import GasKey, read_transaction
from tollway.chain.reader import Fees
from tollway.chain.tokens import encode_transfer_with_authorization
from tollway.identifiers import Address, CallId, ListingId
from tollway.ledger.authorization import Authorization, SettlementAttempt

GAS_MARGIN_NUMERATOR, GAS_MARGIN_DENOMINATOR = 5, 4
GAS_MARGIN = 15_000
"""An estimate holds for the state that it was made in. Between it and its block the payee may lose its balance, and
making a slot costs more than changing one."""

BUMP_NUMERATOR, BUMP_DENOMINATOR = 9, 8
"""Nodes take a replacement that offers a tenth more; this is an eighth."""

_VALID_BEFORE = slice(4 + 4 * 32, 4 + 5 * 32)
"""Its place in the calldata of `transferWithAuthorization`, in either form of the signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFees:
    """Prices per gas: the most in all, and what of it goes to whoever builds the block."""

    max_fee_wei: int
    tip_wei: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCall:
    """For which call a transaction is signed, and the most gas that it may use. `code_hash`: of the payer's code."""

    authorization: Authorization
    call_id: CallId
    listing_id: ListingId
    gas: int
    code_hash: bytes | None = None


def encode_transfer_call(authorization: Authorization) -> bytes:
    """Calldata of `transferWithAuthorization`."""
    return encode_transfer_with_authorization(
        payer=authorization.payer,
        payee=authorization.payee,
        base_units=authorization.base_units,
        valid_after=authorization.valid_after,
        valid_before=authorization.valid_before,
        nonce=authorization.nonce,
        signature=authorization.signature,
    )


def limit_gas(estimate: int, *, gas_max: int) -> int:
    """What a transaction may use: the estimate and a margin, within what is allowed."""
    return min(estimate * GAS_MARGIN_NUMERATOR // GAS_MARGIN_DENOMINATOR + GAS_MARGIN, gas_max)


def choose_fees(fees: Fees, *, price_max_wei: int) -> TransactionFees:
    """Twice the base fee, so that six full blocks in a row do not overtake it; never above the operator's ceiling."""
    max_fee_wei = min(2 * fees.base_fee_wei + fees.tip_wei, price_max_wei)
    return TransactionFees(max_fee_wei=max_fee_wei, tip_wei=min(fees.tip_wei, max_fee_wei))


def bump_fees(earlier: TransactionFees, fees: Fees, *, price_max_wei: int) -> TransactionFees | None:
    """The offer that replaces an earlier one; None when that would be above the ceiling."""
    fresh = choose_fees(fees, price_max_wei=price_max_wei)
    tip_wei = max(fresh.tip_wei, _raise_price(earlier.tip_wei))
    max_fee_wei = max(fresh.max_fee_wei, _raise_price(earlier.max_fee_wei), tip_wei)
    return None if max_fee_wei > price_max_wei else TransactionFees(max_fee_wei=max_fee_wei, tip_wei=tip_wei)


def _raise_price(wei: int) -> int:
    return -(-wei * BUMP_NUMERATOR // BUMP_DENOMINATOR) + 1


def sign_attempt(
    transfer_call: TransferCall, key: GasKey, *, nonce: int, tx_fees: TransactionFees, now_ms: int
) -> SettlementAttempt:
    """Signed, and not sent: it goes into the ledger first."""
    authorization = transfer_call.authorization
    signed = key.sign(
        chain_id=authorization.chain_id,
        nonce=nonce,
        to=authorization.token,
        calldata=encode_transfer_call(authorization),
        gas=transfer_call.gas,
        max_fee_wei=tx_fees.max_fee_wei,
        tip_wei=tx_fees.tip_wei,
    )
    return SettlementAttempt(
        chain_id=authorization.chain_id,
        tx_hash=signed.tx_hash,
        call_id=transfer_call.call_id,
        listing_id=transfer_call.listing_id,
        sender=key.address,
        nonce=nonce,
        raw=signed.raw,
        fee_max_wei=transfer_call.gas * tx_fees.max_fee_wei,
        created_ms=now_ms,
        code_hash=transfer_call.code_hash,
    )


def sign_replacement(
    attempt: SettlementAttempt, key: GasKey, *, tx_fees: TransactionFees, now_ms: int
) -> SettlementAttempt:
    """The same once more, at another price."""
    before = read_transaction(attempt.raw)
    return _sign_instead(
        attempt, key, to=before.to, calldata=before.calldata, gas=before.gas, tx_fees=tx_fees, now_ms=now_ms
    )


def sign_filler(
    attempt: SettlementAttempt, key: GasKey, *, tx_fees: TransactionFees, now_ms: int
) -> SettlementAttempt:
    """Nothing but the nonce: the key pays itself nothing. It may use as much gas as the one before, for networks on which
    the plainest transaction takes more than it does elsewhere."""
    gas = read_transaction(attempt.raw).gas
    return _sign_instead(attempt, key, to=key.address, calldata=b"", gas=gas, tx_fees=tx_fees, now_ms=now_ms)


def read_fees(attempt: SettlementAttempt) -> TransactionFees:
    """What an attempt of ours offered: read from what was signed."""
    tx_fields = read_transaction(attempt.raw)
    return TransactionFees(max_fee_wei=tx_fields.max_fee_wei, tip_wei=tx_fields.tip_wei)


def read_valid_before(attempt: SettlementAttempt) -> int:
    """When the authorisation that it carries ends; 0 for a filler."""
    return int.from_bytes(read_transaction(attempt.raw).calldata[_VALID_BEFORE], "big")


def is_filler(attempt: SettlementAttempt) -> bool:
    """Whether it carries no authorisation, only its nonce."""
    return not read_transaction(attempt.raw).calldata


def _sign_instead(
    attempt: SettlementAttempt,
    key: GasKey,
    *,
    to: Address,
    calldata: bytes,
    gas: int,
    tx_fees: TransactionFees,
    now_ms: int,
) -> SettlementAttempt:
    signed = key.sign(
        chain_id=attempt.chain_id,
        nonce=attempt.nonce,
        to=to,
        calldata=calldata,
        gas=gas,
        max_fee_wei=tx_fees.max_fee_wei,
        tip_wei=tx_fees.tip_wei,
    )
    return replace(
        attempt,
        tx_hash=signed.tx_hash,
        raw=signed.raw,
        fee_max_wei=gas * tx_fees.max_fee_wei,
        created_ms=now_ms,
    )
