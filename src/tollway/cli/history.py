"""`tollway history`: the calls of a wallet as a table, and one call whole with what to do about it."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tollway.cli.csv_output import check_output, write_csv
from tollway.cli.inputs import (
    AsCsv,
    BooksOf,
    Caller,
    CsvFile,
    Rpc,
    Since,
    StoreFile,
    Until,
    Wait,
    caller_command,
    read_moment,
)
from tollway.cli.output import (
    list_objects,
    open_console,
    print_filled_members,
    print_foot,
    print_json,
    print_line,
    print_rows,
    quote_word,
    read_object,
)
from tollway.cli.refund import (
    REFUND,
    GivesCredit,
    NamedCalls,
    RefundChoice,
    Send,
    SentTransfer,
    Unasked,
    describe_refund,
    refund_calls,
)
from tollway.client import requests
from tollway.client.call_io import ControlRequest
from tollway.client.control import CallStatus, Role
from tollway.client.requests import GatewayDocument
from tollway.client.safe_text import format_value, plain_line

LIMIT_MAX = 1_000
"""The most calls of one list."""
PAGE_CALLS_MAX = 200
"""The most calls that a gateway gives in one page."""

RESOLVE = "resolve"
"""The word before a call that its provider decides."""

ADVICE = {
    "held": "Do not pay again. A repeat of the same request with the same proof can give it an outcome; the provider can decide it (tollway history resolve CALL); "
    "otherwise the price comes back as credit.",
    "released": "The price came back: it is credit for another call, or the authorisation stays unused.",
    "reorged": "The chain replaced the block of the payment. A payment that is gone is owed to the provider: pay it before the next call.",
}
"""What to do about a call, by the state of its payment."""
LOST_ADVICE = "A withdrawal won before the price was claimed, or the deposit left its chain. Only a further deposit into this channel pays it."
CHANNEL_HOLD_ADVICE = "Send the request again: the voucher of this call pays the repeat, or the next call on the channel, which releases this one. Its provider cannot charge it."
SETTLING_ADVICE = (
    "The signed payment is being settled: it is charged when the transfer is in a block, and released if that cannot happen any more. "
    "Read the call again in a few seconds: tollway history CALL."
)
PENDING_ADVICE = "The call is in progress. Read it again in a few seconds."


@caller_command()
def history(
    caller: Caller,
    call_id: Annotated[
        str | None,
        typer.Argument(metavar="[CALL]", help="Show this call, whole; without it, the newest calls."),
    ] = None,
    named_calls: NamedCalls = None,
    charge: Annotated[
        bool, typer.Option("--charge", help="With resolve: the API did its work, take the price.")
    ] = False,
    release: Annotated[
        bool, typer.Option("--release", help="With resolve: the API did nothing, give the price back.")
    ] = False,
    transaction: SentTransfer = None,
    send: Send = False,
    credit: GivesCredit = False,
    rpc: Rpc = "",
    store: StoreFile = None,
    wait_s: Wait = 180.0,
    yes: Unasked = False,
    api_id: Annotated[str | None, typer.Option("--api", help="Only calls of this listing.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="At most 1,000; --csv writes all.")] = 50,
    offset: Annotated[int, typer.Option("--offset")] = 0,
    status: Annotated[
        CallStatus | None, typer.Option("--status", help="pending, succeeded, failed or unknown.")
    ] = None,
    is_held: Annotated[bool, typer.Option("--held", help="Only calls whose price is held.")] = False,
    receipt_file: Annotated[
        Path | None,
        typer.Option("--receipt", metavar="FILE", help="Save the signed receipt of CALL; - prints it."),
    ] = None,
    role: Annotated[Role | None, typer.Option("--role", help="payer or provider.")] = None,
    since: Since = None,
    until: Until = None,
    wallet: BooksOf = None,
    is_csv: AsCsv = False,
    output: CsvFile = None,
) -> None:
    if call_id == REFUND or transaction is not None or send or credit:
        how = RefundChoice(transaction=transaction, is_sent=send, is_credit=credit)
        return refund_calls(caller, call_id, named_calls, how, rpc=rpc, store=store, wait_s=wait_s, yes=yes)
    held_call_id = read_held_call(named_calls)
    outcome = _read_outcome(call_id, held_call_id, charge=charge, release=release)
    check_output(is_csv=is_csv, output=output, as_json=caller.as_json)
    _check_options(receipt_file, call_id, outcome, is_other=is_held and status not in (None, "unknown"))
    shown: dict[str, Any] = {
        "api_id": api_id,
        "status": "unknown" if is_held else status,
        "role": role,
        "since": read_moment(since),
        "until": read_moment(until, is_end=True),
        "wallet": wallet,
    }
    with caller.open() as client:
        if outcome is not None and held_call_id is not None:
            found = client.fetch_document(requests.resolve_call(held_call_id, outcome))
        elif receipt_file is not None and call_id is not None:
            return save_receipt(client.fetch_document(requests.find_receipt(call_id)), receipt_file)
        elif call_id is not None:
            found = client.fetch_document(requests.find_call(call_id, wallet))
        elif is_csv:
            return write_csv(client.export_calls(**shown), output)
        else:
            found = read_calls(client.fetch_document, shown, limit=limit, offset=offset)
    if call_id is not None:
        caller.print(found, partial(print_call, is_decided=outcome is not None))
    else:
        caller.print(found, partial(print_held, now=datetime.now(UTC)) if is_held else print_calls)
    return None


def read_held_call(named_calls: Sequence[str] | None) -> str | None:
    """Raises ValueError for more than one call."""
    if named_calls is not None and len(named_calls) > 1:
        raise ValueError("decide one call at a time: tollway history resolve CALL")
    return named_calls[0] if named_calls else None


def _check_options(
    receipt_file: Path | None, call_id: str | None, outcome: str | None, *, is_other: bool
) -> None:
    """`is_other`: held calls of another status are asked for."""
    if is_other:
        raise ValueError("--held lists calls of the status unknown; leave --status out")
    if receipt_file is not None and (call_id is None or outcome is not None):
        raise ValueError("name the call: tollway history CALL --receipt FILE")


def read_calls(
    fetch: Callable[[ControlRequest], GatewayDocument], shown: Mapping[str, Any], *, limit: int, offset: int
) -> GatewayDocument:
    """The document of the list with up to `limit` calls, of as many pages as that takes. `shown`: the filter, with the names of `export_calls`. Raises
    ValueError for more than `LIMIT_MAX`."""
    if limit > LIMIT_MAX:
        raise ValueError(f"--limit is at most {LIMIT_MAX:,}; --csv writes all calls to a file")
    query: dict[str, object] = {
        "apiId": shown.get("api_id"),
        "limit": min(limit, PAGE_CALLS_MAX),
        "before": None,
        "offset": offset,
        "status": shown.get("status"),
        "role": shown.get("role"),
        "from": requests.format_moment("--since", shown.get("since")),
        "to": requests.format_moment("--until", shown.get("until")),
        "wallet": shown.get("wallet"),
    }
    first = fetch(requests.list_calls(query))
    page = calls = list_objects(first.get("calls"))
    while len(page) == PAGE_CALLS_MAX and len(calls) < limit:
        size, before = min(limit - len(calls), PAGE_CALLS_MAX), str(calls[-1].get("id"))
        query |= {"limit": size, "before": before, "offset": 0}
        page = list_objects(fetch(requests.list_calls(query)).get("calls"))
        calls = [*calls, *page]
    if len(calls) > PAGE_CALLS_MAX:
        first.update(calls=calls, limit=limit)
    return first


def _read_outcome(
    call_id: str | None, held_call_id: str | None, *, charge: bool, release: bool
) -> str | None:
    """The outcome that the provider decides; None for a command that only reads."""
    if call_id != RESOLVE:
        if held_call_id is not None or charge or release:
            raise ValueError("write: tollway history resolve CALL --charge, or --release")
        return None
    if held_call_id is None:
        raise ValueError(
            "name the call: tollway history resolve CALL; tollway history --held --role provider lists them"
        )
    if charge == release:
        raise ValueError("decide the call with --charge or with --release")
    return "consumed" if charge else "released"


def save_receipt(receipt: Mapping[str, Any], file: Path) -> None:
    """Writes the receipt to a new file, or prints it for `-`. Raises ValueError where the file exists: it may be an earlier receipt, for the books."""
    if str(file) == "-":
        print_json(receipt)
        return
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(json.dumps(receipt, ensure_ascii=False, indent=2) + "\n")
    except FileExistsError:
        raise ValueError(f"{file} exists, and a receipt does not replace it; name a new file") from None
    except OSError as exc:
        raise ValueError(f"{file} cannot be written: {exc.strerror}") from exc
    print_foot(
        f"Saved {file}. Verify it with: tollway receipt verify {quote_word(str(file))} --keys did.json"
    )


def print_calls(page: Mapping[str, Any]) -> None:
    """Prints a page of calls, newest first, with what each was charged and its request, and below them what to do about those that hold a price. Fits 80
    columns."""
    calls = list_objects(page.get("calls"))
    if page.get("total") == 0:
        print_foot("No calls.")
        return
    rows = [
        (
            format_time(call.get("createdAt"), is_short=True),
            call.get("id"),
            describe_state(call),
            format_charge(call),
            call.get("apiName") or call.get("apiId"),
        )
        for call in calls
    ]
    requests_made = [_format_request(call) for call in calls]
    print_rows(("time (UTC)", "call", "state", "charged", "listing"), rows, below=requests_made)
    print_foot(f"{format_value(page.get('total', 0))} in all; tollway history CALL shows one")
    for call in calls:
        if _read_payment(call).get("state") == "held":
            print_line(f"{format_value(call.get('id'))}: {describe_hold(call)}")


def print_held(page: Mapping[str, Any], *, now: datetime) -> None:
    """Prints held calls: how much each holds, for how long, whose it is; the sums by asset; what to do. Fits 80 columns."""
    calls = list_objects(page.get("calls"))
    if not calls:
        print_foot("No held calls.")
        return
    console = open_console(soft_wrap=True)
    for call in calls:
        age = format_age(call.get("createdAt"), now=now)
        until = format_time(_read_payment(call).get("heldUntil"))
        call_id = plain_line(format_value(call.get("id")))
        console.print(Text.assemble((plain_line(_format_price(call)), "bold"), f"  {age}  {call_id}"))
        console.print(Text(plain_line(f"    payer {format_value(call.get('payer'))}")))
        ends = f"until {until}" if until else "until its provider, the chain or a repeat decides"
        listing = format_value(call.get("apiName") or call.get("apiId"))[:40]
        console.print(Text(plain_line(f"    {listing}, held {ends}")))
    for held in sum_held(calls):
        print_foot(held)
    print_foot(f"{format_value(page.get('total', 0))} in all. {ADVICE['held']}")


def sum_held(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """How much the calls hold, for each currency and asset. Prices that are no numbers are left out."""
    sums: dict[tuple[str, str], tuple[int, Decimal]] = {}
    for call in calls:
        key = (format_value(call.get("currency")), format_value(_read_payment(call).get("network")))
        try:
            price = Decimal(format_value(call.get("price"), characters_max=100))
        except InvalidOperation:
            continue
        if price.is_finite():
            count, total = sums.get(key, (0, Decimal(0)))
            sums[key] = (count + 1, total + price)
    return [
        f"{count} {'call holds' if count == 1 else 'calls hold'} {total:f} {currency} on {network}"
        for (currency, network), (count, total) in sums.items()
    ]


def format_age(value: object, *, now: datetime) -> str:
    """The time since a moment of the wire, such as `3 h 12 min`; empty where it is no time."""
    try:
        minutes = int((now - datetime.fromisoformat(str(value)).astimezone(UTC)).total_seconds() // 60)
    except (ValueError, OverflowError):
        return ""
    days, hours = divmod(max(0, minutes) // 60, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{max(0, minutes)} min"


def print_call(call: Mapping[str, Any], *, is_decided: bool = False) -> None:
    """Prints one call whole, and what to do about it. `is_decided`: its provider decided it just now, so a pending one is being settled."""
    print_filled_members(_list_members(call))
    advice = SETTLING_ADVICE if is_decided and call.get("status") == "pending" else advise(call)
    if advice:
        print_line(advice)


def _list_members(call: Mapping[str, Any]) -> dict[str, object]:
    """The members of a call in reading order."""
    payment = _read_payment(call)
    return {
        "call": call.get("id"),
        "state": describe_state(call),
        "price": _format_price(call),
        "at most": _format_maximum(call),
        "used": describe_quantities(call),
        "listing": f"{format_value(call.get('apiName'))} ({format_value(call.get('apiId'))})",
        "request": _format_request(call, has_status=False),
        "response": call.get("httpStatus"),
        "error": call.get("error"),
        "payer": call.get("payer"),
        "provider": call.get("provider"),
        "payment": payment.get("state"),
        "refund": describe_refund(call) or None,
        "held until": format_time(payment.get("heldUntil")) or None,
        "rail": payment.get("rail"),
        "network": payment.get("network"),
        "transaction": payment.get("transaction"),
        "paid to": payment.get("payTo"),
        "channel": payment.get("channel"),
        "money": _describe_claim(payment) or None,
        "began": format_time(call.get("createdAt")),
        "ended": format_time(call.get("completedAt")),
        "latency": f"{call['latencyMs']} ms" if isinstance(call.get("latencyMs"), int) else None,
        "key": call.get("idempotencyKey"),
        "request id": call.get("requestId"),
    }


CLAIM_WORDS = {
    "unclaimed": "in the channel, not claimed yet",
    "claimed": "claimed, not paid out yet",
    "settled": "paid out to the provider",
    "lost": "lost",
}


def _describe_claim(payment: Mapping[str, Any]) -> str:
    """Where the price of a call on a channel is; empty for another call."""
    state = format_value(payment.get("claimState"))
    return CLAIM_WORDS.get(state, state)


def describe_state(call: Mapping[str, Any]) -> str:
    """The status of a call; `held` for one whose price is held without an outcome."""
    status = format_value(call.get("status"))
    return "held" if status == "unknown" and _read_payment(call).get("state") == "held" else status


def advise(call: Mapping[str, Any]) -> str:
    """What to do about a call; empty for a call that needs nothing."""
    state = _read_payment(call).get("state")
    if call.get("status") == "pending":
        return PENDING_ADVICE
    if state == "held":
        return describe_hold(call)
    if _read_payment(call).get("claimState") == "lost":
        return LOST_ADVICE
    return ADVICE.get(state, "") if isinstance(state, str) else ""


def describe_hold(call: Mapping[str, Any]) -> str:
    """How much a call holds, until when, and what to do."""
    if call.get("status") == "pending":
        return f"{_format_price(call)} is held while the call is in progress."
    if is_measuring(call):
        return f"{_format_price(call)} is held until the response ends: then the call costs what it has used, and the rest comes back."
    payment = _read_payment(call)
    until = format_time(payment.get("heldUntil"))
    limit = f" until {until}" if until else ""
    advice = CHANNEL_HOLD_ADVICE if payment.get("rail") == "channel" else ADVICE["held"]
    return (
        f"{_format_price(call)} is held{limit}: the API got the request, and its outcome is unknown. {advice}"
    )


def format_time(value: object, *, is_short: bool = False) -> str:
    """A time of the wire as `2026-11-23 19:53:11 UTC`, or short as `11-23 19:53`; the text itself where it is no time."""
    if not isinstance(value, str):
        return ""
    try:
        moment = datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        return value
    return moment.strftime("%m-%d %H:%M") if is_short else moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def format_charge(call: Mapping[str, Any]) -> str:
    """What a call was charged: its price; nothing for a released or a free one; `not yet` while its price is held."""
    state = _read_payment(call).get("state")
    if state == "held":
        return "not yet"
    return _format_price(call if state in ("charged", "reorged") else {**call, "price": "0"})


def _format_request(call: Mapping[str, Any], *, has_status: bool = True) -> str:
    """Such as `GET /quote/ETH · HTTP 200`, the maximum of a metered call, and the claim state of one on a channel."""
    request = f"{format_value(call.get('method'))} {format_value(call.get('path'))}"
    if not has_status:
        return request
    status, maximum = call.get("httpStatus"), _format_maximum(call)
    words = [request, *([f"HTTP {status}"] if isinstance(status, int) else [])]
    claim = format_value(_read_payment(call).get("claimState"))
    return " · ".join([*words, *([f"at most {maximum}"] if maximum else []), *([claim] if claim else [])])


def _format_price(call: Mapping[str, Any]) -> str:
    return f"{format_value(call.get('price'))} {format_value(call.get('currency'))}"


def _format_maximum(call: Mapping[str, Any]) -> str:
    """The maximum of a metered call; empty for a fixed price."""
    maximum = call.get("priceMax")
    return "" if maximum is None else f"{format_value(maximum)} {format_value(call.get('currency'))}"


def is_measuring(call: Mapping[str, Any]) -> bool:
    """Whether the response of a metered call has not ended: its price is not known."""
    is_held = _read_payment(call).get("state") == "held" or call.get("status") == "pending"
    return (
        is_held
        and call.get("status") != "unknown"
        and _format_maximum(call) != ""
        and call.get("quantities") is None
    )


def describe_quantities(call: Mapping[str, Any]) -> str:
    """What the response of a metered call reported, such as `prompt token 40, completion token 7`; empty where it reported nothing."""
    used = list_objects(call.get("quantities"))
    return ", ".join(f"{format_value(one.get('unit'))} {format_value(one.get('quantity'))}" for one in used)


def describe_cost(call: Mapping[str, Any]) -> str:
    """What a metered call cost, of its maximum, and what it used."""
    if is_measuring(call):
        return f"cost: at most {_format_maximum(call)}; its price is not known yet"
    used = describe_quantities(call)
    cost = format_value(call.get("price")) if _read_payment(call).get("state") != "released" else "0"
    return f"cost: {cost} of at most {_format_maximum(call)}{f' ({used})' if used else ''}"


def _read_payment(call: Mapping[str, Any]) -> Mapping[str, Any]:
    return read_object(call.get("payment"))
