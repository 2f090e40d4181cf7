"""Signed receipts of calls: their fields, their EIP-712 digests, and their offline verification. Pure.

A receipt is a statement of the gateway's books about one call. `CallReceipt` has 23 fields, in the domain Tollway, version 1, on every rail and in
every state. A charged call whose answer was relayed also has the receipt of x402 (extension `offer-receipt`, version 1): the first six fields
with the same names and values, in the domain `x402 receipt`, signed by the same key. Both stand in one document. The receipt of a refunded call has a
third one: the credit note, which states what its provider gave back, by which transfer or as which credit (`NOTE_FIELDS`).

A changed list of fields, or a changed meaning of one, is a new version of the domain. The callers' client imports this module.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from tollway.identity.did_document import PublishedSigners
from tollway.identity.signatures import parse_signature, recover
from tollway.ids import Address, keccak256

Sign = Callable[[bytes], bytes]
"""A 32-byte digest -> 65 bytes r || s || v with v 27 or 28, by the gateway's published key. Deterministic (RFC 6979)."""

Values = Mapping[str, str | int]

FORMAT: Final = "eip712"
PRIMARY_TYPE: Final = "CallReceipt"
DOMAIN: Final[Mapping[str, str]] = {"name": "Tollway", "version": "1"}
VERSION: Final = 1

X402_FIELDS: Final[Mapping[str, str]] = {
    "version": "uint256",
    "network": "string",
    "resourceUrl": "string",
    "payer": "string",
    "issuedAt": "uint256",
    "transaction": "string",
}
CALL_FIELDS: Final[Mapping[str, str]] = {
    **X402_FIELDS,
    "gateway": "string",
    "callId": "string",
    "apiId": "string",
    "operation": "string",
    "payee": "string",
    "asset": "string",
    "decimals": "uint256",
    "currency": "string",
    "price": "string",
    "amount": "string",
    "quantities": "string",
    "rail": "string",
    "channel": "string",
    "state": "string",
    "httpStatus": "uint256",
    "createdAt": "uint256",
    "completedAt": "uint256",
}

NOTE_TYPE: Final = "CreditNote"
NOTE_FIELDS: Final[Mapping[str, str]] = {
    "version": "uint256",
    "network": "string",
    "gateway": "string",
    "callId": "string",
    "payer": "string",
    "payee": "string",
    "asset": "string",
    "decimals": "uint256",
    "currency": "string",
    "amount": "string",
    "kind": "string",
    "transaction": "string",
    "issuedAt": "uint256",
}
_SAME_FIELDS: Final = (*("network", "gateway", "callId", "payer", "payee", "asset", "decimals", "currency"),)
"""The fields of a credit note that its receipt has too."""

CHARGED: Final = "charged"
"""The only state with a receipt of x402."""

_UINT256_END = 1 << 256


# ---- Digests.


def call_receipt_digest(receipt: Values) -> bytes:
    """The digest of the 23 fields: EIP-712 `CallReceipt`, domain Tollway, version 1, without a chain, since calls are paid on several."""
    return _typed_digest(_call_domain(), _CALL_TYPE, CALL_FIELDS, receipt)


def x402_receipt_digest(receipt: Values) -> bytes:
    """The digest of the six fields: EIP-712 `Receipt`, domain `x402 receipt`, version 1, which names chain 1 on every network."""
    return _typed_digest(_x402_domain("x402 receipt"), _X402_TYPE, X402_FIELDS, receipt)


def credit_note_digest(note: Values) -> bytes:
    """The digest of a credit note: EIP-712 `CreditNote`, in the domain of the receipt."""
    return _typed_digest(_call_domain(), _NOTE_TYPE, NOTE_FIELDS, note)


def x402_digest(domain: str, type_hash: bytes, fields: Iterable[str], values: Values) -> bytes:
    """`type_hash`: of `hash_type`."""
    return _typed_digest(_x402_domain(domain), type_hash, fields, values)


def hash_type(name: str, fields: Mapping[str, str]) -> bytes:
    encoded = f"{name}({','.join([f'{kind} {field}' for field, kind in fields.items()])})"
    return keccak256(encoded.encode())


_CALL_TYPE = hash_type(PRIMARY_TYPE, CALL_FIELDS)
_X402_TYPE = hash_type("Receipt", X402_FIELDS)
_NOTE_TYPE = hash_type(NOTE_TYPE, NOTE_FIELDS)


