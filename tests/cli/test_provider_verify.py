"""`tollway listing verify`: its output, its exit codes, and that only a check needs a key."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kit.threaded_server import serve_in_thread
from tollway.cli.main import make_app
from tollway.cli.provider import describe_ownership
from tollway.client import create_key_file

CHALLENGE = {
    "wellKnown": {
        "url": "https://a.example/.well-known/tollway-verification",
        "content": "tollway-verification=x",
    },
    "dns": {"name": "_tollway.a.example", "value": "tollway-verification=x"},
    "signature": {
        "url": "https://a.example/openapi.json",
        "pointer": "/x-discovery/ownershipProofs",
        "message": "https://a.example",
        "signer": "0x" + "22" * 20,
    },
}
UNPROVED: dict[str, Any] = {
    "apiId": "api_1",
    "origin": "https://a.example",
    "state": "unverified",
    "method": None,
    "verifiedAt": None,
    "failures": 1,
    "challenge": CHALLENGE,
}
PROVED = {
    **UNPROVED,
    "state": "verified",
    "method": "dns",
    "verifiedAt": "2026-11-21T09:15:00.000Z",
    "failures": 0,
}


class Gateway(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told = UNPROVED
        self.seen: list[tuple[str, str, bool]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, "signature" in self.headers))
        content = json.dumps(self.server.told).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    with serve_in_thread(gateway):
        yield gateway


PATH = "/api/v2/apis/api_1/ownership"


def test_a_check_is_signed_and_its_exit_code_is_the_result(gateway: Gateway, tmp_path: Path) -> None:
    key = tmp_path / "key"
    create_key_file(key)
    words = ["listing", "verify", "api_1", "--gateway", gateway.url, "--key-file", str(key)]
    result = CliRunner().invoke(make_app(), words)
    assert (result.exit_code, json.loads(result.stdout)) == (1, UNPROVED)
    gateway.told = PROVED
    result = CliRunner().invoke(make_app(), words)
    assert (result.exit_code, json.loads(result.stdout)) == (0, PROVED)
    assert gateway.seen == [("POST", PATH, True)] * 2


def test_show_needs_no_key(gateway: Gateway) -> None:
    result = CliRunner().invoke(
        make_app(), ["listing", "verify", "api_1", "--show", "--gateway", gateway.url]
    )
    assert (result.exit_code, json.loads(result.stdout)) == (0, UNPROVED)
    assert gateway.seen == [("GET", PATH, False)]


def test_without_a_key_nothing_is_asked(gateway: Gateway) -> None:
    result = CliRunner().invoke(make_app(), ["listing", "verify", "api_1", "--gateway", gateway.url])
    assert (result.exit_code, gateway.seen) == (2, [])


def test_a_terminal_gets_the_ways_to_prove_and_the_results_of_the_last_check() -> None:
    checks = {"wellKnown": "not_found", "dns": "unreachable", "signature": "not_found"}
    assert describe_ownership({**UNPROVED, "checks": checks}) == [
        "https://a.example is not proved. Any one of these is enough:",
        "  a file at https://a.example/.well-known/tollway-verification (not found) with the line",
        "    tollway-verification=x",
        "  a TXT record at _tollway.a.example (unreachable)",
        "    tollway-verification=x",
        "  a signature in https://a.example/openapi.json at /x-discovery/ownershipProofs (not found)",
        f"    by 0x{'22' * 20} (personal_sign) over https://a.example",
    ]
    without_name = {**UNPROVED, "challenge": {**CHALLENGE, "dns": None}}
    assert not [line for line in describe_ownership(without_name) if "TXT" in line]


def test_a_terminal_gets_the_proof_and_its_failed_checks() -> None:
    proved = "https://a.example is proved (dns), last seen 2026-11-21T09:15:00.000Z"
    assert describe_ownership(PROVED) == [proved]
    assert describe_ownership({**PROVED, "failures": 2}) == [
        proved,
        "the last 2 check(s) did not find it: restore it",
    ]


def test_a_terminal_gets_no_control_characters_of_a_gateway() -> None:
    (line, *_) = describe_ownership(
        {**UNPROVED, "origin": "https://a\x1b[2J\u202e.example", "challenge": None}
    )
    assert "\x1b" not in line
    assert "\u202e" not in line
