"""The pages of webhooks: a wallet registers a receiver, reads its deliveries, has an event sent again, and removes it. They do what `/api/v2/webhooks` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from tollway.errors import Code, Problem, Refusal
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.webhook_routes import DeliveryParameters, WebhookActs
from tollway.web.http.problems import status_of
from tollway.web.http.query import read_query
from tollway.web.pages.page_session import Fields, PageAccess, Reader, read_field, redirect_to
from tollway.webhooks.endpoints import WebhookEndpoint
from tollway.webhooks.events import EventType
from tollway.webhooks.schedule import CHALLENGES_MAX

WEBHOOKS = "/my/webhooks"
_ONE = "/my/webhooks/{webhook_id}"
DELIVERIES_SHOWN = 50


def webhook_page_router(context: WebContext, access: PageAccess) -> Router:
    pages = WebhookPages(context, access)
    return Router(
        [
            access.page(WEBHOOKS, pages.list_endpoints),
            access.form(WEBHOOKS, pages.register),
            access.page(_ONE, pages.show_endpoint),
            access.form(_ONE + "/removal", pages.remove),
            access.form(_ONE + "/resend", pages.resend),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookForm:
    """The form of a new receiver. `errors`: sentences by field, under an empty name what belongs to none. `secret`: of the receiver that was registered last; no page shows it again."""

    url: str = ""
    types: Sequence[str] = tuple(EventType)
    is_signed: bool = True
    is_shared: bool = False
    errors: Mapping[str, str] = field(default_factory=dict)
    registered: WebhookEndpoint | None = None
    secret: str | None = field(default=None, repr=False)
    status: int = 200


class WebhookPages:
    """The handlers of the pages about webhooks. Many tasks may call them at once."""

    def __init__(self, context: WebContext, access: PageAccess) -> None:
        self._context = context
        self._acts = WebhookActs(context)
        self._respond = access.respond

    async def list_endpoints(self, request: Request, reader: Reader) -> Response:
        return await self._respond_list(
            request, reader, WebhookForm(), done=request.query_params.get("done", "")
        )

    async def register(self, request: Request, reader: Reader, fields: Fields) -> Response:
        """Registers a receiver. Its secret is on the page that answers, and on no other; a form with an error comes back as it was sent."""
        given: dict[str, Any] = {"url": read_field(fields, "url"), "types": list(fields.get("types", ()))}
        is_signed, is_shared = bool(fields.get("secret")), bool(fields.get("shared"))
        members = {**given, "shared": is_shared, **({"secret": "v1"} if is_signed else {})}
        try:
            registered, secret = await self._acts.register(
                reader.address, members, client_address=client_address_of(request)
            )
        except Refusal as refused:
            form = WebhookForm(
                **given,
                is_signed=is_signed,
                is_shared=is_shared,
                errors=_group_errors(refused.problem),
                status=status_of(refused.problem.code),
            )
            return await self._respond_list(request, reader, form)
        return await self._respond_list(request, reader, WebhookForm(registered=registered, secret=secret))

    async def _respond_list(
        self, request: Request, reader: Reader, form: WebhookForm, *, done: str = ""
    ) -> Response:
        return self._respond(
            request,
            reader,
            "my_webhooks.j2",
            status=form.status,
            form=form,
            types=tuple(EventType),
            rows=await self._context.webhooks.list_of(reader.address),
            rows_max=self._context.limits.webhooks_max,
            done=done,
        )

    async def show_endpoint(self, request: Request, reader: Reader) -> Response:
        query = read_query(WebhookPageParameters, request.scope["query_string"])
        endpoint = await self._find_own(request, reader)
        asked = query.model_copy(update={"limit": DELIVERIES_SHOWN + 1})
        found = await self._acts.list_deliveries(reader.address, endpoint.id, asked)
        shown = found[:DELIVERIES_SHOWN]
        return self._respond(
            request,
            reader,
            "my_webhook.j2",
            endpoint=endpoint,
            rows=shown,
            older=shown[-1].event_id if len(found) > len(shown) else None,
            challenges_max=CHALLENGES_MAX,
            state=query.state,
            done=query.done,
        )

    async def remove(self, request: Request, reader: Reader, fields: Fields) -> Response:
        """Removes a receiver with everything that waits for it. The second form of the page confirms it."""
        if read_field(fields, "confirmed") != "yes":
            raise Refusal(_NOT_CONFIRMED)
        await self._acts.remove(reader.address, request.path_params["webhook_id"])
        return redirect_to(f"{WEBHOOKS}?done=removed")

    async def resend(self, request: Request, reader: Reader, fields: Fields) -> Response:
        endpoint = await self._find_own(request, reader)
        event_id = read_field(fields, "event")
        await self._acts.resend(
            reader.address, endpoint.id, event_id, client_address=client_address_of(request)
        )
        return redirect_to(f"{WEBHOOKS}/{endpoint.id}?done=queued")

    async def _find_own(self, request: Request, reader: Reader) -> WebhookEndpoint:
        """The receiver of the reader. Raises Refusal (404) for one of another wallet."""
        wanted = request.path_params["webhook_id"]
        for one in await self._context.webhooks.list_of(reader.address):
            if one.id == wanted:
                return one
        raise Refusal(_NOT_YOURS)


class WebhookPageParameters(DeliveryParameters):
    """The query of `/my/webhooks/{id}`. `done`: what the form before has done."""

    done: str = ""


def _group_errors(problem: Problem) -> Mapping[str, str]:
    """The sentences of a refusal by the field of the form."""
    grouped: dict[str, list[str]] = {}
    for error in problem.errors:
        name = (error.pointer or "").removeprefix("/").partition("/")[0]
        grouped.setdefault(name, []).append(error.detail)
    return {name: "; ".join(dict.fromkeys(found)) for name, found in grouped.items()} or {"": problem.detail}


_NOT_YOURS = Problem(
    code=Code.WEBHOOK_NOT_FOUND, detail="None of your webhooks has this id. /my/webhooks lists them."
)
_NOT_CONFIRMED = Problem(
    code=Code.VALIDATION_FAILED,
    detail="The removal was not confirmed, and nothing was changed. Open the page of the webhook and confirm it.",
)
