"""The signature fields of a forwarded request: finds the gateway's signature, its parameters, and the values that it
covers (RFC 9421 §2). Pure. It verifies no signature.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import http_sf

from tollway.identity.http_signatures import ALGORITHM, API_ID, CALL_ID, PAYER, SHARED_ALGORITHM, TAG

COMPONENTS_MAX = 32
FIELD_LENGTH_MAX = 8_192
NONCE_LENGTH_LEAST, NONCE_LENGTH_MAX = 16, 128
SIGNATURE_BYTES = {ALGORITHM: 64, SHARED_ALGORITHM: 32}
"""By algorithm."""

_SINGLE = frozenset({CALL_ID.lower(), API_ID.lower(), PAYER.lower(), "content-digest", "content-length"})
"""Fields that may occur once: another reader could use the second line."""

Text = str | bytes
Fields = Mapping[str, list[str]]
Params = dict[str, Any]
Member = tuple[Any, Params]


class SignatureFieldsInvalid(Exception):
    """The signature fields are missing or invalid. `reason`: one word."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureClaim:
    """One signature of a request, parsed and not verified yet. `written`: its list and parameters as they were signed."""

    names: tuple[str, ...]
    written: str
    algorithm: str
    keyid: str
    nonce: str
    created_s: int
    expires_s: int
    signature: bytes

    def read_values(self, fields: Fields, derived: Mapping[str, str]) -> dict[str, str]:
        """The values of the covered components in this request. Raises SignatureFieldsInvalid for a missing one."""
        values: dict[str, str] = {}
        for name in self.names:
            if name in derived:
                values[name] = derived[name]
            elif name.startswith("@"):
                raise SignatureFieldsInvalid("component_unsupported", f"{name} is not supported.")
            elif name not in fields:
                raise SignatureFieldsInvalid(
                    "component_absent", f"The signature covers {name}, which the request does not have."
                )
            else:
                values[name] = ", ".join(fields[name])
            if "\n" in values[name] or "\r" in values[name]:
                raise SignatureFieldsInvalid("malformed", f"{name} contains a line break.")
        return values

    def write_base(self, values: Mapping[str, str]) -> bytes:
        """The signature base (RFC 9421 §2.5)."""
        lines = [f'"{name}": {values[name]}' for name in self.names]
        return "\n".join([*lines, f'"@signature-params": {self.written}']).encode("latin-1")


def decode_text(raw: Text) -> str:
    """Text with one character per byte. Raises SignatureFieldsInvalid for other text."""
    if isinstance(raw, bytes):
        return raw.decode("latin-1")
    try:
        raw.encode("latin-1")
    except UnicodeEncodeError as exc:
        raise SignatureFieldsInvalid(
            "malformed", "The target and header fields must be bytes, or text with one character per byte."
        ) from exc
    return raw


def collect_fields(headers: Mapping[Any, Any] | Iterable[tuple[Text, Text]]) -> dict[str, list[str]]:
    """The lines of each field, trimmed, by name in lower case. Raises SignatureFieldsInvalid for a repeated field of `_SINGLE`."""
    fields: dict[str, list[str]] = {}
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        fields.setdefault(decode_text(name).lower(), []).append(decode_text(value).strip(" \t"))
    for name in _SINGLE & fields.keys():
        if len(fields[name]) > 1:
            raise SignatureFieldsInvalid("duplicate_header", f"{name} occurs twice.")
    return fields


def read_claim(fields: Fields) -> SignatureClaim:
    """The signature of the gateway that forwarded the request, found by its tag (RFC 9421 §7.2.5); other signatures are
    ignored. Raises SignatureFieldsInvalid."""
    if "signature-input" not in fields or "signature" not in fields:
        raise SignatureFieldsInvalid("signature_missing", "The request has no signature.")
    inputs = _parse_dictionary(fields["signature-input"], "Signature-Input")
    ours = [(label, member) for label, member in inputs.items() if member[1].get("tag") == TAG]
    if len(ours) != 1:
        raise SignatureFieldsInvalid(
            "signature_missing", f"The request has {len(ours)} signatures for this purpose, not one."
        )
    ((label, member),) = ours
    signature = _parse_dictionary(fields["signature"], "Signature").get(label, (None, {}))[0]
    params = member[1]
    algorithm = params.get("alg")
    if not isinstance(algorithm, str) or algorithm not in SIGNATURE_BYTES:
        raise SignatureFieldsInvalid(
            "wrong_algorithm", f"The algorithm must be {' or '.join(SIGNATURE_BYTES)}."
        )
    if not isinstance(signature, bytes) or len(signature) != SIGNATURE_BYTES[algorithm]:
        raise SignatureFieldsInvalid("malformed", "Signature has no valid value for this Signature-Input.")
    return SignatureClaim(
        names=_read_names(member[0]),
        written=http_sf.ser(cast(http_sf.StructuredType, [member])),
        algorithm=algorithm,
        keyid=_read_text(params, "keyid", least=1),
        nonce=_read_text(params, "nonce", least=NONCE_LENGTH_LEAST),
        created_s=_read_time(params, "created"),
        expires_s=_read_time(params, "expires"),
        signature=signature,
    )


def read_digests(text: str) -> dict[str, bytes]:
    """Parses `Content-Digest` (RFC 9530) by algorithm. Raises SignatureFieldsInvalid."""
    members = _parse_dictionary([text], "Content-Digest")
    return {name: member[0] for name, member in members.items() if isinstance(member[0], bytes)}


def _parse_dictionary(lines: list[str], name: str) -> dict[str, Member]:
    def refuse_duplicate(key: str, _context: str) -> None:
        raise SignatureFieldsInvalid("malformed", f"{name} contains {key} twice.")

    whole = ", ".join(lines).encode("latin-1")
    if len(whole) > FIELD_LENGTH_MAX:
        raise SignatureFieldsInvalid("malformed", f"{name} is too long.")
    try:
        parsed = http_sf.parse(whole, tltype="dictionary", on_duplicate_key=refuse_duplicate)
    except (http_sf.StructuredFieldError, ValueError, OverflowError, OSError) as exc:
        raise SignatureFieldsInvalid("malformed", f"{name} is not a structured field (RFC 9651).") from exc
    return cast(dict[str, Member], parsed)


def _read_names(covered: object) -> tuple[str, ...]:
    """The covered names, in order. Parameters (`;req`, `;bs`, `;key`, …) are refused: they select another value than the one read here."""
    if not isinstance(covered, list) or len(covered) > COMPONENTS_MAX:
        raise SignatureFieldsInvalid("malformed", "Signature-Input contains no list of components.")
    names: list[str] = []
    for name, params in covered:
        if type(name) is not str or params or name != name.lower():
            raise SignatureFieldsInvalid(
                "component_unsupported", "Components are names in lower case without parameters."
            )
        if name in names:
            raise SignatureFieldsInvalid("malformed", f"{name} is covered twice.")
        names.append(name)
    return tuple(names)


def _read_text(params: Params, name: str, *, least: int) -> str:
    value = params.get(name)
    if type(value) is not str or not least <= len(value) <= NONCE_LENGTH_MAX:
        raise SignatureFieldsInvalid(
            "malformed", f"{name} must be a string of {least} to {NONCE_LENGTH_MAX} characters."
        )
    return value


def _read_time(params: Params, name: str) -> int:
    value = params.get(name)
    if type(value) is not int:
        raise SignatureFieldsInvalid("malformed", f"{name} must be a time in unix seconds.")
    return value
