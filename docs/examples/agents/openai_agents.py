"""Gives an agent of the OpenAI Agents SDK the tools of Tollway. Needs `pip install "tollway[mcp]" openai-agents`.

The model sees five tools: search, describe, call and pay, list calls, wallet status. It spends at most the limits of the client.
"""

import asyncio
import json
import os

from agents import Agent, FunctionTool
from agents.tool_context import ToolContext

from tollway.client import AsyncTollwayClient, Wallet
from tollway.client.agent_tools import TOOLS, AgentTool, AgentTools

CHAIN, _, NODE = os.environ["TOLLWAY_RPC"].partition("=")  # such as 84532=http://127.0.0.1:8545


def make_tool(tools: AgentTools, tool: AgentTool) -> FunctionTool:
    async def run(context: ToolContext[object], arguments: str) -> str:
        result = await tools.run_tool(tool, json.loads(arguments or "{}"))
        return json.dumps(result.document, ensure_ascii=False)

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=dict(tool.input_schema),
        on_invoke_tool=run,
        strict_json_schema=False,
    )


async def use(tool: FunctionTool, arguments: dict[str, object]) -> dict[str, object]:
    """Calls a tool as the SDK does when a model asks for it."""
    text = json.dumps(arguments)
    context = ToolContext(context=None, tool_name=tool.name, tool_call_id="call_1", tool_arguments=text)
    return dict(json.loads(await tool.on_invoke_tool(context, text)))


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
        agent = Agent(name="Buyer", instructions="Use the paid APIs.", tools=list(offered.values()))
        # With a model: await Runner.run(agent, "What does one ETH cost?")
        print(sorted(tool.name for tool in agent.tools))
        answer = await use(offered["call_api"], {"apiId": os.environ["API_ID"], "path": "/quote/ETH"})
        print(answer["status"], "charged" if "charged" in json.dumps(answer["payment"]) else "unpaid")


asyncio.run(main())
