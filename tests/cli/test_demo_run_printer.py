import io
import json

import httpx
import pytest
from rich.console import Console

from tollway.cli.demo_run import BODY_CHARACTERS_MAX, BODY_LINES_MAX, TourPrinter, format_json_lines, shorten
from tollway.ids import TxHash
from tollway.sandbox.tour import TourEvent, TourOutcome, TourPayment, TourStep


def make_response(
    status: int = 200,
    content: bytes = b"",
    *,
    target: str = "/",
    sent: dict[str, str] | None = None,
    received: dict[str, str] | None = None,
) -> httpx.Response:
    request = httpx.Request("GET", f"http://127.0.0.1:8402{target}", headers=sent)
    return httpx.Response(status, content=content, headers=received, request=request)


EXCHANGE = make_response(
    402,
    b'{"code": "payment_required", "nothing": null, "empty": []}',
    target="/api/v2/history?limit=5",
    sent={"X-Signature": "0x" + "ab" * 65, "X-Other": "not shown"},
    received={"tollway-payment-state": "none", "etag": '"r1"', "server": "not shown"},
)

OUTCOME = TourOutcome(number=4, label="called without payment", text="402: the price is 0.01 USDC")


def print_events(*events: TourEvent, is_verbose: bool = True) -> list[str]:
    page = io.StringIO()
    printer = TourPrinter(Console(file=page, width=40), is_verbose=is_verbose)
    for event in events:
        printer.print_event(event)
    return page.getvalue().splitlines()


def test_prints_one_line_for_a_step_and_everything_only_when_verbose() -> None:
    step = TourStep(number=4, title="a title", why="a reason")
    line = " 4 called without payment 402: the price is 0.01 USDC"
    assert print_events(step, EXCHANGE, OUTCOME, is_verbose=False) == [line]
    assert print_events(step, EXCHANGE, OUTCOME)[-1] == line
    assert "4. a title" in print_events(step, EXCHANGE, OUTCOME)


def test_prints_the_request_and_the_response_with_selected_headers() -> None:
    lines = print_events(EXCHANGE)
    assert "   > GET /api/v2/history?limit=5" in lines
    assert "   < 402 Payment Required" in lines
    assert "   < Tollway-Payment-State: none" in lines
    assert '   < ETag: "r1"' in lines
    assert "not shown" not in "\n".join(lines)
    assert "nothing" not in "\n".join(lines)


def test_writes_the_headers_of_x402_as_x402_does() -> None:
    sent, received = {"payment-signature": "abc"}, {"payment-response": "def"}
    lines = print_events(make_response(sent=sent, received=received))
    assert "   > PAYMENT-SIGNATURE: abc" in lines
    assert "   < PAYMENT-RESPONSE: def" in lines


def test_cuts_long_values_with_an_ellipsis() -> None:
    (signature,) = (line for line in print_events(EXCHANGE) if "X-Signature" in line)
    assert signature.endswith("…")
    assert shorten("short") == "short"
    assert len(shorten("x" * 1_000)) < 100


def test_replaces_the_openapi_document_by_a_note() -> None:
    body = json.dumps({"id": "api_1", "openapi": {"openapi": "3.1.0", "paths": {}}}).encode()
    lines = print_events(make_response(content=body))
    assert any('"openapi": "(left out here)"' in line for line in lines)
    assert not any("paths" in line for line in lines)


def test_never_wraps_so_that_a_copied_line_stays_whole() -> None:
    paid = TourPayment(
        tx_hash=TxHash(b"\x11" * 32),
        block=6,
        sender="0x" + "2" * 40,
        to="0x" + "3" * 40,
        amount="0.01 USDC",
        token="0x",
    )
    assert any(line.endswith("0x" + "11" * 32) for line in print_events(paid))


def test_prints_markup_as_text() -> None:
    assert "1. [red]title[/red]" in print_events(TourStep(number=1, title="[red]title[/red]", why="why"))


def test_removes_control_characters() -> None:
    text = "\n".join(print_events(make_response(content=b'{"name": "\\u001b[2J\\u202e"}')))
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"a": 1},
        {"a": {"b": list(range(60))}, "c": [{"d": "e" * 120}, {}]},
        [[["f" * 200]]],
        "text",
        None,
    ],
)
def test_a_document_in_lines_is_still_that_document(document: object) -> None:
    lines = list(format_json_lines(document))
    assert json.loads("\n".join(lines)) == document


def test_keeps_short_objects_on_one_line() -> None:
    assert list(format_json_lines({"tags": ["a", "b"], "n": 1})) == [
        "{",
        '  "tags": ["a", "b"],',
        '  "n": 1',
        "}",
    ]


def test_a_long_body_ends_with_how_much_is_missing() -> None:
    body = json.dumps([f"{number}{'x' * BODY_CHARACTERS_MAX}" for number in range(200)]).encode()
    lines = print_events(make_response(content=body))
    assert lines[-1].strip() == f"<   … {202 - BODY_LINES_MAX} lines more"
