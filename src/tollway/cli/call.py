"""`tollway call`: the request from options as curl has them, the progress of its payment, the response as it arrives, and the operations that exist where the
path or the method of the request does not, or where the command names no path.
"""

import contextlib
import json
import mimetypes
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self, TextIO
from urllib.parse import quote, urlencode

import typer
from pydantic_core import from_json
from rich.text import Text

from tollway.cli.history import describe_cost, is_measuring
from tollway.cli.inputs import (
    DEFAULT_GATEWAY,
    LATER,
    REFUSED,
    AllowHttp,
    AsJson,
    Budget,
    Chains,
    Gateway,
    KeyFile,
    MaxDeposit,
    MaxFee,
    MaxPrice,
    RailOption,
    Rpc,
    StoreFile,
    Wait,
    explained_caller_failures,
    has_key,
    read_content,
    read_headers,
    read_session,
)
from tollway.cli.output import (
    is_for_people,
    open_console,
    print_failure,
    print_line,
    quote_word,
    read_object,
)
from tollway.cli.response_output import ResponseOutput, print_payment
from tollway.client import (
    CallerFailure,
    CallResponse,
    GatewayRefused,
    PaymentProgress,
    PaymentQuote,
    TollwayClient,
    requests,
)
from tollway.client.deadline import within
from tollway.client.operation_list import (
    describe_entry,
    find_near_operation,
    list_beside_root,
    list_operations,
    order_by_similarity,
)
from tollway.client.responses import is_from_gateway, is_retryable_response
from tollway.client.safe_text import plain_line

OPERATIONS_PRINTED_MAX = 20
LINE_CHARACTERS_MAX = 2_000
NO_SUCH_OPERATION = frozenset({404, 405})
COST_PAUSES_S = (0, 0.1, 0.2, 0.3)
COST_DEADLINE_S = 1.0
"""A metered call has its price a moment after its response has ended."""
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"


FormPart = tuple[str, tuple[str | None, bytes] | tuple[str | None, bytes, str]]
"""The name of a part, and its file name, its content and perhaps its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBody:
    """The body of a call and the headers that it implies: `content`, or the parts of a form (`files` of httpx), or neither."""

    content: bytes | None = None
    files: tuple[FormPart, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


ListingId = Annotated[str, typer.Argument(metavar="ID", help="The listing's id.")]
TargetPath = Annotated[
    str | None, typer.Argument(help="Path and query under the listing, such as /quote/ETH.")
]
Method = Annotated[str | None, typer.Option("--request", "-X", help="GET, or POST with --data or --form.")]
Body = Annotated[
    str | None,
    typer.Option("--data", "-d", help="The body; @FILE reads it, @- stdin. JSON gets its content type."),
]
FormParts = Annotated[
    list[str] | None,
    typer.Option(
        "--form",
        "-F",
        help="A part of a multipart form: name=value, name=@FILE;type=…, name=<FILE. Repeatable.",
    ),
]
QueryParameters = Annotated[
    list[str] | None, typer.Option("--query", help="A query parameter: name=value. Repeatable.")
]
HeaderLines = Annotated[list[str] | None, typer.Option("--header", "-H", help="Name: value, repeatable.")]
Prepay = Annotated[
    int, typer.Option("--prepay", min=1, help="Pay for this number of calls with one transaction.")
]
IdempotencyKey = Annotated[
    str | None, typer.Option("--idempotency-key", help="A repeat with this key is one call, paid once.")
]
OutputFile = Annotated[
    str | None,
    typer.Option("--output", "-o", help="Write the response body to this file, as it arrives; - is stdout."),
]


def call(
    ctx: typer.Context,
    api_id: ListingId,
    path: TargetPath = None,
    method: Method = None,
    content: Body = None,
    form: FormParts = None,
    query: QueryParameters = None,
    header: HeaderLines = None,
    max_price: MaxPrice = None,
    max_fee: MaxFee = None,
    max_deposit: MaxDeposit = None,
    budget: Budget = None,
    prepay: Prepay = 1,
    rail: RailOption = "auto",
    idempotency_key: IdempotencyKey = None,
    output: OutputFile = None,
    rpc: Rpc = "",
    chain: Chains = None,
    wait_s: Wait = 180.0,
    store: StoreFile = None,
    gateway: Gateway = DEFAULT_GATEWAY,
    allow_http: AllowHttp = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Exit code 0: done; 1: refused or failed; 2: wrong usage; 3: try again later."""
    with (
        explained_caller_failures(as_json=as_json),
        ProgressLine(sys.stderr, has_quote=is_for_people(as_json=as_json)) as progress,
        ResponseOutput(output, as_json=as_json) as response_output,
    ):
        body = read_body(content, form or [])
        session = read_session(ctx, before_signing=progress.keep_quote, on_progress=progress.show)
        target = add_query(path or "", query or [])
        headers = {**body.headers, **read_headers(header or [])}
        with session.open(is_signing=has_key(key_file)) as client:
            if path is None:
                check_root(client.fetch_agent_document(api_id))
            with client.stream(
                api_id,
                target,
                method=method,
                content=body.content,
                files=list(body.files) or None,
                headers=headers,
                prepay=prepay,
                idempotency_key=idempotency_key,
            ) as response:
                progress.end()
                _write_response(response, response_output, as_json=as_json)
                if is_measured_later(response) and not as_json and output != "-":
                    _print_cost(client, response)
                if response.status_code in NO_SUCH_OPERATION and is_for_people(as_json=as_json):
                    _print_operations(client, api_id, method=response.request.method, path=path or "")
    if response.is_error:
        raise typer.Exit(LATER if is_retryable_response(response) else REFUSED)


