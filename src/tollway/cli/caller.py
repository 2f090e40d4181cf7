"""Commands of callers and providers: search, show, and those of listings.

Keys come from a file or the environment and never from an argument, which every other user of the machine can read.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 try again later.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tollway.cli.inputs import (
    DEFAULT_GATEWAY,
    REFUSED,
    AllowHttp,
    AsJson,
    CallerSession,
    Gateway,
    KeyFile,
    explained_caller_failures,
    read_draft,
)
from tollway.cli.outline import print_outline
from tollway.cli.output import (
    is_for_people,
    open_console,
    print_document,
    print_json,
    print_search_results,
)
from tollway.client import CallerFailure, TollwayClient, requests
from tollway.client.requests import KEPT_MEMBERS, LISTING_DEFAULTS, find_dropped_members
from tollway.client.safe_text import format_value, plain_line


def publish(
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="The listing as JSON or TOML; options replace its members."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name")] = None,
    price: Annotated[str | None, typer.Option("--price", help="Per request, such as 0.01.")] = None,
    currency: Annotated[str | None, typer.Option("--currency", help="USDC, ETH, …")] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help="The URL that the gateway calls.")
    ] = None,
    description: Annotated[str | None, typer.Option("--description")] = None,
    pay_to: Annotated[str | None, typer.Option("--pay-to", help="The wallet that receives payments.")] = None,
    network: Annotated[list[str] | None, typer.Option("--network", help="eip155:…, repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Repeatable.")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="Repeatable.")] = None,
    api_id: Annotated[
        str | None, typer.Option("--update", help="Change this listing; without it, a new one is made.")
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", help="With --update: set this field to its default. Repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the listing without creating it.")
    ] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Publishes an API, or changes one of your listings."""
    options = {
        "name": name,
        "pricePerRequest": price,
        "currency": currency,
        "endpoint": endpoint,
        "description": description,
        "payTo": pay_to,
        "networks": network,
        "tags": tag,
        "methods": method,
    }
    with explained_caller_failures(as_json=as_json):
        draft = {
            **read_draft(file),
            **{field: value for field, value in options.items() if value or value == ""},
        }
        if not draft:
            raise ValueError("nothing to publish: give --file, or --name, --price, --currency and --endpoint")
        if reset and api_id is None:
            raise ValueError("--reset needs --update")
        if api_id is not None and dry_run:
            raise ValueError("--dry-run does not work with --update")
        with CallerSession(gateway=gateway, allow_http=allow_http, key_file=key_file).open(
            is_signing=True
        ) as client:
            if api_id is None:
                made = client.fetch_document(requests.publish_listing(draft, dry_run=dry_run))
            else:
                draft = {**draft, **{field: None for field in reset or () if field in KEPT_MEMBERS}}
                listing = client.fetch_document(requests.show_listing(api_id))
                check_dropped(listing, draft, allowed=reset or ())
                made = client.fetch_document(requests.update_listing(api_id, draft))
        print_document(made, as_json=as_json)


class UpdateDrops(ValueError):
    """An update that omits members of the listing."""

    code = "update_drops_fields"


def check_dropped(
    listing: Mapping[str, object], draft: Mapping[str, object], *, allowed: Collection[str]
) -> None:
    """Raises `UpdateDrops` when an update, which replaces the whole listing, would set members to their defaults that are neither in the draft nor in
    `allowed`."""
    unknown = sorted(set(allowed) - {*LISTING_DEFAULTS, "payTo", *KEPT_MEMBERS})
    if unknown:
        raise ValueError(
            f"--reset does not take {unknown[0]}, only {', '.join((*LISTING_DEFAULTS, 'payTo', *KEPT_MEMBERS))}"
        )
    dropped = [name for name in find_dropped_members(listing, draft) if name not in allowed]
    if dropped:
        resets = " ".join(f"--reset {name}" for name in dropped)
        raise UpdateDrops(
            f"An update replaces the whole listing, and this one would drop {', '.join(dropped)}. Give their values "
            f"(tollway show prints the present ones), or confirm with {resets}"
        )


