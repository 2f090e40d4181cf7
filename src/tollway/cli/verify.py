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
    explained_caller_failures,
)
from tollway.cli.showing import is_for_people, open_console, print_json
from tollway.client.shown_text import format_value, plain_line


def register_verify(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("verify")(verify)


def verify(
    api_id: Annotated[str, typer.Argument(metavar="ID")],
    is_show_only: Annotated[
        bool, typer.Option("--show", help="Say what to do; check nothing. Needs no key.")
    ] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Prove that the endpoint of a listing is yours: checks now, and says what to put where. Exit code 1 while unproved."""
    with explained_caller_failures(as_json=as_json):
        session = CallerSession(gateway=gateway, allow_http=allow_http, key_file=key_file)
        with session.open(is_signing=not is_show_only) as client:
            ownership = client.ownership(api_id) if is_show_only else client.check_ownership(api_id)
    if is_for_people(as_json=as_json):
        console = open_console(soft_wrap=True)
        for line in describe_ownership(ownership):
            console.print(Text(line))
    else:
        print_json(ownership)
    if ownership.get("state") != "verified" and not is_show_only:
        raise typer.Exit(REFUSED)


def describe_ownership(ownership: Mapping[str, Any]) -> list[str]:
    """The state, and while it is not proved, the ways to prove it."""
    origin = _read_word(ownership, "origin")
    if ownership.get("state") == "verified":
        lines = [
            f"{origin} is proved ({_read_word(ownership, 'method')}), last seen {_read_word(ownership, 'verifiedAt')}"
        ]
        if ownership.get("failures"):
            lines.append(f"not found by the last {_read_word(ownership, 'failures')} check(s): put it back")
        return lines
    lines = [f"{origin} is not proved. Any one of these is enough:"]
    challenge, checks = _read_part(ownership, "challenge"), _read_part(ownership, "checks")
    file, name, signature = (_read_part(challenge, way) for way in ("wellKnown", "dns", "signature"))
    if file:
        lines += [
            f"  a file at {_read_word(file, 'url')}{_format_check(checks, 'wellKnown')} with the line",
            f"    {_read_word(file, 'content')}",
        ]
    if name:
        lines += [
            f"  a TXT record at {_read_word(name, 'name')}{_format_check(checks, 'dns')}",
            f"    {_read_word(name, 'value')}",
        ]
    if signature:
        lines += [
            f"  a signature in {_read_word(signature, 'url')} at {_read_word(signature, 'pointer')}{_format_check(checks, 'signature')}",
            f"    by {_read_word(signature, 'signer')} (personal_sign) over {_read_word(signature, 'message')}",
        ]
    return lines


def _format_check(checks: Mapping[str, Any], way: str) -> str:
    return f" ({_read_word(checks, way).replace('_', ' ')})" if way in checks else ""


def _read_part(ownership: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = ownership.get(name)
    return part if isinstance(part, Mapping) else {}


def _read_word(ownership: Mapping[str, Any], name: str) -> str:
    return plain_line(format_value(ownership.get(name)))
