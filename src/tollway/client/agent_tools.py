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
from tollway.client.shown_text import plain, plain_document, plain_line
from tollway.client.tool_answers import UNTRUSTED, ToolAnswer, describe_answer, explain
from tollway.client.tool_schemas import SEARCH_LIMIT_MAX, Tool, find_complaint
from tollway.errors import StorageUnavailable
from tollway.money import format_decimal

CALLS_AT_ONCE_MAX = 8
LOOKUPS_AT_ONCE_MAX = 8
SEARCH_LIMIT = 10
HISTORY_LIMIT = 10
NAME_CHARACTERS_MAX, DESCRIPTION_CHARACTERS_MAX = 120, 400

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
        apis = page.get("apis")
        items = apis[:SEARCH_LIMIT_MAX] if isinstance(apis, list) else []
        listed = [item for item in items if isinstance(item, dict)]
        async with asyncio.TaskGroup() as group:
            lookups = [group.create_task(self._look_up(str(item.get("id")))) for item in listed]
        found = [_describe_found(item, lookup.result()) for item, lookup in zip(listed, lookups, strict=True)]
        counts = ("total", "totalIsLowerBound", "page", "limit")
        told: dict[str, object] = {name: page[name] for name in counts if name in page}
        return ToolAnswer({"notice": UNTRUSTED, "apis": found, **told})

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
        return ToolAnswer({"notice": UNTRUSTED, "api": plain_document(told)})

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
        document = plain_document(found)
        return ToolAnswer({"notice": UNTRUSTED, **(document if isinstance(document, dict) else {})})

    async def _tell_status(self, _: Arguments) -> ToolAnswer:
        spending = await asyncio.to_thread(self.client.spending)
        address = self.client.address
        return ToolAnswer(
            {
                "gateway": self.client.gateway,
                "wallet": None if address is None else str(address),
                "limits": _tell_limits(self.client),
                "spent": {
                    "session": {symbol: _tell(atto) for symbol, atto in spending.session.items()},
                    "total": {symbol: _tell(atto) for symbol, atto in spending.total.items()},
                },
            }
        )


def _describe_found(item: Mapping[str, object], details: Mapping[str, object]) -> Mapping[str, object]:
    """What is needed to choose. Texts are cut and cleaned; everything else is what the gateway says."""
    told = {
        "apiId": item.get("id"),
        "name": _cut(item.get("name"), NAME_CHARACTERS_MAX),
        "description": _cut(item.get("description"), DESCRIPTION_CHARACTERS_MAX),
        "price": plain(f"{item.get('pricePerRequest')} {item.get('currency')}"),
        "match": item.get("match"),
        **{name: details.get(name) for name in ("networks", "tags", "quality", "verified", "status")},
    }
    return {name: plain_document(value) for name, value in told.items() if value is not None}


def _cut(text: object, most: int) -> str:
    line = plain_line(str(text or ""))
    return line if len(line) <= most else line[: most - 1] + "…"


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
