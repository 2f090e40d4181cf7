"""The reverse proxy: sends one claimed call to its upstream, writes the outcome of the call to the ledger, and returns the response.

The order of the steps is fixed: connect, claim (durable), send, head, capture (written), stream. `_fail` maps every failure after the
claim to one outcome. A body is not held whole in memory, unless it is small enough and stored for a repeat.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import assert_never

from tollway.errors import (
    Code,
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
from tollway.gateway.problems import (
    OUTCOME_UNKNOWN,
    UPSTREAM_PAYMENT_REQUIRED,
    explain_failure,
    name_proxy_error,
)
from tollway.gateway.rail import CallPayment, CaptureFailed, StoreResponse
from tollway.gateway.request_signing import (
    NONCE_BYTES,
    UpstreamSigner,
    cover_body,
    forwards_idempotency_key,
    name_call,
)
from tollway.gateway.response_body import ResponseRecorder, UpstreamBody, build_finish, read_first
from tollway.ledger.ledger import Claimed, Close, Closed, Fenced, Finish, StoredResponse
from tollway.ledger.records import CallState, Delivery
from tollway.limits import Limits
from tollway.outbound.client import HttpClient, UpstreamExchange, UpstreamRequest, format_host
from tollway.outbound.http1 import format_fields
from tollway.outbound.policy import Endpoint
from tollway.payments.settlement import Undecided
from tollway.rate_limits.limiter import client_bucket
from tollway.registry.listing import is_charged
from tollway.registry.quality import QualityTally, classify

_BODILESS = frozenset({204, 304})
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
    ) -> None:
        """`store_response`: stores a whole response for a repeat. `observe_upstream_s`: records the time from the first byte sent to the
        head of the response. `tally`: counts how paid calls ended."""
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
        self._breaker = breaker or CircuitBreaker(limits=limits)

    def wait_s(self, endpoint: Endpoint) -> int | None:
        """Seconds until an upstream that is down is tried again; None where it may be connected to now."""
        return self._breaker.wait_s(endpoint.origin)

    # ---- Before the claim.

    def connect(self, payment: CallPayment) -> "HeldConnection":
        """A context that holds a connection to the upstream while the call is claimed and sent. Raises CallRefused where the call fails
        without a claim: nothing was sent, and nothing is taken."""
        if payment.body.is_discarded:  # a repeat that would run again, but whose body was too long to keep
            raise Refusal(too_large(self._limits.bound_body_bytes_max))
        try:
            exchange = self._http_client.connect(self._build_request(payment))
        except Refusal as exc:  # a header that cannot be written
            raise self._explain_unclaimed(payment, exc, is_claim_sent=False) from exc
        return HeldConnection(self, exchange, payment)

    def record_reached(self, payment: CallPayment) -> None:
        """Records that the upstream of a call accepted a connection."""
        self._breaker.record_reached(payment.route.endpoint.origin)

    def explain_broken(
        self, payment: CallPayment, exc: TollwayError | ClientGone, *, is_held: bool
    ) -> CallRefused | None:
        """The refusal of a call whose context ended with `exc`; None where `exc` itself is raised. `is_held`: the connection was held."""
        if isinstance(exc, CallRefused | ClientGone) and payment.claimed is not None:
            return None  # `exchange` has written and explained the outcome
        if isinstance(exc, TollwayError) and exc.problem.code is Code.INTERNAL_ERROR:
            return None  # a defect
        if payment.claimed is not None:
            return self._explain_unexpected(payment, exc)
        if isinstance(exc, UpstreamUnreachable):
            self._breaker.record_failed(payment.route.endpoint.origin)
        if is_held and isinstance(exc, Refusal):  # the ledger did not grant the claim
            self.record_reached(payment)
            return None
        return self._explain_unclaimed(payment, exc, is_claim_sent=is_held)

    def _build_request(self, payment: CallPayment) -> UpstreamRequest:
        request, route = payment.request, payment.route
        if payment.fields is None:
            listing = route.entry.listing
            auth = listing.upstream_auth
            payment.fields = forward_fields(
                request.headers,
                gateway_name=self._name,
                forward_headers=listing.forward_headers,
                secret=(auth.name, auth.reveal()) if auth is not None and auth.location == "header" else None,
            )
        return UpstreamRequest(
            method=request.method,
            endpoint=route.endpoint,
            target=route.target,
            fields=render_fields(payment.fields, request.headers),
            body=payment.body.content,
            content_length=payment.body.length,
        )

    def _explain_unclaimed(
        self, payment: CallPayment, exc: TollwayError | ClientGone, *, is_claim_sent: bool
    ) -> CallRefused:
        """The refusal of a call without a claim. Where the claim itself failed, its outcome is unknown and the price may be held until
        recovery."""
        problem = explain_failure(exc)
        is_unknown = is_claim_sent and isinstance(exc, TollwayError)
        if payment.asset is not None and is_unknown:
            return CallRefused(replace(problem, payment_state="held", retry_after_s=1))
        state = "none" if payment.asset is None else "released"
        status_header = proxy_status(self._name, f"error={name_proxy_error(problem)}")
        return CallRefused(replace(problem, payment_state=state), headers=[status_header])

    def _explain_unexpected(self, payment: CallPayment, exc: TollwayError | ClientGone) -> CallRefused:
        """The refusal of a claimed call whose steps failed in a way that none of them explains: the outcome is unknown."""
        state = _format_state(CallState.UNKNOWN, payment)
        problem = replace(
            explain_failure(exc),
            payment_state=state,
            call_id=payment.call_id,
            members=self._link_call(payment),
        )
        return CallRefused(problem, headers=call_headers(payment, state, remaining_units=None))

    # ---- From the claim to the head.

    async def exchange(self, upstream: UpstreamExchange, payment: CallPayment) -> ProxyResponse:
        """Signs and sends the claimed call once, captures its price by the status of the response, and returns the response with a
        streaming body.

        Every exit has written the state of the call: charged, released or unknown. Raises CallRefused where the caller gets no
        response of the upstream, ClientGone where the caller has left."""
        sent_ms = self._now_ms()
        payment.active.begin("upstream")
        try:
            await upstream.send(
                fields=self._sign(payment, sent_ms), head_deadline_s=payment.route.entry.listing.timeout_s
            )
        except BaseException as exc:
            failure = await self._fail(upstream, payment, exc)
            if failure is exc:
                raise
            raise failure from exc
        payment.drop_content()
        self.record_reached(payment)
        return await self._answer(upstream, payment, sent_ms)

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
            )
        if payment.key is not None and forwards_idempotency_key(listing.forward_headers):
            client = client_bucket(request.client_address)
            headers.append(
                self._signer.name_repeat(payment.key, api_id=listing.id, payer=payment.payer, client=client)
            )
        return format_fields(headers)

    # ---- A failure before the head.

    async def _fail(
        self, upstream: UpstreamExchange, payment: CallPayment, exc: BaseException
    ) -> BaseException:
        """Writes the state of a call that got no response head, and returns the exception to raise.

        | what happened | state of the call |
        |---|---|
        | not sent completely: nothing was sent, the caller left or broke its body, or the last byte missed the deadline | released; a repeat: its state before |
        | sent, and a repeat of a charged call | stays charged |
        | sent | unknown: the price stays held, and the response asks for no other payment |
        """
        if isinstance(exc, UpstreamUnreachable):
            self._breaker.record_failed(payment.route.endpoint.origin)
        is_late = isinstance(exc, UpstreamTimeout) and not upstream.is_body_handed_over
        is_unsent = not upstream.is_sent or is_late or isinstance(exc, ClientGone | Refusal)
        before = _claimed(payment).before
        was_charged = before is CallState.CONSUMED
        after = (before or CallState.RELEASED) if is_unsent or was_charged else CallState.UNKNOWN
        closing = self._close(payment, after, _name_error(exc))
        closed = await asyncio.shield(closing)  # written even while the gateway shuts down
        if isinstance(exc, ClientGone):
            return ClientGone(_format_closed(closed, after, payment))
        if not isinstance(exc, TollwayError):
            return exc  # shutdown, or a defect
        if after is not CallState.UNKNOWN and closed is None:
            # The write failed, so the ledger may not release the price: "released" could be wrong.
            return self._explain_unknown(payment)
        problem, state = explain_failure(exc), _format_closed(closed, after, payment)
        remaining_units = None if closed is None else closed.remaining_units
        problem = replace(
            problem,
            payment_state=state,
            call_id=payment.call_id,
            members=self._link_call(payment) if after is CallState.UNKNOWN else {},
        )
        status_header = proxy_status(self._name, f"error={name_proxy_error(problem)}")
        headers = call_headers(payment, state, remaining_units=remaining_units)
        return CallRefused(problem, headers=[status_header, *headers])

    async def _close(self, payment: CallPayment, after: CallState, error: str) -> Closed | None:
        """Writes the end of the call. None where storage failed or another gateway moved the call; the price then stays taken until
        recovery."""
        payment.active.begin("close")
        close = self._build_close(payment, after, error=error)
        try:
            closed = await payment.capture(close, _collect_nothing)
        except StorageUnavailable:
            return None
        if not isinstance(closed, Closed):
            return None
        self._count_quality(payment, close, _format_state(after, payment))
        return closed

    # ---- After the head: capture, then stream.

    async def _answer(self, upstream: UpstreamExchange, payment: CallPayment, sent_ms: int) -> ProxyResponse:
        payment.upstream_status = status = upstream.status
        is_charged_now = is_charged(payment.charge_on, status)
        after = payment.charged_state if is_charged_now else CallState.RELEASED
        payment.active.begin("settle" if after is CallState.SETTLING else "close")
        state = _format_state(after, payment)
        is_foreign_402 = status == _PAYMENT_REQUIRED
        now_ms = self._now_ms()
        body = None if is_foreign_402 or not payment.is_ended_by_close else self._take_body(upstream)
        close = self._build_close(
            payment,
            after,
            error=Code.UPSTREAM_PAYMENT_REQUIRED.value if is_foreign_402 else None,
            http_status=None if is_foreign_402 else status,
            upstream_status=status,
            upstream_ms=now_ms - sent_ms,
            finish=None
            if body is None
            else build_finish(payment, Delivery.COMPLETE, len(body), now_ms=now_ms),
        )
        try:
            captured = await payment.capture(close, partial(self._collect, upstream, payment))
        except StorageUnavailable:
            raise self._explain_unknown(payment) from None  # a repeat reads the outcome from the ledger
        match captured:
            case Closed(remaining_units=remaining_units):
                self._count_quality(payment, close, state)
                state = _format_closed(captured, after, payment)
            case CaptureFailed():
                raise self._explain_capture_failed(payment, captured)
            case Undecided() | Fenced():
                raise self._explain_unknown(payment)
            case _:
                assert_never(captured)
        payment.active.end()
        own = call_headers(payment, state, remaining_units=remaining_units)
        own.append(proxy_status(self._name, f"received-status={status}"))
        if is_foreign_402:
            problem = replace(UPSTREAM_PAYMENT_REQUIRED, call_id=payment.call_id, payment_state=state)
            raise CallRefused(problem, headers=own)
        # A repeat of an uncharged call is a new call, so its response is not stored.
        is_stored = is_charged_now and payment.key is not None
        response = await self._start_response(upstream, payment, own, body, is_stored=is_stored)
        response.payment_state = state
        return response

    def _take_body(self, upstream: UpstreamExchange) -> bytes | None:
        """Returns the whole body where it arrived with the head and fits one message; else None, without reading any of it."""
        length = upstream.length
        return upstream.take_whole() if length is not None and length <= self._limits.buffer_bytes else None

    def _explain_capture_failed(self, payment: CallPayment, failed: CaptureFailed) -> CallRefused:
        headers = [*call_headers(payment, "released", remaining_units=None), *failed.headers]
        return CallRefused(replace(failed.problem, call_id=payment.call_id), headers=headers)

    def _explain_unknown(self, payment: CallPayment) -> CallRefused:
        """The refusal of a call with an unknown outcome. Without a quote: the call may be paid already."""
        state = _format_state(CallState.UNKNOWN, payment)
        problem = replace(
            OUTCOME_UNKNOWN,
            call_id=payment.call_id,
            members=self._link_call(payment),
            payment_state=state,
        )
        return CallRefused(problem, headers=call_headers(payment, state, remaining_units=None))

    def _link_call(self, payment: CallPayment) -> dict[str, object]:
        return {"call": f"{self._public_url}/api/v2/history/{payment.call_id}"}

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
    ) -> Close:
        if upstream_ms is not None:
            self._observe_upstream_s(upstream_ms / 1000)
        assert payment.call_id is not None  # claimed
        return Close(
            call_id=payment.call_id,
            epoch=_claimed(payment).epoch,
            after=after,
            http_status=http_status,
            upstream_status=upstream_status,
            latency_ms=self._now_ms() - payment.request.received_ms,
            upstream_latency_ms=upstream_ms,
            error=error,
            finish=finish,
            provider=payment.route.entry.listing.provider,
            payer=payment.payer,
        )

    def _count_quality(self, payment: CallPayment, close: Close, payment_state: str) -> None:
        listing = payment.route.entry.listing
        bucket = classify(
            listing,
            payment.payer if _claimed(payment).before is None else None,
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
    ) -> ProxyResponse:
        """Builds the response: with the whole `body` where it is given, else with the first chunk of a short body."""
        status, is_bodiless = upstream.status, _is_bodiless(payment, upstream.status)
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
                bytes_max=self._limits.answer_bytes_max,
            )
        headers += own
        if body is None:
            length = upstream.length
            first: bytes | None = b""
            if length is not None and length <= self._limits.buffer_bytes:
                try:
                    first = await read_first(upstream, length)
                except BaseException:
                    # Shutdown: the price is captured already, so the end of the body is recorded too.
                    await self._finish(payment, Delivery.PARTIAL, 0)
                    raise
            if recorder is not None and first:
                await recorder.add_chunk(first)
            if first is None or len(first) != length:
                rest = UpstreamBody(upstream, payment, now_ms=self._now_ms, recorder=recorder)
                return ProxyResponse(status=status, headers=headers, first=first or b"", rest=rest)
            if recorder is not None:
                await recorder.add_chunk(b"")
            upstream.close()
            await self._finish(payment, Delivery.COMPLETE, length)
            body = first
            if not is_bodiless:
                headers = _without_length(headers)
        return ProxyResponse(status=status, headers=headers, first=body)

    async def _finish(self, payment: CallPayment, delivery: Delivery, response_bytes: int) -> None:
        await payment.finish(build_finish(payment, delivery, response_bytes, now_ms=self._now_ms()))

    async def _collect(self, upstream: UpstreamExchange, payment: CallPayment) -> StoredResponse | None:
        """Reads the whole response, to store it; None where it is too large, takes too long, or is cut. The caller waits meanwhile."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.answer_collect_s):
                while chunk := await upstream.read_chunk():
                    body += chunk
                    if len(body) > self._limits.answer_bytes_max:
                        return None
        except (UpstreamBadResponse, UpstreamTimeout, TimeoutError):
            return None
        headers = self._caller_headers(upstream, payment, keep_length=False)
        # A stored response is delivered only once the call is charged.
        own = call_headers(payment, "charged", remaining_units=None)
        headers += _select_stored_headers(own)
        return StoredResponse(status=upstream.status, headers=tuple(headers), body=bytes(body))

    def _caller_headers(
        self, upstream: UpstreamExchange, payment: CallPayment, *, keep_length: bool
    ) -> Headers:
        route, listing = payment.route, payment.route.entry.listing
        return caller_headers(
            upstream.headers,
            keep_length=keep_length,
            endpoint=route.endpoint,
            target=route.target,
            gateway_path=f"/api/v2/gateway/{listing.id}",
            is_private=payment.asset is not None,
            secret=listing.upstream_auth,
        )


