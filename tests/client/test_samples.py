"""The samples for providers run as their page says, each in a process of its own: they serve what the gateway signed and refuse the rest.

nginx is run where it is installed (`make bench` installs it); otherwise its sample is not in the table, so nothing counts as passed.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from tests.clients.stock_clients import find_interpreter
from tests.kit.forwarded_requests import BODY, PAYER, SIGNER, sign_forwarded
from tests.kit.gateway_process import clean_environment, listens, poll
from tests.kit.ports import find_low_ports
from tollway.gateway.request_signing import UpstreamSigner
from tollway.identity.http_signatures import encode_base64url

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "docs" / "samples"
TARGET = "/v1/quote?x=%20a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How a sample is started, and whether it checks the digest of a body."""

    file: str
    is_installed: bool = True
    checks_body: bool = True


BENCH_NGINX = ROOT / ".venv-bench" / "debian" / "nginx" / "run-nginx"
"""Where `make bench` unpacks nginx."""
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or (
    str(BENCH_NGINX) if BENCH_NGINX.exists() else None
)
ALL_SAMPLES = (
    Sample(file="plain_wsgi.py"),
    Sample(file="express.mjs"),
    Sample(file="fastapi_app.py"),
    Sample(file="flask_app.py"),
    Sample(file="nginx.conf", is_installed=NGINX is not None, checks_body=False),
)
INSTALLED = tuple(sample for sample in ALL_SAMPLES if sample.is_installed)


def test_every_sample_is_in_the_table() -> None:
    helpers = {"nginx_verify.py"}  # nginx.conf needs it
    receivers = {path.name for path in SAMPLES.glob("webhook_*")}  # webhooks/test_receivers.py runs them
    assert {path.name for path in SAMPLES.iterdir() if path.is_file()} - helpers - receivers == {
        sample.file for sample in ALL_SAMPLES
    }


def test_the_samples_that_need_nothing_more_are_run() -> None:
    assert {"plain_wsgi.py", "express.mjs"} <= {sample.file for sample in INSTALLED}


class Stage:
    """A running sample. `gateway` is a server with the keys of the signer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.authority = f"127.0.0.1:{port}"

    def sign(self, body: bytes = BODY, **changes: Any) -> list[tuple[str, str]]:
        call = {
            "authority": self.authority,
            "target": TARGET,
            "created_s": int(time.time()),
            "nonce": secrets.token_hex(16),
            **changes,
        }
        return sign_forwarded(body, **call)

    async def post(
        self, headers: list[tuple[str, str]], body: bytes = BODY, target: str = TARGET
    ) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await http.post(f"http://{self.authority}{target}", headers=headers, content=body)


@contextlib.asynccontextmanager
async def serving_keys() -> AsyncIterator[str]:
    async def describe(request: web.BaseRequest) -> web.Response:
        assert request.path == "/.well-known/http-message-signatures-directory"
        return web.json_response(SIGNER.describe())

    runner = web.ServerRunner(web.Server(describe, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def running(sample: Sample, folder: Path, **more: str) -> AsyncIterator[Stage]:
    """`more`: of the environment."""
    port, verifier, api = find_low_ports(3)
    async with serving_keys() as gateway, contextlib.AsyncExitStack() as stack:
        environment = clean_environment(
            {
                "GATEWAY": gateway,
                "ENDPOINT": f"http://127.0.0.1:{port}/v1",
                "API_ID": "api_1",
                **more,
            }
        )
        for command in list_commands(sample, port=port, verifier=verifier, api=api, folder=folder):
            process = subprocess.Popen(command, env=environment, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        for each in (port, verifier, api) if sample.file == "nginx.conf" else (port,):
            await poll(lambda each=each: listens(each), deadline_s=60, what=sample.file)
        yield Stage(port)


def list_commands(sample: Sample, *, port: int, verifier: int, api: int, folder: Path) -> list[list[str]]:
    path, python = str(SAMPLES / sample.file), sys.executable
    match sample.file:
        case "plain_wsgi.py":
            return [[python, path, str(port)]]
        case "express.mjs":
            return [[*find_interpreter(path), path, str(port)]]
        case "fastapi_app.py":
            serve = ["uvicorn", "fastapi_app:app", "--app-dir", str(SAMPLES), "--port", str(port)]
            return [[python, "-m", *serve, "--log-level", "error"]]
        case "flask_app.py":
            return [[python, "-m", "flask", "--app", path, "run", "--port", str(port)]]
        case _:
            assert NGINX is not None
            text = (SAMPLES / "nginx.conf").read_text()
            for name, number in (("PORT", port), ("VERIFIER", verifier), ("API", api)):
                text = text.replace(f":{name};", f":{number};")
            kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            folders = " ".join(f"{kind}_temp_path {folder}/temp;" for kind in kinds)
            (folder / "nginx.conf").write_text(text.replace("http {", f"http {{ {folders}", 1))
            return [
                [python, str(SAMPLES / "nginx_verify.py"), str(verifier)],
                [python, "-c", PLAIN_API, str(api)],
                [NGINX, "-p", str(folder), "-c", "nginx.conf", "-g", "daemon off;"],
            ]


PLAIN_API = """
import json, sys
from wsgiref.simple_server import make_server

