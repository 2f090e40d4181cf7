"""The MCP server by the official SDK, and its tools: search listings, show one, call an operation, list a wallet's calls.

Stateless: each request gets its own server of the SDK, so any gateway can answer any request. A refusal becomes a tool result with the same problem as
over HTTP. The first MCP request loads this module, because the SDK and the checks of arguments take about a second to import.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

import mcp_types as types
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import Receive, Scope, Send

from tollway import __version__
from tollway.discovery.argument_check import check_arguments
from tollway.discovery.listing_view import arguments_json
from tollway.discovery.operations import ApiOperation, list_operations
from tollway.discovery.requests import ToolRequest, make_request
from tollway.discovery.safe_text import clean_line, clean_prose, clean_tags
from tollway.discovery.search_text import CLOSEST_MAX, advise_search, explain_search
from tollway.discovery.tool_results import (
    MPP_REQUIRED,
    PAYMENT_ERROR,
    USED,
    ToolCall,
    ToolResult,
    list_result,
    problem_result,
    response_result,
)
from tollway.discovery.tools import (
    API_INSTRUCTIONS,
    CONTROLS,
    GATEWAY_TOOLS,
    INSTRUCTIONS,
    TOOL_RESPONSE_BYTES_MAX,
    UNTRUSTED,
    ToolDefinition,
    api_tool,
    checked_schema,
    input_schema_of,
    name_controls,
    qualified_name,
    read_cursor,
    split_name,
    take_page,
)
from tollway.errors import Code, FieldError, Problem, Refusal, StorageUnavailable, TollwayError, refuse
from tollway.ids import CallId, ListingId
from tollway.rate_limits.limiter import client_bucket
from tollway.registry.catalog import ListingMatch, ListingPage, ListingQuery
from tollway.registry.listing import Listing, RevisionCache
from tollway.registry.metering import offer
from tollway.web.api.context import WebContext
from tollway.web.api.history_routes import call_json, find_call, history_json, read_history_query
from tollway.web.api.listing_edits import find_public_listing
from tollway.web.api.listing_json import quality_json, render_json, words_json, write_in_slices
from tollway.web.api.listing_routes import parse_listing_query
from tollway.web.api.mcp_gateway import McpRequest, make_internal_call
from tollway.web.api.mcp_payment import Header, collect_payments, is_payment_header
from tollway.web.http.problems import ErrorBoundary, describe_errors, render_problem

OPERATIONS_CACHED_MAX = 32
"""The most listings whose operations are cached. Operations of a large document take several megabytes."""

NAME_MAX, FOUND_WORDS_MAX, SHOWN_WORDS_MAX = 120, 300, 4_000
"""The most characters of a listing's name, of its description in a search result, and of its description in `get_api`."""

