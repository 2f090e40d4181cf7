"""`tollway call --rail channel`, `tollway wallet channels`, `refund` and `withdraw`, over a gateway and a node on loopback."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.kit.call_io import CHAIN, PAYEE, TOKEN
from tests.kit.channel_gateway import ChannelGateway
from tests.kit.terminal import run_commands, split_commands
from tests.kit.threaded_server import serve_in_thread
from tollway.ids import Address
from tollway.money import Asset, TokenDomain


class ChannelServer(ThreadingHTTPServer):
    """A `ChannelGateway` and its node, at `/node`. The clock of callers is the real one, so nothing of it expires."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ChannelHandler)
        domain = TokenDomain(name="USDC", version="2")
        asset = Asset(chain_id=CHAIN, token=TOKEN, symbol="USDC", decimals=6, domain=domain)
        self.gateway = ChannelGateway(
            asset=asset, pay_to=PAYEE, authorizer=Address(b"\x90" * 20), now_s=0, timeout_s=900
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class ChannelHandler(BaseHTTPRequestHandler):
    server: ChannelServer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        root = "https://node.test" if self.path == "/node" else "https://gateway.test"
        asked = httpx.Request(self.command, root + self.path, headers=dict(self.headers), content=body)
        response = self.server.gateway.handle(asked)
        self.send_response(response.status_code)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.content)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ChannelServer]:
    server = ChannelServer()
    with serve_in_thread(server):
        yield server


@pytest.fixture
def own(server: ChannelServer) -> dict[str, str]:
    """The environment of the commands. It names no node, so a channel is paid without one."""
    return {"TOLLWAY_GATEWAY": server.url, "TOLLWAY_RPC": ""}


@pytest.fixture
def call(run: Any, own: dict[str, str]) -> Any:
    def call(*words: str) -> Any:
        return run("call", "api_1", "/x", "--rail", "channel", "--chain", str(CHAIN), *words, env=own)

    return call


def test_a_call_names_its_channel_and_its_price(call: Any, server: ChannelServer) -> None:
    first, second = call("--json"), call()
    payment = json.loads(first.stdout)["payment"]
    assert (payment["rail"], payment["price"], payment["state"]) == ("channel", "0.000300 USDC", "charged")
    assert payment["transaction"] is not None
    assert second.exit_code == 0, second.output
    lines = second.stderr.splitlines()
    assert {"rail channel", f"channel {payment['channel']}", "price 0.000300 USDC"} <= set(lines)
    assert server.gateway.kinds == "dv"


def test_a_deposit_keeps_to_its_maximum(call: Any, server: ChannelServer) -> None:
    done = call("--max-deposit", "0.0002 USDC")
    assert done.exit_code == 1
    assert "max_deposit allows 0.0002 USDC" in json.loads(done.stderr)["error"]["detail"]
    assert call("--max-deposit", "0.0003 USDC").exit_code == 0
    assert [payment.request.base_units for payment in server.gateway.shown] == [300]


def test_the_list_has_the_sums_of_each_channel(call: Any, run: Any, own: dict[str, str]) -> None:
    assert json.loads(run("wallet", "channels", env=own).stdout) == []
    call()
    (channel,) = json.loads(run("wallet", "channels", env=own).stdout)
    assert (channel["balance"], channel["charged"], channel["left"]) == ("0.3", "0.0003", "0.2997")
    assert (channel["payTo"], channel["network"], channel["calls"]) == (str(PAYEE), f"eip155:{CHAIN}", 1)
    assert (channel["withdrawal"], channel["inFlight"]) == (None, False)
    (deposit,) = json.loads(run("wallet", "payments", env=own).stdout)
    assert (deposit["rail"], deposit["amount"], deposit["state"]) == ("channel", "0.3", "charged")


def test_a_refund_names_what_came_back(call: Any, run: Any, own: dict[str, str]) -> None:
    call()
    (channel,) = json.loads(run("wallet", "channels", env=own).stdout)
    done = run("wallet", "refund", channel["channel"], env=own)
    assert done.exit_code == 0, done.output
    refunded = json.loads(done.stdout)
    assert (refunded["refunded"], refunded["left"], refunded["seenOnChain"]) == ("0.2997", "0", False)
    assert run("wallet", "refund", "0x123456", env=own).exit_code == 2


def test_a_withdrawal_needs_no_gateway_and_waits_for_its_delay(
    call: Any, run: Any, own: dict[str, str], server: ChannelServer
) -> None:
    call()
    (channel,) = json.loads(run("wallet", "channels", env=own).stdout)
    words = ("wallet", "withdraw", channel["channel"][:12], "--rpc", f"{CHAIN}={server.url}/node")
    away = {**own, "TOLLWAY_GATEWAY": "http://127.0.0.1:1"}
    begun = json.loads(run(*words, env=away).stdout)
    assert (begun["withdrawal"]["amount"], begun["ended"]) == ("0.2997", False)
    early = run(*words, env=away)
    assert (early.exit_code, json.loads(early.stderr)["error"]["code"]) == (3, "payment_pending")
    server.gateway.chain.now_s += 900
    ended = json.loads(run(*words, env=away).stdout)
    assert (ended["withdrawal"], ended["left"], ended["ended"]) == (None, "0", True)


@pytest.mark.process
def test_a_terminal_shows_the_amounts_before_a_transaction(
    call: Any, own: dict[str, str], environment: dict[str, str], server: ChannelServer, tmp_path: Any
) -> None:
    call()
    env = {**environment, **own, "HOME": str(tmp_path)}
    node = f"{CHAIN}={server.url}/node"
    found = [("wallet", "channels")]
    ((code, lines),) = split_commands(run_commands(found, env))
    assert (code, max(map(len, lines)) <= 80) == (0, True)
    shown = " ".join(" ".join(lines).split())
    assert "0.2997 USDC left · 0.3 deposited · 0.0003 charged" in shown
    withdrawal = [("wallet", "withdraw", lines[0], "--rpc", node, "--yes")]
    ((code, lines),) = split_commands(run_commands(withdrawal, env))
    assert code == 0
    shown = " ".join(" ".join(lines).split())
    assert "Begins the withdrawal of 0.2997 USDC from the channel 0x" in shown
    assert "pays it out after 900 seconds; network fee at most" in shown
