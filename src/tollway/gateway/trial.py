"""A trial call: a provider's own request to its listing, which costs nothing and which no ledger records.

It takes the way of a paid call from the match of the path to the response: the same checks of the listing, the same address guard, headers, secret and
signature. Only the payment differs: `TrialPayment` claims nothing, so a trial has no row, no credit and no part in the measured quality. A paused listing can be
tried, so that its provider sees that it works before it is resumed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tollway.errors import Problem, Refusal, TollwayError, UpstreamTimeout
from tollway.gateway.access import AccessControl, ActiveCall
from tollway.gateway.body import load_plain
from tollway.gateway.headers import check_control_headers, is_loop, list_dropped
from tollway.gateway.messages import CallRefused, ClientGone, Headers, ProxyRequest, ProxyResponse
from tollway.gateway.problems import LOOP, find_idempotency_key
from tollway.gateway.proxy import Proxy
from tollway.gateway.rail import CallPayment, ClockAndEntropy, CollectResponse
from tollway.gateway.routing import RequestSchemas, Route, Router
from tollway.gateway.usage import UsageReader
from tollway.ids import Address, CallId, ListingId, format_id
from tollway.ledger.ledger import Claimed, Close, Closed, Finish, Ledger, StoredResponse
from tollway.ledger.records import Delivery, Rail
from tollway.limits import KIB, Limits
from tollway.money import LEDGER_DECIMALS_MAX, Price
from tollway.registry.listing import CatalogEntry, is_charged
from tollway.registry.metering import Metering, compute_cost
from tollway.registry.ownership import UNVERIFIED

RESPONSE_BYTES_MAX = 64 * KIB
"""The part of a response that a trial returns."""

_OWN_HEADERS = (
    *(b"tollway-", b"proxy-status", b"content-length", b"access-control-"),
    *(b"x-content-type-options", b"content-security-policy"),
)
"""Headers that the gateway sets on every response of an upstream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The response of the upstream. `is_charged`: whether a caller would pay `price` for this status. `body`: at most `RESPONSE_BYTES_MAX`
    bytes; `is_cut`: the upstream sent more. `call_id`: what the upstream saw; the ledger has no such call. `dropped`: names of headers of the upstream that
    no caller gets, in lower case, with the reason. `price_max`: of a metered listing; `price` is then what the response costs, and `quantities` (unit, quantity)
    are what it stated, None where a quantity is absent or the response is longer than a trial reads."""

    status: int
    headers: Headers
    dropped: Mapping[str, str]
    body: bytes
    is_cut: bool
    latency_ms: int
    call_id: CallId
    is_charged: bool
    price: Price
    currency: str
    price_max: Price | None = None
    quantities: tuple[tuple[str, int], ...] | None = None


class TrialCalls:
    """Runs trial calls. One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        host: str,
        allow_private: bool,
        proxy: Proxy,
        ledger: Ledger,
        access: AccessControl,
        limits: Limits,
        clock: ClockAndEntropy,
        is_verified: Callable[[ListingId], Awaitable[bool]] | None = None,
    ) -> None:
        """`host`, `is_verified`: as of `CallPipeline`. `ledger`, `access`: every payment has them; a trial uses neither."""
        self._host = host
        self._proxy = proxy
        self._ledger = ledger
        self._access = access
        self._limits = limits
        self._clock = clock
        self._is_verified = is_verified
        self._schemas = RequestSchemas()
        self._router = Router(wait_s=proxy.breaker.wait_s, allow_private=allow_private, schemas=self._schemas)

    async def run(self, request: ProxyRequest, entry: CatalogEntry) -> TrialResult:
        """Sends the request to the upstream of the listing, once. The caller of this method has checked that the provider asks for it.
        Raises Refusal as a paid call does, and the failures of the upstream."""
        route = await self._find_route(request, entry)
        listing = route.listing
        active = ActiveCall(self._access, request, listing)
        key = find_idempotency_key(request)
        payment = TrialPayment(self._ledger, request, route, None, active, key=key)
        payment.clock, payment.payer = self._clock, listing.provider
        payment.body = await load_plain(request.body, limits=self._limits)
        connection = self._proxy.connect(payment)
        try:
            async with connection:
                await payment.claim()
                response = await self._proxy.exchange(connection, payment)
                dropped = list_dropped(connection.exchange.headers, response.headers)
        except (TollwayError, ClientGone) as error:
            ended = self._proxy.explain_end(payment, error, connection)
            if not isinstance(ended, CallRefused):
                raise
            # Its call id and its link are of no row.
            problem = replace(ended.problem, call_id=None, members={}, payment_state="none")
            raise Refusal(problem) from ended
        body = await self._read(response)
        assert payment.call_id is not None  # claimed
        result = TrialResult(
            status=response.status,
            headers=[header for header in response.headers if not header[0].startswith(_OWN_HEADERS)],
            dropped=dropped,
            body=body[:RESPONSE_BYTES_MAX],
            is_cut=len(body) > RESPONSE_BYTES_MAX,
            latency_ms=self._clock.now_ms() - request.received_ms,
            call_id=payment.call_id,
            is_charged=not route.is_free and is_charged(payment.charge_on, response.status),
            price=payment.price,
            currency=payment.currency,
        )
        formulas = route.operation_prices[0].formulas
        if not formulas:
            return result
        usage = UsageReader(
            formulas,
            method=request.method,
            status=response.status,
            headers=connection.exchange.headers,
            limits=self._limits,
            lasts_until_close=connection.exchange.lasts_until_close,
        )
        return _measure(result, formulas, usage)

    async def _find_route(self, request: ProxyRequest, entry: CatalogEntry) -> Route:
        """The route of a call that pays, also of a paused listing."""
        problem = check_control_headers(request.headers, limits=self._limits)
        if problem is None and is_loop(request.headers, self._host):
            problem = LOOP
        if problem is not None:
            raise Refusal(problem)
        active = replace(entry, listing=replace(entry.listing, status="active"))
        route = self._router.match(active, request)
        if isinstance(route, Problem):
            raise Refusal(route)
        if self._is_verified is not None and not await self._is_verified(route.listing.id):
            raise Refusal(UNVERIFIED)
        if not route.is_free:
            problem = self._schemas.check(request, route.listing, has_body=request.body.is_present)
        if problem is not None:
            raise Refusal(problem)
        return route

    async def _read(self, response: ProxyResponse) -> bytes:
        """At most one byte chunk more than `RESPONSE_BYTES_MAX`, within the time in which a response is collected."""
        body, rest = bytearray(response.first), response.rest
        if rest is None:
            return bytes(body)
        try:
            async with asyncio.timeout(self._limits.response_collect_s):
                while len(body) <= RESPONSE_BYTES_MAX and (chunk := await rest.read_chunk()):
                    body += chunk
        except TimeoutError as exc:
            raise UpstreamTimeout("The upstream did not end its response in time.") from exc
        finally:
            await rest.end(
                Delivery.PARTIAL, len(body), is_interrupted=False
            )  # closes the connection, and writes nothing
        return bytes(body)


