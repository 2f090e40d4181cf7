"""Receipts: the header of a paid response that describes its payment, in the dialect of the payment.

An x402 v2 receipt of a signed payment also has the gateway's signature (extension `offer-receipt`), byte for byte the part of x402 in the
receipt that `/history/{callId}/receipt` returns later. A receipt is built after the ledger has written the outcome.
"""

from collections.abc import Callable
from functools import lru_cache

from tollway.gateway.messages import ProxyRequest
from tollway.gateway.target import GATEWAY_PREFIX, PATH_LENGTH_MAX
from tollway.identity.signatures import ReceiptSigner
from tollway.ids import Address, ChainId, ListingId, TxHash
from tollway.ledger.records import Authorization, Dialect
from tollway.payments.offer_receipt import OFFER_RECEIPT, describe_receipt
from tollway.payments.payment_required import Header, encode_receipt

RECEIPTS_MAX = 8_192
"""The size of the cache. All calls of one payment at one price have the same receipt."""


@lru_cache(maxsize=RECEIPTS_MAX)
def write_plain_receipt(transaction: TxHash, *, payer: Address, chain_id: ChainId, base_units: int) -> Header:
    """Builds the receipt of a payment by transaction, in the form of x402 v2."""
    return encode_receipt(
        Dialect.X402_V2,
        transaction=transaction,
        network_chain_id=chain_id,
        payer=payer,
        base_units=base_units,
        now=0,  # x402 v2 receipts contain no time
    )


def call_url(public_url: str, listing_id: ListingId, path: str) -> str:
    """The URL of a call in its receipts, without its query: the ledger keeps no query. `path`: as the ledger keeps it, cut to its longest length."""
    return f"{public_url}{GATEWAY_PREFIX}{listing_id}{path}"


class ReceiptWriter:
    """Builds the receipts of signed payments. One per process; safe to use from many tasks at once. `receipt_signer` None: receipts are
    not signed."""

    def __init__(
        self, *, public_url: str, receipt_signer: ReceiptSigner | None, now_ms: Callable[[], int]
    ) -> None:
        self._public_url = public_url
        self._receipt_signer = receipt_signer
        self._now_ms = now_ms

    def write_receipt(
        self,
        transaction: TxHash,
        *,
        request: ProxyRequest,
        authorization: Authorization,
        moved_ms: int | None,
    ) -> Header:
        """`moved_ms`: when the ledger wrote that the call is charged. Only with it the receipt is signed."""
        now_s = self._now_ms() / 1000
        extensions = None
        signer = self._receipt_signer if authorization.dialect is Dialect.X402_V2 else None
        if signer is not None and moved_ms is not None:
            path = request.target.rest[:PATH_LENGTH_MAX]
            signed = describe_receipt(
                resource_url=call_url(self._public_url, request.listing_id, path),
                network_chain_id=authorization.chain_id,
                payer=authorization.payer,
                transaction=transaction,
                issued_s=moved_ms // 1000,
                sign=signer.sign,
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
