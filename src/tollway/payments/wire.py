"""Parses the content of a payment header (base64, JSON, the signed fields of an EIP-3009 transfer); the reasons of refusals. Pure.

The content is untrusted: sizes, nesting and numbers are bounded, and everything that is not well-formed is refused. The
authorisation itself is checked in `authorization_check`.

The reasons are public. They are the strings of the protocols where a protocol has one, because clients display them. Only
`payment_already_used` means that money may have moved, and not for a call of this gateway; after every other refusal no money has
moved, and the response may request a new payment.
"""

import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypedDict

from pydantic_core import from_json

from tollway.errors import Code, Problem, Refusal
from tollway.ids import Address, ChainId
from tollway.ledger.records import Dialect
from tollway.payments.deployment import is_wrapped, unwrap


class AuthorizationReason(StrEnum):
    """Why an authorisation is refused. Public (`reason` of a problem, `error` of a 402, `errorReason` of a failed settlement)."""

    # The header cannot be parsed.
    UNREADABLE = "invalid_payload"
    BAD_IDENTIFIER = "invalid_payment_identifier"
    MORE_THAN_ONE = "more_than_one_rail"

    # The kind of payment is not accepted here.
    WRONG_VERSION = "invalid_x402_version"
    SCHEME = "unsupported_scheme"
    NETWORK = "invalid_network"
    TOKEN = "invalid_exact_evm_eip3009_not_supported"  # noqa: S105 - a reason, not a secret
    TRANSFER_METHOD = "unsupported_transfer_method"
    MPP_METHOD = "method_unsupported"

    # The authorisation does not meet the requirement.
    RECIPIENT = "invalid_exact_evm_payload_recipient_mismatch"
    RETURNED = "returned"  # the reason of a transaction in which a wallet pays itself
    AMOUNT = "invalid_exact_evm_payload_authorization_value_mismatch"
    NOT_YET_VALID = "invalid_exact_evm_payload_authorization_valid_after"
    EXPIRED = "invalid_exact_evm_payload_authorization_valid_before"
    ENDLESS = "invalid_exact_evm_payload_authorization_valid_before_too_large"
    SIGNATURE = "invalid_exact_evm_payload_signature"
    UNDEPLOYED_WALLET = "invalid_exact_evm_payload_undeployed_smart_wallet"
    FACTORY = "eip6492_factory_not_allowed"
    INSUFFICIENT_BALANCE = "insufficient_balance"
    SIMULATION_FAILED = "invalid_exact_evm_transaction_simulation_failed"
    ALREADY_USED = "invalid_exact_evm_nonce_already_used"
    WALLET_GAS = "wallet_gas_budget"

    # MPP: the challenge of the credential.
    CHALLENGE = "invalid_challenge"
    CHALLENGE_EXPIRED = "challenge_expired"
    CHALLENGE_NONCE = "invalid_challenge_nonce"


