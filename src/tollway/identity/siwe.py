"""Sign-in with Ethereum: the gateway's public origin, EIP-4361 messages, and the `SIGN-IN-WITH-X` header (x402, CAIP-122). Pure.

The origin comes from the settings and never from `Host` or a forwarded header, so no signature for another gateway counts here.
Texts stay as they were signed: parsing and formatting are exact inverses. This module checks the fields of a message; its callers verify
the signature and spend the nonce.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tollway.errors import Code, Problem
from tollway.identity.signatures import eip191_digest
from tollway.ids import Address, ChainId, parse_network

if TYPE_CHECKING:  # the callers' client loads this module, and nothing of the gateway's limits and ledger
    from tollway.limits import Limits

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicOrigin:
    """`authority`: lower case, without the default port of the scheme. It is `@authority` of RFC 9421 and `domain` of EIP-4361."""

    scheme: str
    authority: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    def is_origin_of(self, uri: str) -> bool:
        """True for this origin itself and for every URI under it."""
        origin = str(self)
        return uri == origin or uri.startswith((origin + "/", origin + "?", origin + "#"))


def parse_origin(public_url: str) -> PublicOrigin:
    """Parses `https://gw.example.com/` into its origin. Raises ValueError on anything but scheme, host and port."""
    parts = urlsplit(public_url)
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("the public URL begins with http:// or https://")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("the public URL has a scheme, a host and a port, nothing else")
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(host):
        raise ValueError("the public URL has no usable host")
    port = parts.port
    is_default = port is None or port == _DEFAULT_PORTS[parts.scheme]
    return PublicOrigin(scheme=parts.scheme, authority=host if is_default else f"{host}:{port}")


HOST_CHARACTERS_MAX = 255
"""The longest name of a host (RFC 1035 §2.3.4). A longer `Host` is cut where a problem repeats it."""

CLOCK_SLACK_MS = 5_000
"""How far the signer's clock may be ahead of the gateway's."""

MESSAGE_CHARACTERS_MAX = 4_096
HEADER_CHARACTERS_MAX = 16 * 1024
BRACKETS_MAX = 64
"""A limit on nesting in a `SIGN-IN-WITH-X` payload. Python's own limit changes with its recursion limit."""

STATEMENT = "Sign in to the API gateway"

