"""The output of the callers' and providers' commands: tables on a terminal that fit 80 columns, JSON for programs, and failures as sentences.

Text, numbers and symbols from a gateway, provider or node are untrusted. These commands print through `print_text`, `print_json` or a console of
`open_console`, which remove control characters, bidi controls and markup. The console leaves colours out where `NO_COLOR` is set.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from pydantic_core import from_json
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tollway.client import (
    CallerFailure,
    CallHeld,
    GatewayRefused,
    PaymentPending,
    PaymentRefused,
    StoreUnusable,
)
from tollway.client.safe_text import format_json, format_value, plain, plain_line
from tollway.discovery.search_text import explain_search
from tollway.errors import StorageUnavailable

JsonObject = Mapping[str, Any]
FIELD_ERRORS_MAX = 50
SENT_CHARACTERS_MAX = 60
HIDDEN_MEMBER = "/upstreamAuth"
_INDEX = re.compile(r"\.(0|[1-9][0-9]*)(?=\.|$)")


def is_for_people(*, as_json: bool) -> bool:
    """True on a terminal without `--json`: it gets tables. A pipe gets JSON."""
    return sys.stdout.isatty() and not as_json


class _PlainRenderable:
    """A renderable without control characters in its segments."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._inner, options):
            yield Segment(text if control else plain(text), style, control)


class _PlainTextHook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_PlainRenderable(renderable) for renderable in renderables]


def open_console(*, is_error: bool = False, soft_wrap: bool = False) -> Console:
    """A console on stdout or stderr that prints no control character."""
    console = Console(stderr=is_error, soft_wrap=soft_wrap)
    console.push_render_hook(_PlainTextHook())
    return console


def print_text(text: str, *, is_error: bool = False) -> None:
    """Prints lines without control characters."""
    (sys.stderr if is_error else sys.stdout).write(plain(text) + "\n")


def print_json(document: object, *, is_error: bool = False) -> None:
    """Prints JSON on stdout or stderr. Control characters are escaped, so that the value stays the same."""
    text = format_json(document, indent=None if is_error else 2)
    (sys.stderr if is_error else sys.stdout).write(text + "\n")


def print_search_results(page: JsonObject, details: Sequence[JsonObject], *, advice: str = "") -> None:
    """Prints the listings that a search found, in its order: two lines each, and the beginning of the description. `details`: of each listing; empty for one that no longer exists.
    `advice`: what to try, for a search that found nothing."""
    understood = explain_search(page)
    if page.get("total") == 0:
        print_foot(f"{understood} {advice}".strip())
        return
    if understood:
        print_foot(understood)
    console = open_console()
    for api, more in zip(list_objects(page.get("apis")), details, strict=False):
        words = [format_price(api), *_list_formula(api), *_describe_listing(api, more)]
        name = plain_line(format_value(api.get("name")))
        console.print(Text.assemble((plain_line(format_value(api.get("id"))), "bold"), "  ", name))
        console.print(Padding(Text(plain_line(" · ".join(words))), (0, 0, 0, 4), expand=False))
        description = plain_line(format_value(api.get("description") or ""))
        if description:
            console.print(Text(set_cell_size("    " + description, console.width).rstrip(), style="dim"))
    more_than = "more than " if page.get("totalIsLowerBound") is True else ""
    total = f"{more_than}{format_value(page.get('total', 0))} in all"
    print_foot(f"page {format_value(page.get('page', 1))}, {total}; tollway show ID explains one")


def _describe_listing(api: JsonObject, more: JsonObject) -> Iterator[str]:
    if more.get("status") == "paused":
        yield "PAUSED, refuses calls now"
    yield _format_quality(more.get("quality"))
    if more.get("verified") is True:
        yield "ownership verified"
    networks = [format_value(network) for network in _entries(more.get("networks"))]
    if networks:
        yield ", ".join(networks)
    fields = [format_value(field) for field in _entries(api.get("match"))]
    if fields:
        yield f"found in {', '.join(fields)}"
    elif api.get("match") == []:
        yield "similar in meaning"