class HeldConnection:
    """The context of `Proxy.connect`. A class, because each call has one: a generator (`asynccontextmanager`) takes twice the time."""

    __slots__ = ("_exchange", "_payment", "_proxy")

    def __init__(self, proxy: Proxy, exchange: UpstreamExchange, payment: CallPayment) -> None:
        self._proxy = proxy
        self._exchange = exchange
        self._payment = payment

    async def __aenter__(self) -> UpstreamExchange:
        elapsed_s = asyncio.get_running_loop().time
        started_s = elapsed_s()
        try:
            upstream = await self._exchange.__aenter__()
            if (trace := self._payment.request.trace) is not None:
                trace.set("tollway.dial.reused", upstream.is_reused)
            if elapsed_s() - started_s > DISCONNECT_CHECK_AFTER_S:
                await self._check_caller(upstream)
        except (TollwayError, ClientGone) as exc:
            refused = self._proxy.explain_broken(self._payment, exc, is_held=False)
            if refused is None:
                raise
            raise refused from exc
        return upstream

    async def _check_caller(self, upstream: UpstreamExchange) -> None:
        """After a slow connect the caller may have left: the call is not claimed then."""
        async with AsyncExitStack() as stack:
            stack.push_async_exit(upstream)
            if await self._payment.request.body.has_disconnected():
                raise ClientGone
            stack.pop_all()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exchange.__aexit__(kind, exc, trace)
        if exc is None:
            if self._payment.claimed is None:  # another request was faster
                self._proxy.record_reached(self._payment)
        elif isinstance(exc, TollwayError | ClientGone):
            refused = self._proxy.explain_broken(self._payment, exc, is_held=True)
            if refused is not None:
                raise refused from exc


