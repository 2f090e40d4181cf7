"""What each tool of MCP does: finds listings, shows one, calls an operation, lists a wallet's calls.

Free of the protocol: arguments in, an answer out. Whatever is refused is an answer too, as the problem that HTTP would
tell. Loaded with the first MCP request, because checking arguments needs much that nothing else does.
"""

import asyncio
import base64
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tollway.discovery.argument_check import check_arguments
from tollway.discovery.plain_words import clean_line, clean_prose, clean_tags
from tollway.discovery.shown_listing import arguments_json
from tollway.discovery.sold_operations import SoldOperation, list_sold_operations
from tollway.discovery.tool_request import ToolRequest, make_request
from tollway.discovery.tool_result import ToolAnswer, ToolCall, page_of, tell_answer, tell_problem
from tollway.discovery.tools import (
    ANSWER_BYTES_MAX,
    CONTROLS,
    GATEWAY_TOOLS,
    UNTRUSTED,
    api_tool,
    input_schema_of,
    name_controls,
    qualified_name,
    read_cursor,
    split_name,
    take_page,
)
from tollway.errors import Code, FieldError, Problem, Refusal, TollwayError
from tollway.identifiers import ListingId
from tollway.payments.x402 import PAYMENT_HEADER, PAYMENT_HEADER_V1
from tollway.registry.catalog import Found
from tollway.registry.listing import Listing
from tollway.web.history_routes import call_json, find_call, read_history_query, show_history
from tollway.web.inner_call import Visit, make_inner_call
from tollway.web.listing_finder import find_shown_listing
from tollway.web.listing_query import parse_listing_query
from tollway.web.listing_wire import quality_json
from tollway.web.mcp_desk import McpDesk
from tollway.web.problems import LastResort, describe_errors, render_problem

OPERATIONS_KEPT_MAX = 32
"""Listings whose operations are remembered. A large document gives some megabytes of them."""

NAME_MAX, FOUND_WORDS_MAX, SHOWN_WORDS_MAX = 120, 300, 4_000
"""Characters of a listing's name, and of its description where many are found and where one is shown."""

