"""Commands that find APIs: search and show.

Keys come from a file or the environment and never from an argument, which every other user of the machine can read.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 try again later.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from tollway.cli.call import format_call_line
from tollway.cli.inputs import Caller, caller_command
from tollway.cli.outline import print_outline
from tollway.cli.output import JsonObject, print_json, print_search_results
from tollway.client import CallerFailure, TollwayClient, requests
from tollway.client.call_io import ControlRequest
from tollway.discovery.search_text import CLOSEST_MAX, FILTERS, advise_search, read_names


@caller_command(has_key=False)
def show_listing(caller: Caller, api_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """A pipe gets the JSON of what a call needs: operations, prices and payment options."""
    if caller.as_json:
        print_json(caller.fetch(requests.show_listing(api_id), is_signing=False))
        return
    with caller.open(is_signing=False) as client:
        document = client.fetch_agent_document(api_id)
    if caller.is_for_people:
        print_outline(outline_of(document))
    else:
        print_json(select_members(document))


FIRST_MEMBERS = ("id", "name", "operations", "operationsLeftOut", "operationsAt")
"""The members of the agent document that `show` prints first."""
CALL_MEMBERS = (*FIRST_MEMBERS, "status", "untrusted", "interfaces", "payment", "charged")
"""The members of the agent document that a caller needs, in the order in which a pipe gets them."""


def outline_of(document: JsonObject) -> JsonObject:
    """The agent document as a terminal shows it: the operations first, each with the command that calls it in the place of its example."""
    first = {name: document[name] for name in FIRST_MEMBERS if name in document}
    if isinstance(document.get("operations"), list):
        first["operations"] = [_add_command(document.get("id"), one) for one in document["operations"]]
    return {**first, **{name: value for name, value in document.items() if name not in first}}


def _add_command(api_id: object, operation: object) -> object:
    line = format_call_line(api_id, operation) if isinstance(operation, Mapping) else None
    if line is None or not isinstance(operation, Mapping):
        return operation
    return {**{name: value for name, value in operation.items() if name != "example"}, "call": line}


def select_members(document: JsonObject) -> JsonObject:
    """The part of the agent document that a caller needs, without the steps of paying by hand; all of the details of a listing, where the gateway has no such document."""
    if "payment" not in document:
        return document
    chosen = {name: document[name] for name in CALL_MEMBERS if name in document}
    if isinstance(chosen.get("payment"), Mapping):
        chosen["payment"] = {
            name: value for name, value in chosen["payment"].items() if name not in ("rails", "steps")
        }
    return chosen


LOOKUPS_AT_ONCE_MAX = 8
LOOKUPS_MAX = 100


@caller_command(has_key=False)
def search(
    caller: Caller,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="What the API must do. APIs with all of these words are the first, then those with some."
        ),
    ] = None,
    page: Annotated[int, typer.Option("--page")] = 1,
    limit: Annotated[int, typer.Option("--limit")] = 20,
    tag: Annotated[str | None, typer.Option("--tag")] = None,
    currency: Annotated[str | None, typer.Option("--currency")] = None,
    network: Annotated[str | None, typer.Option("--network", help="eip155:…")] = None,
    max_price: Annotated[str | None, typer.Option("--max-price", help="Needs --currency.")] = None,
    min_success_rate: Annotated[
        float | None, typer.Option("--min-success-rate", help="Of paid calls, such as 0.99.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--provider", help="Only the APIs of this wallet (0x…), paused ones too.")
    ] = None,
    verified: Annotated[
        bool | None,
        typer.Option(
            "--verified/--unverified", help="Whether the provider has proved the ownership of the endpoint."
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", help="recommended, relevance, newest, price, -price, name.")
    ] = None,
) -> None:
    with caller.open(is_signing=False) as client:
        query = {
            "page": page,
            "limit": limit,
            "tag": tag,
            "currency": currency,
            "network": network,
            "maxPrice": max_price,
            "minSuccessRate": min_success_rate,
            "provider": provider,
            "verified": verified,
            "sort": sort,
        }
        text = " ".join(words or ())
        found = client.fetch_document(requests.search_apis(text, query))
        if not caller.is_for_people:
            print_json(found)
        elif found.get("total") == 0:
            is_filtered = any(query[name] is not None for name in FILTERS)
            print_search_results(found, (), advice=_advise(client, text, is_filtered=is_filtered))
        else:
            print_search_results(found, _fetch_details(client, found))


def _advise(client: TollwayClient, text: str, *, is_filtered: bool) -> str:
    """What to try after a search for `text` that found nothing."""

    def fetch_names(request: ControlRequest, member: str) -> list[str]:
        try:
            return read_names(client.fetch_document(request), member)
        except CallerFailure:
            return []

    closest = fetch_names(requests.search_apis(text, {"limit": CLOSEST_MAX}), "apis") if is_filtered else []
    return advise_search(closest=closest, tags=fetch_names(requests.count_listings(None), "tags"))


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
