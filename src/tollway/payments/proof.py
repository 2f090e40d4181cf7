"""Parses the proof of payment on the `tx` rail from header text into a frozen record. Pure.

The proof is not verified here: `transaction_verifier` does that.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tollway.bounded_cache import BoundedCache
from tollway.errors import Code, FieldError, Problem
from tollway.identity.signatures import parse_signature
from tollway.ids import ChainId, TxHash, parse_network

_WORD = re.compile(r"0[xX][0-9a-fA-F]{64}")
_UNIX_TIME = re.compile(r"0|[1-9][0-9]{0,11}")

BOUND_VALIDITY_S = 300  # a bound signature may be valid for this long from now
CLOCK_SLACK_S = 5  # callers' clocks run a little ahead

BOUND_REQUIRED = Problem(
    code=Code.INVALID_REQUEST,
    detail="This payment or API requires a signature that is bound to the request. Send X-Signature-Params.",
    reason="bound_signature_required",
    errors=(FieldError(code="missing", detail="is required here", parameter="X-Signature-Params"),),
    payment_state="released",
)

TX_HEADER = b"x-payment-tx"
SIGNATURE_HEADER = b"x-signature"
PARAMS_HEADER = b"x-signature-params"
NETWORK_HEADER = b"x-payment-network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The part of `X-Signature-Params` that ties a signature to one request.

    `valid_until` in unix seconds. `body_hash`: keccak-256 of the body, or None when the gateway reads the body first.
    """

    valid_until: int
    nonce: bytes
    body_hash: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A transaction hash and a signature, claimed to be the payer's. `binding` None: the plain form."""

    tx_hash: TxHash
    signature: bytes = field(repr=False)
    binding: Binding | None
    chain_id: ChainId | None


KnownProofs = BoundedCache[tuple[tuple[bytes, bytes], ...], Proof]


def parse_proof(
    headers: Sequence[tuple[bytes, bytes]], known_proofs: KnownProofs | None = None
) -> Proof | Problem | None:
    """The proof in a request's headers (names in lower case), the problem with it, or None when the headers have none.

    `known_proofs`: callers send the same plain proof with many requests, so its parsed form is kept there; what is no proof is not.
    Source: the HTTP contract, "Gateway call"; duplicated, malformed and incomplete headers are `invalid_request`.
    """
    proof_headers: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _PROOF_HEADERS:
            if name in proof_headers:
                return _malformed(name, "duplicated", "is sent more than once; send it exactly once")
            proof_headers[name] = value
    if not proof_headers:
        return None
    if proof_headers.keys() == {NETWORK_HEADER}:
        return None  # X-Payment-Network alone is no proof
    for name in (TX_HEADER, SIGNATURE_HEADER):
        if name not in proof_headers:
            return _malformed(name, "missing", "is missing; X-Payment-Tx and X-Signature go together")
    shown = tuple(proof_headers.items())
    if known_proofs is None or PARAMS_HEADER in proof_headers:
        return _parse_headers(shown)  # a bound proof is sent once
    known = known_proofs.find(shown)
    if known is not None:
        known_proofs.touch(shown)
        return known
    parsed = _parse_headers(shown)
    if isinstance(parsed, Proof):
        known_proofs.put(shown, parsed, size_bytes=sum([len(name) + len(value) for name, value in shown]))
    return parsed


_PROOF_HEADERS = frozenset({TX_HEADER, SIGNATURE_HEADER, PARAMS_HEADER, NETWORK_HEADER})
_DISPLAY = {
    TX_HEADER: "X-Payment-Tx",
    SIGNATURE_HEADER: "X-Signature",
    PARAMS_HEADER: "X-Signature-Params",
    NETWORK_HEADER: "X-Payment-Network",
}


