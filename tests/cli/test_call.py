"""`tollway call`: the request, its payment, its exit code, and what a terminal reads about a refusal."""

import json
from email.parser import BytesParser
from email.policy import HTTP

import pytest

from tests.kit.terminal import run_commands, split_commands
from tests.kit.waits import DEADLINE_S
from tollway.cli import call as call_module
from tollway.cli.call import add_query, describe_operations, format_call_line, read_body

CHAIN = 84532
PAYEE = "0x" + "22" * 20
PROBLEM = "application/problem+json"
PAID_BY = "0x" + "ab" * 32


def test_call_pays_and_prints_all_of_the_response_as_json(run, gateway):
    done = run("call", "api_1", "/quote/ETH?x=1", "-d", '{"a":1}', "-H", "X-Thing: y", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["body"] == {"echo": '{"a":1}', "method": "POST"}
    assert answer["payment"]["state"] == "charged"
    assert answer["payment"]["callId"] == "call_1"
    assert answer["payment"]["transaction"] in gateway.mined
    assert gateway.seen[-1][1] == "/api/v2/gateway/api_1/quote/ETH?x=1"
    assert gateway.seen[-1][2]["x-thing"] == "y"


@pytest.mark.parametrize(
    ("words", "rail"),
    [
        ([], "x402"),
        (["--rail", "x402"], "x402"),
        (["--rail", "tx"], "tx"),
        (["--prepay", "2"], "tx"),
        (["--rpc", "", "--chain", str(CHAIN)], "x402"),
    ],
)
def test_call_prints_the_rail_that_paid(run, gateway, words, rail):
    gateway.is_settling = True
    done = run("call", "api_1", "/x", *words, "--json")
    assert done.exit_code == 0, done.output
    payment = json.loads(done.stdout)["payment"]
    assert (payment["rail"], payment["state"]) == (rail, "charged")
    if rail == "x402":
        receipt = {"success": True, "transaction": PAID_BY, "network": f"eip155:{CHAIN}"}
        assert (payment["transaction"], payment["receipt"]) == (PAID_BY, receipt)
    made = json.loads(run("wallet", "payments").stdout)
    assert [(payment["rail"], payment["amount"]) for payment in made] == [
        (rail, "0.02" if "--prepay" in words else "0.01")
    ]


def test_an_authorisation_without_an_outcome_is_for_later_and_can_be_given_up(run, gateway):
    gateway.is_settling = True
    assert run("call", "api_1", "/x").exit_code == 0  # and so the terms are known to work
    document = {"code": "payment_outcome_unknown", "detail": "Not known yet.", "paymentState": "held"}
    terms = json.dumps(document).encode()
    gateway.next_unknown = (503, PROBLEM, terms)
    done = run("call", "api_1", "/y", "--wait", "1")
    assert done.exit_code == 3, done.output
    assert json.loads(done.stderr)["error"]["code"] == "call_held"
    made = json.loads(run("wallet", "payments").stdout)
    assert [payment["state"] for payment in made] == ["charged", "open"]
    assert "proof" not in made[1]
    assert run("wallet", "abandon", made[1]["authorization"]).exit_code == 0
    assert run("wallet", "abandon", made[1]["authorization"]).exit_code == 1


AWAY = {
    "code": "chain_unavailable",
    "detail": "The nodes of eip155:84532 are unavailable.",
    "paymentState": "none",
    "retryable": True,
}


@pytest.mark.parametrize("is_settling", [True, False])
def test_a_chain_that_is_away_ends_the_call_in_the_words_of_the_gateway_and_the_next_run_pays_with_the_same_payment(
    run, gateway, is_settling
):
    gateway.is_settling = is_settling
    gateway.next_unknown = (503, PROBLEM, json.dumps(AWAY).encode(), [("Retry-After", "30")])
    done = run("call", "api_1", "/x")
    assert done.exit_code == 3, done.output
    assert done.stdout == ""
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["reason"], error["retryable"]) == (
        "payment_pending",
        "chain_unavailable",
        True,
    )
    assert error["detail"].startswith(f"The gateway responds chain_unavailable: {AWAY['detail']} ")
    (payment,) = json.loads(run("wallet", "payments").stdout)
    assert (payment.get("authorization") or payment["transaction"]) in error["detail"]
    assert ("nothing is paid twice" if is_settling else "nothing is paid again") in error["detail"]
    gateway.next_unknown = None
    assert run("call", "api_1", "/x").exit_code == 0
    assert len(json.loads(run("wallet", "payments").stdout)) == 1
    header = "payment-signature" if is_settling else "x-payment-tx"
    assert len({seen[2][header] for seen in gateway.seen if header in seen[2]}) == 1


