"""Makes MPP challenges and parses MPP credentials: method `evm`, intent `charge`, credential type `authorization`. Pure.

A challenge is not stored: its id is an HMAC over all its parts, including the route, so every gateway with the same secret
recognises it. The ledger ensures that it is used once, by the authorisation's nonce, which is bound to the challenge.
Sources: the Payment HTTP authentication scheme; its EVM charge method.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any

from tollway.errors import Problem, Refusal
from tollway.ids import ChainId, keccak256
from tollway.ledger.records import Dialect
from tollway.limits import Limits
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.wire import (
    SIGNED_FIELDS,
    AuthorizationReason,
    PresentedAuthorization,
    decode_object,
    encode_object_urlsafe,
    encode_urlsafe,
    explain_authorization,
    find_unknown_member,
    parse_transfer,
    take_address,
    take_object,
    take_text,
    unreadable,
)

CREDENTIAL_HEADER = b"authorization"
CHALLENGE_HEADER = b"www-authenticate"
RECEIPT_HEADER = b"payment-receipt"

METHOD, INTENT, CREDENTIAL_TYPE = "evm", "charge", "authorization"
_CHAIN_ID_MAX = 10**15
_CREDENTIAL_MEMBERS = frozenset({"challenge", "source", "payload"})
_CHALLENGE = frozenset(
    {"id", "realm", "method", "intent", "request", "expires", "digest", "opaque", "description"}
)
_PAYLOAD = SIGNED_FIELDS | {"type", "signature"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeRoute:
    """The route that a challenge is bound to: one method and one target (raw path and query after `/gateway/{apiId}`)."""

    api_id: str
    method: str
    target: str

    @property
    def digest(self) -> str:
        parts = (self.api_id.encode(), self.method.encode(), self.target.encode())
        return sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenger:
    """Makes and recognises challenges. All gateways of one public URL share `secret`. `realm`: the host of that URL.

    `other_secrets`: challenges made with these are recognised too, while the secret is being changed."""

    secret: bytes = field(repr=False)
    realm: str
    other_secrets: tuple[bytes, ...] = field(default=(), repr=False)

    def challenge(
        self, requirement: PaymentRequirement, route: ChallengeRoute, *, now_s: float, salt: bytes = b""
    ) -> bytes:
        """The value of `WWW-Authenticate`. It expires when the authorisation made for it would.

        `salt` makes the challenge unique: the nonce of the authorisation is derived from it, so two equal challenges could pay for
        one call only."""
        request = _encode_request(requirement)
        expires = format_moment(int(now_s) + requirement.max_timeout_s)
        opaque = encode_urlsafe(f'{{"route":"{route.digest}","salt":"{salt.hex()}"}}'.encode())
        challenge_id = self._sign(self.secret, request=request, expires=expires, opaque=opaque)
        return (
            f'Payment id="{challenge_id}", realm="{self.realm}", method="{METHOD}", intent="{INTENT}", '
            f'request="{request}", expires="{expires}", opaque="{opaque}"'
        ).encode("ascii")

    def parse(
        self, value: bytes, route: ChallengeRoute, *, now_s: float, limits: Limits
    ) -> PresentedAuthorization:
        """See `parse_credential`; `fault` is also the problem of a challenge that this gateway did not make for the route."""
        return parse_credential(
            value,
            find_fault=lambda challenge, nonce: self._find_fault(challenge, nonce, route, now_s),
            limits=limits,
        )

    def _find_fault(
        self, challenge: dict[str, Any], nonce: bytes, route: ChallengeRoute, now_s: float
    ) -> Problem | None:
        members = {
            name: challenge.get(name, "")
            for name in ("id", "realm", "request", "expires", "opaque", "digest")
        }
        if not all(isinstance(text, str) for text in members.values()):
            return explain_authorization(AuthorizationReason.CHALLENGE)
        if not self._is_own(members) or members["realm"] != self.realm or members["digest"]:
            return explain_authorization(AuthorizationReason.CHALLENGE)
        if not _is_bound_to(route, members["opaque"]):
            return explain_authorization(AuthorizationReason.CHALLENGE)
        if parse_moment(members["expires"]) <= now_s:
            return explain_authorization(AuthorizationReason.CHALLENGE_EXPIRED)
        if nonce != keccak256(f"{members['id']}{self.realm}".encode()):
            return explain_authorization(AuthorizationReason.CHALLENGE_NONCE)
        return None

    def _is_own(self, members: dict[str, str]) -> bool:
        challenge_id = members["id"].encode("utf-8", "replace")
        parts = {name: members[name] for name in ("request", "expires", "opaque")}
        return any(
            hmac.compare_digest(self._sign(secret, **parts).encode(), challenge_id)
            for secret in (self.secret, *self.other_secrets)
        )

    def _sign(self, secret: bytes, *, request: str, expires: str, opaque: str) -> str:
        """base64url of HMAC-SHA256 over `realm|method|intent|request|expires|digest|opaque`, with an empty digest."""
        slots = "|".join((self.realm, METHOD, INTENT, request, expires, "", opaque))
        return encode_urlsafe(hmac.digest(secret, slots.encode("utf-8", "replace"), "sha256"))


def parse_credential(
    value: bytes, *, find_fault: Callable[[dict[str, Any], bytes], Problem | None], limits: Limits
) -> PresentedAuthorization:
    """Parses the value of `Authorization: Payment …`, without the scheme. Raises `Refusal` for an unreadable value and for other
    methods. `fault`: the problem of a readable credential. `find_fault` gets its challenge and the nonce of its authorisation."""
    content = decode_object(value, bytes_max=limits.payment_header_bytes_max)
    challenge, payload = take_object(content, "challenge"), take_object(content, "payload")
    kind = (take_text(challenge, "method"), take_text(challenge, "intent"))
    if kind != (METHOD, INTENT) or take_text(payload, "type") != CREDENTIAL_TYPE:
        raise Refusal(explain_authorization(AuthorizationReason.MPP_METHOD))
    request = decode_object(
        take_text(challenge, "request").encode("utf-8", "replace"),
        bytes_max=limits.payment_header_bytes_max,
    )
    transfer = parse_transfer(payload, payload.get("signature"))
    return PresentedAuthorization(
        **transfer,
        dialect=Dialect.MPP,
        chain_id=_take_chain(request),
        token=take_address(request, "currency"),
        challenge_id=take_text(challenge, "id"),
        fault=find_unknown_member(
            ("", content, _CREDENTIAL_MEMBERS),
            ("challenge", challenge, _CHALLENGE),
            ("payload", payload, _PAYLOAD),
        )
        or find_fault(challenge, transfer["nonce"]),
    )


@lru_cache(maxsize=1024)
def _encode_request(requirement: PaymentRequirement) -> str:
    return encode_object_urlsafe(
        {
            "amount": str(requirement.base_units),
            "currency": str(requirement.asset.token),
            "recipient": str(requirement.pay_to),
            "methodDetails": {
                "chainId": requirement.asset.chain_id,
                "credentialTypes": [CREDENTIAL_TYPE],
                "decimals": requirement.asset.decimals,
            },
        }
    )


def _is_bound_to(route: ChallengeRoute, opaque: str) -> bool:
    """`opaque` must be a text of this gateway: its HMAC was checked."""
    content = decode_object(opaque.encode(), bytes_max=len(opaque))
    return content.get("route") == route.digest


def _take_chain(request: dict[str, Any]) -> ChainId:
    chain_id = take_object(request, "methodDetails").get("chainId")
    if type(chain_id) is not int or not 0 < chain_id < _CHAIN_ID_MAX:
        raise unreadable("`chainId` must be a number.")
    return ChainId(chain_id)


@lru_cache(maxsize=64)  # many challenges are made in one second
def format_moment(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def parse_moment(text: str) -> int:
    """The reverse of `format_moment`, for its own texts only."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(seconds=1)
