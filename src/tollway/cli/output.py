"""The output of the callers' and providers' commands: tables and outlines on a terminal, JSON for programs, and the file of a response.

Text, numbers and symbols from a gateway, provider or node are untrusted. These commands print through `print_text`, `print_json` or a console of
`open_console`, which remove control characters, bidi controls and markup. In an outline each text is under its member name, so that no untrusted line
looks like a line of the command.

An output file is opened before the request is sent, because the response is paid for. A response that cannot be written then goes into a
temporary file, and the command names it.
"""

import base64
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pydantic_core import from_json
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tollway.client import (
    CallerFailure,
    CallHeld,
    CallResponse,
    GatewayRefused,
    PaymentQuote,
    PaymentRefused,
    StoreUnusable,
)
from tollway.client.fee_limit import format_fee
from tollway.client.responses import read_json
from tollway.client.safe_text import format_json, format_value, plain, plain_line
from tollway.client.steps import SignedAuthorization, Transfer
from tollway.client.x402 import SettlementReceipt
from tollway.errors import StorageUnavailable
from tollway.money import format_decimal

JsonObject = Mapping[str, Any]
PRINTED_BYTES_MAX = 200_000
"""Bytes of a text response that a terminal shows."""
_TEXT_TYPES = ("text/", "application/json", "application/problem+json", "application/xml", "application/yaml")


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


def print_search_results(page: JsonObject, details: Sequence[JsonObject]) -> None:
    """Prints the listings that a search found, in its order. `details`: of each listing; empty for one that no longer exists."""
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "name", "price", "networks", "quality", "verified", "found in"):
        table.add_column(heading, no_wrap=heading in ("id", "price"), overflow="fold")
    for api, more in zip(_parts(page.get("apis")), details, strict=False):
        words = (
            api.get("id"),
            plain_line(format_value(api.get("name"))),
            _format_price(api),
            "\n".join(format_value(network) for network in _entries(more.get("networks"))),
            _format_quality(more.get("quality")),
            "yes" if more.get("verified") is True else "no",
            ", ".join(format_value(field) for field in _entries(api.get("match"))),
        )
        table.add_row(*_cells(words))
    more_than = "more than " if page.get("totalIsLowerBound") is True else ""
    _print_page(
        table,
        f"page {format_value(page.get('page', 1))}, {more_than}{format_value(page.get('total', 0))} in all",
    )


def _format_quality(quality: object) -> str:
    """Such as `99.81 % of 12034, 120 ms`: the success rate and the number of paid calls in 30 days, and their median latency."""
    if not isinstance(quality, Mapping):
        return "not measured"
    rate, calls, latency_ms = (quality.get(name) for name in ("successRate30d", "calls30d", "p50Ms"))
    if not isinstance(rate, int | float) or not 0 <= rate <= 1 or not isinstance(calls, int):
        return "not measured"
    quality_text = f"{(Decimal(str(rate)) * 100).normalize():f} % of {calls}"
    return f"{quality_text}, {latency_ms} ms" if isinstance(latency_ms, int | float) else quality_text


def print_calls(page: JsonObject) -> None:
    """Prints a page of calls, newest first."""
    table = Table(box=None, pad_edge=False)
    for heading in ("time", "api", "request", "status", "price", "payment", "call"):
        table.add_column(heading)
    for call in _parts(page.get("calls")):
        payment = call.get("payment")
        words = (
            call.get("createdAt"),
            call.get("apiName"),
            f"{format_value(call.get('method'))} {format_value(call.get('path'))}",
            f"{format_value(call.get('status'))} {format_value(call.get('httpStatus'))}",
            f"{format_value(call.get('price'))} {format_value(call.get('currency'))}",
            payment.get("state") if isinstance(payment, Mapping) else None,
            call.get("id"),
        )
        table.add_row(*_cells(words))
    _print_page(table, f"{format_value(page.get('total', 0))} in all")


def _print_page(table: Table, foot: str) -> None:
    console = open_console()
    console.print(table)
    console.print(Text(plain_line(foot), style="dim"))


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


