"""What the tools of an agent on this machine do: search, describe, call and pay, look at the bill. No protocol here.

The agent is trusted with the wallet's money up to the limits, and with nothing else: it never sees the key, it cannot
raise a limit, and it reaches no other host than the gateway. Whatever goes wrong with a request or with money becomes an
answer in plain words; it never raises for those.

A call is made under an idempotency key of its request. The key stays on disk until the answer has been handed over, so a
repeat after a lost answer, a cancelled request or a crash is the same call to the gateway, and is paid once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tollway.client.call_plan import CallOptions
from tollway.client.client import AsyncTollwayClient
from tollway.client.failures import CallerFailure
from tollway.client.quote import ATTO_DECIMALS, Cap
from tollway.client.reply import CallResponse, is_from_gateway
from tollway.client.shown_text import bound_document, format_value, plain_line
from tollway.client.tool_answers import (
    DOCUMENT_CHARACTERS_MAX,
    UNTRUSTED,
    AgentToolResult,
    describe_call,
    describe_failure,
    read_id,
    read_price,
)
from tollway.client.tool_schemas import SEARCH_LIMIT_MAX, AgentTool, find_argument_error
from tollway.errors import StorageUnavailable
from tollway.money import format_decimal

CALLS_AT_ONCE_MAX = 8
LOOKUPS_AT_ONCE_MAX = 8
SEARCH_LIMIT = 10
HISTORY_LIMIT = 10
NAME_CHARACTERS_MAX, DESCRIPTION_CHARACTERS_MAX = 120, 400
WORD_CHARACTERS_MAX, WORDS_MAX = 64, 20
"""Of a tag, a network, a state; and how many of them."""

DEFAULT_FEE = "ten times the payment or 0.05 dollars, and never more than the maximum of the network"

Arguments = Mapping[str, object]

_RESERVED_HEADERS = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "cookie",
    }
    | {"idempotency-key", "proxy-authorization", "keep-alive", "accept-encoding"}
)


@dataclass(frozen=True, slots=True)
class AgentTools:
    """Safe to use from many tasks at once."""

    client: AsyncTollwayClient
    _call_slots: asyncio.Semaphore
    _lookup_slots: asyncio.Semaphore

    @classmethod
    def for_client(cls, client: AsyncTollwayClient) -> "AgentTools":
        return cls(client, asyncio.Semaphore(CALLS_AT_ONCE_MAX), asyncio.Semaphore(LOOKUPS_AT_ONCE_MAX))

    async def run_tool(self, tool: AgentTool, arguments: Arguments) -> AgentToolResult:
        """Runs one tool. Raises nothing but what is a mistake of ours, and cancellation."""
        argument_error = find_argument_error(tool, arguments)
        if argument_error is not None:
            return AgentToolResult.of_error("invalid_arguments", argument_error)
        runs: Mapping[str, Callable[[Arguments], Awaitable[AgentToolResult]]] = {
            "search_apis": self._search,
            "describe_api": self._describe,
            "call_api": self._call,
            "my_calls": self._list_calls,
            "wallet_status": self._describe_wallet,
        }
        try:
            return await runs[tool.name](arguments)
        except (CallerFailure, StorageUnavailable) as failure:
            return describe_failure(failure, limits=_describe_limits(self.client))
        except ValueError as exc:
            return AgentToolResult.of_error("invalid_arguments", str(exc))

    # ---- Finding.

    async def _search(self, arguments: Arguments) -> AgentToolResult:
        filters = {name: value for name, value in arguments.items() if name != "query"}
        filters.setdefault("limit", SEARCH_LIMIT)
        words = arguments.get("query")
        page = await self.client.search(words if isinstance(words, str) else None, **filters)
        listings = [listing for listing in page["apis"] if read_id(listing.get("id")) is not None][
            :SEARCH_LIMIT_MAX
        ]
        async with asyncio.TaskGroup() as group:
            lookups = [group.create_task(self._fetch_details(str(listing["id"]))) for listing in listings]
        found = [
            _describe_listing(listing, lookup.result())
            for listing, lookup in zip(listings, lookups, strict=True)
        ]
        return AgentToolResult({"notice": UNTRUSTED, "apis": found, **_read_counts(page)})

    async def _fetch_details(self, api_id: str) -> Mapping[str, object]:
        """The details of a listing; nothing where there are none any more."""
        async with self._lookup_slots:
            try:
                return await self.client.show(api_id)
            except (CallerFailure, ValueError):
                return {}

    async def _describe(self, arguments: Arguments) -> AgentToolResult:
        document = await self.client.describe(str(arguments["apiId"]))
        # Details, where a gateway has no better: without the provider's own document, which may be a mebibyte.
        members = {name: value for name, value in document.items() if name != "openapi"}
        payment = members.get("payment")
        if isinstance(payment, dict):  # the steps of paying are for others: here `call_api` takes them
            members["payment"] = {name: value for name, value in payment.items() if name != "rails"}
        return _bound_result(members, name="api")

    # ---- Calling.

    async def _call(self, arguments: Arguments) -> AgentToolResult:
        api_id, path = str(arguments["apiId"]), str(arguments.get("path", ""))
        options = _read_options(arguments, self.client.allowance.max_price)
        given = arguments.get("idempotencyKey")
        async with self._call_slots:
            key = given if isinstance(given, str) else await self._keep_key(api_id, path, options)
            keyed: CallOptions = {**options, "idempotency_key": key}
            response = await self.client.call(api_id, path, **keyed)
            if key is not None and given is None and _is_final(response):
                await asyncio.to_thread(self.client.drop_key, key, api_id, path, **options)
        return describe_call(response)

    async def _keep_key(self, api_id: str, path: str, options: CallOptions) -> str | None:
        return await asyncio.to_thread(self.client.keep_key, api_id, path, **options)

    # ---- The bill.

    async def _list_calls(self, arguments: Arguments) -> AgentToolResult:
        call_id = arguments.get("callId")
        if isinstance(call_id, str):
            found = await self.client.find_call(call_id)
        else:
            found = await self.client.history(**{"limit": HISTORY_LIMIT, **arguments})
        return _bound_result(found)

    async def _describe_wallet(self, _: Arguments) -> AgentToolResult:
        spending = await asyncio.to_thread(self.client.spending)
        address = self.client.address
        return AgentToolResult(
            {
                "gateway": self.client.gateway,
                "wallet": None if address is None else str(address),
                "limits": _describe_limits(self.client),
                "spent": {
                    "session": {
                        format_value(symbol): _format_atto(atto) for symbol, atto in spending.session.items()
                    },
                    "total": {
                        format_value(symbol): _format_atto(atto) for symbol, atto in spending.total.items()
                    },
                },
            }
        )


def _bound_result(document: Mapping[str, object], *, name: str | None = None) -> AgentToolResult:
    """A document of the gateway, of a bounded size, under `name` or as it is. No member of it takes the place of ours."""
    bounded, is_cut = bound_document(document, characters_max=DOCUMENT_CHARACTERS_MAX)
    assert isinstance(bounded, dict)
    members = {name: bounded} if name is not None else bounded
    theirs = {key: value for key, value in members.items() if key not in ("notice", "isCut")}
    return AgentToolResult({"notice": UNTRUSTED, **theirs, **({"isCut": True} if is_cut else {})})


def _read_counts(page: Mapping[str, object]) -> dict[str, object]:
    numbers = {name: _read_number(page.get(name)) for name in ("total", "page", "limit")}
    members: dict[str, object] = {name: number for name, number in numbers.items() if isinstance(number, int)}
    if page.get("totalIsLowerBound") is True:
        members["totalIsLowerBound"] = True
    return members


def _describe_listing(listing: Mapping[str, object], details: Mapping[str, object]) -> Mapping[str, object]:
    """What is needed to choose, each of its type: what is of another one is left out."""
    quality, is_verified, status = (details.get(name) for name in ("quality", "verified", "status"))
    members = {
        "apiId": read_id(listing.get("id")),
        "name": _cut_text(listing.get("name"), NAME_CHARACTERS_MAX),
        "description": _cut_text(listing.get("description"), DESCRIPTION_CHARACTERS_MAX),
        "price": read_price(f"{listing.get('pricePerRequest')} {listing.get('currency')}"),
        "match": _read_words(listing.get("match")),
        "networks": _read_words(details.get("networks")),
        "tags": _read_words(details.get("tags")),
        "quality": _read_quality(quality) if isinstance(quality, Mapping) else None,
        "verified": is_verified if isinstance(is_verified, bool) else None,
        "status": _cut_text(status, WORD_CHARACTERS_MAX) if isinstance(status, str) else None,
    }
    return {name: value for name, value in members.items() if value is not None}


def _read_quality(quality: Mapping[str, object]) -> Mapping[str, int | float]:
    names = ("calls30d", "successRate30d", "p50Ms", "p95Ms")
    numbers = {name: _read_number(quality.get(name)) for name in names}
    return {name: number for name, number in numbers.items() if number is not None}


def _read_number(value: object) -> int | float | None:
    """A finite number from 0 to 2^53, which every reader of JSON reads alike."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= 2**53 else None


