"""The proxies of `deploy/` on this machine: each configuration as it is, with the certificate, the ports and the folders of a test in its place."""

import asyncio
import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.kit.deploy_programs import ROOT, need_debian, need_wheel
from tests.kit.gateway_process import poll

EDGES = ROOT / "deploy"
NAMES = ("caddy", "nginx", "envoy")
FILES = {"caddy": "Caddyfile", "nginx": "nginx.conf", "envoy": "envoy.yaml"}
HOST = "gateway.example.com"
UP_DEADLINE_S = 60.0
_CERTIFICATES = "/etc/ssl/tollway"
_ENVOY_ADMIN = "admin-address"
_ADMIN_OF_A_FREE_PORT = "admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A configuration that is written to a file, with the commands that check it and that run it."""

    name: str
    port: int
    config: Path
    check: tuple[str, ...]
    run: tuple[str, ...]


def prepare_edge(
    name: str, folder: Path, *, port: int, gateway_port: int, control_port: int | None = None
) -> Edge:
    """Skips the test where the program is not on this machine. `control_port`: of control workers, whose lines of the configuration count then."""
    make_certificate(folder)
    text = (EDGES / FILES[name]).read_text()
    if control_port is not None:
        place = "port_value: " if name == "envoy" else "127.0.0.1:"
        text = _replace(text, ("#control ", ""), (f"{place}8403", f"{place}{control_port}"))
    prepare = {"caddy": _prepare_caddy, "nginx": _prepare_nginx, "envoy": _prepare_envoy}[name]
    return prepare(text, folder, port, gateway_port)


def make_certificate(folder: Path) -> None:
    """`fullchain.pem` and `privkey.pem` of `HOST`, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    start = datetime.now(UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "fullchain.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "privkey.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _replace(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, f"the configuration has no {old!r} any more"
        text = text.replace(old, new)
    return text


def _prepare_nginx(text: str, folder: Path, port: int, gateway_port: int) -> Edge:
    program = need_debian("nginx")
    config = folder / "nginx.conf"
    temporary = "".join(
        f"  {kind}_temp_path {folder}/temporary;\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = _replace(
        text,
        (_CERTIFICATES, str(folder)),
        ("/run/nginx.pid", f"{folder}/nginx.pid"),
        ("worker_processes auto;", "worker_processes 1;\ndaemon off;"),
        ("listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;"),
        ("127.0.0.1:8402", f"127.0.0.1:{gateway_port}"),
        ("http {\n", f"http {{\n{temporary}"),
    )
    config.write_text(text)
    arguments = ("-p", str(folder), "-c", str(config))
    return Edge(
        name="nginx",
        port=port,
        config=config,
        check=(*program, "-t", *arguments),
        run=(*program, *arguments),
    )


def _prepare_caddy(text: str, folder: Path, port: int, gateway_port: int) -> Edge:
    program = need_debian("caddy")
    config = folder / "Caddyfile"
    text = _replace(
        text,
        ("{\n\tservers {", "{\n\tadmin off\n\tauto_https off\n\tservers {"),
        ("{$TOLLWAY_DOMAIN:gateway.example.com} {", f"https://{HOST}:{port} {{\n\tbind 127.0.0.1\n\ttls {folder}/fullchain.pem {folder}/privkey.pem"),
        ("{$TOLLWAY_GATEWAYS:127.0.0.1:8402}", f"127.0.0.1:{gateway_port}"),
    )  # fmt: skip
    config.write_text(text)
    place = ("env", f"HOME={folder}", f"XDG_DATA_HOME={folder}", f"XDG_CONFIG_HOME={folder}", *program)
    arguments = ("--adapter", "caddyfile", "--config", str(config))
    return Edge(
        name="caddy",
        port=port,
        config=config,
        check=(*place, "validate", *arguments),
        run=(*place, "run", *arguments),
    )


def _prepare_envoy(text: str, folder: Path, port: int, gateway_port: int) -> Edge:
    program = str(need_wheel("envoy"))
    config = folder / "envoy.yaml"
    text = _replace(
        text,
        (_CERTIFICATES, str(folder)),
        ("address: 0.0.0.0, port_value: 443", f"address: 127.0.0.1, port_value: {port}"),
        ("port_value: 8402", f"port_value: {gateway_port}"),
        ("static_resources:\n", f"{_ADMIN_OF_A_FREE_PORT}static_resources:\n"),
    )
    config.write_text(text)
    arguments = ("-c", str(config), "--disable-hot-restart", "-l", "error", "--concurrency", "1",
                 "--admin-address-path", str(folder / _ENVOY_ADMIN))  # fmt: skip
    return Edge(
        name="envoy",
        port=port,
        config=config,
        check=(program, "--mode", "validate", *arguments),
        run=(program, *arguments),
    )


@asynccontextmanager
async def run_edge(edge: Edge) -> AsyncIterator[Edge]:
    """The proxy, accepting TLS connections; ended when the block ends."""
    log = edge.config.parent / f"{edge.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            edge.run, cwd=edge.config.parent, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:

        async def is_up() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", edge.port, ssl=trust_everything(), server_hostname=HOST
                )
            except OSError:
                return False
            writer.close()
            return True

        await poll(is_up, what=edge.name)
        yield edge
    finally:
        process.terminate()
        process.wait(timeout=UP_DEADLINE_S)


async def read_envoy_counter(edge: Edge, name: str) -> int:
    """A counter of a running Envoy."""
    address = (edge.config.parent / _ENVOY_ADMIN).read_text().strip()
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://{address}/stats", params={"filter": f"^{re.escape(name)}$"})
    found = re.fullmatch(re.escape(name) + r": ([0-9]+)\s*", answer.text)
    assert found is not None, answer.text
    return int(found[1])


def trust_everything() -> ssl.SSLContext:
    """The certificate of the test is signed by itself."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def read_seconds(text: str, pattern: str) -> float:
    """The first number of seconds or milliseconds behind `pattern`."""
    found = re.search(pattern + r"\s*:?\s*([0-9]+)(ms|s)", text)
    assert found is not None, f"no {pattern!r}"
    return float(found[1]) / (1000 if found[2] == "ms" else 1)
