"""`tollway wallet show-to`, `hide-from`, `decline` and `viewers`: which wallets may read the books of this one, until when."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from tollway.cli.history import format_time
from tollway.cli.inputs import (
    DEFAULT_GATEWAY,
    AllowHttp,
    AsJson,
    Gateway,
    KeyFile,
    explained_caller_failures,
    open_client,
    read_moment,
)
from tollway.cli.output import (
    is_for_people,
    list_objects,
    open_console,
    print_document,
    print_foot,
    print_json,
)
from tollway.client import requests
from tollway.client.safe_text import format_value, plain_line

Viewer = Annotated[str, typer.Argument(metavar="ADDRESS", help="The other wallet.")]


def show_to(
    ctx: typer.Context,
    viewer: Viewer,
    until: Annotated[
        str,
        typer.Option("--until", help="2027-07-01 (UTC) or a time with its zone; at most 400 days ahead."),
    ],
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        moment = requests.format_moment("--until", read_moment(until))
        assert moment is not None
        with open_client(ctx) as client:
            print_document(client.fetch_document(requests.put_viewer(viewer, moment)), as_json=as_json)


def hide_from(
    ctx: typer.Context,
    viewer: Viewer,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        with open_client(ctx) as client:
            client.fetch_document(requests.delete_viewer(viewer))
        print_document({"address": viewer, "mayRead": False}, as_json=as_json)


def decline(
    ctx: typer.Context,
    wallet: Viewer,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        with open_client(ctx) as client:
            client.fetch_document(requests.decline_wallet(wallet))
        print_document({"address": wallet, "mayRead": False}, as_json=as_json)


def list_viewers(
    ctx: typer.Context,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        with open_client(ctx) as client:
            found = client.fetch_document(requests.list_viewers())
        if is_for_people(as_json=as_json):
            print_viewers(found)
        else:
            print_json(found)


def print_viewers(found: Mapping[str, Any]) -> None:
    """Prints both lists: the whole address, and until when."""
    console = open_console()
    for title, name, nothing in (
        (
            "May read your books",
            "viewers",
            "No wallet may read your books; tollway wallet show-to ADDRESS --until DAY.",
        ),
        (
            "Whose books you may read",
            "wallets",
            "You have read the books of no other wallet; --wallet ADDRESS reads those of one that has named you.",
        ),
    ):
        rows = list_objects(found.get(name))
        if not rows:
            print_foot(nothing)
            continue
        console.print(Text(title, style="bold"))
        for row in rows:
            until = format_time(row.get("until"))
            console.print(Text(plain_line(f"  {format_value(row.get('address'))} until {until}")))
    if found.get("walletsAreMore") is True:
        print_foot("There are more; --wallet reads each of them.")
