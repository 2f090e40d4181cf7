"""The reverse proxy: forwards one claimed call to its upstream and returns the response. Here the outcome of a call becomes a row in the ledger.

The order is the law: connect, claim (durable), send, head, close (written), stream. Every failure between two of
these steps has one outcome, in the words of the table of outcomes. A body is never held whole, except one that is stored for a repeat and is small enough.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, assert_never

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
from tollway.gateway.body import ForwardBody
from tollway.gateway.circuit_breaker import CircuitBreaker
from tollway.gateway.headers import caller_headers, proxy_status, upstream_headers
from tollway.gateway.messages import (
    BodyRefused,
    ClientGone,
    Disconnected,
    Headers,
    IncomingCall,
    Outcome,
    ProblemResponse,
    ProxyResponse,
    ResponseBody,
)
from tollway.gateway.problems import (
    OUTCOME_UNKNOWN,
    UPSTREAM_PAYMENT_REQUIRED,
    explain_failure,
    name_proxy_error,
)
from tollway.gateway.request_signing import NONCE_BYTES, UpstreamSigner, cover_body
from tollway.ids import Address, CallId, TxHash
from tollway.ledger.ledger import Claimed, Close, Closed, Finish, Ledger, StoredResponse
from tollway.ledger.records import CallState, Delivery
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.outbound.client import HttpClient, Progress, UpstreamRequest, UpstreamResponse, format_host
from tollway.outbound.policy import Endpoint
from tollway.payments.settlement import NotSettled, Settled, SettlementFenced, SettlementOutcome, Undecided
from tollway.registry.listing import ChargeOn, Listing, is_charged
from tollway.registry.quality import QualityTally, classify


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCall:
    """A call that nothing speaks against. `target`: path and query for the upstream, the listing's secret included."""

    call: IncomingCall
    listing: Listing
    endpoint: Endpoint
    target: str
    body: ForwardBody
    is_paid: bool


