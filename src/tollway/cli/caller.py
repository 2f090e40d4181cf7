"""Commands that find APIs: search and show.

Keys come from a file or the environment and never from an argument, which every other user of the machine can read.
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 try again later.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from tollway.cli.inputs import (
    DEFAULT_GATEWAY,
    AllowHttp,
    AsJson,
    Gateway,
    explained_caller_failures,
    open_client,
)
from tollway.cli.outline import print_outline
from tollway.cli.output import (
    is_for_people,
    print_json,
    print_search_results,
)
from tollway.client import CallerFailure, TollwayClient, requests


def show_listing(
    ctx: typer.Context,
    api_id: Annotated[str, typer.Argument(metavar="ID")],
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    as_json: AsJson = False,
) -> None:
    with explained_caller_failures(as_json=as_json):
        with open_client(ctx, is_signing=False) as client:
            document = (
                client.fetch_agent_document(api_id)
                if is_for_people(as_json=as_json)
                else client.fetch_document(requests.show_listing(api_id))
            )
        if is_for_people(as_json=as_json):
            print_outline(
                {**{name: document[name] for name in FIRST_MEMBERS if name in document}, **document}
            )
        else:
            print_json(document)


FIRST_MEMBERS = ("id", "name", "operations", "operationsLeftOut", "operationsAt")
"""The members of the agent document that `show` prints first."""

LOOKUPS_AT_ONCE_MAX = 8
LOOKUPS_MAX = 100


def search(
    ctx: typer.Context,
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
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    as_json: AsJson = False,
) -> None:
    with (
        explained_caller_failures(as_json=as_json),
        open_client(ctx, is_signing=False) as client,
    ):
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
