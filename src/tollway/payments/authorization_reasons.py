"""Why a payment by authorisation (x402, MPP) does not count: a closed set of reasons, and each of them in words. Pure.

The reasons are public, and are the strings of the protocols where those have one: clients show them as they are. Which
HTTP status a code gets is not known here. Only `payment_already_used` says that money may have moved, to somebody and for
nothing of ours; everything else is surely unpaid and may ask for a new payment.
"""

from enum import StrEnum

from tollway.errors import Code, Problem


class AuthorizationReason(StrEnum):
    """Public (`reason` of a problem, `error` of a 402, `errorReason` of a failed settlement)."""

    # What was shown cannot be read.
    UNREADABLE = "invalid_payload"
    BAD_IDENTIFIER = "invalid_payment_identifier"
    MORE_THAN_ONE = "more_than_one_rail"

    # It is of another kind than what is taken here.
    WRONG_VERSION = "invalid_x402_version"
    SCHEME = "unsupported_scheme"
    NETWORK = "invalid_network"
    TOKEN = "invalid_exact_evm_eip3009_not_supported"  # noqa: S105 - a reason, not a secret
    TRANSFER_METHOD = "unsupported_transfer_method"
    MPP_METHOD = "method_unsupported"

    # It pays otherwise than asked.
    RECIPIENT = "invalid_exact_evm_payload_recipient_mismatch"
    RETURNED = "returned"  # as of a transaction by which a wallet pays itself
    AMOUNT = "invalid_exact_evm_payload_authorization_value_mismatch"
    NOT_YET_VALID = "invalid_exact_evm_payload_authorization_valid_after"
    EXPIRED = "invalid_exact_evm_payload_authorization_valid_before"
    ENDLESS = "invalid_exact_evm_payload_authorization_valid_before_too_large"
    SIGNATURE = "invalid_exact_evm_payload_signature"
    UNDEPLOYED_WALLET = "invalid_exact_evm_payload_undeployed_smart_wallet"
    INSUFFICIENT_BALANCE = "insufficient_balance"
    SIMULATION_FAILED = "invalid_exact_evm_transaction_simulation_failed"
    ALREADY_USED = "invalid_exact_evm_nonce_already_used"
    WALLET_GAS = "wallet_gas_budget"

    # MPP: the challenge that it answers.
    CHALLENGE = "invalid_challenge"
    CHALLENGE_EXPIRED = "challenge_expired"
    CHALLENGE_NONCE = "invalid_challenge_nonce"


def explain_authorization(reason: AuthorizationReason, detail: str | None = None) -> Problem:
    """The refusal for that reason; `detail` where the general sentence can be bettered."""
    code, sentence = _PROBLEMS[reason]
    return Problem(
        code=code,
        detail=detail or sentence,
        reason=reason.value,
        payment_state="none",
    )


_MALFORMED = Code.PAYMENT_MALFORMED
_UNSUPPORTED = Code.PAYMENT_METHOD_UNSUPPORTED
_FAILED = Code.PAYMENT_VERIFICATION_FAILED
_EXPIRED = Code.PAYMENT_EXPIRED

_PROBLEMS: dict[AuthorizationReason, tuple[Code, str]] = {
    AuthorizationReason.UNREADABLE: (_MALFORMED, "The payment header cannot be read."),
    AuthorizationReason.WRONG_VERSION: (
        _UNSUPPORTED,
        "PAYMENT-SIGNATURE carries x402 version 2 and X-PAYMENT carries version 1; this one says otherwise.",
    ),
    # Not a 402: a client would only sign a second payment under the same identifier.
    AuthorizationReason.BAD_IDENTIFIER: (
        Code.INVALID_REQUEST,
        "The id of the payment-identifier extension must have 16 to 128 characters of A-Z, a-z, 0-9, - and _.",
    ),
    AuthorizationReason.MORE_THAN_ONE: (
        Code.INVALID_REQUEST,
        "The request shows more than one kind of payment; send one.",
    ),
    AuthorizationReason.SCHEME: (_UNSUPPORTED, "Only the scheme `exact` is taken."),
    AuthorizationReason.NETWORK: (_UNSUPPORTED, "This listing is not sold on that network by authorisation."),
    AuthorizationReason.TOKEN: (
        _UNSUPPORTED,
        "This listing does not take authorisations (EIP-3009) of that token.",
    ),
    AuthorizationReason.TRANSFER_METHOD: (
        _UNSUPPORTED,
        "Only EIP-3009 authorisations are taken; neither Permit2 nor any other way to transfer.",
    ),
    AuthorizationReason.MPP_METHOD: (
        _UNSUPPORTED,
        "Of MPP only method `evm`, intent `charge`, credential type `authorization` is taken.",
    ),
    AuthorizationReason.RECIPIENT: (_FAILED, "The authorisation pays another wallet than payTo."),
    AuthorizationReason.RETURNED: (_FAILED, "The authorisation pays the wallet that it comes from: nobody."),
    AuthorizationReason.AMOUNT: (_FAILED, "The authorisation is not over exactly the price."),
    AuthorizationReason.NOT_YET_VALID: (_FAILED, "The authorisation is not valid yet (validAfter)."),
    AuthorizationReason.EXPIRED: (
        _EXPIRED,
        "The authorisation is expired, or expires before the call could be carried out and settled (validBefore).",
    ),
    AuthorizationReason.ENDLESS: (
        _FAILED,
        "validBefore lies too far ahead: sign for as long as the terms ask, a day at most.",
    ),
    AuthorizationReason.SIGNATURE: (_FAILED, "The signature is not by the wallet that is to pay."),
    AuthorizationReason.UNDEPLOYED_WALLET: (
        _FAILED,
        "The paying wallet is a contract that does not stand yet (ERC-6492); deploy it first.",
    ),
    AuthorizationReason.INSUFFICIENT_BALANCE: (
        _FAILED,
        "The paying wallet's balance does not cover this authorisation and those of its calls that are still running.",
    ),
    AuthorizationReason.WALLET_GAS: (
        _UNSUPPORTED,
        "Settling for wallets with code has used up its part of the gas here, or too many transfers of wallets with this "
        "code have failed; pay by transaction.",
    ),
    AuthorizationReason.SIMULATION_FAILED: (_FAILED, "The token refuses the transfer."),
    AuthorizationReason.ALREADY_USED: (
        Code.PAYMENT_ALREADY_USED,
        "The nonce of this authorisation is used or cancelled on the chain; it pays for nothing here.",
    ),
    AuthorizationReason.CHALLENGE: (
        _FAILED,
        "The challenge is not one that this gateway made for this method and URL, or it was changed.",
    ),
    AuthorizationReason.CHALLENGE_EXPIRED: (_EXPIRED, "The challenge is expired."),
    AuthorizationReason.CHALLENGE_NONCE: (
        _FAILED,
        "The authorisation's nonce must be keccak256 of the challenge's id and realm.",
    ),
}