def _typed_digest(domain: bytes, type_hash: bytes, fields: Iterable[str], values: Values) -> bytes:
    words = [type_hash, *[_encode(values[field]) for field in fields]]
    return keccak256(b"\x19\x01" + domain + keccak256(b"".join(words)))


@cache  # two domains exist
def _x402_domain(name: str) -> bytes:
    described = keccak256(b"EIP712Domain(string name,string version,uint256 chainId)")
    return keccak256(described + _encode(name) + _encode("1") + _encode(1))


@cache
def _call_domain() -> bytes:
    described = keccak256(b"EIP712Domain(string name,string version)")
    return keccak256(described + _encode(DOMAIN["name"]) + _encode(DOMAIN["version"]))


def _encode(value: str | int) -> bytes:
    return value.to_bytes(32, "big") if isinstance(value, int) else _hash_text(value)


@lru_cache(maxsize=1024)
def _hash_text(text: str) -> bytes:
    """Cached, because networks, tokens, wallets and amounts repeat."""
    return keccak256(text.encode())


# ---- The gateway signs.


def sign_call_receipt(receipt: Values, *, kid: str, has_x402: bool, sign: Sign) -> dict[str, Any]:
    """The document of a receipt. `receipt`: the 23 fields. `has_x402`: whether the call is charged and its answer was relayed."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "primaryType": PRIMARY_TYPE,
        "domain": dict(DOMAIN),
        "payload": {field: receipt[field] for field in CALL_FIELDS},
        "signature": "0x" + sign(call_receipt_digest(receipt)).hex(),
        "kid": kid,
    }
    if has_x402:
        document["x402"] = sign_x402_receipt(receipt, sign=sign)
    return document


def sign_x402_receipt(receipt: Values, *, sign: Sign) -> dict[str, Any]:
    """The signed receipt of x402. `receipt` may have more fields than its six."""
    return {
        "format": FORMAT,
        "payload": {field: receipt[field] for field in X402_FIELDS},
        "signature": "0x" + sign(x402_receipt_digest(receipt)).hex(),
    }


def sign_credit_note(note: Values, *, sign: Sign) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "primaryType": NOTE_TYPE,
        "domain": dict(DOMAIN),
        "payload": {field: note[field] for field in NOTE_FIELDS},
        "signature": "0x" + sign(credit_note_digest(note)).hex(),
    }


# ---- A holder verifies.

MismatchCode = Literal[
    "malformed",
    "unsupported",
    "changed",
    "unknown_key",
    "other_gateway",
    "x402_changed",
    "x402_contradicts",
    "credit_note_changed",
    "credit_note_contradicts",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A reason for which a receipt is not valid. `field`: the place in the document, where one place is known."""

    code: MismatchCode
    detail: str
    field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptVerdict:
    """`signer`: the address that signed the 23 fields as they stand; None where no signature can be read. No mismatch: the receipt is valid."""

    signer: Address | None
    mismatches: tuple[Mismatch, ...]

    @property
    def is_valid(self) -> bool:
        return not self.mismatches


def verify_call_receipt(document: object, keys: PublishedSigners) -> ReceiptVerdict:
    """Verifies a receipt with the DID document of its gateway. Needs no network.

    Valid: listed keys made both signatures over the fields as they stand, and `gateway` is the gateway of the DID document. The part of x402 has the
    same six values and stands only in the receipt of a charged call. A credit note is of the same call, and gives at most its price back. `kid` and `alsoFrom` are not signed, so they are not read. Proves what the
    gateway stated, not what happened on a chain. Never raises.
    """
    if not isinstance(document, Mapping):
        return _refuse("malformed", "The receipt is no JSON object.")
    shape = list(_check_shape(document))
    if shape:
        return ReceiptVerdict(signer=None, mismatches=tuple(shape))
    payload = document["payload"]
    signer = _recover_signer(call_receipt_digest(payload), document.get("signature"))
    x402 = document.get("x402")
    x402_signer = _find_x402_signer(x402)
    mismatches = (
        *_check_signer(signer, keys, is_x402_good=x402_signer in keys.addresses),
        *_check_gateway(payload, keys),
        *(() if x402 is None else _check_x402(x402, payload, x402_signer, keys)),
        *_check_note(document.get("creditNote"), payload, keys),
    )
    return ReceiptVerdict(signer=signer, mismatches=mismatches)