def show_listing(
    api_id: Annotated[str, typer.Argument(metavar="ID")],
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    as_json: AsJson = False,
) -> None:
    """Explains how to use one API: operations, examples, price, charging, limits, trust. JSON has every field of the listing."""
    with explained_caller_failures(as_json=as_json):
        with CallerSession(gateway=gateway, allow_http=allow_http).open(is_signing=False) as client:
            document = (
                client.fetch_agent_document(api_id)
                if is_for_people(as_json=as_json)
                else client.fetch_document(requests.show_listing(api_id))
            )
        if is_for_people(as_json=as_json):
            print_outline(document)
        else:
            print_json(document)


LOOKUPS_AT_ONCE_MAX = 8
LOOKUPS_MAX = 100


def search(
    words: Annotated[list[str] | None, typer.Argument(help="Each of these words must occur.")] = None,
    page: Annotated[int, typer.Option("--page")] = 1,
    limit: Annotated[int, typer.Option("--limit")] = 20,
    tag: Annotated[str | None, typer.Option("--tag")] = None,
    currency: Annotated[str | None, typer.Option("--currency")] = None,
    network: Annotated[str | None, typer.Option("--network", help="eip155:…")] = None,
    max_price: Annotated[str | None, typer.Option("--max-price", help="Needs --currency.")] = None,
    min_success_rate: Annotated[
        float | None, typer.Option("--min-success-rate", help="Of paid calls, such as 0.99.")
    ] = None,
    verified: Annotated[
        bool | None,
        typer.Option(
            "--verified/--unverified", help="Whether the provider has proved the ownership of the endpoint."
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", help="relevance, newest, price, -price, name.")
    ] = None,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    as_json: AsJson = False,
) -> None:
    """Finds APIs, with their price, networks, measured quality, and the reason for each match."""
    with (
        explained_caller_failures(as_json=as_json),
        CallerSession(gateway=gateway, allow_http=allow_http).open(is_signing=False) as client,
    ):
        query = {
            "page": page,
            "limit": limit,
            "tag": tag,
            "currency": currency,
            "network": network,
            "maxPrice": max_price,
            "minSuccessRate": min_success_rate,
            "verified": verified,
            "sort": sort,
        }
        found = client.fetch_document(requests.search_apis(" ".join(words or ()), query))
        if is_for_people(as_json=as_json):
            print_search_results(found, _fetch_details(client, found))
        else:
            print_json(found)


def _fetch_details(client: TollwayClient, page: dict[str, Any]) -> list[dict[str, Any]]:
    """The details of each listing of a page, in its order; empty for a listing that no longer exists."""

    def fetch(item: dict[str, Any]) -> dict[str, Any]:
        try:
            return client.fetch_document(requests.show_listing(str(item.get("id"))))
        except CallerFailure:
            return {}

    listed = [item for item in page.get("apis", ()) if isinstance(item, dict)]
    with ThreadPoolExecutor(LOOKUPS_AT_ONCE_MAX) as pool:
        return list(pool.map(fetch, listed[:LOOKUPS_MAX]))


def verify(
    api_id: Annotated[str, typer.Argument(metavar="ID")],
    is_show_only: Annotated[
        bool, typer.Option("--show", help="Print what to do, without a check. Needs no key.")
    ] = False,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Checks the proof that the endpoint of a listing is yours, and prints how to make one. Exit code 1 without a proof."""
    with explained_caller_failures(as_json=as_json):
        session = CallerSession(gateway=gateway, allow_http=allow_http, key_file=key_file)
        with session.open(is_signing=not is_show_only) as client:
            request = requests.show_ownership(api_id) if is_show_only else requests.check_ownership(api_id)
            ownership = client.fetch_document(request)
    if is_for_people(as_json=as_json):
        console = open_console(soft_wrap=True)
        for line in describe_ownership(ownership):
            console.print(Text(line))
    else:
        print_json(ownership)
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
