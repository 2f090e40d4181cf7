"""Receipts: what a paid response says about its payment, in the dialect that paid.

A receipt of x402 v2 for a signed payment also carries the gateway's signature (extension `offer-receipt`). It says what the
ledger says, and is written after it.
"""

from collections.abc import Callable
from functools import lru_cache

from tollway.gateway.messages import ProxyRequest
from tollway.identity.signatures import ReceiptSigner
from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.records import Authorization, Dialect
from tollway.payments.offer_receipt import OFFER_RECEIPT, sign_receipt
from tollway.payments.payment_required import Header, encode_receipt

RECEIPTS_MAX = 8_192
"""Every call on one payment, at one price, has the same."""


@lru_cache(maxsize=RECEIPTS_MAX)
def write_plain_receipt(transaction: TxHash, *, payer: Address, chain_id: ChainId, base_units: int) -> Header:
    """Of a transaction of the caller's own: it has the shape of x402's too."""
    return encode_receipt(
        Dialect.X402_V2,
        transaction=transaction,
        network_chain_id=chain_id,
        payer=payer,
        base_units=base_units,
        now=0,  # this dialect tells no time
    )


class ReceiptWriter:
    """Of signed payments. One per process; safe to use from many tasks at once. `receipt_signer` None: nothing is signed."""

    def __init__(
        self, *, public_url: str, receipt_signer: ReceiptSigner | None, now_ms: Callable[[], int]
    ) -> None:
        self._public_url = public_url
        self._receipt_signer = receipt_signer
        self._now_ms = now_ms

    def write_receipt(
        self, transaction: TxHash, *, request: ProxyRequest, authorization: Authorization
    ) -> Header:
        now_s = self._now_ms() / 1000
        extensions = None
        if self._receipt_signer is not None and authorization.dialect is Dialect.X402_V2:
            signed = sign_receipt(
                resource_url=request.public_url(self._public_url),
                network_chain_id=authorization.chain_id,
                payer=authorization.payer,
                transaction=transaction,
                now_s=now_s,
                sign=self._receipt_signer.sign,
            )
            extensions = {OFFER_RECEIPT: signed}
        return encode_receipt(
            authorization.dialect,
            transaction=transaction,
            network_chain_id=authorization.chain_id,
            payer=authorization.payer,
            base_units=authorization.base_units,
            challenge_id=authorization.challenge_id,
            now=now_s,
            extensions=extensions,
        )
