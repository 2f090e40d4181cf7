"""Gives an MCP client the tools of Tollway: `tollway mcp` is a server over stdin and stdout with a wallet and its limits.

Needs `pip install "tollway[mcp]"`.
"""

import asyncio
import json
import os

from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

SETTINGS = (
    "TOLLWAY_GATEWAY",
    "TOLLWAY_PRIVATE_KEY",
    "TOLLWAY_KEY_FILE",
    "TOLLWAY_STORE",
    "TOLLWAY_RPC",
    "HOME",
    "PATH",
)
SERVER = StdioServerParameters(
    command="tollway",
    args=["mcp", "--max-price", "0.05 USDC", "--budget", "1 USDC"],
    env={name: os.environ[name] for name in SETTINGS if name in os.environ},
)


async def main() -> None:
    async with Client(stdio_client(SERVER)) as client:
        tools = await client.list_tools()
        print(sorted(tool.name for tool in tools.tools))
        result = await client.call_tool("call_api", {"apiId": os.environ["API_ID"], "path": "/quote/ETH"})
        answer = json.loads(result.content[0].text)
        print(answer["status"], answer["payment"]["state"])


asyncio.run(main())