@pytest.mark.parametrize("is_settling", [True, False])
@pytest.mark.parametrize("status", [502, 200])
def test_a_response_without_a_payment_state_is_an_unknown_outcome(run, gateway, status, is_settling):
    """Such as the page of a proxy before a gateway that died: nothing says that nothing was paid."""
    gateway.is_settling = is_settling
    gateway.next_unknown = (status, "text/html", b"<html>Bad gateway</html>")
    done = run("call", "api_1", "/x", "-X", "POST", "-d", "order")
    assert done.exit_code == 3, done.output
    assert done.stdout == ""
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["detail"].startswith(f"A response with status {status} ")) == (
        "gateway_unreachable",
        True,
    )
    made = json.loads(run("wallet", "payments").stdout)
    assert [payment["rail"] for payment in made] == ["x402" if is_settling else "tx"]
    if is_settling:
        assert [payment["state"] for payment in made] == ["open"]


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["--max-price", "0.001 USDC"], "price_above_max", 1),
        (["--budget", "0.001 USDC"], "budget_exhausted", 1),
        (["--max-price", "much"], "usage", 2),
        (["--max-fee", "0.0000000000001 ETH"], "fee_above_max", 1),
        (["--max-fee", "much"], "usage", 2),
        (["-H", "nonsense"], "usage", 2),
        (["--rail", "x402", "--prepay", "2"], "usage", 2),
        (["--rail", "x402"], "cannot_pay", 1),
        (["-d", "@/nowhere/at/all"], "usage", 2),
        (["--rpc", "http://127.0.0.1:1"], "node_unreachable", 3),
        (["--rpc", "1=http://127.0.0.1:1"], "cannot_pay", 1),
        (["--rpc", "84532=http://127.0.0.1:1"], "node_unreachable", 3),
        (["--gateway", "http://127.0.0.1:1"], "gateway_unreachable", 3),
        (["-H", "Bad Name: x"], "header_invalid", 2),
        (["-H", "Näme: x"], "header_invalid", 2),
        (["-H", "X-Name: a\x01b"], "header_invalid", 2),
        (["--idempotency-key", "schlüssel"], "header_invalid", 2),
        (["-X", "GET x"], "usage", 2),
        (["--gateway", "http://gateway.test"], "http_not_allowed", 2),
        (["--rpc", "84532=http://node.test/key"], "http_not_allowed", 2),
        (["--rpc", "http://node.test/key"], "http_not_allowed", 2),
        (["--store", "/dev/null/payments"], "store_unusable", 1),
        (["--store", "/"], "store_unusable", 1),
    ],
)
def test_failures_have_a_code_and_an_exit_code(run, words, code, exit_code):
    done = run("call", "api_1", "/x", *words)
    assert done.exit_code == exit_code, done.output
    assert json.loads(done.stderr)["error"]["code"] == code
    assert done.stdout == ""


def test_a_payment_on_its_way_is_try_again_later(run, gateway):
    gateway.is_mining = False
    done = run("call", "api_1", "/x", "--wait", "1")
    assert done.exit_code == 3
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["retryable"]) == ("payment_pending", True)
    listed = json.loads(run("wallet", "payments").stdout)
    assert [(p["transaction"], p["state"]) for p in listed] == [(error["transaction"], "stored")]
    assert run("wallet", "abandon", error["transaction"]).exit_code == 0
    assert run("wallet", "abandon", error["transaction"]).exit_code == 1


@pytest.mark.parametrize(("status", "exit_code"), [(404, 1), (500, 1), (429, 3), (503, 3)])
def test_call_exits_by_the_answers_status(run, gateway, status, exit_code):
    gateway.next_answer = (status, "text/plain", b"no")
    done = run("call", "api_1", "/x")
    assert done.exit_code == exit_code
    assert (done.stdout, done.stderr.splitlines()[0]) == ("no", f"HTTP {status}")


RELAYED = ("proxy-status", '"gw.test"; received-status=503')


