"""The reverse proxy: sends one claimed call to its upstream, writes the outcome of the call to the ledger, and returns the response.

The order of the steps is fixed: connect, claim (durable), send, head, capture (written), stream. `explain_end` maps every failure to
one response. A body is not held whole in memory, unless it is small enough and stored for a repeat.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self, assert_never

from tollway.errors import (
    Code,
    Problem,
    Refusal,
    StorageUnavailable,
    TollwayError,
    UpstreamBadResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tollway.gateway.body import too_large
from tollway.gateway.circuit_breaker import CircuitBreaker
from tollway.gateway.headers import caller_headers, forward_fields, proxy_status, render_fields
from tollway.gateway.messages import CallRefused, ClientGone, Headers, ProxyResponse
from tollway.gateway.metered_response import CopyReservation, Meter, MeteredBodies, price_header
from tollway.gateway.problems import (
    OUTCOME_UNKNOWN,
    UPSTREAM_PAYMENT_REQUIRED,
    explain_failure,
    name_proxy_error,
)
from tollway.gateway.rail import CallPayment, CaptureFailed, StoreResponse, collect_nothing
from tollway.gateway.request_signing import (
    NONCE_BYTES,
    UpstreamSigner,
    cover_body,
    forwards_idempotency_key,
    name_call,
)
from tollway.gateway.response_body import ResponseRecorder, UpstreamBody, build_finish, read_first
from tollway.gateway.usage import UsageReader, reads_json
from tollway.ledger.ledger import Close, Closed, Fenced, Finish, StoredResponse
from tollway.ledger.records import CallState, Delivery, Usage
from tollway.limits import Limits
from tollway.outbound.client import HttpClient, UpstreamExchange, UpstreamRequest, format_host
from tollway.outbound.http1 import format_fields
from tollway.payments.settlement import Undecided
from tollway.rate_limits.limiter import client_bucket
from tollway.registry.listing import is_charged
from tollway.registry.metering import list_usage_headers
from tollway.registry.quality import QualityTally, classify, cost_bucket

_BODILESS = frozenset({204, 304})
_NONE: frozenset[bytes] = frozenset()
_WIRE_STATES = {
    CallState.CONSUMED: "charged",
    CallState.SETTLING: "charged",  # by the settlement that its end waits for
    CallState.RELEASED: "released",
    CallState.UNKNOWN: "held",
}
_PAYMENT_REQUIRED = 402  # the only status of an upstream that never reaches the caller
DISCONNECT_CHECK_AFTER_S = 0.25
"""If connecting takes longer than this, the proxy checks before the claim whether the caller has closed its connection."""


class Proxy:
    """The reverse proxy of all calls of a process. Safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        http_client: HttpClient,
        store_response: StoreResponse,
        limits: Limits,
        now_ms: Callable[[], int],
        public_url: str,
        name: str,
        signer: UpstreamSigner,
        entropy: Callable[[int], bytes],
        observe_upstream_s: Callable[[float], None] = lambda seconds: None,
        tally: QualityTally | None = None,
        breaker: CircuitBreaker | None = None,
        count_usage: Callable[[str], None] = lambda kind: None,
    ) -> None:
        """`store_response`: stores a whole response for a repeat. `observe_upstream_s`: records the time from the first byte sent to the
        head of the response. `tally`: counts how paid calls ended. `count_usage`: counts what metered calls reported (`Meter`)."""
        self._http_client = http_client
        self._store_response = store_response
        self._limits = limits
        self._now_ms = now_ms
        self._public_url = public_url
        self._name = name
        self._signer = signer
        self._entropy = entropy
        self._observe_upstream_s = observe_upstream_s
        self._tally = tally or QualityTally()
        self.breaker = breaker or CircuitBreaker(limits=limits)
        self._count_usage = count_usage
        self._metered_bodies = MeteredBodies(limits=limits)

    # ---- Before the claim.

    def connect(self, payment: CallPayment) -> "HeldConnection":
        """A context that holds a connection to the upstream while the call is claimed and sent. Raises Refusal for a body that is not
        to be sent: a repeat that would run again, but whose body was too long to keep."""
        if payment.body.is_discarded:
            raise Refusal(too_large(self._limits.bound_body_bytes_max))
        reservation = None
        if payment.formulas and reads_json(payment.formulas):
            reservation = self._metered_bodies.take_copy(payment.request.client_address)
        return HeldConnection(self, payment, self.breaker, reservation)

    def open_exchange(self, payment: CallPayment) -> UpstreamExchange:
        """Raises Refusal for a header that cannot be written."""
        request, route = payment.request, payment.route
        if payment.fields is None:
            listing = route.entry.listing
            auth = listing.upstream_auth
            # An open call runs again by the formulas of its claim, which the claim of this request finds only later.
            formulas = [
                *payment.formulas,
                *(one for price in route.operation_prices for one in price.formulas),
            ]
            payment.fields = forward_fields(
                request.headers,
                gateway_name=self._name,
                forward_headers=listing.forward_headers,
                secret=(auth.name, auth.reveal()) if auth is not None and auth.location == "header" else None,
                usage_headers=list_usage_headers(formulas) if formulas else None,
            )
        return self._http_client.connect(
            UpstreamRequest(
                method=request.method,
                endpoint=route.endpoint,
                target=route.target,
                fields=render_fields(payment.fields, request.headers),
                body=payment.body.content,
                content_length=payment.body.length,
            )
        )

    # ---- From the claim to the head.

    async def exchange(self, upstream: "HeldConnection", payment: CallPayment) -> ProxyResponse:
        """Signs and sends the claimed call once, captures its price by the status of the response, and returns the response with a
        streaming body.

        Every exit has written the state of the call: charged, released or unknown. Raises CallRefused where the caller gets no
        response of the upstream, and the failure itself where the upstream sent no head."""
        sent_ms = self._now_ms()
        payment.active.begin("upstream")
        exchange = upstream.exchange
        try:
            await exchange.send(
                fields=self._sign(payment, sent_ms), head_deadline_s=payment.route.entry.listing.timeout_s
            )
        except BaseException as exc:
            upstream.ended = await self._end_without_head(exchange, payment, exc)
            raise
        payment.drop_content()
        self.breaker.record_reached(payment.route.endpoint.origin)
        upstream.meter = meter = self._open_meter(upstream, payment) if payment.formulas else None
        return await self._answer(exchange, payment, sent_ms, meter)

    def _sign(self, payment: CallPayment, now_ms: int) -> bytes:
        """Builds the headers that identify the call, and the gateway's signature unless the listing disables it. Runs after the claim,
        because the claim decides the call id."""
        request, route, body = payment.request, payment.route, payment.body
        listing = route.entry.listing
        assert payment.call_id is not None  # claimed
        if listing.forward_signature == "none":
            headers = name_call(api_id=listing.id, call_id=payment.call_id, payer=payment.payer)
        else:
            headers = self._signer.sign(
                method=request.method,
                authority=format_host(route.endpoint),
                target=route.target,
                api_id=listing.id,
                call_id=payment.call_id,
                payer=payment.payer,
                body=cover_body(
                    body.content, length=body.length, declared=request.find_header(b"content-digest")
                ),
                created_s=now_ms // 1000,
                nonce=self._entropy(NONCE_BYTES).hex(),
                secret=listing.forward_secret,
            )
        if payment.key is not None and forwards_idempotency_key(listing.forward_headers):
            client = client_bucket(request.client_address)
            headers.append(
                self._signer.name_repeat(payment.key, api_id=listing.id, payer=payment.payer, client=client)
            )
        return format_fields(headers)

    # ---- A failure.

    async def _end_without_head(
        self, upstream: UpstreamExchange, payment: CallPayment, exc: BaseException
    ) -> "EndWithoutHead":
        """Writes the state of a call that got no response head.

        | what happened | state of the call |
        |---|---|
        | not sent completely: nothing was sent, the caller left or broke its body, or the last byte missed the deadline | released; a repeat: its state before |
        | sent, and a repeat of a charged call | stays charged |
        | sent | unknown: the price stays held, and the response asks for no other payment |
        """
        if isinstance(exc, UpstreamUnreachable):
            self.breaker.record_failed(payment.route.endpoint.origin)
        is_late = isinstance(exc, UpstreamTimeout) and not upstream.is_body_handed_over
        is_unsent = not upstream.is_sent or is_late or isinstance(exc, ClientGone | Refusal)
        assert payment.claimed is not None  # nothing is sent before the claim
        before = payment.claimed.before
        was_charged = before is CallState.CONSUMED
        after = (before or CallState.RELEASED) if is_unsent or was_charged else CallState.UNKNOWN
        closing = self._close(payment, after, _name_error(exc))
        return after, await asyncio.shield(closing)  # written even while the gateway shuts down

    def explain_end(
        self, payment: CallPayment, exc: BaseException, connection: "HeldConnection | None"
    ) -> BaseException:
        """The exception that ends a call in place of `exc`. `connection`: the connection of the call; None before it is opened.

        | claim | what happened | the caller gets |
        |---|---|---|
        | any | shutdown, or a defect | `exc` |
        | none | a refusal before the connection, or of the ledger | `exc` |
        | none | the connection failed, or the caller has left | the problem; nothing was taken |
        | none | the claim failed in storage | the problem; held, until recovery has looked |
        | granted | no head: the end is written | the problem, or ClientGone, and the state that was written |
        | granted | no head: the end is not written, so "released" could be wrong | outcome unknown |
        | granted | `exchange` has explained it | `exc` |
        | granted | a failure that none of these explains | the problem; held |
        """
        if connection is None or not isinstance(exc, TollwayError | ClientGone):
            return exc
        problem = explain_failure(exc)
        if connection.ended is not None:
            after, closed = connection.ended
            state = _format_closed(closed, after, payment)
            if isinstance(exc, ClientGone):
                return ClientGone(state)
            if closed is None and after is not CallState.UNKNOWN:
                return self._refuse_unknown(payment, OUTCOME_UNKNOWN)
            remaining_units = None if closed is None else closed.remaining_units
            headers = [self._name_failure(problem), *call_headers(payment, state, remaining_units)]
            return self._refuse(payment, problem, state, headers, is_linked=after is CallState.UNKNOWN)
        if problem.code is Code.INTERNAL_ERROR:
            return exc
        if payment.claimed is not None:
            is_explained = isinstance(exc, CallRefused | ClientGone)
            return exc if is_explained else self._refuse_unknown(payment, problem)
        if connection.is_held and isinstance(exc, Refusal):
            return exc
        is_claim_sent = connection.is_held and isinstance(exc, TollwayError)
        if payment.asset is not None and is_claim_sent:
            return CallRefused(replace(problem, payment_state="held", retry_after_s=1))
        state = "none" if payment.asset is None else "released"
        return CallRefused(replace(problem, payment_state=state), headers=[self._name_failure(problem)])

    def _refuse_unknown(self, payment: CallPayment, problem: Problem) -> CallRefused:
        """The refusal of a call with an unknown outcome. Without a quote: the call may be paid already."""
        state = _format_state(CallState.UNKNOWN, payment)
        return self._refuse(payment, problem, state, call_headers(payment, state), is_linked=True)

    def _refuse(
        self, payment: CallPayment, problem: Problem, state: str, headers: Headers, *, is_linked: bool = False
    ) -> CallRefused:
        """The refusal of a claimed call. `is_linked`: it has the URL of the call, because the end of the call is open."""
        link: dict[str, object] = {"call": f"{self._public_url}/api/v2/history/{payment.call_id}"}
        members = link if is_linked else {}
        problem = replace(problem, payment_state=state, call_id=payment.call_id, members=members)
        return CallRefused(problem, headers=headers)

    def _name_failure(self, problem: Problem) -> tuple[bytes, bytes]:
        return proxy_status(self._name, f"error={name_proxy_error(problem.code, problem.reason)}")

    async def _close(self, payment: CallPayment, after: CallState, error: str) -> Closed | None:
        """Writes the end of the call. None where storage failed or another gateway moved the call; the price then stays taken until
        recovery."""
        payment.active.begin("close")
        close = self._build_close(payment, after, error=error)
        try:
            closed = await payment.capture(close, collect_nothing)
        except StorageUnavailable:
            return None
        if not isinstance(closed, Closed):
            return None
        self._count_quality(payment, close, _format_state(after, payment))
        return closed

    # ---- After the head: capture, then stream.

    def _open_meter(self, upstream: "HeldConnection", payment: CallPayment) -> Meter | None:
        """The meter of a metered call whose response costs. None for a response without a price, and for a repeat of a call whose first run has the price: of a
        run whose response was dropped it may have none."""
        exchange = upstream.exchange
        is_free = exchange.status == _PAYMENT_REQUIRED or not is_charged(payment.charge_on, exchange.status)
        if is_free or payment.actual_units is not None:
            return None
        assert payment.claimed is not None  # nothing is sent before the claim
        is_repeat = payment.claimed.before is not None
        reader = UsageReader(
            payment.formulas,
            method=payment.request.method,
            status=exchange.status,
            headers=exchange.headers,
            limits=self._limits,
            lasts_until_close=exchange.lasts_until_close,
        )
        return Meter(
            payment,
            reader,
            reservation=upstream.reservation,
            limits=self._limits,
            count_usage=self._count_usage,
            count_cost=None if is_repeat else partial(self._count_cost, payment),
        )

    def _count_cost(self, payment: CallPayment, units: int) -> None:
        """Counts what a metered call cost, in the quality of its operation, unless its own provider paid for it."""
        listing = payment.route.entry.listing
        if payment.payer not in (listing.provider, listing.pay_to):
            operation = payment.route.operation_prices[0].operation
            self._tally.count_call(listing.id, cost_bucket(operation, units=units, max_units=payment.units))

    async def _answer(
        self, upstream: UpstreamExchange, payment: CallPayment, sent_ms: int, meter: Meter | None
    ) -> ProxyResponse:
        payment.upstream_status = status = upstream.status
        is_charged_now = is_charged(payment.charge_on, status)
        after = payment.charged_state if is_charged_now else CallState.RELEASED
        is_foreign_402 = status == _PAYMENT_REQUIRED
        now_ms = self._now_ms()
        upstream_ms, usage = now_ms - sent_ms, None
        if meter is not None:
            await self._measure_short(upstream, payment, meter, upstream_ms=upstream_ms)
            now_ms, usage = self._now_ms(), meter.usage
        payment.active.begin("settle" if after is CallState.SETTLING else "close")
        state = _format_state(after, payment)
        body = None
        if payment.is_ended_by_close and not is_foreign_402:
            body = upstream.take_whole(self._limits.buffer_bytes) if meter is None else meter.body
        close = self._build_close(
            payment,
            after,
            error=Code.UPSTREAM_PAYMENT_REQUIRED.value if is_foreign_402 else None,
            http_status=None if is_foreign_402 else status,
            upstream_status=status,
            upstream_ms=upstream_ms,
            finish=None
            if body is None
            else build_finish(payment, Delivery.COMPLETE, len(body), now_ms=now_ms, usage=usage),
            usage=usage,
            is_metered=meter is not None,
        )
        try:
            captured = await payment.capture(close, partial(self._collect, upstream, payment, meter))
        except StorageUnavailable:
            # A repeat reads the outcome from the ledger.
            raise self._refuse_unknown(payment, OUTCOME_UNKNOWN) from None
        match captured:
            case Closed(remaining_units=remaining_units):
                self._count_quality(payment, close, state)
                if captured.is_reorged:
                    state = _format_closed(captured, after, payment)
            case CaptureFailed(problem=problem, headers=failure):
                headers = [*call_headers(payment, "released"), *failure]
                raise self._refuse(payment, problem, "released", headers)
            case Undecided() | Fenced():
                raise self._refuse_unknown(payment, OUTCOME_UNKNOWN)
            case _:
                assert_never(captured)
        payment.active.end()
        # Until the end of the body decides the price, the call holds its maximum.
        is_priced = meter is None or meter.usage is not None
        own = call_headers(payment, state if is_priced else "held", remaining_units)
        own.append(proxy_status(self._name, f"received-status={status}"))
        if is_foreign_402:
            raise self._refuse(payment, UPSTREAM_PAYMENT_REQUIRED, state, own)
        # A repeat of an uncharged call is a new call, so its response is not stored.
        is_stored = is_charged_now and payment.key is not None
        response = await self._start_response(upstream, payment, own, body, is_stored=is_stored, meter=meter)
        response.payment_state = state
        return response

    async def _measure_short(
        self, upstream: UpstreamExchange, payment: CallPayment, meter: Meter, *, upstream_ms: int
    ) -> None:
        """Reads the body of a metered call before its head goes to the caller, where it fits one message: the price is then exact at the head. The meter is not
        ended where the body is longer, is cut, or takes longer than `response_collect_s`; the rest then streams."""
        if upstream.length is None or upstream.length > self._limits.buffer_bytes:
            return
        try:
            await meter.read_short(upstream, upstream.length, within_s=self._limits.response_collect_s)
        except asyncio.CancelledError:
            # Shutdown: the response costs, so the call is charged, with its base.
            status = upstream.status
            usage = await meter.end(is_cut=False, is_interrupted=True)
            close = self._build_close(
                payment,
                payment.charged_state,
                error=None,
                http_status=status,
                upstream_status=status,
                upstream_ms=upstream_ms,
                finish=build_finish(payment, Delivery.PARTIAL, 0, now_ms=self._now_ms(), usage=usage),
                is_metered=True,
            )
            await asyncio.shield(payment.capture(close, collect_nothing))
            raise

    def _build_close(
        self,
        payment: CallPayment,
        after: CallState,
        *,
        error: str | None,
        http_status: int | None = None,
        upstream_status: int | None = None,
        upstream_ms: int | None = None,
        finish: Finish | None = None,
        usage: Usage | None = None,
        is_metered: bool = False,
    ) -> Close:
        if upstream_ms is not None:
            self._observe_upstream_s(upstream_ms / 1000)
        assert payment.call_id is not None  # claimed
        assert payment.claimed is not None
        return Close(
            call_id=payment.call_id,
            epoch=payment.claimed.epoch,
            after=after,
            http_status=http_status,
            upstream_status=upstream_status,
            latency_ms=self._now_ms() - payment.request.received_ms,
            upstream_latency_ms=upstream_ms,
            error=error,
            finish=finish,
            usage=usage,
            is_metered=is_metered,
            provider=payment.route.entry.listing.provider,
            payer=payment.payer,
        )

    def _count_quality(self, payment: CallPayment, close: Close, payment_state: str) -> None:
        listing = payment.route.entry.listing
        assert payment.claimed is not None  # nothing is sent before the claim
        bucket = classify(
            listing,
            payment.payer if payment.claimed.before is None else None,
            payment_state=payment_state,
            upstream_status=close.upstream_status,
            upstream_latency_ms=close.upstream_latency_ms,
            error=close.error,
        )
        if bucket is not None:
            self._tally.count_call(listing.id, bucket)

    # ---- The body.

    async def _start_response(
        self,
        upstream: UpstreamExchange,
        payment: CallPayment,
        own: Headers,
        body: bytes | None,
        *,
        is_stored: bool,
        meter: Meter | None,
    ) -> ProxyResponse:
        """Builds the response: with the whole `body` where it is given, else with the first chunk of a short body."""
        status = upstream.status
        is_bodiless = payment.request.method == "HEAD" or status in _BODILESS
        # The server would send a wrong content-length of the upstream unchanged beside a single message; it sets the right one itself.
        headers = self._caller_headers(upstream, payment, keep_length=body is None or is_bodiless)
        recorder = None
        if is_stored and payment.call_id is not None and payment.payer is not None:
            recorder = ResponseRecorder(
                partial(
                    self._store_response,
                    payment.call_id,
                    payer=payment.payer,
                    provider=payment.route.entry.listing.provider,
                ),
                status=status,
                headers=_without_length(headers) + _select_stored_headers(own),
                bytes_max=self._limits.response_bytes_max,
            )
        headers += own
        if body is None:
            length = upstream.length
            first: bytes | None = b"" if meter is None else meter.read
            if meter is None and length is not None and length <= self._limits.buffer_bytes:
                try:
                    first = await read_first(upstream, length)
                except BaseException:
                    # Shutdown: the price is captured already, so the end of the body is recorded too.
                    await self._finish(payment, Delivery.PARTIAL, 0)
                    raise
            if recorder is not None and first:
                await recorder.add_chunk(first)
            if first is None or len(first) != length or (meter is not None and meter.body is None):
                rest = UpstreamBody(
                    upstream,
                    payment,
                    now_ms=self._now_ms,
                    limits=self._limits,
                    recorder=recorder,
                    meter=meter,
                )
                return ProxyResponse(status=status, headers=headers, first=first or b"", rest=rest)
            usage = None if meter is None else meter.usage
            if recorder is not None:
                try:
                    await recorder.add_chunk(b"")
                except BaseException:
                    # Shutdown: the end is recorded, with the price where it is not captured yet.
                    await self._finish(payment, Delivery.PARTIAL, 0, usage)
                    raise
            upstream.close()
            await self._finish(payment, Delivery.COMPLETE, length, usage)
            body = first
            if not is_bodiless:
                headers = _without_length(headers)
        return ProxyResponse(status=status, headers=headers, first=body)

    async def _finish(
        self, payment: CallPayment, delivery: Delivery, response_bytes: int, usage: Usage | None = None
    ) -> None:
        finish = build_finish(payment, delivery, response_bytes, now_ms=self._now_ms(), usage=usage)
        await payment.finish(finish)

    async def _collect(
        self, upstream: UpstreamExchange, payment: CallPayment, meter: Meter | None
    ) -> tuple[StoredResponse | None, Usage | None]:
        """See `CollectResponse`. The response is stored. The caller waits meanwhile."""
        body = bytearray(b"" if meter is None else meter.read)
        try:
            async with asyncio.timeout(self._limits.response_collect_s):
                while chunk := await upstream.read_chunk():
                    body += chunk
                    if len(body) > self._limits.response_bytes_max:
                        return None, None
                    if meter is not None:
                        await meter.add(chunk, is_last=upstream.is_read)
                if meter is not None:
                    await meter.add(b"", is_last=True)
                    meter.take_price()
        except (UpstreamBadResponse, UpstreamTimeout, TimeoutError):
            return None, None
        headers = self._caller_headers(upstream, payment, keep_length=False)
        # A stored response is delivered only once the call is charged.
        headers += _select_stored_headers(call_headers(payment, "charged"))
        response = StoredResponse(status=upstream.status, headers=tuple(headers), body=bytes(body))
        return response, None if meter is None else meter.usage

    def _caller_headers(
        self, upstream: UpstreamExchange, payment: CallPayment, *, keep_length: bool
    ) -> Headers:
        route, listing = payment.route, payment.route.entry.listing
        # A free call of a metered price has no formula.
        formulas = payment.formulas or route.operation_prices[0].formulas
        return caller_headers(
            upstream.headers,
            keep_length=keep_length,
            endpoint=route.endpoint,
            target=route.target,
            gateway_path=f"/api/v2/gateway/{listing.id}",
            is_private=payment.payer is not None,
            secret=listing.upstream_auth,
            hidden=list_usage_headers(formulas, is_hidden_only=True) if formulas else _NONE,
        )