def find_gateway(document: object) -> str | None:
    """The gateway that a receipt names, not verified; None where it names none."""
    payload = document.get("payload") if isinstance(document, Mapping) else None
    gateway = payload.get("gateway") if isinstance(payload, Mapping) else None
    return gateway if isinstance(gateway, str) else None


def _refuse(code: MismatchCode, detail: str, field: str = "") -> ReceiptVerdict:
    return ReceiptVerdict(signer=None, mismatches=(Mismatch(code=code, detail=detail, field=field),))


def _check_shape(document: Mapping[str, Any]) -> Iterator[Mismatch]:
    given = (document.get("format"), document.get("primaryType"), document.get("domain"))
    if given != (FORMAT, PRIMARY_TYPE, dict(DOMAIN)):
        yield Mismatch(
            code="unsupported",
            detail=f"This program verifies the format {FORMAT}, the type {PRIMARY_TYPE} and the domain Tollway, version 1; the receipt names "
            "another one.",
            field="domain",
        )
        return
    payload = document.get("payload")
    yield from _check_fields(payload, CALL_FIELDS, place="payload")
    if isinstance(payload, Mapping) and payload.get("version", VERSION) != VERSION:
        detail = "This program verifies receipts of version 1; the receipt has another version."
        yield Mismatch(code="unsupported", detail=detail, field="payload.version")


def _check_fields(payload: object, fields: Mapping[str, str], *, place: str) -> Iterator[Mismatch]:
    """A receipt has its fields and no others, each of its type: a verifier does not guess at an unknown one."""
    if not isinstance(payload, Mapping):
        yield Mismatch(code="malformed", detail=f"{place} is no JSON object.", field=place)
        return
    for field in fields:
        if field not in payload:
            yield Mismatch(code="malformed", detail=f"{place}.{field} is missing.", field=f"{place}.{field}")
        elif not _is_of_kind(payload[field], fields[field]):
            kind = "text" if fields[field] == "string" else "a whole number of at most 256 bits"
            yield Mismatch(
                code="malformed", detail=f"{place}.{field} is not {kind}.", field=f"{place}.{field}"
            )
    for field in payload:
        if field not in fields:
            shown = str(field)[:64]
            yield Mismatch(
                code="malformed",
                detail=f"{place}.{shown} is no field of a receipt, and no signature covers it.",
                field=f"{place}.{shown}",
            )


def _is_of_kind(value: object, kind: str) -> bool:
    if kind == "uint256":
        return type(value) is int and 0 <= value < _UINT256_END
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


_SIGNATURE: Final = re.compile(r"0x[0-9a-f]{128}1[bc]")
"""The one text of a signature: lower case, and `v` 27 or 28, as every signer here writes it. With 0 and 1 as well, one receipt would have two texts."""


def _recover_signer(digest: bytes, signature: object) -> Address | None:
    if not isinstance(signature, str) or _SIGNATURE.fullmatch(signature) is None:
        return None
    try:
        return recover(digest, parse_signature(signature))
    except ValueError:
        return None


def _find_x402_signer(x402: object) -> Address | None:
    payload = x402.get("payload") if isinstance(x402, Mapping) else None
    if not isinstance(x402, Mapping) or any(_check_fields(payload, X402_FIELDS, place="x402.payload")):
        return None
    assert isinstance(payload, Mapping)  # checked
    return _recover_signer(x402_receipt_digest(payload), x402.get("signature"))


def _check_signer(
    signer: Address | None, keys: PublishedSigners, *, is_x402_good: bool
) -> Iterator[Mismatch]:
    if signer in keys.addresses:
        return
    if signer is None:
        detail = "The signature is no signature of 65 bytes, in lower case and with v 27 or 28, that a key can have made over these fields."
        yield Mismatch(code="changed", detail=detail, field="signature")
    elif is_x402_good:
        yield Mismatch(
            code="changed",
            detail="The signature does not fit the fields: a field, or the signature, was changed after signing. The part of x402 is by a listed key.",
            field="payload",
        )
    else:
        yield Mismatch(
            code="unknown_key",
            detail=f"The fields are signed by {signer}, which is no key of {keys.authority}: another key signed, or a field was changed after "
            "signing. Keys that the gateway used before may be missing in this DID document.",
            field="signature",
        )


