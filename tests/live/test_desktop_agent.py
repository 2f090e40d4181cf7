"""`tollway mcp` as a desktop agent's program runs it: a process of its own, spoken to over stdin and stdout by the official
MCP client in both revisions of the protocol, at a running gateway and a real chain.
"""

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODES = ("legacy", "2026-07-28")
TOOLS = {"search_apis", "describe_api", "call_api", "my_calls", "wallet_status"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """A gateway that settles, with one listing; and a wallet with a folder of its own for each agent."""

    street: Any
    gateway: Any
    api_id: str
    folder: Path

    @contextlib.asynccontextmanager
    async def agent(
        self, *words: str, mode: str = "legacy", payer: Any = None, **env: str
    ) -> AsyncIterator["Agent"]:
        payer = payer or await self.street.wallet()
        key_file = self.folder / f"{payer.address}.key"
        if not key_file.exists():
            key_file.touch(mode=0o600)
            key_file.write_text(payer.private_key)
        rpc = f"{self.street.driver.chain_id}={self.street.driver.rpc_url}"
        told = {
            "TOLLWAY_GATEWAY": self.gateway.base_url,
            "TOLLWAY_KEY_FILE": str(key_file),
            "TOLLWAY_RPC": rpc,
            "TOLLWAY_STORE": str(self.folder / f"{payer.address}.sqlite3"),
            "TOLLWAY_BUDGET": "5 USDC",
            **env,
        }
        command = StdioServerParameters(
            command=sys.executable,
            args=["-c", "from tollway.cli import main; main()", "mcp", *words],
            env=told,
        )
        log = self.folder / f"{payer.address}.log"
        with log.open("a") as errors:
            async with Client(stdio_client(command, errlog=errors), mode=mode) as client:
                yield Agent(client=client, payer=payer, log=log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    client: Client
    payer: Any
    log: Path
    told: list[str] = field(default_factory=list)

    async def use(self, name: str, **arguments: Any) -> tuple[bool, Any]:
        """Whether it worked, and what the tool told."""
        result = await self.client.call_tool(name, arguments)
        text = result.content[0].text
        self.told.append(text)
        assert json.loads(text) == result.structured_content
        return not result.is_error, result.structured_content


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def market(street: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    gas = await street.wallet()
    async with street.gateway(settings={"TOLLWAY_GAS_KEYS_LOCAL": gas.private_key}) as gateway:
        provider = await street.wallet()
        api_id = await street.publish(
            gateway, provider, name="Quotes \u00e0 la carte", tags=["quotes"], description="Prices of coins."
        )
        yield Market(street=street, gateway=gateway, api_id=api_id, folder=tmp_path_factory.mktemp("agents"))


@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_finds_pays_calls_and_sees_its_bill(market: Market, mode: str) -> None:
    async with market.agent(mode=mode) as agent:
        assert {tool.name for tool in (await agent.client.list_tools()).tools} == TOOLS
        worked, found = await agent.use("search_apis", query="quotes", currency="USDC")
        assert worked
        (listed,) = found["apis"]
        assert (listed["apiId"], listed["price"], listed["networks"]) == (
            market.api_id,
            "0.01 USDC",
            ["eip155:84532"],
        )
        worked, described = await agent.use("describe_api", apiId=listed["apiId"])
        assert worked
        assert "Prices of coins." in json.dumps(described["api"])
        worked, answer = await agent.use("call_api", apiId=listed["apiId"], path="/quote/ETH")
        assert worked
        assert (answer["status"], answer["body"]["symbol"]) == (200, "ETH")
        assert (answer["payment"]["state"], answer["payment"]["rail"]) == ("charged", "x402")
        worked, bill = await agent.use("my_calls")
        assert worked
        assert [call["id"] for call in bill["calls"]] == [answer["payment"]["callId"]]
        assert bill["calls"][0]["payment"]["transaction"] == answer["payment"]["transaction"]
        _, status = await agent.use("wallet_status")
        assert status["spent"] == {"session": {"USDC": "0.01"}, "total": {"USDC": "0.01"}}
        assert status["wallet"] == str(agent.payer.address)
        secret = agent.payer.private_key.removeprefix("0x")
        assert secret not in "".join([*agent.told, agent.log.read_text()])