class HeldConnection:
    """The connection of one call, from before its claim to the head of its response. A context; its exit returns the connection to the
    pool or closes it, except where a response body still streams. A class, because each call has one: a generator
    (`asynccontextmanager`) takes twice the time.

    `is_held`: whether the upstream has accepted the connection. `ended`: the end of a call that was sent and got no head. `reservation`, `meter`: of a metered call;
    the reservation is given back at the exit, or by the response body that still streams."""

    __slots__ = ("_breaker", "_payment", "_proxy", "ended", "exchange", "is_held", "meter", "reservation")

    exchange: UpstreamExchange

    def __init__(
        self, proxy: Proxy, payment: CallPayment, breaker: CircuitBreaker, reservation: CopyReservation | None
    ) -> None:
        self.is_held = False
        self.reservation = reservation
        self.meter: Meter | None = None
        self.ended: EndWithoutHead | None = None
        self._proxy = proxy
        self._payment = payment
        self._breaker = breaker

    async def __aenter__(self) -> Self:
        try:
            self.exchange = self._proxy.open_exchange(self._payment)
            elapsed_s = asyncio.get_running_loop().time
            started_s = elapsed_s()
            try:
                await self.exchange.__aenter__()
            except UpstreamUnreachable:
                self._breaker.record_failed(self._payment.route.endpoint.origin)
                raise
            if (trace := self._payment.request.trace) is not None:
                trace.set("tollway.dial.reused", self.exchange.is_reused)
            if elapsed_s() - started_s > DISCONNECT_CHECK_AFTER_S:
                await self._check_caller()
        except BaseException:
            if self.reservation is not None:
                self.reservation.give_back()
            raise
        self.is_held = True
        return self

    async def _check_caller(self) -> None:
        """After a slow connect the caller may have left: the call is not claimed then."""
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self.exchange)
            if await self._payment.request.body.has_disconnected():
                raise ClientGone
            stack.pop_all()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.exchange.__aexit__(kind, exc, trace)
        if self.reservation is not None and (exc is not None or self.meter is None or self.meter.is_ended):
            self.reservation.give_back()
        if self._payment.claimed is None and (exc is None or isinstance(exc, Refusal)):
            # The ledger refused the claim, or another request was faster.
            self._breaker.record_reached(self._payment.route.endpoint.origin)


