"""The response of a paid call reaches its caller: as it arrives, as JSON, in a file; and no byte of it is lost."""

import json
import sys
import threading

import httpx
import pytest

from tests.kit.terminal import Terminal, run_commands, split_commands
from tollway.cli.response_output import describe_response, print_payment
from tollway.client import CallResponse
from tollway.client.responses import PaymentInfo
from tollway.client.x402 import SettlementReceipt
from tollway.ids import TxHash

TX = TxHash(b"\xab" * 32)
TRICKS = "a\x1b[2J\u202eb\x07c"
CALL = """
import sys
from tollway.cli import main
sys.argv = ["tollway", *{words!r}]
main()
"""


def answer(content: bytes, kind: str, *, state: str = "charged") -> CallResponse:
    response = CallResponse(
        200, headers={"content-type": kind}, content=content, request=httpx.Request("GET", "https://gw.test/")
    )
    response.payment = PaymentInfo(
        state=state,
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
def test_an_answer_is_json_text_or_bytes(content, kind, shown):
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
        "priceMax": None,
    }


def test_deeply_nested_json_is_printed_as_text():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # what importing py_ecc (below eth-account) does to the whole process
    try:
        bomb = b"[" * 200_000 + b"]" * 200_000
        assert describe_response(answer(bomb, "application/json"))["body"] == bomb.decode()
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize(
    ("state", "told", "untold"),
    [
        ("charged", (f"paid by {TX}", "payment charged", "rail x402"), ("nothing was paid",)),
        ("released", ("payment released",), ("paid by", "nothing was paid")),
        ("held", ("payment held",), ("paid by", "nothing was paid")),
        ("none", ("nothing was paid",), ("paid by", "rail", "payment none")),
    ],
)
def test_only_a_charged_call_names_the_transaction_that_paid(state, told, untold, capsys):
    print_payment(answer(b"", "text/plain", state=state))
    line = " ".join(capsys.readouterr().err.split())
    assert all(word in line for word in told), line
    assert not any(word in line for word in untold), line


def test_call_writes_the_body_as_it_is(run, tmp_path):
    done = run("call", "api_1", "/x", "-o", str(tmp_path / "body"))
    assert done.exit_code == 0
    assert json.loads((tmp_path / "body").read_bytes()) == {"echo": "", "method": "GET"}
    assert run("call", "api_1", "/x", "-X", "PUT", "-d", "@-", "-o", "-", stdin="hello").stdout == json.dumps(
        {"echo": "hello", "method": "PUT"}
    )


