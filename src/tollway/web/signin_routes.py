"""The routes of signing in: a nonce, a session for a signed message, and its end."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from tollway.errors import Code, FieldError, Problem, Refusal, describe_rate
from tollway.identifiers import Address, ChainId
from tollway.identity.authenticator import read_bearer
from tollway.identity.front_desk import SignIn
from tollway.limits import Limits
from tollway.web.authentication import client_address_of, read_body, to_signed_request
from tollway.web.json_body import find_unknown_members, parse_json_object
from tollway.web.nonce_meter import SignInRateLimit
from tollway.web.problems import describe_errors
from tollway.web.wire import format_time

_NO_STORE = {"Cache-Control": "no-store"}
_CHAIN_ID_MAX = 10**15 - 1


def signin_router(sign_in: SignIn, rate_limit: SignInRateLimit, *, limits: Limits) -> APIRouter:
    """`/api/v2/auth/nonce` and `/api/v2/auth/session`."""
    router = APIRouter(prefix="/api/v2", tags=["authentication"])

    @router.post("/auth/nonce")
    async def issue_nonce(request: Request) -> Response:
        await _charge(rate_limit, "nonce", request)
        members = await _read_members(request, limits=limits, known=("address", "chainId", "uri"))
        reader = _SignInBody(members)
        address = reader.address("address")
        chain_id = reader.chain_id("chainId")
        uri = reader.text("uri")
        reader.finish()
        sign_in_challenge = await sign_in.create_challenge(uri)
        text = (
            sign_in_challenge.format_message(address=address, chain_id=chain_id)
            if address is not None and chain_id is not None
            else None
        )
        content = {
            "nonce": sign_in_challenge.nonce,
            "domain": sign_in_challenge.domain,
            "uri": sign_in_challenge.uri,
            "issuedAt": format_time(sign_in_challenge.issued_ms),
            "expirationTime": format_time(sign_in_challenge.expires_ms),
            "message": text,
        }
        return JSONResponse(content, headers=_NO_STORE)

    @router.post("/auth/session", status_code=201)
    async def open_session(request: Request) -> Response:
        await _charge(rate_limit, "session", request)
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

    @router.delete("/auth/session", status_code=204)
    async def close_session(request: Request) -> Response:
        token = read_bearer(to_signed_request(request, body=b""))
        if token is None:
            raise Refusal(
                Problem(code=Code.AUTHENTICATION_REQUIRED, detail="Send the token of the session to end.")
            )
        await sign_in.close_session(token)
        return Response(status_code=204)

    return router


async def _charge(rate_limit: SignInRateLimit, kind: str, request: Request) -> None:
    wait_s = await rate_limit.charge(kind, client_address=client_address_of(request))
    if wait_s is not None:
        raise Refusal(
            Problem(
                code=Code.RATE_LIMITED,
                detail=f"At most {rate_limit.per_minute} a minute from one address.",
                retry_after_s=wait_s,
                members=describe_rate(f"signin-{kind}", limit=rate_limit.per_minute, window_s=60),
            )
        )


async def _read_members(request: Request, *, limits: Limits, known: tuple[str, ...]) -> dict[str, Any]:
    body = await read_body(request, bytes_max=limits.control_body_bytes_max)
    members = parse_json_object(body) if body else {}
    unknown = find_unknown_members(members, known)
    if unknown:
        raise Refusal(Problem(code=Code.VALIDATION_FAILED, detail=describe_errors(unknown), errors=unknown))
    return members


class _SignInBody:
    """The members of one body, each read into its type; everything that is wrong is told together."""

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
            errors = tuple(self._errors)
            raise Refusal(Problem(code=Code.VALIDATION_FAILED, detail=describe_errors(errors), errors=errors))
