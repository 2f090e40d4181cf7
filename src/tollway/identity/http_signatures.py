"""HTTP Message Signatures (RFC 9421): requests signed by a wallet (ERC-8128), and the names of the signature of forwarded calls. Pure.

It parses the signatures of a request and builds the headers of a signed request. It returns the digest that must have been signed;
verification of the signature, chain look-ups and nonces are the work of `authenticator`.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import http_sf

from tollway.errors import Code, Problem
from tollway.identity.signatures import SIGNATURE_BYTES_MAX, eip191_digest
from tollway.identity.siwe import PublicOrigin
from tollway.ids import Address, ChainId

if TYPE_CHECKING:  # the callers' client loads this module, and nothing of the gateway's limits and ledger
    from tollway.limits import Limits

SignatureParams = dict[str, Any]
SignatureMember = tuple[Any, SignatureParams]

CLOCK_SLACK_S = 5
"""How far a signer's clock may be ahead of the gateway's."""

SIGNATURES_MAX = 3
NONCE_CHARACTERS_MAX = 128
KEYID_PREFIX = "erc8128:"
REQUIRED = ("@authority", "@method", "@path")

TAG, ALGORITHM, SHARED_ALGORITHM = "tollway-forward", "ed25519", "hmac-sha256"
CALL_ID, API_ID, PAYER = "Tollway-Call-Id", "Tollway-Api-Id", "Tollway-Payer"
"""The signature of each forwarded call: its tag, its algorithm (with the gateway's key, or with the secret of the listing), and the fields that identify the
call."""

_KEYID = re.compile(r"erc8128:(0|[1-9][0-9]{0,14}):(0[xX][0-9a-fA-F]{40})")
_FIELD_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_DIGESTS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {
        "sha-256": lambda body: hashlib.sha256(body).digest(),
        "sha-512": lambda body: hashlib.sha512(body).digest(),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """A request as received: the path undecoded, the query without its `?`, the whole body.

    `client_address`: chain look-ups count against it. `is_body_read`: false where the body has not arrived, so that its digest is not compared yet.
    """

    method: str
    raw_path: bytes
    query: bytes
    headers: Sequence[tuple[bytes, bytes]] = field(repr=False)
    body: bytes = field(repr=False)
    client_address: str = ""
    is_body_read: bool = True

    def field_lines(self, name: str) -> tuple[str, ...]:
        """Every value of that header, trimmed. `name` in lower case."""
        wanted = name.encode()
        return tuple(
            value.strip(b" \t").decode("latin-1") for key, value in self.headers if key.lower() == wanted
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpProof:
    """One parsed ERC-8128 signature, not yet verified: `signature` must be one of `address` over `digest`.

    `keyid` in lower case. The pair (`keyid`, `nonce`) may be used once, until `expires_ms`.
    """

    keyid: str
    address: Address
    chain_id: ChainId
    nonce: str
    expires_ms: int
    digest: bytes = field(repr=False)
    signature: bytes = field(repr=False)


class _InvalidSignature(Exception):
    """A signature that cannot count, with the reason. It never leaves this module."""

    def __init__(self, reason: str, detail: str, code: Code = Code.INVALID_SIGNATURE) -> None:
        self.problem = Problem(code=code, detail=detail, reason=reason)


def read_http_proofs(
    request: SignedRequest, *, origin: PublicOrigin, limits: "Limits", now_ms: int
) -> tuple[HttpProof, ...] | Problem:
    """All ERC-8128 signatures of a request; a Problem where one of them cannot count. Other HTTP signatures are ignored."""
    lines = request.field_lines("signature-input")
    if not lines:
        return ()
    try:
        inputs = _parse_dictionary(lines, "Signature-Input")
        ours = {label: member for label, member in inputs.items() if _is_erc8128(member)}
        if not ours:
            return ()
        if len(ours) > SIGNATURES_MAX:
            raise _InvalidSignature(
                "too_many_signatures", f"A request carries at most {SIGNATURES_MAX} signatures."
            )
        signatures = _parse_dictionary(request.field_lines("signature"), "Signature")
        return tuple(
            _read_proof(request, member, signatures.get(label), origin=origin, limits=limits, now_ms=now_ms)
            for label, member in ours.items()
        )
    except _InvalidSignature as exc:
        return exc.problem


def signature_headers(
    request: SignedRequest,
    *,
    origin: PublicOrigin,
    address: Address,
    chain_id: ChainId,
    created: int,
    expires: int,
    nonce: str,
    sign: Callable[[bytes], bytes],
) -> tuple[tuple[str, str], ...]:
    """The headers that sign `request`: `Content-Digest` where there is a body, `Signature-Input` and `Signature`.

    `sign` takes the 32-byte digest (ERC-191 already applied) and returns 65 bytes. `created`, `expires`: unix seconds.
    """
    headers: list[tuple[str, str]] = []
    if request.body:
        headers.append(("Content-Digest", _format_bytes("sha-256", hashlib.sha256(request.body).digest())))
    complete = SignedRequest(
        method=request.method,
        raw_path=request.raw_path,
        query=request.query,
        headers=[*request.headers, *((name.lower().encode(), text.encode()) for name, text in headers)],
        body=request.body,
    )
    components = required_components(request)
    keyid = f"{KEYID_PREFIX}{chain_id}:{address}"
    params: SignatureParams = {"created": created, "expires": expires, "nonce": nonce, "keyid": keyid}
    written = _serialise(([(name, {}) for name in components], params))
    signature = sign(eip191_digest(_signature_base(complete, components, written, origin=origin)))
    headers.append(("Signature-Input", f"eth={written}"))
    headers.append(("Signature", _format_bytes("eth", signature)))
    return tuple(headers)


def required_components(request: SignedRequest) -> tuple[str, ...]:
    query = ("@query",) if request.query else ()
    digest = ("content-digest",) if request.body else ()
    return (*REQUIRED, *query, *digest)


def thumbprint(x: str) -> str:
    """The RFC 7638 thumbprint of an Ed25519 key (RFC 8037 §2): its required members, in the order of their names."""
    members = f'{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}'
    return encode_base64url(hashlib.sha256(members.encode()).digest())


def encode_base64url(raw: bytes) -> str:
    """Without padding, as JOSE writes it (RFC 7515 §2)."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def accept_signature(components: Sequence[str]) -> str:
    """The value of `Accept-Signature` (RFC 9421 §5.1): the components and parameters that the next request must sign."""
    params: SignatureParams = {"keyid": True, "created": True, "expires": True, "nonce": True}
    return f"sig1={_serialise(([(name, {}) for name in components], params))}"


def _format_bytes(label: str, payload: bytes) -> str:
    return f"{label}=:{base64.b64encode(payload).decode()}:"


def _parse_dictionary(lines: Sequence[str], name: str) -> dict[str, SignatureMember]:
    def refuse_duplicate(key: str, _context: str) -> None:
        raise _InvalidSignature("malformed", f"{name} holds {key} twice.")

    try:
        parsed = http_sf.parse(
            ", ".join(lines).encode("latin-1"), tltype="dictionary", on_duplicate_key=refuse_duplicate
        )
    except (
        http_sf.StructuredFieldError,
        ValueError,
        OverflowError,
        OSError,
    ) as exc:  # dates beyond the calendar
        raise _InvalidSignature("malformed", f"{name} is not a structured field (RFC 9651).") from exc
    return cast(dict[str, SignatureMember], parsed)


def _serialise(member: SignatureMember) -> str:
    """One inner list with its parameters, in the canonical form of RFC 9651."""
    return http_sf.ser(cast(http_sf.StructuredType, [member]))


def _is_erc8128(member: SignatureMember) -> bool:
    keyid = member[1].get("keyid")
    return isinstance(keyid, str) and keyid.startswith(KEYID_PREFIX)


def _read_proof(
    request: SignedRequest,
    member: SignatureMember,
    signature: SignatureMember | None,
    *,
    origin: PublicOrigin,
    limits: "Limits",
    now_ms: int,
) -> HttpProof:
    params = member[1]
    keyid, address, chain_id = _read_keyid(params)
    components = _read_components(member[0])
    missing = [name for name in required_components(request) if name not in components]
    if missing:
        raise _InvalidSignature("components_missing", f"The signature must also cover {', '.join(missing)}.")
    expires = _check_times(params, limits=limits, now_ms=now_ms)
    nonce = params.get("nonce")
    if type(nonce) is not str or not 1 <= len(nonce) <= NONCE_CHARACTERS_MAX:
        raise _InvalidSignature(
            "nonce_missing", f"nonce is a string of 1 to {NONCE_CHARACTERS_MAX} characters."
        )
    if "alg" in params:
        raise _InvalidSignature("alg_not_allowed", "alg must be absent: keyid names the algorithm.")
    raw = signature[0] if signature is not None else None
    if not isinstance(raw, bytes) or not 0 < len(raw) <= SIGNATURE_BYTES_MAX:
        raise _InvalidSignature("signature_missing", "Signature holds no bytes for this Signature-Input.")
    if "content-digest" in components:
        _check_digest(request)
    base = _signature_base(request, components, _serialise(member), origin=origin)
    return HttpProof(
        keyid=keyid,
        address=address,
        chain_id=chain_id,
        nonce=nonce,
        expires_ms=expires * 1000,
        digest=eip191_digest(base),
        signature=raw,
    )


def _read_keyid(params: SignatureParams) -> tuple[str, Address, ChainId]:
    keyid = str(params["keyid"])
    match = _KEYID.fullmatch(keyid)
    if match is None:
        raise _InvalidSignature("keyid_malformed", "keyid is erc8128:<chain id>:<address>.")
    try:
        return keyid.lower(), Address.parse(match[2]), ChainId(int(match[1]))
    except ValueError as exc:
        raise _InvalidSignature("keyid_malformed", f"keyid: {exc}.") from exc


def _read_components(covered: object) -> tuple[str, ...]:
    """The covered names, in order. Parameters (`;req`, `;bs`, `;key`, …) are refused: they select another value than the one checked here."""
    if not isinstance(covered, list):
        raise _InvalidSignature("malformed", "Signature-Input holds no list of components.")
    names: list[str] = []
    for name, params in covered:
        if type(name) is not str or params:
            raise _InvalidSignature("component_unsupported", "Components are plain names without parameters.")
        if name in names:
            raise _InvalidSignature("malformed", f"{name} is covered twice.")
        names.append(name)
    return tuple(names)


def _check_times(params: SignatureParams, *, limits: "Limits", now_ms: int) -> int:
    created, expires = params.get("created"), params.get("expires")
    if type(created) is not int or type(expires) is not int:
        raise _InvalidSignature("times_missing", "created and expires are unix seconds.")
    if not created < expires <= created + limits.signed_request_ttl_s:
        raise _InvalidSignature(
            "validity_too_long",
            f"expires must be after created, by at most {limits.signed_request_ttl_s} s. Sign the request again.",
        )
    if created * 1000 > now_ms + CLOCK_SLACK_S * 1000:
        raise _InvalidSignature(
            "created_in_future",
            "created is in the future. Correct the clock of the signer, then sign the request again.",
            Code.SIGNATURE_EXPIRED,
        )
    if now_ms > expires * 1000:
        raise _InvalidSignature(
            "expired", "The signature has expired. Sign the request again.", Code.SIGNATURE_EXPIRED
        )
    return expires


def _check_digest(request: SignedRequest) -> None:
    """Every digest of a known algorithm must match (RFC 9530), and there must be at least one."""
    digests = _parse_dictionary(request.field_lines("content-digest"), "Content-Digest")
    if not request.is_body_read:
        return
    known = [(value[0], _DIGESTS[name]) for name, value in digests.items() if name in _DIGESTS]
    if not known:
        raise _InvalidSignature("digest_unsupported", "Content-Digest needs sha-256 or sha-512.")
    for given, compute in known:
        if not isinstance(given, bytes) or not hmac.compare_digest(given, compute(request.body)):
            raise _InvalidSignature("digest_mismatch", "Content-Digest does not match the body.")


def _signature_base(
    request: SignedRequest, components: Sequence[str], params: str, *, origin: PublicOrigin
) -> bytes:
    """The signature base of RFC 9421 §2.5. `params`: the serialised list of components with its parameters."""
    lines = [f'"{name}": {_component_value(request, name, origin=origin)}' for name in components]
    lines.append(f'"@signature-params": {params}')
    return "\n".join(lines).encode("latin-1")


def _component_value(request: SignedRequest, name: str, *, origin: PublicOrigin) -> str:
    path = request.raw_path.decode("latin-1") or "/"
    query = "?" + request.query.decode("latin-1")
    if name.startswith("@"):
        derived = {
            "@authority": origin.authority,
            "@method": request.method,
            "@path": path,
            "@query": query,
            "@scheme": origin.scheme,
            "@request-target": path + (query if request.query else ""),
            "@target-uri": str(origin) + path + (query if request.query else ""),
        }
        if name not in derived:
            raise _InvalidSignature("component_unsupported", f"{name} is not supported.")
        return derived[name]
    if not _FIELD_NAME.fullmatch(name):
        raise _InvalidSignature("component_unsupported", "A covered field name must be in lower case.")
    values = request.field_lines(name)
    if not values:
        raise _InvalidSignature(
            "component_absent", f"The request has no {name} field, which the signature covers."
        )
    return ", ".join(values)