def explain_authorization(reason: AuthorizationReason, detail: str | None = None) -> Problem:
    """`detail` replaces the general sentence."""
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
        "The x402 version does not match the header: PAYMENT-SIGNATURE carries version 2, X-PAYMENT carries version 1.",
    ),
    # Not a 402: a client would sign a second payment under the same identifier.
    AuthorizationReason.BAD_IDENTIFIER: (
        Code.INVALID_REQUEST,
        "The id of the payment-identifier extension must have 16 to 128 characters of A-Z, a-z, 0-9, - and _.",
    ),
    AuthorizationReason.MORE_THAN_ONE: (
        Code.INVALID_REQUEST,
        "The request carries more than one payment; send exactly one.",
    ),
    AuthorizationReason.SCHEME: (
        _UNSUPPORTED,
        "Only the scheme `exact` is accepted; pay one of the options in the terms.",
    ),
    AuthorizationReason.NETWORK: (
        _UNSUPPORTED,
        "This listing is not sold on that network by authorisation; pay one of the options in the terms.",
    ),
    AuthorizationReason.TOKEN: (
        _UNSUPPORTED,
        "This listing does not accept authorisations (EIP-3009) of that token; pay one of the options in the terms.",
    ),
    AuthorizationReason.TRANSFER_METHOD: (
        _UNSUPPORTED,
        "Only EIP-3009 authorisations are accepted; Permit2 and other transfer methods are not.",
    ),
    AuthorizationReason.MPP_METHOD: (
        _UNSUPPORTED,
        "The only accepted form of MPP is method `evm`, intent `charge`, credential type `authorization`.",
    ),
    AuthorizationReason.RECIPIENT: (
        _FAILED,
        "The authorisation pays another wallet than payTo; sign one that pays payTo.",
    ),
    AuthorizationReason.RETURNED: (
        _FAILED,
        "The payer and payTo are the same wallet; pay from another wallet.",
    ),
    AuthorizationReason.AMOUNT: (
        _FAILED,
        "The authorisation must be for exactly the price; sign the amount in the terms.",
    ),
    AuthorizationReason.NOT_YET_VALID: (
        _FAILED,
        "The authorisation is not valid yet; sign with an earlier validAfter.",
    ),
    AuthorizationReason.EXPIRED: (
        _EXPIRED,
        "The authorisation has expired, or expires before the call can be settled; sign with a later validBefore.",
    ),
    AuthorizationReason.ENDLESS: (
        _FAILED,
        "validBefore is too far ahead; sign for maxTimeoutSeconds of the terms, at most one day.",
    ),
    AuthorizationReason.SIGNATURE: (
        _FAILED,
        "The paying wallet did not make this signature; sign with the wallet in `from`.",
    ),
    AuthorizationReason.UNDEPLOYED_WALLET: (
        _FAILED,
        "The paying wallet has no code, and no key made this signature; wrap it with the wallet's deployment (ERC-6492), or deploy the wallet first.",
    ),
    AuthorizationReason.FACTORY: (
        _FAILED,
        "This gateway does not deploy wallets by the factory in the signature (ERC-6492); deploy the wallet first, or pay by transaction.",
    ),
    AuthorizationReason.INSUFFICIENT_BALANCE: (
        _FAILED,
        "The paying wallet's balance does not cover this authorisation and those of its running calls; add funds first.",
    ),
    AuthorizationReason.WALLET_GAS: (
        _UNSUPPORTED,
        "Settlements for wallets with code have used their part of the gas budget, or too many transfers of wallets "
        "with this code have failed; pay by transaction.",
    ),
    AuthorizationReason.SIMULATION_FAILED: (
        _FAILED,
        "The token contract refuses the transfer in simulation; check the paying wallet's balance and that the token does not block it.",
    ),
    AuthorizationReason.ALREADY_USED: (
        Code.PAYMENT_ALREADY_USED,
        "The nonce of this authorisation is used or cancelled on the chain, so it cannot pay for this call; read your history before you sign a new one.",
    ),
    AuthorizationReason.CHALLENGE: (
        _FAILED,
        "This gateway did not make the challenge for this method and URL, or it was changed; request a new one.",
    ),
    AuthorizationReason.CHALLENGE_EXPIRED: (_EXPIRED, "The challenge has expired; request a new one."),
    AuthorizationReason.CHALLENGE_NONCE: (
        _FAILED,
        "The authorisation's nonce must be keccak256 of the challenge's id and realm.",
    ),
}


SIGNATURE_BYTES_MAX = 4 * 1024

_BASE64 = re.compile(rb"[A-Za-z0-9+/]+")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_WHOLE = re.compile(r"[0-9]{1,78}")
_WORD = re.compile(r"0[xX][0-9a-fA-F]{64}")
_SIGNATURE = re.compile(r"0[xX](?:[0-9a-fA-F]{2})+")
_UINT256_MAX = 2**256 - 1
_NAME_SHOWN_MAX = 40

SIGNED_FIELDS = frozenset({"from", "to", "value", "validAfter", "validBefore", "nonce"})


class AuthorizationFields(TypedDict):
    """The fields of `TransferWithAuthorization` and its signature, the same in every protocol."""

    payer: Address
    payee: Address
    base_units: int
    valid_after: int
    valid_before: int
    nonce: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentedAuthorization:
    """The parsed authorisation of a request, the same record for every dialect. `token` None: version 1 of x402 names no token.

    `identifier`: the client's id in the `payment-identifier` extension. `fault`: an unknown member, or an MPP challenge that is
    not valid. `match_requirement` returns the fault after the look-up in the ledger: the response to an authorisation that has
    paid already must not offer new terms.
    """

    dialect: Dialect
    chain_id: ChainId
    token: Address | None
    payer: Address
    payee: Address
    base_units: int
    valid_after: int
    valid_before: int
    nonce: bytes
    signature: bytes = field(repr=False)
    challenge_id: str = ""
    identifier: str | None = None
    fault: Problem | None = None


@lru_cache(maxsize=4)
def decode_object(value: bytes, *, bytes_max: int) -> dict[str, Any]:
    """Decodes base64 of a JSON object, in the standard or URL-safe alphabet, with or without padding. Raises `Refusal`. Never change the result: the rails that read one
    header share it."""
    if len(value) > bytes_max:
        raise unreadable(f"The payment header is longer than {bytes_max} bytes.")
    text = value.strip(b" \t").translate(_TO_STANDARD).rstrip(b"=")
    if not _BASE64.fullmatch(text) or len(text) % 4 == 1:
        raise unreadable("The payment header is not base64.")
    raw = binascii.a2b_base64(text + b"=" * (-len(text) % 4))
    try:
        parsed = from_json(raw, allow_inf_nan=False)  # refuses deep nesting
    except ValueError as exc:
        raise unreadable("The payment header is not base64 of JSON.") from exc
    if not isinstance(parsed, dict):
        raise unreadable("The payment header is not base64 of a JSON object.")
    return parsed