@pytest.mark.parametrize(
    ("status", "kind", "document", "headers", "exit_code"),
    [
        (502, PROBLEM, {"code": "upstream_unreachable", "retryable": True}, (), 3),
        (504, PROBLEM, {"code": "upstream_timeout", "retryable": False}, (), 1),
        (503, PROBLEM, {"code": "overloaded", "retryable": True}, (), 3),
        (429, PROBLEM, {"code": "listing_suspended", "retryable": False}, (), 1),
        (502, PROBLEM, {"code": "odd", "retryable": "yes"}, (), 1),
        (502, PROBLEM, {"retryable": True}, [RELAYED], 1),
        (503, "application/json", {"retryable": True}, [RELAYED], 1),
        (429, "text/plain", {}, [RELAYED], 1),
    ],
)
def test_call_exits_by_what_the_gateway_says_of_a_repeat(
    run, gateway, status, kind, document, headers, exit_code
):
    gateway.next_answer = (status, kind, json.dumps(document).encode(), headers)
    done = run("call", "api_1", "/x")
    assert done.exit_code == exit_code, done.output


def test_http_beyond_this_machine_can_be_allowed(run):
    for words in (["--allow-http"], []):
        env = {} if words else {"TOLLWAY_ALLOW_HTTP": "1"}
        done = run("call", "api_1", "/x", "--gateway", "http://gateway.invalid", *words, env=env)
        assert json.loads(done.stderr)["error"]["code"] == "gateway_unreachable"


def test_without_a_key_a_paid_call_is_refused(run):
    done = run("call", "api_1", "/x", env={"TOLLWAY_KEY_FILE": ""})
    assert done.exit_code == 1
    assert "no wallet" in done.stderr


# ---- The request as curl has it.


@pytest.mark.parametrize(
    ("path", "words", "target"),
    [
        ("/a", [], "/a"),
        ("/a", ["x=1"], "/a?x=1"),
        ("/a?y=2", ["x=1", "x=2"], "/a?y=2&x=1&x=2"),
        ("", ["q=a b&c=d/é"], "?q=a%20b%26c%3Dd%2F%C3%A9"),
        ("/a", ["x="], "/a?x="),
    ],
)
def test_query_parameters_follow_the_path_and_are_encoded(path, words, target):
    assert add_query(path, words) == target


def test_the_query_reaches_the_gateway(run, gateway):
    assert run("call", "api_1", "/quote", "--query", "city=São Paulo", "--query", "x=1").exit_code == 0
    assert gateway.seen[-1][1] == "/api/v2/gateway/api_1/quote?city=S%C3%A3o%20Paulo&x=1"


JSON = {"Content-Type": "application/json", "Accept": "application/json"}


@pytest.mark.parametrize(
    ("given", "headers"),
    [
        ('{"a": 1}', JSON),
        (" [1]", JSON),
        ("@b.json", JSON),
        ("{broken", {}),
        ("hello", {}),
        ("a=b&c=d", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("a = b", {}),
        ("@c.csv", {"Content-Type": "text/csv"}),
        ("@c.zzz", {}),
    ],
)
def test_the_content_type_of_a_body_is_guessed(given, headers, tmp_path, monkeypatch):
    (tmp_path / "b.json").write_text('{"a": 1}')
    (tmp_path / "c.csv").write_text("a,b")
    (tmp_path / "c.zzz").write_text("a,b")
    monkeypatch.chdir(tmp_path)
    assert read_body(given, []).headers == headers


def test_a_given_header_replaces_the_guess(run, gateway):
    assert run("call", "api_1", "/x", "-d", "{}", "-H", "Content-Type: application/ld+json").exit_code == 0
    headers = gateway.seen[-1][2]
    assert (headers["content-type"], headers["accept"]) == ("application/ld+json", "application/json")


def test_a_form_is_multipart_as_curl_writes_it(run, gateway, tmp_path):
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"\x89PNG\r\n\x00")
    (tmp_path / "note.txt").write_text("from a file")
    words = [
        *("-F", "title=a=b"),
        *("-F", f"photo=@{photo}"),
        *("-F", f"named=@{photo};type=image/x-odd;filename=other.bin"),
        *("-F", f"note=<{tmp_path / 'note.txt'}"),
    ]
    assert run("call", "api_1", "/x", *words).exit_code == 0
    method, _, headers, body = gateway.seen[-1]
    assert method == "POST"
    head = f"Content-Type: {headers['content-type']}\r\n\r\n".encode()
    parts = list(BytesParser(policy=HTTP).parsebytes(head + body).iter_parts())
    read = [
        (
            part.get_param("name", header="content-disposition"),
            part.get_filename(),
            part.get_payload(decode=True),
        )
        for part in parts
    ]
    assert read == [
        ("title", None, b"a=b"),
        ("photo", "photo.png", b"\x89PNG\r\n\x00"),
        ("named", "other.bin", b"\x89PNG\r\n\x00"),
        ("note", None, b"from a file"),
    ]
    assert [part.get_content_type() for part in parts[1:3]] == ["image/png", "image/x-odd"]


