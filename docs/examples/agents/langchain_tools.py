"""Gives a LangChain agent the tools of Tollway. Needs `pip install "tollway[mcp]" langchain-core`.

The model sees five tools: search, describe, call and pay, list calls, wallet status. It spends at most the limits of the client.
"""

import asyncio
import json
import os

from langchain_core.tools import StructuredTool

from tollway.client import AsyncTollwayClient, Wallet
from tollway.client.agent_tools import TOOLS, AgentTool, AgentTools

CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")  # such as 84532=http://127.0.0.1:8545


def make_tool(tools: AgentTools, tool: AgentTool) -> StructuredTool:
    async def run(**arguments: object) -> str:
        result = await tools.run_tool(tool, arguments)
        return json.dumps(result.document, ensure_ascii=False)

    return StructuredTool.from_function(
        coroutine=run, name=tool.name, description=tool.description, args_schema=dict(tool.input_schema)
    )


async def main() -> None:
    async with AsyncTollwayClient(
        os.environ["TOLLWAY_GATEWAY"],
        wallet=Wallet.from_environment(os.environ),
        rpc_urls={int(CHAIN): NODE},
        max_price="0.05 USDC",
        session_budget="1 USDC",
    ) as client:
        tools = AgentTools.for_client(client)
        offered = {tool.name: make_tool(tools, tool) for tool in TOOLS}
        # With a model: create_agent("provider:model", tools=list(offered.values()))
        print(sorted(offered))
        found = json.loads(await offered["search_apis"].ainvoke({"query": "quotes"}))
        call = {"apiId": found["apis"][0]["apiId"], "path": "/quote/ETH"}
        answer = json.loads(await offered["call_api"].ainvoke(call))
        print(answer["status"], answer["payment"]["state"])


asyncio.run(main())