def is_measured_later(response: CallResponse) -> bool:
    """Whether the end of the body has decided what the call cost."""
    return response.payment.price_max is not None and response.payment.state == "held"


def _print_cost(client: TollwayClient, response: CallResponse) -> None:
    """Prints on stderr what a metered call cost. The gateway writes the price at the end of the body, so the record may follow it a little later. A failure
    prints the maximum: the call is done."""
    payment = response.payment
    with contextlib.suppress(CallerFailure), within(COST_DEADLINE_S):
        for pause_s in COST_PAUSES_S:
            time.sleep(pause_s)
            call = client.fetch_document(requests.find_call(payment.call_id or ""))
            if not is_measuring(call):
                print_line(plain_line(describe_cost(call)), is_error=True)
                return
    line = f"cost: at most {payment.price_max}; its price: tollway history {payment.call_id}"
    print_line(plain_line(line), is_error=True)


def _write_response(response: CallResponse, output: ResponseOutput, *, as_json: bool) -> None:
    """A refusal of the gateway is no response of the API: without `--json` it is a failure on stderr, and never goes into an output file."""
    is_refused = response.is_error and is_from_gateway(response)
    if is_refused and (output.output is not None or not as_json):
        print_failure(GatewayRefused(response.status_code, _read_problem(response)), as_json=as_json)
        if is_for_people(as_json=as_json) and output.output != "-":
            print_payment(response)
        return
    output.write(response)
    if not as_json and output.output != "-":
        print_payment(response)


def _read_problem(response: CallResponse) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        problem = from_json(response.content)
        if isinstance(problem, dict):
            return problem
    return {}


# ---- The request.


def read_body(content: str | None, form: Sequence[str]) -> CallBody:
    """The body of `--data` or `--form`, with its content type. Raises ValueError."""
    if form and content is not None:
        raise ValueError("give either --data or --form, not both")
    if form:
        return CallBody(files=tuple(read_part(text) for text in form))
    body = read_content(content)
    if content is None or body is None:
        return CallBody()
    return CallBody(content=body, headers=_guess_headers(content, body))