def test_two_runs_of_one_form_are_one_request(run, gateway, tmp_path):
    (tmp_path / "a").write_text("x")
    for _ in range(2):
        assert run("call", "api_1", "/x", "-F", "a=1", "-F", f"b=@{tmp_path / 'a'}").exit_code == 0
    sent = {(headers["content-type"], body) for method, _, headers, body in gateway.seen if method == "POST"}
    assert len(sent) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["-F", "nothing"],
        ["-F", "a=@/nowhere/at/all"],
        ["-F", "a=@x;mode=1"],
        ["-F", "a=1", "-d", "b"],
        ["--query", "nothing"],
        ["--query", "=1"],
    ],
)
def test_a_request_that_cannot_be_built_sends_nothing(run, gateway, words):
    done = run("call", "api_1", "/x", *words)
    assert done.exit_code == 2, done.output
    assert gateway.seen == []


# ---- Refusals.


def make_agent_document(*operations, **more):
    return {"id": "api_1", "operations": list(operations), **more}


QUOTE = {
    "method": "GET",
    "path": "/quote/{symbol}",
    "price": "0.01 USDC",
    "example": {"target": "/quote/ETH?a=1&b=2"},
}


def test_a_call_without_a_path_names_the_operations_and_pays_nothing(run, gateway):
    many = [{**QUOTE, "path": f"/quote/{number}"} for number in range(11)]
    gateway.listing = make_agent_document(*many, operationsLeftOut=2)
    done = run("call", "api_1")
    assert (done.exit_code, done.stdout) == (2, "")
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "path_missing"
    assert error["lines"] == [
        "This API has these operations:",
        *(f"  GET /quote/{number}  0.01 USDC" for number in range(10)),
        "  and 3 more: tollway show api_1",
        "For example: tollway call api_1 '/quote/ETH?a=1&b=2'",
    ]
    assert gateway.mined == set()
    assert [path for _, path, _, _ in gateway.seen] == ["/api/v2/apis/api_1/agent"]


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([], ()),
        ([{**QUOTE, "path": ""}], ()),
        ([QUOTE, {**QUOTE, "method": "POST", "path": "/"}], ()),
        ([QUOTE], ("/",)),
    ],
    ids=["no operations", "any path", "an operation at the root", "the root is named"],
)
def test_the_root_is_called_where_it_is_an_operation_or_named(run, gateway, operations, words):
    gateway.listing = make_agent_document(*operations)
    done = run("call", "api_1", *words)
    assert done.exit_code == 0, done.output
    assert gateway.seen[-1][1].removesuffix("/") == "/api/v2/gateway/api_1"


@pytest.mark.process
def test_a_terminal_reads_the_operations_of_a_call_without_a_path(gateway, terminal):
    gateway.listing = make_agent_document({**QUOTE, "price": "0.01\x1b[2J\nUSDC"})
    ((code, lines),) = terminal(("call", "api_1"))
    assert code == 2
    assert lines == [
        "Name the path of an operation. Nothing was sent and nothing is paid.",
        "This API has these operations:",
        "  GET /quote/{symbol} 0.01�[2J USDC",
        "For example: tollway call api_1 '/quote/ETH?a=1&b=2'",
    ]


