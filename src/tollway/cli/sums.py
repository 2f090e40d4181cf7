"""`tollway listing earnings` and `tollway wallet spending`: the sums of the gateway's ledger by day or hour, as tables with bars, CSV or JSON.

A table has one asset, and so has each total. Charged, released, held and reorged are columns of a table, and lines of their own in CSV; so are refunded and net. Below
earnings stands where the money of channels is, which no range divides.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from tollway.cli.inputs import Caller, caller_command
from tollway.cli.output import list_objects, print_foot, print_lines, read_object
from tollway.client import requests
from tollway.client.safe_text import format_value, plain_line
from tollway.csv_text import csv_line

STATES = ("charged", "released", "held", "reorged")
CLAIM_STATES = ("unclaimed", "claimed", "settled", "lost")
"""Where the money of channels is."""
REFUNDS = ("refunded", "net")
"""What came back of the charged calls, and what is left of the charges."""
BAR_WIDTH = 12
NAME_WIDTH = 18
CSV_COLUMNS = (
    "start",
    "step",
    "group",
    "name",
    "network",
    "asset",
    "currency",
    "state",
    "calls",
    "units",
    "amount",
)

Step = Annotated[Literal["day", "hour"], typer.Option("--by", help="day or hour, in UTC.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", help="From this time on: 2026-11-01 or 2026-11-01T08:00:00Z. Default: 30 days, 24 hours."
    ),
]
Until = Annotated[str | None, typer.Option("--until", help="Up to this time. Default: now.")]
AsCsv = Annotated[
    bool, typer.Option("--csv", help="CSV, one line for each state, refunded and net, on stdout.")
]


@caller_command()
def earnings(
    caller: Caller,
    api_id: Annotated[str | None, typer.Option("--api", help="Only this listing.")] = None,
    step: Step = "day",
    since: Since = None,
    until: Until = None,
    *,
    as_csv: AsCsv = False,
) -> None:
    query = {**_read_range(step, since, until), "apiId": api_id}
    print_sums(caller, caller.fetch(requests.show_sales(query)), "sales", as_csv=as_csv)


@caller_command()
def spending(
    caller: Caller,
    group_by: Annotated[
        Literal["api", "provider", "wallet"], typer.Option("--group", help="api, provider or wallet.")
    ] = "api",
    wallet: Annotated[
        str | None, typer.Option("--wallet", help="Of this wallet, which has let yours read its books.")
    ] = None,
    step: Step = "day",
    since: Since = None,
    until: Until = None,
    *,
    as_csv: AsCsv = False,
) -> None:
    query = {**_read_range(step, since, until), "groupBy": group_by, "wallet": wallet}
    print_sums(caller, caller.fetch(requests.show_spending(query)), "spending", as_csv=as_csv)


def _read_range(step: str, since: str | None, until: str | None) -> dict[str, str | None]:
    """A day alone begins at midnight in UTC. The gateway checks the rest and names what is wrong."""
    moments = (
        None if one is None else f"{one}T00:00:00Z" if len(one) == len("2026-11-01") else one
        for one in (since, until)
    )
    return {"step": step, **dict(zip(("from", "to"), moments, strict=True))}


def print_sums(caller: Caller, found: Mapping[str, Any], member: str, *, as_csv: bool) -> None:
    """Prints the answer of `/sales` or `/spending`. `member`: its list."""
    if as_csv and caller.as_json:
        raise ValueError("give --csv or --json, not both")
    rows = list_objects(found.get(member))
    if as_csv:
        sys.stdout.writelines(format_csv(found, rows))
    else:
        caller.print(found, lambda _: _print_tables(found, rows))


def _print_tables(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    print_lines(format_tables(found, rows))
    if not rows:
        print_foot("No calls in this range.")
    print_lines(format_channels(found))
    if found.get("isLowerBound") is True:
        until = format_value(found.get("completeFrom"))
        print_foot(f"The range has more: rows before {until} are not whole. Ask again with --until {until}")


def format_csv(found: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the file: one for each row and state that has calls, and where something came back one for `refunded` and one for `net`; then one without a time for each
    asset and claim state of channels. Cells are plain, and none begins like a formula."""
    yield csv_line(CSV_COLUMNS)
    for row in rows:
        for state in (*STATES, *REFUNDS):
            one = _read_state(row, state)
            if _read_state(row, "refunded").get("calls") if state == "net" else one.get("calls"):
                shared = (row.get("start"), found.get("step"), _group_of(row), row.get("apiName"))
                asset = (row.get("network"), row.get("asset"), row.get("currency"))
                values = (*shared, *asset, state, one.get("calls"), one.get("units"), one.get("amount"))
                yield csv_line(plain_line(format_value(value)) for value in values)
    for money in list_objects(found.get("channels")):
        for state in CLAIM_STATES:
            one = _read_state(money, state)
            if _read_amount(money, state):
                cells = {**money, "group": "channels", "state": state, **one}
                yield csv_line(plain_line(format_value(cells.get(name))) for name in CSV_COLUMNS)


