"""MCP by the official SDK: both revisions on one endpoint, without sessions, so that any gateway can answer any request.

A server of the SDK is made for each request: it is cheap, it closes over the request that it serves, and nothing is left
behind. This module and what it imports are loaded with the first MCP request: the SDK takes about a second.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mcp_types as types
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.types import Receive, Scope, Send

from tollway import __version__
from tollway.discovery.plain_words import clean_line
from tollway.discovery.sold_operations import ApiOperation
from tollway.discovery.tool_result import PAYMENT, ToolResult
from tollway.discovery.tools import (
    API_INSTRUCTIONS,
    GATEWAY_TOOLS,
    INSTRUCTIONS,
    ToolDefinition,
    api_tool,
    read_cursor,
    take_page,
)
from tollway.registry.listing import Listing
from tollway.web.inner_call import McpRequest
from tollway.web.listing_wire import render_json
from tollway.web.mcp_desk import McpServices
from tollway.web.mcp_tools import McpTools, ToolInvocation

LISTS_CACHE_MS = 60_000
"""How long a client may use a list of tools that it has: prices stand in it, and they are remembered for ten minutes."""

Context = ServerRequestContext[Any, Any]
Page = types.PaginatedRequestParams | None

_CACHED_METHODS: tuple[CacheableMethod, ...] = (
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)
_HINTS = {method: CacheHint(ttl_ms=LISTS_CACHE_MS, scope="public") for method in _CACHED_METHODS}


class McpServer:
    """One for a process. Safe to call from many tasks at once."""

    def __init__(self, services: McpServices) -> None:
        self._tools = McpTools(services)
        self._body_bytes_max = services.body_bytes_max
        self._public_url = services.public_url

    async def serve_gateway(
        self, mcp_request: McpRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """`/mcp`: the tools of the gateway."""
        mcp_tools = self._tools

        async def list_tools(ctx: Context, params: Page) -> types.ListToolsResult:
            if params is not None and params.cursor is not None:
                raise _unknown_cursor()
            return types.ListToolsResult(tools=[_to_tool(tool) for tool in GATEWAY_TOOLS])

        async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
            return _to_result(await mcp_tools.run(_read_call(ctx, params, mcp_request)), params.name)

        schemas = {tool.name: tool.input_schema for tool in GATEWAY_TOOLS}
        server: Server[Any] = Server(
            "tollway",
            title="Tollway",
            version=__version__,
            instructions=INSTRUCTIONS,
            website_url=self._public_url,
            cache_hints=_HINTS,
            get_tool_input_schema=schemas.get,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            **_EMPTY_HANDLERS,
        )
        await self._serve(server, scope, receive, send)

    async def find_api(self, api_id: str) -> tuple[Listing, tuple[ApiOperation, ...]]:
        """What `serve_api` serves. Raises Refusal for a listing that is not shown."""
        listing = await self._tools.find_listing(api_id)
        return listing, await self._tools.operations_of(listing)

    async def serve_api(
        self,
        api: tuple[Listing, Sequence[ApiOperation]],
        mcp_request: McpRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """`/mcp/{apiId}`: the operations of one API as tools."""
        mcp_tools = self._tools
        listing, operations = api

        async def list_tools(ctx: Context, params: Page) -> types.ListToolsResult:
            start = read_cursor(params.cursor if params is not None else None)
            if start is None:
                raise _unknown_cursor()
            page, next_cursor = take_page(operations, start)
            tools = [_to_tool(api_tool(listing, operation)) for operation in page]
            return types.ListToolsResult(tools=tools, next_cursor=next_cursor)

        async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
            invocation = _read_call(ctx, params, mcp_request)
            return _to_result(await mcp_tools.run_operation(listing, operations, invocation), params.name)

        def find_schema(name: str) -> Mapping[str, Any] | None:
            found = next((one for one in operations if one.tool == name), None)
            return None if found is None else api_tool(listing, found).input_schema

        server: Server[Any] = Server(
            f"tollway.{listing.id}",
            version=__version__,
            instructions=API_INSTRUCTIONS,
            website_url=self._public_url,
            cache_hints=_HINTS,
            get_tool_input_schema=find_schema,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            **_EMPTY_HANDLERS,
        )
        await self._serve(server, scope, receive, send)

    async def _serve(self, server: Server[Any], scope: Scope, receive: Receive, send: Send) -> None:
        server.middleware.clear()  # traces of its own, which nobody here collects
        manager = StreamableHTTPSessionManager(
            server,
            json_response=True,
            stateless=True,
            max_request_body_size=self._body_bytes_max,
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


def _read_call(ctx: Context, params: types.CallToolRequestParams, mcp_request: McpRequest) -> ToolInvocation:
    meta = (ctx.params or {}).get("_meta")
    payment = meta.get(PAYMENT) if isinstance(meta, Mapping) else None
    return ToolInvocation(
        name=params.name, arguments=params.arguments or {}, payment=payment, mcp_request=mcp_request
    )


def _to_tool(tool: ToolDefinition) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        output_schema=None if tool.output_schema is None else dict(tool.output_schema),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.is_reading,
            destructive_hint=tool.is_destructive and not tool.is_reading,
            open_world_hint=True,
        ),
    )


def _to_result(answer: ToolResult | None, name: str) -> types.CallToolResult:
    if answer is None:
        raise MCPError(types.INVALID_PARAMS, f"There is no tool {clean_line(name, 128)!r} here.")
    content = dict(answer.content)
    text = render_json(content).decode("utf-8", "replace")
    result = types.CallToolResult(
        content=[types.TextContent(text=text)], structured_content=content, is_error=answer.is_error
    )
    if answer.meta:
        result.meta = dict(answer.meta)
    return result


async def _list_prompts(ctx: Context, params: Page) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=[])


async def _list_resources(ctx: Context, params: Page) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[])


async def _list_templates(ctx: Context, params: Page) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=[])


async def _get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    raise MCPError(types.INVALID_PARAMS, "There are no prompts here.")


async def _read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    raise MCPError(types.INVALID_PARAMS, "There are no resources here.", {"uri": str(params.uri)})


_EMPTY_HANDLERS: dict[str, Any] = {
    "on_list_prompts": _list_prompts,
    "on_get_prompt": _get_prompt,
    "on_list_resources": _list_resources,
    "on_list_resource_templates": _list_templates,
    "on_read_resource": _read_resource,
}
"""Prompts and resources: there are none, and a client that asks is told so in its own words."""


def _unknown_cursor() -> MCPError:
    return MCPError(types.INVALID_PARAMS, "This cursor is none that this gateway gave.")
