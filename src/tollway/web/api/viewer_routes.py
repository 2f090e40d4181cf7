"""`/api/v2/viewers`: which wallets may read the calls, payments and spending of a wallet, until when. They read with `wallet=` on those routes.

A permission is in the lists of its viewer once the viewer has read with it; the viewer can decline it. The owner of a bound wallet is in the lists without a permission."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import PlainValidator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from tollway.errors import FieldError
from tollway.identity.authenticator import Identity
from tollway.identity.viewers import DAY_MS, Viewer
from tollway.ids import Address
from tollway.validation import RequestModel, read_parsed
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.http.json import parse_json_object
from tollway.web.http.problems import NO_CONTENT, refuse_fields
from tollway.web.http.query import (
    NoParameters,
    format_time,
    format_time_if,
    parse_time,
    read_members,
    read_query,
)

TIME_LENGTH_MAX = 40


class ViewerBody(RequestModel):
    """The body of `PUT /viewers/{address}`."""

    until: Annotated[
        int,
        PlainValidator(
            lambda value: read_parsed(value, parse_time, code="malformed", length_max=TIME_LENGTH_MAX)
        ),
    ]


def viewer_router(context: WebContext) -> Router:
    access = context.book_access

    async def authenticate(request: Request) -> Identity:
        identity = await context.authenticate(request)
        read_query(NoParameters, request.scope["query_string"])
        return identity

    async def put_viewer(request: Request) -> JSONResponse:
        caller = await authenticate(request)
        viewer = parse_viewer(request.path_params["address"], caller.address)
        until_ms = read_until(
            parse_json_object(await request.body()),
            now_ms=context.now_ms(),
            days_max=context.limits.viewer_days_max,
        )
        stored = await access.allow(
            caller.address, viewer, until_ms=until_ms, client_address=client_address_of(request)
        )
        return JSONResponse(_viewer_json(stored, "viewer"))

    async def delete_viewer(request: Request) -> Response:
        caller = await authenticate(request)
        viewer = parse_viewer(request.path_params["address"], caller.address)
        await access.withdraw(caller.address, viewer)
        return Response(status_code=NO_CONTENT)

    async def decline_wallet(request: Request) -> Response:
        caller = await authenticate(request)
        named = parse_viewer(request.path_params["address"], caller.address)
        await access.decline(caller.address, named)
        return Response(status_code=NO_CONTENT)

    async def list_viewers(request: Request) -> JSONResponse:
        caller = await authenticate(request)
        viewers = await access.list_viewers(caller.address)
        wallets, are_more = await access.list_wallets(caller.address)
        answer: dict[str, Any] = {
            "viewers": _list_json(viewers, "viewer"),
            "wallets": _list_json(wallets, "wallet"),
        }
        if are_more:
            answer["walletsAreMore"] = True
        return JSONResponse(answer)

    return Router(
        [
            Route("/api/v2/viewers", list_viewers, methods=["GET"]),
            Route("/api/v2/viewers/{address}", put_viewer, methods=["PUT"]),
            Route("/api/v2/viewers/{address}", delete_viewer, methods=["DELETE"]),
            Route("/api/v2/viewers/of/{address}", decline_wallet, methods=["DELETE"]),
        ]
    )


def parse_viewer(text: str, caller: Address) -> Address:
    """The other wallet of a permission. Raises Refusal (422)."""
    try:
        viewer = Address.parse(text)
    except ValueError as exc:
        raise refuse_fields(FieldError(code="malformed", detail=str(exc), parameter="address")) from exc
    if viewer == caller:
        detail = "must be another wallet: a wallet reads its own books"
        raise refuse_fields(FieldError(code="own_wallet", detail=detail, parameter="address"))
    return viewer


def read_until(members: Mapping[str, Any], *, now_ms: int, days_max: int) -> int:
    """The end of a permission in the body of `PUT /viewers/{address}`. Raises Refusal (422)."""
    until_ms = read_members(ViewerBody, members).until
    if not now_ms < until_ms <= now_ms + days_max * DAY_MS:
        detail = f"must be in the future, and at most {days_max} days ahead"
        raise refuse_fields(FieldError(code="out_of_range", detail=detail, pointer="/until"))
    return until_ms


def _list_json(permissions: Sequence[Viewer], side: Literal["viewer", "wallet"]) -> list[dict[str, Any]]:
    return [_viewer_json(one, side) for one in permissions]


def _viewer_json(permission: Viewer, side: Literal["viewer", "wallet"]) -> dict[str, Any]:
    """A permission for one of its two wallets, with the address of the other one. `until`: null for an owner, as long as the wallet is bound."""
    other = permission.viewer if side == "viewer" else permission.wallet
    return {
        "address": str(other),
        "since": format_time(permission.since_ms),
        "until": format_time_if(permission.until_ms),
    }
