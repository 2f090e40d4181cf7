"""Commands of providers: publish, edit, pause, resume, retire, verify and test a listing.

`edit` reads the listing, shows what changes, and sends a patch that names the changed members only, with the entity tag of the listing that it has read.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 try again later.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tollway.cli.inputs import REFUSED, Caller, caller_command, read_content, read_draft, read_headers
from tollway.cli.listing_changes import Change, format_changes, list_changes
from tollway.cli.listing_inputs import add_member_options, read_members
from tollway.cli.output import list_objects, print_json, print_lines, print_members, print_text, read_object
from tollway.cli.published import describe_dry_run, list_next_steps
from tollway.client import CallerFailure, GatewayRefused, TollwayClient, requests
from tollway.client.requests import GatewayDocument
from tollway.client.safe_text import format_value, plain_line
from tollway.errors import Code
from tollway.registry.listing_fields import FIELDS

ListingId = Annotated[str, typer.Argument(metavar="ID", help="The listing's id.")]
File = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="The members as JSON or TOML; options replace them."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask on a terminal.")]

_STATUS_ERROR_MIN = 400


@caller_command()
@add_member_options
def publish(
    caller: Caller,
    file: File = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the listing and show what an agent will read; create nothing."),
    ] = False,
    **members: Any,
) -> None:
    draft = caller.sent
    draft |= {**read_draft(file), **read_members(members)}
    if not draft:
        raise ValueError("nothing to publish: give --file, or --name, --price, --currency and --endpoint")
    with caller.open() as client:
        made = client.fetch_document(requests.publish_listing(draft, dry_run=dry_run))
    caller.print(made, partial(_print_written, gateway=client.gateway))


@caller_command()
@add_member_options
def edit(
    caller: Caller,
    api_id: ListingId,
    file: File = None,
    clear: Annotated[
        list[str] | None,
        typer.Option("--clear", help="Set this member to its default, such as operations. Repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what changes, and change nothing.")
    ] = False,
    yes: Yes = False,
    **members: Any,
) -> None:
    patch = caller.sent
    patch |= {**read_draft(file), **read_members(members), **dict.fromkeys(clear or ())}
    if not patch:
        raise ValueError("nothing to change: name a member, such as --price 0.02")
    with caller.open() as client:
        listing_edit = ListingEdit(client, api_id, patch)
        changes = listing_edit.preview()
        written = listing_edit.after
        if caller.is_for_people:
            print_lines(format_changes(changes) or ["Nothing changes."])
            _print_warnings(written)
        if changes and not dry_run:
            _confirm(caller, "Change the listing?", yes=yes)
            written = listing_edit.send()
            if caller.is_for_people:
                _print_secret(written)
                _print_warnings(written, known=listing_edit.after)
    if not caller.is_for_people:
        shown = {change.member: {"before": change.before, "after": change.after} for change in changes}
        print_json({**written, "changes": shown})


class ListingEdit:
    """One edit of a listing: read, checked, and sent if the listing is still the one that was read."""

    def __init__(self, client: TollwayClient, api_id: str, patch: Mapping[str, object]) -> None:
        """`patch`: the changed members; None sets the default. A document replaces the listing's (PUT), because a patch cannot carry one."""
        if patch.get("openapi") is not None and len(patch) > 1:
            raise ValueError("a document from a file is an edit of its own: give --openapi FILE alone")
        self._fetch = client.fetch_document
        self._api_id = api_id
        self._patch = patch
        self._is_document = patch.get("openapi") is not None
        self.before = client.fetch_document(requests.show_listing(api_id))
        self.after: Mapping[str, Any] = self.before

    def preview(self) -> tuple[Change, ...]:
        """The changes as the gateway would make them. Raises the refusals of an edit."""
        if self._is_document:
            self.after = {**self.before, **self._patch}
        else:
            self.after = self._fetch(requests.patch_listing(self._api_id, self._patch, dry_run=True))
        return list_changes(self.before, self.after, patch=self._patch)

    def send(self) -> GatewayDocument:
        """The changed listing. Raises `ListingChanged` when another edit came first."""
        etag = self.before.etag
        if self._is_document:
            members = {name: value for name, value in self.before.items() if name in REPLACED_MEMBERS}
            request = requests.update_listing(self._api_id, {**members, **self._patch}, etag=etag)
        else:
            request = requests.patch_listing(self._api_id, self._patch, etag=etag)
        try:
            return self._fetch(request)
        except GatewayRefused as refusal:
            if refusal.code != Code.PRECONDITION_FAILED.value:
                raise
            now = self._fetch(requests.show_listing(self._api_id))
            raise ListingChanged(list_changes(self.before, now)) from refusal


