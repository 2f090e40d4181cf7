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
from tollway.client.shown_text import bound_document, plain_line, show
from tollway.client.tool_answers import (
    DOCUMENT_CHARACTERS_MAX,
    UNTRUSTED,
    ToolAnswer,
    describe_answer,
    explain,
    read_id,
    read_price,
)
from tollway.client.tool_schemas import SEARCH_LIMIT_MAX, Tool, find_complaint
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
    _calling: asyncio.Semaphore
    _looking: asyncio.Semaphore

    @classmethod
    def over(cls, client: AsyncTollwayClient) -> "AgentTools":
        return cls(client, asyncio.Semaphore(CALLS_AT_ONCE_MAX), asyncio.Semaphore(LOOKUPS_AT_ONCE_MAX))

    async def use(self, tool: Tool, arguments: Arguments) -> ToolAnswer:
        """Runs one tool. Raises nothing but what is a mistake of ours, and cancellation."""
        complaint = find_complaint(tool, arguments)
        if complaint is not None:
            return ToolAnswer.of_error("invalid_arguments", complaint)
        runs: Mapping[str, Callable[[Arguments], Awaitable[ToolAnswer]]] = {
            "search_apis": self._search,
            "describe_api": self._describe,
            "call_api": self._call,
            "my_calls": self._list_calls,
            "wallet_status": self._tell_status,
        }
        try:
            return await runs[tool.name](arguments)
        except (CallerFailure, StorageUnavailable) as failure:
            return explain(failure, limits=_tell_limits(self.client))
        except ValueError as exc:
            return ToolAnswer.of_error("invalid_arguments", str(exc))

    # ---- Finding.

    async def _search(self, arguments: Arguments) -> ToolAnswer:
        filters = {name: value for name, value in arguments.items() if name != "query"}
        filters.setdefault("limit", SEARCH_LIMIT)
        words = arguments.get("query")
        page = await self.client.search(words if isinstance(words, str) else None, **filters)
        items = [item for item in page["apis"] if read_id(item.get("id")) is not None][:SEARCH_LIMIT_MAX]
        async with asyncio.TaskGroup() as group:
            lookups = [group.create_task(self._look_up(str(item["id"]))) for item in items]
        found = [_describe_found(item, lookup.result()) for item, lookup in zip(items, lookups, strict=True)]
        return ToolAnswer({"notice": UNTRUSTED, "apis": found, **_read_counts(page)})

    async def _look_up(self, api_id: str) -> Mapping[str, object]:
        """The details of a listing; nothing where there are none any more."""
        async with self._looking:
            try:
                return await self.client.show(api_id)
            except (CallerFailure, ValueError):
                return {}

    async def _describe(self, arguments: Arguments) -> ToolAnswer:
        document = await self.client.describe(str(arguments["apiId"]))
        # Details, where a gateway has no better: without the provider's own document, which may be a mebibyte.
        told = {name: value for name, value in document.items() if name != "openapi"}
        payment = told.get("payment")
        if isinstance(payment, dict):  # the steps of paying are for others: here `call_api` takes them
            told["payment"] = {name: value for name, value in payment.items() if name != "rails"}
        return _hand_on(told, name="api")

    # ---- Calling.

    async def _call(self, arguments: Arguments) -> ToolAnswer:
        api_id, path = str(arguments["apiId"]), str(arguments.get("path", ""))
        options = _read_options(arguments, self.client.allowance.max_price)
        given = arguments.get("idempotencyKey")
        async with self._calling:
            key = given if isinstance(given, str) else await self._keep_key(api_id, path, options)
            keyed: CallOptions = {**options, "idempotency_key": key}
            answer = await self.client.call(api_id, path, **keyed)
            if key is not None and given is None and _is_final(answer):
                await asyncio.to_thread(self.client.drop_key, key, api_id, path, **options)
        return describe_answer(answer)

    async def _keep_key(self, api_id: str, path: str, options: CallOptions) -> str | None:
        return await asyncio.to_thread(self.client.keep_key, api_id, path, **options)

    # ---- The bill.

    async def _list_calls(self, arguments: Arguments) -> ToolAnswer:
        call_id = arguments.get("callId")
        if isinstance(call_id, str):
            found = await self.client.find_call(call_id)
        else:
            found = await self.client.history(**{"limit": HISTORY_LIMIT, **arguments})
        return _hand_on(found)

    async def _tell_status(self, _: Arguments) -> ToolAnswer:
        spending = await asyncio.to_thread(self.client.spending)
        address = self.client.address
        return ToolAnswer(
            {
                "gateway": self.client.gateway,
                "wallet": None if address is None else str(address),
                "limits": _tell_limits(self.client),
                "spent": {
                    "session": {show(symbol): _tell(atto) for symbol, atto in spending.session.items()},
                    "total": {show(symbol): _tell(atto) for symbol, atto in spending.total.items()},
                },
            }
        )


