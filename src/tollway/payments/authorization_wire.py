"""The inside of a payment header: base64, JSON, and the signed fields of an EIP-3009 transfer. Pure.

All of it is a stranger's: sizes, nesting and numbers are bounded, and whatever is not clearly well-formed is refused. It
says nothing about whether an authorisation is any good.
"""

import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from tollway.errors import Problem, Refusal
from tollway.identifiers import Address
from tollway.payments.authorization_reasons import AuthorizationReason, explain_authorization

SIGNATURE_BYTES_MAX = 4 * 1024

_BASE64 = re.compile(rb"[A-Za-z0-9+/]+")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_WHOLE = re.compile(r"[0-9]{1,78}")
_NONCE = re.compile(r"0[xX][0-9a-fA-F]{64}")
_SIGNATURE = re.compile(r"0[xX](?:[0-9a-fA-F]{2})+")
_UINT256_MAX = 2**256 - 1
_NAME_SHOWN_MAX = 40

SIGNED_FIELDS = frozenset({"from", "to", "value", "validAfter", "validBefore", "nonce"})
"""The members that `parse_transfer` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationFields:
    """The fields of `TransferWithAuthorization` and its signature, whatever the protocol around them."""

    payer: Address
    payee: Address
    base_units: int
    valid_after: int
    valid_before: int
    nonce: bytes
    signature: bytes = field(repr=False)


def decode_object(value: bytes, *, bytes_max: int) -> dict[str, Any]:
    """base64 of a JSON object. Standard and URL-safe alphabet, with or without padding. Raises `Refusal`."""
    if len(value) > bytes_max:
        raise unreadable(f"The payment header is longer than {bytes_max} bytes.")
    text = value.strip(b" \t").translate(_TO_STANDARD).rstrip(b"=")
    if not _BASE64.fullmatch(text) or len(text) % 4 == 1:
        raise unreadable("The payment header is not base64.")
    raw = binascii.a2b_base64(text + b"=" * (-len(text) % 4))
    try:
        parsed = from_json(raw, allow_inf_nan=False)  # it refuses deep nesting by itself
    except ValueError as exc:
        raise unreadable("The payment header is not base64 of JSON.") from exc
    if not isinstance(parsed, dict):
        raise unreadable("The payment header is not base64 of a JSON object.")
    return parsed


def encode_object(content: Mapping[str, Any]) -> bytes:
    """base64 in the standard alphabet with padding: stock x402 clients refuse any other."""
    return encode_base64(encode_json(content))


def encode_base64(raw: bytes) -> bytes:
    return binascii.b2a_base64(raw, newline=False)


def encode_object_urlsafe(content: Mapping[str, Any]) -> str:
    """base64url without padding of canonical JSON (RFC 8785; sorted keys suffice for ASCII keys and integers): MPP."""
    return encode_urlsafe(_encode_sorted(content).encode("utf-8", "replace"))


def encode_urlsafe(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).translate(_TO_URLSAFE).rstrip(b"=").decode("ascii")


_TO_URLSAFE = bytes.maketrans(b"+/", b"-_")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def encode_json(content: object) -> bytes:
    """UTF-8 without needless space; what is no character becomes a question mark."""
    return _encode(content).encode("utf-8", "replace")


def parse_transfer(fields: Mapping[str, Any], signature: object) -> AuthorizationFields:
    """`from, to, value, validAfter, validBefore, nonce` as strings, and the signature in hex. Raises `Refusal`."""
    return AuthorizationFields(
        payer=take_address(fields, "from"),
        payee=take_address(fields, "to"),
        base_units=_take_whole(fields, "value"),
        valid_after=_take_whole(fields, "validAfter"),
        valid_before=_take_whole(fields, "validBefore"),
        nonce=_take_nonce(fields),
        signature=_parse_signature(signature),
    )


def find_unknown_member(*places: tuple[str, Mapping[str, Any], frozenset[str]]) -> Problem | None:
    """What is wrong where an object has a member that its protocol does not have; names the first of them. Each place:
    what it is called, the object, its members. See `PresentedAuthorization.fault` for when it is to be told."""
    for place, fields, members in places:
        if fields.keys() <= members:
            continue
        name = next(name for name in fields if name not in members)
        path = f"{place}.{_to_printable(name)}" if place else _to_printable(name)
        detail = f"`{path}` is no member of such a payment; leave it out. Nothing was settled."
        return explain_authorization(AuthorizationReason.UNREADABLE, detail)
    return None


def _to_printable(name: str) -> str:
    """A stranger's word: short and printable."""
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


def _take_whole(fields: Mapping[str, Any], name: str) -> int:
    text = take_text(fields, name)
    if not _WHOLE.fullmatch(text) or int(text) > _UINT256_MAX:
        raise unreadable(f"`{name}` must be a decimal string within uint256.")
    return int(text)


def _take_nonce(fields: Mapping[str, Any]) -> bytes:
    text = take_text(fields, "nonce")
    if not _NONCE.fullmatch(text):
        raise unreadable("`nonce` must be 0x followed by 64 hex digits.")
    return bytes.fromhex(text[2:])


def _parse_signature(text: object) -> bytes:
    is_short = isinstance(text, str) and len(text) <= 2 + 2 * SIGNATURE_BYTES_MAX
    if not isinstance(text, str) or not is_short or not _SIGNATURE.fullmatch(text):
        raise unreadable(f"`signature` must be 0x followed by the hex of 1 to {SIGNATURE_BYTES_MAX} bytes.")
    return bytes.fromhex(text[2:])


def unreadable(detail: str) -> Refusal:
    return Refusal(explain_authorization(AuthorizationReason.UNREADABLE, detail))
