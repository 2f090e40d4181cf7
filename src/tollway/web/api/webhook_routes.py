"""The routes of webhooks: a wallet registers, lists and removes its endpoints, reads their deliveries, and has an event sent again.

The routes send nothing themselves: the gateway that delivers sends challenges and messages. A secret is in the response of its creation and in no
other.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.errors import Code, EndpointNotAllowed, FieldError, Problem, Refusal, refuse
from tollway.ids import Address, format_id
from tollway.outbound.policy import ENDPOINT_CHARS_MAX, Endpoint, parse_endpoint
from tollway.rate_limits.limiter import Quota, client_bucket
from tollway.validation import RequestModel, read_texts, value_error
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.listing_json import json_response
from tollway.web.http.json import parse_json_object
from tollway.web.http.problems import ACCEPTED, CREATED, NO_CONTENT
from tollway.web.http.query import (
    NoParameters,
    QueryModel,
    format_time,
    format_time_if,
    read_members,
    read_query,
    whole_number,
)
from tollway.webhooks.endpoints import (
    DeliveryState,
    NewEndpoint,
    NotRegistered,
    Resent,
    WebhookDelivery,
    WebhookEndpoint,
)
from tollway.webhooks.events import EventType
from tollway.webhooks.messages import SECRET_BYTES, format_secret

DELIVERIES_LIMIT_DEFAULT, DELIVERIES_LIMIT_MAX = 50, 200
EVENT_ID_LENGTH_MAX = 64
_TYPE_LENGTH_MAX = 64
_CHALLENGE_BYTES = 24
_ID_BYTES = 10
_URL_POINTER = "/url"


def _check_types(value: object) -> tuple[EventType, ...]:
    types = read_texts(value, None, _parse_type, count_max=len(EventType), length_max=_TYPE_LENGTH_MAX)
    if not types:
        raise value_error("too_short", "must name at least one type")
    return types


def _parse_type(text: str) -> EventType:
    try:
        return EventType(text)
    except ValueError as exc:
        raise value_error("unknown_value", f"must be one of: {', '.join(EventType)}") from exc


class WebhookBody(RequestModel):
    """A new endpoint. `secret`: `v1` for the signature of Standard Webhooks beside that of RFC 9421. `shared`: the URL may be active for another wallet."""

    url: Annotated[str, Field(strict=True, min_length=1, max_length=ENDPOINT_CHARS_MAX)]
    types: Annotated[tuple[EventType, ...], PlainValidator(_check_types)]
    secret: Literal["v1"] | None = None
    shared: Annotated[bool, Field(strict=True)] = False


class DeliveryParameters(QueryModel):
    """The query of a list of deliveries. `before`: an event id; the list goes on with older events."""

    state: DeliveryState | None = None
    before: Annotated[str, Field(max_length=EVENT_ID_LENGTH_MAX)] | None = None
    limit: Annotated[int, whole_number(1, DELIVERIES_LIMIT_MAX)] = DELIVERIES_LIMIT_DEFAULT


def webhook_router(context: WebContext) -> Router:
    """The five routes under `/api/v2/webhooks`."""
    routes = WebhookRoutes(context)
    path = "/api/v2/webhooks"
    return Router(
        [
            Route(path, routes.list_endpoints, methods=["GET"]),
            Route(path, routes.register, methods=["POST"]),
            Route(path + "/{webhookId}", routes.remove, methods=["DELETE"]),
            Route(path + "/{webhookId}/deliveries", routes.list_deliveries, methods=["GET"]),
            Route(path + "/{webhookId}/deliveries/{eventId}/resend", routes.resend, methods=["POST"]),
        ]
    )


class WebhookActs:
    """What a wallet does with its webhooks, by JSON or by a form. Safe to call from many tasks at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        # Each endpoint and each repeat makes this gateway call a server that a wallet names.
        self._quota = Quota(
            "webhooks",
            "webhooks and repeats",
            amount=context.limits.webhooks_per_hour,
            per="hour",
            rate_limiter=context.rate_limiter,
        )

    async def register(
        self, wallet: Address, members: Mapping[str, Any], *, client_address: str
    ) -> tuple[WebhookEndpoint, str | None]:
        """The new endpoint, and its secret where `members` (of `WebhookBody`) name one. Raises Refusal."""
        context = self._context
        context.check_block(wallet)
        body = read_members(WebhookBody, members)
        endpoint = self._parse_url(body.url)
        await self._quota.charge(wallet, client_address=client_address)
        try:
            await context.check_endpoint(endpoint)
        except EndpointNotAllowed as exc:
            raise _refuse_url(exc.problem.detail) from exc
        now_ms = context.shared_ms()
        secret = context.entropy(SECRET_BYTES) if body.secret is not None else None
        new = NewEndpoint(
            id=format_id("wh", now_ms=now_ms, entropy=context.entropy(_ID_BYTES)),
            wallet=wallet,
            network=client_bucket(client_address),
            url=body.url,
            origin=endpoint.origin,
            types=body.types,
            challenge=context.entropy(_CHALLENGE_BYTES).hex(),
            created_ms=now_ms,
            secret=secret,
            is_shared=body.shared,
        )
        registered = await context.webhooks.register(new, count_max=context.limits.webhooks_max)
        if isinstance(registered, NotRegistered):
            raise Refusal(self._explain(registered))
        return registered, None if secret is None else format_secret(secret)

    async def remove(self, wallet: Address, webhook_id: str) -> None:
        """Raises Refusal where the wallet has no such endpoint."""
        if not await self._context.webhooks.remove(wallet, webhook_id):
            raise Refusal(_NOT_FOUND)

    async def list_deliveries(
        self, wallet: Address, webhook_id: str, query: DeliveryParameters
    ) -> tuple[WebhookDelivery, ...]:
        """The newest events first. Raises Refusal where the wallet has no such endpoint."""
        deliveries = await self._context.webhooks.deliveries_of(
            wallet, webhook_id, state=query.state, before=query.before, limit=query.limit
        )
        if deliveries is None:
            raise Refusal(_NOT_FOUND)
        return deliveries

    async def resend(self, wallet: Address, webhook_id: str, event_id: str, *, client_address: str) -> None:
        """Queues an event once more. Raises Refusal."""
        context = self._context
        await self._quota.charge(wallet, client_address=client_address)
        match await context.webhooks.resend(wallet, webhook_id, event_id, now_ms=context.shared_ms()):
            case Resent.UNKNOWN:
                raise Refusal(_NOT_FOUND)
            case Resent.PENDING:
                raise Refusal(_PENDING)
            case Resent.DISABLED:
                raise Refusal(_DISABLED)
            case Resent.QUEUED:
                return

    def _parse_url(self, url: str) -> Endpoint:
        """Raises Refusal for a URL that no message may be sent to. Unlike an endpoint of a listing it may have a query."""
        base, _, query = url.partition("?")
        endpoint = parse_endpoint(base, allow_private=self._context.allow_private)
        if not isinstance(endpoint, Endpoint):
            raise _refuse_url(endpoint.detail)
        if endpoint.scheme != "https" and not self._context.allow_private:
            raise _refuse_url("The URL of a webhook must begin with https.")
        if not all("!" <= character <= "~" and character not in '"#<>\\^`{|}' for character in query):
            raise _refuse_url("The query of the URL has characters that must be percent-encoded.")
        return endpoint

    def _explain(self, refusal: NotRegistered) -> Problem:
        limits = self._context.limits
        match refusal:
            case NotRegistered.WALLET_FULL:
                detail = f"A wallet has at most {limits.webhooks_max} webhooks. Remove one first."
                return Problem(code=Code.WEBHOOK_LIMIT_REACHED, detail=detail)
            case NotRegistered.ADDRESS_FULL:
                detail = (
                    f"One client address has at most {limits.webhooks_unconfirmed_max} unconfirmed webhooks. "
                    "Let their receivers echo their challenges, or remove one first."
                )
                return Problem(code=Code.WEBHOOK_LIMIT_REACHED, detail=detail)
            case NotRegistered.URL_TAKEN:
                return _URL_TAKEN