def print_response(response: CallResponse) -> None:
    """Prints the body on stdout, and its cost on stderr, which a pipe does not get."""
    kind = response.headers.get("content-type", "")
    if kind.startswith(_TEXT_TYPES):
        text = response.content[:PRINTED_BYTES_MAX].decode(response.encoding or "utf-8", "replace")
        rest_bytes = len(response.content) - PRINTED_BYTES_MAX
        more = f"\n({rest_bytes} more bytes; write them to a file with -o FILE)" if rest_bytes > 0 else ""
        print_text(f"{text}{more}")
    elif response.content:
        print_text(
            f"({len(response.content)} bytes of {format_value(kind) or 'unknown type'}; write them to a file with -o FILE)"
        )
    payment = response.payment
    words = [f"HTTP {response.status_code}", f"payment {payment.state}"]
    words += [f"price {payment.price}"] if payment.price else []
    words += [f"credit left {payment.credit_remaining}"] if payment.credit_remaining else []
    words += [f"rail {payment.rail}"] if payment.rail else []
    words += [f"network fee at most {payment.fee_max}"] if payment.fee_max else []
    words += [f"paid by {payment.transaction}"] if payment.transaction else []
    words += [f"call {payment.call_id}"] if payment.call_id else []
    open_console(is_error=True).print(Text(plain_line(" · ".join(words)), style="dim"))


def describe_response(response: CallResponse) -> dict[str, Any]:
    """A response as JSON. `body` is JSON for a JSON response and text for a text response; other bytes are in `bodyBase64`."""
    kind = response.headers.get("content-type", "")
    receipt = response.payment.receipt
    payment = {_camel(name): value for name, value in asdict(response.payment).items()}
    described: dict[str, Any] = {
        "status": response.status_code,
        "headers": dict(response.headers),
        "payment": {**payment, "receipt": None if receipt is None else _describe_receipt(receipt)},
    }
    if kind.partition(";")[0].endswith("json"):
        try:
            return {**described, "body": read_json(response.content)}
        except ValueError:
            pass
    if not response.content or kind.startswith(_TEXT_TYPES):
        return {**described, "body": response.text}
    return {**described, "bodyBase64": base64.b64encode(response.content).decode()}


def _describe_receipt(receipt: SettlementReceipt) -> dict[str, Any]:
    """The receipt with the member names of x402; absent members are absent."""
    quality_text = {
        "success": receipt.is_success,
        "transaction": None if receipt.transaction is None else str(receipt.transaction),
        "network": receipt.network,
        "payer": receipt.payer,
        "amount": receipt.amount,
        "errorReason": receipt.reason,
    }
    return {name: value for name, value in quality_text.items() if value is not None}


def describe_payment(payment: Transfer) -> dict[str, str | None]:
    """A payment of the wallet as JSON."""
    decimals = payment.asset.decimals
    return {
        "rail": "tx",
        "transaction": str(payment.tx_hash),
        "network": payment.asset.network,
        "gateway": payment.gateway,
        "payTo": str(payment.pay_to),
        "amount": format_decimal(payment.amount, decimals=decimals),
        "left": format_decimal(payment.rest, decimals=decimals),
        "currency": payment.asset.symbol,
        "feeMax": None if payment.fee_max_wei is None else format_fee(payment.chain_id, payment.fee_max_wei),
        "state": payment.state.value,
    }


def describe_authorization(signed: SignedAuthorization) -> dict[str, str | None]:
    """An authorisation of the wallet as JSON, without its proof."""
    return {
        "rail": "x402",
        "authorization": signed.name(),
        "transaction": None if signed.tx_hash is None else str(signed.tx_hash),
        "network": signed.asset.network,
        "gateway": signed.gateway,
        "payTo": str(signed.pay_to),
        "amount": format_decimal(signed.amount, decimals=signed.asset.decimals),
        "currency": signed.asset.symbol,
        "state": signed.state.value,
    }


def print_quote(quote: PaymentQuote) -> None:
    """Prints a payment on stderr before it is signed."""
    open_console(is_error=True).print(Text(plain_line(quote.describe()), style="dim"))


def print_failure(failure: Exception, *, as_json: bool) -> None:
    """Prints a failure on stderr: a sentence on a terminal, an object otherwise."""
    described = _describe_failure(failure)
    if is_for_people(as_json=as_json):
        console = open_console(is_error=True)
        console.print(Text(format_value(described["detail"]), style="red"))
        for name in ("transaction", "callUrl", "reason"):
            if described.get(name):
                console.print(Text(plain_line(f"{name}: {format_value(described[name])}"), style="dim"))
    else:
        print_json({"error": described}, is_error=True)


