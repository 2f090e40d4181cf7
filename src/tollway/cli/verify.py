"""`tollway verify`: what proves that a listing's endpoint is its provider's, and having the gateway look for it."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from tollway.cli.caller_options import (
    DEFAULT_GATEWAY,
    REFUSED,
    AllowHttp,
    AsJson,
    CallerSession,
    Gateway,
    KeyFile,
    explained,
)
from tollway.cli.showing import is_for_people, open_console, print_json
from tollway.client.shown_text import plain_line, show


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("verify")(verify)


def verify(
    api_id: Annotated[str, typer.Argument(metavar="ID")],
    look_only: Annotated[
        bool, typer.Option("--show", help="Say what to do; check nothing. Needs no key.")
    ] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Prove that the endpoint of a listing is yours: checks now, and says what to put where. Exit code 1 while unproved."""
    with explained(as_json=as_json):
        session = CallerSession(gateway=gateway, allow_http=allow_http, key_file=key_file)
        with session.open(is_signing=not look_only) as client:
            told = client.ownership(api_id) if look_only else client.check_ownership(api_id)
    if is_for_people(as_json=as_json):
        console = open_console(soft_wrap=True)
        for line in describe_ownership(told):
            console.print(Text(line))
    else:
        print_json(told)
    if told.get("state") != "verified" and not look_only:
        raise typer.Exit(REFUSED)


def describe_ownership(told: Mapping[str, Any]) -> list[str]:
    """The state, and while it is not proved, the ways to prove it."""
    origin = _word(told, "origin")
    if told.get("state") == "verified":
        lines = [f"{origin} is proved ({_word(told, 'method')}), last seen {_word(told, 'verifiedAt')}"]
        if told.get("failures"):
            lines.append(f"not found by the last {_word(told, 'failures')} check(s): put it back")
        return lines
    lines = [f"{origin} is not proved. Any one of these is enough:"]
    challenge, checks = _part(told, "challenge"), _part(told, "checks")
    file, name, signature = (_part(challenge, way) for way in ("wellKnown", "dns", "signature"))
    if file:
        lines += [
            f"  a file at {_word(file, 'url')}{_seen(checks, 'wellKnown')} with the line",
            f"    {_word(file, 'content')}",
        ]
    if name:
        lines += [
            f"  a TXT record at {_word(name, 'name')}{_seen(checks, 'dns')}",
            f"    {_word(name, 'value')}",
        ]
    if signature:
        lines += [
            f"  a signature in {_word(signature, 'url')} at {_word(signature, 'pointer')}{_seen(checks, 'signature')}",
            f"    by {_word(signature, 'signer')} (personal_sign) over {_word(signature, 'message')}",
        ]
    return lines


def _seen(checks: Mapping[str, Any], way: str) -> str:
    return f" ({_word(checks, way).replace('_', ' ')})" if way in checks else ""


def _part(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = told.get(name)
    return part if isinstance(part, Mapping) else {}


def _word(told: Mapping[str, Any], name: str) -> str:
    return plain_line(show(told.get(name)))