class PaymentCapture(Protocol):
    """The payment of a call whose money moves only when its upstream has answered."""

    async def settle(self, close: Close) -> SettlementOutcome:
        """Lets the money move. `close`: what the upstream's head said, on its way into `capture`."""
        ...

    async def leave_orphaned(self, answer: StoredResponse | None) -> None:
        """Nobody can wait any longer for the settlement: keeps the answer for whoever shows the same proof again."""
        ...

    def refuse(self, reason: str) -> ProblemResponse:
        """The money surely did not move."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedCall:
    """A granted claim: which call this is, and what it may say about its payment. `asset` None: a free call.

    `capture`: the price is paid by an authorisation that still has to be settled. `store_response` stores the whole answer under
    the caller's idempotency key.
    """

    call_id: CallId
    claimed: Claimed
    price: Price
    currency: str
    charge_on: ChargeOn
    asset: Asset | None
    units: int
    payer: Address | None
    transaction: TxHash | None
    write_receipt: Callable[[TxHash], tuple[bytes, bytes]] | None = None
    capture: PaymentCapture | None = None
    store_response: Callable[[StoredResponse], Awaitable[None]] | None = None


class ClaimRefused(Exception):
    """The ledger did not grant the claim; nothing was sent. `outcome`: what the caller gets instead."""

    def __init__(self, outcome: ProxyResponse | ProblemResponse) -> None:
        self.outcome = outcome
        super().__init__(
            outcome.problem.detail if isinstance(outcome, ProblemResponse) else "answered already"
        )


@dataclass(slots=True, kw_only=True)
class UpstreamAttempt:
    """How far one upstream call came. `claimed_call` is there once the claim was granted, `sent_ms` when bytes began to leave."""

    upstream_call: UpstreamCall
    progress: Progress = field(default_factory=Progress)
    claimed_call: ClaimedCall | None = None
    sent_ms: int | None = None


class UpstreamResponseBody:
    """The rest of an answer. See `ResponseBody`. `recorder` gets the whole body before its end is told."""

    __slots__ = (
        "_call",
        "_claimed_call",
        "_is_cut",
        "_is_ended",
        "_ledger",
        "_now_ms",
        "_recorder",
        "_response",
    )

    def __init__(
        self,
        response: UpstreamResponse,
        *,
        ledger: Ledger,
        call: IncomingCall,
        claimed_call: ClaimedCall,
        now_ms: Callable[[], int],
        recorder: "ResponseRecorder | None" = None,
    ) -> None:
        self._response = response
        self._ledger = ledger
        self._call = call
        self._claimed_call = claimed_call
        self._now_ms = now_ms
        self._recorder = recorder
        self._is_cut = False
        self._is_ended = False

    async def read_chunk(self) -> bytes:
        try:
            chunk = await self._response.read_chunk()
        except (UpstreamBadResponse, UpstreamTimeout):
            # A caller that breaks its own upload off breaks the connection too; that earns no repeat.
            self._is_cut = not self._call.body.is_broken
            raise
        if self._recorder is not None:
            await self._recorder.add_chunk(chunk)
        return chunk

    @property
    def is_recorded(self) -> bool:
        return self._recorder is not None and self._recorder.is_open

    def end(self, delivery: Delivery, response_bytes: int) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._response.close()
        self._ledger.finish(
            Finish(
                call_id=self._claimed_call.call_id,
                epoch=self._claimed_call.claimed.epoch,
                delivery=delivery,
                is_cut=self._is_cut,
                request_bytes=self._call.body.bytes_read,
                response_bytes=response_bytes,
                completed_ms=self._now_ms(),
            )
        )


class ResponseRecorder:
    """Collects an answer while it streams, and keeps it when it is whole and not too large."""

    __slots__ = ("_body", "_bytes_max", "_headers", "_status", "_store_response")

    def __init__(
        self,
        store_response: Callable[[StoredResponse], Awaitable[None]],
        *,
        status: int,
        headers: Headers,
        bytes_max: int,
    ) -> None:
        self._store_response = store_response
        self._status = status
        self._headers = tuple(headers)
        self._bytes_max = bytes_max
        self._body: bytearray | None = bytearray()

    @property
    def is_open(self) -> bool:
        """More is wanted, or the whole is being stored."""
        return self._body is not None

    async def add_chunk(self, chunk: bytes) -> None:
        """The next bytes; b"" at the true end, once."""
        if self._body is None:
            return
        if chunk:
            self._body += chunk
            if len(self._body) > self._bytes_max:
                self._body = None
            return
        try:
            await self._store_response(
                StoredResponse(status=self._status, headers=self._headers, body=bytes(self._body))
            )
        finally:
            self._body = None


_: type[ResponseBody] = UpstreamResponseBody


def call_headers(claimed_call: ClaimedCall, state: str, *, remaining_units: int | None) -> Headers:
    """What every answer to a claimed call says. `state`: `none`, `charged`, `released` or `held`."""
    headers: Headers = [
        (b"tollway-call-id", claimed_call.call_id.encode()),
        (b"tollway-payment-state", state.encode()),
        (b"tollway-price", f"{claimed_call.price.text} {claimed_call.currency}".encode()),
    ]
    if claimed_call.asset is None:
        return headers
    if remaining_units is not None:
        rest = claimed_call.asset.format_units(remaining_units)
        headers.append((b"tollway-credit-remaining", f"{rest} {claimed_call.currency}".encode()))
    if state == "charged" and claimed_call.transaction is not None and claimed_call.write_receipt is not None:
        headers.append(claimed_call.write_receipt(claimed_call.transaction))
    return headers


STORED_HEADERS = frozenset({b"tollway-price", b"payment-response", b"x-payment-response", b"payment-receipt"})
"""What a stored answer says of its call for ever."""


_BODILESS = frozenset({204, 304})


class ResponseRelay:
    """One per process; safe to use from many tasks at once."""

    def __init__(self, *, ledger: Ledger, limits: Limits, now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._limits = limits
        self._now_ms = now_ms

    async def start_response(
        self, upstream_call: UpstreamCall, claimed_call: ClaimedCall, response: UpstreamResponse, own: Headers
    ) -> ProxyResponse:
        """The head, with the body's first piece where it is short and whole already."""
        headers = self._caller_headers(upstream_call, response)
        recorder = None
        if claimed_call.store_response is not None:
            recorder = ResponseRecorder(
                claimed_call.store_response,
                status=response.status,
                headers=_without_length(headers) + _select_stored_headers(own),
                bytes_max=self._limits.answer_bytes_max,
            )
        headers += own
        body = UpstreamResponseBody(
            response,
            ledger=self._ledger,
            call=upstream_call.call,
            claimed_call=claimed_call,
            now_ms=self._now_ms,
            recorder=recorder,
        )
        if upstream_call.call.method == "HEAD" or response.status in _BODILESS:
            if recorder is not None:
                await recorder.add_chunk(b"")
            body.end(Delivery.COMPLETE, 0)
            return ProxyResponse(status=response.status, headers=headers)
        length = _find_length(headers)
        if length is None or length > self._limits.buffer_bytes:
            return ProxyResponse(status=response.status, headers=headers, rest=body)
        try:
            first = await body.read_chunk() if length else b""
            if len(first) == length:
                if recorder is not None or not response.is_read:
                    await body.read_chunk()  # the end, which frees the connection for the next call
                body.end(Delivery.COMPLETE, length)
                return ProxyResponse(status=response.status, headers=_without_length(headers), first=first)
        except (UpstreamBadResponse, UpstreamTimeout):
            first = b""  # the stream below meets the same failure and cuts the answer visibly
        return ProxyResponse(status=response.status, headers=headers, first=first, rest=body)

    async def collect(
        self, upstream_call: UpstreamCall, claimed_call: ClaimedCall, response: UpstreamResponse
    ) -> StoredResponse | None:
        """The whole answer, for later; None when it is too large, takes too long, or breaks off. A caller waits."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.answer_collect_s):
                while chunk := await response.read_chunk():
                    body += chunk
                    if len(body) > self._limits.answer_bytes_max:
                        return None
        except (UpstreamBadResponse, UpstreamTimeout, TimeoutError):
            return None
        headers = _without_length(self._caller_headers(upstream_call, response))
        headers += _select_stored_headers(
            call_headers(claimed_call, "charged", remaining_units=None)
        )  # given out once it is
        return StoredResponse(status=response.status, headers=tuple(headers), body=bytes(body))

    def _caller_headers(self, upstream_call: UpstreamCall, response: UpstreamResponse) -> Headers:
        listing = upstream_call.listing
        headers = caller_headers(
            response.headers,
            keep_length=True,  # taken off again where the body fits one message
            endpoint=upstream_call.endpoint,
            target=upstream_call.target,
            gateway_path=f"/api/v2/gateway/{listing.id}",
            secret=listing.upstream_auth,
        )
        return _keep_private(headers) if upstream_call.is_paid else headers


def _keep_private(headers: Headers) -> Headers:
    """What one caller has paid for is not for a shared cache (RFC 9111 §5.2.2.7), whatever its upstream says."""
    return [
        (name, _private(value))
        if name == b"cache-control" and b"private" not in value.lower()
        else (name, value)
        for name, value in headers
    ]


def _private(value: bytes) -> bytes:
    directives = (directive.strip() for directive in value.split(b","))
    kept = [one for one in directives if not one.lower().startswith((b"public", b"s-maxage"))]
    return b", ".join([b"private", *kept])


def _select_stored_headers(own: Headers) -> Headers:
    return [header for header in own if header[0] in STORED_HEADERS]


def _find_length(headers: Headers) -> int | None:
    return next((int(value) for name, value in headers if name == b"content-length"), None)


def _without_length(headers: Headers) -> Headers:
    """A wrong length beside a single message would go out as it stands; the server knows the right one."""
    return [header for header in headers if header[0] != b"content-length"]


_WIRE_STATES = {
    CallState.CONSUMED: "charged",
    CallState.RELEASED: "released",
    CallState.UNKNOWN: "held",
}
_PAYMENT_REQUIRED = 402  # of the upstream's own answers, the one that is never passed on
DISCONNECT_CHECK_AFTER_S = 0.25
"""Who waits for longer than that until a connection is held may have left, and is asked before anything is taken."""


class Proxy:
    """Forwards calls. One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        http_client: HttpClient,
        ledger: Ledger,
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
        """`observe_upstream_s` hears how long each upstream took, from the first byte sent until its head; `tally`, how paid
        calls ended."""
        self._http_client = http_client
        self._ledger = ledger
        self._limits = limits
        self._now_ms = now_ms
        self._public_url = public_url
        self._name = name
        self._signer = signer
        self._entropy = entropy
        self._observe_upstream_s = observe_upstream_s
        self._tally = tally or QualityTally()
        self._relay = ResponseRelay(ledger=ledger, limits=limits, now_ms=now_ms)
        self._breaker = breaker or CircuitBreaker(limits=limits)

    def wait_s(self, endpoint: Endpoint) -> int | None:
        """Seconds until an upstream that is known to be down is tried again; None when it may be dialled."""
        return self._breaker.wait_s(endpoint.origin)

    async def forward(
        self, upstream_call: UpstreamCall, claim: Callable[[], Awaitable[ClaimedCall]]
    ) -> Outcome:
        """Dials, takes the price through `claim` once a connection is held, sends, and answers with what came back.

        `claim` raises ClaimRefused when the ledger says no. Every exit has written its state: released, consumed or
        unknown; a call that never got a row says so.
        """
        attempt, request = UpstreamAttempt(upstream_call=upstream_call), self._build_request(upstream_call)
        elapsed_s = asyncio.get_running_loop().time
        started_s = elapsed_s()

        async def before_send() -> None:
            if (
                elapsed_s() - started_s > DISCONNECT_CHECK_AFTER_S
                and await upstream_call.call.body.has_disconnected()
            ):
                raise ClientGone
            attempt.claimed_call = await claim()
            attempt.sent_ms = self._now_ms()
            request.headers.extend(self._sign(upstream_call, attempt.claimed_call, attempt.sent_ms))

        try:
            response = await self._http_client.send(
                request,
                before_send=before_send,
                head_deadline_s=upstream_call.listing.timeout_s,
                progress=attempt.progress,
            )
        except ClaimRefused as refused:
            self._breaker.record_reached(upstream_call.endpoint.origin)
            return refused.outcome
        except (TollwayError, ClientGone, BodyRefused) as exc:
            return await self._fail(attempt, exc)
        except BaseException as exc:
            await self._close_aborted(attempt, exc)
            raise
        self._breaker.record_reached(upstream_call.endpoint.origin)
        return await self._answer(attempt, response)

    def _build_request(self, upstream_call: UpstreamCall) -> UpstreamRequest:
        listing, auth = upstream_call.listing, upstream_call.listing.upstream_auth
        headers = upstream_headers(
            upstream_call.call.headers,
            gateway_name=self._name,
            forward_headers=listing.forward_headers,
            secret=(auth.name, auth.reveal()) if auth is not None and auth.location == "header" else None,
        )
        return UpstreamRequest(
            method=upstream_call.call.method,
            endpoint=upstream_call.endpoint,
            target=upstream_call.target,
            headers=headers,
            body=upstream_call.body.content,
            content_length=upstream_call.body.length,
        )

    def _sign(
        self, upstream_call: UpstreamCall, claimed_call: ClaimedCall, now_ms: int
    ) -> list[tuple[str, str]]:
        """What tells the provider that this call is the gateway's. Only now is it known which call it is."""
        body = upstream_call.body
        declared = upstream_call.call.find_header(b"content-digest")
        return self._signer.sign(
            method=upstream_call.call.method,
            authority=format_host(upstream_call.endpoint),
            target=upstream_call.target,
            api_id=upstream_call.listing.id,
            call_id=claimed_call.call_id,
            payer=claimed_call.payer,
            body=cover_body(body.content, length=body.length, declared=declared),
            created_s=now_ms // 1000,
            nonce=self._entropy(NONCE_BYTES).hex(),
        )

    # ---- No answer: what that means for the payment.

    async def _fail(self, attempt: UpstreamAttempt, exc: TollwayError | ClientGone | BodyRefused) -> Outcome:
        """Provably not wholly sent -> released, or what it was before its repeat. Sent, and no head came -> unknown,
        which is never asked to pay again."""
        if isinstance(exc, UpstreamUnreachable):
            self._breaker.record_failed(attempt.upstream_call.endpoint.origin)
        problem = explain_failure(exc)
        status_header = proxy_status(self._name, f"error={name_proxy_error(problem)}")
        claimed_call = attempt.claimed_call
        if claimed_call is None:
            return self._fail_unclaimed(attempt, problem, status_header)
        is_unsent = not attempt.progress.sent or isinstance(exc, ClientGone | BodyRefused | Refusal)
        if isinstance(exc, UpstreamTimeout) and not attempt.progress.body_handed_over:
            is_unsent = True
        # A repeat of a call that was charged already has nothing to lose: without a head it stays charged.
        was_charged = claimed_call.claimed.before is CallState.CONSUMED
        after = _find_unsent_state(claimed_call) if is_unsent or was_charged else CallState.UNKNOWN
        error = "caller_gone" if isinstance(exc, ClientGone) else problem.code.value
        closed = await self._close(
            attempt, claimed_call, after, error=error, http_status=None, upstream_status=None
        )
        if isinstance(exc, ClientGone):
            written = after if isinstance(closed, Closed) else CallState.UNKNOWN
            return Disconnected(payment_state=_format_state(written, claimed_call))
        if after is not CallState.UNKNOWN and isinstance(closed, ProblemResponse):
            return closed  # "released" would be a promise that the ledger does not keep
        state = _format_state(after, claimed_call)
        remaining_units = closed.remaining_units if isinstance(closed, Closed) else None
        return ProblemResponse(
            problem=replace(
                problem,
                payment_state=state,
                call_id=claimed_call.call_id,
                members=self._link_call(claimed_call) if after is CallState.UNKNOWN else {},
            ),
            headers=[status_header, *call_headers(claimed_call, state, remaining_units=remaining_units)],
        )

    def _fail_unclaimed(
        self, attempt: UpstreamAttempt, problem: Problem, status_header: tuple[bytes, bytes]
    ) -> ProblemResponse:
        """No row, and nothing was sent. Only when the ledger itself broke off may the price be taken for a while."""
        if not attempt.upstream_call.is_paid:
            state = "none"
        elif problem.code is Code.STORAGE_UNAVAILABLE:
            return ProblemResponse(problem=replace(problem, payment_state="held", retry_after_s=1))
        else:
            state = "released"
        return ProblemResponse(problem=replace(problem, payment_state=state), headers=[status_header])

    def _link_call(self, claimed_call: ClaimedCall) -> dict[str, object]:
        return {"call": f"{self._public_url}/api/v2/history/{claimed_call.call_id}"}

    async def _close_aborted(self, attempt: UpstreamAttempt, exc: BaseException) -> None:
        """The process is stopping, or has a bug. What was sent is unknown; what was not is given back."""
        if attempt.claimed_call is None:
            return
        after = CallState.UNKNOWN if attempt.progress.sent else _find_unsent_state(attempt.claimed_call)
        error = "shutdown" if isinstance(exc, asyncio.CancelledError) else Code.INTERNAL_ERROR.value
        closing = self._close(
            attempt, attempt.claimed_call, after, error=error, http_status=None, upstream_status=None
        )
        await asyncio.shield(closing)

    # ---- An answer: close by its head, then stream.

    async def _answer(self, attempt: UpstreamAttempt, response: UpstreamResponse) -> Outcome:
        claimed_call, status = attempt.claimed_call, response.status
        assert claimed_call is not None  # the client sends nothing before its hook has run
        after = CallState.CONSUMED if is_charged(claimed_call.charge_on, status) else CallState.RELEASED
        is_foreign_402 = status == _PAYMENT_REQUIRED
        # A repeat of a call whose money has moved already has nothing to settle.
        if after is CallState.CONSUMED and claimed_call.capture and claimed_call.transaction is None:
            return await self._settle(attempt, claimed_call, claimed_call.capture, response)
        try:
            closed = await self._close(
                attempt,
                claimed_call,
                after,
                error=Code.UPSTREAM_PAYMENT_REQUIRED.value if is_foreign_402 else None,
                http_status=None if is_foreign_402 else status,
                upstream_status=status,
            )
        except BaseException:
            response.close()
            raise
        if isinstance(closed, ProblemResponse):
            response.close()
            return closed
        state = _format_state(after, claimed_call)
        own = call_headers(claimed_call, state, remaining_units=closed.remaining_units)
        own.append(proxy_status(self._name, f"received-status={status}"))
        if is_foreign_402:
            response.close()
            problem = replace(UPSTREAM_PAYMENT_REQUIRED, call_id=claimed_call.call_id, payment_state=state)
            return ProblemResponse(problem=problem, headers=own)
        if after is CallState.RELEASED:
            claimed_call = replace(
                claimed_call, store_response=None
            )  # a repeat of what cost nothing is a call of its own
        return await self._relay.start_response(attempt.upstream_call, claimed_call, response, own)

    async def _settle(
        self,
        attempt: UpstreamAttempt,
        claimed_call: ClaimedCall,
        capture: PaymentCapture,
        response: UpstreamResponse,
    ) -> Outcome:
        """The head costs: the money moves now, while the body waits at the upstream."""
        close = self._build_close(
            attempt,
            claimed_call,
            CallState.SETTLING,
            error=None,
            http_status=response.status,
            upstream_status=response.status,
        )
        is_kept = False
        try:
            outcome = await capture.settle(close)
            match outcome:
                case Settled(transfer=transfer):
                    is_kept = True
                    self._count_quality(attempt, claimed_call, close, CallState.CONSUMED)
                    paid = replace(claimed_call, transaction=transfer.tx_hash)
                    own = call_headers(paid, "charged", remaining_units=None)
                    own.append(proxy_status(self._name, f"received-status={response.status}"))
                    return await self._relay.start_response(attempt.upstream_call, paid, response, own)
                case NotSettled(reason=reason):
                    refusal = capture.refuse(reason)
                    headers = [
                        *call_headers(claimed_call, "released", remaining_units=None),
                        *refusal.headers,
                    ]
                    problem = replace(refusal.problem, call_id=claimed_call.call_id)
                    return replace(refusal, problem=problem, headers=headers)
                case Undecided():
                    await capture.leave_orphaned(
                        await self._relay.collect(attempt.upstream_call, claimed_call, response)
                    )
                case SettlementFenced():
                    pass
                case _:
                    assert_never(outcome)
        except StorageUnavailable:
            pass  # the ledger cannot say; a repeat reads it again
        finally:
            if (
                not is_kept
            ):  # also when this very task is cancelled: settlement recovery finishes what the ledger says
                response.close()
        return self._explain_unknown(claimed_call)

    async def _close(
        self,
        attempt: UpstreamAttempt,
        claimed_call: ClaimedCall,
        after: CallState,
        *,
        error: str | None,
        http_status: int | None,
        upstream_status: int | None,
    ) -> Closed | ProblemResponse:
        """Writes the outcome. Declined: the ledger could not say, or somebody else moved the call on."""
        close = self._build_close(
            attempt,
            claimed_call,
            after,
            error=error,
            http_status=http_status,
            upstream_status=upstream_status,
        )
        try:
            closed = await self._ledger.close(close)
            if isinstance(closed, Closed):
                self._count_quality(attempt, claimed_call, close, after)
                return closed
        except StorageUnavailable:
            pass  # told below: the price stays taken until recovery finds the call
        return self._explain_unknown(claimed_call)

    def _count_quality(
        self, attempt: UpstreamAttempt, claimed_call: ClaimedCall, close: Close, after: CallState
    ) -> None:
        """`after`: where the call has ended; for one that was settled, that is not what `close` says."""
        listing = attempt.upstream_call.listing
        bucket = classify(
            listing,
            claimed_call.payer if claimed_call.claimed.before is None else None,
            payment_state=_format_state(after, claimed_call),
            upstream_status=close.upstream_status,
            upstream_latency_ms=close.upstream_latency_ms,
            error=close.error,
        )
        if bucket is not None:
            self._tally.count_call(listing.id, bucket)

    def _build_close(
        self,
        attempt: UpstreamAttempt,
        claimed_call: ClaimedCall,
        after: CallState,
        *,
        error: str | None,
        http_status: int | None,
        upstream_status: int | None,
    ) -> Close:
        now_ms, upstream_ms = self._now_ms(), None
        if upstream_status is not None and attempt.sent_ms is not None:
            upstream_ms = now_ms - attempt.sent_ms
            self._observe_upstream_s(upstream_ms / 1000)
        return Close(
            call_id=claimed_call.call_id,
            epoch=claimed_call.claimed.epoch,
            after=after,
            http_status=http_status,
            upstream_status=upstream_status,
            latency_ms=now_ms - attempt.upstream_call.call.received_ms,
            upstream_latency_ms=upstream_ms,
            error=error,
        )

    def _explain_unknown(self, claimed_call: ClaimedCall) -> ProblemResponse:
        """Never with terms: nobody is asked to pay again for what may be paid."""
        state = _format_state(CallState.UNKNOWN, claimed_call)
        problem = replace(
            OUTCOME_UNKNOWN,
            call_id=claimed_call.call_id,
            members=self._link_call(claimed_call),
            payment_state=state,
        )
        return ProblemResponse(
            problem=problem, headers=call_headers(claimed_call, state, remaining_units=None)
        )


def _find_unsent_state(claimed_call: ClaimedCall) -> CallState:
    """Where a run that was not wholly sent ends. The run before a repeat was sent: its price is not given back."""
    return claimed_call.claimed.before or CallState.RELEASED


def _format_state(state: CallState, claimed_call: ClaimedCall) -> str:
    return "none" if claimed_call.asset is None else _WIRE_STATES[state]