def _describe_failure(failure: Exception) -> dict[str, Any]:
    code = getattr(failure, "code", "usage") if isinstance(failure, ValueError) else "usage"
    described: dict[str, Any] = {"code": code, "detail": str(failure), "retryable": False}
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
    if isinstance(failure, PaymentRefused):
        described["reason"] = failure.reason
    if isinstance(failure, CallHeld):
        described |= {"callId": failure.call_id, "callUrl": failure.call_url}
    return described


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _format_price(api: JsonObject) -> str:
    return f"{format_value(api.get('pricePerRequest'))} {format_value(api.get('currency'))}"


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _parts(value: object) -> list[JsonObject]:
    """The objects of a list; none where the value is not a list."""
    return [entry for entry in _entries(value) if isinstance(entry, Mapping)]


def _cells(values: Iterable[object]) -> list[Text]:
    return [Text(format_value(value)) for value in values]


DEPTH_MAX = 16
SCHEMA_DEPTH_MAX = 3
FLAT_MEMBERS_MAX, FLAT_ENTRIES_MAX, FLAT_CHARACTERS_MAX = 3, 8, 60
INDENT = "  "
QUOTED = "│ "
"""Prefix of the second and every later line of one text."""


MACHINE_MEMBERS = frozenset(
    {"eip712", "payload", "headers", "accepted", "extra", "untrusted", "outputSchema"}
)
"""Members for programs, which `--json` prints."""

_SCHEMA_NAMES = frozenset({"inputSchema", "schema"})


def print_outline(document: Mapping[str, Any]) -> None:
    console = open_console()
    for line in format_outline(document):
        console.print(line, soft_wrap=True)
    console.print(Text("--json prints all members", style="dim"))


def format_outline(document: Mapping[str, Any]) -> list[Text]:
    """The lines of an outline. Pure."""
    return list(_members(document, depth=0))


def _members(document: Mapping[str, Any], *, depth: int) -> Iterator[Text]:
    for name, value in document.items():
        if name not in MACHINE_MEMBERS and not _is_nothing(value):
            yield from _named(name, value, depth=depth)


def _is_nothing(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(member is None for member in value.values())
    return value is None or value == []


def _named(name: str, value: object, *, depth: int) -> Iterator[Text]:
    lead, title = INDENT * depth, plain_line(name)
    short = _in_one_line(name, value, depth=depth)
    if short is not None:
        first, *rest = short.split("\n")
        yield Text.assemble(lead, (f"{title}  ", "bold"), first)
        yield from (Text(f"{lead}{INDENT}{QUOTED}{line}") for line in rest if line.strip())
        return
    yield Text.assemble(lead, (title, "bold"))
    if isinstance(value, Mapping):
        yield from _members(value, depth=depth + 1)
    elif isinstance(value, list):
        for entry in value:
            yield from _entry(entry, depth=depth + 1)


def _entry(value: object, *, depth: int) -> Iterator[Text]:
    """An entry of a list: its first line starts with a dash, the others are indented."""
    short = _in_one_line("", value, depth=depth)
    if short is not None:
        lines = [Text(" ".join(short.split()))]
    elif isinstance(value, Mapping):
        lines = list(_members(value, depth=0))
    else:
        lines = [Text(_format_short(value))]
    for number, line in enumerate(lines):
        yield Text.assemble(INDENT * depth, "- " if number == 0 else INDENT, line)


def _in_one_line(name: str, value: object, *, depth: int) -> str | None:
    """A scalar, or a short nested value, on one line; None for a value that needs an outline of its own."""
    if not isinstance(value, Mapping | list):
        return _format_scalar(value)
    if isinstance(value, Mapping):
        if name in _SCHEMA_NAMES:
            return _format_schema(value)
        if {"rail", "network", "amount", "payTo"} <= value.keys():
            return _format_option(value)
    entries = list(value.values()) if isinstance(value, Mapping) else value
    is_flat = not any(isinstance(entry, Mapping | list) for entry in entries)
    most = FLAT_MEMBERS_MAX if isinstance(value, Mapping) else FLAT_ENTRIES_MAX
    length = sum(len(_format_scalar(entry)) for entry in entries)
    if depth >= DEPTH_MAX or (is_flat and len(entries) <= most and length <= FLAT_CHARACTERS_MAX):
        return _format_short(value)
    return None


def _format_option(option: Mapping[str, Any]) -> str:
    """A payment option, such as `x402: 10000 units of USDC (6 decimals) on eip155:8453 to 0x…`."""
    words = {name: plain_line(str(option.get(name))) for name in ("rail", "amount", "symbol", "decimals")}
    place = {name: plain_line(str(option.get(name))) for name in ("network", "payTo")}
    return (
        f"{words['rail']}: {words['amount']} units of {words['symbol']} ({words['decimals']} decimals) "
        f"on {place['network']} to {place['payTo']}"
    )


def _format_schema(schema: object, *, depth: int = 0) -> str:
    """The members of a schema, required ones with a star: `city* string, days integer`."""
    if not isinstance(schema, Mapping):
        return "anything"
    properties, required = schema.get("properties"), schema.get("required")
    names = required if isinstance(required, list) else []
    if isinstance(properties, Mapping) and properties and depth < SCHEMA_DEPTH_MAX:
        parts = [
            f"{plain_line(str(name))}{'*' if name in names else ''} {_format_schema(part, depth=depth + 1)}"
            for name, part in properties.items()
        ]
        return ", ".join(parts) if depth == 0 else "{" + ", ".join(parts) + "}"
    if isinstance(schema.get("enum"), list):
        return "|".join(plain_line(str(value)) for value in schema["enum"])
    if depth < SCHEMA_DEPTH_MAX and isinstance(schema.get("items"), Mapping):
        return f"list of {_format_schema(schema['items'], depth=depth + 1)}"
    kind = schema.get("type", "anything")
    return plain_line("|".join(map(str, kind)) if isinstance(kind, list) else str(kind))


def _format_short(value: object) -> str:
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{plain_line(str(name))}: {_format_short(v)}" for name, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_format_short(entry) for entry in value) + "]"
    return " ".join(_format_scalar(value).split())


