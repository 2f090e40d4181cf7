"""The output of commands: untrusted text without control characters, JSON for programs, failures with their codes."""

import json
import sys
from collections.abc import Callable

import httpx
import pytest
from rich.text import Text

from tollway.cli.output import (
    describe_response,
    is_for_people,
    open_console,
    print_calls,
    print_failure,
    print_json,
    print_members,
    print_response,
    print_search_results,
    print_text,
)
from tollway.client import CallHeld, CallResponse, GatewayRefused, PaymentRefused
from tollway.client.responses import PaymentInfo
from tollway.client.x402 import SettlementReceipt
from tollway.ids import TxHash

TX = TxHash(b"\xab" * 32)
TRICKS = "a\x1b[2J\u202eb\x07c"


def answer(content: bytes, kind: str) -> CallResponse:
    response = CallResponse(
        200, headers={"content-type": kind}, content=content, request=httpx.Request("GET", "https://gw.test/")
    )
    response.payment = PaymentInfo(
        state="charged",
        price="0.01 USDC",
        credit_remaining="0 USDC",
        call_id="call_1",
        transaction=str(TX),
        network="eip155:84532",
        rail="x402",
        receipt=SettlementReceipt(
            is_success=True, transaction=TX, network="eip155:84532", payer=None, amount=None, reason=None
        ),
    )
    return response


@pytest.mark.parametrize(
    ("content", "kind", "shown"),
    [
        (b'{"a":[1]}', "application/json", {"body": {"a": [1]}}),
        (b'{"a":1}', "application/ld+json; charset=utf-8", {"body": {"a": 1}}),
        (b"{", "application/json", {"body": "{"}),
        (b"hello", "text/plain", {"body": "hello"}),
        (b"", "image/png", {"body": ""}),
        (b"\x00\xff", "image/png", {"bodyBase64": "AP8="}),
    ],
)
def test_an_answer_is_json_text_or_bytes(content: bytes, kind: str, shown: dict[str, object]) -> None:
    described = describe_response(answer(content, kind))
    assert {name: described[name] for name in described if name.startswith("body")} == shown
    assert described["payment"] == {
        "state": "charged",
        "price": "0.01 USDC",
        "creditRemaining": "0 USDC",
        "callId": "call_1",
        "transaction": str(TX),
        "network": "eip155:84532",
        "rail": "x402",
        "receipt": {"success": True, "transaction": str(TX), "network": "eip155:84532"},
        "feeMax": None,
    }


def test_deeply_nested_json_is_printed_as_text() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # what importing py_ecc (below eth-account) does to the whole process
    try:
        bomb = b"[" * 200_000 + b"]" * 200_000
        assert describe_response(answer(bomb, "application/json"))["body"] == bomb.decode()
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize(
    "show",
    [
        lambda: print_search_results({"apis": [{"id": "api_1", "name": TRICKS}]}, [{}]),
        lambda: print_calls({"calls": [{"id": "call_1", "apiName": TRICKS, "path": TRICKS}]}),
        lambda: print_members({"name": TRICKS, "nested": {"name": TRICKS}}),
        lambda: print_response(answer(TRICKS.encode(), "text/plain; charset=utf-8")),
        lambda: print_response(answer(b"\x00", TRICKS.encode("ascii", "ignore").decode())),
    ],
    ids=("search", "calls", "members", "text", "type"),
)
def test_untrusted_text_reaches_no_terminal_with_its_tricks(
    show: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    show()
    told = capsys.readouterr()
    assert set("\x1b\x07\u202e").isdisjoint(told.out + told.err)
    assert told.out


def test_a_console_lets_nothing_through(capsys: pytest.CaptureFixture[str]) -> None:
    for is_error in (False, True):
        open_console(is_error=is_error).print(Text(TRICKS), Text(f"[red]{TRICKS}"))
    print_text(TRICKS)
    print_text(TRICKS, is_error=True)
    told = capsys.readouterr()
    assert set("\x1b\x07\u202e").isdisjoint(told.out + told.err)
    assert "[red]a" in told.out
    assert "[red]a" in told.err


@pytest.mark.parametrize(
    ("quality", "told"),
    [
        ({"successRate30d": 0.9981, "calls30d": 12_034, "p50Ms": 120}, "99.81 % of 12034, 120 ms"),
        ({"successRate30d": 1, "calls30d": 3, "p50Ms": None}, "100 % of 3"),
        ({"successRate30d": "1e999999999", "calls30d": 3}, "not measured"),
        ({"successRate30d": 1e300, "calls30d": 3}, "not measured"),
        ({"successRate30d": 0.5, "calls30d": TRICKS}, "not measured"),
        (TRICKS, "not measured"),
    ],
)
def test_quality_is_numbers_or_not_measured(
    quality: object, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_search_results({"apis": [{"id": "api_1"}]}, [{"quality": quality}])
    assert told in " ".join(capsys.readouterr().out.split())


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": "ä"})
    assert json.loads(capsys.readouterr().out) == {"a": "ä"}
    assert not is_for_people(as_json=True)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ValueError("no"), {"code": "usage", "detail": "no", "retryable": False}),
        (
            GatewayRefused(429, {"code": "rate_limited", "detail": "slow", "retryable": True}),
            {"code": "rate_limited", "detail": "slow", "retryable": True}
            | {"problem": {"code": "rate_limited", "detail": "slow", "retryable": True}},
        ),
        (
            PaymentRefused("no", transaction=TX, reason="wrong_token"),
            {"code": "payment_refused", "detail": "no", "retryable": False}
            | {"transaction": str(TX), "reason": "wrong_token"},
        ),
        (
            CallHeld("held", transaction=TX, call_id="call_1", call_url="https://gw.test/x"),
            {"code": "call_held", "detail": "held", "retryable": False, "transaction": str(TX)}
            | {"callId": "call_1", "callUrl": "https://gw.test/x"},
        ),
    ],
    ids=("usage", "refused", "payment", "held"),
)
def test_a_failure_is_an_object_with_its_code(
    failure: Exception, told: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    print_failure(failure, as_json=True)
    assert json.loads(capsys.readouterr().err) == {"error": told}
