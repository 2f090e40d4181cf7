"""The pool of connections: their destinations, the choice among idle ones, and their end."""

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.kit.upstream import RawServer
from tests.kit.waits import until
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.outbound.connection import Connection
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.outbound.pool import AddressGuard, ConnectionPool

LIMITS = replace(DEFAULT_LIMITS, dns_deadline_s=60.0, connect_deadline_s=60.0)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ASKED = b"GET / HTTP/1.1\r\n\r\n"


class Far(RawServer):
    """A server that returns OK for everything, or closes every connection. `names`: the names that TLS clients
    requested; `protocols`: the agreed ones."""

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        self.port = port
        self.is_rude = False
        self.names: list[str | None] = []
        self.protocols: list[str | None] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = writer.get_extra_info("ssl_object")
        self.protocols.append(tls.selected_alpn_protocol() if tls is not None else None)
        while not self.is_rude:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)

    def endpoint(self, host: str = "127.0.0.1", scheme: str = "http") -> Endpoint:
        endpoint = parse_endpoint(f"{scheme}://{host}:{self.port}", allow_private=True)
        assert isinstance(endpoint, Endpoint)
        return endpoint


@contextlib.asynccontextmanager
async def serving(
    host: str = "127.0.0.1", *, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Far]:
    far = Far()
    if tls is not None:
        tls.sni_callback = lambda sslobj, name, context: far.names.append(name)
    async with far.listen(host, port=port, tls=tls):
        yield far


@contextlib.asynccontextmanager
async def opening(
    limits: Limits = LIMITS,
    *,
    lookup: Callable[[str, int], list[str]] = lambda host, port: ["127.0.0.1"],
    tls: ssl.SSLContext | None = None,
    allow_private: bool = True,
) -> AsyncIterator[ConnectionPool]:
    guard = AddressGuard(
        allow_private=allow_private,
        own_origins=frozenset(),
        own_addresses=frozenset(),
        own_listeners=frozenset(),
        dns_deadline_s=limits.dns_deadline_s,
        lookup=lookup,
    )
    connections = ConnectionPool(guard=guard, limits=limits, ssl_context=tls)
    try:
        yield connections
    finally:
        await connections.close()
        guard.stop()


async def ask(connection: Connection) -> bytes:
    connection.begin("GET", ASKED)
    await connection.read_head(2.0)
    body = await connection.read_chunk(2.0)
    assert connection.finish()
    return body


# ---------------------------------------------------------------------- which one is given out


async def test_the_latest_is_given_out_first_and_none_that_idled_too_long() -> None:
    async with serving() as far, opening() as connections:
        origin = far.endpoint().origin
        assert connections.acquire(origin, idle_s_max=60.0) is None
        first, second = await connections.open(far.endpoint()), await connections.open(far.endpoint())
        connections.release(first)
        connections.release(second)
        assert connections.acquire(origin, idle_s_max=0.0) is None
        assert connections.acquire("http://127.0.0.1:1", idle_s_max=60.0) is None
        assert connections.acquire(origin, idle_s_max=60.0) is second
        assert connections.acquire(origin, idle_s_max=60.0) is first
        assert connections.acquire(origin, idle_s_max=60.0) is None
        assert await ask(second) == b"ok"


async def test_one_that_its_server_closes_sooner_is_given_out_for_less_time() -> None:
    async with serving() as far, opening() as connections:
        origin = far.endpoint().origin
        connection = await connections.open(far.endpoint())
        connection.idle_s_max = 0.0
        connections.release(connection)
        assert connections.acquire(origin, idle_s_max=60.0) is None
        assert not connection.is_open


async def test_one_that_the_upstream_closed_is_not_given_out() -> None:
    async with serving() as far, opening() as connections:
        connection = await connections.open(far.endpoint())
        connections.release(connection)
        await until(lambda: far.accepted == 1)
        far.writers[0].transport.abort()
        await until(lambda: not connection.is_open)
        assert connections.acquire(far.endpoint().origin, idle_s_max=60.0) is None
        connections.release(connection)
        assert connections.acquire(far.endpoint().origin, idle_s_max=60.0) is None


async def test_an_old_connection_is_closed_without_another_call() -> None:
    async with serving() as far, opening(replace(LIMITS, connection_age_s=0.0)) as connections:
        busy = await connections.open(far.endpoint())
        connections.release(await connections.open(far.endpoint()))
        await until(lambda: far.ended == 1)
        assert await ask(busy) == b"ok"
        connections.release(busy)
        assert connections.acquire(far.endpoint().origin, idle_s_max=60.0) is None
        await until(lambda: far.ended == 2)


# ---------------------------------------------------------------------- to whom they lead


async def test_the_next_address_is_dialled_when_one_refuses() -> None:
    async with serving() as far, opening(lookup=lambda host, port: ["127.0.0.2", "127.0.0.1"]) as connections:
        assert await ask(await connections.open(far.endpoint("a.example"))) == b"ok"


