"""The address guard at the socket: the last check before a connection."""

import socket
import threading

import pytest

from tollway.outbound.pool import AddressGuard


@pytest.fixture
def judge() -> AddressGuard:
    return AddressGuard(
        allow_private=True,
        own_origins=frozenset(),
        own_addresses=frozenset({"8.8.8.8"}),
        own_listeners=frozenset(),
        dns_deadline_s=1.0,
        lookup=lambda host, port: ["127.0.0.1"],
    )


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, ("127.0.0.1", 22)),
        (socket.AF_INET, ("127.0.0.1", 0)),
        (socket.AF_INET, ("169.254.169.254", 80)),
        (socket.AF_INET, ("8.8.8.8", 443)),
        (socket.AF_INET6, ("fe80::1", 8080, 0, 2)),
        (socket.AF_INET6, ("::ffff:127.0.0.1", 8080, 0, 0)),
    ],
)
def test_opens_no_socket_for_a_denied_address(
    judge: AddressGuard, family: socket.AddressFamily, address: tuple[str, int] | tuple[str, int, int, int]
) -> None:
    with pytest.raises(OSError, match="the outbound policy denies"):
        judge.open_socket((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address))


def test_opens_a_socket_for_an_allowed_address(judge: AddressGuard) -> None:
    judge.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 8080))).close()


async def test_resolution_has_a_deadline() -> None:
    release = threading.Event()

    def lookup(host: str, port: int) -> list[str]:
        release.wait(5)
        return ["127.0.0.1"]

    judge = AddressGuard(
        allow_private=True,
        own_origins=frozenset(),
        own_addresses=frozenset(),
        own_listeners=frozenset(),
        dns_deadline_s=0.02,
        lookup=lookup,
    )
    try:
        with pytest.raises(OSError, match="timed out"):
            await judge.resolve("a.example", 80)
    finally:
        release.set()
        judge.stop()


async def test_a_name_that_cannot_be_encoded_is_a_failed_resolution() -> None:
    def lookup(host: str, port: int) -> list[str]:
        raise UnicodeError("label too long")

    judge = AddressGuard(
        allow_private=True,
        own_origins=frozenset(),
        own_addresses=frozenset(),
        own_listeners=frozenset(),
        dns_deadline_s=1.0,
        lookup=lookup,
    )
    with pytest.raises(OSError, match="name resolution failed"):
        await judge.resolve("a.example", 80)
    judge.stop()