def call_headers(payment: CallPayment, state: str, *, remaining_units: int | None) -> Headers:
    """The headers that the gateway adds to the response of a claimed call. `state`: `none`, `charged`, `released` or `held`."""
    headers: Headers = [
        (b"tollway-call-id", str(payment.call_id).encode()),
        (b"tollway-payment-state", state.encode()),
        (b"tollway-price", f"{payment.price.text} {payment.currency}".encode()),
    ]
    if payment.asset is None:
        return headers
    if remaining_units is not None:
        credit = payment.asset.format_units(remaining_units)
        headers.append((b"tollway-credit-remaining", f"{credit} {payment.currency}".encode()))
    receipt = payment.write_receipt() if state == "charged" else None
    if receipt is not None:
        headers.append(receipt)
    return headers


STORED_HEADERS = frozenset({b"tollway-price", b"payment-response", b"x-payment-response", b"payment-receipt"})
"""The headers of the gateway that are stored with a response."""


def _select_stored_headers(own: Headers) -> Headers:
    return [header for header in own if header[0] in STORED_HEADERS]


def _is_bodiless(payment: CallPayment, status: int) -> bool:
    return payment.request.method == "HEAD" or status in _BODILESS


def _without_length(headers: Headers) -> Headers:
    return [header for header in headers if header[0] != b"content-length"]


def _claimed(payment: CallPayment) -> Claimed:
    assert payment.claimed is not None  # nothing is sent before the claim
    return payment.claimed


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


async def _collect_nothing() -> None:
    """Collects no response: there was no head."""