class ListingChanged(CallerFailure):
    """The listing has changed since the command has read it."""

    code = "precondition_failed"

    def __init__(self, changes: tuple[Change, ...]) -> None:
        lines = format_changes(changes) or ["no public member"]
        super().__init__(
            "The listing changed after this command had read it, and nothing was sent. It changed meanwhile: "
            + "; ".join(" ".join(line.split()) for line in lines)
            + ". Run the command again to edit the listing of now."
        )


REPLACED_MEMBERS = frozenset(field.member for field in FIELDS if not field.is_kept)
"""The members that PUT sets to their defaults where they are absent."""


@caller_command()
def pause(caller: Caller, api_id: ListingId) -> None:
    caller.print(caller.fetch(requests.patch_listing(api_id, {"status": "paused"})), _print_status)


@caller_command()
def resume(caller: Caller, api_id: ListingId) -> None:
    caller.print(caller.fetch(requests.patch_listing(api_id, {"status": "active"})), _print_status)


def _print_status(listing: Mapping[str, Any]) -> None:
    print_text(plain_line(_describe_status(listing)))


def _describe_status(listing: Mapping[str, Any]) -> str:
    """The status after an edit, and the suspension by the operator, which refuses all calls at any status."""
    name, status = format_value(listing.get("name")), format_value(listing.get("status"))
    suspension = listing.get("suspension")
    if not isinstance(suspension, dict):
        return f"{name} is {status}."
    reason = format_value(suspension.get("reason"), characters_max=200)
    return (
        f"{name} is suspended by the operator, and its calls stay refused."
        + (f' The reason: "{reason}".' if reason else "")
        + f" Ask the operator; its own status is {status}."
    )


@caller_command()
def retire(caller: Caller, api_id: ListingId, yes: Yes = False) -> None:
    with caller.open() as client:
        _confirm(caller, "Retire the listing? It cannot be published again under this id.", yes=yes)
        client.retire(api_id)
    caller.print({"id": api_id, "state": "retired"})