_HEADERS = {
    "paymentTx": "x-payment-tx",
    "paymentSignature": "x-signature",
    "paymentSignatureParams": "x-signature-params",
    "paymentNetwork": "x-payment-network",
    "idempotencyKey": "idempotency-key",
    "maxPrice": "tollway-max-price",
}
_PROVE = (
    "Prove your wallet on the HTTP request that carries this tool call: sign it (ERC-8128), or send "
    "`Authorization: Bearer` with a session token of POST {url}/api/v2/auth/session."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call of a tool. `payment`: what `_meta` showed under `x402/payment`, whatever it is; None when nothing."""

    name: str
    arguments: Mapping[str, Any]
    payment: Any
    visit: Visit


class ToolRoom:
    """One for a process. Safe to call from many tasks at once."""

    def __init__(self, desk: McpDesk) -> None:
        self._desk = desk
        self._call_app = LastResort(desk.call_app, public_url=desk.public_url)
        self._operations: OrderedDict[tuple[ListingId, int], tuple[SoldOperation, ...]] = OrderedDict()
        self._tools = {tool.name: tool for tool in GATEWAY_TOOLS}

    # ---- The gateway's tools.

    async def run(self, asked: Asked) -> ToolAnswer | None:
        """A tool of `GATEWAY_TOOLS`; None for a name that is none of them."""
        tool = self._tools.get(asked.name)
        if tool is None:
            return None
        try:
            _check(tool.input_schema, asked.arguments)
            match tool.name:
                case "search_resources":
                    return await self._search(asked.arguments)
                case "get_api":
                    return await self._show(asked.arguments)
                case "list_my_calls":
                    return await self._list_calls(asked)
                case _:
                    return await self._proxy(asked)
        except TollwayError as exc:
            return self._tell(exc.problem, asked.visit)

    async def _search(self, arguments: Mapping[str, Any]) -> ToolAnswer:
        words = {"query": "q"}
        pairs = {words.get(name, name): _text(value) for name, value in arguments.items()}
        pairs.setdefault("limit", "10")
        if pairs.get("q", "").strip():
            pairs.setdefault("sort", "relevance")
        query = parse_listing_query(urlencode(pairs).encode())
        page = await self._desk.catalog.search(query)
        return page_of(
            [self._resource(found, has_match=query.words is not None) for found in page.found],
            "resources",
            total=page.total,
            **({"totalIsLowerBound": True} if page.is_lower_bound else {}),
            page=query.page,
            limit=query.limit,
        )

    def _resource(self, found: Found, *, has_match: bool) -> dict[str, Any]:
        listing, shape = found.listing, self._desk.shape
        links = shape.links(listing)
        return {
            "apiId": listing.id,
            **{name: value for name, value in shape.item(found, has_match=has_match).items() if name != "id"},
            **_words(listing, FOUND_WORDS_MAX),
            "tags": clean_tags(listing.tags),
            "quality": quality_json(found.standing.quality),
            "verified": found.standing.is_verified,
            "links": {name: links[name] for name in ("agent", "mcp", "gateway") if name in links},
        }

    async def _show(self, arguments: Mapping[str, Any]) -> ToolAnswer:
        start = read_cursor(arguments.get("cursor"))
        if start is None:
            raise _refused("cursor", "is none that this gateway gave")
        listing = await self.find(arguments["apiId"])
        operations = await self.operations_of(listing)
        page, next_cursor = take_page(operations, start)
        standing = await self._desk.catalog.standing(listing.id)
        details = self._desk.shape.details(listing, standing)
        shown = {
            name: value for name, value in details.items() if name not in ("openapi", "operations", "id")
        }
        return ToolAnswer(
            content={
                "apiId": listing.id,
                **shown,
                **_words(listing, SHOWN_WORDS_MAX),
                "tools": [_tool_json(listing, operation) for operation in page],
                "toolsTotal": len(operations),
                **({} if next_cursor is None else {"nextCursor": next_cursor}),
                "notice": UNTRUSTED,
            }
        )

    async def _list_calls(self, asked: Asked) -> ToolAnswer:
        desk = self._desk
        try:
            wallet = await desk.wallet(asked.visit.request)
        except Refusal as refusal:
            answer = self._tell(refusal.problem, asked.visit)
            told = {**answer.content, "authentication": _PROVE.format(url=desk.public_url)}
            return ToolAnswer(content=told, is_error=True)
        arguments = dict(asked.arguments)
        call_id = arguments.pop("callId", None)
        if call_id is not None:
            record = await find_call(desk.statement, call_id, wallet)
            return page_of([call_json(record, desk.find_asset)], "calls", total=1)
        arguments.setdefault("limit", 20)
        raw = urlencode({name: _text(value) for name, value in arguments.items()}).encode()
        query = read_history_query(raw, wallet.address)
        now_ms = desk.now_ms()
        page = await show_history(query, desk.statement, find_asset=desk.find_asset, now_ms=now_ms)
        return ToolAnswer(content={**page, "notice": UNTRUSTED})

    async def _proxy(self, asked: Asked) -> ToolAnswer:
        named = split_name(asked.arguments["toolName"])
        if named is None:
            raise _refused("toolName", "is written <apiId>.<tool>, as get_api tells it")
        listing_id, tool = named
        listing = await self.find(listing_id)
        operation = _pick(await self.operations_of(listing), tool)
        if operation is None:
            raise _refused("toolName", "names no operation that this API has")
        arguments = asked.arguments.get("arguments", {})
        _check(input_schema_of(operation), arguments)
        controls = {name: asked.arguments[name] for name in CONTROLS if name in asked.arguments}
        return await self._call(listing, operation, arguments, controls, asked)

    # ---- The operations of one listing.

    async def find(self, listing_id: str) -> Listing:
        """Raises Refusal for a listing that is not shown."""
        return await find_shown_listing(self._desk.catalog, ListingId(listing_id))

    async def operations_of(self, listing: Listing) -> tuple[SoldOperation, ...]:
        """What is sold, by revision. A document may be large: it is read beside the event loop."""
        key = (listing.id, listing.revision)
        known = self._operations.get(key)
        if known is not None:
            self._operations.move_to_end(key)
            return known
        found = await asyncio.to_thread(list_sold_operations, listing)
        self._operations[key] = found
        while len(self._operations) > OPERATIONS_KEPT_MAX:
            self._operations.popitem(last=False)
        return found

    async def run_operation(
        self, listing: Listing, operations: Sequence[SoldOperation], asked: Asked
    ) -> ToolAnswer | None:
        """An operation as a tool of its own; None for a name that the listing does not have."""
        operation = _pick(operations, asked.name)
        if operation is None:
            return None
        try:
            tool = api_tool(listing, operation)
            _check(tool.input_schema, asked.arguments)
            named = name_controls(operation.input_schema.get("properties", {}))
            controls = {
                control: asked.arguments[name]
                for control, name in named.items()
                if name in asked.arguments and not operation.price.is_free
            }
            own = {name: value for name, value in asked.arguments.items() if name not in set(named.values())}
            return await self._call(listing, operation, own, controls, asked)
        except TollwayError as exc:
            return self._tell(exc.problem, asked.visit)

    # ---- The call.

    async def _call(
        self,
        listing: Listing,
        operation: SoldOperation,
        arguments: Mapping[str, Any],
        controls: Mapping[str, str],
        asked: Asked,
    ) -> ToolAnswer:
        request = make_request(operation, arguments)
        if not isinstance(request, ToolRequest):
            raise _invalid((request,))
        call = ToolCall(
            name=qualified_name(listing.id, operation),
            listing_id=listing.id,
            request=request,
            gateway_url=f"{self._desk.public_url}/api/v2/gateway/{listing.id}",
            origin=self._desk.origin,
        )
        answer = await make_inner_call(
            self._call_app,
            listing.id,
            request,
            controls=[*_control_headers(controls), *_payment_header(asked.payment)],
            visit=asked.visit,
            bytes_max=ANSWER_BYTES_MAX,
        )
        return tell_answer(call, answer)

    def _tell(self, problem: Problem, visit: Visit) -> ToolAnswer:
        path = visit.request.url.path
        _, _, body = render_problem(
            problem, public_url=self._desk.public_url, request_id=visit.request_id, instance=path
        )
        return tell_problem(body)


def _pick(operations: Sequence[SoldOperation], tool: str) -> SoldOperation | None:
    return next((one for one in operations if one.tool == tool), None)


def _words(listing: Listing, most: int) -> dict[str, str]:
    """The provider's own, without what hides, reorders or leads astray: a model reads them as they stand."""
    return {
        "name": clean_line(listing.name, NAME_MAX),
        "description": clean_prose(listing.description, most),
    }


def _tool_json(listing: Listing, operation: SoldOperation) -> dict[str, Any]:
    return {
        "toolName": qualified_name(listing.id, operation),
        "method": operation.method,
        "path": operation.path,
        "summary": operation.summary,
        "price": {"amount": operation.price.text, "currency": listing.currency},
        "inputSchema": input_schema_of(operation),
        "arguments": arguments_json(operation),
    }


# ---- What pays and bounds a call.


def _control_headers(controls: Mapping[str, str]) -> list[tuple[str, str]]:
    """Only the bound form of a signature counts here: what stands in arguments may be read by others than the gateway."""
    if "paymentSignature" in controls and "paymentSignatureParams" not in controls:
        raise _refused(
            "paymentSignatureParams",
            "must say what the signature is bound to: a plain one does not count here",
        )
    return [(_HEADERS[name], value) for name, value in controls.items()]


def _payment_header(payment: Any) -> list[tuple[str, str]]:
    """What an x402 client put into `_meta`, as the header that it would have sent; the till judges it."""
    if payment is None:
        return []
    if isinstance(payment, str) and not payment.lstrip().startswith("{"):
        return [(PAYMENT_HEADER.decode(), payment)]
    text = payment if isinstance(payment, str) else json.dumps(payment, separators=(",", ":"))
    is_v1 = isinstance(payment, Mapping) and payment.get("x402Version") == 1
    name = PAYMENT_HEADER_V1 if is_v1 else PAYMENT_HEADER
    return [(name.decode(), base64.b64encode(text.encode("utf-8", "replace")).decode())]


# ---- Arguments.


def _check(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuses what does not meet the schema: before anything is looked up, and before a payment is."""
    if not _is_writable(arguments):
        raise _invalid(
            (FieldError(code="unwritable", detail="no JSON could hold this", pointer="/arguments"),)
        )
    errors = check_arguments(schema, arguments)
    if errors:
        raise _invalid(errors)


def _is_writable(arguments: Mapping[str, Any]) -> bool:
    """Python's parser also takes what is no JSON: numbers that are none, halves of surrogate pairs."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


def _invalid(errors: tuple[FieldError, ...]) -> Refusal:
    detail = describe_errors(errors) + " Nothing was paid or sent."
    return Refusal(Problem(code=Code.VALIDATION_FAILED, detail=detail, errors=errors, payment_state="none"))


def _refused(argument: str, detail: str) -> Refusal:
    return _invalid((FieldError(code="invalid", detail=detail, pointer=f"/arguments/{argument}"),))


def _text(value: Any) -> str:
    """An argument as the query of the same read over HTTP has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.9f}"
    return str(value)
