"""`tollway wallet show-to`, `hide-from`, `decline` and `viewers`: which wallets may read the books of this one, until when."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tollway.cli.history import format_time
from tollway.cli.inputs import Caller, caller_command, read_moment
from tollway.cli.output import list_objects, print_foot, print_line
from tollway.client import requests
from tollway.client.safe_text import format_value

Viewer = Annotated[str, typer.Argument(metavar="ADDRESS", help="The other wallet.")]


@caller_command()
def show_to(
    caller: Caller,
    viewer: Viewer,
    until: Annotated[
        str,
        typer.Option("--until", help="2027-07-01 (UTC) or a time with its zone; at most 400 days ahead."),
    ],
) -> None:
    moment = requests.format_moment("--until", read_moment(until))
    assert moment is not None
    caller.print(caller.fetch(requests.put_viewer(viewer, moment)))


@caller_command()
def hide_from(caller: Caller, viewer: Viewer) -> None:
    caller.fetch(requests.delete_viewer(viewer))
    caller.print({"address": viewer, "mayRead": False})


@caller_command()
def decline(caller: Caller, wallet: Viewer) -> None:
    caller.fetch(requests.decline_wallet(wallet))
    caller.print({"address": wallet, "mayRead": False})


@caller_command()
def list_viewers(caller: Caller) -> None:
    caller.print(caller.fetch(requests.list_viewers()), print_viewers)


def print_viewers(found: Mapping[str, Any]) -> None:
    """Prints both lists: the whole address, and until when."""
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
        print_line(title, style="bold")
        for row in rows:
            until = row.get("until")
            end = (
                "as long as the wallet is bound to its owner"
                if until is None
                else f"until {format_time(until)}"
            )
            print_line(f"  {format_value(row.get('address'))} {end}")
    if found.get("walletsAreMore") is True:
        print_foot("There are more; --wallet reads each of them.")