_PREAMBLE = " wants you to sign in with your Ethereum account:"
_URI = r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
_MESSAGE = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://)?(?P<domain>[A-Za-z0-9._~:@!$&'()*+,;=%\[\]-]+)"
    + _PREAMBLE
    + r"\n(?P<address>0x[0-9a-fA-F]{40})\n\n"
    r"(?:(?P<statement>[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;= -]+)\n)?\n"
    rf"URI: (?P<uri>{_URI})\n"
    r"Version: (?P<version>1)\n"
    r"Chain ID: (?P<chain_id>0|[1-9][0-9]{0,14})\n"
    r"Nonce: (?P<nonce>[A-Za-z0-9]{8,128})\n"
    rf"Issued At: (?P<issued_at>{_TIME})"
    rf"(?:\nExpiration Time: (?P<expiration_time>{_TIME}))?"
    rf"(?:\nNot Before: (?P<not_before>{_TIME}))?"
    r"(?:\nRequest ID: (?P<request_id>[A-Za-z0-9._~:@!$&'()*+,;=%-]*))?"
    rf"(?P<resources>\nResources:(?:\n- {_URI})*)?"
)
_MOMENT = re.compile(r"(.{19})(?:\.([0-9]{1,9}))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInMessage:
    """An EIP-4361 message; every field is the text that was signed. `resources` None: the message has no such section."""

    domain: str
    address: str
    uri: str
    chain_id: ChainId
    nonce: str
    issued_at: str
    scheme: str | None = None
    statement: str | None = None
    expiration_time: str | None = None
    not_before: str | None = None
    request_id: str | None = None
    resources: tuple[str, ...] | None = None

    @property
    def signer(self) -> Address:
        return Address.parse(self.address)

    @property
    def digest(self) -> bytes:
        """The digest that `personal_sign` signs."""
        return eip191_digest(format_sign_in(self).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInProof:
    message: SignInMessage
    signature: bytes = field(repr=False)


def format_sign_in(message: SignInMessage) -> str:
    """The text that a wallet displays and signs, without a newline at its end."""
    scheme = f"{message.scheme}://" if message.scheme is not None else ""
    lines = [f"{scheme}{message.domain}{_PREAMBLE}", message.address, ""]
    if message.statement is not None:
        lines.append(message.statement)
    lines += [
        "",
        f"URI: {message.uri}",
        "Version: 1",
        f"Chain ID: {message.chain_id}",
        f"Nonce: {message.nonce}",
        f"Issued At: {message.issued_at}",
    ]
    if message.expiration_time is not None:
        lines.append(f"Expiration Time: {message.expiration_time}")
    if message.not_before is not None:
        lines.append(f"Not Before: {message.not_before}")
    if message.request_id is not None:
        lines.append(f"Request ID: {message.request_id}")
    if message.resources is not None:
        lines.append("Resources:")
        lines += [f"- {resource}" for resource in message.resources]
    return "\n".join(lines)


def parse_sign_in(text: str) -> SignInMessage:
    """Parses exactly the grammar of EIP-4361. Raises ValueError on anything else, also on impossible times."""
    if len(text) > MESSAGE_CHARACTERS_MAX:
        raise ValueError(f"it is longer than {MESSAGE_CHARACTERS_MAX} characters")
    match = _MESSAGE.fullmatch(text)
    if match is None:
        raise ValueError("it is not an EIP-4361 text")
    resources = match["resources"]
    message = SignInMessage(
        scheme=match["scheme"],
        domain=match["domain"],
        address=match["address"],
        statement=match["statement"],
        uri=match["uri"],
        chain_id=ChainId(int(match["chain_id"])),
        nonce=match["nonce"],
        issued_at=match["issued_at"],
        expiration_time=match["expiration_time"],
        not_before=match["not_before"],
        request_id=match["request_id"],
        resources=None if resources is None else tuple(resources.split("\n- ")[1:]),
    )
    Address.parse(message.address)
    for moment in (message.issued_at, message.expiration_time, message.not_before):
        if moment is not None:
            parse_moment(moment)
    return message


def parse_moment(text: str) -> int:
    """Parses an RFC 3339 time into milliseconds since the epoch; finer digits are cut off. Raises ValueError."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError("a time in it is not in the form of RFC 3339")
    zone: timezone = UTC
    if match[3]:
        if int(match[4]) > 23 or int(match[5]) > 59:
            raise ValueError("a time zone in it is more than 23:59 from UTC")
        away = timedelta(hours=int(match[4]), minutes=int(match[5]))
        zone = timezone(away if match[3] == "+" else -away)
    moment = datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=zone)
    whole = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    return whole * 1000 + int(((match[2] or "") + "000")[:3])


def format_moment(now_ms: int) -> str:
    """RFC 3339 UTC with three digits and Z, as EIP-4361 requires."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{now_ms % 1000:03d}Z"


def check_sign_in(
    message: SignInMessage, *, origin: PublicOrigin, limits: "Limits", now_ms: int
) -> Problem | None:
    """Checks that a message is for this gateway and valid now; None where it is. The reasons are those of the x402 SDKs."""
    if message.domain != origin.authority or message.scheme not in (None, origin.scheme):
        return _refused(
            "domain_mismatch", f"The message is for another domain. Sign a message for {origin.authority}."
        )
    if not origin.is_origin_of(message.uri):
        return _refused(
            "uri_mismatch",
            f"The URI of the message is not under {origin}. Sign a message with a URI under it.",
        )
    issued_ms = parse_moment(message.issued_at)
    if issued_ms > now_ms + CLOCK_SLACK_MS:
        return _expired(
            "issued_at_in_future", "The message was issued in the future. Check the clock of the signer."
        )
    if issued_ms < now_ms - limits.nonce_ttl_s * 1000:
        return _expired(
            "issued_at_too_old", f"The message is older than {limits.nonce_ttl_s} s. Sign a new one."
        )
    if message.expiration_time is not None and parse_moment(message.expiration_time) <= now_ms:
        return _expired("expired", "The message has expired. Sign a new one.")
    if message.not_before is not None and parse_moment(message.not_before) > now_ms:
        return _expired(
            "not_yet_valid",
            "The message is not valid yet. Sign one without notBefore, or with an earlier one.",
        )
    return None


def read_siwx(header: str) -> SignInProof | Problem:
    """Parses `SIGN-IN-WITH-X`: base64 of a JSON object with the fields of the message, its signature and its type."""
    try:
        payload = _decode_object(header)
        return _read_payload(payload)
    except ValueError:
        return _refused("payload", "SIGN-IN-WITH-X is not base64 of a sign-in payload.")


def _decode_object(header: str) -> dict[str, Any]:
    if len(header) > HEADER_CHARACTERS_MAX:
        raise ValueError("too long")
    try:
        raw = base64.b64decode(header, validate=True)
    except binascii.Error as exc:
        raise ValueError("not base64") from exc
    if raw.count(b"[") + raw.count(b"{") > BRACKETS_MAX:
        raise ValueError("too deep")
    payload = json.loads(raw.decode(), object_pairs_hook=_refuse_duplicates)
    if not isinstance(payload, dict):
        raise ValueError("not an object")  # noqa: TRY004 - input, not a programming error
    return payload


def _read_payload(payload: Mapping[str, Any]) -> SignInProof | Problem:
    network = _text(payload, "chainId")
    if not network.startswith("eip155:"):
        return _refused("unsupported_chain", "Only wallets of eip155 chains can sign in.")
    try:
        chain_id = parse_network(network)
    except ValueError:
        return _refused("chain_id", "chainId must be eip155: followed by a decimal chain id.")
    if _text(payload, "type") != "eip191" or _text(payload, "version") != "1":
        return _refused("payload", "Sign with type eip191 and version 1.")
    message = SignInMessage(
        domain=_text(payload, "domain"),
        address=_text(payload, "address"),
        statement=_optional(payload, "statement") or None,
        uri=_text(payload, "uri"),
        chain_id=chain_id,
        nonce=_text(payload, "nonce"),
        issued_at=_text(payload, "issuedAt"),
        expiration_time=_optional(payload, "expirationTime"),
        not_before=_optional(payload, "notBefore"),
        request_id=_optional(payload, "requestId"),
        resources=_texts(payload, "resources"),
    )
    # A field with a line break could forge the line of another field.
    if parse_sign_in(format_sign_in(message)) != message:
        raise ValueError("a field breaks the message")
    signature = _text(payload, "signature")
    if not re.fullmatch(r"0x(?:[0-9a-fA-F]{2}){1,4096}", signature):
        return _refused("malformed_signature", "signature must be 0x and an even number of hex digits.")
    return SignInProof(message=message, signature=bytes.fromhex(signature[2:]))


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member occurs twice")
    return members


def _text(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text")  # noqa: TRY004 - input, not a programming error
    return value


def _optional(payload: Mapping[str, Any], name: str) -> str | None:
    return None if payload.get(name) is None else _text(payload, name)


def _texts(payload: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    values = payload.get(name)
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} is not a list of texts")
    return tuple(values)


def _refused(reason: str, detail: str) -> Problem:
    return Problem(code=Code.INVALID_SIGNATURE, detail=detail, reason=f"invalid_siwx_{reason}")


def _expired(reason: str, detail: str) -> Problem:
    return Problem(code=Code.SIGNATURE_EXPIRED, detail=detail, reason=f"invalid_siwx_{reason}")