def _guess_headers(given: str, body: bytes) -> dict[str, str]:
    """The headers that curl's `--json` sets where the body is a JSON object or array; else the type of the file by its name, or of a form as curl's `--data`
    sends it. `--header` replaces them."""
    if body.lstrip()[:1] in (b"{", b"["):
        with contextlib.suppress(ValueError):
            from_json(body)
            return {"Content-Type": _JSON, "Accept": _JSON}
    if not given.startswith("@"):
        return {"Content-Type": _FORM} if "=" in given and not set(given) & set(" \n") else {}
    kind, coding = mimetypes.guess_type(given[1:])
    return {"Content-Type": kind} if kind is not None and coding is None else {}


def add_query(path: str, given: Sequence[str]) -> str:
    """The path with `name=value` parameters after its own query, percent-encoded, in their order. Raises ValueError."""
    parameters: list[tuple[str, str]] = []
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ValueError("write a query parameter as name=value")
        parameters.append((name, value))
    if not parameters:
        return path
    return f"{path}{'&' if '?' in path else '?'}{urlencode(parameters, quote_via=quote)}"


def read_part(text: str) -> FormPart:
    """A part of a form as curl writes it: `name=value`, `name=@FILE` (a file), `name=<FILE` (its content as a value), with `;type=` and `;filename=` after the last two.
    Raises ValueError."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError("write a part of a form as name=value, name=@FILE or name=<FILE")
    if value[:1] not in ("@", "<"):
        return name, (None, value.encode())
    path, *parameters = value[1:].split(";")
    given = {key.strip(): text for key, _, text in (one.partition("=") for one in parameters)}
    unknown = sorted(given.keys() - {"type", "filename"})
    if unknown:
        raise ValueError(f"a part of a form takes ;type= and ;filename=, not {unknown[0]!r}")
    content = read_content(f"@{path}") or b""
    guessed = mimetypes.guess_type(path)[0] or "application/octet-stream"
    if value.startswith("<"):
        return name, (None, content, given["type"]) if "type" in given else (None, content)
    file_name = given.get("filename") or ("-" if path == "-" else Path(path).name)
    return name, (file_name, content, given.get("type") or guessed)


# ---- The progress of a payment.

_TO_LINE_START, _CLEAR_REST = "\r", "\x1b[K"


class ProgressLine:
    """The progress of a payment on a terminal: one line on stderr that the next state overwrites. A stream that is no terminal gets nothing.

    Where the cursor cannot move (`TERM=dumb`), each state is a line of its own; so is what keeps the gateway from deciding, everywhere. The last state
    stays on the screen, because it names the transaction. `has_quote`: also prints the payment itself, once it is on its way: a payment that the
    limits of the caller or the gateway refuse is never printed. Used by one thread.
    """

    def __init__(self, stream: TextIO, *, has_quote: bool = False) -> None:
        self._stream = stream
        self._has_quote = has_quote
        self._quote: PaymentQuote | None = None
        self._is_terminal = stream.isatty()
        self._can_overwrite = os.environ.get("TERM", "dumb") != "dumb"
        self._last = ""
        self._notice = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def keep_quote(self, quote: PaymentQuote) -> None:
        """Keeps the payment that is signed next for `show`."""
        self._quote = quote

    def show(self, progress: PaymentProgress) -> None:
        """Prints a state that differs from the last one; before it the kept payment, where it is stored (a transfer) or accepted (an authorisation). After a
        charge the response says the rest."""
        is_under_way = progress.is_accepted or progress.is_charged or progress.confirmations is not None
        if self._quote is not None and is_under_way:
            self._print_quote(self._quote)
            self._quote = None
        if progress.is_charged:
            return
        line = plain_line(progress.describe())
        if not self._is_terminal or line in (self._last, self._notice):
            return
        if progress.notice is not None:
            self.end()
            self._stream.write(f"{line}\n")
            self._stream.flush()
            self._notice = line
            return
        if self._can_overwrite:
            self._stream.write(f"{_TO_LINE_START}{line}{_CLEAR_REST}")
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()
        self._last = line

    def _print_quote(self, quote: PaymentQuote) -> None:
        if not self._has_quote:
            return
        if self._last and self._can_overwrite:
            self._stream.write(f"{_TO_LINE_START}{_CLEAR_REST}")
            self._stream.flush()
        self._last = ""
        print_line(quote.describe(), style="dim", is_error=True)

    def end(self) -> None:
        """Ends the line, so that the next output begins a new one."""
        if self._last and self._can_overwrite:
            self._stream.write("\n")
            self._stream.flush()
        self._last = ""


# ---- The operations that exist.


class PathMissing(ValueError):
    """The command names no path, and the API has operations but none at `/`. Nothing was sent. `lines`: the operations, and a command."""

    code = "path_missing"

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("Name the path of an operation. Nothing was sent and nothing is paid.")
        self.lines = tuple(lines)


def check_root(document: Mapping[str, Any]) -> None:
    """Raises `PathMissing` where an API has operations, none of them at `/`. `document`: for agents, or the details of a listing. A call of the root would cost the price."""
    operations, more = list_beside_root(document)
    if not operations:
        return
    lines = ["This API has these operations:", *(f"  {describe_entry(one)}" for one in operations)]
    api_id = document.get("id")
    if more:
        lines.append(f"  and {more} more: tollway show {quote_word(api_id)}")
    command = format_call_line(api_id, operations[0])
    raise PathMissing(lines if command is None else [*lines, f"For example: {command}"])


def format_call_line(api_id: object, operation: Mapping[str, Any]) -> str | None:
    """The command that calls an operation of an agent document by its example, or by the template of its path; None for one that cannot be written in
    `LINE_CHARACTERS_MAX` printable characters, or that would read a file. Each word is quoted for a shell: the texts are a provider's."""
    example = read_object(operation.get("example"))
    body, has_body = example.get("body"), "body" in example
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    method, target = str(operation.get("method")), str(example.get("target", operation.get("path")))
    if not target.startswith(("/", "?")) or text.startswith("@") or str(api_id).startswith("-"):
        return None
    words = ["tollway", "call", str(api_id), target]
    if method not in ("GET", "POST") or (method == "POST" and not has_body):
        words += ["-X", method]
    words += ["-d", text] if has_body else []
    words += [
        word
        for name, value in read_object(example.get("headers")).items()
        for word in ("-H", f"{name}: {value}")
    ]
    line = shlex.join(words)
    return line if len(line) <= LINE_CHARACTERS_MAX and plain_line(line) == line else None


