"""Carrying one claimed call to its upstream and the answer back. Where a call's outcome becomes a row in the ledger.

The order is the law: dial, claim (durable), send, head, close (written), stream. Whatever goes wrong between two of
these steps is named here once, in the words of the table of outcomes. No body is ever held whole.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import assert_never

from tollway.errors import (
    Code,
    Problem,
    Refusal,
    StorageUnavailable,
    TollwayError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tollway.gateway.appraisal import classify
from tollway.gateway.breaker import CircuitBreaker
from tollway.gateway.exchange import (
    BodyRefused,
    ClientGone,
    Disconnected,
    Outcome,
    ProblemResponse,
)
from tollway.gateway.headers import proxy_status, upstream_headers
from tollway.gateway.refusals import (
    OUTCOME_UNKNOWN,
    UPSTREAM_PAYMENT_REQUIRED,
    explain_failure,
    name_proxy_error,
)
from tollway.gateway.relay import ResponseRelay
from tollway.gateway.trip import (
    ClaimedCall,
    ClaimRefused,
    PaymentCapture,
    UpstreamAttempt,
    UpstreamCall,
    call_headers,
)
from tollway.gateway.upstream_signature import NONCE_BYTES, UpstreamSigner, cover_body
from tollway.ledger.book import Close, Closed, Ledger
from tollway.ledger.call import CallState
from tollway.limits import Limits
from tollway.outbound.dialer import HttpClient
from tollway.outbound.policy import Endpoint
from tollway.outbound.request_writer import format_host
from tollway.outbound.upstream import UpstreamRequest, UpstreamResponse
from tollway.payments.settlement import NotSettled, Settled, SettlementFenced, Undecided
from tollway.registry.listing import is_charged
from tollway.registry.quality_tally import QualityTally

_WIRE_STATES = {
    CallState.CONSUMED: "charged",
    CallState.RELEASED: "released",
    CallState.UNKNOWN: "held",
}
_PAYMENT_REQUIRED = 402  # of the upstream's own answers, the one that is never passed on
_BODILESS = frozenset({204, 304})
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