@pytest.mark.parametrize(
    ("operation", "line"),
    [
        ({"method": "GET", "path": "/a"}, "tollway call api_1 /a"),
        ({"method": "GET", "path": "/a/{b}"}, "tollway call api_1 '/a/{b}'"),
        ({"method": "GET", "path": "/a?$(reboot)"}, "tollway call api_1 '/a?$(reboot)'"),
        ({"method": "DELETE", "path": "/a"}, "tollway call api_1 /a -X DELETE"),
        ({"method": "POST", "path": "/a"}, "tollway call api_1 /a -X POST"),
        (
            {"method": "POST", "example": {"target": "/a", "body": {"it": "it's"}}},
            """tollway call api_1 /a -d '{"it": "it'"'"'s"}'""",
        ),
        (
            {"method": "PUT", "example": {"target": "/a", "body": "x", "headers": {"X-A": "b c"}}},
            "tollway call api_1 /a -X PUT -d x -H 'X-A: b c'",
        ),
        ({"method": "POST", "example": {"target": "/a", "body": "two\nlines"}}, None),
        ({"method": "POST", "example": {"target": "/a", "body": "@/etc/passwd"}}, None),
        ({"method": "GET", "path": "-a"}, None),
        ({"method": "GET", "path": "/a\x1b[2J"}, None),
        ({"method": "GET", "path": "/" + "a" * 3_000}, None),
        ({"method": "GET"}, None),
    ],
)
def test_a_command_for_an_operation_can_be_pasted_into_a_shell(operation, line):
    assert format_call_line("api_1", operation) == line


def test_a_refusal_of_the_gateway_never_reaches_an_output_file(run, gateway, tmp_path):
    out = tmp_path / "answer"
    out.write_text("old")
    problem = {"code": "overloaded", "detail": "Too busy.", "retryable": True}
    gateway.next_answer = (503, PROBLEM, json.dumps(problem).encode())
    done = run("call", "api_1", "/x", "-o", str(out))
    assert done.exit_code == 3
    assert json.loads(done.stderr)["error"]["code"] == "overloaded"
    assert out.read_text() == "old"
    gateway.next_answer = (404, "text/plain", b"the API says no")
    assert run("call", "api_1", "/x", "-o", str(out)).exit_code == 1
    assert out.read_text() == "the API says no"


def test_operations_are_lines_with_their_prices_and_of_many_the_nearest_are_listed():
    operations = [{"method": "GET", "path": f"/p{n}", "pricePerRequest": "0.01"} for n in range(20)]
    listing = {"id": "api_1", "currency": "USDC", "operations": operations}
    lines = describe_operations(listing, method="GET", path="/unlike")
    assert lines[:2] == ["This API has these operations:", "  GET /p0  0.01 USDC"]
    assert (len(lines), lines[-1]) == (21, "  GET /p19  0.01 USDC")
    operations += [{"method": "GET", "path": f"/words{n}", "pricePerRequest": "0.02"} for n in range(5)]
    lines = describe_operations(listing, method="GET", path="/wrods3")
    assert lines[:3] == [
        "Did you mean GET /words3?",
        "Of the 25 operations of this API, these are nearest:",
        "  GET /words3  0.02 USDC",
    ]
    assert (len(lines), lines[-1]) == (23, "  and 5 more: tollway show api_1")
    assert describe_operations({"operations": []}, method="GET", path="/") == []
    assert describe_operations({"operations": "x"}, method="GET", path="/") == []


@pytest.fixture
def terminal(gateway, environment, tmp_path):
    def go(*commands):
        shown = run_commands(commands, {**environment, "HOME": str(tmp_path)})
        return split_commands(shown)

    return go


@pytest.mark.process
def test_a_terminal_reads_a_refusal_as_sentences_with_the_operations_that_exist(gateway, terminal):
    problem = {
        "code": "route_not_found",
        "detail": "This API serves only its listed operations, and this is none of them.",
        "retryable": False,
        "paymentState": "none",
    }
    gateway.refusal = (404, PROBLEM, json.dumps(problem).encode())
    gateway.listing = {
        "id": "api_1",
        "currency": "USDC",
        "operations": [
            {"method": "POST", "path": "/echo", "pricePerRequest": "0.02"},
        ],
        "pricePerRequest": "0.01",
        "openapi": {"openapi": "3.1.0", "paths": {"/quote/{symbol}": {"get": {}}, "/echo": {"post": {}}}},
    }
    ((code, lines),) = terminal(("call", "api_1", "/qoute/ETH"))
    assert code == 1
    assert lines == [
        "This API serves only its listed operations, and this is none of them.",
        "HTTP 404 · nothing was paid",
        "Did you mean GET /quote/ETH?",
        "This API has these operations:",
        "  GET /quote/{symbol}  0.01 USDC",
        "  POST /echo  0.02 USDC",
    ]