def _measure(result: TrialResult, formulas: Sequence[Metering], usage: UsageReader) -> TrialResult:
    """The result with the price that a caller would pay, where the whole body is there."""
    if result.is_cut:
        return replace(result, price_max=result.price)
    usage.add(result.body)
    usage.end()
    cost = compute_cost(formulas, usage.measure(), max_units=result.price.nano, decimals=LEDGER_DECIMALS_MAX)
    stated = None
    if cost.quantities is not None:
        stated = tuple(zip((part.unit for part in cost.formula.parts), cost.quantities, strict=True))
    return replace(result, price_max=result.price, price=Price.from_nano(cost.units), quantities=stated)


class TrialPayment(CallPayment):
    """The payment of a trial call: it takes nothing and writes nothing."""

    __slots__ = ("clock",)

    clock: ClockAndEntropy

    async def check(self) -> None:
        return None

    async def verify(self) -> None:
        return None

    async def claim(self) -> None:
        clock = self.clock
        self.call_id = CallId(format_id("call", now_ms=clock.now_ms(), entropy=clock.entropy(10)))
        self.claimed = Claimed(epoch=1, remaining_units=0, rail=Rail.NONE)

    async def capture(self, close: Close, collect: CollectResponse) -> Closed:
        return Closed(remaining_units=None)

    async def finish(self, finish: Finish) -> None:
        return None


async def store_nothing(
    call_id: CallId, response: StoredResponse, *, payer: Address, provider: Address
) -> None:
    """`StoreResponse` of a proxy for trials: each one runs, also one with the idempotency key of an earlier one."""
