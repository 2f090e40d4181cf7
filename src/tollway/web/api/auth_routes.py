"""Authentication over HTTP: the wallet dependency of routes, the headers of a 401, and the sign-in routes (nonce, session).

The wallet dependency reads the whole body before the route does, because a signature covers the body's digest.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from tollway.errors import Code, FieldError, StorageUnavailable, describe_rate, refuse
from tollway.identity.authenticator import Authenticator, Identity, is_siwx_possible, read_bearer
from tollway.identity.http_signatures import SignedRequest, accept_signature, required_components
from tollway.identity.sessions import URI_CHARACTERS_MAX, SignIn, SignInChallenge
from tollway.identity.siwe import STATEMENT, PublicOrigin
from tollway.ids import Address, ChainId, format_network
from tollway.limits import Limits
from tollway.rate_limits.limiter import Quota, RateLimiter
from tollway.web.api.context import WalletDependency, WebContext
from tollway.web.http.admission import BODY_RESERVATION, SignInRateLimit
from tollway.web.http.json import find_unknown_members, parse_json_object
from tollway.web.http.page_response import API_PROOFS, mark_private
from tollway.web.http.problems import CHALLENGED_BY_402, SIGN_IN_CHALLENGE, refuse_fields
from tollway.web.http.query import format_time
from tollway.web.http.read_turns import enter_turn

_SIWX_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "domain": {"type": "string"},
        "address": {"type": "string"},
        "statement": {"type": "string"},
        "uri": {"type": "string", "format": "uri"},
        "version": {"type": "string"},
        "chainId": {"type": "string"},
        "type": {"type": "string"},
        "nonce": {"type": "string"},
        "issuedAt": {"type": "string", "format": "date-time"},
        "expirationTime": {"type": "string", "format": "date-time"},
        "notBefore": {"type": "string", "format": "date-time"},
        "requestId": {"type": "string"},
        "resources": {"type": "array", "items": {"type": "string", "format": "uri"}},
        "signature": {"type": "string"},
    },
    "required": ["domain", "address", "uri", "version", "chainId", "type", "nonce", "issuedAt", "signature"],
}


def make_wallet_dependency(
    authenticator: Authenticator, *, body_bytes_max: int, quota: Quota
) -> WalletDependency:
    """Builds the wallet dependency of routes. It raises Refusal (413, 429 of `quota`, or a refusal of `Authenticator.authenticate`)."""

    async def authenticate(request: Request) -> Identity:
        mark_private(request.scope, API_PROOFS)
        reservation = request.scope.get("state", {}).get(BODY_RESERVATION)
        if reservation is not None and reservation.may_count(_declared_length(request)):
            await authenticator.verify_head(to_signed_request(request, body=None))
            reservation.prove()
        body = await read_body(request, bytes_max=body_bytes_max)
        identity = await authenticator.authenticate(to_signed_request(request, body=body))
        await admit_wallet(request, identity.address, quota=quota)
        return identity

    return authenticate


def make_wallet_quota(*, limits: Limits, rate_limiter: RateLimiter) -> Quota:
    """The quota of authenticated requests, the same for every proof: a signature, a session, a sign-in, the session of a page."""
    return Quota(
        "authenticated-requests",
        "authenticated requests",
        amount=limits.authenticated_requests_per_minute,
        per="minute",
        rate_limiter=rate_limiter,
    )


async def admit_wallet(request: Request, wallet: Address, *, quota: Quota) -> None:
    """Counts a request with a valid proof, and waits for its turn where it reads books. Raises Refusal (429)."""
    await quota.charge(wallet, client_address=client_address_of(request))
    await enter_turn(request.scope, wallet)


def make_x402_wallet_dependency(wallet: WalletDependency) -> WalletDependency:
    """Builds the dependency for clients that sign in only after a 402. Each 401 becomes a 402 with an empty `accepts`.

    Without a sign-in challenge the refusal stays a 401, because no client can act on a 402 without terms.
    """

    async def authenticate(request: Request) -> Identity:
        request.scope.setdefault("state", {})[CHALLENGED_BY_402] = True
        return await wallet(request)

    return authenticate


async def read_body(request: Request, *, bytes_max: int) -> bytes:
    """Reads the whole body and keeps it for a later `await request.body()`. Raises Refusal (`payload_too_large`) beyond `bytes_max`."""
    chunks: list[bytes] = []
    size = _declared_length(request) or 0
    if size <= bytes_max:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > bytes_max:
                break
            chunks.append(chunk)
    if size > bytes_max:
        raise refuse(
            code=Code.PAYLOAD_TOO_LARGE,
            detail=f"The body is longer than {bytes_max} bytes. Send a shorter one.",
        )
    body = b"".join(chunks)
    request._body = body  # Starlette keeps a read body in this attribute; it has no bounded read
    return body


def _declared_length(request: Request) -> int | None:
    """The length of the body: 0 without one, None where it is not declared."""
    if "transfer-encoding" in request.headers:
        return None
    announced = request.headers.get("content-length", "0")
    return int(announced) if announced.isascii() and announced.isdigit() and len(announced) < 16 else 0


def to_signed_request(request: Request, *, body: bytes | None) -> SignedRequest:
    """The request with its raw path, query and headers, as received. `body` None: it is not read yet."""
    raw_path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    return SignedRequest(
        method=request.method,
        raw_path=raw_path.split(b"?", 1)[0],
        query=request.scope["query_string"],
        headers=request.scope["headers"],
        body=body or b"",
        is_body_read=body is not None,
        client_address=client_address_of(request),
    )


def client_address_of(request: Request) -> str:
    """The address that limits count: of the peer, or of the client that a trusted proxy names."""
    state = request.scope.get("state") or {}
    known = state.get("client_address")  # set for a connection of a trusted proxy
    if known is not None:
        return str(known)
    return request.client.host if request.client is not None else ""


async def challenge_headers(
    request: Request,
    *,
    sign_in: SignIn,
    rate_limit: SignInRateLimit,
    origin: PublicOrigin,
    chain_ids: Sequence[ChainId],
) -> list[tuple[str, str]]:
    """The headers of a 401: `WWW-Authenticate`, `Accept-Signature`, and the x402 sign-in challenge in `PAYMENT-REQUIRED` if the request can be repeated with one.
    Beyond the rate limit the challenge is left out. Never raises: a refusal must not become a failure."""
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    unsigned = to_signed_request(request, body=b"?" if has_body else b"")
    realm = f'realm="{origin.authority}"'
    headers = [
        ("WWW-Authenticate", f'Bearer {realm}, Signature {realm}, profile="erc8128", SIWX {realm}'),
        ("Accept-Signature", accept_signature(required_components(unsigned))),
    ]
    if (
        is_siwx_possible(unsigned)
        and await rate_limit.charge("challenge", client_address=unsigned.client_address) is None
    ):
        uri = _sign_in_uri(unsigned, origin=origin)
        try:
            sign_in_challenge = await sign_in.create_challenge(uri)
        except StorageUnavailable:
            return headers
        headers.append((SIGN_IN_CHALLENGE, _format_challenge(sign_in_challenge, chain_ids=chain_ids)))
    return headers


def _sign_in_uri(request: SignedRequest, *, origin: PublicOrigin) -> str:
    """The URI of the sign-in message: without the query, and the origin alone if the path is not printable ASCII or is too long."""
    path = request.raw_path.decode("latin-1")
    uri = f"{origin}{path}"
    is_plain = path.isascii() and path.isprintable() and not set(path) & set(' <>"{}|\\^`')
    return uri if is_plain and len(uri) <= URI_CHARACTERS_MAX else f"{origin}/"


def _format_challenge(sign_in_challenge: SignInChallenge, *, chain_ids: Sequence[ChainId]) -> str:
    """The x402 v2 "auth only" challenge in base64: nothing to pay, a message to sign. No member is null, because stock clients refuse null."""
    challenge = {
        "x402Version": 2,
        "error": "authentication_required",
        "resource": {
            "url": sign_in_challenge.uri,
            "description": "Sign in with your wallet",
            "mimeType": "application/json",
        },
        "accepts": [],
        "extensions": {
            "sign-in-with-x": {
                "info": {
                    "domain": sign_in_challenge.domain,
                    "uri": sign_in_challenge.uri,
                    "version": "1",
                    "nonce": sign_in_challenge.nonce,
                    "issuedAt": format_time(sign_in_challenge.issued_ms),
                    "expirationTime": format_time(sign_in_challenge.expires_ms),
                    "statement": STATEMENT,
                    "resources": [sign_in_challenge.uri],
                },
                "supportedChains": [
                    {"chainId": format_network(chain_id), "type": "eip191"} for chain_id in chain_ids
                ],
                "schema": _SIWX_SCHEMA,
            }
        },
    }
    return base64.b64encode(json.dumps(challenge, separators=(",", ":")).encode()).decode()


_NO_STORE = {"Cache-Control": "no-store"}
_CHAIN_ID_MAX = 10**15 - 1


def signin_router(context: WebContext) -> Router:
    """`/api/v2/auth/nonce` and `/api/v2/auth/session`."""
    sign_in, rate_limit, limits = context.sign_in, context.sign_in_limit, context.limits

    async def issue_nonce(request: Request) -> Response:
        await charge_sign_in(rate_limit, "nonce", request)
        nonce_request = await read_nonce_request(request, limits=limits, known=("address", "chainId", "uri"))
        return respond_challenge(await sign_in.create_challenge(nonce_request.uri), nonce_request)

    async def open_session(request: Request) -> Response:
        await charge_sign_in(rate_limit, "session", request)
        members = await _read_members(request, limits=limits, known=("message", "signature"))
        reader = _SignInBody(members)
        text = reader.text("message", is_required=True) or ""
        signature = reader.signature("signature")
        reader.finish()
        session = await sign_in.open_session(
            text=text, signature=signature, client_address=client_address_of(request)
        )
        content = {
            "accessToken": session.token,
            "tokenType": "Bearer",
            "expiresIn": session.expires_in_s,
            "address": str(session.address),
        }
        return JSONResponse(content, status_code=201, headers=_NO_STORE)

    async def close_session(request: Request) -> Response:
        mark_private(request.scope, API_PROOFS)
        token = read_bearer(to_signed_request(request, body=b""))
        if token is None:
            raise refuse(
                code=Code.AUTHENTICATION_REQUIRED,
                detail="The request has no session token. Send the token of the session to end.",
            )
        await sign_in.close_session(token)
        return Response(status_code=204)

    return Router(
        [
            Route("/api/v2/auth/nonce", issue_nonce, methods=["POST"]),
            Route("/api/v2/auth/session", open_session, methods=["POST"]),
            Route("/api/v2/auth/session", close_session, methods=["DELETE"]),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceRequest:
    """The body of a request for a nonce. With `address` and `chain_id` the response has the message to sign."""

    address: Address | None
    chain_id: ChainId | None
    uri: str | None


async def read_nonce_request(request: Request, *, limits: Limits, known: tuple[str, ...]) -> NonceRequest:
    """`known`: the members that the body may have. Raises Refusal (`validation_failed`, `payload_too_large`, `invalid_request`)."""
    reader = _SignInBody(await _read_members(request, limits=limits, known=known))
    nonce_request = NonceRequest(
        address=reader.address("address"), chain_id=reader.chain_id("chainId"), uri=reader.text("uri")
    )
    reader.finish()
    return nonce_request


def respond_challenge(challenge: SignInChallenge, nonce_request: NonceRequest) -> Response:
    """The new nonce, and the message to sign where the request names the wallet and its chain."""
    text = (
        challenge.format_message(address=nonce_request.address, chain_id=nonce_request.chain_id)
        if nonce_request.address is not None and nonce_request.chain_id is not None
        else None
    )
    content = {
        "nonce": challenge.nonce,
        "domain": challenge.domain,
        "uri": challenge.uri,
        "issuedAt": format_time(challenge.issued_ms),
        "expirationTime": format_time(challenge.expires_ms),
        "message": text,
    }
    return JSONResponse(content, headers=_NO_STORE)


async def charge_sign_in(rate_limit: SignInRateLimit, kind: str, request: Request) -> None:
    """Counts a request of the sign-in against its client address. Raises Refusal (`rate_limited`)."""
    wait_s = await rate_limit.charge(kind, client_address=client_address_of(request))
    if wait_s is not None:
        raise refuse(
            code=Code.RATE_LIMITED,
            detail=f"One address may send {rate_limit.per_minute} of these requests a minute. Send it again after Retry-After.",
            retry_after_s=wait_s,
            members=describe_rate(f"signin-{kind}", limit=rate_limit.per_minute, window_s=60),
        )


async def _read_members(request: Request, *, limits: Limits, known: tuple[str, ...]) -> dict[str, Any]:
    body = await read_body(request, bytes_max=limits.control_body_bytes_max)
    members = parse_json_object(body) if body else {}
    unknown = find_unknown_members(members, known)
    if unknown:
        raise refuse_fields(*unknown)
    return members


class _SignInBody:
    """Reads the members of one body into types, and collects all errors into one refusal."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = members
        self._errors: list[FieldError] = []

    def _refuse(self, name: str, code: str, detail: str) -> None:
        self._errors.append(FieldError(code=code, detail=detail, pointer=f"/{name}"))

    def text(self, name: str, *, is_required: bool = False) -> str | None:
        value = self._members.get(name)
        if value is None and is_required:
            self._refuse(name, "required", "must be there")
        elif value is not None and not isinstance(value, str):
            self._refuse(name, "type", "must be text")
        else:
            return value
        return None

    def address(self, name: str) -> Address | None:
        text = self.text(name)
        try:
            return None if text is None else Address.parse(text)
        except ValueError as exc:
            self._refuse(name, "format", str(exc))
            return None

    def chain_id(self, name: str) -> ChainId | None:
        value = self._members.get(name)
        if value is None or (type(value) is int and 0 <= value <= _CHAIN_ID_MAX):
            return None if value is None else ChainId(value)
        self._refuse(name, "type", "must be a chain id, such as 8453")
        return None

    def signature(self, name: str) -> bytes:
        text = self.text(name, is_required=True) or "0x"
        try:
            if text[:2] != "0x" or not text.isalnum():
                raise ValueError
            return bytes.fromhex(text[2:])
        except ValueError:
            self._refuse(name, "format", "must be 0x and an even number of hex digits")
            return b""

    def finish(self) -> None:
        if self._errors:
            raise refuse_fields(*self._errors)