class WebhookRoutes:
    """The handlers of the routes of webhooks. Safe to call from many tasks at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._acts = WebhookActs(context)

    async def list_endpoints(self, request: Request) -> Response:
        wallet = await self._authenticate(request)
        endpoints = await self._context.webhooks.list_of(wallet)
        return json_response(
            {
                "webhooks": [webhook_json(one) for one in endpoints],
                "limit": self._context.limits.webhooks_max,
            }
        )

    async def register(self, request: Request) -> Response:
        wallet = await self._authenticate(request)
        members = parse_json_object(await request.body())
        registered, secret = await self._acts.register(
            wallet, members, client_address=client_address_of(request)
        )
        content = webhook_json(registered)
        if secret is not None:
            content["secret"]["value"] = secret
        return json_response(content, status=CREATED)

    async def remove(self, request: Request) -> Response:
        wallet = await self._authenticate(request)
        await self._acts.remove(wallet, request.path_params["webhookId"])
        return Response(status_code=NO_CONTENT)

    async def list_deliveries(self, request: Request) -> Response:
        wallet = (await self._context.authenticate(request)).address
        query = read_query(DeliveryParameters, request.scope["query_string"])
        deliveries = await self._acts.list_deliveries(wallet, request.path_params["webhookId"], query)
        return json_response({"deliveries": [delivery_json(one) for one in deliveries], "limit": query.limit})

    async def resend(self, request: Request) -> Response:
        wallet = await self._authenticate(request)
        webhook_id, event_id = request.path_params["webhookId"], request.path_params["eventId"]
        await self._acts.resend(wallet, webhook_id, event_id, client_address=client_address_of(request))
        return json_response({"eventId": event_id, "state": DeliveryState.PENDING.value}, status=ACCEPTED)

    async def _authenticate(self, request: Request) -> Address:
        wallet = (await self._context.authenticate(request)).address
        read_query(NoParameters, request.scope["query_string"])
        return wallet


def webhook_json(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {
        "id": endpoint.id,
        "url": endpoint.url,
        "types": list(endpoint.types),
        "state": endpoint.state.value,
        "reason": None if endpoint.reason is None else endpoint.reason.value,
        "secret": {"scheme": "v1", "set": True} if endpoint.has_secret else None,
        "activeFrom": format_time_if(endpoint.active_from_ms),
        "gap": None
        if endpoint.gap_from_ms is None
        else {"from": format_time(endpoint.gap_from_ms), "to": format_time_if(endpoint.gap_to_ms)},
        "pending": endpoint.pending,
        "dead": endpoint.dead,
        "createdAt": format_time(endpoint.created_ms),
    }


def delivery_json(delivery: WebhookDelivery) -> dict[str, Any]:
    return {
        "eventId": delivery.event_id,
        "type": delivery.type,
        "timestamp": format_time(delivery.at_ms),
        "state": delivery.state.value,
        "messageId": delivery.message_id,
        "attempts": delivery.attempts,
        "nextAttemptAt": format_time_if(delivery.next_ms),
        "lastAttemptAt": format_time_if(delivery.last_ms),
        "lastStatus": delivery.last_status,
        "lastError": delivery.last_error,
    }


def _refuse_url(detail: str) -> Refusal:
    error = FieldError(code="not_allowed", detail=detail, pointer=_URL_POINTER)
    return refuse(code=Code.ENDPOINT_NOT_ALLOWED, detail=detail, errors=(error,))


_NOT_FOUND = Problem(
    code=Code.WEBHOOK_NOT_FOUND, detail="This wallet has no such webhook, or the webhook has no such event."
)
_URL_TAKEN = Problem(
    code=Code.ALREADY_EXISTS,
    detail="The URL gets events of another wallet. Use another URL, or register it with `shared: true`: the webhook is then active once the receiver "
    "has returned the challenge together with your wallet.",
)
_PENDING = Problem(
    code=Code.PRECONDITION_FAILED,
    detail="The event waits to be sent already. Read the deliveries for the time of its next attempt.",
    reason="pending",
)
_DISABLED = Problem(
    code=Code.PRECONDITION_FAILED,
    detail="The webhook has no confirmed receiver, so nothing is sent to it. Register it again.",
    reason="not_active",
)