def _format_quality(quality: object) -> str:
    """Such as `99.81 % of 12034, 120 ms`: the success rate and the number of paid calls in 30 days, and their median latency."""
    if not isinstance(quality, Mapping):
        return "not measured"
    rate, calls, latency_ms = (quality.get(name) for name in ("successRate30d", "calls30d", "p50Ms"))
    if not isinstance(rate, int | float) or not 0 <= rate <= 1 or not isinstance(calls, int):
        return "not measured"
    quality_text = f"{(Decimal(str(rate)) * 100).normalize():f} % of {calls}"
    return f"{quality_text}, {latency_ms} ms" if isinstance(latency_ms, int | float) else quality_text


def print_rows(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, below: Sequence[str] = ()
) -> None:
    """Prints a table in which every column but the last one is whole; the last one is cut at the width of the terminal. `below`: of each row, a line that
    is printed below it, indented and cut too."""
    console = open_console(soft_wrap=True)
    lines = [[plain_line(format_value(value)) for value in row] for row in (headings, *rows)]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(headings))]
    widths[-1] = max(len(headings[-1]), console.width - sum(widths[:-1]) - len(widths) + 1)
    for number, line in enumerate(lines):
        cells = [set_cell_size(text, width) for text, width in zip(line, widths, strict=True)]
        console.print(Text(" ".join(cells).rstrip(), style="bold" if number == 0 else ""))
        if below and number > 0:
            indented = f"    {plain_line(below[number - 1])}"
            console.print(Text(set_cell_size(indented, console.width).rstrip(), style="dim"))


def print_line(text: str, *, style: str = "", is_error: bool = False) -> None:
    """Prints one line, which wraps at the width of the terminal."""
    open_console(is_error=is_error).print(Text(plain_line(text), style=style))


def print_foot(foot: str) -> None:
    print_line(foot, style="dim")


def print_lines(lines: Iterable[Text | str]) -> None:
    """Prints lines that stay whole on a narrow terminal."""
    console = open_console(soft_wrap=True)
    for line in lines:
        console.print(line if isinstance(line, Text) else Text(line))


def print_entry(title: str, words: Iterable[object]) -> None:
    """Prints two lines: the title, and below it the words that are not empty."""
    print_line(title, style="bold")
    open_console().print(Text("    " + plain_line(" · ".join(format_value(word) for word in words if word))))


def print_filled_members(document: JsonObject) -> None:
    """Prints the members that have a value, each on one line."""
    print_members(
        {name: plain_line(format_value(value)) for name, value in document.items() if value not in (None, "")}
    )


