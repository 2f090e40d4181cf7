"""Between HTTP and `identity`: makes a wallet a dependency of a route, and tells the unproven how to prove themselves.

It reads the whole body before anything else looks at it, because a signature covers its digest. It decides nothing.
"""

import base64
import json
from collections.abc import Awaitable, Callable, Sequence

from fastapi import Request

from tollway.errors import Code, Problem, Refusal, StorageUnavailable
from tollway.identifiers import ChainId, format_network
from tollway.identity.authenticator import Authenticator, Identity, is_siwx_possible
from tollway.identity.front_desk import URI_CHARACTERS_MAX, SignIn, SignInChallenge
from tollway.identity.http_signature import SignedRequest, accept_signature, required_components
from tollway.identity.public_origin import PublicOrigin
from tollway.identity.signin import STATEMENT
from tollway.web.nonce_meter import SignInRateLimit
from tollway.web.problems import CHALLENGED_BY_402, SIGN_IN_CHALLENGE
from tollway.web.wire import format_time

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


WalletDependency = Callable[[Request], Awaitable[Identity]]
"""Proves who asks, before a route looks at anything else."""


def make_wallet_dependency(authenticator: Authenticator, *, body_bytes_max: int) -> WalletDependency:
    """A FastAPI dependency: the wallet behind the request, before the route looks at the body.

    Raises Refusal (413, or what `Authenticator.authenticate` refuses).
    """

    async def authenticate(request: Request) -> Identity:
        body = await read_body(request, bytes_max=body_bytes_max)
        return await authenticator.authenticate(to_signed_request(request, body=body))

    return authenticate


def make_x402_wallet_dependency(wallet: WalletDependency) -> WalletDependency:
    """The same wallet, for clients that sign in only when they are asked with a 402: every refusal that would be a 401
    comes as a 402 with nothing to pay (`accepts: []`). Where no challenge can be made it stays a 401: a 402 without
    terms would say nothing to anybody."""

    async def authenticate(request: Request) -> Identity:
        request.scope.setdefault("state", {})[CHALLENGED_BY_402] = True
        return await wallet(request)

    return authenticate


async def read_body(request: Request, *, bytes_max: int) -> bytes:
    """The whole body, also for `await request.body()` afterwards. Raises Refusal (`payload_too_large`) beyond `bytes_max`."""
    announced = request.headers.get("content-length", "0")
    chunks: list[bytes] = []
    size = int(announced) if announced.isascii() and announced.isdigit() and len(announced) < 16 else 0
    if size <= bytes_max:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > bytes_max:
                break
            chunks.append(chunk)
    if size > bytes_max:
        raise Refusal(
            Problem(code=Code.PAYLOAD_TOO_LARGE, detail=f"The body may have {bytes_max} bytes at most.")
        )
    body = b"".join(chunks)
    request._body = body  # where Starlette itself keeps a body that was read; it offers no bounded read
    return body


def to_signed_request(request: Request, *, body: bytes) -> SignedRequest:
    """The request as it came over the wire."""
    raw_path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    return SignedRequest(
        method=request.method,
        raw_path=raw_path.split(b"?", 1)[0],
        query=request.scope["query_string"],
        headers=request.scope["headers"],
        body=body,
        client_address=client_address_of(request),
    )


def client_address_of(request: Request) -> str:
    """Whom limits are counted against: the other end of the connection."""
    state = request.scope.get("state") or {}
    known = state.get("client_address")  # where a trusted proxy told whom it speaks for
    if known is not None:
        return str(known)
    return request.client.host if request.client is not None else ""


def make_challenge(
    sign_in: SignIn, rate_limit: SignInRateLimit, *, origin: PublicOrigin, chain_ids: Sequence[ChainId]
) -> Callable[[Request], Awaitable[list[tuple[str, str]]]]:
    """What every 401 carries: `WWW-Authenticate`, `Accept-Signature`, and where a signature would do, the x402 sign-in
    challenge in `PAYMENT-REQUIRED`. A client that asks for too many challenges gets none of the last kind."""

    async def challenge(request: Request) -> list[tuple[str, str]]:
        return await challenge_headers(
            request, sign_in=sign_in, rate_limit=rate_limit, origin=origin, chain_ids=chain_ids
        )

    return challenge


async def challenge_headers(
    request: Request,
    *,
    sign_in: SignIn,
    rate_limit: SignInRateLimit,
    origin: PublicOrigin,
    chain_ids: Sequence[ChainId],
) -> list[tuple[str, str]]:
    """The headers of one 401. Never raises: a refusal must not turn into a failure."""
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
    """The URI to sign for: without the query, and only the origin where the path is no plain text."""
    path = request.raw_path.decode("latin-1")
    uri = f"{origin}{path}"
    is_plain = path.isascii() and path.isprintable() and not set(path) & set(' <>"{}|\\^`')
    return uri if is_plain and len(uri) <= URI_CHARACTERS_MAX else f"{origin}/"


def _format_challenge(sign_in_challenge: SignInChallenge, *, chain_ids: Sequence[ChainId]) -> str:
    """x402 v2 "auth only": nothing to pay, a signature to give. No member is null: stock clients refuse that."""
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