def _check_gateway(payload: Mapping[str, Any], keys: PublishedSigners) -> Iterator[Mismatch]:
    gateway, url = payload["gateway"], payload["resourceUrl"]
    if read_authority(gateway) != keys.authority.lower():
        yield Mismatch(
            code="other_gateway",
            detail=f"The receipt is of the gateway {gateway}, and the DID document is of {keys.authority}.",
            field="payload.gateway",
        )
    elif not url.startswith(f"{gateway}/"):
        detail = f"The receipt is of the gateway {gateway}, and its URL is on another one."
        yield Mismatch(code="other_gateway", detail=detail, field="payload.resourceUrl")


def read_authority(origin: str) -> str | None:
    """Host and port of `scheme://host[:port]`, in lower case; None for any other text."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    is_origin = parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}"
    return parts.netloc.lower() if is_origin and parts.netloc and "@" not in parts.netloc else None


def _check_x402(
    x402: object, payload: Mapping[str, Any], signer: Address | None, keys: PublishedSigners
) -> Iterator[Mismatch]:
    given = x402.get("payload") if isinstance(x402, Mapping) else None
    malformed: Sequence[Mismatch] = list(_check_fields(given, X402_FIELDS, place="x402.payload"))
    if malformed or not isinstance(x402, Mapping) or x402.get("format") != FORMAT:
        yield from malformed or [
            Mismatch(code="malformed", detail=f"x402.format is not {FORMAT}.", field="x402.format")
        ]
        return
    assert isinstance(given, Mapping)  # checked
    if payload["state"] != CHARGED:
        yield Mismatch(
            code="x402_contradicts",
            detail=f"The call is {payload['state']}, and a receipt of x402 states a charged call.",
            field="x402",
        )
    for field in X402_FIELDS:
        if given[field] != payload[field]:
            yield Mismatch(
                code="x402_contradicts",
                detail=f"{field} is {payload[field]} in the receipt of the call and {given[field]} in its part of x402.",
                field=f"x402.payload.{field}",
            )
    if signer not in keys.addresses:
        yield Mismatch(
            code="x402_changed",
            detail=f"The part of x402 is not signed by a key of {keys.authority}: a field, or the signature, was changed after signing.",
            field="x402.signature",
        )


def _check_note(note: object, payload: Mapping[str, Any], keys: PublishedSigners) -> Iterator[Mismatch]:
    if note is None:
        return
    given = note.get("payload") if isinstance(note, Mapping) else None
    malformed = list(_check_fields(given, NOTE_FIELDS, place="creditNote.payload"))
    if malformed or not isinstance(note, Mapping) or not isinstance(given, Mapping):
        yield from malformed
        return
    if (note.get("format"), note.get("primaryType"), note.get("domain")) != (FORMAT, NOTE_TYPE, dict(DOMAIN)):
        detail = (
            f"This program verifies credit notes of the type {NOTE_TYPE} in the domain Tollway, version 1."
        )
        yield Mismatch(code="unsupported", detail=detail, field="creditNote.domain")
    for field in _SAME_FIELDS:
        if given[field] != payload[field]:
            yield Mismatch(
                code="credit_note_contradicts",
                detail=f"{field} is {payload[field]} in the receipt of the call and {given[field]} in its credit note.",
                field=f"creditNote.payload.{field}",
            )
    if not _is_at_most(given["amount"], payload["amount"]):
        yield Mismatch(
            code="credit_note_contradicts",
            detail=f"The credit note gives {given['amount']} back, and the call took {payload['amount']}.",
            field="creditNote.payload.amount",
        )
    if _recover_signer(credit_note_digest(given), note.get("signature")) not in keys.addresses:
        yield Mismatch(
            code="credit_note_changed",
            detail=f"The credit note is not signed by a key of {keys.authority}: a field, or the signature, was changed after signing.",
            field="creditNote.signature",
        )


def _is_at_most(amount: str, taken: str) -> bool:
    """Of two amounts in base units. Texts of digits compare by their length first, so that a long one costs nothing."""
    if not (amount.isascii() and amount.isdigit() and taken.isascii() and taken.isdigit()):
        return False
    amount, taken = amount.lstrip("0"), taken.lstrip("0")
    return (len(amount), amount) <= (len(taken), taken)
