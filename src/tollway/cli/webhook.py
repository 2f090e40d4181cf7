"""The commands `tollway webhook …`: registers, lists and removes webhooks of a wallet, and shows their deliveries."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import typer

from tollway.cli.inputs import Caller, caller_command
from tollway.cli.output import print_text, quote_word
from tollway.client import requests
from tollway.client.safe_text import plain_line

WebhookId = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id.")]
EventId = Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")]
State = Literal["pending", "delivered", "dead"]


@caller_command()
def add(
    caller: Caller,
    url: Annotated[str, typer.Argument(metavar="URL", help="https, a public address.")],
    kinds: Annotated[list[str], typer.Option("--type", help="A type such as call.charged, repeatable.")],
    has_secret: Annotated[
        bool, typer.Option("--secret", help="Sign by Standard Webhooks too; prints the secret once.")
    ] = False,
    is_shared: Annotated[
        bool, typer.Option("--shared", help="The URL may get events of another wallet of yours.")
    ] = False,
) -> None:
    secret = "v1" if has_secret else None
    caller.print(caller.fetch(requests.add_webhook(url, kinds, secret, is_shared=is_shared)))
    if caller.is_for_people:
        print_text(
            "The gateway sends the challenge now: its receiver returns `challenge` and, where the URL is shared, `wallet`."
            " `tollway webhook list` shows when it was echoed."
        )


@caller_command()
def show_all(caller: Caller) -> None:
    caller.print(caller.fetch(requests.list_webhooks()), _print_webhooks)


def _print_webhooks(document: Mapping[str, Any]) -> None:
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
            f"the last attempt failed: `tollway webhook deliveries {quote_word(webhook['id'])} --state dead` lists them, "
            f"`tollway webhook resend {quote_word(webhook['id'])} EVENT` sends one again"
        )
    if (gap := webhook["gap"]) is not None:
        end = gap["to"] or "now"
        yield f"gap: no events from {gap['from']} to {end}; `tollway history --since DAY` lists the calls, DAY one day earlier"


@caller_command()
def remove(caller: Caller, webhook_id: WebhookId) -> None:
    caller.fetch(requests.remove_webhook(webhook_id))
    caller.print({"id": webhook_id, "state": "removed"})


@caller_command()
def show_deliveries(
    caller: Caller,
    webhook_id: WebhookId,
    state: Annotated[State | None, typer.Option("--state", help="pending, delivered or dead.")] = None,
    before: Annotated[str | None, typer.Option("--before", help="Events before this event.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="1 to 200.")] = 50,
) -> None:
    query = {"state": state, "before": before, "limit": limit}
    caller.print(caller.fetch(requests.list_deliveries(webhook_id, query)), _print_deliveries)


def _print_deliveries(document: Mapping[str, Any]) -> None:
    for one in document["deliveries"]:
        last = one["lastStatus"] or one["lastError"] or "not sent yet"
        attempts = f"{one['attempts']} attempts, last: {last}"
        print_text(plain_line(f"{one['eventId']} {one['type']} {one['state']} {attempts}"))
    if not document["deliveries"]:
        print_text("No events.")


@caller_command()
def resend(caller: Caller, webhook_id: WebhookId, event_id: EventId) -> None:
    caller.print(caller.fetch(requests.resend_event(webhook_id, event_id)))