@caller_command()
def try_out(
    caller: Caller,
    api_id: ListingId,
    path: Annotated[str, typer.Argument(help="Path and query below the endpoint, such as /quote/ETH.")] = "",
    method: Annotated[
        str | None, typer.Option("--request", "-X", help="The method: GET, or POST with --data.")
    ] = None,
    content: Annotated[
        str | None, typer.Option("--data", "-d", help="The body; @FILE reads it, @- stdin.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="Name: value, repeatable.")
    ] = None,
) -> None:
    body = read_content(content)
    trial: dict[str, Any] = {
        "method": method or ("GET" if body is None else "POST"),
        "path": path if path[:1] in ("", "/", "?") else f"/{path}",
        "headers": read_headers(header or []),
    }
    if body is not None:
        trial["body"] = _decode_body(body)
    result = caller.fetch(requests.try_listing(api_id, trial))
    caller.print(result, lambda found: print_lines(describe_trial(found)))
    status = result.get("status")
    if not isinstance(status, int) or status >= _STATUS_ERROR_MIN:
        raise typer.Exit(REFUSED)


def _decode_body(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as exc:
        raise ValueError("the body of a trial call must be text in UTF-8") from exc


def describe_trial(result: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a trial call: status, time and price, then the body."""
    price = f"{format_value(result.get('price'))} {format_value(result.get('currency'))}"
    verdict = f"a caller would pay {price}" if result.get("wouldCharge") else "a caller would pay nothing"
    yield plain_line(
        f"The upstream answered {format_value(result.get('status'))} in {format_value(result.get('latencyMs'))} ms; {verdict}."
    )
    kind = read_object(result.get("headers")).get("content-type")
    body = result.get("body")
    if body:
        yield plain_line(f"{format_value(kind)}:" if kind else "The body:")
        yield format_value(body)
    elif result.get("bodyBase64"):
        yield "The body is no text; --json prints it in base64."
    if result.get("isCut"):
        yield "The body is longer; the gateway returns its first 64 KiB."
    for warning in list_objects(result.get("warnings")):
        yield plain_line(f"warning: {format_value(warning.get('detail'))}")


@caller_command()
def verify(
    caller: Caller,
    api_id: ListingId,
    is_show_only: Annotated[
        bool, typer.Option("--show", help="Print what to do, without a check. Needs no key.")
    ] = False,
) -> None:
    request = requests.show_ownership(api_id) if is_show_only else requests.check_ownership(api_id)
    ownership = caller.fetch(request, is_signing=not is_show_only)
    caller.print(ownership, lambda found: print_lines(describe_ownership(found)))
    if ownership.get("state") != "verified" and not is_show_only:
        raise typer.Exit(REFUSED)


def describe_ownership(ownership: Mapping[str, Any]) -> list[str]:
    """The state of the proof, and without one, the ways to make it."""
    origin = _read_word(ownership, "origin")
    if ownership.get("state") == "verified":
        lines = [
            f"{origin} is proved ({_read_word(ownership, 'method')}), last seen {_read_word(ownership, 'verifiedAt')}"
        ]
        if ownership.get("failures"):
            lines.append(f"the last {_read_word(ownership, 'failures')} check(s) did not find it: restore it")
        return lines
    lines = [f"{origin} is not proved. Any one of these is enough:"]
    challenge, checks = (read_object(ownership.get(name)) for name in ("challenge", "checks"))
    file, name, signature = (read_object(challenge.get(way)) for way in ("wellKnown", "dns", "signature"))
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


def _read_word(ownership: Mapping[str, Any], name: str) -> str:
    return plain_line(format_value(ownership.get(name)))


def _confirm(caller: Caller, question: str, *, yes: bool) -> None:
    """Asks on a terminal. A program is not asked. Ends the command where the answer is no."""
    if yes or not caller.is_for_people or not sys.stdin.isatty():
        return
    if not typer.confirm(question, err=True):
        print_text("Nothing was changed.", is_error=True)
        raise typer.Exit(REFUSED)


def _print_written(listing: Mapping[str, Any], *, gateway: str) -> None:
    """A created listing and what its provider does next; of a dry run the listing that is not created."""
    if listing.get("dryRun") is True:
        print_lines(describe_dry_run(listing))
    else:
        print_members({name: listing.get(name) for name in _PUBLISHED})
        _print_secret(listing)
        print_lines(list_next_steps(listing, gateway=gateway))
    _print_warnings(listing)


_PUBLISHED = ("id", "name", "pricePerRequest", "currency", "endpoint", "payTo", "status")


def _print_secret(written: Mapping[str, Any]) -> None:
    """The secret that this write made, of a listing whose forwarded calls are signed with one."""
    secret = written.get("forwardSecret")
    if isinstance(secret, str):
        print_lines(
            [
                f"forwardSecret  {plain_line(secret)}",
                f"{'':15}Shown once. Your API verifies forwarded calls with it.",
            ]
        )


def _print_warnings(listing: Mapping[str, Any], *, known: Mapping[str, Any] | None = None) -> None:
    """`known`: the preview of the edit, whose warnings are printed already."""
    printed = [] if known is None else list(_list_warnings(known))
    for line in _list_warnings(listing):
        if line not in printed:
            print_text(line, is_error=True)


def _list_warnings(listing: Mapping[str, Any]) -> Iterator[str]:
    for warning in list_objects(listing.get("warnings")):
        place = plain_line(format_value(warning.get("pointer"))).lstrip("/")
        yield f"warning: {place}: {plain_line(format_value(warning.get('detail')))}"