def print_members(document: JsonObject) -> None:
    """Prints an object, one line for each member; nested values as JSON."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in document.items():
        table.add_row(*_cells((name, "null" if value is None else value)))
    open_console().print(table)


def print_document(document: JsonObject, *, as_json: bool) -> None:
    """Prints an object: a table on a terminal, JSON otherwise."""
    if is_for_people(as_json=as_json):
        print_members(document)
    else:
        print_json(document)


def print_failure(failure: Exception, *, as_json: bool, sent: JsonObject | None = None) -> None:
    """Prints a failure on stderr: sentences on a terminal, an object otherwise. `sent`: the body of the request, for the values of refused members."""
    described = _describe_failure(failure)
    if not is_for_people(as_json=as_json):
        print_json({"error": described}, is_error=True)
        return
    problem = {**described.get("problem", {}), "detail": described["detail"]}
    first, *rest = format_problem(problem, sent=sent)
    console = open_console(is_error=True)
    console.print(Text(first, style="red"))
    for line in rest:
        console.print(Text(line))
    for line in described.get("lines", ()):
        console.print(
            Text(plain_line(line) if line == line.lstrip() else f"  {plain_line(line)}"), soft_wrap=True
        )
    for name in ("transaction", "callUrl", "reason"):
        if described.get(name):
            console.print(Text(plain_line(f"{name}: {format_value(described[name])}"), style="dim"))


def format_problem(problem: JsonObject, *, sent: JsonObject | None = None) -> list[str]:
    """The lines of a problem document (RFC 9457) for a terminal: what is wrong, then each refused member or parameter with its reason and, where it is in
    `sent`, its value; then what to read or wait for. Pure."""
    detail = problem.get("detail") or problem.get("title") or "The gateway gave no reason."
    lines = [plain_line(format_value(detail))]
    errors = list_objects(problem.get("errors"))
    for error in errors[:FIELD_ERRORS_MAX]:
        reason = plain_line(format_value(error.get("detail") or error.get("code")))
        lines.append(f"  {_name_field(error)}: {reason}{_format_sent(error, sent)}")
    if len(errors) > FIELD_ERRORS_MAX:
        lines.append(f"  and {len(errors) - FIELD_ERRORS_MAX} more")
    if type(problem.get("retryAfterSeconds")) is int:
        lines.append(f"Try again in {problem['retryAfterSeconds']} s.")
    if problem.get("callId"):
        lines.append(f"The call: tollway history {quote_word(problem['callId'])}")
    return lines


def _format_sent(error: JsonObject, sent: JsonObject | None) -> str:
    """The refused value, short; empty where the body does not have it, and for a part of a secret."""
    pointer = error.get("pointer")
    if (
        sent is None
        or not isinstance(pointer, str)
        or not pointer.startswith("/")
        or HIDDEN_MEMBER in pointer
    ):
        return ""
    value: object = sent
    for part in pointer[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return ""
    text = plain_line(format_value(value))
    return f"; you sent {text[:SENT_CHARACTERS_MAX]}{'…' if len(text) > SENT_CHARACTERS_MAX else ''}"


def _name_field(error: JsonObject) -> str:
    """The name of a member by its JSON pointer, such as `operations[0].path`; or of a parameter."""
    pointer = error.get("pointer")
    if not isinstance(pointer, str):
        return plain_line(format_value(error.get("parameter"))) or "the request"
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.removeprefix("#").split("/")]
    return _INDEX.sub(r"[\1]", plain_line(".".join(parts[1:]))) or "the body"


def _describe_failure(failure: Exception) -> dict[str, Any]:
    code = getattr(failure, "code", "usage") if isinstance(failure, ValueError) else "usage"
    described: dict[str, Any] = {"code": code, "detail": str(failure), "retryable": False}
    if lines := getattr(failure, "lines", ()):
        described["lines"] = list(lines)
    if isinstance(failure, StorageUnavailable):
        is_unusable = isinstance(failure, StoreUnusable)
        described |= {
            "code": "store_unusable" if is_unusable else "store_unavailable",
            "retryable": not is_unusable,
        }
    if isinstance(failure, CallerFailure):
        described = {"code": failure.code, "detail": failure.detail, "retryable": failure.is_retryable}
        if failure.transaction is not None:
            described["transaction"] = str(failure.transaction)
    if isinstance(failure, GatewayRefused):
        described["problem"] = from_json(failure.problem.document)
    if isinstance(failure, PaymentRefused | PaymentPending):
        described["reason"] = failure.reason
    if isinstance(failure, CallHeld):
        described |= {"callId": failure.call_id, "callUrl": failure.call_url}
    return described


def quote_word(text: object) -> str:
    """An untrusted text as one word of a command that is pasted into a shell, without line ends and control characters."""
    return shlex.quote(plain_line(format_value(text)))


def format_price(api: JsonObject) -> str:
    """Such as `0.01 USDC`, and `up to 0.02 USDC` of a metered price."""
    price = f"{format_value(api.get('pricePerRequest'))} {format_value(api.get('currency'))}"
    return f"up to {price}" if read_object(api.get("pricing")).get("mode") == "metered" else price


def _list_formula(api: JsonObject) -> list[str]:
    formula = read_object(api.get("pricing")).get("formula")
    return [formula] if isinstance(formula, str) else []


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def read_object(value: object) -> JsonObject:
    """The value; without members where it is no object."""
    return value if isinstance(value, Mapping) else {}


def list_objects(value: object) -> list[JsonObject]:
    """The objects of a list; none where the value is not a list."""
    return [entry for entry in _entries(value) if isinstance(entry, Mapping)]


def _cells(values: Iterable[object]) -> list[Text]:
    return [Text(format_value(value)) for value in values]
