"""The output of commands: untrusted text without control characters, JSON for programs, failures with their codes."""

import json
from collections.abc import Callable

import pytest
from rich.text import Text

from tollway.cli.history import print_call, print_calls
from tollway.cli.output import (
    format_problem,
    is_for_people,
    open_console,
    print_failure,
    print_json,
    print_members,
    print_search_results,
    print_text,
)
from tollway.client import CallHeld, GatewayRefused, PaymentRefused
from tollway.ids import TxHash

TX = TxHash(b"\xab" * 32)
TRICKS = "a\x1b[2J\u202eb\x07c"


@pytest.mark.parametrize(
    "show",
    [
        lambda: print_search_results({"apis": [{"id": TRICKS, "name": TRICKS, "match": [TRICKS]}]}, [{}]),
        lambda: print_calls({"calls": [{"id": "call_1", "apiName": TRICKS, "path": TRICKS}]}),
        lambda: print_call({"id": "call_1", "apiName": TRICKS, "payment": {"state": TRICKS}}),
        lambda: print_members({"name": TRICKS, "nested": {"name": TRICKS}}),
    ],
    ids=("listings", "calls", "call", "members"),
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


@pytest.mark.parametrize(
    ("status", "is_marked"), [("paused", True), ("active", False), (None, False), (TRICKS, False)]
)
def test_a_paused_listing_is_marked_where_it_is_found(
    status: object, is_marked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    print_search_results({"apis": [{"id": "api_1"}]}, [{"status": status}])
    assert ("PAUSED, refuses calls now" in capsys.readouterr().out) is is_marked


@pytest.mark.parametrize(
    ("match", "reason"),
    [
        (["name", "tags"], " · found in name, tags"),
        ([], " · similar in meaning"),
        (None, ""),  # a search without words
    ],
)
def test_the_reason_of_a_match_is_printed(
    match: list[str] | None, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_search_results({"apis": [{"id": "api_1", **({} if match is None else {"match": match})}]}, [{}])
    assert capsys.readouterr().out.splitlines()[1].endswith("not measured" + reason)


def test_a_long_line_of_a_listing_stays_indented(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    print_search_results({"apis": [{"id": "api_1", "match": ["name", "description", "operations"]}]}, [{}])
    first, *others, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("api_1")
    assert len(others) > 1
    assert all(line.startswith("    ") for line in others)


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


@pytest.mark.parametrize(
    ("problem", "lines"),
    [
        ({"detail": "No."}, ["No."]),
        ({"title": "Not found"}, ["Not found"]),
        ({}, ["The gateway gave no reason."]),
        (
            {
                "detail": "The listing is not valid.",
                "errors": [
                    {"pointer": "/operations/0/path", "code": "malformed", "detail": "must begin with /"},
                    {"pointer": "#/upstreamAuth/na~1me", "code": "missing"},
                    {"pointer": "", "detail": "must be an object"},
                    {"parameter": "limit", "detail": "must be a number"},
                    {"detail": 7},
                    "odd",
                ],
            },
            [
                "The listing is not valid.",
                "  operations[0].path: must begin with /",
                "  upstreamAuth.na/me: missing",
                "  the body: must be an object",
                "  limit: must be a number",
                "  the request: 7",
            ],
        ),
        (
            {"detail": "Slow down.", "retryAfterSeconds": 30, "callId": "call_1"},
            ["Slow down.", "Try again in 30 s.", "The call: tollway history call_1"],
        ),
        (
            {"detail": "a\nb", "errors": [{"pointer": "/a\nb", "detail": "c\n\x1b[2Jd"}]},
            ["a b", "  a b: c \ufffd[2Jd"],
        ),
    ],
)
def test_a_problem_is_lines_with_the_reason_of_each_field(
    problem: dict[str, object], lines: list[str]
) -> None:
    assert format_problem(problem) == lines


def test_the_errors_of_a_problem_have_a_maximum() -> None:
    errors = [{"pointer": f"/tags/{number}", "detail": "too long"} for number in range(60)]
    lines = format_problem({"detail": "No.", "errors": errors})
    assert (len(lines), lines[50], lines[51]) == (52, "  tags[49]: too long", "  and 10 more")


@pytest.mark.parametrize(
    ("pointer", "line"),
    [
        ("/timeoutSeconds", "  timeoutSeconds: bad; you sent 0"),
        ("/operations/0/path", "  operations[0].path: bad; you sent v1"),
        ("/operations/7/path", "  operations[7].path: bad"),
        ("/missing", "  missing: bad"),
        ("", "  the body: bad"),
        ("/upstreamAuth/value", "  upstreamAuth.value: bad"),
        ("/name", f"  name: bad; you sent {'x' * 60}…"),
    ],
)
def test_a_field_error_names_the_member_its_reason_and_its_value(pointer: str, line: str) -> None:
    """On a terminal, as JSON has it. A secret is never printed."""
    sent = {
        "timeoutSeconds": 0,
        "operations": [{"path": "v1"}],
        "upstreamAuth": {"value": "s3cret"},
        "name": "x" * 100,
    }
    problem = {"detail": "No.", "errors": [{"pointer": pointer, "code": "x", "detail": "bad"}]}
    assert format_problem(problem, sent=sent) == ["No.", line]


@pytest.mark.parametrize(
    ("print_page", "sentence"),
    [
        (
            lambda: print_search_results({"apis": [], "total": 0}, []),
            "Nothing found.",
        ),
        (lambda: print_calls({"calls": [], "total": 0}), "No calls."),
    ],
    ids=["search", "history"],
)
def test_an_empty_page_is_one_sentence(
    print_page: Callable[[], None], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_page()
    printed = capsys.readouterr()
    assert (printed.out + printed.err).strip() == sentence


def test_a_printed_line_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("a\x1b[31mb\u202ec")
    assert capsys.readouterr().out == "a\ufffd[31mb\ufffdc\n"


def test_a_metered_price_is_a_maximum_with_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    pricing = {"mode": "metered", "formula": "0.002 per 1,000 tokens"}
    listed = {"id": "api_1", "pricePerRequest": "0.02", "currency": "USDC"}
    print_search_results({"apis": [listed, {**listed, "pricing": pricing}]}, [{}, {}])
    output = capsys.readouterr().out
    assert "    0.02 USDC · not measured" in output
    assert "up to 0.02 USDC · 0.002 per 1,000 tokens · not measured" in output