async def test_every_address_is_checked_before_any_is_dialled() -> None:
    for denied in ("169.254.169.254", "0.0.0.0", "127.0.0.1%1"):
        async with (
            serving() as far,
            opening(lookup=lambda host, port, denied=denied: ["127.0.0.1", denied]) as connections,  # type: ignore[misc]
        ):
            with pytest.raises(OSError, match="policy denies"):
                await connections.open(far.endpoint("a.example"))
            assert far.accepted == 0


async def test_a_literal_address_is_checked_at_its_socket() -> None:
    async with serving() as far, opening(allow_private=False) as connections:
        with pytest.raises(OSError, match="denies"):
            await connections.open(far.endpoint())
        assert far.accepted == 0


async def test_closing_cuts_the_idle_and_the_busy_and_opens_no_more() -> None:
    async with serving() as far, opening() as connections:
        connections.release(await connections.open(far.endpoint()))
        busy = await connections.open(far.endpoint())
        busy.begin("GET", b"GET / HTTP/1.1\r\n")
        await connections.close()
        assert not busy.is_open
        await until(lambda: far.ended == far.accepted == 2)
        with pytest.raises(OSError, match="closing"):
            await connections.open(far.endpoint())
        connections.release(busy)
        assert connections.acquire(far.endpoint().origin, idle_s_max=60.0) is None


# ---------------------------------------------------------------------- TLS


def sign(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    names: tuple[x509.GeneralName, ...] = (),
    days: int = 1,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=30))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


@dataclass(frozen=True)
class Authority:
    """Signs servers' certificates. `roots` trusts it."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def roots(self) -> ssl.SSLContext:
        context = ssl.create_default_context(
            cadata=self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        )
        context.set_alpn_protocols(["http/1.1"])
        return context

    def serve_as(self, *names: x509.GeneralName, days: int = 1) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = sign("server", key, issuer="root", signer=self.key, names=names, days=days)
        file = self.folder / "server.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    return Authority(tmp_path, key, sign("root", key, issuer="root", signer=key))


NAME = x509.DNSName("a.example")
ADDRESS = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


@pytest.mark.parametrize(
    ("host", "name", "asked"),
    [("a.example", NAME, "a.example"), ("a.example.", NAME, "a.example"), ("127.0.0.1", ADDRESS, None)],
)
async def test_a_certificate_for_this_host_is_good_and_its_connection_carries_many(
    authority: Authority, host: str, name: x509.GeneralName, asked: str | None
) -> None:
    async with (
        serving(tls=authority.serve_as(name)) as far,
        opening(tls=authority.roots) as connections,
    ):
        connection = await connections.open(far.endpoint(host, "https"))
        for _ in range(3):
            assert connection.has_no_unread_bytes()
            assert await ask(connection) == b"ok"
            connections.release(connection)
            assert connections.acquire(connection.origin, idle_s_max=60.0) is connection
        assert (far.names, far.protocols) == ([asked], ["http/1.1"])


@pytest.mark.parametrize(
    ("name", "days"),
    [(x509.DNSName("b.example"), 1), (ADDRESS, 1), (NAME, -1)],
    ids=["another_name", "an_address", "expired"],
)
async def test_another_certificate_is_a_failed_dial(
    authority: Authority, name: x509.GeneralName, days: int
) -> None:
    async with (
        serving(tls=authority.serve_as(name, days=days)) as far,
        opening(tls=authority.roots) as connections,
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            await connections.open(far.endpoint("a.example", "https"))


async def test_an_unknown_authority_is_a_failed_dial(authority: Authority) -> None:
    async with serving(tls=authority.serve_as(NAME)) as far, opening() as connections:
        with pytest.raises(ssl.SSLCertVerificationError):
            await connections.open(far.endpoint("a.example", "https"))


async def test_the_next_address_is_dialled_when_one_speaks_no_tls(authority: Authority) -> None:
    async with (
        serving(tls=authority.serve_as(NAME)) as far,
        serving("127.0.0.2", port=far.port) as plain,
        opening(lookup=lambda host, port: ["127.0.0.2", "127.0.0.1"], tls=authority.roots) as connections,
    ):
        plain.is_rude = True
        assert await ask(await connections.open(far.endpoint("a.example", "https"))) == b"ok"
        assert (plain.accepted, far.accepted) == (1, 1)


async def test_a_server_that_never_shakes_hands_is_a_failed_dial(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Far(port=silent.getsockname()[1]).endpoint("a.example", "https")
        async with opening(replace(LIMITS, connect_deadline_s=0.05), tls=authority.roots) as connections:
            with pytest.raises(TimeoutError):
                await connections.open(endpoint)
            assert connections._open == set()


# ---- The address guard at the socket: the last check before a connection.


@pytest.fixture
def judge() -> AddressGuard:
    return AddressGuard(
        allow_private=True,
        own_origins=frozenset(),
        own_addresses=frozenset({"8.8.8.8"}),
        own_listeners=frozenset(),
        dns_deadline_s=60.0,
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
        dns_deadline_s=60.0,
        lookup=lookup,
    )
    with pytest.raises(OSError, match="name resolution failed"):
        await judge.resolve("a.example", 80)
    judge.stop()