def _print_operations(client: TollwayClient, api_id: str, *, method: str, path: str) -> None:
    """Prints the operations of the listing on stderr, the nearest one first. A failure prints nothing: the refusal is printed already."""
    try:
        listing = client.fetch_document(requests.show_listing(api_id))
    except CallerFailure:
        return
    console = open_console(is_error=True)
    for line in describe_operations(listing, method=method, path=path):
        console.print(Text(line))


def describe_operations(listing: Mapping[str, Any], *, method: str, path: str) -> list[str]:
    """The nearest operation to a request, and the operations with their prices: all in their order, or of many the nearest ones. Empty for a listing
    without operations. Pure."""
    operations = list_operations(listing)
    if not operations:
        return []
    near = find_near_operation(operations, method=method, path=path)
    lines = [] if near is None else [f"Did you mean {near}?"]
    more = len(operations) - OPERATIONS_PRINTED_MAX
    if more <= 0:
        return [*lines, "This API has these operations:", *(f"  {one.describe()}" for one in operations)]
    nearest = order_by_similarity(operations, method=method, path=path)[:OPERATIONS_PRINTED_MAX]
    return [
        *lines,
        f"Of the {len(operations)} operations of this API, these are nearest:",
        *(f"  {one.describe()}" for one in nearest),
        f"  and {more} more: tollway show {quote_word(listing.get('id'))}",
    ]