def _format_scalar(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else format_value(value)


class ResponseNotWritten(CallerFailure):
    """The call is done, and its response cannot be written to the output."""

    code = "answer_not_written"


class ResponseOutput:
    """Writes one response, once. `output` None: as text or JSON on stdout; `-`: its bytes on stdout, or its text on a terminal; else a file, which is replaced
    once the response is whole. Raises ValueError on entry for a file that cannot be written."""

    def __init__(self, output: str | None, *, as_json: bool) -> None:
        self._output = output
        self._as_json = as_json
        self._target: Path | None = None
        self._file: IO[bytes] | None = None
        self._new_file: Path | None = None

    def __enter__(self) -> Self:
        if self._output is not None and self._output != "-":
            try:
                self._open(Path(self._output).resolve())
            except (OSError, RuntimeError) as exc:
                reason = exc.strerror if isinstance(exc, OSError) else "the link points to itself"
                raise ValueError(f"{self._output} cannot be written: {reason}; nothing was sent") from exc
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        if self._new_file is not None:
            self._new_file.unlink(missing_ok=True)

    def write(self, response: CallResponse) -> None:
        """Raises `ResponseNotWritten` after the response is saved in a temporary file."""
        try:
            self._write(response)
        except BrokenPipeError:
            raise ResponseNotWritten(
                "The program that reads this command's output closed the pipe."
            ) from None
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            raise ResponseNotWritten(
                f"The response cannot be written ({reason}). {_save_response(response.content)}"
            ) from exc

    def _open(self, target: Path) -> None:
        self._target = target
        mode = target.stat().st_mode if target.exists() else None
        if mode is None or stat.S_ISREG(mode):
            if mode is not None and not os.access(target, os.W_OK):
                raise PermissionError(13, "Permission denied")
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".tollway-", delete=False) as made:
                self._new_file = Path(made.name)
            self._new_file.chmod(stat.S_IMODE(mode) if mode is not None else 0o666 & ~_read_umask())
            self._file = self._new_file.open("wb")
        else:
            self._file = target.open("wb")  # a device or a pipe; raises for a folder

    def _write(self, response: CallResponse) -> None:
        if self._file is not None:
            self._file.write(response.content)
            self._file.close()
            if self._new_file is not None and self._target is not None:
                os.replace(self._new_file, self._target)
                self._new_file = None
        elif self._output == "-" and sys.stdout.isatty():
            print_text(response.content.decode(response.encoding or "utf-8", "replace"))
        elif self._output == "-":
            sys.stdout.buffer.write(response.content)
            sys.stdout.buffer.flush()
        elif is_for_people(as_json=self._as_json):
            print_response(response)
        else:
            print_json(describe_response(response))
            sys.stdout.flush()


def _save_response(content: bytes) -> str:
    try:
        with tempfile.NamedTemporaryFile(prefix="tollway-answer-", delete=False) as file:
            file.write(content)
    except OSError:
        return "A temporary file cannot be written either. If the call had an Idempotency-Key, repeat it: the gateway has stored the response."
    return f"It is saved in {file.name}."


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
