"""The output on a real terminal while a gateway, a provider and a node send escape sequences in every field."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.kit.call_io import build_transfer
from tests.kit.terminal import run_commands
from tests.kit.threaded_server import serve_in_thread
from tollway.client import Wallet, create_key_file
from tollway.client.call_io import TransferState
from tollway.client.store import PaymentStore
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset

TRICK = "x\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\u2066\r"

COMMANDS = (
    ("search", "x"),
    ("search", "x", "--json"),
    ("show", "api_1"),
    ("show", "api_1", "--json"),
    ("listing", "verify", "api_1", "--show"),
    ("history",),
    ("history", "--json"),
    ("history", "call_1"),
    ("history", "call_1", "--json"),
    ("call", "api_1", "/x"),
    ("call", "api_1", "/x", "--json"),
    ("call", "api_1", "/x", "-o", "-"),
    ("call", "api_2"),
    ("call", "api_2", "--json"),
    ("show", "refused"),
    ("show", "refused", "--json"),
    ("wallet", "payments"),
    ("wallet", "payments", "--json"),
)


class Liar(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), LiarHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class LiarHandler(BaseHTTPRequestHandler):
    server: Liar

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        document: object = {TRICK: TRICK, "nested": {TRICK: [TRICK, {"a": TRICK}]}}
        status, kind = 200, "application/json"
        path = self.path.partition("?")[0]
        if path == "/api/v2/gateway/api_2":
            kind = f"application/x-odd{chr(0x9B)}31m"
        elif path.endswith("/refused"):
            status, document = 403, {"code": TRICK, "detail": TRICK, "retryable": False, "more": TRICK}
        elif path == "/api/v2/apis":
            document = {"apis": [_listing()], "total": TRICK, "page": TRICK, "limit": [TRICK]}
        elif path == "/api/v2/history":
            document = {"calls": [_call(), {**_call(), "payment": {"state": "held"}}], "total": [TRICK]}
        elif path.startswith("/api/v2/history/"):
            document = {
                **_call(),
                "payment": dict.fromkeys(("state", "rail", "transaction", "heldUntil"), TRICK),
            }
        elif path.startswith("/api/v2/apis/"):
            document = {**_listing(), "origin": TRICK, "state": TRICK, "failures": TRICK}
        content = json.dumps(document, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        for name in ("tollway-price", "tollway-payment-state", "tollway-call-id", "tollway-credit-remaining"):
            self.send_header(name, f"{name} {chr(0x9B)}31m")
        self.end_headers()
        self.wfile.write(content)


def _call() -> dict[str, object]:
    names = (
        "createdAt",
        "apiName",
        "method",
        "path",
        "status",
        "httpStatus",
        "price",
        "completedAt",
        "error",
    )
    return {**dict.fromkeys(names, TRICK), "payment": {"state": TRICK}, "id": {TRICK: 1}}


def _listing() -> dict[str, object]:
    names = ("id", "name", "pricePerRequest", "currency", "provider", "description", "endpoint")
    listing: dict[str, object] = dict.fromkeys(names, TRICK)
    quality = {"calls30d": TRICK, "successRate30d": TRICK, "p50Ms": TRICK}
    return {
        **listing,
        "networks": [TRICK, {"a": TRICK}],
        "match": [TRICK],
        "quality": quality,
        "verified": TRICK,
    }


@pytest.fixture
def gateway() -> Iterator[Liar]:
    liar = Liar()
    with serve_in_thread(liar):
        yield liar


def _store_odd_payment(path: Path, wallet: Wallet) -> None:
    """As an earlier version stored it, by the word of a token's contract."""
    asset = Asset(chain_id=ChainId(1), token=Address(b"\x44" * 20), symbol=TRICK, decimals=6)
    transfer = build_transfer(
        tx_hash=TxHash(b"\xab" * 32),
        asset=asset,
        payer=wallet.address,
        gateway="http://127.0.0.1",
        amount=1,
        rest=1,
        state=TransferState.CONFIRMED,
    )
    PaymentStore(path, now_ms=lambda: 1).store(transfer, budget=None)


@pytest.mark.process
def test_no_command_brings_an_escape_of_a_stranger_to_a_terminal(gateway: Liar, tmp_path: Path) -> None:
    create_key_file(tmp_path / "w.key")
    store = tmp_path / "p.sqlite3"
    _store_odd_payment(store, Wallet.from_file(tmp_path / "w.key"))
    env = {
        "HOME": str(tmp_path),
        "TOLLWAY_GATEWAY": gateway.url,
        "TOLLWAY_KEY_FILE": str(tmp_path / "w.key"),
        "TOLLWAY_STORE": str(store),
    }
    shown = run_commands(COMMANDS, env, columns=200, after=f"raise RuntimeError({TRICK!r})")
    ended = [line for line in shown.splitlines() if line.startswith("exit ")]
    assert len(ended) == len(COMMANDS), shown[-2_000:]
    assert not any(line.startswith("exit 2 ") for line in ended), ended
    assert "owned" in shown
    hidden = {character for character in shown if not character.isprintable()} - {"\n"}
    assert hidden == set()
    assert shown.count("Traceback") == 1  # the one of this script


@pytest.mark.process
@pytest.mark.parametrize(("more", "is_red"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_leaves_colours_out(
    gateway: Liar, tmp_path: Path, more: dict[str, str], is_red: bool
) -> None:
    create_key_file(tmp_path / "w.key")
    key_file = str(tmp_path / "w.key")
    env = {
        "TERM": "xterm",
        "HOME": str(tmp_path),
        "TOLLWAY_GATEWAY": gateway.url,
        "TOLLWAY_KEY_FILE": key_file,
    }
    shown = run_commands([("history", "refused")], {**env, **more})
    assert ("\x1b[31m" in shown) is is_red