def serve(environ, start_response):
    length = int(environ.get("CONTENT_LENGTH") or 0)
    environ["wsgi.input"].read(length)
    start_response("200 OK", [("Content-Type", "application/json")])
    call, payer = environ.get("HTTP_TOLLWAY_CALL_ID"), environ.get("HTTP_TOLLWAY_PAYER")
    return [json.dumps({"call": call, "payer": payer, "bytes": length}).encode()]

make_server("127.0.0.1", int(sys.argv[1]), serve).serve_forever()
"""


@pytest.mark.parametrize("sample", INSTALLED, ids=lambda sample: sample.file)
async def test_a_sample_serves_what_the_gateway_signed_and_nothing_else(
    sample: Sample, tmp_path: Path
) -> None:
    async with running(sample, tmp_path) as stage:
        headers = stage.sign()
        served = await stage.post(headers)
        assert served.status_code == 200, served.text
        assert served.json() == {"call": "call_1", "payer": str(PAYER), "bytes": len(BODY)}
        assert (await stage.post(headers)).status_code == 401, "a second time"
        refused = {
            "unsigned": ([], BODY, TARGET),
            "another listing": (stage.sign(api_id="api_2"), BODY, TARGET),
            "another host": (stage.sign(authority="api.example.com"), BODY, TARGET),
            "another target": (stage.sign(), BODY, "/v1/quote?x=%20b"),
            "old": (stage.sign(created_s=int(time.time()) - 3_600), BODY, TARGET),
            "of the future": (stage.sign(created_s=int(time.time()) + 3_600), BODY, TARGET),
            "an unknown key": (stage.sign(signer=UpstreamSigner.derive([b"\x09" * 32])), BODY, TARGET),
            "a payer that is not signed": (
                [*stage.sign(payer=None), ("Tollway-Payer", str(PAYER))],
                BODY,
                TARGET,
            ),
        }
        if sample.checks_body:
            refused["another body"] = (stage.sign(), b'{"a":2}', TARGET)
            refused["a body that is not signed"] = (stage.sign(b""), b"more", TARGET)
        statuses = {name: (await stage.post(*request)).status_code for name, request in refused.items()}
        assert statuses == dict.fromkeys(refused, 401)
        assert (await stage.post(stage.sign(payer=None))).json()["payer"] is None


async def test_the_sample_of_node_verifies_the_secret_of_its_listing_too(tmp_path: Path) -> None:
    secret = secrets.token_bytes(32)
    express = Sample(file="express.mjs")
    async with running(express, tmp_path, FORWARD_SECRET=encode_base64url(secret)) as stage:
        headers = stage.sign(secret=secret)
        served = await stage.post(headers)
        assert served.json() == {"call": "call_1", "payer": str(PAYER), "bytes": len(BODY)}, served.text
        assert (await stage.post(stage.sign())).status_code == 200, "the key of the gateway"
        refused = {
            "a second time": (headers, BODY),
            "another secret": (stage.sign(secret=secrets.token_bytes(32)), BODY),
            "the public key as secret": (stage.sign(secret=PUBLIC_KEY), BODY),
            "an empty secret": (stage.sign(secret=b""), BODY),
            "another listing": (stage.sign(secret=secret, api_id="api_2"), BODY),
            "another body": (stage.sign(secret=secret), b'{"a":2}'),
        }
        statuses = {name: (await stage.post(*request)).status_code for name, request in refused.items()}
        assert statuses == dict.fromkeys(refused, 401)
    async with running(express, tmp_path) as stage:
        assert (await stage.post(stage.sign(secret=secret))).status_code == 401, "without the secret"
        assert (await stage.post(stage.sign(secret=b""))).status_code == 401, "with an empty one"


PUBLIC_KEY = SIGNER.keys[0].jwk["x"].encode()