def format_tables(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """The lines of a terminal: one table for each asset, with a bar for what was charged, and its total. Fits 80 columns."""
    is_hourly = found.get("step") == "hour"
    for total in list_objects(found.get("totals")):
        own = [row for row in rows if _asset_of(row) == _asset_of(total)]
        largest = max((_read_amount(row, "charged") for row in own), default=Decimal(0))
        named = plain_line(f"{format_value(total.get('currency'))} on {format_value(total.get('network'))}")
        yield Text(named if total.get("asset") else "Free calls", style="bold")
        yield Text(
            f"{'time (UTC)':11} {'of':{NAME_WIDTH}} {'calls':>6} {'charged':>12}  {'':{BAR_WIDTH}}",
            style="bold",
        )
        for row in own:
            start = format_value(row.get("start"))
            moment = f"{start[5:10]} {start[11:16]}" if is_hourly else start[:10]
            name = plain_line(format_value(row.get("apiName")) or _group_of(row))[:NAME_WIDTH]
            bar = draw_bar(_read_amount(row, "charged"), largest)
            head = f"{moment:11} {name:{NAME_WIDTH}} {row.get('calls', 0)!s:>6} {_format_state(row, 'charged'):>12}"
            yield Text(f"{head}  {bar}".rstrip())
            yield from _format_others(row)
        yield Text(
            f"{'total':11} {'':{NAME_WIDTH}} {total.get('calls', 0)!s:>6} {_format_state(total, 'charged'):>12}",
            style="bold",
        )
        yield from _format_others(total)


def format_channels(found: Mapping[str, Any]) -> Iterator[Text]:
    """Where the money of channels that pay this wallet is, two lines for each asset. Fits 80 columns."""
    for money in list_objects(found.get("channels")):
        named = f"{format_value(money.get('currency'))} on {format_value(money.get('network'))}"
        yield Text(plain_line(f"Payment channels, {named}, so far"), style="bold")
        states = (f"{state} {_format_state(money, state)}" for state in CLAIM_STATES)
        yield Text(f"{'':11} {', '.join(states)}")
        if money.get("withdrawing"):
            yield Text(plain_line(f"{'':11} payers who withdraw: {format_value(money['withdrawing'])}"))


def _format_others(row: Mapping[str, Any]) -> Iterator[Text]:
    """What came back of the charges with the net, and the other states that have calls, on a line below."""
    others = [
        f"{state} {_format_state(row, state)} ({_read_state(row, state)['calls']})"
        for state in ("refunded", *STATES[1:])
        if _read_state(row, state).get("calls")
    ]
    if _read_state(row, "refunded").get("calls"):
        others.insert(1, f"net {_format_state(row, 'net')}")
    if others:
        yield Text(f"{'':11} {', '.join(others)}", style="dim")


def draw_bar(amount: Decimal, largest: Decimal) -> str:
    """A bar of at most `BAR_WIDTH` blocks. An amount above zero has at least one."""
    if amount <= 0 or largest <= 0:
        return ""
    return "█" * max(1, int(amount * BAR_WIDTH / largest))


def _read_state(row: Mapping[str, Any], state: str) -> Mapping[str, Any]:
    return read_object(row.get(state))


def _read_amount(row: Mapping[str, Any], state: str) -> Decimal:
    try:
        amount = Decimal(format_value(_read_state(row, state).get("amount"), characters_max=100))
    except InvalidOperation:
        return Decimal(0)
    return amount if amount.is_finite() else Decimal(0)


def _format_state(row: Mapping[str, Any], state: str) -> str:
    return plain_line(format_value(_read_state(row, state).get("amount")))


def _group_of(row: Mapping[str, Any]) -> str:
    return format_value(row.get("apiId") or row.get("provider") or row.get("wallet"))


def _asset_of(row: Mapping[str, Any]) -> tuple[str, str]:
    return format_value(row.get("asset")), format_value(row.get("currency"))