@pytest.mark.process
def test_a_terminal_reads_the_payment_its_progress_and_who_paid(gateway, terminal):
    ((code, lines),) = terminal(("call", "api_1", "/x", "--rail", "tx"))
    assert code == 0
    shown = " ".join(" ".join(lines).split())
    (paid,) = gateway.mined
    assert "Pays 0.01 USDC to 0x" in shown
    assert "network fee at most 0.0" in shown
    assert f"paid 0.01 USDC by {paid}, 0 of 1 confirmations" in shown
    assert shown.index("0 of 1 confirmations") < shown.index('{"echo"')
    assert f"paid by {paid}" in shown.replace("\n", "")


@pytest.mark.process
def test_a_terminal_reads_an_authorisation_once_the_gateway_has_charged_it(gateway, terminal):
    gateway.is_settling = True
    (first, free) = terminal(("call", "api_1", "/x"), ("call", "api_1", "/free"))
    shown = " ".join(first[1])
    assert "on eip155:84532 by x402, without a network fee." in " ".join(shown.split())
    assert shown.index("sending the call with") < shown.index("Pays 0.01 USDC to 0x") < shown.index(PAID_BY)
    assert "settling" not in shown
    assert free[0] == 0
    assert "nothing was paid" in " ".join(free[1])
    assert "paid by" not in " ".join(free[1])


UNDECIDED = {"code": "payment_outcome_unknown", "detail": "Not known yet.", "paymentState": "held"}


@pytest.mark.process
def test_a_terminal_reads_that_an_authorisation_is_being_settled(gateway, terminal):
    gateway.is_settling = True
    gateway.next_unknown = (503, PROBLEM, json.dumps(UNDECIDED).encode())
    ((code, lines),) = terminal(("call", "api_1", "/x", "--wait", "1"))
    shown = " ".join(lines)
    assert code == 3
    assert shown.index("Pays 0.01 USDC to 0x") < shown.index("settling 0.01 USDC by the authorisation 0x")


BLOCKED = {
    "code": "wallet_blocked",
    "detail": "The operator has blocked this wallet.",
    "paymentState": "none",
}


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((403, PROBLEM, json.dumps(BLOCKED).encode()), "The operator has blocked this wallet."),
        ((502, "text/html", b"<html>"), ""),  # of a proxy: the outcome is not known
    ],
)
def test_a_payment_that_the_gateway_does_not_accept_is_not_printed(gateway, terminal, answer, words):
    gateway.is_settling = True
    gateway.next_unknown = answer
    ((code, lines),) = terminal(("call", "api_1", "/x"))
    shown = " ".join(lines)
    assert (code != 0, words in shown) == (True, True)
    assert "sending the call with an authorisation of 0.01 USDC" in shown
    assert ("Pays" in shown, "settling" in shown) == (False, False)


@pytest.mark.process
@pytest.mark.parametrize("rail", ["x402", "tx"])
def test_a_payment_above_the_budget_is_not_printed(gateway, terminal, rail):
    gateway.is_settling = True
    ((code, lines),) = terminal(("call", "api_1", "/x", "--rail", rail, "--budget", "0.009 USDC"))
    shown = " ".join(" ".join(lines).split())
    assert code == 1
    assert "This payment of 0.01 USDC would exceed the budget: 0 of 0.009 USDC is spent." in shown
    assert ("Pays" in shown, gateway.mined) == (False, set())


def test_a_pipe_gets_the_body_alone_and_a_summary_beside_it_without_progress(run, gateway):
    done = run("call", "api_1", "/x", "-d", "{}", "--rail", "tx")
    assert done.stdout == json.dumps({"echo": "{}", "method": "POST"})
    summary = done.stderr.splitlines()
    assert summary[:3] == ["HTTP 200", "payment charged", "price 0.01 USDC"]
    assert (summary[-2], summary[-1]) == (f"paid by {next(iter(gateway.mined))}", "call call_1")


