"""The verdict in words: which public code and reason a transaction that buys nothing (yet) gets. Pure.

The law about 402 decides the codes: whatever may still turn out to pay for the call is never `402`-like here.
"""

from typing import assert_never

from tollway.errors import Code, Problem
from tollway.identifiers import TxHash
from tollway.payments.verdict import (
    BlockInFuture,
    HeldByRestore,
    NotThePayer,
    Pending,
    Refused,
    TooOld,
    TransactionReason,
)

PENDING_RETRY_S = 2
FUTURE_RETRY_S_MAX = 60


def explain_result(
    result: Pending | BlockInFuture | NotThePayer | TooOld | HeldByRestore | Refused,
) -> Problem:
    match result:
        case Pending():
            return _pending(
                f"The payment has {result.confirmations} of {result.needed} confirmations.",
                reason="confirmations",
            )
        case BlockInFuture():
            return _pending(
                f"The payment's block lies {result.seconds} seconds ahead of this gateway's clock.",
                reason="block_in_future",
                retry_after_s=min(result.seconds, FUTURE_RETRY_S_MAX),
            )
        case NotThePayer():
            return Problem(
                code=Code.PAYER_MISMATCH,
                detail="X-Signature is not by the wallet that paid this transaction.",
                payment_state="none",
            )
        case TooOld():
            return Problem(
                code=Code.PAYMENT_TOO_OLD,
                detail=f"The payment was mined {result.age_s} seconds ago and never shown until now. "
                "The operator or the provider can admit it.",
                payment_state="none",
            )
        case HeldByRestore():
            return Problem(
                code=Code.PAYMENT_HELD,
                detail="The payment was mined before this gateway's books were restored; the operator must admit it.",
                payment_state="held",
            )
        case Refused():
            return refuse_transaction(result.reason)
        case _:
            assert_never(result)


def refuse_transaction(reason: TransactionReason) -> Problem:
    """`payment_verification_failed`: the transaction is no payment for this listing and never will be."""
    return Problem(
        code=Code.PAYMENT_VERIFICATION_FAILED,
        detail=_DETAILS[reason],
        reason=reason.value,
        payment_state="none",
    )


def other_network(network: str) -> Problem:
    """The payment is known, on another network than the one that was named. Nothing more is to be paid."""
    return Problem(
        code=Code.INVALID_REQUEST,
        detail=f"X-Payment-Network is wrong: the payment is known, on {network}. Name that network, or none.",
        reason=TransactionReason.WRONG_CHAIN.value,
        payment_state="released",
    )


def not_mined(tx_hash: TxHash) -> Problem:
    return _pending(
        f"Transaction {tx_hash} is not mined yet on any network of this listing.", reason="not_mined"
    )


def _pending(detail: str, *, reason: str, retry_after_s: int = PENDING_RETRY_S) -> Problem:
    return Problem(
        code=Code.PAYMENT_PENDING,
        detail=detail,
        reason=reason,
        retry_after_s=retry_after_s,
        payment_state="none",
    )


_DETAILS = {
    TransactionReason.TRANSACTION_FAILED: "The transaction failed on the chain; it moved nothing.",
    TransactionReason.WRONG_CHAIN: "This listing is not sold on that network.",
    TransactionReason.WRONG_TOKEN: "The transaction moved another token than this listing accepts.",
    TransactionReason.WRONG_RECIPIENT: "The transaction paid another wallet than this listing's payTo.",
    TransactionReason.INTERNAL_TRANSFER: "Native currency counts only when the transaction itself pays payTo, "
    "not when a contract passes it on.",
    TransactionReason.AUTHORIZATION_TRANSFER: "The transfer was made by a signed authorisation (EIP-3009); it counts on the "
    "rail of that authorisation, not as X-Payment-Tx.",
    TransactionReason.NO_TRANSFER: "The transaction transferred nothing that this listing accepts.",
    TransactionReason.RETURNED: "The payee sent the value back in the same transaction.",
    TransactionReason.BELOW_LEDGER_UNIT: "The amount is below the smallest unit that the books keep.",
    TransactionReason.AMOUNT_TOO_LARGE: "The amount is larger than the books can keep in one payment.",
    TransactionReason.BEFORE_LISTING: "The transaction is older than the listing's payTo.",
}