def _parse_headers(headers: tuple[tuple[bytes, bytes], ...]) -> Proof | Problem:
    non_ascii = next((name for name, value in headers if not value.isascii()), None)
    if non_ascii is not None:
        return _malformed(non_ascii, "malformed", "contains bytes that are not ASCII")
    text = {name: value.decode("ascii") for name, value in headers}
    try:
        tx_hash = TxHash.parse(text[TX_HEADER])
    except ValueError:
        return _malformed(TX_HEADER, "malformed", "must be 0x followed by 64 hex digits")
    try:
        signature = parse_signature(text[SIGNATURE_HEADER])
    except ValueError as exc:
        return _malformed(SIGNATURE_HEADER, "malformed", str(exc))
    binding: Binding | None = None
    if PARAMS_HEADER in text:
        try:
            binding = parse_binding(text[PARAMS_HEADER])
        except ValueError as exc:
            return _malformed(PARAMS_HEADER, "malformed", str(exc))
    chain_id: ChainId | None = None
    if NETWORK_HEADER in text:
        try:
            chain_id = parse_network(text[NETWORK_HEADER])
        except ValueError:
            return _malformed(NETWORK_HEADER, "malformed", "must be a CAIP-2 network such as eip155:8453")
    return Proof(tx_hash=tx_hash, signature=signature, binding=binding, chain_id=chain_id)


def parse_binding(text: str) -> Binding:
    """`v=1;validUntil=<unix s>;nonce=0x…[;bodyHash=0x…]`, each member once. Raises ValueError with the problem."""
    members: dict[str, str] = {}
    for part in text.split(";"):
        key, separator, value = part.strip(" ").partition("=")
        if not separator or key in members:
            raise ValueError("must be v=1;validUntil=…;nonce=0x… with each member once")
        members[key] = value
    if members.pop("v", None) != "1":
        raise ValueError("must begin with v=1")
    valid_until = members.pop("validUntil", "")
    nonce = members.pop("nonce", "")
    body_hash = members.pop("bodyHash", None)
    if members:
        raise ValueError(f"has unknown members: {', '.join(sorted(members))[:80]}")
    if not _UNIX_TIME.fullmatch(valid_until):
        raise ValueError("needs validUntil in whole unix seconds")
    if not _WORD.fullmatch(nonce):
        raise ValueError("needs nonce as 0x followed by 64 hex digits")
    if body_hash is not None and not _WORD.fullmatch(body_hash):
        raise ValueError("has a bodyHash that is not 0x followed by 64 hex digits")
    return Binding(
        valid_until=int(valid_until),
        nonce=bytes.fromhex(nonce[2:]),
        body_hash=bytes.fromhex(body_hash[2:]) if body_hash is not None else None,
    )


def format_binding(binding: Binding) -> str:
    text = f"v=1;validUntil={binding.valid_until};nonce=0x{binding.nonce.hex()}"
    return text if binding.body_hash is None else f"{text};bodyHash=0x{binding.body_hash.hex()}"


def check_validity(binding: Binding, *, now_s: int, validity_s_max: int) -> Problem | None:
    """Refuses a bound form that expired or is valid for too long."""
    if binding.valid_until < now_s:
        return Problem(
            code=Code.SIGNATURE_EXPIRED,
            detail="validUntil of X-Signature-Params has passed; sign the same call again.",
            payment_state="none",
        )
    if binding.valid_until > now_s + validity_s_max + CLOCK_SLACK_S:
        return Problem(
            code=Code.SIGNATURE_EXPIRED,
            detail=f"validUntil is more than {validity_s_max} seconds ahead; sign with an earlier time.",
            reason="valid_until_too_far",
            payment_state="none",
        )
    return None


def _malformed(header: bytes, code: str, detail: str) -> Problem:
    name = _DISPLAY[header]
    return Problem(
        code=Code.INVALID_REQUEST,
        detail=f"{name} {detail}.",
        reason=f"{code}_header",
        errors=(FieldError(code=code, detail=detail, parameter=name),),
        payment_state="none",
    )
