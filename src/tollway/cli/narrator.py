"""Shows the demo's walk-through to a person: colours on a terminal, plain lines elsewhere.

It decides what is worth showing of a request and an answer, and nothing else. Long values are cut, and say so.
"""

import json
from collections.abc import Iterable, Iterator

from pydantic_core import from_json
from rich.console import Console
from rich.text import Text

from tollway.client.shown_text import plain
from tollway.sandbox.scenes import RecordedExchange, TourEvent, TourPayment, TourRemark, TourStep

VALUE_CHARACTERS_MAX = 84
BODY_CHARACTERS_MAX = 106
BODY_LINES_MAX = 80

_PRINTED_HEADERS = frozenset(
    {
        "content-type",
        "content-digest",
        "signature-input",
        "signature",
        "x-payment-tx",
        "x-payment-network",
        "x-signature",
        "x-signature-params",
        "location",
        "etag",
        "retry-after",
        "proxy-status",
        "payment-required",
        "payment-signature",
        "payment-response",
        "www-authenticate",
    }
)
"""Beside everything that starts with `Tollway-`."""


class TourPrinter:
    """Writes to one console, a line at a time."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def print_event(self, event: TourEvent) -> None:
        match event:
            case TourStep():
                self._print_step(event)
            case RecordedExchange():
                self._print_exchange(event)
            case TourPayment():
                self._print_payment(event)
            case TourRemark(text=text):
                self.print_line(text)

    def print_line(self, text: str = "", *, style: str = "") -> None:
        # No markup and no wrapping: the text is shown as it is, and a copied command stays one line.
        self._console.print(Text(plain(text), style=style), soft_wrap=True, highlight=False)

    def _print_step(self, step: TourStep) -> None:
        self.print_line()
        self.print_line(f"{step.number}. {step.title}", style="bold cyan")
        self.print_line(f"   {step.why}", style="dim")

    def _print_exchange(self, exchange: RecordedExchange) -> None:
        self.print_line()
        self.print_line(f"   > {exchange.method} {exchange.target}", style="bold")
        self._print_headers(">", exchange.sent)
        self._print_body(">", exchange.sent_body)
        style = "green" if exchange.status < 300 else "yellow"
        self.print_line(f"   < {exchange.status} {exchange.reason}", style=f"bold {style}")
        self._print_headers("<", exchange.received)
        self._print_body("<", exchange.received_body)

    def _print_headers(self, arrow: str, headers: Iterable[tuple[str, str]]) -> None:
        for name, value in headers:
            if name.lower() in _PRINTED_HEADERS or name.lower().startswith("tollway-"):
                self.print_line(f"   {arrow} {_format_header_name(name)}: {shorten(value)}")

    def _print_body(self, arrow: str, body: bytes) -> None:
        if not body:
            return
        lines = _format_body(body)
        for text in lines[:BODY_LINES_MAX]:
            self.print_line(f"   {arrow}   {text}", style="dim")
        if len(lines) > BODY_LINES_MAX:
            self.print_line(f"   {arrow}   … {len(lines) - BODY_LINES_MAX} lines more", style="dim")

    def _print_payment(self, paid: TourPayment) -> None:
        self.print_line()
        for name, value in (
            ("transaction", str(paid.tx_hash)),
            ("block", str(paid.block)),
            ("from", f"{paid.sender} (the visitor)"),
            ("to", f"{paid.to} (the provider)"),
            ("amount", paid.amount),
            ("token", paid.token),
        ):
            self.print_line(f"   {name:<12} {value}")


def shorten(text: str, characters_max: int = VALUE_CHARACTERS_MAX) -> str:
    """Text of any length in a line of the screen."""
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def _format_body(body: bytes) -> list[str]:
    try:
        document = from_json(body)
    except ValueError:
        return [f"{len(body)} bytes that are not JSON"]
    if isinstance(document, dict):  # a listing has many members that were not set
        document = {name: value for name, value in document.items() if value not in (None, [], {})}
        if isinstance(
            document.get("openapi"), dict
        ):  # the provider's own words, which stand at `openapiUrl` too
            document["openapi"] = "(left out here)"
    return [shorten(line, BODY_CHARACTERS_MAX) for line in format_json_lines(document)]


def format_json_lines(document: object, *, name: str = "", depth: int = 0, end: str = "") -> Iterator[str]:
    """JSON in lines: what is short stays on one line, an object or a list that is not is opened."""
    indent = "  " * depth
    head = f"{indent}{json.dumps(name)}: " if name else indent
    whole = head + json.dumps(document) + end
    if not isinstance(document, dict | list) or not document or (depth and len(whole) <= BODY_CHARACTERS_MAX):
        yield whole
        return
    is_object = isinstance(document, dict)
    yield head + ("{" if is_object else "[")
    members = list(document.items()) if isinstance(document, dict) else [("", entry) for entry in document]
    for position, (key, value) in enumerate(members):
        comma = "," if position < len(members) - 1 else ""
        yield from format_json_lines(value, name=str(key), depth=depth + 1, end=comma)
    yield indent + ("}" if is_object else "]") + end


def _format_header_name(name: str) -> str:
    special = {"etag": "ETag", "www-authenticate": "WWW-Authenticate"}
    if name.lower().startswith("payment-"):  # x402 writes its headers so
        return name.upper()
    return special.get(name.lower(), "-".join(part.capitalize() for part in name.split("-")))
