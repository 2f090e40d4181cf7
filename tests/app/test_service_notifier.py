"""systemd's notifications: what the environment says, and what a gateway process sends over its life."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.kit.gateway_process import GatewayProcess, poll
from tests.kit.ports import find_low_ports
from tollway.app.service_notifier import READY, WATCHDOG, ServiceNotifier

DEADLINE_S = 60.0
PERIOD_S = 0.6
"""The watchdog period of these tests: a third of it passes between two notifications."""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.settimeout(DEADLINE_S)
        yield server


@pytest.fixture
def gateway(manager: socket.socket, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway whose chain is away, started as by a unit with a watchdog."""
    (port,) = find_low_ports(1)
    gateway = GatewayProcess(
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "TOLLWAY_LISTEN": f"127.0.0.1:{port}",
            "TOLLWAY_PUBLIC_URL": f"http://127.0.0.1:{port}",
            "TOLLWAY_ADMIN_LISTEN": "off",
            "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
            "NOTIFY_SOCKET": manager.getsockname(),
            "WATCHDOG_USEC": str(int(PERIOD_S * 1e6)),
        },
        folder=tmp_path,
    )
    yield gateway
    if gateway.is_running:
        gateway.kill()


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({"NOTIFY_SOCKET": "/run/notify"}, None),
        ({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "30000000"}, 10.0),
        ({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 10.0),
        ({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "0"}, None),
        ({"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "30000000"}, None),
        ({"NOTIFY_SOCKET": "vsock:2:1", "WATCHDOG_USEC": "30000000"}, None),
    ],
)
def test_reads_the_interval_of_the_watchdog(environment: dict[str, str], interval_s: float | None) -> None:
    assert ServiceNotifier.from_environment(environment, pid=7).watchdog_interval_s == interval_s


def test_sends_one_datagram_for_a_state(manager: socket.socket) -> None:
    ServiceNotifier.from_environment({"NOTIFY_SOCKET": manager.getsockname()}).notify(READY)
    assert manager.recv(100) == b"READY=1"


def test_sends_to_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        name = f"tollway-test-{os.getpid()}"
        server.bind(f"\0{name}")
        server.settimeout(DEADLINE_S)
        ServiceNotifier.from_environment({"NOTIFY_SOCKET": f"@{name}"}).notify(WATCHDOG)
        assert server.recv(100) == b"WATCHDOG=1"


def test_sends_nothing_without_a_manager() -> None:
    with capture_logs() as lines:
        ServiceNotifier.from_environment({}).notify(READY)
    assert lines == []


def test_a_manager_that_is_away_is_logged_once(tmp_path: Path) -> None:
    away = ServiceNotifier.from_environment({"NOTIFY_SOCKET": str(tmp_path / "nothing")})
    with capture_logs() as lines:
        away.notify(READY)
        away.notify(WATCHDOG)
    assert [line["event"] for line in lines] == ["service_manager_away"]


@pytest.mark.process
async def test_a_gateway_reports_its_life(manager: socket.socket, gateway: GatewayProcess) -> None:
    """READY when the port accepts connections, WATCHDOG while the event loop runs and although the chain is away, STOPPING at SIGTERM."""
    received = [await asyncio.to_thread(manager.recv, 100)]
    await gateway.wait_ready(path="/healthz")
    received += [await asyncio.to_thread(manager.recv, 100) for _ in range(3)]
    assert received == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    assert await gateway.stop() == 0
    rest = read_all(manager)
    assert set(rest) <= {b"WATCHDOG=1", b"STOPPING=1"}
    assert rest.count(b"STOPPING=1") == 1


@pytest.mark.process
async def test_a_gateway_that_stands_still_sends_no_watchdog(
    manager: socket.socket, gateway: GatewayProcess
) -> None:
    assert await asyncio.to_thread(manager.recv, 100) == b"READY=1"
    gateway.pause()
    status = Path(f"/proc/{gateway.pid}/status")
    await poll(lambda: "State:\tT" in status.read_text(), deadline_s=DEADLINE_S, what="the pause")
    read_all(manager)
    manager.settimeout(2 * PERIOD_S)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(manager.recv, 100)
    gateway.resume()
    manager.settimeout(DEADLINE_S)
    assert await asyncio.to_thread(manager.recv, 100) == b"WATCHDOG=1"


def read_all(server: socket.socket) -> list[bytes]:
    """The datagrams that wait."""
    server.setblocking(False)
    found = []
    while True:
        try:
            found.append(server.recv(100))
        except BlockingIOError:
            return found
