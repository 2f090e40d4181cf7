"""Loopback ports for servers of tests that are killed and restarted at the same port. They have no listener yet, and
the kernel assigns none of them to outgoing connections, so no other process takes the port between two servers."""

import contextlib
import secrets
import socket

LOW_PORTS = range(10_000, 30_000)


def find_low_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            probe, port = held.enter_context(socket.socket()), secrets.choice(LOW_PORTS)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        return found


def find_free_port() -> int:
    """A port that was free a moment ago: no server listens at it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_low_port() -> int:
    (port,) = find_low_ports(1)
    return port