def _hand_on(document: Mapping[str, object], *, name: str | None = None) -> ToolAnswer:
    """A document of the gateway, of a bounded size, under `name` or as it is. No member of it takes the place of ours."""
    bounded, is_cut = bound_document(document, characters_max=DOCUMENT_CHARACTERS_MAX)
    assert isinstance(bounded, dict)
    members = {name: bounded} if name is not None else bounded
    theirs = {key: value for key, value in members.items() if key not in ("notice", "isCut")}
    return ToolAnswer({"notice": UNTRUSTED, **theirs, **({"isCut": True} if is_cut else {})})


def _read_counts(page: Mapping[str, object]) -> dict[str, object]:
    numbers = {name: _read_number(page.get(name)) for name in ("total", "page", "limit")}
    told: dict[str, object] = {name: number for name, number in numbers.items() if isinstance(number, int)}
    if page.get("totalIsLowerBound") is True:
        told["totalIsLowerBound"] = True
    return told


def _describe_found(item: Mapping[str, object], details: Mapping[str, object]) -> Mapping[str, object]:
    """What is needed to choose, each of its type: what is of another one is left out."""
    quality, is_verified, status = (details.get(name) for name in ("quality", "verified", "status"))
    told = {
        "apiId": read_id(item.get("id")),
        "name": _cut(item.get("name"), NAME_CHARACTERS_MAX),
        "description": _cut(item.get("description"), DESCRIPTION_CHARACTERS_MAX),
        "price": read_price(f"{item.get('pricePerRequest')} {item.get('currency')}"),
        "match": _read_words(item.get("match")),
        "networks": _read_words(details.get("networks")),
        "tags": _read_words(details.get("tags")),
        "quality": _read_quality(quality) if isinstance(quality, Mapping) else None,
        "verified": is_verified if isinstance(is_verified, bool) else None,
        "status": _cut(status, WORD_CHARACTERS_MAX) if isinstance(status, str) else None,
    }
    return {name: value for name, value in told.items() if value is not None}


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
    return [_cut(word, WORD_CHARACTERS_MAX) for word in value[:WORDS_MAX] if isinstance(word, str)]


def _cut(text: object, most: int) -> str:
    return show(plain_line(show(text)), characters_max=most)


def _read_options(arguments: Arguments, limit: Cap) -> CallOptions:
    """What the agent wishes, within what its owner allows. Raises ValueError."""
    headers, query = arguments.get("headers", {}), arguments.get("query", {})
    assert isinstance(headers, dict)
    assert isinstance(query, dict)
    reserved = sorted(name for name in headers if name.strip().lower() in _RESERVED_HEADERS)
    if reserved:
        raise ValueError(f"these headers are not for you to set: {', '.join(reserved)}")
    document, body, wish = arguments.get("json"), arguments.get("body"), arguments.get("maxPrice")
    if document is not None and body is not None:
        raise ValueError("a call has either json or body")
    has_body = document is not None or body is not None
    options: CallOptions = {
        "method": str(arguments.get("method", "POST" if has_body else "GET")),
        "headers": headers,
        "params": {name: _parameter(value) for name, value in query.items()},
        "max_price": limit.lower_of(Cap.parse(wish)) if isinstance(wish, str) else limit,
    }
    if document is not None:
        options["json"] = document
    elif isinstance(body, str):
        options["content"] = body
    return options


def _parameter(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_final(answer: CallResponse) -> bool:
    """Whether the outcome of the call is known with it. A refusal before the payment was looked at tells nothing of an
    earlier sending of the same request."""
    return not is_from_gateway(answer) or answer.payment.state in ("charged", "released")


def _tell_limits(client: AsyncTollwayClient) -> dict[str, str | None]:
    limits = client.allowance
    return {
        "perCall": limits.max_price.tell(),
        "networkFee": DEFAULT_FEE if limits.max_fee is None else limits.max_fee.tell(),
        "session": None if limits.session_budget is None else limits.session_budget.tell(),
        "total": None if limits.budget is None else limits.budget.tell(),
    }


def _tell(atto: int) -> str:
    return format_decimal(atto, decimals=ATTO_DECIMALS)