def _read_words(value: object) -> list[str] | None:
    if not isinstance(value, list):
        return None
    return [_cut_text(word, WORD_CHARACTERS_MAX) for word in value[:WORDS_MAX] if isinstance(word, str)]


def _cut_text(text: object, most: int) -> str:
    return format_value(plain_line(format_value(text)), characters_max=most)


def _read_options(arguments: Arguments, limit: Cap) -> CallOptions:
    """What the agent wishes, within what its owner allows. Raises ValueError."""
    headers, query = arguments.get("headers", {}), arguments.get("query", {})
    assert isinstance(headers, dict)
    assert isinstance(query, dict)
    reserved = sorted(name for name in headers if name.strip().lower() in _RESERVED_HEADERS)
    if reserved:
        raise ValueError(f"these headers are not for you to set: {', '.join(reserved)}")
    document, body, max_price = arguments.get("json"), arguments.get("body"), arguments.get("maxPrice")
    if document is not None and body is not None:
        raise ValueError("a call has either json or body")
    has_body = document is not None or body is not None
    options: CallOptions = {
        "method": str(arguments.get("method", "POST" if has_body else "GET")),
        "headers": headers,
        "params": {name: _format_parameter(value) for name, value in query.items()},
        "max_price": limit.lower_of(Cap.parse(max_price)) if isinstance(max_price, str) else limit,
    }
    if document is not None:
        options["json"] = document
    elif isinstance(body, str):
        options["content"] = body
    return options


def _format_parameter(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_final(response: CallResponse) -> bool:
    """Whether the outcome of the call is known with it. A refusal before the payment was looked at tells nothing of an
    earlier sending of the same request."""
    return not is_from_gateway(response) or response.payment.state in ("charged", "released")


def _describe_limits(client: AsyncTollwayClient) -> dict[str, str | None]:
    limits = client.allowance
    return {
        "perCall": limits.max_price.describe(),
        "networkFee": DEFAULT_FEE if limits.max_fee is None else limits.max_fee.describe(),
        "session": None if limits.session_budget is None else limits.session_budget.describe(),
        "total": None if limits.budget is None else limits.budget.describe(),
    }


def _format_atto(atto: int) -> str:
    return format_decimal(atto, decimals=ATTO_DECIMALS)