def encode_object(content: Mapping[str, Any]) -> bytes:
    """base64 in the standard alphabet with padding: stock x402 clients refuse every other form."""
    return binascii.b2a_base64(encode_json(content), newline=False)


def encode_object_urlsafe(content: Mapping[str, Any]) -> str:
    """base64url without padding of canonical JSON, for MPP (RFC 8785: for ASCII keys and integers, sorting the keys is enough)."""
    return encode_urlsafe(_encode_sorted(content).encode("utf-8", "replace"))


def encode_urlsafe(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).translate(_TO_URLSAFE).rstrip(b"=").decode("ascii")


_TO_URLSAFE = bytes.maketrans(b"+/", b"-_")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def encode_json(content: object) -> bytes:
    """JSON in UTF-8 without spaces; a lone surrogate becomes a question mark."""
    return _encode(content).encode("utf-8", "replace")


def parse_transfer(fields: Mapping[str, Any], signature: object) -> AuthorizationFields:
    """Parses `from, to, value, validAfter, validBefore, nonce` (strings) and the signature (hex). Raises `Refusal`."""
    return {
        "payer": take_address(fields, "from"),
        "payee": take_address(fields, "to"),
        "base_units": take_whole(fields, "value"),
        "valid_after": take_whole(fields, "validAfter"),
        "valid_before": take_whole(fields, "validBefore"),
        "nonce": take_word(fields, "nonce"),
        "signature": parse_wallet_signature(signature),
    }


def find_unknown_member(*places: tuple[str, Mapping[str, Any], frozenset[str]]) -> Problem | None:
    """The problem of the first member that its protocol does not define, or None. Each place: the path of an object, the object,
    its defined members. `PresentedAuthorization.fault` describes when the problem counts."""
    for place, fields, members in places:
        if fields.keys() <= members:
            continue
        name = next(name for name in fields if name not in members)
        path = f"{place}.{_to_printable(name)}" if place else _to_printable(name)
        detail = f"`{path}` is not a member of this kind of payment; remove it. Nothing was settled."
        return explain_authorization(AuthorizationReason.UNREADABLE, detail)
    return None


def _to_printable(name: str) -> str:
    """Cuts the text to a maximum length and to printable ASCII."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in name[:_NAME_SHOWN_MAX])


def take_object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    member = fields.get(name)
    if not isinstance(member, dict):
        raise unreadable(f"`{name}` must be an object.")
    return member


def take_text(fields: Mapping[str, Any], name: str) -> str:
    member = fields.get(name)
    if not isinstance(member, str):
        raise unreadable(f"`{name}` must be a string.")
    return member


def take_address(fields: Mapping[str, Any], name: str) -> Address:
    try:
        return Address.parse(take_text(fields, name))
    except ValueError as exc:
        raise unreadable(f"`{name}`: {exc}.") from exc


def take_whole(fields: Mapping[str, Any], name: str) -> int:
    """An unsigned integer below 2^256, as decimal digits."""
    text = take_text(fields, name)
    if not _WHOLE.fullmatch(text) or int(text) > _UINT256_MAX:
        raise unreadable(f"`{name}` must be a decimal string within uint256.")
    return int(text)


def take_word(fields: Mapping[str, Any], name: str) -> bytes:
    """32 bytes, as 0x and 64 hex digits."""
    text = take_text(fields, name)
    if not _WORD.fullmatch(text):
        raise unreadable(f"`{name}` must be 0x followed by 64 hex digits.")
    return bytes.fromhex(text[2:])


def parse_wallet_signature(text: object) -> bytes:
    """The signature of a key or of a contract wallet, whose format only that contract defines."""
    is_short = isinstance(text, str) and len(text) <= 2 + 2 * SIGNATURE_BYTES_MAX
    if not isinstance(text, str) or not is_short or not _SIGNATURE.fullmatch(text):
        raise unreadable(f"`signature` must be 0x followed by the hex of 1 to {SIGNATURE_BYTES_MAX} bytes.")
    signature = bytes.fromhex(text[2:])
    if is_wrapped(signature):
        try:
            unwrap(signature)
        except ValueError as exc:
            raise unreadable(f"`signature`: {exc}.") from exc
    return signature


def unreadable(detail: str) -> Refusal:
    return Refusal(explain_authorization(AuthorizationReason.UNREADABLE, detail))