EndWithoutHead = tuple[CallState, Closed | None]
"""The state of a call that got no head, and the close that the ledger has written; None where it is not written."""


def call_headers(payment: CallPayment, state: str, remaining_units: int | None = None) -> Headers:
    """The headers that the gateway adds to the response of a claimed call. `state`: `none`, `charged`, `released` or `held`."""
    headers: Headers = [
        (b"tollway-call-id", str(payment.call_id).encode()),
        (b"tollway-payment-state", state.encode()),
        price_header(payment, state)
        if payment.formulas
        else (b"tollway-price", f"{payment.price.text} {payment.currency}".encode()),
    ]
    if payment.asset is None:
        return headers
    if remaining_units is not None:
        credit = payment.asset.format_units(remaining_units)
        headers.append((b"tollway-credit-remaining", f"{credit} {payment.currency}".encode()))
    receipt = payment.write_receipt() if state in payment.receipt_states else None
    if receipt is not None:
        headers.append(receipt)
    return headers


STORED_HEADERS = frozenset(
    {b"tollway-price", b"tollway-price-max", b"payment-response", b"x-payment-response", b"payment-receipt"}
)
"""The headers of the gateway that are stored with a response."""


def _select_stored_headers(own: Headers) -> Headers:
    return [header for header in own if header[0] in STORED_HEADERS]


def _without_length(headers: Headers) -> Headers:
    return [header for header in headers if header[0] != b"content-length"]


def _format_state(state: CallState, payment: CallPayment) -> str:
    return "none" if payment.asset is None else _WIRE_STATES[state]


def _format_closed(closed: Closed | None, after: CallState, payment: CallPayment) -> str:
    """The state in the response: `held` where the end is not written, or is a debt because the payment left its chain before."""
    return _format_state(CallState.UNKNOWN if closed is None or closed.is_reorged else after, payment)


def _name_error(exc: BaseException) -> str:
    """The name of a failure in the record of the call."""
    if isinstance(exc, ClientGone):
        return "caller_gone"
    if isinstance(exc, TollwayError):
        return explain_failure(exc).code.value
    return "shutdown" if isinstance(exc, asyncio.CancelledError) else Code.INTERNAL_ERROR.value