_CONTROL_HEADERS = {
    "paymentTx": "x-payment-tx",
    "paymentSignature": "x-signature",
    "paymentSignatureParams": "x-signature-params",
    "paymentNetwork": "x-payment-network",
    "idempotencyKey": "idempotency-key",
    "maxPrice": "tollway-max-price",
}
_PROVE_WALLET = (
    "Prove your wallet on the HTTP request that carries this tool call: sign it (ERC-8128), or send "
    "`Authorization: Bearer` with a session token of POST {url}/api/v2/auth/session."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvocation:
    """One call of a tool. `meta`: the unchecked `_meta`."""

    name: str
    arguments: Mapping[str, Any]
    meta: Mapping[str, Any]
    mcp_request: McpRequest


class McpTools:
    """The tools of one process. Many tasks may call them at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._call_app = ErrorBoundary(context.call_app, public_url=context.public_url, payment_state="held")
        self._operations: RevisionCache[tuple[ApiOperation, ...]] = RevisionCache(OPERATIONS_CACHED_MAX)
        self._tools = {tool.name: tool for tool in GATEWAY_TOOLS}

    # ---- The gateway's tools.

    async def run(self, invocation: ToolInvocation) -> ToolResult | None:
        """Runs a tool of `GATEWAY_TOOLS`; None for another name."""
        tool = self._tools.get(invocation.name)
        if tool is None:
            return None
        try:
            _check_against(tool.input_schema, invocation.arguments)
            match tool.name:
                case "search_resources":
                    async with self._read_turn(invocation):
                        return await self._search(invocation.arguments)
                case "get_api":
                    async with self._read_turn(invocation):
                        return await self._get_api(invocation.arguments)
                case "list_my_calls":
                    return await self._list_calls(invocation)
                case _:
                    return await self._proxy(invocation)
        except TollwayError as exc:
            return self._problem_result(exc.problem, invocation.mcp_request)

    def _read_turn(self, invocation: ToolInvocation) -> AbstractAsyncContextManager[None]:
        address = client_bucket(invocation.mcp_request.client_address)
        return self._context.read_turns.turn("searches", address)

    async def _search(self, arguments: Mapping[str, Any]) -> ToolResult:
        words = {"query": "q"}
        pairs = {words.get(name, name): _query_text(value) for name, value in arguments.items()}
        pairs.setdefault("limit", "10")
        query = parse_listing_query(urlencode(pairs).encode())
        page = await self._context.catalog.search(query)
        understood = await self._explain(query, page)
        write = partial(self._resource, has_match=query.words is not None)
        return list_result(
            await write_in_slices(page.found, write),
            "resources",
            total=page.total,
            **({"totalIsLowerBound": True} if page.is_lower_bound else {}),
            page=query.page,
            limit=query.limit,
            **understood,
        )

    async def _explain(self, query: ListingQuery, page: ListingPage) -> dict[str, Any]:
        """How the words were understood and, when nothing was found, what to try."""
        catalog = self._context.catalog
        if query.words is None:
            return {}
        members = words_json(page)
        sentences = [explain_search({"total": page.total, **members})]
        if page.total == 0:
            nearest = await catalog.search(ListingQuery(words=query.words, limit=CLOSEST_MAX))
            sentences.append(
                advise_search(
                    closest=[found.listing.name for found in nearest.found],
                    tags=[tag for tag, _ in (await catalog.count_facets(None)).tags],
                )
            )
        advice = " ".join(filter(None, sentences))
        return {**members, "advice": advice} if advice else members

    def _resource(self, found: ListingMatch, *, has_match: bool) -> dict[str, Any]:
        listing, encoder = found.listing, self._context.encoder
        links = encoder.links(listing)
        return {
            "apiId": listing.id,
            **{
                name: value
                for name, value in encoder.item(found, has_match=has_match).items()
                if name != "id"
            },
            **_provider_text(listing, FOUND_WORDS_MAX),
            "tags": clean_tags(listing.tags),
            "quality": quality_json(found.reputation.quality),
            "verified": found.reputation.is_verified,
            **({"status": "paused"} if listing.status == "paused" else {}),
            "links": {name: links[name] for name in ("agent", "mcp", "gateway") if name in links},
        }

    async def _get_api(self, arguments: Mapping[str, Any]) -> ToolResult:
        start = read_cursor(arguments.get("cursor"))
        if start is None:
            raise _invalid_argument(
                "cursor", "is no cursor of this gateway; use nextCursor of the last result"
            )
        listing = await self.find_listing(arguments["apiId"])
        operations = await self.operations_of(listing)
        page, next_cursor = take_page(operations, start)
        reputation = await self._context.catalog.reputation(listing.id)
        details = self._context.encoder.details(listing, reputation)
        shown = {
            name: value for name, value in details.items() if name not in ("openapi", "operations", "id")
        }
        return ToolResult(
            content={
                "apiId": listing.id,
                **shown,
                **_provider_text(listing, SHOWN_WORDS_MAX),
                "tools": [_tool_json(listing, operation) for operation in page],
                "toolsTotal": len(operations),
                **({} if next_cursor is None else {"nextCursor": next_cursor}),
                "notice": UNTRUSTED,
            }
        )

    async def _list_calls(self, invocation: ToolInvocation) -> ToolResult:
        context = self._context
        try:
            wallet = await context.authenticate(invocation.mcp_request.request)
        except Refusal as refusal:
            answer = self._problem_result(refusal.problem, invocation.mcp_request)
            refused = {**answer.content, "authentication": _PROVE_WALLET.format(url=context.public_url)}
            return ToolResult(content=refused, is_error=True)
        arguments = dict(invocation.arguments)
        call_id = arguments.pop("callId", None)
        if call_id is not None:
            record = await find_call(context.call_history, call_id, wallet.address)
            return list_result([call_json(record, context.find_asset)], "calls", total=1)
        arguments.setdefault("limit", 20)
        raw = urlencode({name: _query_text(value) for name, value in arguments.items()}).encode()
        query = read_history_query(raw, wallet.address)
        now_ms = context.now_ms()
        async with context.read_turns.turn("books", wallet.address):
            page = await history_json(
                query, context.call_history, find_asset=context.find_asset, now_ms=now_ms
            )
        return ToolResult(content={**page, "notice": UNTRUSTED})

    async def _proxy(self, invocation: ToolInvocation) -> ToolResult:
        named = split_name(invocation.arguments["toolName"])
        if named is None:
            raise _invalid_argument("toolName", "must have the form <apiId>.<tool>; get_api lists the names")
        listing_id, tool = named
        listing = await self.find_listing(listing_id)
        operation = _find_operation(await self.operations_of(listing), tool)
        if operation is None:
            raise _invalid_argument("toolName", "names no operation of this API; get_api lists the names")
        arguments, payments = _take_arguments(operation, invocation.arguments)
        _check_against(input_schema_of(operation), arguments)
        controls = {name: invocation.arguments[name] for name in CONTROLS if name in invocation.arguments}
        return await self._call(listing, operation, arguments, controls, invocation, payments)

    # ---- The operations of one listing.

    async def find_listing(self, listing_id: str) -> Listing:
        """The listing. Raises Refusal if it is unknown, retired or suspended."""
        return await find_public_listing(self._context.catalog, ListingId(listing_id))

    async def operations_of(self, listing: Listing) -> tuple[ApiOperation, ...]:
        """The operations of a listing, cached per revision. A thread reads the document, because it may be large."""
        known = self._operations.find(listing, None)
        if known is not None:
            return known
        return self._operations.put(listing, None, await asyncio.to_thread(list_operations, listing))

    async def run_operation(
        self, listing: Listing, operations: Sequence[ApiOperation], invocation: ToolInvocation
    ) -> ToolResult | None:
        """Runs an operation of the listing; None for an unknown name."""
        operation = _find_operation(operations, invocation.name)
        if operation is None:
            return None
        try:
            _check_against(checked_schema(operation), invocation.arguments)
            named = name_controls(operation.input_schema.get("properties", {}))
            controls = {
                control: invocation.arguments[name]
                for control, name in named.items()
                if name in invocation.arguments and not operation.price.is_free
            }
            own = {
                name: value for name, value in invocation.arguments.items() if name not in set(named.values())
            }
            return await self._call(listing, operation, own, controls, invocation)
        except TollwayError as exc:
            return self._problem_result(exc.problem, invocation.mcp_request)

    # ---- The call.

    async def _call(
        self,
        listing: Listing,
        operation: ApiOperation,
        arguments: Mapping[str, Any],
        controls: Mapping[str, str],
        invocation: ToolInvocation,
        payments: Sequence[Header] = (),
    ) -> ToolResult:
        """Makes the call. `payments`: payment headers among the arguments; those of `_meta` and of the MCP request are added."""
        request = make_request(operation, arguments)
        if not isinstance(request, ToolRequest):
            raise _invalid((request,))
        call = ToolCall(
            name=qualified_name(listing.id, operation),
            listing_id=listing.id,
            request=request,
            gateway_url=f"{self._context.public_url}/api/v2/gateway/{listing.id}",
            origin=self._context.origin,
        )
        presented = collect_payments(
            invocation.meta, invocation.mcp_request.request.headers.items(), payments
        )
        answer = await make_internal_call(
            self._call_app,
            listing.id,
            request,
            controls=[*_control_headers(controls), *presented],
            mcp_request=invocation.mcp_request,
            bytes_max=TOOL_RESPONSE_BYTES_MAX,
        )
        result = response_result(call, answer)
        if operation.metering is not None or "tollway-price-max" in answer.headers:
            result = replace(result, meta={**result.meta, **await self._read_price(answer.headers)})
        return replace(result, has_payment=bool(presented) or "paymentTx" in controls)

    async def _read_price(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """The member of `_meta` of a metered call that is charged or held; empty for any other, and where the database is away: the response is paid for. The price is
        written soon after the last byte."""
        call_id = headers.get("tollway-call-id", "")
        if headers.get("tollway-payment-state") not in ("charged", "held") or not call_id:
            return {}
        try:
            record = await self._context.call_history.find_call(CallId(call_id))
            for pause_s in PRICE_PAUSES_S:
                if record is None or not record.is_unmeasured:
                    break
                await asyncio.sleep(pause_s)
                record = await self._context.call_history.find_call(CallId(call_id))
        except StorageUnavailable:
            return {}
        if record is None or record.metering is None:
            return {}
        described = call_json(record, self._context.find_asset)
        members = {name: described[name] for name in ("price", "priceMax", "currency", "quantities")}
        if record.is_unmeasured:
            members["price"] = None
        return {USED: {"callId": call_id, **members}}

    def _problem_result(self, problem: Problem, mcp_request: McpRequest) -> ToolResult:
        path = mcp_request.request.url.path
        _, _, body = render_problem(
            problem, public_url=self._context.public_url, request_id=mcp_request.request_id, instance=path
        )
        return problem_result(body)


def _find_operation(operations: Sequence[ApiOperation], tool: str) -> ApiOperation | None:
    return next((one for one in operations if one.tool == tool), None)


def _provider_text(listing: Listing, most: int) -> dict[str, str]:
    """Name and description of the provider without hidden or reordering characters, because a model reads them as they are."""
    return {
        "name": clean_line(listing.name, NAME_MAX),
        "description": clean_prose(listing.description, most),
    }


def _price_json(listing: Listing, operation: ApiOperation) -> dict[str, Any]:
    """`mode` and the formula of a metered price only."""
    if operation.metering is not None:
        return offer(operation).to_json(listing.currency)
    return {"amount": operation.price.text, "currency": listing.currency}


def _tool_json(listing: Listing, operation: ApiOperation) -> dict[str, Any]:
    return {
        "toolName": qualified_name(listing.id, operation),
        "method": operation.method,
        "path": operation.path,
        "summary": operation.summary,
        "price": _price_json(listing, operation),
        "inputSchema": input_schema_of(operation),
        "arguments": arguments_json(operation),
    }


# ---- Headers of a call.


def _control_headers(controls: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers of the control arguments. Accepts only bound signatures, because others than the gateway may read arguments."""
    if "paymentSignature" in controls and "paymentSignatureParams" not in controls:
        raise _invalid_argument(
            "paymentSignatureParams",
            "is required with paymentSignature: a tool accepts only a signature that is bound to the request",
        )
    return [(_CONTROL_HEADERS[name], value) for name, value in controls.items()]


# ---- Arguments.


def _take_arguments(
    operation: ApiOperation, given: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Sequence[Header]]:
    """The arguments of the operation, and the payment headers among them. Clients of Bedrock AgentCore send `parameters` in place of `arguments`, with the
    payment in its member `headers`."""
    if "parameters" not in given:
        return given.get("arguments", {}), ()
    if "arguments" in given:
        raise _invalid_argument("parameters", "repeats arguments; send one of them")
    parameters = dict(given["parameters"])
    headers = parameters.get("headers")
    if not isinstance(headers, Mapping):
        return parameters, ()
    payments = [(name, value) for name, value in headers.items() if is_payment_header(name, value)]
    others = {name: value for name, value in headers.items() if not is_payment_header(name, value)}
    if "headers" in operation.input_schema.get("properties", {}):
        if payments:
            parameters["headers"] = others
    elif others:
        raise _invalid_argument(
            "parameters/headers",
            "may have PAYMENT-SIGNATURE, X-PAYMENT and Authorization: Payment only; send other headers as arguments of the operation",
        )
    else:
        del parameters["headers"]
    return parameters, payments


def _check_against(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that do not meet the schema, before any look-up and before a payment is verified."""
    if not _is_writable(arguments):
        detail = "has a value that JSON does not allow"
        raise _invalid((FieldError(code="unwritable", detail=detail, pointer="/arguments"),))
    errors = check_arguments(schema, arguments)
    if errors:
        raise _invalid(errors)


def _is_writable(arguments: Mapping[str, Any]) -> bool:
    """Whether JSON can represent the arguments. Python's parser also accepts NaN, infinities and lone surrogates."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


def _invalid(errors: tuple[FieldError, ...]) -> Refusal:
    detail = describe_errors(errors) + " Nothing was paid or sent."
    return refuse(code=Code.VALIDATION_FAILED, detail=detail, errors=errors, payment_state="none")


def _invalid_argument(argument: str, detail: str) -> Refusal:
    return _invalid((FieldError(code="invalid", detail=detail, pointer=f"/arguments/{argument}"),))


def _query_text(value: Any) -> str:
    """An argument as text in the query of the same read over HTTP."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.9f}"
    return str(value)


PRICE_PAUSES_S = (0.05, 0.1, 0.2, 0.4)
"""Between two reads of a metered call whose price is not written."""
LISTS_CACHE_MS = 60_000
"""How long a client may cache a list of tools. The list contains prices, and an earlier price stays valid for ten minutes."""

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
    """The MCP server of one process. Many tasks may call it at once."""

    def __init__(self, context: WebContext) -> None:
        self._tools = McpTools(context)
        self._body_bytes_max = context.limits.control_body_bytes_max
        about = {"version": __version__, "website_url": context.public_url, "cache_hints": _HINTS}
        self._shared: dict[str, Any] = {**about, **_EMPTY_HANDLERS}

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
            invocation = _read_call(ctx, params, mcp_request)
            return _to_result(await mcp_tools.run(invocation), ctx, invocation)

        server: Server[Any] = Server(
            "tollway",
            title="Tollway",
            instructions=INSTRUCTIONS,
            get_tool_input_schema={tool.name: tool.input_schema for tool in GATEWAY_TOOLS}.get,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            **self._shared,
        )
        await self._serve(server, scope, receive, send)

    async def find_api(self, api_id: str) -> tuple[Listing, tuple[ApiOperation, ...]]:
        """The arguments of `serve_api`. Raises Refusal if the listing is unknown, retired or suspended."""
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
            return _to_result(await mcp_tools.run_operation(listing, operations, invocation), ctx, invocation)

        def find_schema(name: str) -> Mapping[str, Any] | None:
            found = _find_operation(operations, name)
            return None if found is None else api_tool(listing, found).input_schema

        server: Server[Any] = Server(
            f"tollway.{listing.id}",
            instructions=API_INSTRUCTIONS,
            get_tool_input_schema=find_schema,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            **self._shared,
        )
        await self._serve(server, scope, receive, send)

    async def _serve(self, server: Server[Any], scope: Scope, receive: Receive, send: Send) -> None:
        server.middleware.clear()  # the SDK's own traces, which the gateway does not collect
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
    return ToolInvocation(
        name=params.name,
        arguments=params.arguments or {},
        meta=meta if isinstance(meta, Mapping) else {},
        mcp_request=mcp_request,
    )


def _to_tool(tool: ToolDefinition) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        output_schema=None if tool.output_schema is None else dict(tool.output_schema),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.is_reading,
            destructive_hint=tool.is_destructive and not tool.is_reading,
            open_world_hint=True,
        ),
    )


def _to_result(answer: ToolResult | None, ctx: Context, invocation: ToolInvocation) -> types.CallToolResult:
    if answer is None:
        raise MCPError(types.INVALID_PARAMS, f"There is no tool {clean_line(invocation.name, 128)!r} here.")
    if MPP_REQUIRED in answer.meta and not answer.has_payment and _requests_payment_error(ctx, invocation):
        data = {**answer.meta[MPP_REQUIRED], "x402": answer.meta.get(PAYMENT_ERROR)}
        raise MCPError(PAYMENT_REQUIRED_CODE, "Payment Required", data)
    content = dict(answer.content)
    text = answer.text or render_json(content).decode("utf-8", "replace")
    result = types.CallToolResult(
        content=[types.TextContent(text=text)], structured_content=content, is_error=answer.is_error
    )
    if answer.meta:
        result.meta = dict(answer.meta)
    return result


PAYMENT_REQUIRED_CODE = -32042
"""The error of MPP's MCP transport. Revision 2026-07-28 of MCP reserves the code, and clients of x402 look for results only."""


def _requests_payment_error(ctx: Context, invocation: ToolInvocation) -> bool:
    """Whether a call without a payment is that error: for a client that announces MPP by `Accept-Payment` and speaks a revision that has the code."""
    headers = invocation.mcp_request.request.headers
    return ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS and "accept-payment" in headers


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
"""Handlers of prompts and resources: there are none, and the protocol has a response for that."""


def _unknown_cursor() -> MCPError:
    return MCPError(types.INVALID_PARAMS, "This cursor is none that this gateway gave.")