def test_an_output_that_cannot_be_written_is_found_before_anything_is_sent(run, gateway, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in (tmp_path, tmp_path / "none" / "answer", tmp_path / "file" / "answer", tmp_path / "loop"):
        done = run("call", "api_1", "/x", "-o", str(place))
        assert done.exit_code == 2, done.output
        assert "nothing was sent" in json.loads(done.stderr)["error"]["detail"]
    assert gateway.seen == []
    assert (tmp_path / "file").read_text() == "mine"


def test_an_output_file_is_unchanged_until_the_response_is_whole(run, gateway, tmp_path):
    out = tmp_path / "answer"
    out.write_text("old")
    out.chmod(0o640)
    gateway.next_answer = (404, "application/problem+json", b'{"code":"api_not_found","detail":"no"}')
    assert run("call", "api_1", "/x", "-o", str(out / "..") + "/answer").exit_code == 1
    gateway.next_answer = (200, "text/plain", b"new")
    assert run("call", "api_1", "/x", "-o", str(out)).exit_code == 0
    assert (out.read_text(), out.stat().st_mode & 0o777) == ("new", 0o640)
    assert run("call", "api_1", "/x", "-o", "/dev/null").exit_code == 0
    left_over = [path.name for path in tmp_path.iterdir() if path.name.startswith(".tollway-")]
    assert left_over == []


@pytest.mark.parametrize(
    ("kind", "body", "shown"),
    [
        ("application/json", b'{"a": 1e400}', '{"a": 1e400}'),
        ("application/json", b'{"a": NaN}', '{"a": NaN}'),
        ("application/json", b'{"a": ' + b"9" * 5_000 + b"}", '{"a": ' + "9" * 5_000 + "}"),
        ("application/json", b"[" * 5_000 + b"]" * 5_000, "[" * 5_000 + "]" * 5_000),
        ("application/json; charset=zlib", b"{", "{"),
        ("text/plain; charset=unicode_escape", b"\\ud800", "\\ud800"),
        ("text/plain; charset=idna", b"a" * 100_000, "a" * 100_000),
        ("text/plain; charset=utf-16", b"abc", "abc"),
    ],
)
def test_no_paid_answer_fails_to_be_shown(run, gateway, kind, body, shown):
    gateway.next_answer = (200, kind, body)
    done = run("call", "api_1", "/x", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["body"] == shown
    raw = run("call", "api_1", "/x")
    assert (raw.exit_code, raw.stdout_bytes) == (0, body)


def test_an_answer_that_cannot_be_written_is_kept_and_is_no_usage_error(run, gateway, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gateway.next_answer = (200, "text/plain", b"paid for")
    done = run("call", "api_1", "/x", "-o", "/dev/full")
    assert done.exit_code == 1, done.output
    error = json.loads(done.stderr)["error"]
    (kept,) = tmp_path.glob("tollway-answer-*")
    assert (error["code"], kept.read_bytes()) == ("response_not_written", b"paid for")
    assert str(kept) in error["detail"]


# ---- As it arrives.


def hold(first, *, until, then):
    """The first part; and the second once the test has seen the first."""
    yield first
    assert until.wait(60)
    yield then


@pytest.mark.process
@pytest.mark.parametrize("words", [(), ("-o", "-")], ids=("terminal", "stdout"))
def test_a_terminal_reads_each_event_as_it_comes(gateway, environment, tmp_path, words):
    seen = threading.Event()
    gateway.stream = hold("data: früh\n\n".encode(), until=seen, then=b"data: late\n\n")
    script = CALL.format(words=["call", "api_1", "/events", *words])
    with Terminal(script, {**environment, "HOME": str(tmp_path)}) as terminal:
        assert "late" not in terminal.read_until("data: früh\n")
        seen.set()
        assert "data: late\n" in terminal.read_all()


@pytest.mark.process
def test_a_file_that_is_no_regular_file_gets_each_part_as_it_comes(gateway, environment, tmp_path):
    seen = threading.Event()
    gateway.stream = hold(b"data: early\n\n", until=seen, then=b"data: late\n\n")
    script = CALL.format(words=["call", "api_1", "/events", "-o", "/dev/stderr"])
    with Terminal(script, {**environment, "HOME": str(tmp_path)}) as terminal:
        assert "late" not in terminal.read_until("data: early\n")
        seen.set()
        assert "data: late\n" in terminal.read_all()


@pytest.mark.process
def test_a_character_that_is_cut_between_two_parts_is_whole_on_a_terminal(gateway, environment, tmp_path):
    raw = "data: é€\n\n".encode()
    gateway.stream = iter([raw[:7], raw[7:9], raw[9:]])
    shown = run_commands([("call", "api_1", "/e")], {**environment, "HOME": str(tmp_path)})
    assert "data: é€\n" in shown


def test_the_part_of_a_response_that_broke_off_is_saved(run, gateway, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    out = tmp_path / "answer"
    out.write_text("old")
    gateway.next_answer = (200, "text/plain", b"half", [("content-length", "9")])
    done = run("call", "api_1", "/x", "-o", str(out))
    assert done.exit_code != 0
    error = json.loads(done.stderr)["error"]
    (kept,) = tmp_path.glob("tollway-answer-*")
    assert (error["code"], kept.read_bytes()) == ("gateway_unreachable", b"half")
    assert str(kept) in error["detail"]
    assert out.read_text() == "old"


@pytest.mark.process
def test_a_terminal_saves_the_bytes_that_it_does_not_print(gateway, environment, tmp_path):
    env = {**environment, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    gateway.next_answer = (200, "image/png", b"\x89PNG")
    ((code, lines),) = split_commands(run_commands([("call", "api_1", "/x")], env, columns=200))
    (kept,) = tmp_path.glob("tollway-answer-*")
    assert (code, kept.read_bytes()) == (0, b"\x89PNG")
    assert lines[0] == f"(4 bytes of image/png, saved in {kept}; -o FILE names another file)"
    kept.unlink()
    gateway.next_answer = (200, "text/plain", b"x" * 200_003)
    ((code, lines),) = split_commands(run_commands([("call", "api_1", "/x")], env, columns=200))
    (kept,) = tmp_path.glob("tollway-answer-*")
    assert (code, kept.read_bytes()) == (0, b"xxx")
    assert lines[1].startswith("(3 bytes more, saved in ")


@pytest.mark.process
def test_a_body_of_control_characters_reaches_no_terminal(gateway, environment, tmp_path):
    gateway.next_answer = (200, "text/plain; charset=utf-8", TRICKS.encode())
    shown = run_commands([("call", "api_1", "/x")], {**environment, "HOME": str(tmp_path)})
    assert set("\x1b\x07\u202e").isdisjoint(shown)
