"""The transaction that carries an authorisation to its token: calldata from the signed fields, gas, fees, signature.

Pure but for the key that signs. Nothing that a payer composed goes into it: every byte is made here, and `value` is 0.
"""

from dataclasses import dataclass

from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes

from tollway.chain.gas_key import GasKey
from tollway.chain.reader import Fees
from tollway.chain.tokens import encode_transfer_with_authorization
from tollway.identifiers import CallId, ListingId
from tollway.ledger.authorization import Authorization, SettlementAttempt

GAS_MARGIN_NUMERATOR, GAS_MARGIN_DENOMINATOR = 5, 4
GAS_MARGIN = 15_000
"""An estimate holds for the state that it was made in. Between it and its block the payee may lose its balance, and
making a slot costs more than changing one."""

BUMP_NUMERATOR, BUMP_DENOMINATOR = 9, 8
"""Nodes take a replacement that offers a tenth more; this is an eighth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeeOffer:
    """Prices per gas: the most in all, and what of it goes to whoever builds the block."""

    max_fee_wei: int
    tip_wei: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Carriage:
    """For which call a transaction is signed, and the most gas that it may use."""

    authorization: Authorization
    call_id: CallId
    listing_id: ListingId
    gas: int


def encode_call(authorization: Authorization) -> bytes:
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


def offer_fee(fees: Fees, *, price_max_wei: int) -> FeeOffer:
    """Twice the base fee, so that six full blocks in a row do not overtake it; never above the operator's ceiling."""
    max_fee_wei = min(2 * fees.base_fee_wei + fees.tip_wei, price_max_wei)
    return FeeOffer(max_fee_wei=max_fee_wei, tip_wei=min(fees.tip_wei, max_fee_wei))


def bump_fee(earlier: FeeOffer, fees: Fees, *, price_max_wei: int) -> FeeOffer | None:
    """The offer that replaces an earlier one; None when that would be above the ceiling."""
    fresh = offer_fee(fees, price_max_wei=price_max_wei)
    tip_wei = max(fresh.tip_wei, _raise(earlier.tip_wei))
    max_fee_wei = max(fresh.max_fee_wei, _raise(earlier.max_fee_wei), tip_wei)
    return None if max_fee_wei > price_max_wei else FeeOffer(max_fee_wei=max_fee_wei, tip_wei=tip_wei)


def _raise(wei: int) -> int:
    return -(-wei * BUMP_NUMERATOR // BUMP_DENOMINATOR) + 1


def sign_attempt(
    carriage: Carriage, key: GasKey, *, nonce: int, offer: FeeOffer, now_ms: int
) -> SettlementAttempt:
    """Signed, and not sent: it goes into the books first."""
    authorization = carriage.authorization
    signed = key.sign(
        chain_id=authorization.chain_id,
        nonce=nonce,
        to=authorization.token,
        calldata=encode_call(authorization),
        gas=carriage.gas,
        max_fee_wei=offer.max_fee_wei,
        tip_wei=offer.tip_wei,
    )
    return SettlementAttempt(
        chain_id=authorization.chain_id,
        tx_hash=signed.tx_hash,
        call_id=carriage.call_id,
        listing_id=carriage.listing_id,
        sender=key.address,
        nonce=nonce,
        raw=signed.raw,
        fee_max_wei=carriage.gas * offer.max_fee_wei,
        created_ms=now_ms,
    )


def read_offer(attempt: SettlementAttempt) -> tuple[FeeOffer, int]:
    """What an attempt of ours offered, and its gas: read from what was signed."""
    fields = TypedTransaction.from_bytes(HexBytes(attempt.raw)).as_dict()
    offer = FeeOffer(max_fee_wei=fields["maxFeePerGas"], tip_wei=fields["maxPriorityFeePerGas"])
    return offer, fields["gas"]
