"""A small gateway and node on loopback for the commands of callers and providers, and a function that runs a command in this process."""

import base64
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from tests.kit.threaded_server import serve_in_thread
from tollway.cli.main import make_app
from tollway.client import create_key_file
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
        self.sums: dict | None = None
        self.webhook_gap: dict | None = None
        self.mined: set[str] = set()
        self.is_mining = True
        self.is_settling = False
        self.next_unknown: tuple[int, str, bytes] | None = None
        self.next_answer: tuple | None = None
        self.refusal: tuple | None = None
        """The response to every call of an API."""
        self.listing: dict | None = None
        self.call: dict | None = None
        self.price_max: str | None = None
        """The maximum of each call, which is metered: its head does not know the price."""
        self.receipt: dict | None = None
        self.budgets: dict = {"budgets": []}
        self.calls: list[dict] = []
        self.files: list[tuple] = []
        """The responses to requests of CSV files, in order."""
        self.balance = 10**9
        self.chain_id = CHAIN
        self.base_fee_wei = 1
        self.stream: Iterator[bytes] | None = None
        """The parts of an event stream, the response to the next call. A part may wait for its test."""
        self.on_request: Callable[[str], None] = lambda _: None
        """Called with the path of each request, and with the method of each one to the node, before and, with `after `, once it had its effect: a test kills its
        process there."""
        self.replaced_below = 0
        """The nonces below are used in a final block."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class FakeGatewayHandler(BaseHTTPRequestHandler):
    server: FakeGateway

    def log_message(self, *_words):
        pass

    def _answer(self, status, kind, content, headers=()):
        self.send_response(status)
        length = {"content-length": str(len(content))}
        for name, value in [("content-type", kind), *{**length, **dict(headers)}.items()]:
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
    do_DELETE = do_POST

    def _serve(self, body):
        gateway = self.server
        if self.path == "/node":
            return self._node(json.loads(body))
        gateway.on_request(self.path)
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
        if self.path.endswith("/receipt"):
            return self._json(200, gateway.receipt)
        if self.path.startswith(("/api/v2/sales", "/api/v2/spending")):
            return self._json(200, gateway.sums or {"sales": [], "spending": [], "totals": []})
        if ".csv" in self.path:
            return self._answer(*gateway.files.pop(0))
        if self.path.startswith("/api/v2/webhooks"):
            return self._webhooks(body)
        if self.path.startswith("/api/v2/budgets"):
            return self._json(
                200, gateway.budgets if self.command == "GET" else gateway.budgets["budgets"][0]
            )
        if self.path.startswith("/api/v2/viewers"):
            return self._json(200, {"viewers": [], "wallets": [], **(json.loads(body) if body else {})})
        if self.path.startswith("/api/v2/payments"):
            return self._json(200, {"payments": [], "limit": 50, "offset": 0})
        if self.path.startswith("/api/v2/history/"):
            return self._json(200, gateway.call)
        if self.path.startswith("/api/v2/history"):
            return self._json(200, {"calls": gateway.calls, "total": len(gateway.calls)})
        return self._json(201, {"id": "api_9", **json.loads(body)})

    def _webhooks(self, body):
        """One webhook with one dead letter."""
        hook = {"id": "wh_1", "url": "https://o.example/h", "types": ["call.charged"], "state": "active"}
        hook |= {"reason": None, "pending": 2, "dead": 1, "gap": self.server.webhook_gap}
        event = {"eventId": "evt_1", "type": "call.charged", "state": "dead", "attempts": 8}
        event |= {"lastStatus": 500, "lastError": None}
        if self.command == "DELETE":
            return self._answer(204, "application/json", b"")
        if self.path.endswith("/resend"):
            return self._json(202, {"eventId": "evt_1", "state": "pending"})
        if "/deliveries" in self.path:
            return self._json(200, {"deliveries": [event], "limit": 50})
        if self.command == "POST":
            return self._json(201, {**hook, **json.loads(body), "state": "unconfirmed"})
        return self._json(200, {"webhooks": [hook], "limit": 10})

    def _send_stream(self, parts):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()  # HTTP/1.0: the body ends with the connection
        for part in parts:
            self.wfile.write(part)

    def _call(self, body):
        tx = self.headers.get("x-payment-tx")
        if self.server.refusal is not None:
            return self._answer(*self.server.refusal)
        if self.server.stream is not None:
            return self._send_stream(self.server.stream)
        if self.path.endswith("/free"):
            return self._json(200, {"free": True}, headers=[("tollway-payment-state", "none")])
        is_paid = tx is not None or "payment-signature" in self.headers
        if is_paid and self.server.next_unknown is not None:
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
        maximum = self.server.price_max
        return self._json(
            200,
            {"echo": body.decode(errors="replace"), "method": self.command},
            headers=[
                ("tollway-payment-state", "charged" if maximum is None else "held"),
                ("tollway-credit-remaining", "0 USDC"),
                ("tollway-price", "0.01 USDC") if maximum is None else ("tollway-price-max", maximum),
                ("tollway-call-id", "call_1"),
                ("proxy-status", '"gateway.test"; received-status=200'),
            ],
        )

    def _node(self, question):
        gateway, method, params = self.server, question["method"], question["params"]
        gateway.on_request(method)
        result = {
            "eth_chainId": hex(gateway.chain_id),
            "eth_estimateGas": hex(50_000),
            "eth_maxPriorityFeePerGas": "0x1",
            "eth_getBlockByNumber": {"baseFeePerGas": hex(gateway.base_fee_wei)},
            "eth_getBalance": hex(10**18),
            "eth_call": "0x" + gateway.balance.to_bytes(32, "big").hex(),
            "eth_getTransactionCount": hex(
                gateway.replaced_below if params[1:] == ["finalized"] else len(gateway.mined)
            ),
            "eth_blockNumber": "0x9",
        }.get(method)
        if method == "eth_sendRawTransaction" and gateway.is_mining:
            gateway.mined.add("0x" + keccak256(bytes.fromhex(params[0][2:])).hex())
        gateway.on_request(f"after {method}")
        if method == "eth_getTransactionReceipt" and params[0] in gateway.mined:
            result = {"transactionHash": params[0], "blockNumber": "0x9", "status": "0x1"}
        return self._json(200, {"jsonrpc": "2.0", "id": 1, "result": result})


@pytest.fixture
def gateway():
    gateway = FakeGateway()
    with serve_in_thread(gateway):
        yield gateway


@pytest.fixture
def environment(gateway, tmp_path):
    key = tmp_path / "w.key"
    create_key_file(key)
    return {
        "TOLLWAY_GATEWAY": gateway.url,
        "TOLLWAY_KEY_FILE": str(key),
        "TOLLWAY_RPC": f"{gateway.url}/node",
        "TOLLWAY_STORE": str(tmp_path / "payments.sqlite3"),
        "TOLLWAY_PRIVATE_KEY": "",
    }


@pytest.fixture
def run(environment):
    def go(*words, env=None, stdin=None):
        return CliRunner().invoke(make_app(), list(words), env={**environment, **(env or {})}, input=stdin)

    return go
