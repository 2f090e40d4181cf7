"""The commands of providers and callers, against a small gateway and node on loopback."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from tollway.cli.main import make_app
from tollway.client import Wallet, create_key_file
from tollway.ids import keccak256

CHAIN = 84532
USDC = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
PAYEE = "0x" + "22" * 20
PROBLEM = "application/problem+json"
PAID_BY = "0x" + "ab" * 32


class FakeGateway(ThreadingHTTPServer):
    """A gateway and a node in one: it serves whatever shows a mined transaction."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), FakeGatewayHandler)
        self.seen: list[tuple[str, str, dict, bytes]] = []
        self.mined: set[str] = set()
        self.is_mining = True
        self.is_settling = False
        self.next_unknown: tuple[int, str, bytes] | None = None
        self.next_answer: tuple | None = None
        self.listing: dict | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class FakeGatewayHandler(BaseHTTPRequestHandler):
    server: FakeGateway

    def log_message(self, *_words):
        pass

    def _answer(self, status, kind, content, headers=()):
        self.send_response(status)
        for name, value in [("content-type", kind), ("content-length", str(len(content))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _json(self, status, document, kind="application/json", headers=()):
        self._answer(status, kind, json.dumps(document).encode(), headers)

    def do_GET(self):
        self._serve(b"")

    def do_POST(self):
        self._serve(self.rfile.read(int(self.headers.get("content-length", 0))))

    do_PUT = do_POST

    def _serve(self, body):
        gateway = self.server
        if self.path == "/node":
            return self._node(json.loads(body))
        gateway.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if gateway.next_answer is not None:
            return self._answer(*gateway.next_answer)
        if "/gateway/" in self.path:
            return self._call(body)
        if self.path.startswith("/api/v2/apis") and self.command == "GET":
            api = {
                "id": "api_1",
                "name": "[red]Quotes\x1b[2J",
                "provider": PAYEE,
                "pricePerRequest": "0.01",
                "currency": "USDC",
                "endpoint": "https://x.test",
                "description": "[red]cheap[/red]",
            }
            api = api if gateway.listing is None else gateway.listing
            is_list = self.path.partition("?")[0] == "/api/v2/apis"
            return self._json(200, {"apis": [api], "total": 1, "page": 1, "limit": 20} if is_list else api)
        if self.path.startswith("/api/v2/history"):
            return self._json(200, {"calls": [], "total": 0})
        return self._json(201, {"id": "api_9", **json.loads(body)})

    def _call(self, body):
        tx = self.headers.get("x-payment-tx")
        if "payment-signature" in self.headers and self.server.next_unknown is not None:
            return self._answer(*self.server.next_unknown)
        if "payment-signature" in self.headers:
            receipt = {"success": True, "transaction": PAID_BY, "network": f"eip155:{CHAIN}"}
            in_base64 = base64.b64encode(json.dumps(receipt).encode()).decode()
            headers = [("tollway-payment-state", "charged"), ("payment-response", in_base64)]
            return self._json(200, {"echo": body.decode(), "method": self.command}, headers=headers)
        if tx is None:
            option = {
                "rail": "tx",
                "network": f"eip155:{CHAIN}",
                "token": USDC,
                "symbol": "USDC",
                "decimals": 6,
                "amount": "10000",
                "payTo": PAYEE,
                "confirmations": 1,
            }
            extra = {"maxTimeoutSeconds": 90, "extra": {"name": "USDC", "version": "2"}}
            also = [{**option, "rail": "x402", **extra}] if self.server.is_settling else []
            return self._json(
                402,
                {"code": "payment_required", "detail": "It costs.", "payment": {"options": [option, *also]}},
                PROBLEM,
            )
        return self._json(
            200,
            {"echo": body.decode(), "method": self.command},
            headers=[
                ("tollway-payment-state", "charged"),
                ("tollway-credit-remaining", "0 USDC"),
                ("tollway-price", "0.01 USDC"),
                ("tollway-call-id", "call_1"),
            ],
        )

    def _node(self, question):
        gateway, method, params = self.server, question["method"], question["params"]
        result = {
            "eth_chainId": hex(CHAIN),
            "eth_estimateGas": hex(50_000),
            "eth_maxPriorityFeePerGas": "0x1",
            "eth_getBlockByNumber": {"baseFeePerGas": "0x1"},
            "eth_getBalance": hex(10**18),
            "eth_call": "0x" + (10**9).to_bytes(32, "big").hex(),
            "eth_getTransactionCount": hex(0 if params[1:] == ["finalized"] else len(gateway.mined)),
            "eth_blockNumber": "0x9",
        }.get(method)
        if method == "eth_sendRawTransaction" and gateway.is_mining:
            gateway.mined.add("0x" + keccak256(bytes.fromhex(params[0][2:])).hex())
        if method == "eth_getTransactionReceipt" and params[0] in gateway.mined:
            result = {"transactionHash": params[0], "blockNumber": "0x9", "status": "0x1"}
        return self._json(200, {"jsonrpc": "2.0", "id": 1, "result": result})


@pytest.fixture
def gateway():
    gateway = FakeGateway()
    thread = threading.Thread(target=gateway.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield gateway
    gateway.shutdown()
    thread.join()
    gateway.server_close()


@pytest.fixture
def run(gateway, tmp_path):
    key = tmp_path / "w.key"
    create_key_file(key)
    environment = {
        "TOLLWAY_GATEWAY": gateway.url,
        "TOLLWAY_KEY_FILE": str(key),
        "TOLLWAY_RPC": f"{gateway.url}/node",
        "TOLLWAY_STORE": str(tmp_path / "payments.sqlite3"),
        "TOLLWAY_PRIVATE_KEY": "",
    }

    def go(*words, env=None, stdin=None):
        return CliRunner().invoke(make_app(), list(words), env={**environment, **(env or {})}, input=stdin)

    return go


def test_call_pays_and_prints_json_when_piped(run, gateway):
    done = run("call", "api_1", "/quote/ETH?x=1", "-d", '{"a":1}', "-H", "X-Thing: y")
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
    done = run("call", "api_1", *words)
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


def test_call_writes_the_body_as_it_is(run, tmp_path):
    done = run("call", "api_1", "-o", str(tmp_path / "body"))
    assert done.exit_code == 0
    assert json.loads((tmp_path / "body").read_bytes()) == {"echo": "", "method": "GET"}
    assert run("call", "api_1", "-X", "PUT", "-d", "@-", "-o", "-", stdin="hello").stdout == json.dumps(
        {"echo": "hello", "method": "PUT"}
    )


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
        (["--rpc", "http://127.0.0.1:1"], "usage", 2),
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
    done = run("call", "api_1", *words)
    assert done.exit_code == exit_code, done.output
    assert json.loads(done.stderr)["error"]["code"] == code
    assert done.stdout == ""


def test_a_payment_on_its_way_is_try_again_later(run, gateway):
    gateway.is_mining = False
    done = run("call", "api_1", "--wait", "1")
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
    done = run("call", "api_1")
    assert done.exit_code == exit_code
    assert json.loads(done.stdout)["body"] == "no"


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
    done = run("call", "api_1")
    assert done.exit_code == exit_code, done.output


def test_http_beyond_this_machine_can_be_allowed(run):
    for words in (["--allow-http"], []):
        env = {} if words else {"TOLLWAY_ALLOW_HTTP": "1"}
        done = run("call", "api_1", "--gateway", "http://gateway.invalid", *words, env=env)
        assert json.loads(done.stderr)["error"]["code"] == "gateway_unreachable"


LISTED = {
    "id": "api_9",
    "name": "A",
    "provider": PAYEE,
    "payTo": "0x" + "33" * 20,
    "description": "Weather.",
    "tags": ["x"],
    "methods": [],
    "operations": [{"method": "GET", "path": "/a", "pricePerRequest": "0.05"}],
    "otherPaths": "serve",
    "chargeOn": "success",
    "timeoutSeconds": 30,
    "forwardHeaders": [],
    "upstreamAuth": {"in": "header", "name": "X-Key", "set": True},
    "signature": "any",
    "rateLimit": {"calls": 1, "perSeconds": 1},
    "status": "paused",
    "forwardSignature": "none",
}
DROPPED = ("description", "tags", "operations", "rateLimit", "status", "forwardSignature", "payTo")


def test_an_update_drops_nothing_that_it_was_not_told_to_drop(run, gateway):
    gateway.listing = LISTED
    done = run("listing", "publish", "--update", "api_9", "--name", "B")
    assert done.exit_code == 2
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "update_drops_fields"
    for name in DROPPED:
        assert f"--reset {name}" in error["detail"]
    assert "upstreamAuth" not in error["detail"]  # which a gateway keeps
    assert [method for method, *_ in gateway.seen] == ["GET"]


def test_an_update_may_omit_members_that_it_resets(run, gateway):
    gateway.listing = LISTED
    words = [word for name in DROPPED[2:] for word in ("--reset", name)]
    done = run(
        "listing", "publish", "--update", "api_9", "--name", "B", "--description", "", "--tag", "y", *words
    )
    assert done.exit_code == 0, done.output
    assert json.loads(gateway.seen[-1][3]) == {"name": "B", "description": "", "tags": ["y"]}
    done = run(
        "listing",
        "publish",
        "--update",
        "api_9",
        "--name",
        "B",
        "--reset",
        "upstreamAuth",
        "--reset",
        "description",
        "--tag",
        "y",
        *words,
    )
    assert json.loads(gateway.seen[-1][3]) == {"name": "B", "tags": ["y"], "upstreamAuth": None}
    assert run("listing", "publish", "--update", "api_9", "--name", "B", "--reset", "tag").exit_code == 2
    assert run("listing", "publish", "--name", "B", "--reset", "tags").exit_code == 2


def test_an_update_keeps_members_of_the_file(run, gateway, tmp_path):
    gateway.listing = LISTED
    file = tmp_path / "listing.json"
    file.write_text(json.dumps({name: LISTED[name] for name in DROPPED}))
    assert run("listing", "publish", "--update", "api_9", "-f", str(file), "--name", "B").exit_code == 0


def test_without_a_key_a_paid_call_is_refused(run):
    done = run("call", "api_1", env={"TOLLWAY_KEY_FILE": ""})
    assert done.exit_code == 1
    assert "no wallet" in done.stderr


def test_publish_takes_options_over_a_file(run, gateway, tmp_path):
    file = tmp_path / "draft.toml"
    file.write_text(
        'name = "A"\ncurrency = "USDC"\nendpoint = "https://x.test"\n[upstreamAuth]\nin = "header"\n'
    )
    done = run(
        "listing", "publish", "-f", str(file), "--price", "0.01", "--name", "B", "--tag", "x", "--tag", "y"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["id"] == "api_9"
    method, path, headers, body = gateway.seen[-1]
    assert (method, path) == ("POST", "/api/v2/apis")
    assert "signature" in headers
    assert json.loads(body) == {
        "name": "B",
        "currency": "USDC",
        "endpoint": "https://x.test",
        "upstreamAuth": {"in": "header"},
        "pricePerRequest": "0.01",
        "tags": ["x", "y"],
    }
    assert run("listing", "publish", "--dry-run", "--name", "B").exit_code == 0
    assert gateway.seen[-1][1] == "/api/v2/apis?dryRun=true"
    assert run("listing", "publish", "--update", "api_9", "--name", "B", "--description", "C").exit_code == 0
    assert gateway.seen[-1][:2] == ("PUT", "/api/v2/apis/api_9")


def test_publish_refuses_nothing_and_nonsense(run, tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    for words in ([], ["-f", str(tmp_path / "x.json")], ["-f", str(tmp_path / "none.json")]):
        assert run("listing", "publish", *words).exit_code == 2
    assert run("listing", "publish", "--name", "x", env={"TOLLWAY_KEY_FILE": ""}).exit_code == 2


def test_search_and_show_need_no_key(run, gateway):
    nothing = {"TOLLWAY_KEY_FILE": "", "TOLLWAY_RPC": ""}
    done = run("search", "quotes", "--tag", "t", env=nothing)
    assert json.loads(done.stdout)["total"] == 1
    assert gateway.seen[-1][1] == "/api/v2/apis?q=quotes&sort=relevance&page=1&limit=20&tag=t"
    assert json.loads(run("show", "api_1", env=nothing).stdout)["id"] == "api_1"


def test_history_is_signed(run, gateway):
    done = run("history", "--api", "api_1", "--limit", "5")
    assert json.loads(done.stdout) == {"calls": [], "total": 0}
    assert gateway.seen[-1][1] == "/api/v2/history?apiId=api_1&limit=5&offset=0"
    assert "signature-input" in gateway.seen[-1][2]


def test_refusals_of_the_gateway_carry_its_problem(run, gateway):
    gateway.next_answer = (
        403,
        PROBLEM,
        json.dumps({"code": "not_provider", "detail": "Not yours."}).encode(),
    )
    done = run("listing", "publish", "--update", "api_1", "--name", "x")
    assert done.exit_code == 1
    assert json.loads(done.stderr)["error"]["problem"]["code"] == "not_provider"


def test_wallet_new_prints_the_address_and_never_the_key(run, tmp_path):
    out = tmp_path / "new.key"
    done = run("wallet", "new", "--out", str(out))
    assert json.loads(done.stdout)["address"] == str(Wallet.from_file(out).address)
    assert out.read_text().strip()[2:] not in done.output
    assert out.stat().st_mode & 0o777 == 0o600
    assert run("wallet", "new", "--out", str(out)).exit_code == 2


def test_no_command_takes_a_key_as_an_argument():
    for words in (["call"], ["listing", "publish"], ["history"], ["wallet", "new"]):
        shown = CliRunner().invoke(make_app(), [*words, "--help"]).stdout
        assert "--private-key" not in shown
        assert "--key " not in shown


def test_a_terminal_sees_a_payment_before_it_is_signed(run, monkeypatch):
    monkeypatch.setattr("tollway.cli.caller.is_for_people", lambda as_json: not as_json)
    done = run("call", "api_1", "--rail", "tx")
    shown, _, _ = done.stderr.replace("\n", " ").partition("HTTP 200")
    assert "Pays 0.01 USDC to 0x" in shown
    assert "network fee at most 0.0" in shown
    assert "limit 0.01 ETH." in shown


def test_a_terminal_gets_no_control_characters_and_no_markup(run, monkeypatch):
    monkeypatch.setattr("tollway.cli.caller.is_for_people", lambda as_json: not as_json)
    done = run("search")
    assert "\x1b" not in done.stdout
    assert "[red]Quotes" in done.stdout.replace("\n", "")


# ---- The answer reaches its buyer.


def test_an_output_that_cannot_be_written_is_found_before_anything_is_sent(run, gateway, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in (tmp_path, tmp_path / "none" / "answer", tmp_path / "file" / "answer", tmp_path / "loop"):
        done = run("call", "api_1", "-o", str(place))
        assert done.exit_code == 2, done.output
        assert "nothing was sent" in json.loads(done.stderr)["error"]["detail"]
    assert gateway.seen == []
    assert (tmp_path / "file").read_text() == "mine"


def test_an_output_file_is_unchanged_until_the_response_is_whole(run, gateway, tmp_path):
    out = tmp_path / "answer"
    out.write_text("old")
    out.chmod(0o640)
    gateway.next_answer = (404, "application/problem+json", b'{"code":"api_not_found","detail":"no"}')
    assert run("call", "api_1", "-o", str(out / "..") + "/answer").exit_code == 1
    gateway.next_answer = (200, "text/plain", b"new")
    assert run("call", "api_1", "-o", str(out)).exit_code == 0
    assert (out.read_text(), out.stat().st_mode & 0o777) == ("new", 0o640)
    assert run("call", "api_1", "-o", "/dev/null").exit_code == 0
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
    done = run("call", "api_1")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["body"] == shown


def test_an_answer_that_cannot_be_written_is_kept_and_is_no_usage_error(run, gateway, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gateway.next_answer = (200, "text/plain", b"paid for")
    done = run("call", "api_1", "-o", "/dev/full")
    assert done.exit_code == 1, done.output
    error = json.loads(done.stderr)["error"]
    (kept,) = tmp_path.glob("tollway-answer-*")
    assert (error["code"], kept.read_bytes()) == ("answer_not_written", b"paid for")
    assert str(kept) in error["detail"]
