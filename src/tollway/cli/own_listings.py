"""`tollway listing list`: the listings of your wallet as a table, CSV or JSON.

The list itself is the gateway's public one, which leaves out what the operator has suspended. The gateway names such listings to their provider alone, by a signed request.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tollway.cli.inputs import Caller, caller_command
from tollway.cli.output import format_price, list_objects, print_foot, print_json, print_rows
from tollway.client import GatewayRefused, TollwayClient, requests
from tollway.client.safe_text import format_value, plain_line
from tollway.csv_text import csv_line
from tollway.errors import Code

LISTINGS_MAX = 1_000
"""The most listings of one list."""
PAGE_LISTINGS_MAX = 100
"""The most listings that a gateway gives in one page."""
LOOKUPS_AT_ONCE_MAX = 8
COLUMNS = ("id", "name", "pricePerRequest", "currency", "state", "calls30d")
"""The columns of CSV, and the members of a listing in JSON."""


@caller_command()
def list_own(
    caller: Caller,
    *,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV, one line for each listing, on stdout.")] = False,
) -> None:
    if as_csv and caller.as_json:
        raise ValueError("give --csv or --json, not both")
    with caller.open() as client:
        own = read_own_listings(client)
    if as_csv:
        sys.stdout.writelines(format_csv(own.listings))
    elif caller.is_for_people:
        print_own_listings(own)
    else:
        print_json({"listings": own.listings, "total": own.total, "isLowerBound": own.is_lower_bound})


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnListings:
    """The listings of a wallet, newest first, with the members `COLUMNS`. `total`: also those beyond `LISTINGS_MAX`. `is_lower_bound`: the gateway did not
    count all calls of the 30 days."""

    listings: list[dict[str, Any]]
    total: int
    is_lower_bound: bool


def read_own_listings(client: TollwayClient) -> OwnListings:
    """The listings of the client's wallet. `state`: active, paused or suspended; null where a listing was retired meanwhile. Raises the refusals of the reads."""
    sales = client.fetch_document(requests.show_sales({"step": "day"}))
    calls = _count_calls(list_objects(sales.get("sales")))
    found, total = _search_own(client)
    suspended = list_objects(client.fetch_document(requests.list_suspended()).get("apis"))
    ids = [format_value(row.get("id")) for row in found]
    with ThreadPoolExecutor(LOOKUPS_AT_ONCE_MAX) as pool:
        states = dict(zip(ids, pool.map(lambda api_id: _read_state(client, api_id), ids), strict=True))
    states |= {format_value(row.get("id")): "suspended" for row in suspended}
    return OwnListings(
        listings=[
            {
                **{name: row.get(name) for name in COLUMNS},
                **({"pricing": row["pricing"]} if "pricing" in row else {}),
                "state": states[format_value(row.get("id"))],
                "calls30d": calls.get(format_value(row.get("id")), 0),
            }
            for row in (*found, *suspended)
        ],
        total=total + len(suspended),
        is_lower_bound=sales.get("isLowerBound") is True,
    )


def _search_own(client: TollwayClient) -> tuple[list[Mapping[str, Any]], int]:
    """The public listings of the wallet, up to `LISTINGS_MAX`, and how many there are."""
    rows: list[Mapping[str, Any]] = []
    while True:
        query = {"provider": str(client.address), "limit": PAGE_LISTINGS_MAX, "sort": "newest"}
        page = client.fetch_document(
            requests.search_apis(None, {**query, "page": len(rows) // PAGE_LISTINGS_MAX + 1})
        )
        more = list_objects(page.get("apis"))
        rows += more
        if len(more) < PAGE_LISTINGS_MAX or len(rows) >= LISTINGS_MAX:
            total = page.get("total")
            return rows, total if isinstance(total, int) else len(rows)


def _count_calls(sales: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The calls of each listing in all states, free ones too."""
    calls: dict[str, int] = {}
    for row in sales:
        api_id, count = format_value(row.get("apiId")), row.get("calls")
        calls[api_id] = calls.get(api_id, 0) + (count if isinstance(count, int) else 0)
    return calls


def _read_state(client: TollwayClient, api_id: str) -> str | None:
    try:
        status = client.fetch_document(requests.show_listing(api_id)).get("status")
    except GatewayRefused as refusal:
        is_suspended = refusal.code == Code.API_PAUSED.value
        if not is_suspended and refusal.is_retryable:
            raise
        return "suspended" if is_suspended else None
    return None if status is None else plain_line(format_value(status))


def format_csv(listings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the file. Cells are plain, and none begins like a formula."""
    yield csv_line(COLUMNS)
    for listing in listings:
        yield csv_line(plain_line(format_value(listing.get(name))) for name in COLUMNS)


def print_own_listings(own: OwnListings) -> None:
    """Prints the table of a terminal. The name is the last column, which is cut at its width."""
    if not own.listings:
        print_foot("No listings. Publish one: tollway listing publish --file listing.toml")
        return
    rows = [
        (row["id"], row["state"], format_price(row), row["calls30d"], row["name"]) for row in own.listings
    ]
    print_rows(("listing", "state", "price", "calls (30 d)", "name"), rows)
    shown = "" if len(own.listings) == own.total else f"the newest {len(own.listings)} of "
    at_least = "; calls are at least these" if own.is_lower_bound else ""
    print_foot(f"{shown}{own.total} in all{at_least}; tollway show ID explains one")
