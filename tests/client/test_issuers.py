"""Which certificate issuers a client trusts: the public ones, or those that `SSL_CERT_FILE` or `SSL_CERT_DIR` names."""

import ipaddress
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from tests.kit.threaded_server import serve_in_thread
from tollway.cli import doctor, inputs, operator
from tollway.cli.main import make_app
from tollway.client import AsyncTollwayClient, GatewayUnreachable, IssuersUnusable, TollwayClient, issuers
from tollway.client.deadline import fetch_bounded
from tollway.client.issuers import _trust_certifi, open_tls
from tollway.outbound.pool import open_tls_context

EMPTY = b'{"apis": [], "total": 0, "page": 1, "limit": 20}'


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_words: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(EMPTY)))
        self.end_headers()
        self.wfile.write(EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateServer:
    """A server of TLS whose certificate a private issuer has signed. `issuer`: the file of the issuer's certificate."""

    url: str
    issuer: Path


def make_certificates(folder: Path) -> None:
    """`issuer.pem`, and `server.pem` with the key of a server at 127.0.0.1."""
    start = datetime.now(UTC) - timedelta(days=1)

    def build(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            subject_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
            issuer_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=start,
            not_valid_after=start + timedelta(days=30),
        )

    issuer_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = build("Our issuer", "Our issuer", issuer_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = build("Our gateway", "Our issuer", key).add_extension(address, critical=False)
    pem = serialization.Encoding.PEM
    (folder / "issuer.pem").write_bytes(issuer.sign(issuer_key, hashes.SHA256()).public_bytes(pem))
    (folder / "server.pem").write_bytes(
        server.sign(issuer_key, hashes.SHA256()).public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateServer]:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serve_in_thread(server):
        yield PrivateServer(
            url=f"https://127.0.0.1:{server.server_address[1]}", issuer=tmp_path / "issuer.pem"
        )


def search(url: str, **env: str) -> tuple[int, str]:
    done = CliRunner().invoke(make_app(), ["search", "--gateway", url], env=env)
    return done.exit_code, done.output


def test_a_command_trusts_a_private_issuer_that_is_named(server: PrivateServer) -> None:
    code, output = search(server.url)
    assert code != 0
    assert "gateway_unreachable" in output
    assert search(server.url, SSL_CERT_FILE=str(server.issuer))[0] == 0


async def test_both_clients_and_single_fetches_trust_it(
    server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TollwayClient(server.url) as client, pytest.raises(GatewayUnreachable):
        client.search()
    monkeypatch.setenv("SSL_CERT_FILE", str(server.issuer))
    with TollwayClient(server.url) as client:
        assert list(client.search().apis) == []
    async with AsyncTollwayClient(server.url) as client_async:
        assert list((await client_async.search()).apis) == []
    assert fetch_bounded("GET", server.url, deadline_s=60.0, bytes_max=1_000) == (200, EMPTY)


async def test_doctor_trusts_it(server: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await operator._fetch(server.url) is None
    monkeypatch.setenv("SSL_CERT_FILE", str(server.issuer))
    assert await operator._fetch(server.url) == (200, EMPTY.decode())


def test_the_issuers_that_are_named_replace_the_public_ones(
    server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.issuer))
    with httpx.Client(verify=open_tls()) as http:
        assert http.get(server.url).status_code == 200
    (found,) = open_tls().get_ca_certs()
    assert found["subject"] == ((("commonName", "Our issuer"),),)


def test_no_variable_writes_the_keys_of_a_session(
    server: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "keys.log"
    monkeypatch.setenv("SSLKEYLOGFILE", str(log))
    monkeypatch.setenv("SSL_CERT_FILE", str(server.issuer))
    with httpx.Client(verify=open_tls()) as http:
        assert http.get(server.url).status_code == 200
    lines = log.read_text().splitlines() if log.exists() else []
    assert [line for line in lines if not line.startswith("#")] == []


@pytest.mark.parametrize(
    "open_context", [_trust_certifi.__wrapped__, open_tls_context.__wrapped__], ids=["client", "upstream"]
)
def test_a_file_of_session_keys_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_context: Callable[[], ssl.SSLContext]
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path))  # a folder, which cannot be opened for writing
    context = open_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.keylog_filename is None


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_name_without_certificates_is_a_wrong_use(
    server: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None
) -> None:
    path = tmp_path / "wrong.pem"
    if content is not None:
        path.write_text(content)
    code, output = search(server.url, **{name: str(path)})
    assert code == operator.USAGE
    assert f"{name}={path}" in output
    monkeypatch.setenv(name, str(path))
    with pytest.raises(IssuersUnusable):
        open_tls()


def test_clients_that_trust_the_public_issuers_share_a_context(
    server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_tls() is open_tls()
    monkeypatch.setenv("SSL_CERT_FILE", str(server.issuer))
    assert open_tls() is not open_tls()


def test_a_package_without_its_certificates_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers.certifi, "where", lambda: str(tmp_path / "missing.pem"))
    with pytest.raises(
        IssuersUnusable, match=r"^certifi: no certificates can be read .* Install the package certifi again, "
    ):
        _trust_certifi.__wrapped__()


async def test_what_asks_a_node_or_the_gateway_names_the_variable(
    server: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(IssuersUnusable):
        inputs._fetch_chain_id(server.url)
    settings = SimpleNamespace(public_url=server.url)
    with pytest.raises(IssuersUnusable, match="Correct SSL_CERT_FILE"):
        await doctor._examine_gateway(settings, operator._fetch)
    assert await operator._fetch("http://127.0.0.1:1") is None  # it needs no issuers
