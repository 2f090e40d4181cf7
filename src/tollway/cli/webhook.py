"""The commands `tollway webhook …`: registers, lists and removes webhooks of a wallet, and shows their deliveries."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import typer

from tollway.cli.inputs import (
    DEFAULT_GATEWAY,
    AllowHttp,
    AsJson,
    Gateway,
    KeyFile,
    explained_caller_failures,
    open_client,
)
from tollway.cli.output import is_for_people, print_document, print_json, print_text
from tollway.client import requests
from tollway.client.call_io import ControlRequest
from tollway.client.requests import GatewayDocument
from tollway.client.safe_text import plain_line

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id.")]
EventId = Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")]
State = Literal["pending", "delivered", "dead"]


def add(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="https, a public address.")],
    kinds: Annotated[list[str], typer.Option("--type", help="A type such as call.charged, repeatable.")],
    has_secret: Annotated[
        bool, typer.Option("--secret", help="Sign by Standard Webhooks too; prints the secret once.")
    ] = False,
    is_shared: Annotated[
        bool, typer.Option("--shared", help="The URL may get events of another wallet of yours.")
    ] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    request = requests.add_webhook(url, kinds, "v1" if has_secret else None, is_shared=is_shared)
    with explained_caller_failures(as_json=as_json):
        print_document(_fetch(ctx, request), as_json=as_json)
        if is_for_people(as_json=as_json):
            print_text(
                "The gateway sends the challenge now: its receiver returns `challenge` and, where the URL is shared, `wallet`."
                " `tollway webhook list` shows when it was echoed."
            )


def show_all(
    ctx: typer.Context,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        document = _fetch(ctx, requests.list_webhooks())
        if not is_for_people(as_json=as_json):
            print_json(document)
            return
        for one in document["webhooks"]:
            counts = f"{one['pending']} waiting, {one['dead']} failed"
            state = one["state"] if one["reason"] is None else f"{one['state']} ({one['reason']})"
            print_text(plain_line(f"{one['id']} {state} {counts} {one['url']} {', '.join(one['types'])}"))
            for line in _describe_losses(one):
                print_text(plain_line(f"  {line}"))
        if not document["webhooks"]:
            print_text("No webhooks. `tollway webhook add URL --type call.charged` registers one.")


def _describe_losses(webhook: Mapping[str, Any]) -> Iterator[str]:
    """The events that its receiver did not get, and the command that shows them."""
    if webhook["dead"]:
        yield (
            f"the last attempt failed: `tollway webhook deliveries {webhook['id']} --state dead` lists them, "
            f"`tollway webhook resend {webhook['id']} EVENT` sends one again"
        )
    if (gap := webhook["gap"]) is not None:
        end = gap["to"] or "now"
        yield f"gap: no events from {gap['from']} to {end}; `tollway history --since DAY` lists the calls, DAY one day earlier"


def remove(
    ctx: typer.Context,
    webhook_id: WebhookId,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        _fetch(ctx, requests.remove_webhook(webhook_id))
        print_document({"id": webhook_id, "state": "removed"}, as_json=as_json)


def show_deliveries(
    ctx: typer.Context,
    webhook_id: WebhookId,
    state: Annotated[State | None, typer.Option("--state", help="pending, delivered or dead.")] = None,
    before: Annotated[str | None, typer.Option("--before", help="Events before this event.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="1 to 200.")] = 50,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    query = {"state": state, "before": before, "limit": limit}
    with explained_caller_failures(as_json=as_json):
        document = _fetch(ctx, requests.list_deliveries(webhook_id, query))
        if not is_for_people(as_json=as_json):
            print_json(document)
            return
        for one in document["deliveries"]:
            last = one["lastStatus"] or one["lastError"] or "not sent yet"
            attempts = f"{one['attempts']} attempts, last: {last}"
            print_text(plain_line(f"{one['eventId']} {one['type']} {one['state']} {attempts}"))
        if not document["deliveries"]:
            print_text("No events.")


def resend(
    ctx: typer.Context,
    webhook_id: WebhookId,
    event_id: EventId,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        print_document(_fetch(ctx, requests.resend_event(webhook_id, event_id)), as_json=as_json)


def _fetch(ctx: typer.Context, request: ControlRequest) -> GatewayDocument:
    with open_client(ctx) as client:
        return client.fetch_document(request)