MEASURED = {
    "id": "call_1",
    "status": "succeeded",
    "price": "0.0017",
    "priceMax": "0.01",
    "currency": "USDC",
    "quantities": [{"unit": "prompt token", "quantity": 40}, {"unit": "completion token", "quantity": 7}],
    "payment": {"state": "charged"},
}
MEASURING = {**MEASURED, "price": "0.01", "quantities": None, "payment": {"state": "held"}}


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (MEASURED, "cost: 0.0017 of at most 0.01 USDC (prompt token 40, completion token 7)"),
        ({**MEASURED, "quantities": []}, "cost: 0.0017 of at most 0.01 USDC"),
        ({**MEASURING, "status": "pending"}, "cost: at most 0.01 USDC; its price: tollway history call_1"),
        (MEASURING, "cost: at most 0.01 USDC; its price: tollway history call_1"),
        (None, "cost: at most 0.01 USDC; its price: tollway history call_1"),
    ],
)
def test_the_last_line_is_what_a_metered_call_cost(run, gateway, record, line, monkeypatch):
    monkeypatch.setattr(call_module, "COST_DEADLINE_S", DEADLINE_S)
    monkeypatch.setattr(call_module, "COST_PAUSES_S", (0,) * len(call_module.COST_PAUSES_S))
    gateway.price_max, gateway.call = "0.01 USDC", record
    done = run("call", "api_1", "/x", "-d", "{}", "--rail", "tx")
    summary = done.stderr.splitlines()
    assert (done.exit_code, summary[1], summary[2]) == (0, "payment held", "price at most 0.01 USDC")
    assert summary[-1] == line


@pytest.mark.parametrize("words", [("--json",), ("-o", "-")])
def test_the_summary_stands_beside_a_body_alone(run, words):
    assert run("call", "api_1", "/x", *words).stderr == ""


def test_the_help_has_the_exit_codes(run):
    shown = " ".join(run("call", "--help").stdout.split())
    assert "3: try again later" in shown


@pytest.mark.process
def test_a_terminal_reads_at_once_that_the_chain_of_the_gateway_is_away(gateway, terminal):
    gateway.is_settling = True
    gateway.next_unknown = (503, PROBLEM, json.dumps(AWAY).encode(), [("Retry-After", "1")])
    ((code, lines),) = terminal(("call", "api_1", "/x", "--wait", "1"))
    shown = " ".join(" ".join(lines).split())
    assert code == 3
    assert shown.count("The gateway responds chain_unavailable") == 2, "while it waits, and at the end"
    assert shown.endswith("reason: chain_unavailable")


def test_a_wallet_without_funds_is_named_with_its_network_and_the_amount(run, gateway, tmp_path):
    gateway.balance = 4_000
    done = run("call", "api_1", "/x", "--rail", "tx")
    assert done.exit_code == 1
    address = json.loads(run("wallet", "address").stdout)["address"]
    assert json.loads(done.stderr)["error"]["detail"] == (
        "This wallet cannot pay the call: 0.01 USDC on eip155:84532 (base-sepolia) is due, and the wallet holds 0.004; "
        f"send at least 0.006 USDC on eip155:84532 (base-sepolia) to {address}."
    )


DEAD_NODE = "http://127.0.0.1:1/key"


@pytest.mark.parametrize(
    ("words", "node"),
    [
        (("call", "api_1", "/x", "--rail", "tx"), DEAD_NODE),
        (("call", "api_1", "/x", "--rail", "tx"), f"{CHAIN}={DEAD_NODE}"),
        (("wallet", "balance"), DEAD_NODE),
        (("wallet", "balance"), f"{CHAIN}={DEAD_NODE}"),
        (("mcp", "--budget", "1 USDC"), DEAD_NODE),
    ],
)
def test_a_dead_node_is_named_and_the_command_can_succeed_later(run, words, node):
    done = run(*words, env={"TOLLWAY_RPC": node})
    assert done.exit_code == 3
    assert "127.0.0.1:1" in done.stdout + done.stderr
    assert "127.0.0.1:1/key" not in done.stdout + done.stderr


def test_a_node_of_another_chain_is_named_with_its_chain_and_the_option(run, gateway):
    gateway.chain_id = 8453
    done = run("call", "api_1", "/y", "--rail", "tx", "--rpc", f"84532={gateway.url}/node")
    assert json.loads(done.stderr)["error"]["detail"] == (
        "The node that is configured for eip155:84532 (base-sepolia) serves eip155:8453 (base). "
        "Correct its URL in rpc_urls (--rpc, TOLLWAY_RPC)."
    )


def test_a_node_of_a_chain_that_is_not_offered_is_named_with_its_chain(run, gateway):
    done = run("call", "api_1", "/x", "--rail", "tx", "--rpc", f"1={gateway.url}/node")
    assert json.loads(done.stderr)["error"]["detail"] == (
        "This wallet cannot pay the call: no node is configured for eip155:84532 (base-sepolia), and the configured nodes "
        "serve eip155:1 (ethereum); add one to rpc_urls (--rpc, TOLLWAY_RPC)."
    )
